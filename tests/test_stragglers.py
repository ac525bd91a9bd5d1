"""Unlike ranks: what is measured of drawn ones, what mends them, and the one estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from advisor import data
from advisor.errors import RunError
from advisor.estimate.case import constants
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.jobs.load import read_job, write_job
from advisor.lab import data as measurements
from advisor.planners.core.errors import PlanningError
from advisor.planners.links.gradients import expected_maximum
from advisor.planners.systems.rank_spread import (
    RankSpread,
    measured_spread,
    own_times,
    per_doubling,
)
from advisor.planners.systems.similar_samples import representatives, selection_s
from advisor.planners.systems.stragglers import (
    UnlikeRanks,
    asynchronous,
    backed_up,
    by_forecast,
    dropped,
    forecast,
    kept_batches,
    named_ahead,
    rebalanced,
    sent_less,
    unlike_ranks,
)

Array = NDArray[np.float64]


def drawn(
    staying: float,
    passing: float,
    rho: float,
    *,
    ranks: int = 16,
    steps: int = 3000,
    seed: int = 0,
) -> Array:
    """UnlikeRanks of known spread: their own level, and a passing part that persists by rho."""
    rng = np.random.default_rng(seed)
    level = staying * rng.normal(size=ranks)
    # The level's own spread is that of a draw: make it what is asked for.
    level *= staying / max(float(np.std(level, ddof=1)), 1e-12)
    noise = rng.normal(size=(steps, ranks))
    for s in range(1, steps):
        noise[s] = rho * noise[s - 1] + np.sqrt(1 - rho**2) * noise[s]
    found: Array = 1.0 + level - level.mean() + passing * noise
    return found


@pytest.mark.parametrize("staying", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("passing", [0.02, 0.1])
@pytest.mark.parametrize("rho", [0.0, 0.7])
def test_the_spread_of_drawn_ranks_is_found_again(
    staying: float, passing: float, rho: float
) -> None:
    found = measured_spread(drawn(staying, passing, rho))
    assert found.passing_fraction == pytest.approx(passing, rel=0.08)
    assert found.staying_fraction == pytest.approx(staying, abs=0.006)
    assert found.lag1 == pytest.approx(rho, abs=0.06)


def sd_fraction(of: RankSpread) -> float:
    return math.hypot(of.staying_fraction, of.passing_fraction)


def test_a_step_takes_the_expected_maximum_of_the_measured_spread() -> None:
    times = np.concatenate([drawn(0.0, 0.08, 0.6, ranks=8, seed=seed) for seed in range(5)])
    found = measured_spread(times)
    said = 1 + sd_fraction(found) * float(expected_maximum(8))
    assert float((times / times.mean()).max(axis=1).mean()) == pytest.approx(said, rel=0.01)


@given(st.floats(1e-4, 1e4))
def test_a_spread_has_no_unit(scale: float) -> None:
    times = drawn(0.1, 0.05, 0.3, ranks=4, steps=100)
    one, other = measured_spread(times), measured_spread(scale * times)
    assert sd_fraction(other) == pytest.approx(sd_fraction(one), rel=1e-6)


def test_more_ranks_leave_less_to_the_prior() -> None:
    def joined(ranks: int) -> float:
        return RankSpread(
            staying_fraction=0.2, passing_fraction=0.0, lag1=0.0, ranks=ranks, steps=100
        ).with_prior(0.03)

    found = [joined(ranks) for ranks in (2, 4, 8, 1000)]
    assert found == sorted(found)
    assert 0.03 < found[0] < found[-1]
    assert found[-1] == pytest.approx(0.2, rel=0.01)


def test_too_little_is_refused() -> None:
    for shape in ((29, 2), (100, 1), (100,)):
        with pytest.raises(PlanningError, match="needs two"):
            measured_spread(np.ones(shape))
    with pytest.raises(PlanningError, match="never computes"):
        measured_spread(np.zeros((100, 2)))


def test_own_times_are_joined_at_their_ends() -> None:
    found = own_times({0: [9, 5, 5], 1: [5, 5]}, {0: [1, 2], 1: [0, 0, 0]})
    assert found.tolist() == [[4, 5], [3, 5]]
    held_back = own_times({0: [6, 5], 1: [2, 5]}, {0: [4, 0], 1: [0, 0]}, is_wall=True)
    assert held_back.tolist() == [[2, 6], [5, 5]]
    assert own_times({}, {}).shape == (0, 0)
    assert own_times({0: [1.0], 1: [1.0]}, {0: [0.5]}).shape == (0, 2)


# --- What was published ---------------------------------------------------------------------


def test_the_published_spreads_are_what_the_issue_says() -> None:
    table = measurements.STRAGGLERS.read("spread_by_job", data.root("datasets"))
    assert (len(table), int(table["iterations"].sum())) == (80, 66_022)
    weight = table["iterations"] / table["iterations"].sum()
    ordered = table.assign(weight=weight).sort_values("spread_median")
    # Medians by job, weighted: near the median over all iterations, 8.6 %.
    middle = ordered[ordered["weight"].cumsum() >= 0.5]["spread_median"].iloc[0]
    assert middle == pytest.approx(0.086, abs=0.01)
    assert table["spread_lag1"].median() == pytest.approx(0.67, abs=0.07)


def workers(job: int) -> Array:
    table = measurements.STRAGGLERS.read("workers", data.root("datasets"))
    its = table[table["job"] == job]
    wide = its.pivot_table(index="iteration", columns="worker", values="batch_time_fraction")
    found: Array = wide.dropna().to_numpy()
    return found


def test_published_workers_stay_as_unlike_as_they_are() -> None:
    """Their persistence in job 1: .54 to .77 by worker."""
    assert measured_spread(workers(1)).lag1 == pytest.approx(0.68, abs=0.1)
    # Half of the jobs' spread stays with the worker: what rebalancing can take away.
    stays = [measured_spread(workers(job)) for job in (1, 2, 3, 4)]
    assert all(one.staying_fraction > 0.5 * one.passing_fraction for one in stays)


@pytest.mark.parametrize("job", [1, 2, 3, 4])
def test_a_published_worker_is_as_slow_as_it_just_was(job: int) -> None:
    """The last step says more of the next one than the mean of all does: stragglers persist."""
    times = workers(job)
    assert np.abs(np.diff(times, axis=0)).mean() < 0.7 * np.abs(times - times.mean(axis=0)).mean()


# --- Mending -----------------------------------------------------------------------------------

some_ranks = st.lists(st.floats(0.1, 3.0), min_size=2, max_size=8)


def ranks(levels: list[float], *, batch: int = 512, exchange: float = 0.0) -> UnlikeRanks:
    return UnlikeRanks(
        own_s=np.tile(np.array(levels), (10, 1)),
        batches=np.full(len(levels), float(batch)),
        exchange_s=exchange,
    )


@given(some_ranks, st.floats(0.0, 1.0))
def test_rebalancing_keeps_all_samples_and_ends_together(
    levels: list[float], exchange: float
) -> None:
    found = rebalanced(now := ranks(levels, exchange=exchange))
    assert found.batches.sum() == now.batches.sum()
    assert found.samples_fraction == 1.0
    harmonic = len(levels) / sum(1 / one for one in levels)
    assert found.step_s == pytest.approx(harmonic + exchange, rel=0.05)
    assert found.gain >= -0.05  # whole samples


@given(some_ranks, st.floats(0.0, 0.5))
def test_dropping_gains_at_most_the_median_over_the_slowest(
    levels: list[float], selection: float
) -> None:
    now = ranks(levels)
    found = dropped(now, choosing_s=selection)
    saved = now.step_s - found.step_s
    bound = 1.1 * np.median(levels) / max(levels)  # those within a tenth are left alone
    assert saved / now.step_s <= 1 - min(1.0, np.median(levels) / max(levels)) + 0.01
    assert found.samples_fraction <= 1.0
    assert np.all(found.batches <= now.batches)
    if bound >= 1:
        assert found.step_s == pytest.approx(now.step_s)


@given(some_ranks)
def test_dropping_pays_where_selection_is_below_what_is_saved(levels: list[float]) -> None:
    now = ranks(levels)
    saved = now.step_s - dropped(now, choosing_s=0.0).step_s
    if saved > 1e-6:
        # Of the slowest: others that drop less may end later than it when choosing costs nothing.
        left = kept_batches(now)[int(np.argmax(levels))] / 512
        assert dropped(now, choosing_s=0.99 * saved).step_s < now.step_s
        longer = 1.01 * max(levels) * (1 - left)
        assert dropped(now, choosing_s=longer).step_s > now.step_s
    else:
        assert dropped(now, choosing_s=0.01).step_s >= now.step_s


@given(some_ranks)
def test_waiting_for_nobody_is_at_least_as_fast_and_equal_for_equal_ranks(
    levels: list[float],
) -> None:
    assert asynchronous(ranks(levels)).gain >= -1e-9
    assert asynchronous(ranks([levels[0]] * 4)).gain == pytest.approx(0.0, abs=1e-9)


@given(some_ranks)
def test_backups_shorten_the_step_and_lose_samples(levels: list[float]) -> None:
    now = ranks(levels)
    found = [backed_up(now, backups) for backups in range(len(levels))]
    assert found[0].gain == pytest.approx(0.0)
    steps = [one.step_s for one in found]
    assert steps == sorted(steps, reverse=True)
    assert [one.samples_fraction for one in found] == pytest.approx(
        [1 - i / len(levels) for i in range(len(levels))]
    )
    # It pays exactly where the slowest costs more than the samples lost.
    for one in found:
        assert (one.gain > 0) == (now.step_s / one.step_s * one.samples_fraction > 1)


def test_a_forecast_knows_what_was_and_nothing_else() -> None:
    own = drawn(0.1, 0.2, 0.7, steps=200)
    found = forecast(own)
    later = own.copy()
    later[100:] *= 3.0
    assert np.array_equal(forecast(later)[:101], found[:101])
    # Of what persists the last steps say more than the mean of all.
    mean = np.array([own[:s].mean(axis=0) for s in range(1, 200)])
    assert np.abs(found[1:] - own[1:]).mean() < 0.9 * np.abs(mean - own[1:]).mean()
    assert np.allclose(forecast(np.ones((50, 3))), 1.0)


def test_ranks_that_are_slow_for_a_while_are_named_ahead_and_followed() -> None:
    own = np.ones((400, 4))
    for begin in range(0, 400, 50):  # each of four is slow for 50 steps, in turns
        own[begin : begin + 50, begin // 50 % 4] = 2.0
    turns = UnlikeRanks(own_s=own, batches=np.full(4, 120.0))
    steps, ahead, habit = named_ahead(turns)
    assert steps == 399
    assert ahead > 0.95
    assert habit == pytest.approx(0.25, abs=0.01)
    # 3.5 ranks' worth: 4 / 3.5 of a step with the right batches; a fixed share gains nothing.
    assert by_forecast(turns).step_s == pytest.approx(8 / 7, rel=0.05)
    assert rebalanced(turns).gain == pytest.approx(0.0, abs=0.02)


@given(some_ranks)
def test_following_ranks_that_stay_gains_what_fixed_batches_gain(levels: list[float]) -> None:
    now = ranks(levels)
    assert by_forecast(now).step_s == pytest.approx(rebalanced(now).step_s, rel=0.05)


@given(some_ranks, st.integers(1, 4))
def test_sending_less_is_waiting_less(levels: list[float], often: int) -> None:
    now = ranks(sorted(levels), exchange=0.1)
    assert sent_less(now, np.ones(len(levels), int)).gain == pytest.approx(0.0)
    every = np.ones(len(levels), int)
    every[-1] = often
    found = sent_less(now, every)
    # Nobody waits for longer, and no round is shorter than what is computed in it.
    assert found.step_s <= now.step_s + 1e-9
    assert found.step_s >= sorted(levels)[-2] + 0.1 - 1e-9
    with pytest.raises(ValueError, match="every step"):
        sent_less(now, every + 1)


def test_representatives_leave_one_of_each_group() -> None:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(12, 30)) * 10
    samples = np.concatenate([groups + 0.01 * rng.normal(size=groups.shape) for _ in range(4)])
    kept = representatives(samples, 12)
    assert sorted(kept % 12) == list(range(12))
    assert representatives(samples, 48).tolist() == list(range(48))
    # No two that are kept are nearer to each other than the nearest two of the batch.
    apart = np.linalg.norm(samples[kept][:, None] - samples[kept][None], axis=2)
    assert apart[~np.eye(12, dtype=bool)].min() > 1.0
    with pytest.raises(ValueError, match="0 of 48"):
        representatives(samples, 0)


@pytest.mark.parametrize("size", [3, 700])
def test_one_of_the_nearest_two_goes(size: int) -> None:
    samples = np.random.default_rng(size).normal(size=(25, size))
    left = list(range(25))
    while len(left) > 1:
        apart = np.linalg.norm(samples[left][:, None] - samples[left][None], axis=2)
        np.fill_diagonal(apart, np.inf)
        nearest = {left[at] for at in np.unravel_index(apart.argmin(), apart.shape)}
        kept = representatives(samples, len(left) - 1).tolist()
        (gone,) = set(left) - set(kept)
        assert gone in nearest
        left = kept


def test_unlike_ranks_survive_odd_steps_and_refuse_a_rank_that_never_computes() -> None:
    whole = {0: [0.2] * 40, 1: [0.2] * 40}
    waits = {0: [0.1] * 39 + [0.25], 1: [0.0] * 40}
    found = unlike_ranks(whole, waits, batch=8)
    assert found.own_s.min() == pytest.approx(0.001)
    assert found.step_s == pytest.approx(0.2)
    with pytest.raises(PlanningError, match="hardly ever"):
        unlike_ranks(whole, {0: [0.2] * 40, 1: [0.0] * 40}, batch=8)
    with pytest.raises(PlanningError, match="need two"):
        unlike_ranks({0: whole[0]}, {0: waits[0]}, batch=8)


# --- The one estimate -----------------------------------------------------------------------


def test_a_measured_spread_takes_the_place_of_the_fitted_one(make_job: Callable[..., Job]) -> None:
    job, predictor = make_job(), Predictor()
    alike = RankSpread(staying_fraction=0.0, passing_fraction=0.0, lag1=0.0, ranks=64, steps=500)
    unlike = replace(alike, passing_fraction=0.2)
    steps = [
        predictor.predict(replace(job, spread=spread), "aws:g5.xlarge", count=4).step_time_s.value
        for spread in (alike, None, unlike)
    ]
    assert steps == sorted(steps)
    assert steps[2] > 1.02 * steps[1]
    one = [
        predictor.predict(replace(job, spread=spread), "aws:g5.xlarge").step_time_s.value
        for spread in (alike, unlike)
    ]
    assert one[0] == one[1]


def test_a_job_file_keeps_the_spread_and_refuses_an_impossible_one(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    spread = measured_spread(drawn(0.1, 0.05, 0.5, ranks=4, steps=50))
    write_job(replace(make_job(), spread=spread), tmp_path / "job.json")
    assert read_job(tmp_path / "job.json").spread == spread
    text = (tmp_path / "job.json").read_text().replace('"ranks": 4', '"ranks": 1')
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(RunError, match="impossible spread"):
        read_job(tmp_path / "job.json")


def test_both_laws_take_the_same_spread() -> None:
    spread = RankSpread(staying_fraction=0.1, passing_fraction=0.1, lag1=0.5, ranks=9, steps=500)
    shipped = constants()
    found = shipped.with_spread(spread)
    sd = spread.with_prior(shipped.scaling.straggler_sd_fraction)
    assert found.scaling.straggler_sd_fraction == sd
    assert found.layout.parameters.straggler == pytest.approx(per_doubling(sd))
    assert shipped.with_spread(None) is shipped


def test_choosing_samples_compares_every_pair_of_all_numbers() -> None:
    """Where memory is free: a multiplication and an addition a number of each two samples."""
    free: dict[str, float] = {"flop_per_s": 1e9, "memory_bytes_per_s": 1e30}
    for samples, numbers in ((16, 1000), (128, 50_000)):
        pairs_s = selection_s(samples, samples, 4.0 * numbers, **free)
        once_s = samples**2 * numbers / 1e9  # of a symmetric table; else of every ordered pair
        assert once_s <= pairs_s <= 2.002 * once_s
        # Memory alone: the samples are moved thrice, and more with every pass over the distances.
        slow = free | {"flop_per_s": 1e30, "memory_bytes_per_s": 1e9}
        assert selection_s(samples, samples, 4.0 * numbers, **slow) >= 12 * samples * numbers / 1e9
        assert selection_s(samples, samples / 2, 4.0 * numbers, **free) > pairs_s
