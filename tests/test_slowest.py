"""The slowest of unequal workers against all draws, and against equal normal ones."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.planners import PlanningError
from advisor.planners.links.gradients import expected_maximum, expected_slowest, loss_to_slowest

workers = st.lists(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=4), min_size=1, max_size=4)


@given(workers)
def test_it_is_the_mean_over_all_draws(times: list[list[float]]) -> None:
    every = [max(draw) for draw in itertools.product(*times)]
    assert expected_slowest(times) == pytest.approx(np.mean(every), rel=1e-9)


@given(workers, st.lists(st.floats(0.01, 1e3), min_size=1, max_size=4))
def test_another_worker_never_makes_the_step_shorter(
    times: list[list[float]], more: list[float]
) -> None:
    before = expected_slowest(times)
    assert expected_slowest([*times, more]) >= before * (1 - 1e-12)
    assert before >= max(float(np.mean(one)) for one in times) * (1 - 1e-12)


@pytest.mark.parametrize("count", [2, 4, 16])
def test_equal_normal_workers_are_those_of_the_closed_form(count: int) -> None:
    normal = NormalDist(1.0, 0.1)
    one = [normal.inv_cdf((k + 0.5) / 4000) for k in range(4000)]
    assert expected_slowest([one] * count) == pytest.approx(
        1.0 + 0.1 * float(expected_maximum(count)), rel=2e-4
    )


def test_the_loss_is_what_the_median_worker_waits() -> None:
    assert loss_to_slowest([[1.0], [1.0], [2.0]]) == pytest.approx(0.5)
    assert loss_to_slowest([[1.5], [1.5]]) == 0.0


@pytest.mark.parametrize("times", [[], [[]], [[1.0], [np.nan]]])
def test_no_worker_or_no_time_is_refused(times: list[list[float]]) -> None:
    with pytest.raises(PlanningError, match="slowest worker"):
        expected_slowest(times)
