"""Shared aggregation: the bound, the packing's laws, and waiting against a queue played out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.simulate import app
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.core.errors import PlanningError
from advisor.planners.queueing.closed import closed_loop_waits_s
from advisor.planners.systems.autops import (
    AggregatedJob,
    aggregation_s,
    delays_s,
    exchange,
    most_saved_fraction,
    pack,
)
from advisor.simulate.aggregation import shared
from advisor.simulate.questions import SimulateAggregation

tensors = st.lists(st.floats(1e-5, 0.05), min_size=1, max_size=12).map(tuple)
tenants = st.builds(AggregatedJob, name=st.just("job"), step_s=st.floats(0.1, 2.0), work_s=tensors)


def equal(count: int, demand: float, parts: int = 1) -> list[AggregatedJob]:
    """Jobs of one demand whose gradients are so many tensors."""
    return [
        AggregatedJob(name=f"job {k}", step_s=1.0, work_s=(demand / parts,) * parts)
        for k in range(count)
    ]


def test_four_jobs_of_a_fifth_reach_the_published_bound() -> None:
    found = pack(equal(4, 0.2), most_loss=math.inf)
    assert found.cores == 1
    assert found.saved_fraction == most_saved_fraction(0.2) == 0.75


@given(st.integers(1, 5), st.integers(1, 8), st.floats(0.1, 0.99))
def test_equal_jobs_are_packed_to_the_bound(count: int, per_core: int, cap: float) -> None:
    demand = cap / per_core
    found = pack(equal(count * per_core, demand), cap=cap, most_loss=math.inf)
    assert found.saved_fraction == pytest.approx(most_saved_fraction(demand, cap))


@given(st.lists(tenants, min_size=1, max_size=5), st.floats(0.2, 0.95), st.floats(1e-3, 0.5))
def test_everything_is_served_under_the_cap_and_the_loss(
    jobs: list[AggregatedJob], cap: float, most_loss: float
) -> None:
    found = pack(jobs, cap=cap, most_loss=most_loss)
    for k, job in enumerate(jobs):
        assert sum(place[k] for place in found.loads) == pytest.approx(job.demand)
        # A core that is opened later shifts who meets whom: by less than half as much again.
        assert found.loss[k] <= 1.5 * most_loss
    for place in found.loads:  # a job that has a core to itself may fill it
        assert sum(place) <= (cap if sum(load > 0 for load in place) > 1 else 1.0) * (1 + 1e-6)
    assert found.cores <= found.dedicated_cores


@given(st.lists(tenants, min_size=2, max_size=5))
def test_less_loss_allowed_never_needs_fewer_cores(jobs: list[AggregatedJob]) -> None:
    assert pack(jobs, most_loss=1e-4).cores >= pack(jobs, most_loss=math.inf).cores


@given(tenants)
def test_a_job_alone_waits_for_nobody(job: AggregatedJob) -> None:
    assert pack([job]).delay_s == (0.0,)


def test_equal_jobs_that_never_scatter_make_way_for_each_other_once() -> None:
    """Nobody waits below a full core; above it a round takes what the core has to do."""
    for demand, count in ((0.15, 4), (0.2, 5)):
        found = delays_s([[demand] * count], equal(count, demand))
        assert found == pytest.approx([0.0] * count, abs=1e-9)
    # Eight services of 0.2 s a round of 1 + 0.2 s: 0.4 s too many.
    assert delays_s([[0.2] * 8], equal(8, 0.2)) == pytest.approx([0.4] * 8, rel=0.02)


@given(st.lists(tenants, min_size=2, max_size=5), st.integers(0, 9))
def test_a_core_is_never_busier_than_all_of_the_time(jobs: list[AggregatedJob], seed: int) -> None:
    jobs = [replace(job, scatter=(0.8, 1.0, 1.2)) for job in jobs]
    waits = delays_s([[job.demand for job in jobs]], jobs)
    busy = sum(
        sum(job.work_s) / (job.step_s + sum(job.work_s) + wait)
        for job, wait in zip(jobs, waits, strict=True)
    )
    assert busy <= 1.1  # means over a finite time
    assert all(wait >= 0 for wait in waits)


def test_waiting_in_a_closed_loop_is_what_a_slow_simulation_says() -> None:
    """Two jobs, one core, moved in steps of a hundredth of a second."""
    rounds, service = 3000, (30, 40)
    think = np.random.default_rng(1).integers((60, 90), (141, 171), (rounds, 2))
    said = closed_loop_waits_s(think / 100, np.array([service]) / 100)
    left, waits, done, line, serving = think[0].tolist(), [0, 0], [0, 0], [], 0
    while min(done) < rounds - 1:
        for k in (0, 1):
            left[k] -= 1
            if left[k] == 0:
                line.append(k)
        if line:
            for k in line[1:]:
                waits[k] += 1
            serving += 1
            if serving == service[line[0]]:
                serving, k = 0, line.pop(0)
                done[k] += 1
                left[k] = int(think[done[k] % rounds, k])
    slow = [waits[k] / done[k] / 100 for k in (0, 1)]
    assert said == pytest.approx(slow, rel=0.15)


def test_the_published_three_quarters_are_found_by_default() -> None:
    """Four jobs of a fifth of a core, whose steps scatter by 3 %, at little slowdown."""
    scatter = tuple(np.random.default_rng(0).normal(1.0, 0.03, 200).tolist())
    jobs = [replace(job, scatter=scatter) for job in equal(4, 0.2, parts=10)]
    found = pack(jobs)
    assert found.saved_fraction == 0.75
    assert max(found.loss) < 0.05


def test_a_task_that_loses_too_much_leaves_no_load_behind() -> None:
    """Jobs that collide at every step: each is tried beside the first, and gets a core alone."""
    jobs = [
        AggregatedJob(name=f"job {k}", step_s=1.0, work_s=(0.3,), scatter=(0.5, 1.5))
        for k in range(3)
    ]
    found = pack(jobs, cap=0.95, most_loss=1e-6)
    assert sorted(found.loads) == [(0.0, 0.0, 0.3), (0.0, 0.3, 0.0), (0.3, 0.0, 0.0)]
    assert found.saved_fraction == 0.0
    (together,) = pack(jobs, cap=0.95, most_loss=10.0).loads
    assert together == pytest.approx((0.3,) * 3)


def test_a_tensor_larger_than_a_core_is_split() -> None:
    found = pack([AggregatedJob(name="large", step_s=1.0, work_s=(5.9, 0.1))])
    assert found.cores == found.dedicated_cores == 6
    assert all(sum(place) <= 1.0 + 1e-9 for place in found.loads)
    assert sum(map(sum, found.loads)) == pytest.approx(6.0)


def test_work_is_the_traffic_of_sums_and_updates() -> None:
    # One worker: the update alone; every further one is three accesses to each byte.
    assert aggregation_s(8e9, 1, 56e9) == pytest.approx(1.0)
    step = aggregation_s(8e9, 3, 56e9) - aggregation_s(8e9, 2, 56e9)
    assert step == pytest.approx(24 / 56)


def test_a_ring_moves_less_than_a_server_takes() -> None:
    (job,) = equal(1, 0.1)
    said = exchange(job, delay_s=0.02, gradient_bytes=1e9, workers=4, link_bytes_per_s=1e9)
    assert said["all_reduce_s"] == pytest.approx(2 * 3 / 4)  # 2 (n - 1) / n
    assert said["dedicated_s"] == pytest.approx(8.0 + 0.1)
    assert said["shared_s"] == pytest.approx(said["dedicated_s"] + 0.02)
    # As many servers as workers: each link carries what a worker's does.
    many = exchange(
        job, delay_s=0.0, gradient_bytes=1e9, workers=4, link_bytes_per_s=1e9, servers=4
    )
    assert many["shared_s"] == pytest.approx(2.0 + 0.1)


@pytest.mark.parametrize("cap", [0.0, 1.0, math.nan])
def test_impossible_caps_are_refused(cap: float) -> None:
    with pytest.raises(PlanningError, match="out of range"):
        pack(equal(2, 0.1), cap=cap)


@pytest.fixture(scope="module")
def jobs(make_job: Callable[..., Job]) -> list[Job]:
    return [make_job(name=f"job {k}") for k in range(4)]


def test_recorded_jobs_share_as_their_gradients_say(jobs: list[Job]) -> None:
    steps = [np.random.default_rng(k).normal(8.0, 0.4, 100).tolist() for k in range(4)]

    def asked(core: float, loss: float = 0.05) -> Mapping[str, Any]:
        question = SimulateAggregation(runs=[], workers=4, link=1e9, core_rate=core, loss=loss)
        return shared(jobs, question, steps).record

    (work,) = {one.work.gradient_bytes for one in jobs if one.work is not None}
    core = (3 * 3 + 7) * work / (0.02 * 8.0)  # a fiftieth of the step of 8 s
    found = asked(core)
    assert found["cores"] == 1
    assert found["dedicated_cores"] == 4
    assert found["saved_fraction"] == found["most_saved_fraction"] == 0.75
    for row in found["jobs"]:
        assert row["demand_cores"] == pytest.approx(0.02)
        assert row["all_reduce_s"] == pytest.approx(2 * 3 / 4 * work / 1e9)
        assert 0 < row["loss_fraction"] <= 0.05
        assert row["shared_s"] == pytest.approx(row["dedicated_s"] + row["delay_s"])
    # A core as slow as the step takes a core or more for each of them.
    assert asked(core / 50)["saved_fraction"] == 0.0
    assert asked(core / 10, loss=1.0)["cores"] < asked(core / 10, loss=1e-4)["cores"]


def test_the_verb_prints_the_record(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.api.job_of", lambda spec, *_, **__: jobs[int(spec.run)])

    def asked(*more: str) -> str:
        words = ["aggregation", "0", "1", "2", "3", "--link", "10Gbit/s", *more]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0
        return " ".join(done.stdout.split())

    record = json.loads(asked("--core-rate", "10GB/s", "--json"))
    assert [one["name"] for one in record["jobs"]] == [one.name for one in jobs]
    text = asked("--core-rate", "10GB/s")
    assert f"need {record['cores']} aggregating core" in text
    assert f"instead of {record['dedicated_cores']}" in text
    with pytest.raises(PlanningError, match="load of 1 on a core"):
        asked("--core-rate", "10GB/s", "--cap", "1")


def test_jobs_without_gradients_are_refused(jobs: list[Job]) -> None:
    described = replace(jobs[0], measured=None)
    asked = SimulateAggregation(runs=[], link=1e9)
    with pytest.raises(UsageError, match="was not recorded"):
        shared([described], replace(asked, core_rate=1e10))
    with pytest.raises(UsageError, match="was not measured"):
        shared([described], asked)
    assert jobs[0].work is not None
    frozen = replace(jobs[0], work=replace(jobs[0].work, trainable_parameters=0))
    with pytest.raises(UsageError, match="no gradients"):
        shared([frozen], asked)
