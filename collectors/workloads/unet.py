"""U-Net that takes the noise out of photograph patches.

Source: Ronneberger et al., "U-Net", MICCAI 2015, figure 1, with two levels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.collectors.workloads import Workload, data


def _pair(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels down, two levels up, each joined with what was there on the way down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.top = _pair(3, width)
        self.middle = _pair(width, 2 * width)
        self.bottom = _pair(2 * width, 4 * width)
        self.up_middle = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join_middle = _pair(4 * width, 2 * width)
        self.up_top = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_top = _pair(2 * width, width)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map noisy images (B, 3, 32, 32) to clean ones."""
        top = self.top(x)
        middle = self.middle(functional.max_pool2d(top, 2))
        bottom = self.bottom(functional.max_pool2d(middle, 2))
        middle = self.join_middle(torch.cat((self.up_middle(bottom), middle), dim=1))
        out: torch.Tensor = self.head(self.join_top(torch.cat((self.up_top(middle), top), dim=1)))
        return out


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of the image restored from added noise of 0.2."""
    images = batch[0]
    return functional.mse_loss(model(images + 0.2 * torch.randn_like(images)), images)


WORKLOAD = Workload(
    name="unet",
    description="U-Net, 2 levels, denoising",
    data="2,048 patches of scikit-learn's sample photographs, 3 x 32 x 32",
    widths=(4, 8, 12),
    batches=(8, 16, 32),
    build=UNet,
    samples=data.patches,
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
)
