"""The forecast on records whose future is known, and the fall-back's guarantee."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners import PlanningError
from advisor.planners.spot.availability import Spells, SpotJob, SpotTrace, replay
from advisor.planners.spot.forecast import (
    ForecastParameters,
    Library,
    finish_runner,
    forecast_of,
    library,
    state_at,
)
from advisor.planners.spot.last_safe_moment import replay_with_fallback

HOUR = 3600.0
JOB = SpotJob(work_s=4 * HOUR, restart_s=300.0, checkpoint_interval_s=1800.0)


def drawn(seed: int, spells: int = 400) -> Spells:
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal([7.5, 8.5], [1.0, 1.2], (spells, 2))).ravel()
    edges = np.cumsum(lengths)
    return Spells(up_start_s=edges[0::2], up_length_s=lengths[1::2], end_s=float(edges[-1]))


def test_intervals_cover_what_they_say_where_the_future_is_like_the_past() -> None:
    past, future = drawn(1), drawn(2)
    parameters = ForecastParameters(drift=0.0, pooled_fraction=0.0, starts=1000)
    own = library(
        past, finish_runner(JOB), JOB.attempt_s, JOB.kept_s(past.up_length_s), parameters
    )
    start = np.linspace(0, future.end_s * 0.9, 1500)
    actual = replay(future, JOB, start).finish_s
    low, middle, high = forecast_of(own, [], *state_at(future, start), parameters).quantiles.T
    # 400 spells and starts that overlap: three standard errors of about 2 %.
    assert np.mean((actual >= low) & (actual <= high)) == pytest.approx(0.8, abs=0.06)
    assert np.mean(actual <= middle) == pytest.approx(0.5, abs=0.07)


def test_drift_widens_the_interval() -> None:
    past = drawn(3)
    kept = JOB.kept_s(past.up_length_s)
    widths = []
    for drift in (0.0, 1.0):
        parameters = ForecastParameters(drift=drift)
        own = library(past, finish_runner(JOB), JOB.attempt_s, kept, parameters)
        low, _, high = forecast_of(own, [], [True], [600.0], parameters).quantiles[0]
        widths.append(np.log(high / low))
    assert widths[1] > widths[0]


def test_levels_stand_closer_to_the_median_only_where_other_zones_take_part() -> None:
    one = Library(
        outcome=np.arange(1.0, 1002.0), is_up=np.ones(1001, bool), age_s=np.full(1001, 60.0)
    )
    parameters = ForecastParameters(level_scale=0.5)
    alone = forecast_of(one, [], [True], [60.0], parameters).quantiles[0]
    pooled = forecast_of(one, [one], [True], [60.0], parameters).quantiles[0]
    np.testing.assert_allclose(alone, [101, 501, 901], atol=1)
    np.testing.assert_allclose(pooled, [301, 501, 701], atol=1)


def test_only_starts_in_the_same_state_count() -> None:
    own = Library(
        outcome=np.array([1.0, 2.0, 100.0, 200.0]),
        is_up=np.array([True, True, False, False]),
        age_s=np.full(4, 60.0),
    )
    parameters = ForecastParameters()
    table = forecast_of(own, [], [True, False], [60.0, 60.0], parameters, levels=(0.5, 1.0))
    np.testing.assert_array_equal(table.quantiles, [[1.0, 2.0], [100.0, 200.0]])
    np.testing.assert_allclose(table.mean, [1.5, 150.0])


def test_a_replay_that_never_ends_makes_the_mean_infinite_not_the_median() -> None:
    own = Library(
        outcome=np.array([1.0, 2.0, np.inf]), is_up=np.ones(3, bool), age_s=np.full(3, 60.0)
    )
    table = forecast_of(own, [], [True], [60.0], ForecastParameters(), levels=(0.5,))
    assert table.quantiles[0, 0] == 2.0
    assert np.isinf(table.mean[0])


def test_state_and_age_of_a_record() -> None:
    spells = Spells(
        up_start_s=np.array([10.0, 50.0]), up_length_s=np.array([20.0, 10.0]), end_s=100.0
    )
    is_up, age = state_at(spells, np.array([5.0, 10.0, 29.0, 30.0, 55.0, 99.0]))
    assert is_up.tolist() == [False, True, True, False, True, False]
    # At 5 s the last end is that of the ring: 60 s of the round before.
    np.testing.assert_allclose(age, [45, 0, 19, 0, 5, 39])


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 50),
    slack=st.floats(0.0, 5.0),
    save=st.floats(0, 300),
    margin=st.floats(0, 1800),
)
def test_fallback_always_meets_a_deadline_that_can_be_met(
    seed: int, slack: float, save: float, margin: float
) -> None:
    spells = drawn(seed, 60)
    job = SpotJob(
        work_s=4 * HOUR, restart_s=300.0, checkpoint_interval_s=1800.0, checkpoint_s=save
    )
    deadline = (job.wall_s + margin) * (1 + slack) + 1e-6
    run = replay_with_fallback(
        spells, job, np.linspace(0, spells.end_s, 40), deadline_s=deadline, margin_s=margin
    )
    assert np.all(run.finish_s <= deadline + 1e-6)
    # All work is paid once somewhere.
    assert np.all(run.spot_s + run.on_demand_s >= job.work_s - 1e-6)
    # And nothing is rented after the end.
    assert np.all(run.spot_s + run.on_demand_s <= run.finish_s + 1e-6)


def test_with_time_to_spare_fallback_equals_the_plain_replay() -> None:
    spells = drawn(5)
    start = np.linspace(0, spells.end_s / 4, 30)
    plain = replay(spells, JOB, start)
    run = replay_with_fallback(spells, JOB, start, deadline_s=1e7)
    np.testing.assert_allclose(run.finish_s, plain.finish_s)
    np.testing.assert_allclose(run.spot_s, plain.rented_s)
    assert np.all(run.on_demand_s == 0)


def test_without_time_to_spare_everything_is_on_demand() -> None:
    spells = drawn(6)
    run = replay_with_fallback(spells, JOB, [0.0], deadline_s=JOB.wall_s)
    assert run.on_demand_s[0] == pytest.approx(JOB.wall_s)
    assert run.cost_usd(0.3, 1.0)[0] == pytest.approx(JOB.wall_s / HOUR)


def test_a_longer_deadline_never_costs_more_on_average() -> None:
    spells = drawn(7)
    start = np.linspace(0, spells.end_s / 2, 200)
    bills = [
        replay_with_fallback(spells, JOB, start, deadline_s=hours * HOUR).cost_usd(0.3, 1.0).mean()
        for hours in (4.5, 6, 9, 15, 30)
    ]
    assert np.all(np.diff(bills) <= 0)


@pytest.mark.parametrize(("deadline", "code"), [(-60.0, 2), (0.0, 2), (3600.0, 3)])
def test_a_deadline_in_the_past_or_too_short_is_refused(deadline: float, code: int) -> None:
    with pytest.raises(PlanningError, match="deadline") as refused:
        replay_with_fallback(drawn(1, 10), JOB, [0.0], deadline_s=deadline)
    assert refused.value.exit_code == code


def test_what_is_older_than_a_fortnight_is_forgotten() -> None:
    old = SpotTrace(
        name="zone", nodes=1, start_s=np.array([0.0, 86400.0]), available=np.array([0, 1]),
        end_s=10 * 86400.0,
    )  # fmt: skip
    changed = SpotTrace(
        name="zone", nodes=1, start_s=np.array([0.0, 86400.0 * 2, 86400.0 * 3]),
        available=np.array([1, 0, 1]), end_s=10 * 86400.0,
    )  # fmt: skip
    for days in (3.0, 6.9):
        assert old.recent(days, 1).spells(1).availability == 1.0
        assert changed.recent(days, 1).spells(1).availability == 1.0
    assert changed.recent(8.0, 1).spells(1).availability == pytest.approx(7 / 8)
    assert changed.recent(100.0, 1).spells(1).availability == pytest.approx(9 / 10)


def test_a_fortnight_without_nodes_falls_back_on_the_whole_record() -> None:
    gone = SpotTrace(
        name="zone", nodes=2, start_s=np.array([0.0, 86400.0]), available=np.array([2, 1]),
        end_s=30 * 86400.0,
    )  # fmt: skip
    assert gone.recent(14.0, 2) is gone
    assert gone.recent(14.0, 1).end_s == 14 * 86400.0
