"""The Pareto front against its definition, and the law of spreading out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.rank.ranking_rows import pareto_front, spread_out

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
