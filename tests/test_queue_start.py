"""Laws of when a job starts that is submitted now, and what ``simulate queue`` says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.errors import PlanningError
from advisor.planners.queueing.engine import Policy, SharedCluster
from advisor.planners.queueing.start_delays import OpenJobs, drawn_s, start_delays_s
from advisor.records.importers.job_tables import read_cluster_trace
from advisor.simulate.queue import OwnCluster, start_now

FOUR = SharedCluster(nodes=1, devices_per_node=4)


def open_jobs(*pairs: tuple[int, float]) -> OpenJobs:
    return OpenJobs(
        devices=np.array([d for d, _ in pairs], np.int64),
        elapsed_s=np.array([e for _, e in pairs]),
    )


def test_a_job_that_fits_beside_those_that_run_starts_at_once() -> None:
    delays = start_delays_s(np.array([50.0]), open_jobs((2, 10.0)), FOUR, devices=2)
    assert delays.tolist() == [0.0] * 200


def test_a_job_waits_for_what_others_still_need() -> None:
    """Every job takes 100 s: the one that ran for 30 s leaves after 70, the waiting one after."""
    ended = np.full(50, 100.0)
    now = open_jobs((4, 30.0), (4, np.nan))
    # The running job is among those at risk, so a draw in 50 may lie beyond what has been seen.
    assert np.median(start_delays_s(ended, now, FOUR, devices=1)) == pytest.approx(170.0)
    assert np.median(start_delays_s(ended, now, FOUR, "fit-first", devices=1)) == pytest.approx(
        170.0
    )


def test_memoryless_durations_leave_as_much_as_ever() -> None:
    rng = np.random.default_rng(0)
    ended = rng.exponential(1000.0, 20_000)
    since = np.array([0.0, 500.0, 2000.0])
    left = drawn_s(ended, np.zeros(0), since, 20_000, seed=1) - since
    # 4,000 of the durations are longer than 2,000 s less a third: 3 % of noise.
    assert left.mean(axis=0) == pytest.approx(np.full(3, 1000.0), rel=0.06)


def test_jobs_that_still_run_lengthen_what_is_drawn() -> None:
    ended = np.full(100, 10.0)
    alone = drawn_s(ended, np.zeros(0), np.zeros(1), 4000, seed=0)
    beside = drawn_s(ended, np.full(100, 50.0), np.zeros(1), 4000, seed=0)
    assert np.mean(alone > 10.0) == 0.0
    assert np.mean(beside > 10.0) == pytest.approx(0.5, abs=0.03)


@given(
    ended=st.lists(st.floats(1.0, 1e5), min_size=1, max_size=30),
    running=st.lists(st.floats(0.0, 1e5), max_size=4),
    waiting=st.integers(0, 5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30)
def test_one_more_job_in_front_makes_nobody_start_earlier(
    ended: list[float], running: list[float], waiting: int, seed: int
) -> None:
    pairs = [(1, e) for e in running] + [(4, float("nan"))] * waiting
    shorter, longer = (
        np.median(
            start_delays_s(
                np.array(ended), open_jobs(*pairs, *more), FOUR, devices=4, draws=60, seed=seed
            )
        )
        for more in (pairs[:0], [(4, float("nan"))] * 3)
    )
    assert 0.0 <= shorter <= longer


@pytest.mark.parametrize(("policy", "devices"), [("las-2d", 1), ("fifo", 5)])
def test_what_cannot_be_said_is_refused(policy: Policy, devices: int) -> None:
    with pytest.raises(PlanningError):
        start_delays_s(np.array([1.0]), open_jobs((1, 1.0)), FOUR, policy, devices=devices)


SACCT = """JobID|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES|State
1|2026-11-01T08:00:00|2026-11-01T08:00:00|2026-11-01T12:00:00|14400|gres/gpu=4|gres/gpu=4|COMPLETED
2|2026-11-01T09:00:00|2026-11-01T12:00:00|2026-11-01T16:00:00|14400|gres/gpu=4|gres/gpu=4|COMPLETED
3|2026-11-01T15:00:00|2026-11-01T16:00:00|Unknown|12600|gres/gpu=4|gres/gpu=4|RUNNING
4|2026-11-01T16:00:00|Unknown|Unknown|0||gres/gpu=4|PENDING
"""


def test_an_export_with_open_jobs_is_answered_for_now(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    trace = read_cluster_trace(path)
    assert trace.jobs.devices.tolist() == [4, 4]
    assert trace.left_out == {"that have not ended": 2}
    assert trace.open_jobs.is_running.tolist() == [True, False]
    own = OwnCluster(trace=trace, cluster=FOUR, insertions=5)
    found = start_now(own, devices=1)
    assert found is not None
    assert (found["running"], found["waiting"]) == (1, 1)
    # Jobs take four hours: half an hour is left of one, and four hours of the other.
    assert found["delay_h"]["p50"] == pytest.approx(4.5)
    assert found["within_hour_probability"] < 0.2
    closed = "".join(line for line in SACCT.splitlines(keepends=True) if "ING" not in line)
    path.write_text(closed)
    own = OwnCluster(trace=read_cluster_trace(path), cluster=FOUR, insertions=5)
    assert start_now(own, devices=1) is None
