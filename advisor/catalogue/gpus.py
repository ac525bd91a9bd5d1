"""Accelerators as ``--gpus`` names them: a name or family, memory and count ranges.

``NAME[,NAME...][:MEMORY][:COUNT]`` with ranges ``LOW..HIGH``, either end open: ``A100:8``,
``A100:40GB..80GB:1..8``, ``L4``, ``H100,H200:8``, ``24GB..:1`` (any accelerator).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from advisor.errors import UsageError

_RANGE = re.compile(
    r"(?P<low>\d+(?:\.\d+)?)?(?P<u1>GB|GiB|G)?(?P<dots>\.\.)?(?P<high>\d+(?:\.\d+)?)?(?P<u2>GB|GiB|G)?",
    re.IGNORECASE,
)
_HINT = "write e.g. A100, A100:8, H100,H200:8 or A100:40GB..80GB:1..8"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFilter:
    """Which accelerators, how many, how large; bounds are inclusive.

    ``names`` are as typed (a name, an alias or a family such as ``A100``); empty is any.
    """

    names: tuple[str, ...] = ()
    min_count: float = 0.0
    max_count: float = math.inf
    min_memory_gb: float = 0.0
    max_memory_gb: float = math.inf


def parse_gpus(text: str) -> GpuFilter:
    """Parse what stands after ``--gpus``.

    Raises UsageError if the text is no such expression, or a range is empty.

    Examples
    --------
    >>> parse_gpus("A100:8")
    GpuFilter(names=('A100',), min_count=8.0, max_count=8.0, min_memory_gb=0.0, max_memory_gb=inf)
    >>> parse_gpus("A100:40GB..80GB:1..8").max_memory_gb
    80.0
    """
    names: tuple[str, ...] | None = None
    count: tuple[float, float] | None = None
    memory: tuple[float, float] | None = None
    for part in (part.strip() for part in text.split(":")):
        bounds = _range(part, text)
        if bounds is None and names is None and count is None and memory is None:
            names = tuple(name.strip() for name in part.split(","))
        elif bounds is not None and bounds[2] and memory is None:
            memory = bounds[:2]
        elif bounds is not None and not bounds[2] and count is None:
            count = bounds[:2]
        else:
            raise UsageError(f"cannot read {part!r} in --gpus {text!r}", hint=_HINT)
    if names is not None and not all(names):
        raise UsageError(f"--gpus {text!r} names no accelerator", hint=_HINT)
    low, high = count or (0.0, math.inf)
    low_gb, high_gb = memory or (0.0, math.inf)
    return GpuFilter(
        names=names or (),
        min_count=low,
        max_count=high,
        min_memory_gb=low_gb,
        max_memory_gb=high_gb,
    )


def _range(part: str, text: str) -> tuple[float, float, bool] | None:
    """Read a number or range as (low, high, is_memory); None if it is neither."""
    match = _RANGE.fullmatch(part)
    if match is None or not (match["low"] or match["high"]):
        return None
    if match["high"] and not match["dots"]:
        return None
    low = float(match["low"] or 0)
    high = float(match["high"]) if match["high"] else (math.inf if match["dots"] else low)
    is_memory = bool(match["u1"] or match["u2"])
    if low > high or high == 0:
        raise UsageError(f"the range {part!r} in --gpus {text!r} is empty", hint=_HINT)
    return low, high, is_memory


def gpus_text(wanted: GpuFilter) -> str:
    """Return a filter as ``parse_gpus`` reads it.

    Examples
    --------
    >>> gpus_text(parse_gpus("A100:40GB..80GB:1..8")), gpus_text(parse_gpus("H100,H200:8"))
    ('A100:40.0GB..80.0GB:1.0..8.0', 'H100,H200:8.0')
    """
    parts = [",".join(wanted.names)] if wanted.names else []
    for low, high, unit in (
        (wanted.min_memory_gb, wanted.max_memory_gb, "GB"),
        (wanted.min_count, wanted.max_count, ""),
    ):
        if low == high:
            parts.append(f"{low!r}{unit}")
        elif low > 0 or high < math.inf:
            most = f"{high!r}{unit}" if high < math.inf else ""
            parts.append(f"{low!r}{unit}..{most}")
    return ":".join(parts) or "0.."


def key(name: str) -> str:
    """Fold a name for comparison: ``"RTX 4090"``, ``"rtx-4090"`` and ``"RTX4090"`` are one.

    >>> key("RTX 4090"), key("nvidia-tesla-t4")
    ('rtx4090', 'nvidiateslat4')
    """
    return re.sub(r"[\s_-]+", "", name).casefold()


def resolve(name: str, canonical: Collection[str], aliases: Mapping[str, str]) -> frozenset[str]:
    """Return the canonical names that a typed name stands for: one, or a family.

    A canonical name stands for itself; a family name (``A100``) for all its members, even where a
    provider uses it for one of them; everything else goes through the aliases. Raises UsageError
    if nothing has this name.
    """
    wanted = key(name)
    folded = {key(one): one for one in canonical}
    if wanted in folded:
        return frozenset({folded[wanted]})
    family = frozenset(one for one in canonical if "-" in one and _is_family(wanted, one))
    if family:
        return family
    if wanted in aliases:
        return frozenset({aliases[wanted]})
    close = difflib.get_close_matches(wanted, [*folded, *aliases], n=3, cutoff=0.6)
    meant = sorted({folded.get(one) or aliases[one] for one in close})
    raise UsageError(
        f"no accelerator is called {name!r}",
        hint=f"did you mean {' or '.join(meant)}?" if meant else "see: advisor catalogue info",
    )


def _is_family(wanted: str, canonical: str) -> bool:
    """Tell whether ``wanted`` is a leading run of whole dash-separated parts."""
    parts = canonical.split("-")
    return any(wanted == key("".join(parts[:end])) for end in range(1, len(parts)))


def canonical(name: str, accelerators: Collection[str], aliases: Mapping[str, str]) -> str:
    """Return the one accelerator a provider or a driver means by a name.

    Raises UsageError if nothing has this name, or only a family of several.
    """
    if key(name) in aliases:
        return aliases[key(name)]
    found = resolve(name, accelerators, aliases)
    if len(found) > 1:
        raise UsageError(
            f"{name!r} may be {' or '.join(sorted(found))}", hint="write the whole name"
        )
    return next(iter(found))
