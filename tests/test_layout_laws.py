"""Conservation laws of a layout's memory and of what its stages send.

What ZeRO takes off one rank lies on the others; what offloading takes off the device lies on the
host; what the ranks of a node send in turn, they cannot send at once. ``tests/test_recorded_laws``
holds the same of recorded models.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.estimate.knowledge.layout_model import software_of
from advisor.planners.core.arrays import Layouts, Machines, Shapes, Software
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.core.setup import TrainingSetup, Transformer
from advisor.planners.layouts.frameworks import broken_rule, layout_columns
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace
from advisor.planners.layouts.time import step_times
from advisor.planners.memory.transformers import (
    MemoryConstants,
    host_bytes,
    in_flight,
    kept_bytes,
    layer_activation_bytes,
    memory_bytes,
    state_terms,
    without_terms,
)
from advisor.planners.step.describe import transformer_work

SHAPE = Shapes(
    layers=24,
    hidden=2048,
    heads=16,
    kv_heads=4,
    ffn=8192,
    matrices=3,
    sequence=1024,
    vocabulary=51200,
)
# Of SHAPE, by hand: q and o are h^2, k and v a quarter of that; three matrices of h x 4 h.
LAYER = 2048 * 2048 * 2.5 + 3 * 2048 * 8192
TABLE = 51200 * 2048
NODE = Machines(
    flop_per_s=271e12,
    memory_bytes_per_s=2e12,
    memory_bytes=80 * 2**30,
    intra_bytes_per_s=300e9,
    network_bytes_per_s=50e9,
    devices_per_node=8,
)
SOFTWARE = Software(weight_bytes=2.0, gradient_bytes=4, optimizer_state_bytes=12.0)
NOTHING_ELSE = MemoryConstants(context_bytes=0.0, slack=1.0, logit_bytes=0.0, gathered_layers=0.0)


def layout(**more: Any) -> Layouts:
    given: dict[str, Any] = {
        "dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "accumulation_steps": 1, "shard_group": 1,
    }  # fmt: skip
    return Layouts(**(given | more))


def states(
    constants: MemoryConstants = NOTHING_ELSE, shapes: Shapes = SHAPE, *,
    software: Software = SOFTWARE, layers: float = 6.0, embeddings: float = 1.0, **more: Any,
) -> float:  # fmt: skip
    found = state_terms(
        shapes=shapes, layouts=layout(**more), software=software, constants=constants,
        layers=np.asarray(layers), embeddings=embeddings,
    )  # fmt: skip
    return float(without_terms(found))


def memory(
    constants: MemoryConstants = NOTHING_ELSE, shapes: Shapes = SHAPE, **more: Any
) -> float:
    found = memory_bytes(
        shapes=shapes, layouts=layout(**more), software=SOFTWARE, constants=constants
    )
    return float(found)


def on_host(shapes: Shapes = SHAPE, **more: Any) -> float:
    """Bytes of host memory for each device of a node."""
    found = host_bytes(shapes=shapes, layouts=layout(**more), machines=NODE, software=SOFTWARE)
    return float(found) / 8


# States.


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_zero_shards_of_all_ranks_are_the_whole(ranks: int, cp: int, tp: int) -> None:
    """What a stage shards is there once in each group, and the rest on every rank."""
    whole = states(tp=tp)
    held = whole / 18
    everywhere = {0: 18.0, 1: 6.0, 2: 2.0, 3: 0.0}  # bytes a parameter that are not sharded
    for stage, kept in everywhere.items():
        one = states(tp=tp, dp=ranks, cp=cp, shard_group=ranks * cp, zero_stage=stage)
        all_of_them = ranks * cp * (one - kept * held)
        assert all_of_them == pytest.approx((18 - kept) * held if kept < 18 else 0.0, abs=1e-3)


# Offload: what leaves the device lies on the host.


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "stage"), list(product((1, 2), (2, 5), (1, 4), range(4)))
)
def test_what_offloading_takes_off_the_device_lies_on_the_host(
    tp: int, pp: int, dp: int, stage: int
) -> None:
    same: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "shard_group": dp, "zero_stage": stage}
    device = memory(**same)
    assert on_host(**same) == 0
    weights = on_host(**same, offloads_parameters=1)
    assert device - memory(**same, offloads_parameters=1) == pytest.approx(weights)
    # The host's optimizer updates with gradients of its own copy (4 of 16 bytes a parameter).
    optimizer = on_host(**same, offloads_optimizer=1)
    assert device - memory(**same, offloads_optimizer=1) == pytest.approx(optimizer * 12 / 16)
    held = (np.ceil(24 / pp) * LAYER + TABLE) / tp
    assert optimizer == pytest.approx(16 * held / (dp if stage else 1))
    both = on_host(**same, offloads_optimizer=1, offloads_parameters=1)
    assert both == pytest.approx(optimizer + weights)


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 8]), st.sampled_from([1.0, 0.5]), st.integers(0, 3),
)  # fmt: skip
def test_offloading_conserves_experts_shard_groups_and_frozen_layers(
    dp: int, cp: int, group: int, experts: int, trained: float, stage: int
) -> None:
    shapes = replace(SHAPE, experts=experts, trained_share=trained)
    same: dict[str, Any] = {
        "pp": 2, "dp": dp, "cp": cp, "ep": min(experts, 4), "shard_group": group,
        "zero_stage": stage,
    }  # fmt: skip
    device = memory(shapes=shapes, **same)
    weights = device - memory(shapes=shapes, **same, offloads_parameters=1)
    assert on_host(shapes, **same, offloads_parameters=1) == pytest.approx(weights)
    optimizer = device - memory(shapes=shapes, **same, offloads_optimizer=1)
    assert on_host(shapes, **same, offloads_optimizer=1) == pytest.approx(optimizer * 16 / 12)


@pytest.mark.parametrize(("pp", "m"), [(1, 8), (4, 1), (4, 3), (4, 8), (5, 8)])
def test_the_host_keeps_the_activations_of_every_micro_batch_in_flight(pp: int, m: int) -> None:
    same: dict[str, Any] = {"pp": pp, "accumulation_steps": m, "micro_batch": 2, "cp": 2}
    kept = float(kept_bytes(SHAPE, layout(**same), SOFTWARE))
    assert on_host(**same, offloads_activations=1) == pytest.approx(
        min(pp, m) * np.ceil(24 / pp) * kept
    )


@pytest.mark.parametrize("recompute", [0, 1])
def test_offloaded_activations_leave_only_the_layer_at_work(recompute: int) -> None:
    same: dict[str, Any] = {"micro_batch": 2, "recompute": recompute}
    saved = memory(**same) - memory(**same, offloads_activations=1)
    layer = float(layer_activation_bytes(SHAPE, layout(**same), SOFTWARE))
    assert on_host(**same, offloads_activations=1) == pytest.approx(24 * layer)
    assert saved == pytest.approx(23 * layer)


# The fullest device.


@given(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 16), st.integers(1, 4))
def test_the_first_stage_keeps_every_micro_batch_in_flight(pp: int, m: int, u: int) -> None:
    same: dict[str, Any] = {"pp": pp, "micro_batch": u, "accumulation_steps": m}
    kept = float(kept_bytes(SHAPE, layout(**same), SOFTWARE))
    one = memory(pp=pp, micro_batch=u)
    assert memory(**same) - one == pytest.approx((min(pp, m) - 1) * (24 / pp) * kept, abs=1.0)
    assert float(in_flight(layout(**same, holds_all=1))) == (m if pp > 1 else 1)


# Sends between stages.

# Nothing but sends crosses the network: no ring attention.
PARAMETERS = LayoutParameters(pp_latency_s=0.0, straggler=0.0, pp_efficiency=0.8, cp_exposed=0.0)
ENDLESS = 1e30


def sends_s(
    machines: Machines = NODE, shapes: Shapes = SHAPE, software: Software = SOFTWARE,
    parameters: LayoutParameters = PARAMETERS, **more: Any,
) -> float:  # fmt: skip
    """A step's sends: its pipeline part less that over endless links."""
    fast = replace(machines, network_bytes_per_s=ENDLESS, intra_bytes_per_s=ENDLESS)
    free = replace(parameters, pp_latency_s=0.0, launch_send_s=0.0)
    case = LayoutCase(
        shapes=shapes, layouts=layout(**more), machines=machines, software=software,
        parameters=parameters,
    )  # fmt: skip
    without = replace(case, machines=fast, parameters=free)
    return float(step_times(case).pipeline_s - step_times(without).pipeline_s)


# The links inside a node are endless here: tensor-parallel sums, which fill and drain the
# pipeline too, then take no time, and sends between nodes are left.
ACROSS = replace(NODE, intra_bytes_per_s=ENDLESS)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 16]), st.sampled_from([1, 2]),
    st.integers(1, 4), st.integers(1, 8),
)  # fmt: skip
def test_a_node_sends_the_stream_of_all_its_replicas_through_its_network(
    tp: int, dp: int, cp: int, u: int, m: int
) -> None:
    """Forward and back, 2 bytes for each token and hidden unit of every replica on the node."""
    found = sends_s(ACROSS, tp=tp, dp=dp, cp=cp, pp=16, micro_batch=u, accumulation_steps=m)
    ranks_on_node = min(tp * cp * dp, 8)
    streams = ranks_on_node / (tp * cp)  # whole replicas (or shares of one) on the node
    sent = 2 * m * streams * 2 * u * 1024 * 2048
    assert found == pytest.approx(sent / (0.8 * 50e9))


def test_stages_inside_a_node_send_over_its_own_links() -> None:
    inside: dict[str, Any] = {"pp": 2, "dp": 4, "micro_batch": 2, "accumulation_steps": 4}
    slow = replace(NODE, network_bytes_per_s=1e6)
    found = sends_s(**inside)
    assert sends_s(slow, **inside) == pytest.approx(found)  # fills the node, and no more
    assert found == pytest.approx(2 * 4 * 2 * 2 * 1024 * 2048 / (0.8 * 300e9))
    assert sends_s(slow, **{**inside, "dp": 8}) > 100 * found  # one rank more does not fit
    # No faster than the device's own link, however fast the network is.
    fast = replace(NODE, network_bytes_per_s=ENDLESS)
    assert sends_s(fast, **{**inside, "dp": 8}) == pytest.approx(found)


def test_one_stage_sends_nothing() -> None:
    assert sends_s(pp=1, dp=8, micro_batch=4, accumulation_steps=8) == 0


def test_the_stack_says_what_overlaps_and_what_the_loss_keeps() -> None:
    model = Transformer(layers=4, hidden=1024, heads=8, sequence=1024, vocabulary=32_000)

    def of(**setup: Any) -> Software:
        return software_of(transformer_work(model, micro_batch=1, setup=TrainingSetup(**setup)))

    fused, compiled, eager = (of(kernels=k) for k in ("fused", "compiled", "eager"))
    assert (fused.overlaps_tp, fused.overlaps_pp, fused.overlaps_dp) == (1, 1, 1)
    alone = of(kernels="fused", overlaps=False)
    assert (alone.overlaps_tp, alone.overlaps_pp, alone.overlaps_dp) == (0, 0, 0)
    assert (eager.overlaps_tp, eager.overlaps_pp) == (0, 0)
    # Megatron's loss keeps 8 bytes a logit, PyTorch's 14, compiled 10.
    scales = [software.logit_scale * 8 for software in (fused, compiled, eager)]
    assert scales == pytest.approx([8, 10, 14])


@given(
    some=st.integers(1, 24),
    recompute=st.sampled_from([0, 2]),
    pp=st.sampled_from([1, 2, 4]),
    micro=st.sampled_from([1, 4]),
)
def test_some_layers_are_recomputed_or_moved_in_proportion(
    some: int, recompute: int, pp: int, micro: int
) -> None:
    """Between none of the layers and all of them memory, host and step lie on a line."""
    is_recomputed = recompute > 0
    moved = int(not is_recomputed)
    chunk = 24 // pp
    some = min(some, chunk)
    same = {"pp": pp, "micro_batch": micro, "accumulation_steps": 4 * pp}

    def of(recompute: int, moved: int, layers: int) -> np.ndarray:
        asked = layout(
            **same, recompute=recompute, offloads_activations=moved, partial_layers=layers
        )
        case = LayoutCase(
            shapes=SHAPE, layouts=asked, machines=replace(NODE, host_bytes_per_s=1e6),
            software=SOFTWARE, parameters=replace(LayoutParameters(), offload_overlap=0.0),
        )  # fmt: skip
        kept = kept_bytes(SHAPE, asked, SOFTWARE) * (1 - moved * layers / chunk)
        on_host = host_bytes(SHAPE, asked, NODE, SOFTWARE)
        times = step_times(case)
        waited = times.compute_s if is_recomputed else times.offload_s
        return np.array([float(kept), float(on_host), float(waited)])

    none, whole = of(0, 0, 0), of(recompute, moved, chunk)
    share = some / chunk
    expected = none + share * (whole - none)
    assert of(recompute, moved, some) == pytest.approx(expected, rel=1e-9, abs=1e-3)


def test_no_more_layers_are_recomputed_than_memory_asks_for() -> None:
    """One layer fewer does not fit; where nothing has to be recomputed nothing is."""
    model = Transformer(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, is_gated=True, sequence=8192,
        vocabulary=128256,
    )  # fmt: skip
    space = SearchSpace(micro_batch=2, zero_stages=(3,), offloads=(), tp=1, pp=1, cp=1)
    software = Software(attention=3, gradient_bytes=2)
    seen = set()
    for gib in range(56, 140, 4):
        machines = replace(NODE, memory_bytes=gib * 2.0**30)
        problem = LayoutProblem(
            transformer=model, machines=machines, software=software, parts_layers=True
        )
        best = problem.search(8, 16, space).best
        if best is None:
            continue
        columns = layout_columns(best.layout)
        assert float(problem.needed_bytes(columns)) <= problem.capacity_bytes
        some = best.layout.partial_layers
        seen.add(some)
        if best.layout.recompute == "full" and some and some > 1:
            fewer = replace(columns, partial_layers=some - 1)
            assert float(problem.needed_bytes(fewer)) > problem.capacity_bytes
        whole = replace(problem, parts_layers=False).search(8, 16, space).best
        assert whole is not None
        assert best.step_s <= whole.step_s
    assert len(seen - {None}) > 3
    assert None in seen


def test_llama_405b_interleaves_over_eight_stages() -> None:
    """126 layers, the embedding and the loss fill 64 chunks: NVIDIA's recipe for H100."""
    model = Transformer(
        layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, is_gated=True, sequence=8192,
        vocabulary=128256, has_tied_embeddings=False,
    )  # fmt: skip
    problem = LayoutProblem(transformer=model, machines=NODE, software=Software(attention=3))
    space = SearchSpace(tp=8, pp=8, cp=2, micro_batch=1, schedules=("interleaved",), offloads=())
    best = problem.search(1024, 512, space).best
    assert best is not None
    assert 128 % (8 * best.layout.virtual_stages) == 0
    asked = replace(best.layout, virtual_stages=8, zero_stage=1)
    assert broken_rule(asked, "megatron", shapes=problem.shapes, precision="fp8") is None
