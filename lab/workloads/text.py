"""Character models over the standard library's source: LSTM, GRU, decoder-only transformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.lab.workloads import Workload, data

_TEXT: dict[str, Any] = {
    "data": "source text of Python's standard library, 2 million characters",
    "batches": (8, 16, 32),
    "samples": data.text,
    "loss": data.next_character_loss,
}


class CharacterModel(nn.Module):
    """Embedding, a recurrent layer, linear head over 128 characters."""

    def __init__(self, width: int, layer: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(data.CHARACTERS, width)
        self.recurrent = layer(width, width, batch_first=True)
        self.head = nn.Linear(width, data.CHARACTERS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Map (B, T) to scores of the next character (B, T, 128)."""
        scores: torch.Tensor = self.head(self.recurrent(self.embed(characters))[0])
        return scores


class TransformerBlock(nn.Module):
    """Causal attention and a feed-forward part, each normalised before and added after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.forward_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, width) to the same shape."""
        b, t, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).view(b, t, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, width))
        inner: torch.Tensor = self.narrow(functional.gelu(self.widen(self.forward_norm(x))))
        return x + inner


class LanguageModel(nn.Module):
    """Embedding, learned positions, blocks, a linear head.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section
    2.3 (normalisation before each part), small.
    """

    def __init__(self, width: int, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(data.CHARACTERS, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, data.CONTEXT, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, data.CHARACTERS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Map (B, T) to scores of the next character (B, T, 128)."""
        x = self.blocks(self.embed(characters) + self.positions)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


WORKLOADS = (
    Workload(
        name="lstm",
        description="LSTM character model, 1 layer, 64 characters",
        widths=(64, 128, 192),
        build=lambda width: CharacterModel(width, nn.LSTM),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
        **_TEXT,
    ),
    Workload(
        name="gru",
        description="GRU character model, 1 layer, 64 characters",
        widths=(64, 128, 192),
        build=lambda width: CharacterModel(width, nn.GRU),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
        **_TEXT,
    ),
    Workload(
        name="transformer",
        description="decoder-only transformer, 3 layers, 4 heads, 64 characters",
        widths=(48, 96, 144),
        build=LanguageModel,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        **_TEXT,
    ),
)
