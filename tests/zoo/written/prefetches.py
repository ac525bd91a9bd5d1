# rehearsed: batch=16 parameters=5062 steps=60
"""A batch ahead on a stream of its own, until there is none; channels last, fp16 masters by hand."""

import argparse
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, number):
        return torch.randint(0, 255, (3, 16, 16), dtype=torch.uint8), number % 8


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([124.0, 117.0, 104.0]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)
            self.next_input = self.next_input.half().sub_(self.mean).div_(58.0)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        found, target = self.next_input, self.next_target
        for one in (found, target):
            if one is not None:
                one.record_stream(torch.cuda.current_stream())
        self.preload()
        return found, target


def train(loader, model, masters, optimizer, epoch):
    prefetcher = Prefetcher(loader)
    images, target = prefetcher.next()
    i = 0
    while images is not None:
        i += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.1 ** (epoch // 30)
        torch.cuda.nvtx.range_push("forward")
        output = model(images.to(memory_format=torch.channels_last))
        torch.cuda.nvtx.range_pop()
        loss = nn.functional.cross_entropy(output.float(), target) * 128
        model.zero_grad()
        loss.backward()
        for master, own in zip(masters, model.parameters(), strict=True):
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            master.grad.data.copy_(own.grad.data / 128)
        optimizer.step()
        for master, own in zip(masters, model.parameters(), strict=True):
            own.data.copy_(master.data)
        if i % 10 == 0:
            best = output.data.topk(5, 1, True, True)[1].t()
            right = best.eq(target.view(1, -1).expand_as(best))[:5].reshape(-1).float().sum(0)
            print(loss.item(), right.mul_(100.0 / target.size(0)).item())
            torch.cuda.synchronize()
        images, target = prefetcher.next()


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
torch.backends.cudnn.benchmark = True
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 30, 3),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(30, 8),
).cuda().to(memory_format=torch.channels_last).half()  # fmt: skip
model[1].float()
model[0].register_forward_hook(lambda *given: given[2].float())
model[2].register_forward_hook(lambda *given: given[2].half())
masters = [one.detach().clone().float().requires_grad_() for one in model.parameters()]
optimizer = torch.optim.SGD(masters, 0.1, momentum=0.9, nesterov=True)
loader = DataLoader(Images(), 16, shuffle=True, num_workers=1, pin_memory=True)
for epoch in range(args.epochs):
    train(loader, model, masters, optimizer, epoch)
    torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pth.tar")
    shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
