"""Conservation laws of a recorded model's layouts: host memory, and what stages hand on."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from recorded_models import convolutions, transformer

from advisor.estimate import case as parameters
from advisor.planners.core.arrays import Offload
from advisor.planners.core.layout_case import LayoutParameters, UnitTimes
from advisor.planners.core.nouns import Device, Layout, Link, Node, Work
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.described_units import transformer_layers
from advisor.planners.layouts.problem import Found
from advisor.planners.layouts.unit_stages import (
    UnitProblem,
    UnitSplit,
    least_s,
    with_pipeline,
    without_pipeline,
)
from advisor.planners.links.collectives import hierarchical_all_reduce_s, hierarchical_broadcast_s
from advisor.planners.links.gradients import data_parallel_step
from advisor.planners.memory.recorded_steps import (
    MemoryParameters,
    UnitTable,
    base_bytes,
    offloaded_bytes,
    unit_state_bytes,
)
from advisor.planners.step.model_units import transformer_blocks, work_units

WORK = transformer()
TABLE = UnitTable.of(work_units(WORK), WORK)
MEMORY = MemoryParameters(
    context_bytes=5e8, alone_context_bytes=4e8, process_bytes=1e9, slack=1.25, cpu_slack=1.1,
    logit_bytes=6.0, bucket_fraction=0.0, log_sd=0.1,
)  # fmt: skip
KINDS = ("optimizer", "parameters", "activations")
SPLITS = list(product((1, 2, 4), (1, 4), range(4)))  # tp, dp, ZeRO stage
KEPT = 1e6


def moved(
    *kinds: str,
    work: Work = WORK,
    table: UnitTable = TABLE,
    tp: int = 1,
    dp: int = 1,
    zero: int = 0,
) -> float:
    return offloaded_bytes(
        work, table, tp=tp, dp=dp, zero_stage=zero, kept_bytes=KEPT, offload=frozenset(kinds)
    )


def on_device(*kinds: str, tp: int, dp: int, zero: int) -> float:
    """Bytes of states on one device, without the allocator's slack."""
    states = unit_state_bytes(
        WORK, TABLE, tp=tp, dp=dp, zero_stage=zero, offload=frozenset(kinds), memory=MEMORY
    )
    return float(states.sum()) / MEMORY.slack


@pytest.mark.parametrize(("tp", "dp", "zero"), SPLITS)
def test_the_optimizer_on_the_host_is_what_left_the_device_and_its_gradients(
    tp: int, dp: int, zero: int
) -> None:
    left = on_device(tp=tp, dp=dp, zero=zero) - on_device("optimizer", tp=tp, dp=dp, zero=zero)
    # fp32 gradients as large as the weights (4 of 12 bytes a parameter), sharded as the state.
    assert moved("optimizer", tp=tp, dp=dp, zero=zero) == pytest.approx(left * 12 / 8)


@pytest.mark.parametrize(("tp", "dp", "zero"), SPLITS)
def test_weights_on_the_host_are_those_of_the_device_before_sharding(
    tp: int, dp: int, zero: int
) -> None:
    whole = 4.0 * float(TABLE.held_parameters(tp).sum())
    assert moved("parameters", tp=tp, dp=dp, zero=zero) == pytest.approx(
        whole / (dp if zero == 3 else 1)
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_shards_of_all_ranks_are_the_whole(tp: int) -> None:
    for ranks in (2, 8):
        for zero in (1, 2, 3):
            shard = moved("optimizer", tp=tp, dp=ranks, zero=zero)
            assert ranks * shard == pytest.approx(moved("optimizer", tp=tp))
        assert moved("optimizer", tp=tp, dp=ranks, zero=0) == moved("optimizer", tp=tp)
        assert ranks * moved("parameters", tp=tp, dp=ranks, zero=3) == pytest.approx(
            moved("parameters", tp=tp)
        )
        for zero in (0, 1, 2):
            assert moved("parameters", tp=tp, dp=ranks, zero=zero) == moved("parameters", tp=tp)


@pytest.mark.parametrize(("tp", "dp", "zero"), SPLITS)
def test_what_is_offloaded_adds_up(tp: int, dp: int, zero: int) -> None:
    alone = {kind: moved(kind, tp=tp, dp=dp, zero=zero) for kind in KINDS}
    assert alone["activations"] == KEPT
    for count in range(len(KINDS) + 1):
        for kinds in combinations(KINDS, count):
            together = moved(*kinds, tp=tp, dp=dp, zero=zero)
            assert together == pytest.approx(sum(alone[kind] for kind in kinds))


def test_tensor_parallel_ranks_hold_all_divided_parameters_once() -> None:
    whole = float((TABLE.parameters * TABLE.whole_share).sum())
    for tp in (2, 4):
        everywhere = tp * moved("parameters", tp=tp) / 4.0
        assert everywhere == pytest.approx(WORK.parameters + (tp - 1) * whole)
    small = convolutions()
    table = UnitTable.of(work_units(small), small)
    assert moved("parameters", work=small, table=table) == pytest.approx(small.parameter_bytes)


def test_a_model_without_parameters_offloads_nothing_but_activations() -> None:
    empty = replace(
        WORK, parameters=0, trainable_parameters=0, parameter_bytes=0.0, optimizer_state_bytes=0.0
    )
    table = replace(TABLE, parameters=np.zeros_like(TABLE.parameters))
    assert moved(*KINDS, work=empty, table=table) == KEPT


# What stages hand on.

INTRA, NETWORK = 1e10, 3e9
LATENCIES = 1e-5, 5e-5


def case(
    *,
    nodes: int = 1,
    dp: int = 1,
    tp: int = 1,
    pp: int = 2,
    offload: frozenset[Offload] = frozenset(),
) -> UnitSplit:
    device = Device(
        name="card", vendor="maker", architecture="made up", kind="gpu", memory_bytes=24e9,
        memory_bytes_per_s=1e12,
    )  # fmt: skip
    node = Node(
        name="4 cards",
        device=device,
        devices=4,
        intra=Link(name="inside", bytes_per_s=INTRA, latency_s=LATENCIES[0]),
        network=Link(name="network", bytes_per_s=NETWORK, latency_s=LATENCIES[1]),
        host=Link(name="host", bytes_per_s=1e10),
        vcpus=16,
        memory_bytes=64e9,
    )
    problem = UnitProblem(
        work=WORK, table=TABLE, blocks=None, memory=MEMORY, scaling=parameters.scaling(),
        node=node, times={},
    )  # fmt: skip
    return UnitSplit(
        problem=problem, layout=Layout(dp=dp, tp=tp, pp=pp, offload=offload), nodes=nodes, local=8
    )


@pytest.mark.parametrize(("tp", "u"), list(product((1, 2), (1, 3))))
def test_a_cut_inside_a_machine_hands_on_one_share_of_every_rank(tp: int, u: int) -> None:
    found = case(tp=tp, dp=4 // (2 * tp)).send_s(u)
    assert found.shape == TABLE.output_bytes.shape
    # All ranks of a stage hold the whole stream; each sends its tp-th, side by side.
    sent = (found - LATENCIES[0]) * INTRA * tp
    assert sent == pytest.approx(u * TABLE.output_bytes)


@pytest.mark.parametrize(
    ("dp", "tp", "replicas"), [(1, 1, 1), (1, 4, 1), (2, 2, 2), (4, 1, 4), (16, 1, 4), (8, 2, 2)]
)
def test_a_machines_network_carries_the_streams_of_all_its_replicas(
    dp: int, tp: int, replicas: int
) -> None:
    for u in (1, 5):
        nodes = 2 * max(1, dp * tp // 4)
        found = case(nodes=nodes, dp=dp, tp=tp, pp=4 * nodes // (dp * tp)).send_s(u)
        carried = (found - LATENCIES[1]) * NETWORK
        assert carried == pytest.approx(replicas * u * TABLE.output_bytes)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_machine_holds_what_all_its_devices_offload(pp: int) -> None:
    every: frozenset[Offload] = frozenset({"optimizer", "parameters", "activations"})
    for u in (1, 3):
        kept = u * float(TABLE.saved_bytes.sum())
        # fp32 weights twice (a copy, and those updated), gradients and Adam's moments: 16 bytes.
        states = 16.0 * WORK.parameters
        found = case(pp=pp, dp=4 // pp, offload=every).on_host_bytes(u)
        assert found == pytest.approx((states + kept) * 4 / pp)
        assert case(pp=pp, dp=4 // pp).on_host_bytes(u) == 0


def test_a_case_is_described_with_what_it_offloads() -> None:
    offload: frozenset[Offload] = frozenset({"optimizer"})
    found = case(dp=2, offload=offload).described(3)
    assert found == Layout(
        dp=2, pp=2, micro_batch=3, accumulation_steps=3, recompute="none", offload=offload
    )


# What a step of one split takes, part by part.


def timed(
    *, blocks: bool = True, inline: bool = False, load_s: float = 0.0, memory_bytes: float = 24e9,
    overlap: float = 0.25, **layout: Any,
) -> UnitSplit:  # fmt: skip
    """Return a case with made-up times of units: u (i + 1) ms forward, twice that backward."""
    found = case(nodes=layout.pop("nodes", 1))
    each = 1e-3 * np.arange(1, len(TABLE.names) + 1)
    batches = np.array([1.0, 64.0])
    times = {
        tp: UnitTimes(
            micro_batches=batches, forward_s=batches[:, None] * each / tp,
            backward_s=2 * batches[:, None] * each / tp, optimizer_s=0.5 / tp, log_sd=0.3,
        )
        for tp in (1, 2)
    }  # fmt: skip
    known = transformer_blocks(WORK, work_units(WORK))
    assert not isinstance(known, str)
    device = replace(found.problem.node.device, memory_bytes=memory_bytes)
    problem = replace(
        found.problem, times=times, load_s_per_sample=load_s, loads_inline=inline,
        blocks=known if blocks else None, parameters=LayoutParameters(offload_overlap=overlap),
        node=replace(found.problem.node, device=device),
    )  # fmt: skip
    return replace(found, problem=problem, layout=Layout(**layout), micro_batches=(2,), local=8)


U = np.array([1.0, 3.0])


def test_repeated_passes_go_forward_again_and_blocks_all_reduce_twice_a_pass() -> None:
    for recompute, passes in (("none", 4), ("full", 6)):
        one = timed(tp=2, recompute=recompute)
        forward, backward, exchanged = one.times(U)
        known = one.problem.blocks
        assert known is not None
        each = 1e-3 * np.arange(1, len(TABLE.names) + 1) / 2
        np.testing.assert_allclose(forward, U[:, None] * each)
        again = 1 if recompute == "full" else 0
        np.testing.assert_allclose(backward, (2 + again) * forward)
        volume = U * known.tokens * known.hidden * known.element_bytes
        once = hierarchical_all_reduce_s(
            volume, 2, 1, INTRA, LATENCIES[0], NETWORK, LATENCIES[1],
            one.problem.scaling.collectives,
        )  # fmt: skip
        np.testing.assert_allclose(exchanged, once[:, None] * passes * TABLE.is_block)
        assert TABLE.is_block.any()
    assert not timed(tp=1).times(U)[2].any()
    assert not timed(tp=2, blocks=False).times(U)[2].any()


@pytest.mark.parametrize(("tp", "dp", "zero", "pp"), [
    (1, 1, 0, 1), (2, 2, 1, 1), (1, 4, 3, 1), (2, 1, 0, 2), (1, 2, 3, 2), (1, 2, 2, 2),
])  # fmt: skip
def test_the_link_to_the_host_carries_what_moves_and_its_cpus_update(
    tp: int, dp: int, zero: int, pp: int
) -> None:
    """Weights and gradients cross once a step; weights and activations twice a micro-batch."""
    held = float(TABLE.held_parameters(tp).sum()) / pp
    weights, state, link = 4.0 * held, (8.0 + 8.0) * held, 1e10
    steps, computed = np.array([5.0, 1.0]), np.array([0.0, 1e9])
    shards, gathered = (dp if zero else 1), (dp if zero == 3 else 1)

    def took(*kinds: Offload) -> Any:
        one = timed(tp=tp, dp=dp, zero_stage=zero, pp=pp, offload=frozenset(kinds))
        return one.offload_s(steps, U, computed)

    update = 2 * weights / shards / link + 4 * state / shards / 20e9
    np.testing.assert_allclose(took("optimizer"), [update, update])
    fetched = 5 * 2 * weights / gathered / link
    np.testing.assert_allclose(took("parameters"), [fetched, 0.0])
    kept = 5 * 2 * 1.0 * float(TABLE.kept_bytes(tp, "kept").sum()) / link
    np.testing.assert_allclose(took("activations"), [kept, 0.0])
    every = took("optimizer", "parameters", "activations")
    np.testing.assert_allclose(every, [update + fetched + kept, update])
    one = timed(tp=tp, dp=dp, zero_stage=zero, pp=pp, offload=frozenset({"parameters"}))
    hidden = fetched / 2 / 0.25  # a quarter of computing hides transfers
    np.testing.assert_allclose(one.offload_s(steps, U, np.full(2, hidden))[0], fetched / 2)
    assert not timed(tp=tp, dp=dp, pp=pp).offload_s(steps, U, computed).any()


def test_loading_in_the_loop_adds_to_a_step_and_beside_it_only_what_is_longer() -> None:
    step = np.array([0.1, 3.0])
    np.testing.assert_allclose(timed(load_s=0.25).load_s(step, 8), [1.9, 0.0])
    np.testing.assert_allclose(timed(load_s=0.25, inline=True).load_s(step, 8), [2.0, 2.0])


@pytest.mark.parametrize(
    ("dp", "tp", "nodes", "ranks"), [(4, 1, 1, 4), (2, 2, 1, 2), (8, 2, 4, 2), (2, 1, 1, 2)]
)
def test_reductions_are_those_of_the_ranks_of_a_stage(
    dp: int, tp: int, nodes: int, ranks: int
) -> None:
    """``ranks`` of a machine take part, and the tp rings share its network."""
    one = timed(dp=dp, tp=tp, zero_stage=1)
    a, b, steps = np.array([0.4]), np.array([0.2]), np.array([3.0])
    found = one.reduced(a, b, 0.1, steps)
    share = float(TABLE.held_parameters(tp).sum()) / WORK.parameters
    by_hand = data_parallel_step(
        micro_batch_s=a, backward_s=b, optimizer_s=0.1, accumulation_steps=steps,
        gradient_bytes=WORK.gradient_bytes * share, nodes=nodes, devices_per_node=ranks,
        intra_bytes_per_s=INTRA, intra_latency_s=LATENCIES[0],
        network_bytes_per_s=NETWORK / tp, network_latency_s=LATENCIES[1],
        parameters=one.problem.scaling, zero_stage=1,
        has_rdma=one.problem.node.network.bypasses_kernel,
    )  # fmt: skip
    assert found.step_s == pytest.approx(by_hand.step_s)
    less = one.reduced(a, b, 0.1, steps, share=1.0 / WORK.gradient_bytes)
    assert less.step_s < found.step_s


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_replicas_of_a_recorded_layout_get_the_buffers_that_plain_data_parallelism_pays(
    zero_stage: int,
) -> None:
    one = timed(dp=4, tp=1, pp=1, zero_stage=zero_stage)
    work = replace(one.problem.work, buffer_bytes=3e8)
    more = replace(one, problem=replace(one.problem, work=work))
    terms = np.array([0.4]), np.array([0.2]), 0.1, np.array([3.0])
    added = more.reduced(*terms).step_s - one.reduced(*terms).step_s
    node = one.problem.node
    handed = hierarchical_broadcast_s(
        3e8, 4, 1, node.intra.bytes_per_s, node.intra.latency_s, node.network.bytes_per_s,
        node.network.latency_s, one.problem.scaling.collectives,
    )  # fmt: skip
    assert float(added[0]) == pytest.approx(0.0 if zero_stage else float(handed))


def test_a_step_of_one_stage_is_its_parts() -> None:
    one = timed(dp=2, tp=2, zero_stage=1, load_s=0.05, offload=frozenset({"parameters"}))
    found = without_pipeline(one, Found())
    assert found is not None
    forward, backward, exchanged = (float(x.sum()) for x in one.times(np.array([2.0])))
    a = np.array([4.0])
    columns = one.reduced(
        np.array([forward + backward + exchanged]), np.array([backward]), 0.25, a
    )
    computed = 4 * np.array([forward + backward + exchanged])
    moved = float(one.offload_s(a, np.array([2.0]), computed)[0])
    loaded = max(8 * 0.05 - float(columns.step_s[0]) - moved, 0.0)
    assert found.parts_s == pytest.approx({
        "compute_s": 4 * (forward + backward), "inside_layer_s": 4 * exchanged, "pipeline_s": 0.0,
        "data_parallel_s": float((columns.exposed_s + columns.straggler_s)[0]),
        "optimizer_s": 0.25 / 2, "offload_s": moved, "input_s": loaded,
    })  # fmt: skip
    assert found.step_s == pytest.approx(sum(found.parts_s.values()))
    assert found.log_sd == pytest.approx(np.hypot(0.3, float(columns.log_sd[0])))
    assert (found.layout.micro_batch, found.layout.accumulation_steps) == (2, 4)
    kept = float(TABLE.kept_bytes(2, "kept").sum() + TABLE.live_bytes(2, "kept"))
    used = base_bytes(WORK, np.array(2.0), MEMORY) + one.state_bytes().sum()
    assert found.memory_bytes == pytest.approx(float(used) + MEMORY.slack * 2 * kept)


def test_a_step_of_two_stages_is_the_slowest_of_them_and_what_fills_the_pipeline() -> None:
    one = timed(dp=1, tp=2, pp=2, load_s=0.0)
    seen = Found()
    found = with_pipeline(one, seen)
    assert found is not None
    forward, backward, exchanged = (x[0] for x in one.times(np.array([2.0])))
    sends, cut = 2 * one.send_s(2), found.stages[0]
    unit = forward + backward + exchanged
    stages = [float(unit[:cut].sum() + sends[cut - 1]), float(unit[cut:].sum())]
    slow = int(np.argmax(stages))
    inside = slice(0, cut) if slow == 0 else slice(cut, None)
    pipeline = sum(stages) + (4 - 1) * max(stages)
    held = TABLE.held_parameters(2)
    heaviest = max(held[:cut].sum(), held[cut:].sum()) / WORK.parameters
    computed = 4 * float((forward + backward)[inside].sum())
    traded = 4 * float(exchanged[inside].sum())
    assert found.parts_s == pytest.approx({
        "compute_s": computed, "inside_layer_s": traded,
        "pipeline_s": pipeline - computed - traded, "data_parallel_s": 0.0,
        "optimizer_s": 0.25 * heaviest * 2, "offload_s": 0.0, "input_s": 0.0,
    })  # fmt: skip
    assert found.step_s == pytest.approx(sum(found.parts_s.values()))
    assert found.step_s == seen.least_s
    assert seen.fitting == 1
    # Two micro-batches in flight on the first stage, one on the last.
    kept, state = MEMORY.slack * 2 * TABLE.kept_bytes(2, "kept"), one.state_bytes()
    stage = (state[:cut].sum() + 2 * kept[:cut].sum(), state[cut:].sum() + kept[cut:].sum())
    beside = MEMORY.slack * 2 * TABLE.live_bytes(2, "kept")
    beside += float(base_bytes(WORK, np.array(2.0), MEMORY))
    assert found.memory_bytes == pytest.approx(max(stage) + beside)
    assert float(least_s(one)[0]) <= pipeline
    # With next to no room nothing is cut, and the mean stage says by how much it misses.
    tight, missed = timed(dp=1, tp=2, pp=2, memory_bytes=5.2e8), Found()
    assert with_pipeline(tight, missed) is None
    assert missed.nearest is not None
    mean = (state.sum() + 1.5 * kept.sum()) / 2
    assert missed.nearest[0] == pytest.approx(mean + beside - 5.2e8)


def test_layers_of_a_description_do_the_work_of_their_products() -> None:
    """Two operations a weight and token, twice as many backward; half of a causal square."""
    model = Transformer(
        layers=2, hidden=12, heads=2, kv_heads=1, head_width=8, ffn=20, sequence=10,
        vocabulary=30, is_gated=True, experts=3, experts_per_token=2, has_tied_embeddings=False,
    )  # fmt: skip
    found = {x.name: x for x in transformer_layers(model, precision="fp32")}
    widths = {
        "embedding": 12, "blocks.0.qkv": 16 + 2 * 8, "blocks.1.projection": 12,
        "blocks.0.router": 3, "blocks.0.up": 2 * 2 * 20, "blocks.0.down": 2 * 12,
        "blocks.1.norm2": 12, "blocks.0.attention": 16, "norm": 12, "head": 30,
    }  # fmt: skip
    for name, width in widths.items():
        wide = 12 if name.endswith("down") else width  # its experts' outputs are added up
        assert found[name].output_bytes_per_sample == 4 * 10 * wide
    weights = {
        "blocks.0.qkv": 12 * 32, "blocks.0.projection": 16 * 12, "blocks.0.router": 12 * 3,
        "blocks.0.up": 2 * (2 * 12 * 20), "blocks.0.down": 2 * (12 * 20), "head": 30 * 12,
    }  # fmt: skip
    for name, met in weights.items():
        assert found[name].forward_flop_per_sample == 2 * met * 10
        assert found[name].backward_flop_per_sample == 4 * met * 10
    attention = found["blocks.0.attention"]
    assert attention.forward_flop_per_sample == 4 * 10 * 10 * 16 / 2
    assert attention.backward_flop_per_sample == 2.5 * attention.forward_flop_per_sample
    plain = replace(model, has_flash_attention=False)
    written = {x.name: x for x in transformer_layers(plain)}["blocks.0.attention"]
    assert written.forward_flop_per_sample == 4 * 10 * 10 * 16
    assert written.backward_flop_per_sample == 2 * written.forward_flop_per_sample
    assert found["blocks.1.up"].parameters == 3 * 2 * 12 * 20
    assert found["embedding"].parameters == found["head"].parameters == 30 * 12
