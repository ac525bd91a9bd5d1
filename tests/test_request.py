"""Durations as people write them, and constraints that make no sense."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import UsageError
from advisor.ranking import Request, parse_hours


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_parts_of_a_duration_add_up(days: int, hours: int, minutes: int) -> None:
    assert math.isclose(
        parse_hours(f"{days}d{hours}h{minutes}m"), 24 * days + hours + minutes / 60
    )


@given(st.floats(1e-3, 1e6))
def test_a_bare_number_is_hours(hours: float) -> None:
    assert parse_hours(repr(hours)) == hours


@given(st.text(max_size=12))
def test_any_text_is_a_positive_duration_or_a_usage_error(text: str) -> None:
    try:
        hours = parse_hours(text)
    except UsageError:
        return
    assert 0 < hours < math.inf


@pytest.mark.parametrize("text", ["", "h", "6 hours", "-3h", "0h", "nan", "inf", "1e999"])
def test_nonsense_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a duration|in the past"):
        parse_hours(text)


@pytest.mark.parametrize(
    "field", [{"budget_usd": -5.0}, {"budget_usd": math.nan}, {"deadline_h": 0.0},
              {"max_nodes": 0}, {"top": 0}, {"max_price_usd_per_h": math.inf}, {"coverage": 0.7}]
)  # fmt: skip
def test_nonsense_constraints_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Request(**field)  # type: ignore[arg-type]


@given(st.integers(1, 512))
def test_counts_rise_from_one_to_the_most_nodes(most: int) -> None:
    counts = Request(max_nodes=most).counts
    assert counts[0] == 1
    assert counts[-1] == most
    assert list(counts) == sorted(set(counts))


def test_counts_are_powers_of_two_and_the_points_between() -> None:
    assert Request(max_nodes=16).counts == (1, 2, 3, 4, 6, 8, 12, 16)
