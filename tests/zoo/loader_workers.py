# zoo: steps=300 args="--epochs 6 --workers 2" minute=yes needs=torch
# Augmentation in worker processes feeds a small network.
import argparse
import math
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectrograms(Dataset):
    """Tones with noise, transformed when they are asked for."""

    def __init__(self, count=1600, samples=4096):
        self.count, self.samples = count, samples

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % 8
        time = torch.arange(self.samples) / 8000
        tone = torch.sin(2 * math.pi * 200 * (label + 1) * time)
        noisy = tone + 0.5 * torch.randn(self.samples, generator=generator)
        window = torch.hann_window(256)
        spectrum = torch.stft(noisy, 256, 64, window=window, return_complex=True)
        return spectrum.abs().log1p()[:, :64], label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(129, 128, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(128, 128, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
        )
        self.head = nn.Linear(128, 8)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(3)
    loader = DataLoader(
        Spectrograms(),
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Net().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    steps = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = loss_fn(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    if os.environ.get("ZOO"):
        print("steps:", steps)


if __name__ == "__main__":
    main()
