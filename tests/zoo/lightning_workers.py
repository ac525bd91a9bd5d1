# zoo: steps=300 args="--max-epochs 6" minute=yes needs=torch,lightning
"""Lightning: pictures of stripes, two loader workers, validation at the end of every epoch."""

import argparse
import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--max-epochs", type=int, default=3)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


class Stripes(Dataset):
    def __init__(self, count, side=32):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % 4
        picture = torch.rand(3, self.side, self.side, generator=generator) * 0.5
        picture[:, :: label + 2] += 0.5
        return picture, label


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(48 * 64, 4),
        )  # fmt: skip

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=args.max_epochs, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    options = {"batch_size": 32, "num_workers": args.workers}
    trainer.fit(
        Classifier(),
        DataLoader(Stripes(1600), shuffle=True, **options),
        DataLoader(Stripes(160), **options),
    )
    if os.environ.get("ZOO") == "1":
        print(f"steps: {trainer.global_step}")
