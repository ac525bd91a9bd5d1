"""The replay of a job over spells against a walk spell by spell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners import PlanningError
from advisor.planners.spot.availability import Spells, SpotJob, SpotTrace, replay

lengths = st.lists(st.integers(1, 40_000), min_size=2, max_size=60).map(
    lambda x: x[: len(x) // 2 * 2]
)
jobs = st.builds(
    SpotJob,
    work_s=st.integers(1, 60_000).map(float),
    restart_s=st.integers(0, 400).map(float),
    checkpoint_interval_s=st.one_of(st.integers(30, 5000).map(float), st.just(np.inf)),
    checkpoint_s=st.integers(0, 150).map(float),
    warning_s=st.sampled_from([None, 30.0, 120.0]),
)


def spells_of(seconds: list[int]) -> Spells:
    edges = np.cumsum(np.asarray(seconds, float))
    return Spells(up_start_s=edges[0::2], up_length_s=edges[1::2] - edges[0::2], end_s=edges[-1])


def walked(spells: Spells, job: SpotJob, start: float) -> tuple[float, float, float]:
    """Finish, billed time and preemptions, one spell after the other (the slow twin)."""
    done = billed = 0.0
    removed = 0
    for begin, length in zip(spells.up_start_s, spells.up_length_s, strict=True):
        if begin + length <= start:
            continue
        at = max(begin, start)
        able = begin + length - at - job.restart_s
        if able >= job.attempt_s - done - 1e-9:
            rest = job.restart_s + job.attempt_s - done
            return at + rest - start, billed + rest, removed
        able = max(able, 0.0)
        if job.saves_on_notice:
            done += max(able - job.checkpoint_s, 0.0)
        elif np.isfinite(job.checkpoint_interval_s):
            stride = job.checkpoint_interval_s + job.checkpoint_s
            done += int(able / stride + 1e-9) * stride
        billed += begin + length - at
        removed += 1
    return (np.nan,) * 3


@settings(deadline=None, max_examples=300)
@given(seconds=lengths, job=jobs, share=st.lists(st.floats(0, 1.1), min_size=1, max_size=8))
def test_replay_equals_a_walk_spell_by_spell(
    seconds: list[int], job: SpotJob, share: list[float]
) -> None:
    spells = spells_of(seconds)
    starts = np.array(share) * spells.end_s
    run = replay(spells, job, starts)
    slow = np.array([walked(spells, job, t) for t in starts])
    fast = np.stack([run.finish_s, run.rented_s, run.changes], axis=1)
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-5)


def test_a_job_on_nodes_that_stay_takes_restart_and_work() -> None:
    always = Spells(up_start_s=np.zeros(1), up_length_s=np.array([1e6]), end_s=1e6)
    job = SpotJob(work_s=36_000.0, restart_s=300.0, checkpoint_interval_s=1800.0)
    run = replay(always, job, [0.0, 1234.0])
    np.testing.assert_allclose(run.finish_s, 36_300.0)
    np.testing.assert_allclose(run.changes, 0.0)


def test_a_save_on_notice_never_finishes_later_than_without() -> None:
    rng = np.random.default_rng(3)
    spells = spells_of([int(x) for x in rng.lognormal(8, 1.2, 400) + 1])
    starts = np.linspace(0, spells.end_s / 2, 50)
    plain = SpotJob(work_s=20_000.0, restart_s=60.0, checkpoint_interval_s=1800.0, checkpoint_s=20)
    noticed = SpotJob(
        work_s=20_000.0, restart_s=60.0, checkpoint_interval_s=1800.0, checkpoint_s=20,
        warning_s=120.0,
    )  # fmt: skip
    assert np.all(
        replay(spells, noticed, starts).finish_s <= replay(spells, plain, starts).finish_s
    )
    # A save longer than the notice is no save.
    late = SpotJob(
        work_s=20_000.0, restart_s=60.0, checkpoint_interval_s=1800.0, checkpoint_s=20,
        warning_s=10.0,
    )  # fmt: skip
    np.testing.assert_array_equal(
        replay(spells, late, starts).finish_s, replay(spells, plain, starts).finish_s
    )


@given(seconds=lengths, times=st.integers(1, 4), up=st.floats(0.1, 10), down=st.floats(0.1, 10))
def test_tiling_and_scaling_keep_what_they_should(
    seconds: list[int], times: int, up: float, down: float
) -> None:
    spells = spells_of(seconds)
    assert spells.tiled(times).availability == pytest.approx(spells.availability)
    scaled = spells.scaled(up=up, down=down)
    np.testing.assert_allclose(scaled.up_length_s, spells.up_length_s * up, rtol=1e-6)
    odds = spells.availability / (1 - spells.availability)
    assert scaled.availability == pytest.approx(odds * up / (odds * up + down))


def trace(times: list[float], counts: list[int], end: float = 100.0) -> SpotTrace:
    return SpotTrace(
        name="t", nodes=4, start_s=np.array(times), available=np.array(counts), end_s=end
    )


def test_spells_of_a_trace_are_the_times_with_enough_nodes() -> None:
    counts = trace([0, 10, 30, 40, 60], [4, 2, 4, 0, 3])
    spells = counts.spells(3)
    np.testing.assert_array_equal(spells.up_start_s, [0, 30, 60])
    np.testing.assert_array_equal(spells.up_length_s, [10, 10, 40])
    assert counts.spells(1).up_length_s.tolist() == [40, 40]
    half = counts.between(35.0, 100.0)
    assert half.spells(3).up_start_s.tolist() == [0, 25]
    assert half.end_s == 65.0


@pytest.mark.parametrize(
    ("times", "counts"), [([0, 20, 10], [1, 2, 3]), ([0, 10, 10], [1, 2, 3]), ([0, 10], [0, 0])]
)
def test_a_trace_out_of_order_or_without_nodes_is_refused(
    times: list[float], counts: list[int]
) -> None:
    with pytest.raises(PlanningError, match="trace 't'") as refused:
        trace(times, counts)
    assert refused.value.exit_code == 2
