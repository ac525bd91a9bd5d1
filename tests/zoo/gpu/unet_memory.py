"""Train the simplified U-Net of torchgpipe's memory benchmark on one device (Kim et al., 2020)."""

import torch
import torch.nn.functional as F
from torch import nn

DEPTH, CONVOLUTIONS, CHANNELS = 5, 6, 72


def cell(inside, middle, outside):
    widths = [inside, *[middle] * (CONVOLUTIONS - 1), outside]
    layers = []
    for first, second in zip(widths, widths[1:]):
        layers += [
            nn.Conv2d(first, second, 3, padding=1, bias=False),
            nn.Dropout2d(0.1),
            nn.InstanceNorm2d(second),
            nn.LeakyReLU(),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        wide = [CHANNELS * 2**level for level in range(DEPTH + 1)]
        half = [CHANNELS // 2, *wide]
        self.down = nn.ModuleList(
            cell(3 if level == 0 else wide[level - 1], wide[level], wide[level])
            for level in range(DEPTH)
        )
        self.bottom = cell(wide[DEPTH - 1], wide[DEPTH], wide[DEPTH - 1])
        self.up = nn.ModuleList(
            cell(wide[level + 1], half[level], half[level]) for level in reversed(range(DEPTH))
        )
        self.segment = nn.Conv2d(half[0], 1, 1, bias=False)

    def forward(self, x):
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for level in self.up:
            x = level(torch.cat((F.interpolate(x, scale_factor=2.0), kept.pop()), 1))
        return self.segment(x)


model = UNet().cuda()
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
x, y = torch.rand(32, 3, 192, 192, device="cuda"), torch.rand(32, 1, 192, 192, device="cuda")
for step in range(100):
    F.binary_cross_entropy_with_logits(model(x), y).backward()
    optimizer.step()
