"""Conservation laws of a recorded model's layouts: host memory, and what stages hand on."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from recorded_models import convolutions, transformer

from advisor.estimate import case as parameters
from advisor.planners.core.arrays import Offload
from advisor.planners.core.nouns import Device, Layout, Link, Node, Work
from advisor.planners.layouts.unit_stages import RecordedCase, RecordedMachine, RecordedModel
from advisor.planners.memory.recorded_steps import (
    MemoryParameters,
    UnitTable,
    offloaded_bytes,
    unit_state_bytes,
)
from advisor.planners.step.model_units import work_units

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
) -> RecordedCase:
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
    model = RecordedModel(
        work=WORK, table=TABLE, blocks=None, memory=MEMORY, scaling=parameters.scaling()
    )
    return RecordedCase(
        model=model,
        machine=RecordedMachine(node=node, times={}),
        layout=Layout(dp=dp, tp=tp, pp=pp, offload=offload),
        nodes=nodes,
        local=8,
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
        found = case(nodes=2 * max(1, dp * tp // 4), dp=dp, tp=tp).send_s(u)
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
