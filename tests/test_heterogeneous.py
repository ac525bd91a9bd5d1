from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from golden_latencies import read
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.core.layer_latency import LayerLatency
from advisor.planners.systems.cephalo import (
    CephaloConstants,
    UnevenJob,
    Worker,
    even_plan,
    layer_s,
    level_shards,
    memory_curve,
    plan_cephalo,
)

CASES, LATENCIES = read("cephalo_splits.json")
MEMORY_GIB = {"l4": 22.5, "a6000": 48.0, "p40": 22.5, "p100": 12.0}
NO_LIMIT = CephaloConstants(usable_fraction=1.0, reserve_bytes=0.0)


def golden_workers(case: dict[str, Any]) -> list[Worker]:
    return [
        Worker(
            name=gpu,
            memory_bytes=MEMORY_GIB[gpu] * GIB,
            latency=LATENCIES[case["model"], gpu, case["dtype"]],
        )
        for gpu in case["gpus"]
    ]


def golden_job(case: dict[str, Any]) -> UnevenJob:
    return UnevenJob(
        global_batch=case["global_batch"],
        layers=1,
        all_gather_s=1e-3 * case["ag_ms"],
        reduce_scatter_s=1e-3 * case["rs_ms"],
    )


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["strategy"] == "dp_ga"], ids=lambda c: str(c["model"])
)
def test_splits_equal_the_authors_planner(case: dict[str, Any]) -> None:
    found = plan_cephalo(golden_workers(case), golden_job(case), constants=NO_LIMIT)
    assert list(found.batches) == case["batch_sizes"]
    assert list(found.accumulation_steps) == case["num_microbatches"]


@pytest.mark.parametrize("case", [c for c in CASES if c["strategy"] == "dp"])
def test_splits_without_accumulation_equal_the_authors_planner(case: dict[str, Any]) -> None:
    found = plan_cephalo(
        golden_workers(case), golden_job(case), constants=NO_LIMIT, may_accumulate=False
    )
    assert list(found.batches) == case["batch_sizes"]


def test_layer_times_equal_the_published_check() -> None:
    expected_ms = [181.79, 311.55, 102.72, 155.37, 353.98]
    cases = [
        c
        for c in CASES
        if c["strategy"] == "dp_ga" and c["global_batch"] == 32 and len(c["gpus"]) == 4
    ]
    found = [
        plan_cephalo(golden_workers(c), golden_job(c), constants=NO_LIMIT).step_s for c in cases
    ]
    assert np.allclose(np.array(found) * 1e3, expected_ms, atol=0.006)


@pytest.mark.parametrize("case", [c for c in CASES if c["strategy"] == "greedy"])
def test_no_split_of_the_greedy_rule_is_faster(case: dict[str, Any]) -> None:
    workers, job = golden_workers(case), golden_job(case)
    found = plan_cephalo(workers, job, constants=NO_LIMIT, may_accumulate=False)
    one, zero = np.array(1), np.array(0.0)
    greedy = max(
        float(
            layer_s(
                w.latency,
                np.array(b),
                one,
                all_gather_s=zero,
                reduce_scatter_s=zero,
                accumulation_overhead_s=0.0,
            )
        )
        for w, b in zip(workers, case["batch_sizes"], strict=True)
    )
    assert found.step_s <= greedy


def linear(slope_s: float, intercept_s: float) -> LayerLatency:
    return LayerLatency(
        forward_line=(slope_s, intercept_s), backward_line=(2 * slope_s, intercept_s)
    )


workers_strategy = st.lists(
    st.builds(
        lambda slope, intercept, memory: Worker(
            name="gpu", memory_bytes=memory * GIB, latency=linear(slope, intercept)
        ),
        st.sampled_from([0.001, 0.002, 0.0035, 0.01]),
        st.sampled_from([0.0, 0.0015, 0.01]),
        st.sampled_from([8.0, 12.0, 24.0]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(workers_strategy, st.integers(3, 10), st.sampled_from([0.0, 12.0, 20.0, 40.0]))
def test_plan_equals_trying_every_split(
    workers: list[Worker], batch: int, state_gib: float
) -> None:
    job = UnevenJob(
        global_batch=batch,
        layers=2,
        state_bytes=state_gib * GIB,
        compute_bytes=(1.0 * GIB, 1.75 * GIB),
        all_gather_s=0.004,
        reduce_scatter_s=0.008,
    )
    expected = _exhaustive(workers, job)
    if expected is None:
        with pytest.raises(PlanningError):
            plan_cephalo(workers, job)
        return
    found = plan_cephalo(workers, job)
    assert sum(found.batches) == batch
    assert found.step_s == pytest.approx(2 * expected, rel=1e-9)
    limits = [0.75 * w.memory_bytes for w in workers]
    assert all(m <= c * (1 + 1e-9) for m, c in zip(found.memory_bytes, limits, strict=True))
    assert sum(found.state_bytes) == pytest.approx(job.state_bytes)


def _exhaustive(workers: list[Worker], job: UnevenJob) -> float | None:
    """Try every (micro-batch, accumulation) of every worker."""
    fixed = CephaloConstants()
    compute = memory_curve(job.compute_bytes, job.global_batch)
    pairs = [
        (u, k)
        for u in range(1, job.global_batch + 1)
        for k in range(1, job.global_batch + 1)
        if u * k <= job.global_batch
    ]
    best = None
    for choice in itertools.product(pairs, repeat=len(workers)):
        if sum(u * k for u, k in choice) != job.global_batch:
            continue
        used = [compute[u] + fixed.reserve_bytes for u, _ in choice]
        limits = [fixed.usable_fraction * w.memory_bytes for w in workers]
        if any(x > y for x, y in zip(used, limits, strict=True)):
            continue
        if sum(used) + job.state_bytes > sum(limits):
            continue
        slowest = 0.0
        for w, (u, k), x, y in zip(workers, choice, used, limits, strict=True):
            factor = 1.25 if x + job.state_bytes / len(workers) > y else 1.0
            forward, backward = (float(t) for t in w.latency.at(u))
            gather, scatter = factor * job.all_gather_s, factor * job.reduce_scatter_s
            time = max(gather, k * forward) + max(
                gather + scatter, k * (forward + backward) + (k - 1) * 0.010
            )
            slowest = max(slowest, time)
        best = slowest if best is None else min(best, slowest)
    return best


def test_equal_gpus_without_overheads_share_evenly() -> None:
    workers = [Worker(name="a", memory_bytes=80 * GIB, latency=linear(0.001, 0.0))] * 4
    found = plan_cephalo(workers, UnevenJob(global_batch=64, layers=1))
    assert found.batches == (16, 16, 16, 16)


def test_uneven_is_never_slower_than_even() -> None:
    for case in CASES:
        workers, job = golden_workers(case), golden_job(case)
        uneven = plan_cephalo(workers, job, constants=NO_LIMIT)
        assert uneven.step_s <= even_plan(workers, job, constants=NO_LIMIT).step_s


def test_too_little_memory_names_the_nearest_miss() -> None:
    workers = [Worker(name="t4", memory_bytes=16 * GIB, latency=linear(0.001, 0.0))] * 2
    job = UnevenJob(global_batch=8, layers=1, state_bytes=100 * GIB, compute_bytes=(GIB,))
    with pytest.raises(PlanningError, match="GiB more") as caught:
        plan_cephalo(workers, job)
    assert "t4" in caught.value.hint
    assert caught.value.exit_code == 3


def test_fewer_samples_than_gpus_is_refused() -> None:
    workers = [Worker(name="t4", memory_bytes=16 * GIB, latency=linear(0.001, 0.0))] * 3
    with pytest.raises(PlanningError, match="less than one"):
        plan_cephalo(workers, UnevenJob(global_batch=2, layers=1))


rooms = st.lists(st.floats(0.1, 50.0), min_size=1, max_size=8)


@given(rooms, st.floats(0.01, 0.999))
def test_level_shards_store_all_and_minimise_the_largest(room: list[float], share: float) -> None:
    capacity = np.array(room) + 1.0
    in_use = np.ones(len(room))
    state = share * sum(room)
    shards = level_shards(state, capacity, in_use)
    assert shards.sum() == pytest.approx(state)
    assert (shards <= np.array(room) * (1 + 1e-9)).all()
    # Whoever holds less than the largest shard is full: no state can move off the largest.
    is_full = shards >= np.array(room) * (1 - 1e-9)
    assert (is_full | (shards >= shards.max() * (1 - 1e-9))).all()


def test_ties_on_slow_links_are_broken_by_balance() -> None:
    """Where the links set the pace every split takes the same time: the fastest GPU gets most."""
    slow = [linear(0.001, 0.0), linear(0.001, 0.0), linear(0.0005, 0.0), linear(0.004, 0.0)]
    workers = [
        Worker(name=f"gpu{n}", memory_bytes=48 * GIB, latency=x) for n, x in enumerate(slow)
    ]
    job = UnevenJob(
        global_batch=34, layers=2, state_bytes=1.0 * GIB, compute_bytes=(0.1 * GIB, 0.2 * GIB),
        all_gather_s=1.0, reduce_scatter_s=1.0,
    )  # fmt: skip
    found = plan_cephalo(workers, job)
    assert found.step_s == pytest.approx(2 * 3.0)  # what the links take, whatever is split how
    # In proportion to their speeds, 1 : 1 : 2 : 1/4.
    assert found.batches == (8, 8, 16, 2)


def test_a_latency_is_measured_between_its_points_and_on_its_line_beyond_them() -> None:
    """The line never falls below a thousandth of its slope, however negative it begins."""
    made = LayerLatency(
        micro_batches=(2, 4, 8), forward_s=(1.0, 4.0, 5.0), backward_s=(2.0, 2.0, 6.0),
        forward_line=(1.0, -3.0), backward_line=(2.0, 1.0),
    )  # fmt: skip
    at = [1, 2, 3, 4, 6, 8, 10]
    forward, backward = made.at(at)
    np.testing.assert_allclose(forward, [1e-3, 1.0, 2.5, 4.0, 4.5, 5.0, 7.0])
    np.testing.assert_allclose(backward, [3.0, 2.0, 2.0, 2.0, 4.0, 6.0, 21.0])
    line = LayerLatency(forward_line=(1.0, -3.0), backward_line=(2.0, 1.0))
    np.testing.assert_allclose(line.at([2, 10])[0], [2e-3, 7.0])
    fitted = LayerLatency.from_points([4, 1, 2], [9.0, 3.0, 5.0], [8.0, 8.0, 8.0])
    assert fitted.micro_batches == (1, 2, 4)
    assert fitted.forward_s == (3.0, 5.0, 9.0)
    assert fitted.forward_line == pytest.approx((2.0, 1.0))
    assert fitted.backward_line == (2.0, 0.0)  # that does not rise: of the largest, in proportion
    single = LayerLatency.from_points([4], [2.0], [6.0])
    assert (single.forward_line, single.backward_line) == ((0.5, 0.0), (1.5, 0.0))
