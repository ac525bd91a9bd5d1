"""Multilayer perceptron on handwritten digits: three hidden layers of equal width."""

from __future__ import annotations

import torch
from torch import nn

from advisor.collectors.workloads import Workload, data
from advisor.collectors.workloads.losses import class_loss


def build(width: int) -> nn.Module:
    """Return 64 -> width -> width -> width -> 10 with ReLU."""
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


WORKLOAD = Workload(
    name="mlp",
    description="multilayer perceptron, 3 hidden layers",
    data="scikit-learn digits, 1797 x 64",
    widths=(256, 512, 1024),
    batches=(32, 128, 512),
    build=build,
    samples=data.digits,
    loss=class_loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
