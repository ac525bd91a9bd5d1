# zoo: steps=240 args="--steps 240" minute=yes needs=torch workers=2
"""A script of one process, counted in steps: `advisor profile --workers 2` makes ranks of it."""

import argparse
import itertools
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(0)
dataset = TensorDataset(torch.rand(4096, 3, 32, 32), torch.randint(0, 10, (4096,)))
loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = itertools.chain.from_iterable(itertools.repeat(loader))
steps = 0
for step in range(args.steps):
    images, labels = next(batches)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    steps += 1
    if step % 60 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
if os.environ.get("ZOO"):
    print(f"steps: {steps}", flush=True)
