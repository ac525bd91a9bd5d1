"""Networks on vectors, graphs and pairs: perceptron, GraphSAGE, collaborative filtering."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from advisor.lab.workloads import Workload, data


def perceptron(width: int) -> nn.Module:
    """Return 64 -> width -> width -> width -> 10 with ReLU."""
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


class NeighbourMean(nn.Module):
    """A node's own features and the mean of its neighbours', each through a linear map."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs, bias=False)

    def forward(self, own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) and (..., neighbours, inputs) to (..., outputs)."""
        out: torch.Tensor = self.own(own) + self.others(others.mean(dim=-2))
        return out


class GraphNetwork(nn.Module):
    """Two rounds over the fixed graph of nearest neighbours, from the batch's nodes outwards.

    Source: Hamilton et al., "Inductive Representation Learning on Large Graphs" (GraphSAGE), NIPS
    2017, algorithm 1 with the mean aggregator and all 8 neighbours.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        pixels, neighbours = data.neighbours()
        self.register_buffer("pixels", pixels, persistent=False)
        self.register_buffer("neighbours", neighbours, persistent=False)
        self.first = NeighbourMean(64, width)
        self.second = NeighbourMean(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        """Map node numbers (B,) to class scores (B, 10)."""
        table, pixels = self.get_buffer("neighbours"), self.get_buffer("pixels")
        ring = table[nodes]  # (B, 8)
        both = torch.cat((nodes[:, None], ring), dim=1)  # (B, 9)
        hidden = functional.relu(self.first(pixels[both], pixels[table[both]]))
        hidden = functional.relu(self.second(hidden[:, 0], hidden[:, 1:]))
        scores: torch.Tensor = self.head(hidden)
        return scores


def nodes() -> TensorDataset:
    """Return the graph's nodes: their numbers and their digits."""
    labels = data.digits().tensors[1]
    return TensorDataset(torch.arange(len(labels)), labels)


class Recommender(nn.Module):
    """Product of the embeddings beside a perceptron over both.

    Source: He et al., "Neural Collaborative Filtering", WWW 2017, section 3.4 (fused form).
    """

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


def rating_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the squared error of the rating."""
    users, items, ratings = batch
    return functional.mse_loss(model(users, items), ratings)


WORKLOADS = (
    Workload(
        name="mlp",
        description="multilayer perceptron, 3 hidden layers",
        data="scikit-learn digits, 1797 x 64",
        widths=(256, 512, 1024),
        batches=(32, 128, 512),
        build=perceptron,
        samples=data.digits,
        loss=data.class_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    ),
    Workload(
        name="gnn",
        description="graph network (GraphSAGE mean), 2 rounds, 8 neighbours",
        data="nearest-neighbour graph of scikit-learn digits, 1,797 nodes",
        widths=(64, 128, 256),
        batches=(32, 128, 256),
        build=GraphNetwork,
        samples=nodes,
        loss=data.class_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
    ),
    Workload(
        name="recommender",
        description="neural collaborative filtering, 4,096 users x 2,048 items",
        data="100,000 synthetic ratings: quality of the item and a product of hidden traits",
        is_synthetic=True,
        widths=(16, 32, 64),
        batches=(128, 512, 2048),
        build=Recommender,
        samples=data.ratings,
        loss=rating_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=5e-3),
    ),
)
