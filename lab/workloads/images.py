"""Networks on images: convolutional, residual, ConvNeXt, transformer, U-Net, autoencoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.lab.workloads import Workload, data

_PATCHES: dict[str, Any] = {
    "data": "2,048 patches of scikit-learn's sample photographs, 3 x 32 x 32",
    "samples": data.patches,
}


def lenet(width: int) -> nn.Module:
    """Return three 3 x 3 convolutions on the 8 x 8 image, one pooling, two dense layers."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * width, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, and a way around them.

    Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2 (the
    CIFAR form: three stages, the width doubles where the image halves), one block a stage.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        inner = functional.relu(self.first_norm(self.first(x)))
        out: torch.Tensor = self.second_norm(self.second(inner)) + self.around(x)
        return functional.relu(out)


def residual_network(width: int) -> nn.Module:
    """Return a stem and three stages of one block: width, 2 width, 4 width channels."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        ResidualBlock(width, width, 1), ResidualBlock(width, 2 * width, 2),
        ResidualBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 8),
    )  # fmt: skip


class ConvNeXtBlock(nn.Module):
    """Depthwise 7 x 7, normalisation over channels, two pointwise layers of 4 x the width.

    Source: Liu et al., "A ConvNet for the 2020s", CVPR 2022, figure 4.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, width, H, W) to the same shape."""
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        out: torch.Tensor = self.narrow(functional.gelu(self.widen(inner)))
        return x + out.permute(0, 3, 1, 2)


def convnext(width: int) -> nn.Module:
    """Return a 2 x 2 stem, two blocks, a halving, two blocks of twice the width, a head."""
    return nn.Sequential(
        nn.Conv2d(3, width, 2, stride=2), ConvNeXtBlock(width), ConvNeXtBlock(width),
        nn.Conv2d(width, 2 * width, 2, stride=2), ConvNeXtBlock(2 * width),
        ConvNeXtBlock(2 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(2 * width), nn.Linear(2 * width, 8),
    )  # fmt: skip


class VisionTransformer(nn.Module):
    """Patch embedding (4 x 4 pixels), learned positions, encoder layers, a linear head.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, equations 1-4, with the
    mean of the tokens in place of the class token.
    """

    def __init__(self, width: int, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (data.PATCH // 4) ** 2, width))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
        )
        self.head = nn.Linear(width, 8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, 32, 32) to class scores (B, 8)."""
        tokens = self.embed(images).flatten(2).transpose(1, 2) + self.positions
        scores: torch.Tensor = self.head(self.layers(tokens).mean(dim=1))
        return scores


def _pair(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels down, two levels up, each joined with what was there on the way down.

    Source: Ronneberger et al., "U-Net", MICCAI 2015, figure 1, with two levels.
    """

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


def denoising_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of the image restored from added noise of 0.2."""
    images = batch[0]
    return functional.mse_loss(model(images + 0.2 * torch.randn_like(images)), images)


def autoencoder(width: int) -> nn.Module:
    """Return two strided convolutions, a code of 8 channels, two transposed convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(2 * width, 8, 1), nn.Conv2d(8, 2 * width, 1), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
    )  # fmt: skip


def restoring_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of the image after the bottleneck."""
    images = batch[0]
    return functional.mse_loss(model(images), images)


WORKLOADS = (
    Workload(
        name="cnn",
        description="convolutional network, 3 convolutions",
        data="scikit-learn digits, 1797 x 8 x 8",
        widths=(16, 32, 64),
        batches=(32, 128, 256),
        build=lenet,
        samples=data.digits,
        loss=data.class_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    ),
    Workload(
        name="resnet",
        description="residual network, 3 stages of one block",
        widths=(8, 16, 24),
        batches=(8, 16, 32),
        build=residual_network,
        loss=data.class_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        **_PATCHES,
    ),
    Workload(
        name="convnext",
        description="ConvNeXt, 4 blocks in 2 stages",
        widths=(16, 32, 48),
        batches=(8, 16, 32),
        build=convnext,
        loss=data.class_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        **_PATCHES,
    ),
    Workload(
        name="vit",
        description="vision transformer, 3 layers, 4 heads, 64 tokens",
        widths=(32, 64, 96),
        batches=(8, 16, 32),
        build=VisionTransformer,
        loss=data.class_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        **_PATCHES,
    ),
    Workload(
        name="unet",
        description="U-Net, 2 levels, denoising",
        widths=(4, 8, 12),
        batches=(8, 16, 32),
        build=UNet,
        loss=denoising_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        **_PATCHES,
    ),
    Workload(
        name="autoencoder",
        description="convolutional autoencoder, 2 levels",
        widths=(16, 32, 64),
        batches=(8, 32, 64),
        build=autoencoder,
        loss=restoring_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        **_PATCHES,
    ),
)
