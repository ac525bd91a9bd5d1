"""Durations, sizes, rates, shares, money and counts: read as people type them, and printed.

What is printed can be read again: two or three digits, a fitting unit, the bounds beside. A number
without a unit means the same in every option, in Python, in a project file and in JSON:

========  =====================================  ==============================================
quantity  a bare number is                       units
========  =====================================  ==============================================
duration  hours                                  ``us ms s m h d w`` and their words; ``1h30m``
size      bytes                                  ``k M G T P`` and ``kB MB GB`` are powers of
                                                 1000, ``KiB MiB GiB`` and ``Ki Mi Gi`` of 1024
rate      bytes per second                       a size and ``/s``; bits: ``25Gbps``, ``Gbit/s``
share     a fraction, at most 1                  ``5%``
money     USD                                    ``$``, ``USD``, ``k M B``
count     units                                  ``k M B T``: thousand to trillion
========  =====================================  ==============================================

Every reader takes text or a number, refuses what is negative, infinite or not a number, and
raises ``UsageError`` with a hint. ``option`` names the flag or keyword in the message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from advisor.errors import UsageError

_NUMBER: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+"
_PART: Final = re.compile(rf"({_NUMBER})\s*([a-zµ]+)\s*", re.IGNORECASE)
_BARE: Final = re.compile(_NUMBER, re.IGNORECASE)
_WITH_UNIT: Final = re.compile(rf"({_NUMBER})\s*([a-z/%]*)", re.IGNORECASE)
# Longer text is no quantity; it is not worth the time that a search in it takes.
_LONGEST_TEXT: Final = 400
_LONGEST_SHOWN: Final = 40
_MOST_CORES: Final = 1e6
_CORES_HINT: Final = "e.g. 4x16 (GiB) or 8x32GB"

_SECONDS: Final[Mapping[str, Fraction]] = {
    unit: Fraction(size)
    for units, size in (
        ("us µs microsecond microseconds", "1e-6"),
        ("ms millisecond milliseconds", "1e-3"),
        ("s sec secs second seconds", "1"),
        ("m min mins minute minutes", "60"),
        ("h hr hrs hour hours", "3600"),
        ("d day days", "86400"),
        ("w week weeks", "604800"),
    )
    for unit in units.split()
}
_DECIMAL: Final[Mapping[str, int]] = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_BYTES: Final[Mapping[str, Fraction]] = {
    prefix + infix + "b" * has_b: Fraction((1024 if infix else 1000) ** power)
    for prefix, power in _DECIMAL.items()
    for infix in (("", "i") if prefix else ("",))
    for has_b in (False, True)
} | {"byte": Fraction(1), "bytes": Fraction(1)}
_BITS: Final[Mapping[str, Fraction]] = {
    prefix + word: Fraction(1000**power, 8)
    for prefix, power in _DECIMAL.items()
    for word in ("bps", "bit/s", "bits/s")
}
_COUNTS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1), "k": Fraction(10**3), "m": Fraction(10**6), "b": Fraction(10**9),
    "t": Fraction(10**12),
}  # fmt: skip

_DURATION_HINT: Final = "use 90m, 1.5h or 1h30m"
_SIZE_HINT: Final = "use 120GB (1e9 bytes each) or 120GiB (2**30 bytes each)"
_RATE_HINT: Final = "use 100MB/s (bytes) or 25Gbps (bits)"
_SHARE_HINT: Final = "use 5% or 0.05"
_MONEY_HINT: Final = "use 40, $40 or 1.5k"
_COUNT_HINT: Final = "use 15B, 350M, 2T, 9e6 or a plain number"


def parse_hours(value: str | float, *, option: str = "") -> float:
    """Read a duration, in hours; a bare number is hours. [h].

    Raises UsageError if it cannot be read or is negative.

    Examples
    --------
    >>> parse_hours("90m"), parse_hours("1h30m"), parse_hours("1d12h"), parse_hours("6")
    (1.5, 1.5, 36.0, 6.0)
    """
    return _finite(_duration(value, option) / 3600, value, "a duration", option)


def parse_seconds(text: str, *, option: str = "", needs_unit: bool = False) -> float:
    """Read a duration, in seconds; as ``parse_hours``, a bare number is hours. [s].

    ``needs_unit`` refuses bare numbers other than 0, where hours would surprise.

    Examples
    --------
    >>> parse_seconds("45s"), parse_seconds("4 ms"), parse_seconds("0.5")
    (45.0, 0.004, 1800.0)
    """
    return _finite(_duration(text, option, needs_unit=needs_unit), text, "a duration", option)


def parse_bytes(value: str | float, *, option: str = "", needs_unit: bool = False) -> float:
    """Read a size; a bare number is bytes, ``64G`` is 64e9 and ``64GiB`` 64 x 2**30. [bytes].

    Raises UsageError if it cannot be read or is negative.

    Examples
    --------
    >>> parse_bytes("120GB"), parse_bytes("1GiB"), parse_bytes("64G"), parse_bytes("0")
    (120000000000.0, 1073741824.0, 64000000000.0, 0.0)
    """
    what, found = "a size", _quantity(value, _BYTES, "a size", option, _SIZE_HINT)
    if needs_unit and found and (not isinstance(value, str) or _BARE.fullmatch(value.strip())):
        raise _refused(value, what, option, f"add a unit: {_SIZE_HINT[4:]}")
    return found


def parse_cores_and_memory(text: str, *, option: str = "") -> tuple[float, float]:
    """Read cores x memory, of a container or a pool; a bare memory is GiB. [cores], [bytes].

    Raises UsageError if it cannot be read, or is of nothing.

    Examples
    --------
    >>> parse_cores_and_memory("8x32GB"), parse_cores_and_memory("0.5x1")
    ((8.0, 32000000000.0), (0.5, 1073741824.0))
    """
    cores, _, memory = text.strip().partition("x")
    if not _BARE.fullmatch(cores) or not memory:
        raise _refused(text, "cores x memory", option, _CORES_HINT)
    unit = "GiB" if _BARE.fullmatch(memory) else ""
    found = float(cores), parse_bytes(memory + unit, option=option)
    if not 0 < found[0] < _MOST_CORES or not found[1]:
        raise _refused(text, "cores x memory", option, _CORES_HINT)
    return found


def parse_rate(value: str | float, *, option: str = "") -> float:
    """Read a rate of transfer; a bare number is bytes per second. [bytes/s].

    Raises UsageError if it cannot be read, is negative, or leaves open whether bits or bytes are
    meant.

    Examples
    --------
    >>> parse_rate("100MB/s"), parse_rate("25Gbps"), parse_rate("25 Gbit/s"), parse_rate("131M/s")
    (100000000.0, 3125000000.0, 3125000000.0, 131000000.0)
    """
    if isinstance(value, str):
        word = value.strip()
        if word.lower().endswith(tuple(_BITS)):
            return _quantity(word, _BITS, "a rate", option, _RATE_HINT)
        if word.endswith("b/s"):
            raise _refused(word, "a rate", option, f"is it bits or bytes? {_RATE_HINT}")
        value = word.removesuffix("/s")
    return _quantity(value, _BYTES, "a rate", option, _RATE_HINT)


def parse_share(value: str | float, *, option: str = "", most: float = 1.0) -> float:
    """Read a share; without a percent sign a fraction of one, at most 1.

    ``most`` is the largest share that makes sense.

    Raises UsageError if it cannot be read, is negative or too large.

    Examples
    --------
    >>> parse_share("5%"), parse_share("0.25"), parse_share("100 %")
    (0.05, 0.25, 1.0)
    """
    units = {"": Fraction(1), "%": Fraction(1, 100)}
    found = _quantity(value, units, "a share", option, _SHARE_HINT)
    is_percent = isinstance(value, str) and value.strip().endswith("%")
    if found > (most if is_percent else 1.0):
        raise _refused(value, "a share", option, _SHARE_HINT)
    return found


def parse_usd(value: str | float, *, option: str = "") -> float:
    """Read an amount of money. [USD].

    Raises UsageError if it cannot be read or is negative.

    Examples
    --------
    >>> parse_usd("40"), parse_usd("$1,234.50"), parse_usd("2.5k USD")
    (40.0, 1234.5, 2500.0)
    """
    if isinstance(value, str):
        word = re.sub(r"\s*usd$", "", value.strip(), flags=re.IGNORECASE)
        word = word.removeprefix("$")
        return _quantity(word, _COUNTS, "an amount of money", option, _MONEY_HINT, shown=value)
    return _quantity(value, _COUNTS, "an amount of money", option, _MONEY_HINT)


def parse_count(value: str | float, *, option: str = "") -> float:
    """Read a number of tokens, samples, steps or epochs.

    Raises UsageError if it cannot be read or is negative.

    Examples
    --------
    >>> parse_count("15B"), parse_count("350M"), parse_count("9e6"), parse_count("1,000")
    (15000000000.0, 350000000.0, 9000000.0, 1000.0)
    """
    return _quantity(value, _COUNTS, "a count", option, _COUNT_HINT)


def _duration(value: str | float, option: str, *, needs_unit: bool = False) -> Fraction:
    """Return a duration, exactly. [s]."""
    what, hint = "a duration", _DURATION_HINT
    if not isinstance(value, str) or _BARE.fullmatch(value.strip()):
        bare = _exact(value, what, option, hint)
        if needs_unit and bare:
            raise _refused(value, what, option, f"add a unit: {str(value).strip()}s or 1h30m")
        return bare * 3600
    word = value.strip().lower()
    if len(word) > _LONGEST_TEXT or not word or _PART.sub("", word):
        raise _refused(value, what, option, hint)
    parts = _PART.findall(word)
    if any(unit not in _SECONDS for _, unit in parts):
        raise _refused(value, what, option, hint)
    return sum((_exact(n, what, option, hint) * _SECONDS[u] for n, u in parts), Fraction(0))


def _quantity(
    value: str | float, units: Mapping[str, Fraction], what: str, option: str, hint: str,
    shown: str | None = None,
) -> float:  # fmt: skip
    """Read one number with at most one unit."""
    if not isinstance(value, str):
        return _finite(_exact(value, what, option, hint), value, what, option)
    word = value.strip()
    match = _WITH_UNIT.fullmatch(word) if len(word) <= _LONGEST_TEXT else None
    if match is None or match[2].lower() not in units:
        raise _refused(value if shown is None else shown, what, option, hint)
    exact = _exact(match[1], what, option, hint) * units[match[2].lower()]
    return _finite(exact, value, what, option)


def _exact(value: str | float, what: str, option: str, hint: str) -> Fraction:
    """Return a number exactly, so that 90m is 1.5 h and no rounding adds up."""
    if isinstance(value, bool):
        raise _refused(value, what, option, hint)
    word = value.strip().replace(",", "") if isinstance(value, str) else value
    try:
        near = math.nan if len(str(value)) > _LONGEST_TEXT else float(word)
    except (TypeError, ValueError, OverflowError):
        near = math.nan
    if not (math.isfinite(near) and near >= 0):
        raise _refused(value, what, option, hint)
    # An exponent of a million digits would be as finite as it is slow: it rounds to nothing.
    return Fraction(word) if near else Fraction(0)


def _finite(exact: Fraction, value: str | float, what: str, option: str) -> float:
    try:
        return float(exact)
    except OverflowError:
        raise _refused(value, what, option, "give a number that can be true") from None


def _refused(value: object, what: str, option: str, hint: str) -> UsageError:
    text = repr(value.strip()) if isinstance(value, str) else str(value)[: 2 * _LONGEST_SHOWN]
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[: _LONGEST_SHOWN - 4]}...'"
    at = f"{option}: " if option else ""
    is_negative = isinstance(value, str | float | int) and re.match(r"\s*-\s*[0-9.]", str(value))
    why = ": it is negative" if is_negative else ""
    return UsageError(f"{at}cannot read {text} as {what}{why}", hint=hint)


# Two-sided normal quantiles of the coverages on offer.
QUANTILES: Final[Mapping[float, float]] = {0.5: 0.674490, 0.8: 1.281552, 0.9: 1.644854, 0.95: 1.96}
REACH_90: Final = QUANTILES[0.9]  # half of a 90 % interval, in standard deviations
# Printed durations: the unit, its size in seconds, and the number of them it is used from, so that
# 90 min and 36 h stay as they are.
_TIMES: Final = (
    ("d", 86_400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0), ("s", 1.0, 1.0),
    ("ms", 1e-3, 1.0), ("us", 1e-6, 0.0),
)  # fmt: skip


# A value with its bounds: what an ``Estimate`` writes.
Interval = Mapping[str, float]


def digits(value: float) -> str:
    """Return a number with about three significant digits, and no power of ten.

    Examples
    --------
    >>> digits(0.01234), digits(3.14159), digits(123.4), digits(45678), digits(0.000012)
    ('0.012', '3.14', '123', '45,678', '0.000012')
    """
    if value < 0:
        return f"-{digits(-value)}"
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.995 else _small(value)


def _small(value: float) -> str:
    """Return a number below one with two significant digits, however small."""
    if value >= 1e-4 or not value:
        return f"{abs(value):.2g}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"


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
    # What three digits would print as 1,000 ms is a second.
    about = seconds / 0.9995
    return next((unit, size) for unit, size, least in _TIMES if about / size >= least)


def size_text(size: float) -> str:
    """Return a size on disk or on the wire, in powers of 1000.

    Examples
    --------
    >>> size_text(120e9), size_text(1.5e12), size_text(512)
    ('120 GB', '1.50 TB', '512 B')
    """
    number, prefix = _scaled(size, ("", "k", "M", "G", "T", "P"))
    return f"{number} {prefix}B"


def rate_text(bytes_per_s: float) -> str:
    """Return a rate of transfer, in powers of 1000 bytes per second.

    Examples
    --------
    >>> rate_text(131e6), rate_text(3.125e9)
    ('131 MB/s', '3.12 GB/s')
    """
    return f"{size_text(bytes_per_s)}/s"


def share_text(share: float) -> str:
    """Return a share in percent, with three significant digits: what was given, or is measured.

    Examples
    --------
    >>> share_text(0.05), share_text(0.123), share_text(1.0)
    ('5 %', '12.3 %', '100 %')
    """
    return f"{100 * share:.3g} %"


def percent_text(share: float, decimals: int = 0, *, signed: bool = False) -> str:
    """Return a share in whole percent, or with decimals; ``signed`` puts + before gains.

    Examples
    --------
    >>> percent_text(0.163), percent_text(0.163, 1), percent_text(0.163, signed=True)
    ('16 %', '16.3 %', '+16 %')
    """
    shown = round(100 * share, decimals) + 0.0  # no minus before nothing
    return f"{shown:{'+' if signed else ''},.{decimals}f} %"


def usd_text(usd: float) -> str:
    """Return money to the cent; whole dollars from 1,000, two digits below ten cents.

    Examples
    --------
    >>> usd_text(1234.5), usd_text(3.2), usd_text(0.0123), usd_text(-0.5)
    ('$1,234', '$3.20', '$0.012', '-$0.50')
    """
    return f"-${_money(-usd)}" if usd < 0 else f"${_money(usd)}"


def _money(usd: float) -> str:
    if usd >= 999.995:
        return f"{usd:,.0f}"
    return f"{usd:,.2f}" if usd >= 0.1 else _small(usd)


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


def hours_interval(record: Interval) -> tuple[str, str]:
    """Return a time given in hours and its bounds, in the unit that fits the time.

    Examples
    --------
    >>> hours_interval({"value": 0.5, "low": 0.4, "high": 0.6})
    ('30.0 min', '24.0-36.0')
    """
    return _time_interval(record, 3600.0)


def hours_spread(middle: float | None, low: float | None, high: float | None) -> str:
    """Return hours with two others around them, in one unit; None is never.

    Examples
    --------
    >>> hours_spread(46.32, 32.12, 47.8), hours_spread(0.0, 0.0, 0.92)
    ('46.3 h (32.1-47.8)', '0 min (0-55.2)')
    >>> hours_spread(51.2, 32.0, None)
    '2.13 d (1.33-never)'
    """
    unit, size = _time_unit(3600.0 * (middle or high or low or 1.0))
    said = ["never" if one is None else digits(one * 3600.0 / size) for one in (middle, low, high)]
    return f"{said[0]}{'' if middle is None else f' {unit}'} ({said[1]}-{said[2]})"


def seconds_interval(record: Interval) -> tuple[str, str]:
    """Return a time given in seconds and its bounds, in the unit that fits the time.

    Examples
    --------
    >>> seconds_interval({"value": 0.0068, "low": 0.00435, "high": 0.0107})
    ('6.80 ms', '4.35-10.7')
    """
    return _time_interval(record, 1.0)


def _time_interval(record: Interval, unit_s: float) -> tuple[str, str]:
    unit, size = _time_unit(record["value"] * unit_s)
    value, low, high = (digits(record[b] * unit_s / size) for b in ("value", "low", "high"))
    return f"{value} {unit}", f"{low}-{high}"


def usd_interval(record: Interval) -> tuple[str, str]:
    """Return money and its bounds.

    Examples
    --------
    >>> usd_interval({"value": 12.345, "low": 10.0, "high": 15.0})
    ('$12.35', '10.00-15.00')
    """
    return usd_text(record["value"]), f"{_money(record['low'])}-{_money(record['high'])}"
