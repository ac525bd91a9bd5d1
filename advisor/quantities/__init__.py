"""Durations, sizes, rates, shares, money and counts: read as people type them, and printed.

What is printed can be read again. A number without a unit means the same in every option, in
Python, in a project file and in JSON:

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

from advisor.quantities.printing import (
    QUANTILES,
    REACH_90,
    count_text,
    digits,
    hours_interval,
    hours_text,
    memory_text,
    rate_text,
    seconds_interval,
    seconds_text,
    share_text,
    size_text,
    usd_interval,
    usd_text,
)
from advisor.quantities.reading import (
    parse_bytes,
    parse_count,
    parse_hours,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_usd,
)

__all__ = [
    "QUANTILES",
    "REACH_90",
    "count_text",
    "digits",
    "hours_interval",
    "hours_text",
    "memory_text",
    "parse_bytes",
    "parse_count",
    "parse_hours",
    "parse_rate",
    "parse_seconds",
    "parse_share",
    "parse_usd",
    "rate_text",
    "seconds_interval",
    "seconds_text",
    "share_text",
    "size_text",
    "usd_interval",
    "usd_text",
]
