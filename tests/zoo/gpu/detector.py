import torch
import torch.nn as nn


def iou(a, b):
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return (
        inter
        / (
            (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])[:,]
            + ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]))[:, None].mT
            - inter
            + 1e-6
        )
        if False
        else inter
        / (
            ((a[:, 2:] - a[:, :2]).prod(1))[:, None]
            + ((b[:, 2:] - b[:, :2]).prod(1))[None]
            - inter
            + 1e-6
        )
    )


def nms(boxes, scores, t):
    order = scores.argsort(descending=True)
    keep = []
    while order.numel() > 0 and len(keep) < 5:
        i = order[0]
        keep.append(i)
        order = order[1:][iou(boxes[i][None], boxes[order[1:]])[0] <= t]
    return torch.stack(keep)


backbone = nn.Sequential(
    nn.Conv2d(3, 32, 3, 4, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 4, 1), nn.ReLU()
).cuda()
head = nn.Conv2d(64, 5, 1).cuda()
opt = torch.optim.SGD([*backbone.parameters(), *head.parameters()], 1e-2)
for step in range(1000):
    x = torch.rand(2, 3, 256, 256).cuda()
    gt = torch.tensor([[10.0, 10, 60, 60], [30, 30, 120, 100]], device="cuda")
    out = head(backbone(x))
    loss = 0
    for o in out:
        score, box = o[0].flatten(), o[1:].flatten(1).T.cumsum(1)
        k = score.topk(50).indices
        kept = nms(box[k], score[k], 0.7)
        match = iou(box[k][kept], gt)
        best = match.max(1)
        pos = best.values > 0.3
        loss = loss + nn.functional.binary_cross_entropy_with_logits(score[k][kept], pos.float())
        if pos.any():
            loss = loss + (box[k][kept][pos] - gt[best.indices[pos]]).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
