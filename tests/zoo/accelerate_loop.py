# zoo: steps=320 args="--epochs 8" minute=yes needs=torch,accelerate,sklearn
"""Accelerate: digits, a plain loop with gradient accumulation and a schedule."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()
set_seed(0)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
labels = torch.tensor(labels)
train = TensorDataset(images[:1280], labels[:1280])
test = TensorDataset(images[1280:], labels[1280:])
model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(48 * 64, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(test, batch_size=64)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=400)
model, optimizer, train_loader, test_loader, schedule = accelerator.prepare(
    model, optimizer, train_loader, test_loader, schedule
)

steps = 0
for epoch in range(args.epochs):
    model.train()
    for x, y in train_loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)
    accelerator.print(f"epoch {epoch}: {right / len(test):.3f}")
if os.environ.get("ZOO") == "1":
    print(f"steps: {steps}")
