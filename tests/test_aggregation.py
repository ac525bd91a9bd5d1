"""Shared aggregation: the bound, the packing's laws, and waiting against a queue played out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
from advisor.planners.systems.autops import (
    AggregatedJob,
    aggregation_s,
    delay_s,
    exchange,
    most_saved_fraction,
    pack,
)
from advisor.simulate.systems import shared_aggregation

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
        assert found.loss[k] <= most_loss * (1 + 1e-6)
    largest = max(work / job.step_s for job in jobs for work in job.work_s)
    assert all(sum(place) <= max(cap, largest) * (1 + 1e-6) for place in found.loads)


@given(st.lists(tenants, min_size=2, max_size=5))
def test_less_loss_allowed_never_needs_fewer_cores(jobs: list[AggregatedJob]) -> None:
    assert pack(jobs, most_loss=1e-4).cores >= pack(jobs, most_loss=math.inf).cores


@given(tenants)
def test_a_job_alone_waits_for_nobody(job: AggregatedJob) -> None:
    assert pack([job]).delay_s == (0.0,)


def waited_s(steps_s: list[float], bursts_s: list[float], seed: int, rounds: int = 4000) -> float:
    """Mean wait of the first job's bursts, every job periodic from a moment of its own: FIFO."""
    rng = np.random.default_rng(seed)
    begins = rng.uniform(0, steps_s)
    times = [
        (float(begins[k]) + n * step, k)
        for k, step in enumerate(steps_s)
        for n in range(int(rounds * steps_s[0] / step))
    ]
    free, waits = 0.0, []
    for at, k in sorted(times):
        if k == 0:
            waits.append(max(0.0, free - at))
        free = max(free, at) + bursts_s[k]
    return float(np.mean(waits))


@pytest.mark.parametrize("load", [0.05, 0.2, 0.35])
def test_two_jobs_wait_as_the_residual_says(load: float) -> None:
    # Unlike periods go through all phases; the exact mean is rho x residual.
    steps = [1.0, math.sqrt(2.0)]
    jobs = [AggregatedJob(name="one", step_s=s, work_s=(load * s,)) for s in steps]
    exact = load * load * steps[1] / 2.0
    said = delay_s([load, load], 0, jobs)
    assert said == pytest.approx(exact / (1.0 - load))
    assert waited_s(steps, [load * s for s in steps], 0) == pytest.approx(exact, rel=0.05)


@given(st.integers(0, 5))
def test_bursts_of_jobs_that_keep_their_periods_wait_no_longer(seed: int) -> None:
    steps = [1.0, math.sqrt(2.0), math.sqrt(3.0), math.pi / 2]
    jobs = [AggregatedJob(name="one", step_s=s, work_s=(0.15 * s,)) for s in steps]
    said = delay_s([0.15] * 4, 0, jobs)
    assert waited_s(steps, [0.15 * s for s in steps], seed, 2000) <= 1.02 * said


def test_work_is_the_traffic_of_sums_and_updates() -> None:
    # One worker: the update alone; every further one is three accesses to each byte.
    assert aggregation_s(8e9, 1, 56e9) == pytest.approx(1.0)
    step = aggregation_s(8e9, 3, 56e9) - aggregation_s(8e9, 2, 56e9)
    assert step == pytest.approx(24 / 56)


def test_a_ring_moves_less_than_a_server_takes() -> None:
    (job,) = equal(1, 0.1)
    said = exchange(job, delay_s=0.02, gradient_bytes=1e9, workers=4, link_bytes_per_s=1e9)
    assert said.all_reduce_s == pytest.approx(2 * 3 / 4)  # 2 (n - 1) / n
    assert said.dedicated_s == pytest.approx(8.0 + 0.1)
    assert said.shared_s == pytest.approx(said.dedicated_s + 0.02)
    # As many servers as workers: each link carries what a worker's does.
    many = exchange(
        job, delay_s=0.0, gradient_bytes=1e9, workers=4, link_bytes_per_s=1e9, servers=4
    )
    assert many.shared_s == pytest.approx(2.0 + 0.1)


@pytest.mark.parametrize("cap", [0.0, 1.0, math.nan])
def test_impossible_caps_are_refused(cap: float) -> None:
    with pytest.raises(PlanningError, match="out of range"):
        pack(equal(2, 0.1), cap=cap)


@pytest.fixture(scope="module")
def jobs(make_job: Callable[..., Job]) -> list[Job]:
    return [make_job(name=f"job {k}") for k in range(4)]


def test_recorded_jobs_share_as_their_gradients_say(jobs: list[Job]) -> None:
    def asked(core: float, **changes: float) -> dict[str, Any]:
        usual: dict[str, Any] = {"workers": 4, "link_bytes_per_s": 1e9, "cap": 0.8}
        usual |= {"most_loss": 0.05, "core_bytes_per_s": core} | changes
        return shared_aggregation(jobs, **usual).to_record()

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
    assert asked(core / 10, most_loss=1.0)["cores"] < asked(core / 10, most_loss=1e-4)["cores"]


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
    asked: dict[str, Any] = {"workers": 4, "link_bytes_per_s": 1e9, "cap": 0.8, "most_loss": 0.05}
    with pytest.raises(UsageError, match="was not recorded"):
        shared_aggregation([described], core_bytes_per_s=1e10, **asked)
    with pytest.raises(UsageError, match="was not measured"):
        shared_aggregation([described], **asked)
    assert jobs[0].work is not None
    frozen = replace(jobs[0], work=replace(jobs[0].work, trainable_parameters=0))
    with pytest.raises(UsageError, match="no gradients"):
        shared_aggregation([frozen], **asked)
