"""The Pareto front against its definition, and the law of spreading out."""

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.estimate import Completion
from advisor.rank.front import Front, apart, bar_of, near_any, pareto_front, spread_out
from advisor.rank.rows import Rows, _worth_replaying, kept_factor

POINTS = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0, np.nan]), st.sampled_from([1.0, 2.0, 4.0])),
    max_size=30,
)


def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


@given(POINTS)
def test_front_is_every_point_that_no_other_beats(points: list[tuple[float, float]]) -> None:
    front = pareto_front([p[0] for p in points], [p[1] for p in points])
    real = {p for p in points if not np.isnan(p).any()}
    assert {points[i] for i in front} == {p for p in real if not any(beats(q, p) for q in real)}
    assert len({points[i] for i in front}) == len(front)


@given(POINTS)
def test_front_is_fastest_first_and_falls_in_cost(points: list[tuple[float, float]]) -> None:
    front = pareto_front([p[0] for p in points], [p[1] for p in points])
    times, costs = [points[i][0] for i in front], [points[i][1] for i in front]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)


@given(st.integers(1, 12), st.integers(1, 40))
def test_spreading_out_keeps_both_ends_and_the_asked_size(size: int, points: int) -> None:
    time = np.geomspace(1, 100, points)
    chosen = spread_out(time, 1 / time, size)
    assert len(chosen) == min(size, points)
    assert chosen[0] == 0
    if size > 1:
        assert chosen[-1] == points - 1


def test_spreading_out_even_points_leaves_even_gaps() -> None:
    time = np.geomspace(1, 2**8, 9)
    assert spread_out(time, 1 / time, 5).tolist() == [0, 2, 4, 6, 8]


def test_front_of_nothing_is_empty() -> None:
    assert pareto_front([], []).size == 0
    assert pareto_front([np.nan], [1.0]).size == 0


@pytest.mark.parametrize("size", [1, 2])
def test_one_point_is_its_own_front(size: int) -> None:
    assert spread_out([1.0], [1.0], size).tolist() == [0]


def test_the_front_of_many_points_is_that_of_all_of_them() -> None:
    """Where there are thousands, a sample rules most out first."""
    time, cost = np.random.default_rng(0).lognormal(0, 1, (2, 9000))
    cost[::7] = np.nan
    best, front = np.inf, list[int]()
    for row in np.lexsort((cost, time)):
        if cost[row] < best:
            best, front = cost[row], [*front, row]
    assert pareto_front(time, cost).tolist() == front


@given(POINTS, st.lists(st.sampled_from([0.5, 1.0, 2.5, 6.0]), min_size=1, max_size=5))
def test_the_bar_is_the_least_cost_of_what_is_no_slower(
    points: list[tuple[float, float]], times: list[float]
) -> None:
    kept = [points[i] for i in pareto_front([p[0] for p in points], [p[1] for p in points])]
    time, cost = (np.array([p[k] for p in kept], float) for k in (0, 1))
    expected = [min((c for t, c in kept if t <= one), default=np.inf) for one in times]
    asked = np.array(times)
    assert bar_of(time, cost, asked).tolist() == expected
    # However it came about, a front beats what costs as much as its bar.
    known = Front()
    for point in points[::-1]:
        known.add([point[0]], [point[1]])
    assert known.beats(asked, np.array(expected)).all()
    assert not known.beats(asked, 0.999 * np.array([min(e, 9.0) for e in expected])).any()


def test_what_is_kept_surely_is_the_upper_bound_at_its_own_coverage() -> None:
    """Half a log-normal above the expected value: its quantiles, by the bounds of 80 %."""
    bounds = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 5.0]])
    np.testing.assert_allclose(kept_factor(bounds, 0.9, 0.8), [1.5, 1.0])
    np.testing.assert_allclose(kept_factor(bounds, 0.5, 0.8), [1.0, 1.0])
    sd = np.log(1.5) / NormalDist().inv_cdf(0.9)
    expected = np.exp(sd * NormalDist().inv_cdf(0.99))
    assert kept_factor(bounds, 0.99, 0.8)[0] == pytest.approx(expected)
    assert kept_factor(bounds, None, 0.8).tolist() == [1.0, 1.0]


def completed(finish: list[list[float]], late: list[float], billed: float = 2.0) -> Completion:
    hours = np.array(finish)
    none: Any = np.zeros(len(finish))
    return Completion(
        finish_h=hours, billed_h=hours * [1.0, 1.0, billed], overhead_fraction=none,
        checkpoint_interval_s=none, is_negligible=none > 0,
        way=none.astype(int), spot_h=none, on_demand_h=none, rented_h=none,
        late_fraction=np.array(late), parts_s={},
    )  # fmt: skip


def rows_of() -> Rows:
    """Return four rows: two on machines that stay, two replayed, one of these by a plan."""
    finish = [[1.0, 2, 4], [1.0, 3, 3], [2.0, 5, 10], [1.0, 4, 5], [9.0, 9, 9]]
    completions = completed(finish, [np.nan, np.nan, np.nan, 0.05, np.nan])
    return Rows(
        offer=np.array([7, 8, 7, 9]), column=np.array([0, 1, 1, 0]),
        time_h=np.array([2.0, 3.0, 5.0, 4.0]), cost_usd=np.array([10.0, 20.0, 30.0, 40.0]),
        is_spot=np.array([False, False, True, True]),
        is_in_quota=np.array([True, False, True, True]),
        is_hopeless=np.array([False, False, False, True]), completions=completions,
        log_sd=np.zeros(4), kind=np.array([3, 4, 4, 3]), machines=np.array([1, 2, 2, 1]),
        is_extrapolating=np.zeros(4, dtype=bool),
        done=np.array([0, 1, 2, 3]),
    )  # fmt: skip


def test_a_rows_time_and_cost_are_kept_by_its_own_completion() -> None:
    rows = rows_of()
    np.testing.assert_allclose(rows.kept("finish_h", 0.9, 0.8), [4 / 2, 1, 2, 5 / 4])
    np.testing.assert_allclose(rows.kept("billed_h", 0.9, 0.8), [4, 2, 4, 2.5])
    assert rows.kept("finish_h", None, 0.8).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("confidence", "late"),
    [(None, [False, False, True, False]), (0.9, [False, False, True, False]),
     (0.96, [True, False, True, True])],
)  # fmt: skip
def test_what_is_planned_by_the_deadline_says_itself_how_often_it_is_late(
    confidence: float | None, late: list[bool]
) -> None:
    """A plan that misses in 5 % of the cases keeps 0.9 and not 0.96, whatever its hours say."""
    rows = rows_of()
    assert rows.is_late(4.5, confidence, 0.8).tolist() == late


def test_further_ways_stand_behind_and_are_like_their_rows() -> None:
    rows = rows_of()
    way = completed([[1, 6, 7], [1, 8, 9]], [0.5, np.nan])
    more = way, np.array([3, 1]), np.array([50.0, 60.0])
    both = rows.with_way(*more).with_way(*more)
    done = [0, 1, 2, 3, 5, 6, 7, 8]
    assert both.done.tolist() == done
    assert both.offer.tolist() == [7, 8, 7, 9, 9, 8, 9, 8]
    assert both.column.tolist() == [0, 1, 1, 0, 0, 1, 0, 1]
    assert both.time_h.tolist() == [2, 3, 5, 4, 6, 8, 6, 8]
    assert both.cost_usd.tolist() == [10, 20, 30, 40, 50, 60, 50, 60]
    assert both.completions.finish_h[done, 1].tolist() == both.time_h.tolist()
    assert both.is_spot.tolist()[4:] == [True, False] * 2
    assert both.is_in_quota.tolist()[4:] == [True, False] * 2
    assert not both.is_hopeless[4:].any()
    assert both.kind.tolist()[4:] == [3, 4] * 2
    np.testing.assert_equal(both.completions.late_fraction[done[4:]], [0.5, np.nan] * 2)


@given(st.lists(st.tuples(
    st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([1.0, 2.0, 3.0, 4.0]), st.booleans(),
    st.integers(0, 2), st.integers(-1, 1), st.integers(1, 3),
), min_size=1, max_size=12))  # fmt: skip
def test_only_the_cheapest_spot_rows_below_every_steady_one_on_no_more_machines_are_replayed(
    rows: list[tuple[float, float, bool, int, int, int]],
) -> None:
    time, cost, spot, column, band, machines = (np.array(x) for x in zip(*rows, strict=True))
    found = _worth_replaying(time, cost, spot, column, band.astype(float), machines)
    steady = [(t, c, n) for t, c, is_spot, _, _, n in rows if not is_spot]
    seen: dict[tuple[int, int], int] = {}
    for i in np.argsort(cost, kind="stable").tolist():
        if spot[i]:
            seen.setdefault((int(column[i]), int(band[i])), i)
    expected = {
        i
        for i in seen.values()
        if not any(t <= time[i] and c <= cost[i] and n <= machines[i] for t, c, n in steady)
    }
    assert set(found.tolist()) == expected


@given(st.lists(st.tuples(st.floats(1.0, 9.0), st.floats(1.0, 9.0)), min_size=1, max_size=30),
       st.sets(st.integers(0, 29)), st.sampled_from([0.0, 0.1, 0.4]))  # fmt: skip
def test_what_may_stand_beside_a_shown_row_is_near_it(
    rows: list[tuple[float, float]], at: set[int], gain: float
) -> None:
    shown = np.array(sorted(one for one in at if one < len(rows)), dtype=np.int64)
    time, cost = np.array(rows).T
    every = np.arange(len(rows))
    most = 1.0 + max(apart(9.0, 0.0, False, gain) if gain else 0.0, gain)
    expected = [
        row for row in every.tolist()
        if any(time[row] <= most * time[i] and cost[row] <= most * cost[i] for i in shown.tolist())
    ]  # fmt: skip
    assert near_any(time, cost, every, shown, gain).tolist() == expected
