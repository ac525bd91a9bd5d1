"""Character language model: one GRU layer over the standard library's source."""

from __future__ import annotations

import torch
from torch import nn

from advisor.collectors.workloads import Workload, data
from advisor.collectors.workloads.losses import next_character_loss
from advisor.collectors.workloads.lstm import CharacterModel

WORKLOAD = Workload(
    name="gru",
    description="GRU character model, 1 layer, 64 characters",
    data="source text of Python's standard library, 2 million characters",
    widths=(64, 128, 192),
    batches=(8, 16, 32),
    build=lambda width: CharacterModel(width, nn.GRU),
    samples=data.text,
    loss=next_character_loss,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
)
