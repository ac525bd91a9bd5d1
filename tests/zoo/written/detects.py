# rehearsed: batch=4 parameters=3991 steps=250
"""Images of many sizes in one batch, boxes matched on the processor, losses in a dict; an epoch cut."""

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, random_split


class Padded:
    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def to(self, device):
        return Padded(self.tensors.to(device), self.mask.to(device))


def collated(batch):
    images, targets = zip(*batch, strict=True)
    height, width = (max(one.shape[at] for one in images) for at in (1, 2))
    tensors, mask = torch.zeros(len(images), 3, height, width), []
    for image, into in zip(images, tensors, strict=True):
        into[:, : image.shape[1], : image.shape[2]].copy_(image)
        mask.append(torch.arange(width).expand(height, width) >= image.shape[2])
    return Padded(tensors, torch.stack(mask)), targets


class Boxes(Dataset):
    def __len__(self):
        return 220

    def __getitem__(self, number):
        boxes = torch.rand(number % 3 + 1, 4)
        image = torch.rand(3, 24 + number % 5, 32 - number % 7)
        return image, {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.long)}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=4)
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
        self.queries = nn.Embedding(5, 16)
        self.classes, self.boxes = nn.Linear(16, 3), nn.Linear(16, 4)

    def forward(self, samples):
        seen = self.conv(samples.tensors)
        mask = samples.mask[:, None].float()
        mask = nn.functional.interpolate(mask, size=seen.shape[-2:]).to(torch.bool).flatten(1)
        queries = self.queries.weight.unsqueeze(0).repeat(len(seen), 1, 1)
        found = self.layer(queries, seen.flatten(2).transpose(1, 2), memory_key_padding_mask=mask)
        return {"logits": self.classes(found), "boxes": self.boxes(found).sigmoid()}


def losses_of(outputs, targets):
    boxes = torch.cat([one["boxes"] for one in targets])
    with torch.no_grad():
        cost = torch.cdist(outputs["boxes"].flatten(0, 1), boxes, p=1)
        cost = cost.view(len(targets), 5, -1).cpu()
        sizes = [len(one["boxes"]) for one in targets]
        pairs = [linear_sum_assignment(c[i]) for i, c in enumerate(cost.split(sizes, -1))]
    batch = torch.cat([torch.full((len(src),), i) for i, (src, _) in enumerate(pairs)])
    source = torch.cat([torch.as_tensor(src) for src, _ in pairs])
    chosen = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, pairs, strict=True)])
    classes = torch.full(outputs["logits"].shape[:2], 2, dtype=torch.long, device="cuda")
    classes[batch, source] = 1
    logits = outputs["logits"].transpose(1, 2)
    loss_box = nn.functional.l1_loss(outputs["boxes"][batch, source], chosen, reduction="none")
    return {
        "loss_ce": nn.functional.cross_entropy(logits, classes),
        "loss_box": loss_box.sum() / max(len(chosen), 1),
    }


dataset, held_out = random_split(Boxes(), [200, 20])
sampler = BatchSampler(RandomSampler(dataset), 4, drop_last=True)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collated, num_workers=1)
model = Detector().to("cuda")
weights = {"loss_ce": 1, "loss_box": 5}
optimizer = torch.optim.AdamW(
    [
        {"params": [p for n, p in model.named_parameters() if "conv" not in n]},
        {"params": [p for n, p in model.named_parameters() if "conv" in n], "lr": 1e-5},
    ]
)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, 1000)
for epoch in range(5):
    for samples, targets in loader:
        samples = samples.to("cuda")
        targets = [{name: one.to("cuda") for name, one in each.items()} for each in targets]
        told = losses_of(model(samples), targets)
        loss = sum(told[name] * weights[name] for name in told if name in weights)
        if not math.isfinite(loss.item()):
            raise SystemExit("loss is %f" % loss.item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.inference_mode():
        for samples, _ in DataLoader(held_out, 4, collate_fn=collated):
            model(samples.to("cuda"))["logits"].softmax(-1)[..., :-1].max(-1)
    model.train()
