"""Numbers as people read them: two or three digits, a fitting unit, the interval behind."""

from __future__ import annotations

from typing import Final

from advisor.domain import Estimate

# Largest first: the unit, and its size in hours.
_TIMES: Final = (("d", 24.0), ("h", 1.0), ("min", 1 / 60), ("s", 1 / 3600))
# From this many units on, the larger unit is used (so that 90 min and 36 h stay as they are).
_FROM: Final = {"d": 2.0, "h": 2.0, "min": 2.0, "s": 0.0}


def digits(value: float) -> str:
    """Return a positive number with about three significant digits.

    Examples
    --------
    >>> digits(0.01234), digits(3.14159), digits(123.4), digits(45678)
    ('0.012', '3.14', '123', '45,678')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}"


def hours(estimate: Estimate) -> tuple[str, str]:
    """Return a time and its interval in the unit that fits.

    Examples
    --------
    >>> hours(Estimate(value=0.5, low=0.4, high=0.6))
    ('30.0 min', '24.0-36.0')
    """
    unit, size = next(u for u in _TIMES if estimate.value / u[1] >= _FROM[u[0]])
    low, high = digits(estimate.low / size), digits(estimate.high / size)
    return f"{digits(estimate.value / size)} {unit}", f"{low}-{high}"


def usd(estimate: Estimate) -> tuple[str, str]:
    """Return money and its interval.

    Examples
    --------
    >>> usd(Estimate(value=12.345, low=10.0, high=15.0))
    ('$12.35', '10.00-15.00')
    """

    def money(value: float) -> str:
        return f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"

    value = f"{estimate.value:,.2f}" if estimate.value >= 0.1 else f"{estimate.value:.2g}"
    return f"${value}", f"{money(estimate.low)}-{money(estimate.high)}"
