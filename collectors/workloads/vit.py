"""Vision transformer on photograph patches: 64 tokens of 4 x 4 pixels.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, equations 1-4, with the
mean of the tokens in place of the class token.
"""

from __future__ import annotations

import torch
from torch import nn

from advisor.collectors.workloads import Workload, data
from advisor.collectors.workloads.losses import class_loss


class VisionTransformer(nn.Module):
    """Patch embedding, learned positions, encoder layers, a linear head."""

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


WORKLOAD = Workload(
    name="vit",
    description="vision transformer, 3 layers, 4 heads, 64 tokens",
    data="2,048 patches of scikit-learn's sample photographs, 3 x 32 x 32",
    widths=(32, 64, 96),
    batches=(8, 16, 32),
    build=VisionTransformer,
    samples=data.patches,
    loss=class_loss,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
)
