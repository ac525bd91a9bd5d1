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
from advisor.planners.layouts.unit_search import UnitProblem
from advisor.planners.links.collectives import hierarchical_all_reduce_s, hierarchical_broadcast_s
from advisor.planners.links.gradients import data_parallel_step
from advisor.planners.memory.recorded_steps import (
    MemoryParameters,
    UnitTable,
    base_ledger,
    offloaded_bytes,
    parameter_ledger,
)
from advisor.planners.memory.transformers import without_terms
from advisor.planners.step.model_units import transformer_blocks, work_units

WORK = transformer()
TABLE = UnitTable.of(work_units(WORK), WORK)
MEMORY = MemoryParameters(
    context_bytes=5e8, alone_context_bytes=4e8, process_bytes=1e9, slack=1.25, cpu_slack=1.1,
    logit_bytes=6.0, bucket_fraction=0.0, log_sd=0.1,
)  # fmt: skip
KINDS = ("optimizer", "parameters")
SPLITS = list(product((1, 2, 4), (1, 4), range(4)))  # tp, dp, ZeRO stage


def moved(
    *kinds: str,
    work: Work = WORK,
    table: UnitTable = TABLE,
    tp: int = 1,
    dp: int = 1,
    zero: int = 0,
) -> float:
    return offloaded_bytes(work, table, tp=tp, dp=dp, zero_stage=zero, offload=frozenset(kinds))


def on_device(*kinds: str, tp: int, dp: int, zero: int) -> float:
    """Bytes of states on one device, without the allocator's slack."""
    each = parameter_ledger(WORK, dp=dp, zero_stage=zero, offload=frozenset(kinds), memory=MEMORY)
    states = TABLE.held_parameters(tp) * without_terms(each)
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


def test_a_model_without_parameters_offloads_nothing() -> None:
    empty = replace(
        WORK, parameters=0, trainable_parameters=0, parameter_bytes=0.0, optimizer_state_bytes=0.0
    )
    table = replace(TABLE, parameters=np.zeros_like(TABLE.parameters))
    assert moved(*KINDS, work=empty, table=table) == 0


# What stages hand on.

INTRA, NETWORK = 1e10, 3e9
LATENCIES = 1e-5, 5e-5


def problem_of() -> UnitProblem:
    """Return the units on machines of four cards."""
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
    return UnitProblem(
        work=WORK, table=TABLE, blocks=None, memory=MEMORY, scaling=parameters.scaling(),
        node=node, times={},
    )  # fmt: skip


def sent_s(u: int, dp: int, tp: int, pp: int) -> Any:
    """Return handing u samples on behind each unit [s]."""
    return problem_of().send_s(Layout(dp=dp, tp=tp, pp=pp), u * TABLE.output_bytes)


@pytest.mark.parametrize(("tp", "u"), list(product((1, 2), (1, 3))))
def test_a_cut_inside_a_machine_hands_on_one_share_of_every_rank(tp: int, u: int) -> None:
    found = sent_s(u, tp=tp, dp=4 // (2 * tp), pp=2)
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
        found = sent_s(u, dp=dp, tp=tp, pp=4 * nodes // (dp * tp))
        carried = (found - LATENCIES[1]) * NETWORK
        assert carried == pytest.approx(replicas * u * TABLE.output_bytes)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_machine_holds_what_all_its_devices_offload(pp: int) -> None:
    every: frozenset[Offload] = frozenset({"optimizer", "parameters", "activations"})
    for u in (1, 3):
        kept = u * float(TABLE.saved_bytes.sum())
        # fp32 weights twice (a copy, and those updated), gradients and Adam's moments: 16 bytes.
        states = 16.0 * WORK.parameters
        layout, size = Layout(pp=pp, dp=4 // pp, offload=every), np.array(float(u))
        found = problem_of().on_host_bytes(layout, size)
        assert found == pytest.approx((states + kept) * 4 / pp)
        assert problem_of().on_host_bytes(replace(layout, offload=frozenset()), size) == 0


# What a step of one split takes, part by part.


def timed(
    *, blocks: bool = True, inline: bool = False, load_s: float = 0.0, memory_bytes: float = 24e9,
    overlap: float = 0.25,
) -> UnitProblem:  # fmt: skip
    """Return a problem with made-up times of units: u (i + 1) ms forward, twice that backward."""
    found = problem_of()
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
    device = replace(found.node.device, memory_bytes=memory_bytes)
    return replace(
        found, times=times, load_s_per_sample=load_s, loads_inline=inline,
        blocks=known if blocks else None, parameters=LayoutParameters(offload_overlap=overlap),
        node=replace(found.node, device=device),
    )  # fmt: skip


U = np.array([1.0, 3.0])


def test_repeated_passes_go_forward_again_and_blocks_all_reduce_twice_a_pass() -> None:
    for recompute, passes in (("none", 4), ("full", 6)):
        one, layout = timed(), Layout(tp=2, recompute="full" if recompute == "full" else "none")
        forward, backward, exchanged = one.pass_s(layout, U)
        known = one.blocks
        assert known is not None
        each = 1e-3 * np.arange(1, len(TABLE.names) + 1) / 2
        np.testing.assert_allclose(forward, U[:, None] * each)
        again = 1 if recompute == "full" else 0
        np.testing.assert_allclose(backward, (2 + again) * forward)
        volume = U * known.tokens * known.hidden * known.element_bytes
        once = hierarchical_all_reduce_s(
            volume, 2, 1, INTRA, LATENCIES[0], NETWORK, LATENCIES[1],
            one.scaling.collectives,
        )  # fmt: skip
        np.testing.assert_allclose(exchanged, once[:, None] * passes * TABLE.is_block)
        assert TABLE.is_block.any()
    assert not timed().pass_s(Layout(tp=1), U)[2].any()
    assert not timed(blocks=False).pass_s(Layout(tp=2), U)[2].any()


@pytest.mark.parametrize(("tp", "dp", "zero", "pp"), [
    (1, 1, 0, 1), (2, 2, 1, 1), (1, 4, 3, 1), (2, 1, 0, 2), (1, 2, 3, 2), (1, 2, 2, 2),
])  # fmt: skip
def test_the_link_to_the_host_carries_what_moves_and_its_cpus_update(
    tp: int, dp: int, zero: int, pp: int
) -> None:
    """Weights and gradients cross once a step; weights and activations twice a micro-batch."""
    held = float(TABLE.held_parameters(tp).sum()) / pp
    weights, state, link = 4.0 * held, (8.0 + 8.0) * held, 1e10
    shards, gathered = (dp if zero else 1), (dp if zero == 3 else 1)

    def took(*kinds: Offload, hidden_s: float | None = None) -> Any:
        """Five micro-batches of one sample; and with one of three behind computing for ages."""
        layout = Layout(
            tp=tp, dp=dp, zero_stage=zero, pp=pp, offload=frozenset(kinds), accumulation_steps=5
        )
        if hidden_s is not None:
            return timed().offload_s(layout, hidden_s)
        late = replace(layout, micro_batch=3, accumulation_steps=1)
        return [timed().offload_s(layout, 0.0), timed().offload_s(late, 1e9)]

    update = 2 * weights / shards / link + 4 * state / shards / 20e9
    np.testing.assert_allclose(took("optimizer"), [update, update])
    fetched = 5 * 2 * weights / gathered / link
    np.testing.assert_allclose(took("parameters"), [fetched, 0.0])
    kept = 5 * 2 * 1.0 * float(TABLE.kept_bytes(tp, "kept").sum()) / link
    np.testing.assert_allclose(took("activations"), [kept, 0.0])
    every = took("optimizer", "parameters", "activations")
    np.testing.assert_allclose(every, [update + fetched + kept, update])
    hidden = fetched / 2 / 0.25  # a quarter of computing hides transfers
    np.testing.assert_allclose(took("parameters", hidden_s=hidden), fetched / 2)
    assert took() == [0.0, 0.0]


def test_loading_in_the_loop_adds_to_a_step_and_beside_it_only_what_is_longer() -> None:
    beside, inline = timed(load_s=0.25), timed(load_s=0.25, inline=True)
    np.testing.assert_allclose([beside.load_s(s, 8) for s in (0.1, 3.0)], [1.9, 0.0])
    np.testing.assert_allclose([inline.load_s(s, 8) for s in (0.1, 3.0)], [2.0, 2.0])


@pytest.mark.parametrize(
    ("dp", "tp", "nodes", "ranks"), [(4, 1, 1, 4), (2, 2, 1, 2), (8, 2, 4, 2), (2, 1, 1, 2)]
)
def test_reductions_are_those_of_the_ranks_of_a_stage(
    dp: int, tp: int, nodes: int, ranks: int
) -> None:
    """``ranks`` of a machine take part, and the tp rings share its network."""
    one, layout = timed(), Layout(dp=dp, tp=tp, zero_stage=1, accumulation_steps=3)
    a, b, steps = np.array([0.4]), np.array([0.2]), np.array([3.0])
    share = float(TABLE.held_parameters(tp).sum()) / WORK.parameters
    found = one.reduced(layout, 3 * 0.4, 0.2, 0.1, share)
    by_hand = data_parallel_step(
        micro_batch_s=a, backward_s=b, optimizer_s=0.1, accumulation_steps=steps,
        gradient_bytes=WORK.gradient_bytes * share, nodes=nodes, devices_per_node=ranks,
        intra_bytes_per_s=INTRA, intra_latency_s=LATENCIES[0],
        network_bytes_per_s=NETWORK / tp, network_latency_s=LATENCIES[1],
        parameters=one.scaling, zero_stage=1, has_rdma=one.node.network.rdma_share,
    )  # fmt: skip
    assert found.step_s == pytest.approx(by_hand.step_s)
    less = one.reduced(layout, 3 * 0.4, 0.2, 0.1, 1.0 / WORK.gradient_bytes)
    assert less.step_s < found.step_s


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_replicas_of_a_recorded_layout_get_the_buffers_that_plain_data_parallelism_pays(
    zero_stage: int,
) -> None:
    one = timed()
    more = replace(one, work=replace(one.work, buffer_bytes=3e8))
    terms = Layout(dp=4, zero_stage=zero_stage, accumulation_steps=3), 1.2, 0.2, 0.1, 1.0
    added = more.reduced(*terms).step_s - one.reduced(*terms).step_s
    node = one.node
    handed = hierarchical_broadcast_s(
        3e8, 4, 1, node.intra.bytes_per_s, node.intra.latency_s, node.network.bytes_per_s,
        node.network.latency_s, one.scaling.collectives,
    )  # fmt: skip
    assert float(added) == pytest.approx(0.0 if zero_stage else float(handed))


def test_a_step_of_one_stage_is_its_parts() -> None:
    one = timed(load_s=0.05)
    layout = Layout(dp=2, tp=2, zero_stage=1, micro_batch=2, accumulation_steps=4,
                    offload=frozenset({"parameters"}))  # fmt: skip
    (found,) = one.look(layout, 8, np.array([2.0]), np.zeros(1), Found())
    forward, backward, exchanged = (float(x.sum()) for x in one.pass_s(layout, np.array(2.0)))
    computed = 4 * (forward + backward + exchanged)
    share = float(TABLE.held_parameters(2).sum()) / WORK.parameters
    columns = one.reduced(layout, computed, backward, 0.25, share)
    moved = one.offload_s(layout, computed)
    loaded = max(8 * 0.05 - float(columns.step_s) - moved, 0.0)
    assert found.parts_s == pytest.approx({
        "compute_s": 4 * (forward + backward), "inside_layer_s": 4 * exchanged, "pipeline_s": 0.0,
        "data_parallel_s": float(columns.exposed_s + columns.straggler_s),
        "optimizer_s": 0.25 / 2, "offload_s": moved, "input_s": loaded,
    })  # fmt: skip
    assert found.step_s == pytest.approx(sum(found.parts_s.values()))
    assert found.log_sd == pytest.approx(np.hypot(0.3, float(columns.log_sd)))
    assert found.layout == layout
    kept = float(TABLE.kept_bytes(2, "kept").sum() + TABLE.live_bytes(2, "kept"))
    used = without_terms(base_ledger(WORK, 2.0, MEMORY)) + one.state_bytes(layout).sum()
    assert found.memory_bytes == pytest.approx(float(used) + MEMORY.slack * 2 * kept)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("dp", [1, 2, 4])
def test_no_layout_takes_less_than_its_bound_with_reductions(dp: int, pp: int) -> None:
    one, sizes = timed(), np.array([1.0, 2.0, 4.0, 8.0])
    for tp in (1, 2):
        split = Layout(dp=dp, tp=tp, pp=pp)
        bounds = one.least_reduced_s(split, sizes, np.ceil(8 / sizes), (0, 1, 2, 3))
        for zero in (0, 1, 2, 3):
            layout = replace(split, zero_stage=zero)
            found = list(one.look(layout, 8, sizes, np.zeros(4), Found(least_s=1e9)))
            assert found
            for each in found:
                size = int(np.flatnonzero(sizes == each.layout.micro_batch)[0])
                assert bounds[zero, size] <= each.step_s * (1 + 1e-12)


def test_a_step_of_two_stages_is_the_slowest_of_them_and_what_fills_the_pipeline() -> None:
    one, seen = timed(), Found()
    layout = Layout(dp=1, tp=2, pp=2, micro_batch=2, accumulation_steps=4)
    (found,) = one.look(layout, 8, np.array([2.0]), np.zeros(1), seen)
    forward, backward, exchanged = one.pass_s(layout, np.array(2.0))
    sends, cut = 2 * one.send_s(layout, 2 * TABLE.output_bytes), found.stages[0]
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
    kept, state = MEMORY.slack * 2 * TABLE.kept_bytes(2, "kept"), one.state_bytes(layout)
    stage = (state[:cut].sum() + 2 * kept[:cut].sum(), state[cut:].sum() + kept[cut:].sum())
    beside = MEMORY.slack * 2 * TABLE.live_bytes(2, "kept")
    beside += float(without_terms(base_ledger(WORK, 2.0, MEMORY)))
    assert found.memory_bytes == pytest.approx(max(stage) + beside)
    assert float(one.least_s(layout, np.array([2.0]), np.array([4.0]))[0]) <= pipeline
    # With next to no room nothing is cut, and the mean stage says by how much it misses.
    tight, missed = timed(memory_bytes=5.2e8), Found()
    assert not list(tight.look(layout, 8, np.array([2.0]), np.zeros(1), missed))
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
