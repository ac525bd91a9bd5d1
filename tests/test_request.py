"""Constraints that make no sense."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.ask import Constraints
from advisor.errors import UsageError


@pytest.mark.parametrize(
    "field", [{"budget_usd": -5.0}, {"budget_usd": math.nan}, {"deadline_h": 0.0},
              {"max_nodes": 0}, {"top": 0}, {"max_price_usd_per_h": math.inf}, {"coverage": 0.7}]
)  # fmt: skip
def test_nonsense_constraints_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Constraints(**field)  # type: ignore[arg-type]


@given(st.integers(1, 512))
def test_counts_rise_from_one_to_the_most_nodes(most: int) -> None:
    counts = Constraints(max_nodes=most).counts
    assert counts[0] == 1
    assert counts[-1] == most
    assert list(counts) == sorted(set(counts))


def test_counts_are_powers_of_two_and_the_points_between() -> None:
    assert Constraints(max_nodes=16).counts == (1, 2, 3, 4, 6, 8, 12, 16)
