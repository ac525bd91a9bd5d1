"""Experts over the ranks of a stage: degrees, exchanges, products by width, memory, commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.planners.core.arrays import Layouts, Machines, Shapes, Software, expert_group
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import TrainingSetup, Transformer
from advisor.planners.layouts.frameworks import Framework, broken_rule
from advisor.planners.layouts.problem import SearchSpace, degrees
from advisor.planners.layouts.time import step_times
from advisor.planners.links.inside_layer import expert_parallel_s, token_copies
from advisor.planners.memory.transformers import expert_parameters, needed_bytes
from advisor.planners.step.transformer import block_times

RUN = CliRunner()
MIXTURE = Transformer(
    layers=48, hidden=2048, heads=32, kv_heads=4, ffn=768, is_gated=True, experts=128,
    experts_per_token=8, sequence=4096, vocabulary=151936,
)  # fmt: skip
SHAPE = Shapes(
    layers=48, hidden=2048, heads=32, kv_heads=4, ffn=768, matrices=3, sequence=4096,
    vocabulary=151936, experts=128, experts_per_token=8,
)  # fmt: skip
H100 = Machines(
    flop_per_s=6e14, memory_bytes_per_s=3e12, memory_bytes=8e10, intra_bytes_per_s=450e9,
    network_bytes_per_s=400e9, devices_per_node=8, generation=2,
)  # fmt: skip


def case(
    shapes: Shapes = SHAPE, machines: Machines = H100, software: Software | None = None,
    **layout: Any,
) -> LayoutCase:  # fmt: skip
    plain = {"dp": 64, "tp": 1, "pp": 1, "micro_batch": 1, "accumulation_steps": 8}
    layouts = Layouts(**{**plain, "shard_group": 64, **layout})
    return LayoutCase(
        shapes=shapes, layouts=layouts, machines=machines, software=software or Software(),
        parameters=LayoutParameters(),
    )  # fmt: skip


@given(
    st.sampled_from([1, 2, 8, 16, 64]), st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 8, 18]), st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_a_token_is_sent_to_a_node_at_most_once(ep: int, k: int, domain: int, tp: int) -> None:
    shapes, machines = replace(SHAPE, experts_per_token=k), replace(H100, domain_machines=domain)
    copies = {}
    for once in (0, 1):
        software = Software(sends_once=once)
        asked = case(shapes, machines, software, ep=ep, tp=tp)
        near, far = token_copies(asked)
        copies[once] = float(near), float(far)
        assert (float(expert_parallel_s(asked)) > 0) == (ep > 1)
    nodes = max(ep * tp / (8 * domain), 1)
    assert copies[1][1] <= min(nodes - 1, k) + 1e-12
    assert copies[1][1] <= copies[0][1] + 1e-12
    if nodes == 1:
        assert copies[0][1] == copies[1][1] == 0
        assert copies[1][0] <= copies[0][0] + 1e-12  # to a rank of several of its experts once


@pytest.mark.parametrize("experts", [16, 64, 256])
@pytest.mark.parametrize("k", [2, 4])
def test_more_experts_of_the_same_active_width_are_never_faster(experts: int, k: int) -> None:
    """Twice as many, half as wide, of which a token meets twice as many: the same products."""
    coarse = replace(SHAPE, experts=experts, experts_per_token=k, ffn=4096)
    fine = replace(SHAPE, experts=2 * experts, experts_per_token=2 * k, ffn=2048)
    for ep in (1, 8, 16):
        one, other = (block_times(case(shapes, ep=ep)) for shapes in (coarse, fine))
        assert other.computed_s >= one.computed_s
        exchanged = [float(expert_parallel_s(case(shapes, ep=ep))) for shapes in (coarse, fine)]
        assert exchanged == sorted(exchanged)


def test_even_tokens_are_never_slower() -> None:
    for ep in (1, 8, 64):
        even, routed = (
            float(step_times(case(software=Software(evens_tokens=one), ep=ep)).step_s)
            for one in (1, 0)
        )
        assert even <= routed


@given(st.sampled_from([1, 2, 4, 8, 16, 64]), st.sampled_from([1, 2, 4]), st.booleans())
def test_all_ranks_of_a_group_hold_all_experts_once(ep: int, tp: int, has_own: bool) -> None:
    asked = case(dp=64, tp=tp, ep=ep, etp=1 if has_own and ep > 1 else 0)
    held = expert_parameters(SHAPE, asked.layouts, layers=np.asarray(48.0))
    whole = 48 * 128 * 3 * 2048 * 768
    assert float(held * expert_group(asked.layouts)) == pytest.approx(whole)


def test_spreading_experts_over_more_ranks_takes_no_more_memory() -> None:
    for zero in (0, 1, 3):
        needed = [float(needed_bytes(SHAPE, case(ep=ep, zero_stage=zero).layouts, Software()))
                  for ep in (1, 2, 8, 64)]  # fmt: skip
        assert needed == sorted(needed, reverse=True)


def test_gradients_of_experts_that_no_other_rank_has_are_not_reduced() -> None:
    """Every rank has its own two experts: what is left to reduce is a dense model's."""
    slow = replace(H100, network_bytes_per_s=1e8)
    software = Software(overlaps_dp=0)
    spread = step_times(case(machines=slow, software=software, ep=64)).data_parallel_s
    dense = replace(SHAPE, experts=1, experts_per_token=1, ffn=1)
    alone = step_times(case(dense, slow, software)).data_parallel_s
    assert float(spread) == pytest.approx(float(alone), rel=0.02)


def test_degrees_are_those_of_megatron_core() -> None:
    space = SearchSpace(tp=2, pp=8)
    found = set(degrees(MIXTURE, 256, 2048, space))
    # NVIDIA's recipe for Qwen3-235B on H100s, but for the layers.
    assert (16, 2, 8, 1, 32, 1) in found
    for dp, tp, pp, cp, ep, etp in found:
        assert dp * tp * pp * cp == 256
        assert dp * cp * tp % (ep * etp) == 0
        assert etp in (1, tp)
    assert not [one for one in degrees(MIXTURE, 256, 2048, replace(space, etp=2)) if one[5] != 2]


@pytest.mark.parametrize(
    ("framework", "setup", "layout", "word"),
    [
        (
            "megatron",
            {"stack": "megatron-deepspeed"},
            {"dp": 2, "tp": 4, "ep": 8, "etp": 1},
            "data-parallel ranks only",
        ),
        ("megatron", {"stack": "megatron-core"}, {"dp": 2, "tp": 4, "ep": 8, "etp": 1}, None),
        ("megatron", {}, {"dp": 2, "tp": 4, "ep": 8}, "divide the ranks of a stage"),
        ("torchtitan", {}, {"dp": 4, "tp": 2, "ep": 8, "etp": 1, "zero_stage": 3}, None),
        ("torchtitan", {}, {"dp": 4, "cp": 2, "ep": 8, "zero_stage": 3}, None),
        ("torchtitan", {}, {"dp": 8, "cp": 4, "ep": 2, "zero_stage": 3}, "context-parallel ranks"),
    ],
)
def test_each_framework_spreads_experts_as_it_does(
    framework: Framework, setup: dict[str, Any], layout: dict[str, Any], word: str | None
) -> None:
    chosen = Layout(**layout, is_sequence_parallel=layout.get("tp", 1) > 1)
    rule = broken_rule(chosen, framework, setup=TrainingSetup(**setup))
    assert (rule is None) == (word is None)
    assert word is None or (rule is not None and word in rule.reason)


MODEL = (
    "--layers", "32", "--hidden", "2048", "--heads", "32", "--kv-heads", "4", "--ffn", "768",
    "--gated", "--experts", "64", "--experts-per-token", "8", "--sequence", "4096",
)  # fmt: skip


def test_a_recipe_with_more_expert_ranks_than_replicas_is_planned_and_started() -> None:
    plan = ("plan", "--cluster", "4x8xH100-80GB:nvlink@3200Gbps", *MODEL, "--batch", "256")
    done = RUN.invoke(app, [*plan, "--tp", "4", "--pp", "1", "--ep", "32", "--stack", "nemo"])
    assert done.exit_code == 0, done.exception
    words = " ".join(done.output.replace("\\", " ").split())
    assert "--expert-model-parallel-size 32" in words
    assert "--expert-tensor-parallel-size 1" in words
    assert "--moe-flex-dispatcher-backend deepep" in words  # once a node, as it was estimated
    shared = RUN.invoke(app, [*plan, "--tp", "4", "--pp", "1", "--ep", "32", "--etp", "4"])
    assert "leaves no layout" in str(shared.exception)
