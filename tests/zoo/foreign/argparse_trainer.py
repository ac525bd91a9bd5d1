# foreign: steps=5000
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class RandomImages(Dataset):
    def __init__(self, n, size):
        rng = np.random.default_rng(0)
        self.x = rng.random((n, 3, size, size), dtype=np.float32)
        self.y = rng.integers(0, 10, n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if random.random() < 0.5:
            x = x[:, :, ::-1].copy()
        return torch.from_numpy(x), int(self.y[i])


def block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)
    )


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(
        block(3, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 16, 10)
    ).to(device)
    train = DataLoader(
        RandomImages(1600, 32), args.batch, shuffle=True, num_workers=args.workers, drop_last=True
    )
    val = DataLoader(RandomImages(256, 32), args.batch)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    for epoch in range(args.epochs):
        net.train()
        for x, y in train:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        net.eval()
        with torch.no_grad():
            acc = sum((net(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in val) / 256
        print(f"epoch {epoch}: loss {loss.item():.3f} acc {acc:.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=100)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
