"""Quantities as people read them: two or three digits, a fitting unit, the bounds beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

# Two-sided normal quantiles of the coverages on offer.
QUANTILES: Final[Mapping[float, float]] = {0.5: 0.674490, 0.8: 1.281552, 0.9: 1.644854, 0.95: 1.96}
REACH_90: Final = QUANTILES[0.9]  # half of a 90 % interval, in standard deviations
# Printed durations: the unit, its size in seconds, and the number of them it is used from, so that
# 90 min and 36 h stay as they are.
_TIMES: Final = (
    ("d", 86_400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0), ("s", 1.0, 1.0),
    ("ms", 1e-3, 1.0), ("us", 1e-6, 0.0),
)  # fmt: skip


class Interval(Protocol):
    """A value with its bounds, e.g. ``advisor.domain.Estimate``."""

    @property
    def value(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


def digits(value: float) -> str:
    """Return a number that is not negative with about three significant digits.

    Examples
    --------
    >>> digits(0.01234), digits(3.14159), digits(123.4), digits(45678)
    ('0.012', '3.14', '123', '45,678')
    """
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.995 else f"{value:.2g}"


def seconds_text(seconds: float) -> str:
    """Return a duration in the unit that fits.

    Examples
    --------
    >>> seconds_text(0.0123), seconds_text(45), seconds_text(5400), seconds_text(200_000)
    ('12.3 ms', '45.0 s', '90.0 min', '2.31 d')
    """
    unit, size = _time_unit(seconds)
    return f"{digits(seconds / size)} {unit}"


def hours_text(hours: float) -> str:
    """Return a duration given in hours in the unit that fits.

    Examples
    --------
    >>> hours_text(0.5), hours_text(3.0)
    ('30.0 min', '3.00 h')
    """
    return seconds_text(hours * 3600.0)


def _time_unit(seconds: float) -> tuple[str, float]:
    return next((unit, size) for unit, size, least in _TIMES if seconds / size >= least)


def size_text(size: float) -> str:
    """Return a size on disk or on the wire, in powers of 1000.

    Examples
    --------
    >>> size_text(120e9), size_text(1.5e12), size_text(512)
    ('120 GB', '1.50 TB', '512 B')
    """
    number, prefix = _scaled(size, ("", "k", "M", "G", "T", "P"))
    return f"{number} {prefix}B"


def memory_text(size: float) -> str:
    """Return an amount of memory in GiB (2**30 bytes).

    Examples
    --------
    >>> memory_text(80 * 2**30), memory_text(3.5 * 2**30)
    ('80.0 GiB', '3.50 GiB')
    """
    return f"{digits(size / 2**30)} GiB"


def rate_text(bytes_per_s: float) -> str:
    """Return a rate of transfer, in powers of 1000 bytes per second.

    Examples
    --------
    >>> rate_text(131e6), rate_text(3.125e9)
    ('131 MB/s', '3.12 GB/s')
    """
    return f"{size_text(bytes_per_s)}/s"


def share_text(share: float) -> str:
    """Return a share in percent.

    Examples
    --------
    >>> share_text(0.05), share_text(0.123), share_text(1.0)
    ('5%', '12.3%', '100%')
    """
    return f"{100 * share:.3g}%"


def usd_text(usd: float) -> str:
    """Return money to the cent; whole dollars from 1,000, two digits below ten cents.

    Examples
    --------
    >>> usd_text(1234.5), usd_text(3.2), usd_text(0.0123)
    ('$1,234', '$3.20', '$0.012')
    """
    return f"${_money(usd)}"


def _money(usd: float) -> str:
    if usd >= 999.995:
        return f"{usd:,.0f}"
    return f"{usd:,.2f}" if usd >= 0.1 else f"{usd:.2g}"


def count_text(count: float) -> str:
    """Return a large count with its scale.

    Examples
    --------
    >>> count_text(15e9), count_text(2e12), count_text(1234)
    ('15.0B', '2.00T', '1.23k')
    """
    number, scale = _scaled(count, ("", "k", "M", "B", "T"))
    return number + scale


def _scaled(value: float, prefixes: tuple[str, ...]) -> tuple[str, str]:
    """Return a number of at most three digits before the point, and the prefix of its scale."""
    scale = 0
    # 999.5 would be printed as 1,000 of the smaller unit.
    while value >= 999.5 and scale + 1 < len(prefixes):
        value, scale = value / 1000, scale + 1
    return digits(value), prefixes[scale]


def hours_interval(estimate: Interval) -> tuple[str, str]:
    """Return a time given in hours and its bounds, in the unit that fits the time.

    Examples
    --------
    >>> from advisor.domain import Estimate
    >>> hours_interval(Estimate(value=0.5, low=0.4, high=0.6))
    ('30.0 min', '24.0-36.0')
    """
    return _time_interval(estimate, 3600.0)


def seconds_interval(estimate: Interval) -> tuple[str, str]:
    """Return a time given in seconds and its bounds, in the unit that fits the time.

    Examples
    --------
    >>> from advisor.domain import Estimate
    >>> seconds_interval(Estimate(value=0.0068, low=0.00435, high=0.0107))
    ('6.80 ms', '4.35-10.7')
    """
    return _time_interval(estimate, 1.0)


def _time_interval(estimate: Interval, unit_s: float) -> tuple[str, str]:
    unit, size = _time_unit(estimate.value * unit_s)
    low, high = (digits(bound * unit_s / size) for bound in (estimate.low, estimate.high))
    return f"{digits(estimate.value * unit_s / size)} {unit}", f"{low}-{high}"


def usd_interval(estimate: Interval) -> tuple[str, str]:
    """Return money and its bounds.

    Examples
    --------
    >>> from advisor.domain import Estimate
    >>> usd_interval(Estimate(value=12.345, low=10.0, high=15.0))
    ('$12.35', '10.00-15.00')
    """
    return usd_text(estimate.value), f"{_money(estimate.low)}-{_money(estimate.high)}"
