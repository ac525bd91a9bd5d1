"""Character language model: one LSTM layer over the standard library's source."""

from __future__ import annotations

import torch
from torch import nn

from advisor.collectors.workloads import Workload, data
from advisor.collectors.workloads.losses import next_character_loss


class CharacterModel(nn.Module):
    """Embedding, a recurrent layer, linear head over 128 characters.

    Parameters
    ----------
    width : int
    layer : type
        ``nn.LSTM`` or ``nn.GRU``.
    """

    def __init__(self, width: int, layer: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(data.CHARACTERS, width)
        self.recurrent = layer(width, width, batch_first=True)
        self.head = nn.Linear(width, data.CHARACTERS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Map (B, T) to scores of the next character (B, T, 128)."""
        scores: torch.Tensor = self.head(self.recurrent(self.embed(characters))[0])
        return scores


WORKLOAD = Workload(
    name="lstm",
    description="LSTM character model, 1 layer, 64 characters",
    data="source text of Python's standard library, 2 million characters",
    widths=(64, 128, 192),
    batches=(8, 16, 32),
    build=lambda width: CharacterModel(width, nn.LSTM),
    samples=data.text,
    loss=next_character_loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
)
