"""Laws of completing a job on spot machines that are helped out, or that come one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.spot.availability import (
    Rental,
    Spells,
    SpotJob,
    SpotTrace,
    replay,
    replay_timeline,
    settling_s,
)
from advisor.planners.spot.last_safe_moment import replay_with_fallback
from advisor.planners.spot.strategies import Strategy, replay_strategy
from advisor.planners.spot.timelines import growing_timeline, nested_levels, replay_alternating

# Whole minutes, so that a replay minute by minute is exact.
spell_minutes = st.lists(st.integers(1, 60), min_size=2, max_size=30).map(
    lambda x: x[: len(x) // 2 * 2]
)
jobs = st.builds(
    SpotJob,
    work_s=st.integers(1, 300).map(float),
    restart_s=st.integers(0, 6).map(float),
    checkpoint_interval_s=st.integers(1, 9).map(float),
    checkpoint_s=st.integers(0, 3).map(float),
)
State = tuple[float, float, float]  # rate, share of the machines on spot, and on demand


def spells_of(minutes: list[int], *, begins_up: bool = False) -> Spells:
    edges = np.cumsum(np.asarray([0, *minutes] if begins_up else minutes, float))
    edges = edges[: edges.size // 2 * 2]
    return Spells(up_start_s=edges[0::2], up_length_s=edges[1::2] - edges[0::2], end_s=edges[-1])


def by_minute(
    state: Callable[[int], State], is_planned: Callable[[int], bool], job: SpotJob, start: int
) -> tuple[float, float, float]:
    """Finish, spot and on-demand time of a job that takes what ``state`` gives, minute by minute.

    ``is_planned`` says whether a change at a minute is one that the job chose.
    """
    saved = ran = spot = on_demand = 0.0
    pause, last = job.restart_s, (0.0, 0.0, 0.0)
    stride = job.checkpoint_interval_s + job.checkpoint_s
    for minute in range(start, 100_000):
        now = state(minute)
        if now != last:
            if last[0] > 0:
                kept = (
                    max(ran - job.checkpoint_s, 0)
                    if is_planned(minute)
                    else ran // stride * stride
                )
                saved += last[0] * kept
            ran, pause, last = 0.0, job.restart_s, now
        rate = now[0]
        if rate > 0 and pause <= 0 and saved + rate * (ran + 1) >= job.attempt_s - 1e-9:
            into = (job.attempt_s - saved) / rate - ran
            return minute + into - start, spot + now[1] * into, on_demand + now[2] * into
        spot, on_demand = spot + now[1], on_demand + now[2]
        if rate > 0:
            ran, pause = (ran, pause - 1) if pause > 0 else (ran + 1, 0.0)
    return (np.nan,) * 3


def alternating_by_minute(spells: Spells, job: SpotJob, start: int) -> tuple[float, float, float]:
    """Decide each minute where to run, from how long spot has been up."""
    settle = settling_s(job)
    begins, lengths = spells.up_start_s.tolist(), spells.up_length_s.tolist()
    on_spot: dict[int, bool] = {}

    def is_on_spot(minute: int) -> bool:
        if minute not in on_spot:
            up = next(
                (b for b, u in zip(begins, lengths, strict=True) if b <= minute < b + u), None
            )
            before = minute > start and is_on_spot(minute - 1) and minute not in begins
            fresh = up is not None and (minute == start or minute - up >= settle)
            on_spot[minute] = up is not None and (before or fresh)
        return on_spot[minute]

    def state(minute: int) -> State:
        return (1.0, 1.0, 0.0) if is_on_spot(minute) else (1.0, 0.0, 1.0)

    return by_minute(state, is_on_spot, job, start)


@given(minutes=spell_minutes, job=jobs, begins_up=st.booleans(), share=st.floats(0, 1.2))
def test_fallback_equals_a_replay_minute_by_minute(
    minutes: list[int], job: SpotJob, begins_up: bool, share: float
) -> None:
    spells = spells_of(minutes, begins_up=begins_up)
    start = int(share * spells.end_s)
    run = replay_alternating(job, spells, [float(start)])
    finish, spot, on_demand = alternating_by_minute(spells, job, start)
    assert run.finish_s[0] == pytest.approx(finish)
    assert run.spot_s[0] == pytest.approx(spot)
    assert run.on_demand_s[0] == pytest.approx(on_demand)


@given(minutes=spell_minutes, job=jobs, share=st.floats(0, 1.2), ratio=st.floats(0, 1))
def test_fallback_is_late_and_dear_by_no_more_than_its_moves(
    minutes: list[int], job: SpotJob, share: float, ratio: float
) -> None:
    spells = spells_of(minutes)
    run = replay_alternating(job, spells, [share * spells.end_s])
    stride = job.checkpoint_interval_s + job.checkpoint_s
    moves_s = run.changes[0] * (job.restart_s + max(stride, job.checkpoint_s))
    assert job.wall_s - 1e-6 <= run.finish_s[0] <= job.wall_s + moves_s + 1e-6
    # Each return is preceded by as long on demand as a return and a removal cost at most.
    assert run.finish_s[0] <= 2 * job.wall_s + job.restart_s + stride + 1e-6
    assert run.billed_s(ratio)[0] <= run.finish_s[0] + 1e-6
    assert run.spot_s[0] + run.on_demand_s[0] == pytest.approx(run.finish_s[0])


@given(job=jobs, start=st.floats(0, 50))
def test_fallback_with_spot_that_stays_is_plain_spot_and_without_any_on_demand(
    job: SpotJob, start: float
) -> None:
    always = Spells(up_start_s=np.zeros(1), up_length_s=np.full(1, 1e5), end_s=1e5)
    run, plain = replay_alternating(job, always, [start]), replay(always, job, [start])
    assert run.finish_s[0] == pytest.approx(plain.finish_s[0])
    assert run.spot_s[0] == pytest.approx(plain.rented_s[0])
    assert run.on_demand_s[0] == 0
    never = Spells(up_start_s=np.zeros(0), up_length_s=np.zeros(0), end_s=100.0)
    run = replay_alternating(job, never, [start])
    assert run.finish_s[0] == pytest.approx(job.wall_s)
    assert run.on_demand_s[0] == pytest.approx(job.wall_s)
    assert run.spot_s[0] == 0
    # The planner's rule for a deadline agrees where the deadline leaves no time for spot.
    past = Spells(up_start_s=np.zeros(1), up_length_s=np.ones(1), end_s=100.0)
    forced = replay_with_fallback(past, job, [start + 1.0], deadline_s=job.wall_s)
    assert run.on_demand_s[0] == pytest.approx(forced.on_demand_s[0])


def test_short_spells_do_not_keep_a_job_with_fallback_from_ending() -> None:
    """Spells shorter than a restart: who took them all would get nowhere."""
    spells = spells_of([3, 4] * 2000)
    job = SpotJob(work_s=500.0, restart_s=4.0, checkpoint_interval_s=5.0, checkpoint_s=1.0)
    run = replay_alternating(job, spells, np.arange(0.0, 70.0))
    assert np.all(run.finish_s <= job.wall_s + 4 + job.restart_s)


counts_over_time = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 4)), min_size=2, max_size=25
).filter(lambda x: max(count for _, count in x) == 4)


def trace_of(changes: list[tuple[int, int]]) -> SpotTrace:
    ends = np.cumsum([length for length, _ in changes]).astype(float)
    return SpotTrace(
        name="made", nodes=4, start_s=np.concatenate([[0.0], ends[:-1]]),
        available=np.array([count for _, count in changes]), end_s=float(ends[-1]),
    )  # fmt: skip


def grown(
    trace: SpotTrace, job: SpotJob, rate: list[float], settle: float, start: float
) -> Rental:
    """Replay the elastic way on a trace of node counts."""
    levels = []
    for count in range(1, 5):
        spells = trace.spells(count)
        levels.append((spells.up_start_s, spells.up_start_s + spells.up_length_s))
    timeline = growing_timeline(levels, np.arange(1, 5), np.array(rate), settle)
    return replay_timeline(timeline, job, np.array([start]), np.array([job.attempt_s]))


@given(changes=counts_over_time, job=jobs, share=st.floats(0, 1))
def test_elastic_equals_the_walk_through_node_counts(
    changes: list[tuple[int, int]], job: SpotJob, share: float
) -> None:
    """``planners.spot.strategies`` is the slow twin, where saves are free and nobody waits."""
    job = SpotJob(
        work_s=job.work_s, restart_s=job.restart_s,
        checkpoint_interval_s=job.checkpoint_interval_s,
    )  # fmt: skip
    trace, rate = trace_of(changes * 4), [0.25, 0.5, 0.75, 1.0]
    start = share * trace.end_s
    way = Strategy(
        name="replan", least_nodes=1, removal_s=job.restart_s, addition_s=job.restart_s,
        start_s=job.restart_s,
    )  # fmt: skip
    walked = replay_strategy(
        trace, way, start, work_s=job.work_s, nodes=4,
        checkpoint_interval_s=job.checkpoint_interval_s,
    )  # fmt: skip
    run = grown(trace, job, rate, 0.0, start)
    assert run.finish_s[0] == pytest.approx(walked.finish_s[0], nan_ok=True)
    if np.isfinite(run.finish_s[0]):
        assert 4 * run.spot_s[0] == pytest.approx(walked.node_s[0])


def elastic_by_minute(
    trace: SpotTrace, job: SpotJob, rate: list[float], settle: float
) -> tuple[float, float, float]:
    """Decide each minute on how many nodes to run, from how long they have been there."""
    since: dict[int, dict[int, int]] = {-1: {}}
    minutes = int(trace.end_s)
    for minute in range(minutes):
        up = int(trace.available[np.searchsorted(trace.start_s, minute, side="right") - 1])
        before = since[minute - 1]
        since[minute] = {k: before.get(k, minute) for k in range(1, up + 1)}

    def used(minute: int) -> int:
        there = since.get(minute, {})
        settled = [k for k, at in there.items() if at == there[1] or minute - at >= settle]
        return max(settled, default=0)

    def state(minute: int) -> State:
        k = used(minute)
        return (rate[k - 1] if k else 0.0, k / 4, 0.0)

    return by_minute(state, lambda minute: used(minute) > used(minute - 1), job, 0)


@settings(max_examples=40)
@given(changes=counts_over_time, job=jobs, settle=st.integers(0, 30))
def test_elastic_with_saves_and_patience_equals_a_replay_minute_by_minute(
    changes: list[tuple[int, int]], job: SpotJob, settle: int
) -> None:
    trace, rate = trace_of(changes), [0.25, 0.5, 0.75, 1.0]
    run = grown(trace, job, rate, float(settle), 0.0)
    finish, spot, _ = elastic_by_minute(trace, job, rate, float(settle))
    is_within = finish <= trace.end_s
    assert run.finish_s[0] == pytest.approx(finish if is_within else np.nan, nan_ok=True)
    assert run.spot_s[0] == pytest.approx(spot if is_within else np.nan, nan_ok=True)


@given(minutes=spell_minutes, job=jobs, share=st.floats(0, 1))
def test_elastic_with_all_machines_at_once_is_plain_spot(
    minutes: list[int], job: SpotJob, share: float
) -> None:
    spells = spells_of(minutes * 5)
    levels = [(spells.up_start_s, spells.up_start_s + spells.up_length_s)] * 3
    rate = np.array([0.4, 0.7, 1.0])
    timeline = growing_timeline(levels, np.array([1, 2, 4]), rate, settling_s(job))
    start = np.array([share * spells.end_s])
    run = replay_timeline(timeline, job, start, np.array([job.attempt_s]))
    plain = replay(spells, job, start)
    assert run.finish_s[0] == pytest.approx(plain.finish_s[0], nan_ok=True)
    assert run.spot_s[0] == pytest.approx(plain.rented_s[0], nan_ok=True)


@given(changes=counts_over_time, job=jobs, more=st.data(), settle=st.integers(0, 10))
def test_more_machines_lengthen_by_no_more_than_the_resizes_they_bring(
    changes: list[tuple[int, int]], job: SpotJob, more: st.DataObject, settle: int
) -> None:
    added = more.draw(st.lists(st.integers(0, 4), min_size=len(changes), max_size=len(changes)))
    wider = [(length, min(n + a, 4)) for (length, n), a in zip(changes, added, strict=True)]
    rate = [0.25, 0.5, 0.75, 1.0]
    rich = grown(trace_of(wider * 6), job, rate, 0.0, 0.0)
    if not np.isfinite(rich.finish_s[0]):
        return
    stride = job.checkpoint_interval_s + job.checkpoint_s
    cost_s = (1 + rich.changes[0]) * (job.restart_s + max(stride, job.checkpoint_s))
    poor = grown_to(trace_of(changes * 6), job, rate, float(settle), job.attempt_s + cost_s)
    assert np.isnan(poor) or rich.finish_s[0] <= poor + 1e-6


def grown_to(
    trace: SpotTrace, job: SpotJob, rate: list[float], settle: float, attempt: float
) -> float:
    levels = []
    for count in range(1, 5):
        spells = trace.spells(count)
        levels.append((spells.up_start_s, spells.up_start_s + spells.up_length_s))
    timeline = growing_timeline(levels, np.arange(1, 5), np.array(rate), settle)
    return float(replay_timeline(timeline, job, np.zeros(1), np.array([attempt])).finish_s[0])


@given(minutes=spell_minutes, gamma=st.floats(0, 1))
def test_fewer_machines_are_there_whenever_more_are(minutes: list[int], gamma: float) -> None:
    spells = spells_of(minutes)
    levels = nested_levels(spells, np.array([1, 2, 4, 8]), gamma)
    ends = spells.up_start_s + spells.up_length_s
    assert np.array_equal(levels[-1][0], spells.up_start_s)
    assert np.allclose(levels[-1][1], ends)
    for (begin, end), (inner_begin, inner_end) in pairwise(levels):
        at = np.searchsorted(begin, inner_begin, side="right") - 1
        assert np.all(at >= 0)
        assert np.all(inner_end <= end[at] + 1e-9)
        assert np.sum(end - begin) <= spells.end_s + 1e-9
    # Earlier and later by equal shares of what gamma makes the spells longer, to mid-gap at most.
    gaps = np.diff(np.concatenate([[-np.inf], np.ravel([spells.up_start_s, ends], "F"), [np.inf]]))
    for count, level in zip((1, 2, 4), levels, strict=False):
        each = spells.up_length_s * ((count / 8) ** -gamma - 1) / 2
        begins = np.maximum(spells.up_start_s - np.minimum(each, gaps[0::2][:-1] / 2), 0)
        over = np.minimum(ends + np.minimum(each, gaps[0::2][1:] / 2), spells.end_s)
        np.testing.assert_allclose(level[0], begins[np.isin(begins, level[0])])
        np.testing.assert_allclose(level[1], over[np.isin(over, level[1])])
        assert level[0].size == 1 + np.sum(begins[1:] > over[:-1] * (1 + 1e-12))
    # As many machines alone are there as long as gamma says, where the gaps leave room.
    longer = 8**gamma * spells.up_length_s
    one = levels[0][1] - levels[0][0]
    assert np.sum(one) <= np.sum(longer) + 1e-6
