"""Choosing nodes by what will be free: a slow twin, all choices, and forecasts of known series."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from advisor.planners import PlanningError
from advisor.planners.availability.forecast import futures, learn
from advisor.planners.availability.sas import (
    LEAST_SHARE,
    choose,
    completion_slots,
    groups,
    placement,
)

share = st.floats(0.0, 1.0).map(lambda x: round(x, 3))
possible = arrays.arrays(float, (3, 8, 5), elements=share)
work = st.floats(0.1, 12.0)
BIT = 1 + 1e-9


def played(shares: np.ndarray, work: float) -> float:
    """Return the slots of one future by going through them [slow]."""
    left, progress = work, shares.min(axis=1)
    for slot, step in enumerate(progress):
        if left <= step:
            return slot + (left / step if step else 0.0)
        left -= step
    return len(progress) + left / max(float(progress.mean()), LEAST_SHARE)


@given(possible, work)
def test_a_job_is_played_slot_by_slot(shares: np.ndarray, length: float) -> None:
    found = completion_slots(shares, [0, 2, 3], length)
    assert found == pytest.approx([played(one[:, [0, 2, 3]], length) for one in shares], rel=1e-6)


@given(possible, work)
def test_another_worker_never_ends_the_job_sooner(shares: np.ndarray, length: float) -> None:
    few = completion_slots(shares, [0, 1], length)
    assert np.all(completion_slots(shares, [0, 1, 2], length) * BIT >= few)
    assert np.all(completion_slots(shares, [0, 1], 2 * length) >= few)
    assert np.all(few * BIT >= length)


@given(possible, work, st.integers(1, 5))
@settings(max_examples=40)
def test_no_swap_betters_the_choice(shares: np.ndarray, length: float, workers: int) -> None:
    chosen = choose(shares, workers=workers, work=length)
    assert len(set(chosen.nodes)) == workers
    assert chosen.slots <= chosen.p95_slots * 3 * BIT
    assert 0.0 <= chosen.straggler_loss < 1.0
    for out, other in itertools.product(chosen.nodes, set(range(5)) - set(chosen.nodes)):
        swapped = [*(set(chosen.nodes) - {out}), other]
        assert placement(shares, swapped, length).slots * BIT >= chosen.slots


def test_the_choice_is_near_the_best_of_all() -> None:
    draw = np.random.default_rng(4)
    ratios = []
    for _ in range(30):
        shares = draw.beta(2, 2, size=(20, 12, 6))
        every = [placement(shares, c, 4.0).slots for c in itertools.combinations(range(6), 3)]
        ratios.append(choose(shares, workers=3, work=4.0).slots / min(every))
    assert np.mean(ratios) < 1.005
    assert max(ratios) < 1.05


@given(possible, st.integers(1, 5))
def test_groups_part_the_nodes(shares: np.ndarray, count: int) -> None:
    found = groups(shares, count)
    assert len(found) == count
    assert sorted(k for one in found for k in one) == list(range(5))


def test_nodes_alike_are_grouped() -> None:
    shares = np.array([0.9, 0.2, 0.88, 0.22, 0.91])[None, None, :].repeat(6, axis=1)
    assert sorted(groups(shares, 2)) == [(0, 2, 4), (1, 3)]


def test_a_day_that_repeats_is_forecast_exactly() -> None:
    day = np.random.default_rng(0).uniform(0.1, 0.9, size=(24, 3))
    history = learn(np.tile(day, (5, 1)), day_slots=24)
    assert history.forecast(day[7], 7, 24) == pytest.approx(np.roll(day, -8, axis=0))
    drawn = futures(history, day[7], slot=7, horizon=24, draws=5, seed=1)
    assert drawn == pytest.approx(np.broadcast_to(np.roll(day, -8, axis=0), (5, 24, 3)))


def test_a_departure_fades_as_it_did() -> None:
    draw = np.random.default_rng(2)
    apart = np.zeros(6000)
    for t in range(1, apart.size):
        apart[t] = 0.8 * apart[t - 1] + 0.05 * draw.normal()
    history = learn(np.clip(0.5 + apart, 0, 1)[:, None], day_slots=4)
    assert history.persistence[0] == pytest.approx(0.8, abs=0.03)
    ahead = history.forecast([0.9], 0, 20)[:, 0] - 0.5
    assert ahead[0] == pytest.approx(0.8 * 0.4, abs=0.03)
    assert abs(ahead[-1]) < 0.03


def test_futures_hold_what_nodes_do_together() -> None:
    draw = np.random.default_rng(3)
    one = draw.uniform(0, 1, size=2000)
    history = learn(np.stack([one, one], axis=1), day_slots=10)
    drawn = futures(history, [0.5, 0.5], slot=0, horizon=6, draws=50, seed=0)
    assert drawn[:, :, 0] == pytest.approx(drawn[:, :, 1])
    assert drawn.min() >= 0.0
    assert drawn.max() <= 1.0


def test_records_and_jobs_without_sense_are_refused() -> None:
    good = learn(np.full((48, 2), 0.5), day_slots=24)
    shares = np.full((1, 2, 3), 0.5)
    for call in (
        lambda: learn(np.full((47, 2), 0.5), day_slots=24),
        lambda: learn(np.full((48, 2), 1.5), day_slots=24),
        lambda: learn(np.full((48, 2), np.nan), day_slots=24),
        lambda: futures(good, [0.5, 0.5], slot=0, horizon=48, draws=1, seed=0),
        lambda: choose(shares, workers=4, work=1.0),
        lambda: choose(shares, workers=1, work=0.0),
    ):
        with pytest.raises(PlanningError):
            call()
