# zoo: steps=400 args="--epochs 8 --max-batches 50" minute=yes needs=torch
# An epoch is cut off after so many batches, two calls below the loop over epochs.
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        self.device = torch.device(args.device)
        x = torch.randn(8192, 512)
        y = (x[:, :8].sum(dim=1, keepdim=True) > 0).float()
        self.loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
        self.model = nn.Sequential(
            nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1)
        ).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.loss = nn.BCEWithLogitsLoss()
        self.steps = 0

    def fit(self):
        for epoch in range(self.args.epochs):
            loss = self.fit_epoch()
            print(f"epoch {epoch}: loss {loss:.4f}")

    def fit_epoch(self):
        total = 0.0
        for i, (x, y) in enumerate(self.loader):
            if i >= self.args.max_batches:
                break
            total += self.fit_batch(x.to(self.device), y.to(self.device))
        return total / self.args.max_batches

    def fit_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--max-batches", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    trainer = Trainer(parser.parse_args())
    trainer.fit()
    if os.environ.get("ZOO"):
        print("steps:", trainer.steps)
