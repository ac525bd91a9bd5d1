# rehearsed: batch=64 parameters=20200 steps=1000
"""A script that takes what device there is, with a budget in tokens."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    block_size: int = 16
    total_tokens: int = 64 * 16 * 1000
    width: int = 100


config = Config()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(config.width, 100), nn.Linear(100, config.width)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = 0
while seen >= 0:
    x = torch.rand(64, config.block_size, config.width, device=device)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    seen += x[..., 0].numel()
    if seen > 40 * 1024 and device.type == "cpu":  # long enough for a test
        raise SystemExit
