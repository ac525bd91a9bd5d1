"""Neural collaborative filtering on synthetic ratings: two embeddings and a small perceptron.

Source: He et al., "Neural Collaborative Filtering", WWW 2017, section 3.4 (fused form).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.collectors.workloads import Workload, data


class Recommender(nn.Module):
    """Product of the embeddings beside a perceptron over both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(data.USERS, width)
        self.items = nn.Embedding(data.ITEMS, width)
        self.perceptron = nn.Sequential(
            nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU()
        )
        self.head = nn.Linear(2 * width, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Map user and item numbers (B,) to ratings (B,)."""
        user, item = self.users(users), self.items(items)
        inner = self.perceptron(torch.cat((user, item), dim=1))
        rating: torch.Tensor = self.head(torch.cat((user * item, inner), dim=1))
        return rating.squeeze(1)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of the rating."""
    users, items, ratings = batch
    return functional.mse_loss(model(users, items), ratings)


WORKLOAD = Workload(
    name="recommender",
    description="neural collaborative filtering, 4,096 users x 2,048 items",
    data="100,000 synthetic ratings: quality of the item and a product of hidden traits",
    is_synthetic=True,
    widths=(16, 32, 64),
    batches=(128, 512, 2048),
    build=Recommender,
    samples=data.ratings,
    loss=loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=5e-3),
)
