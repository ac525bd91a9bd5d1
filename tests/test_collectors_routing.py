"""Routers: found without being told, what tokens chose, and nothing computed otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from collecting import Hooked, hooked
from torch import nn

from advisor.collectors.format.facts import routing_of
from advisor.collectors.hooks.routing import _chosen, routers_of

EXPERTS, TOP, HIDDEN = 6, 2, 8


class Listed(nn.Module):
    """Experts in a list, scores from a linear layer: as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = TOP
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(EXPERTS)])
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, dim=-1)
        self.seen.append(chosen.flatten().tolist())
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            mixed = mixed.index_add(0, rows, weights[rows, places, None] * expert(x[rows]))
        return x + mixed


class Fused(nn.Module):
    """All experts' matrices in one tensor, and a router that chooses itself."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrices = nn.Parameter(torch.randn(EXPERTS, HIDDEN, HIDDEN) / HIDDEN)

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top_k = TOP
            self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weights, chosen = (x @ self.weight.T).softmax(-1).topk(TOP, dim=-1)
            return weights, chosen

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = self.Router(), self.Experts()
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x)
        self.seen.append(chosen.flatten().tolist())
        matrices = self.experts.matrices[chosen]
        return x + torch.einsum("tk,tkij,tj->ti", weights, matrices, x)


def trained(kind: Any, steps: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), kind(), kind())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(20, HIDDEN)).square().mean().backward()
        optimizer.step()
    return model


def facts_of(hooks: Hooked) -> dict[str, list[dict[str, Any]]]:
    facts = hooks.events.facts
    assert "failure" not in facts, facts["failure"]
    return facts


@pytest.mark.parametrize("kind", [Listed, Fused])
def test_a_recorded_pass_is_what_the_layers_chose(kind: Any, tmp_path: Path) -> None:
    with hooked(tmp_path) as hooks:
        model = trained(kind)
        facts = facts_of(hooks)
    found = routing_of(facts["routers"][-1], facts["routes"])
    assert found is not None
    assert (found.experts, found.top, len(found.layers)) == (EXPERTS, TOP, 2)
    size = {Listed: 4 * (HIDDEN * HIDDEN + HIDDEN), Fused: 4 * HIDDEN * HIDDEN}[kind]
    assert found.expert_bytes == size
    everything = sum(4 * p.numel() for p in model.parameters())
    assert found.dense_bytes == everything - 2 * EXPERTS * size
    for one in found.passes:
        chosen = [cast("Any", layer).seen[one.step] for layer in list(model)[1:]]
        assert [list(layer) for layer in one.experts] == chosen


@pytest.mark.parametrize("kind", [Listed, Fused])
def test_nothing_is_computed_otherwise(kind: Any, tmp_path: Path) -> None:
    alone = trained(kind)
    with hooked(tmp_path) as hooks:
        beside = trained(kind)
        assert facts_of(hooks)["routes"]
    for one, other in zip(alone.parameters(), beside.parameters(), strict=True):
        assert torch.equal(one, other)
    hooked_modules = [one for one in beside.modules() if one._forward_hooks]
    assert hooked_modules == []  # let go of


def test_layers_that_do_not_route_are_no_routers() -> None:
    class Shared(nn.Module):
        """A child that is named after experts and is one network."""

        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(HIDDEN, 3)
            self.shared_experts = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 4))

    assert routers_of(Shared()) == []
    assert routers_of(nn.Transformer(8, 2, 1, 1, 8)) == []


def test_a_layer_that_does_not_say_how_many_experts_a_token_uses_is_left_alone() -> None:
    layer = Listed()
    del layer.top_k
    assert routers_of(layer) == []


def test_facts_that_contradict_one_another_are_refused() -> None:
    routers = {"layers": ["a"], "experts": 4, "top": 2, "expert_bytes": 1, "dense_bytes": 1}
    for experts in ([[0, 4]], [[0, 1, 2]], [[0, 1], [0, 1]], []):
        with pytest.raises(ValueError, match="experts"):
            routing_of(routers, [{"step": 1, "training": True, "experts": experts}])
    assert routing_of({}, []) is None


@pytest.mark.frameworks
def test_mixtral_of_transformers_is_found_unchanged() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(
        MixtralConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=100, num_local_experts=8, num_experts_per_tok=2,
        )
    )  # fmt: skip
    found = routers_of(model)
    assert [(one["experts"], one["top"]) for one in found] == [(8, 2), (8, 2)]
    seen: list[Any] = []
    for one in found:
        one["router"].register_forward_hook(lambda *call: seen.append(_chosen(call[2], 8, 2)))
    model(torch.randint(0, 100, (2, 5)))
    assert [tuple(one.shape) for one in seen] == [(10, 2)] * 2
