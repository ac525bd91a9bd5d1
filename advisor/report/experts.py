"""Caches of experts as a table for a terminal: what each size serves under each policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor.planners.core.units import GIB

_COLUMNS: Final = ("lru", "lfu", "periodic", "learned", "oracle")
_WIDTH: Final = 10


def cache_table(details: Mapping[str, Any]) -> list[str]:
    """Return the hit rate of each size and policy, and the latency of the best that serves.

    Parameters
    ----------
    details : mapping
        Of the advice ``expert-cache``.
    """
    by_size: dict[int, dict[str, Mapping[str, Any]]] = {}
    for one in details["sizes"]:
        by_size.setdefault(one["cached"], {})[one["policy"]] = one
    heads = ("experts", "GiB", *_COLUMNS, "ms/token")
    lines = ["", "Experts that are there when a token needs them, by policy:", ""]
    lines.append("".join(f"{head:>{_WIDTH}}" for head in heads).rstrip())
    for cached, row in sorted(by_size.items()):
        best = min(one["token_s"] for policy, one in row.items() if policy != "oracle")
        cells = [f"{cached}", f"{row['lru']['memory_bytes'] / GIB:.3g}"]
        cells += [f"{row[policy]['hit_rate']:.1%}" for policy in _COLUMNS]
        cells.append(f"{1e3 * best:.3g}")
        lines.append("".join(f"{cell:>{_WIDTH}}" for cell in cells))
    return [*lines, "", "oracle knows every later token: no cache loads less."]
