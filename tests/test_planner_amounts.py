"""Amounts that make no sense are refused where they enter; none is ever the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searched import search

from advisor.planners.core.arrays import Machines
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.core.layer_latency import LayerLatency
from advisor.planners.core.nouns import Device, Layout, Link, Node
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.problem import SearchSpace
from advisor.planners.queueing.engine import JobTable
from advisor.planners.spot.availability import Spells, SpotJob, SpotTrace, replay
from advisor.planners.systems.atom import Peer, SwapModel
from advisor.planners.systems.cephalo import UnevenJob, Worker, even_plan, plan_cephalo
from advisor.planners.systems.hydrozoa import Billing, WorkerScaling
from advisor.planners.systems.zorse import PipelineGroup, PipelineJob, best_of_groups

NAN = float("nan")
SMALL = Transformer(layers=4, hidden=1024, heads=8, sequence=1024, vocabulary=32000)
MACHINES = Machines(
    flop_per_s=271e12,
    memory_bytes_per_s=2e12,
    memory_bytes=24 * GIB,
    intra_bytes_per_s=300e9,
    network_bytes_per_s=50e9,
    devices_per_node=4,
)
LATENCY = LayerLatency(forward_line=(1e-3, 0.0), backward_line=(2e-3, 0.0))
WORKER = Worker(name="a", memory_bytes=24 * GIB, latency=LATENCY)
UNEVEN = UnevenJob(global_batch=8, layers=2)
PIPELINE = PipelineJob(global_batch=8, layers=4, layer_parameters=1e6, sequence=64, hidden=64)
GROUP = PipelineGroup(workers=(WORKER,))
DEVICE = Device(name="a", kind="gpu", memory_bytes=1e9, memory_bytes_per_s=1e9)
LINK = Link(name="a", bytes_per_s=1e9)
NODE = Node(
    name="a", device=DEVICE, devices=1, intra=LINK, network=LINK, vcpus=1, memory_bytes=1e9
)
PEER = Peer(gpu_bytes=1e9, memory_bytes=1e9, network_bytes_per_s=1e9)
SWAPPED = SwapModel(
    forward_s=(1.0,), parameter_bytes=(1.0,), boundary_bytes=(1.0,), saved_bytes=(1.0,)
)
SCALING = WorkerScaling(workers=(1, 2), step_s=0.1, sample_s=0.1, sync_s=(0.0, 0.1))
SPELLS = Spells(up_start_s=np.array([0.0]), up_length_s=np.array([50.0]), end_s=100.0)
SPOT_JOB = SpotJob(work_s=10.0, restart_s=1.0, checkpoint_interval_s=5.0)
TRACE = SpotTrace(
    name="t", nodes=1, start_s=np.array([0.0, 5.0]), available=np.array([1, 0]), end_s=9.0
)
# Nouns with what in them must be a positive, finite or not negative number.
NOUNS = [
    (LINK, "bytes_per_s latency_s"),
    (DEVICE, "memory_bytes memory_bytes_per_s fp32_flop_per_s sustained_fp16_flop_per_s call_s"),
    (NODE, "devices memory_bytes vcpus"),
    (SMALL, "layers hidden heads sequence kv_heads ffn experts experts_per_token"),
    (Layout(), "dp tp pp cp ep micro_batch accumulation_steps virtual_stages shard_group"),
    (WORKER, "memory_bytes"),
    (UNEVEN, "global_batch layers state_bytes all_gather_s reduce_scatter_s optimizer_s"),
    (GROUP, "all_gather_s reduce_scatter_s"),
    (PIPELINE, "global_batch layers layer_parameters sequence hidden"),
    (PEER, "gpu_bytes memory_bytes host_bytes_per_s host_update_bytes_per_s network_bytes_per_s"),
    (SWAPPED, "micro_batch"),
    (SCALING, "step_s sample_s"),
    (Billing(price_usd_per_h=1.0), "price_usd_per_h quantum_s minimum_s startup_s"),
    (SPOT_JOB, "work_s restart_s checkpoint_interval_s checkpoint_s"),
]
FIELDS = [(noun, name) for noun, names in NOUNS for name in names.split()]


def changed(noun: Any, name: str, amount: float) -> Any:
    return replace(noun, **{name: amount})


@pytest.mark.parametrize("amount", [NAN, -1.0])
@pytest.mark.parametrize(("noun", "name"), FIELDS, ids=lambda x: x if isinstance(x, str) else "")
def test_no_noun_holds_an_amount_that_makes_no_sense(noun: Any, name: str, amount: float) -> None:
    with pytest.raises(PlanningError) as caught:
        replace(noun, **{name: amount})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("noun", "name"),
    [
        (SMALL, "layers"),
        (LINK, "bytes_per_s"),
        (NODE, "devices"),
        (Layout(), "pp"),
        (UNEVEN, "layers"),
        (PEER, "network_bytes_per_s"),
    ],
)
def test_zero_is_no_count_and_no_rate(noun: Any, name: str) -> None:
    with pytest.raises(PlanningError):
        replace(noun, **{name: 0})


@pytest.mark.parametrize("amount", [NAN, 0.0, -1.0])
@pytest.mark.parametrize(
    "name", ["flop_per_s", "memory_bytes_per_s", "intra_bytes_per_s", "network_bytes_per_s"]
)
def test_search_refuses_machines_with_no_rate(name: str, amount: float) -> None:
    with pytest.raises(PlanningError, match=f"{name} of .* is out of range"):
        search(SMALL, replace(MACHINES, **{name: amount}), 2, 16)


@pytest.mark.parametrize("name", ["all_gather_s", "reduce_scatter_s"])
def test_cephalo_refuses_links_that_are_none(name: str) -> None:
    with pytest.raises(PlanningError):
        changed(UNEVEN, name, NAN)
    slow = plan_cephalo([WORKER, WORKER], changed(UNEVEN, name, 1e9))
    assert slow.step_s > plan_cephalo([WORKER, WORKER], UNEVEN).step_s


@pytest.mark.parametrize("planner", [plan_cephalo, even_plan])
def test_cephalo_refuses_to_plan_for_nothing(planner: Callable[..., Any]) -> None:
    with pytest.raises(PlanningError, match="no GPU"):
        planner([], UNEVEN)


@pytest.mark.parametrize("send_s", [NAN, float("inf"), -1.0])
def test_zorse_refuses_links_that_are_none(send_s: float) -> None:
    with pytest.raises(PlanningError, match="send_receive_s"):
        best_of_groups([GROUP, GROUP], PIPELINE, send_receive_s=lambda _: send_s)


def test_empty_groups_are_refused_in_words() -> None:
    with pytest.raises(PlanningError, match="needs a group"):
        best_of_groups([], PIPELINE, send_receive_s=lambda _: 0.0)
    with pytest.raises(PlanningError, match="has no GPUs"):
        PipelineGroup(workers=())


@pytest.mark.parametrize("start_s", [NAN, -1.0, [0.0, NAN]])
def test_a_replay_starts_at_a_time(start_s: Any) -> None:
    with pytest.raises(PlanningError, match="start_s"):
        replay(SPELLS, SPOT_JOB, start_s)


def test_records_have_times() -> None:
    with pytest.raises(PlanningError):
        replace(TRACE, start_s=np.array([0.0, NAN]))
    with pytest.raises(PlanningError):
        replace(TRACE, end_s=NAN)
    with pytest.raises(PlanningError):
        replace(SPELLS, end_s=NAN)


@settings(deadline=None, max_examples=60)
@given(
    at=st.integers(0, 3),
    column=st.sampled_from(["submit_s", "duration_s"]),
    amount=st.sampled_from([NAN, float("inf"), -float("inf")]),
)
def test_a_queue_never_waits_for_a_job_without_a_time(at: int, column: str, amount: float) -> None:
    columns = {"submit_s": np.arange(4.0), "duration_s": np.ones(4)}
    columns[column][at] = amount
    with pytest.raises(PlanningError, match=f"job {at} is without"):
        JobTable(devices=np.ones(4, np.int64), **columns)


def test_layers_that_do_not_fill_the_stages_are_named() -> None:
    with pytest.raises(PlanningError, match="25 layers over pp 8") as caught:
        search(replace(SMALL, layers=25), MACHINES, 8, 64, space=SearchSpace(pp=8))
    allowed = [int(p) for p in caught.value.hint.removeprefix("pp may be ").split(",")]
    for pp in allowed:
        assert search(replace(SMALL, layers=25), MACHINES, 8, 64, space=SearchSpace(pp=pp))


@settings(deadline=None, max_examples=60)
@given(
    memory=st.floats(0.001, 4.0), kept=st.floats(0.0, 8.0), hidden=st.sampled_from([12288, 65536])
)
def test_hints_hold_counts_that_somebody_could_use(
    memory: float, kept: float, hidden: int
) -> None:
    model = Transformer(layers=96, hidden=hidden, heads=64, sequence=8192, vocabulary=51200)
    machines = replace(
        MACHINES, memory_bytes=memory * GIB, kept_free_bytes=kept * GIB, host_memory_bytes=0.0
    )
    with pytest.raises(PlanningError) as caught:
        search(model, machines, 1, 4)
    words = caught.value.hint.replace(",", " ").split()
    numbers = [float(word) for word in words if word.lstrip("-").replace(".", "").isdigit()]
    assert numbers or "smaller model" in caught.value.hint
    assert all(0 < number <= 1e6 for number in numbers), caught.value.hint
    if "GiB" in words:
        assert memory < float(words[words.index("GiB") - 1]) <= 600
    if "about" in words:
        assert 4 < int(words[words.index("about") + 1]) <= 100_000
