"""A small convolutional network on scikit-learn's handwritten digits; reaches about 98 %.

python examples/digits_cnn.py --epochs 20
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test sets of 8 x 8 images of ten digits, scaled to [0, 1]."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.2, random_state=seed)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    return (
        TensorDataset(x_train.float().view(-1, 1, 8, 8), y_train),
        TensorDataset(x_test.float().view(-1, 1, 8, 8), y_test),
    )


def network(width: int) -> nn.Module:
    """Return three convolutions and a classifier."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    """Return the share of samples that ``model`` names rightly."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    model.train()
    return right / len(loader.dataset)  # type: ignore[arg-type]


def main() -> None:
    """Train and report the accuracy on images never trained on."""
    args = arguments()
    torch.manual_seed(args.seed)
    train, test = digits(args.seed)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    held_out = DataLoader(test, batch_size=256)
    model = network(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_function(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: accuracy {accuracy(model, held_out):.4f}", flush=True)


if __name__ == "__main__":
    main()
