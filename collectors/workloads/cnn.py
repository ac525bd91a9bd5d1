"""Plain convolutional network on handwritten digits, in the manner of LeNet."""

from __future__ import annotations

import torch
from torch import nn

from advisor.collectors.workloads import Workload, data
from advisor.collectors.workloads.losses import class_loss


def build(width: int) -> nn.Module:
    """Return three 3 x 3 convolutions on the 8 x 8 image, one pooling, two dense layers."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * width, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10),
    )  # fmt: skip


WORKLOAD = Workload(
    name="cnn",
    description="convolutional network, 3 convolutions",
    data="scikit-learn digits, 1797 x 8 x 8",
    widths=(16, 32, 64),
    batches=(32, 128, 256),
    build=build,
    samples=data.digits,
    loss=class_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
)
