"""Graph network on the digits' nearest-neighbour graph: two rounds of neighbour means.

Source: Hamilton et al., "Inductive Representation Learning on Large Graphs" (GraphSAGE), NIPS
2017, algorithm 1 with the mean aggregator and all 8 neighbours.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from advisor.collectors.workloads import Workload, data
from advisor.collectors.workloads.losses import class_loss


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
    """Two rounds over the fixed graph, from the batch's nodes outwards."""

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


WORKLOAD = Workload(
    name="gnn",
    description="graph network (GraphSAGE mean), 2 rounds, 8 neighbours",
    data="nearest-neighbour graph of scikit-learn digits, 1,797 nodes",
    widths=(64, 128, 256),
    batches=(32, 128, 256),
    build=GraphNetwork,
    samples=nodes,
    loss=class_loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
)
