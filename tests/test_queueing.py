"""Queue policies against the published simulator and queueing theory."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from advisor.planners import PlanningError
from advisor.planners.queueing.engine import (
    POLICIES,
    JobTable,
    Placement,
    Policy,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.preemptive import gittins_index
from advisor.planners.queueing.simulator import engine, simulate_queue
from advisor.planners.queueing.wait_or_rent import Wait, rent_or_wait, wait_on_cluster

GOLDEN = Path(__file__).parent / "golden" / "tiresias"


def golden(name: str) -> tuple[JobTable, dict[str, np.ndarray]]:
    with (GOLDEN / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
    jobs = JobTable(
        submit_s=columns["submit_s"],
        devices=columns["devices"].astype(np.int64),
        duration_s=columns["duration_s"],
    )
    return jobs, columns


def service_samples() -> tuple[float, ...]:
    with (GOLDEN / "service_samples.csv").open() as file:
        return tuple(float(row["service_device_s"]) for row in csv.DictReader(file))


CASES = [
    (name, cluster, policy)
    for name, cluster in (
        ("60_job_n2g4", SharedCluster(nodes=2, devices_per_node=4)),
        ("syn240_n10g4", SharedCluster(nodes=10, devices_per_node=4)),
    )
    for policy in POLICIES
    if f"{policy}_finish_s" in golden(name)[1]
]


@pytest.mark.parametrize(("name", "cluster", "policy"), CASES)
def test_every_job_ends_when_the_published_simulator_says(
    name: str, cluster: SharedCluster, policy: Policy
) -> None:
    jobs, theirs = golden(name)
    parameters = QueueParameters(service_samples=service_samples(), as_published=True)
    ours = simulate_queue(jobs, cluster, policy, parameters=parameters)
    np.testing.assert_array_equal(ours.finish_s, theirs[f"{policy}_finish_s"])
    np.testing.assert_array_equal(ours.preemptions, theirs[f"{policy}_preemptions"])


@pytest.mark.parametrize("policy", ["las", "las-2d", "gittins"])
def test_without_the_published_slips_means_move_by_less_than_one_percent(policy: Policy) -> None:
    jobs, theirs = golden("syn240_n10g4")
    ours = simulate_queue(
        jobs,
        SharedCluster(nodes=10, devices_per_node=4),
        policy,
        parameters=QueueParameters(service_samples=service_samples()),
    )
    mean = np.mean(theirs[f"{policy}_finish_s"] - jobs.submit_s)
    assert ours.completion_s.mean() == pytest.approx(mean, rel=0.01)


tables = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 8), st.integers(1, 4000)),
    min_size=1,
    max_size=40,
).map(sorted)


def table_of(rows: Sequence[tuple[float, int, int]]) -> JobTable:
    columns = np.array(rows, float).T
    return JobTable(
        submit_s=columns[0], devices=columns[1].astype(np.int64), duration_s=columns[2]
    )


EIGHT = SharedCluster(nodes=2, devices_per_node=4)


@settings(deadline=None, max_examples=40)
@given(rows=tables, policy=st.sampled_from(POLICIES), cost=st.sampled_from([0.0, 5.0]))
def test_every_job_gets_its_time_and_devices_never_overflow(
    rows: list[tuple[int, int, int]], policy: Policy, cost: float
) -> None:
    jobs = table_of(rows)
    parameters = QueueParameters(service_samples=(100.0, 500.0, 9000.0), preemption_s=cost)
    result = simulate_queue(jobs, EIGHT, policy, parameters=parameters)
    lost = result.preemptions * cost
    assert np.all(result.start_s >= jobs.submit_s)
    assert np.all(result.delay_s >= lost - 1e-4)
    # Nothing can be done faster than all devices allow.
    horizon = result.finish_s.max() - jobs.submit_s.min()
    assert (jobs.devices * jobs.duration_s).sum() <= horizon * EIGHT.devices * (1 + 1e-9) + 1e-3


@settings(deadline=None, max_examples=40)
@given(rows=tables, policy=st.sampled_from(["fifo", "fit-first"]))
def test_one_device_jobs_need_no_consolidation(
    rows: list[tuple[int, int, int]], policy: Policy
) -> None:
    jobs = table_of([(t, 1, d) for t, _, d in rows])
    places: tuple[Placement, ...] = ("count", "consolidated")
    free, together = (simulate_queue(jobs, EIGHT, policy, placement=p).finish_s for p in places)
    np.testing.assert_array_equal(free, together)


@pytest.mark.parametrize("policy", POLICIES)
def test_consolidation_makes_a_job_wait_for_one_node(policy: Policy) -> None:
    # Two nodes of 4: three jobs of 3 devices leave 1 + 1 free; two free devices apart are no pair.
    jobs = table_of([(0, 3, 100), (0, 3, 100), (10, 2, 10)])
    parameters = QueueParameters(service_samples=(1e3, 1e4))
    free = simulate_queue(jobs, EIGHT, policy, parameters=parameters)
    together = simulate_queue(jobs, EIGHT, policy, placement="consolidated", parameters=parameters)
    assert free.start_s[2] == 10
    # Preempting policies may put the short job first; the others wait for an end.
    expected = {"shortest": 10, "shortest-gpu": 10}.get(policy, 100)
    assert together.start_s[2] == expected


def shortest_in_words(
    rows: list[tuple[int, int, int]], capacity: int, *, by_service: bool
) -> list[int]:
    """Write the rule down: at every event sort stably, then let run what fits."""
    left = {job: duration for job, (_, _, duration) in enumerate(rows)}
    finish, now = [0] * len(rows), 0
    line: list[int] = []
    runs: list[int] = []
    while left:
        ends = [now + left[job] for job in runs]
        arrivals = [t for t, _, _ in rows if t > now or (t == now and not line and not runs)]
        at = min([*ends, *arrivals])
        for job in runs:
            left[job] -= at - now
        for job in [job for job in runs if left[job] == 0]:
            finish[job] = at
            line.remove(job)
            del left[job]
        line += [job for job, (t, _, _) in enumerate(rows) if t == at and job in left
                 and job not in line]  # fmt: skip
        line.sort(key=lambda job: left[job] * (rows[job][1] if by_service else 1))
        free, runs, now = capacity, [], at
        for job in line:
            if rows[job][1] <= free:
                runs.append(job)
                free -= rows[job][1]
    return finish


# A shortcut that skipped the sort broke a tie of these the wrong way.
TIED = [
    (1, 2, 11), (6, 3, 3), (8, 2, 9), (10, 1, 8), (12, 1, 1), (13, 2, 5), (13, 2, 11), (14, 1, 5),
    (15, 1, 1), (17, 2, 8), (18, 2, 2), (19, 3, 3), (20, 3, 9), (21, 3, 2), (26, 1, 1), (29, 2, 2),
    (29, 1, 10),
]  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    # Few values, so that ties are many.
    rows=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 8), st.integers(1, 11)),
        min_size=4,
        max_size=30,
    ),
    capacity=st.integers(2, 8),
    by_service=st.booleans(),
)
@example(rows=TIED, capacity=3, by_service=True)
def test_shortest_settles_every_tie_as_its_rule_does(
    rows: list[tuple[int, int, int]], capacity: int, by_service: bool
) -> None:
    rows = sorted(((t, min(n, capacity), d) for t, n, d in rows), key=lambda row: row[0])
    policy: Policy = "shortest-gpu" if by_service else "shortest"
    cluster = SharedCluster(nodes=1, devices_per_node=capacity)
    found = simulate_queue(table_of(rows), cluster, policy).finish_s
    assert found.tolist() == shortest_in_words(rows, capacity, by_service=by_service)


@pytest.mark.slow
def test_fifo_on_one_device_meets_the_pollaczek_khinchine_wait() -> None:
    rng = np.random.default_rng(5)
    count, mean, load = 60_000, 100.0, 0.7
    jobs = JobTable(
        submit_s=np.cumsum(rng.exponential(mean / load, count)),
        devices=np.ones(count, np.int64),
        duration_s=rng.exponential(mean, count),
    )
    one = SharedCluster(nodes=1, devices_per_node=1)
    # M/M/1: W = rho / (1 - rho) x service; 60,000 correlated waits are good to some percent.
    wait = simulate_queue(jobs, one, "fifo").delay_s.mean()
    assert wait == pytest.approx(load / (1 - load) * mean, rel=0.08)
    # Shortest remaining time is optimal for the mean on one device.
    means = [
        simulate_queue(
            jobs, one, p, parameters=QueueParameters(limits=(50.0, 200.0))
        ).completion_s.mean()
        for p in ("shortest", "las", "fifo")
    ]
    assert means[0] <= means[1]
    assert means[0] <= means[2]
    assert jobs.load(1) == pytest.approx(load, rel=0.02)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 8), st.integers(1, 4000)),
        min_size=2, max_size=30,
    ).map(sorted),
    policy=st.sampled_from(POLICIES),
    when=st.floats(0.05, 0.95),
    devices=st.integers(1, 8),
    duration=st.integers(1, 3000),
)  # fmt: skip
def test_a_copy_with_one_more_job_equals_a_table_with_it(
    rows: list[tuple[int, int, int]], policy: Policy, when: float, devices: int, duration: int
) -> None:
    parameters = QueueParameters(limits=(300.0, 2000.0), service_samples=(100.0, 500.0, 9000.0))
    at = rows[0][0] + when * (rows[-1][0] - rows[0][0]) + 0.5
    run = engine(table_of(rows), EIGHT, policy, "count", parameters)
    run.run(until_s=at)
    twin = run.fork()
    number = twin.submit_now(at, devices, float(duration))
    twin.run_to(number)
    whole = sorted([*((t, d, s) for t, d, s in rows), (at, devices, duration)], key=lambda r: r[0])
    position = next(k for k, row in enumerate(whole) if row[0] == at)
    together = simulate_queue(table_of(whole), EIGHT, policy, parameters=parameters)
    assert twin.finish_s[number] == pytest.approx(together.finish_s[position], abs=1e-3)
    # The original is untouched by its copy.
    run.run()
    alone = simulate_queue(table_of(rows), EIGHT, policy, parameters=parameters)
    np.testing.assert_allclose(run.finish_s, alone.finish_s, atol=1e-3)


def test_an_idle_cluster_gives_no_delay_and_a_full_one_does() -> None:
    idle = table_of([(t, 1, 5) for t in range(0, 3000, 100)])
    busy = table_of([(t, 8, 150) for t in range(0, 3000, 100)])
    waits = [
        wait_on_cluster(jobs, EIGHT, "fifo", devices=4, duration_s=[600.0, 700.0], insertions=30)
        for jobs in (idle, busy)
    ]
    assert np.all(waits[0].delay_s == pytest.approx(0, abs=1e-6))
    assert np.all(waits[1].delay_s > 0)
    assert waits[1].late(0.0) == 1.0


def test_break_even_is_extra_cost_by_hours_saved() -> None:
    wait = Wait(
        submit_s=np.zeros(3),
        duration_s=np.full(3, 3600.0),
        completion_s=np.array([2, 5, 9]) * 3600.0,
        load=1.0,
        beyond_trace_fraction=0.0,
    )
    answer = rent_or_wait(wait, rent_completion_s=[3600.0], rent_cost_usd=30.0, own_cost_usd=10.0)
    assert answer["saved_h"] == pytest.approx(4.0)
    assert answer["break_even_usd_per_h"] == pytest.approx(5.0)
    assert answer["earlier_probability"] == 1.0
    slow = rent_or_wait(wait, rent_completion_s=[1e9], rent_cost_usd=30.0)
    assert slow["break_even_usd_per_h"] is None
    assert slow["earlier_probability"] == 0.0


def test_gittins_of_an_exponential_is_flat_and_of_heavy_tails_falls() -> None:
    levels = (np.arange(20_000) + 0.5) / 20_000
    exponential = -1000.0 * np.log1p(-levels)
    index = gittins_index(exponential, 200.0)[:15_000]
    # Memoryless: 1/mean at every age, up to the grid of samples.
    np.testing.assert_allclose(index, 1e-3, rtol=0.05)
    pareto = 100.0 * (1 - levels) ** (-1 / 1.2)
    assert np.all(np.diff(gittins_index(pareto, 100.0)[2000:15_000:500]) < 0)


@pytest.mark.parametrize(
    ("rows", "match", "code"),
    [
        ([(0, 0, 5)], "without devices", 2),
        ([(0, 1, 0)], "without a duration", 2),
        ([(9, 1, 5), (0, 1, 5)], "submitted before", 2),
    ],
)
def test_tables_without_sense_are_refused(
    rows: list[tuple[int, int, int]], match: str, code: int
) -> None:
    with pytest.raises(PlanningError, match=match) as refused:
        table_of(rows)
    assert refused.value.exit_code == code


def test_a_job_larger_than_the_cluster_is_refused() -> None:
    jobs = table_of([(0, 9, 5)])
    with pytest.raises(PlanningError, match="asks for 9 devices") as refused:
        simulate_queue(jobs, EIGHT)
    assert refused.value.exit_code == 3
    with pytest.raises(PlanningError, match="asks for 99 devices") as refused:
        wait_on_cluster(table_of([(0, 1, 5)]), EIGHT, devices=99, duration_s=5.0)
    assert refused.value.exit_code == 3


def test_gittins_without_samples_and_unknown_policies_are_refused() -> None:
    for policy in ("gittins", "lottery"):
        with pytest.raises(PlanningError, match=policy):
            simulate_queue(table_of([(0, 1, 5)]), EIGHT, cast("Policy", policy))
