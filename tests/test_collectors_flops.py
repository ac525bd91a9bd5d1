"""Operators counted inside real steps, against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import hooked
from torch import nn

from advisor.collectors.hooks.trace import flop

PRODUCTS = set(flop.CLOSED_FORMS)


def traced(tmp_path: Path, module: nn.Module, make: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """Return the facts of one traced training step of ``module`` on what ``make`` gives."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    with hooked(tmp_path) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            out = module(make())
            (out[0] if isinstance(out, tuple) else out).square().mean().backward()
            optimizer.step()
        return hooks.deep()


def product_flop(facts: dict[str, Any], phase: str) -> float:
    """Return the flop of products, convolutions, recurrent layers and attention."""
    return sum(
        float(row["flop"])
        for row in facts["operators"]
        if row["phase"] == phase and flop.is_product(row["name"].partition("::")[2])
    )


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_a_grouped_convolution_costs_a_dense_one_over_its_groups(
    tmp_path: Path, groups: int
) -> None:
    layer = nn.Conv2d(16, 32, 3, padding=1, groups=groups)
    facts = traced(tmp_path, layer, lambda: torch.randn(2, 16, 12, 12, requires_grad=True))
    forward = 2 * (2 * 32 * 12 * 12) * (16 // groups) * 9
    assert product_flop(facts, "forward") == forward
    bias = 2 * 32 * 12 * 12
    assert product_flop(facts, "backward") == 2 * forward + bias
    assert facts["flags"] == []


def test_a_transposed_convolution_is_counted_by_its_input(tmp_path: Path) -> None:
    layer = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, bias=False)
    facts = traced(tmp_path, layer, lambda: torch.randn(2, 8, 6, 6, requires_grad=True))
    forward = 2 * (2 * 8 * 6 * 6) * 4 * 16
    assert product_flop(facts, "forward") == forward
    assert product_flop(facts, "backward") == 2 * forward


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_count_every_gate_at_every_time_step(
    tmp_path: Path, kind: type[nn.Module], gates: int
) -> None:
    layer = kind(16, 32, num_layers=2, batch_first=True)
    facts = traced(tmp_path, layer, lambda: torch.randn(3, 7, 16, requires_grad=True))
    matrices = gates * 32 * (16 + 32) + gates * 32 * (32 + 32)
    forward = 2 * 3 * 7 * matrices
    assert product_flop(facts, "forward") == forward
    # Not every kernel computes the first state's gradient, which nobody asks for.
    unasked = 2 * 2 * 3 * gates * 32 * 32
    backward = product_flop(facts, "backward")
    assert 2 * forward - unasked <= backward <= 2 * forward


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_counts_the_pairs_it_looks_at(tmp_path: Path, is_causal: bool) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.scale
            return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=is_causal)

    facts = traced(tmp_path, Attention(), lambda: torch.randn(2, 4, 64, 16))
    pairs = 64 * 65 / 2 if is_causal else 64 * 64
    forward = 2 * 2 * (2 * 4 * pairs) * 16
    assert product_flop(facts, "forward") == forward
    assert product_flop(facts, "backward") == 2.5 * forward


def test_a_sparse_product_counts_stored_elements(tmp_path: Path) -> None:
    dense = torch.zeros(50, 40)
    dense[::5, ::4] = 1.0
    stored = int(dense.count_nonzero())

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(40, 8))
            self.adjacency = dense.to_sparse()

        def forward(self, _: torch.Tensor) -> torch.Tensor:
            product: torch.Tensor = torch.sparse.mm(self.adjacency, self.weight)
            return product

    facts = traced(tmp_path, Graph(), lambda: torch.zeros(1))
    assert product_flop(facts, "forward") == 2 * stored * 8
    assert product_flop(facts, "backward") == 2 * stored * 8


def test_dense_networks_agree_with_the_frameworks_own_counter(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 20),
        nn.Tanh(),
        nn.Linear(20, 5),
    )
    x = torch.randn(4, 3, 8, 8)
    with FlopCounterMode(display=False) as counter:
        module(x).square().mean().backward()
    facts = traced(tmp_path, module, lambda: x)
    bias = 4 * 8 * 36  # the framework leaves the convolution's bias gradient out
    ours = product_flop(facts, "forward") + product_flop(facts, "backward")
    assert ours == counter.get_total_flops() + bias


def test_fused_updates_count_per_parameter(tmp_path: Path) -> None:
    layer = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    with hooked(tmp_path) as hooks:
        for _ in range(4):
            optimizer.zero_grad()
            layer(torch.randn(2, 10)).sum().backward()
            optimizer.step()
        facts = hooks.deep()
    (row,) = [row for row in facts["operators"] if row["name"] == "aten::_fused_adamw_"]
    assert row["phase"] == "optimizer"
    assert row["flop"] == 14 * 100
    assert row["fixed_bytes"] == row["bytes"]
