"""Convolutional autoencoder on photograph patches: down to 8 x 8 and up again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.collectors.workloads import Workload, data


def build(width: int) -> nn.Module:
    """Return two strided convolutions, a code of 8 channels, two transposed convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(2 * width, 8, 1), nn.Conv2d(8, 2 * width, 1), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
    )  # fmt: skip


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of the image after the bottleneck."""
    images = batch[0]
    return functional.mse_loss(model(images), images)


WORKLOAD = Workload(
    name="autoencoder",
    description="convolutional autoencoder, 2 levels",
    data="2,048 patches of scikit-learn's sample photographs, 3 x 32 x 32",
    widths=(16, 32, 64),
    batches=(8, 32, 64),
    build=build,
    samples=data.patches,
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
)
