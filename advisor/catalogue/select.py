"""Choose offers from the columns: what the user asks for, cheapest first.

``--gpus`` names accelerators by a name or family, memory and count ranges:
``NAME[,NAME...][:MEMORY][:COUNT]`` with ranges ``LOW..HIGH``, either end open: ``A100:8``,
``A100:40GB..80GB:1..8``, ``L4``, ``H100,H200:8``, ``24GB..:1`` (any accelerator).
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Final

import numpy as np

from advisor.catalogue.offer_columns import (
    PRICINGS,
    Bools,
    Floats,
    Ints,
    Offers,
    Pricing,
    Texts,
    TypeColumns,
)
from advisor.errors import UsageError

_RANGE = re.compile(
    r"(?P<low>\d+(?:\.\d+)?)?(?P<u1>GB|GiB|G)?(?P<dots>\.\.)?(?P<high>\d+(?:\.\d+)?)?(?P<u2>GB|GiB|G)?",
    re.IGNORECASE,
)
_HINT = "write e.g. A100, A100:8, H100,H200:8, A100:4,H100:8 or A100:40GB..80GB:1..8"


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
    # what will do as well, each with bounds of its own
    others: tuple[GpuFilter, ...] = field(default=(), repr=False)


def parse_gpus(text: str) -> GpuFilter:
    """Parse what stands after ``--gpus``.

    Counts and memory hold for all names before them, back to the last that had its own:
    ``A100,H100:8`` are machines with 8 of either, ``A100:4,H100:8`` those with 4 A100 or 8 H100.

    Raises UsageError if the text is no such expression, or a range is empty.

    Examples
    --------
    >>> parse_gpus("A100:8")
    GpuFilter(names=('A100',), min_count=8.0, max_count=8.0, min_memory_gb=0.0, max_memory_gb=inf)
    >>> parse_gpus("A100:40GB..80GB:1..8").max_memory_gb
    80.0
    """
    read = [_one_filter(part, text) for part in _alternatives(text)]
    if len(read) > 1 and not all(one.names for one in read):
        raise UsageError(f"a part of --gpus {text!r} names no accelerator", hint=_HINT)
    first, *others = _merged(read)
    return replace(first, others=tuple(others))


def _alternatives(text: str) -> list[str]:
    """Return the parts of an expression that have bounds of their own.

    >>> _alternatives("A100,H100:8"), _alternatives("A100:4,L4,H100:8,T4")
    (['A100,H100:8'], ['A100:4', 'L4,H100:8', 'T4'])
    """
    found, names = [], []
    for item in text.split(","):
        names.append(item)
        if ":" in item:
            found.append(",".join(names))
            names = []
    return [*found, *([",".join(names)] if names else [])]


def _merged(filters: Sequence[GpuFilter]) -> list[GpuFilter]:
    """Join the names of neighbours with the same bounds; what names nothing is left alone."""
    found: list[GpuFilter] = []
    for one in filters:
        last = found[-1] if found else None
        if last is not None and last.names and replace(last, names=one.names) == one:
            found[-1] = replace(last, names=(*last.names, *one.names))
        else:
            found.append(one)
    return found


def _one_filter(own: str, text: str) -> GpuFilter:
    names: tuple[str, ...] | None = None
    count: tuple[float, float] | None = None
    memory: tuple[float, float] | None = None
    for part in (part.strip() for part in own.split(":")):
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
    ('A100:40GB..80GB:1..8', 'H100,H200:8')
    >>> gpus_text(parse_gpus("A100:4,H100:8"))
    'A100:4,H100:8'
    """
    if wanted.others:
        return ",".join(map(gpus_text, (replace(wanted, others=()), *wanted.others)))
    parts = [",".join(wanted.names)] if wanted.names else []
    for low, high, unit in (
        (wanted.min_memory_gb, wanted.max_memory_gb, "GB"),
        (wanted.min_count, wanted.max_count, ""),
    ):
        least, most = (f"{one!r}".removesuffix(".0") + unit for one in (low, high))
        if low == high:
            parts.append(least)
        elif low > 0 or high < math.inf:
            parts.append(f"{least}..{most if high < math.inf else ''}")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter:
    """What is asked for; everything left out does not matter."""

    providers: Collection[str] = ()  # names; empty is all
    regions: tuple[str, ...] = ()  # globs such as ``"us-*"``; one must match. Empty is all.
    types: tuple[str, ...] = ()  # globs of instance type names; one must match. Empty is all.
    gpus: GpuFilter | None = None
    is_cpu_only: bool = False  # leave out everything with an accelerator
    # min_vcpus, min_memory_bytes: an unknown number does not satisfy a minimum
    min_vcpus: float = 0.0
    min_memory_bytes: float = 0.0
    max_price_usd_per_h: float = np.inf
    # admit types of which nobody states vCPUs and memory: nothing can be predicted for them
    with_unspecified: bool = False
    pricing: Collection[Pricing] = field(default=("on-demand", "spot"))
    max_age_days: float = np.inf  # of the price; an undated price satisfies no limit but infinity
    is_dated: bool = False  # leave out prices whose day nobody states
    # of ``Provenance.listing``; empty is all. Retired types cannot be rented and are left out by
    # default.
    listings: Collection[str] = (
        "offered",
        "list-price-no-stock-info",
        "not-offered-or-unknown",
        "own",
    )


def matching_types(
    wanted: OfferFilter,
    types: TypeColumns,
    accelerators: Mapping[str, Any],
    aliases: Mapping[str, str],
) -> Bools:
    """Return which types satisfy the filter, priced or not.

    Raises UsageError if it names an accelerator or a provider that does not exist.
    """
    chosen = np.ones(len(types), dtype=bool)
    if wanted.providers:
        chosen &= np.isin(types.provider, sorted(_known(wanted.providers, types.provider)))
    if wanted.types:
        chosen &= _globs(types.name, wanted.types)
    if not wanted.with_unspecified:
        chosen &= ~np.isnan(types.vcpus) & ~np.isnan(types.memory_bytes)
    if wanted.is_cpu_only:
        chosen &= types.accelerator_count == 0
    if wanted.gpus is not None:
        chosen &= _matching_gpus(wanted.gpus, types, accelerators, aliases)
    if wanted.min_vcpus > 0:
        chosen &= types.vcpus >= wanted.min_vcpus
    if wanted.min_memory_bytes > 0:
        chosen &= types.memory_bytes >= wanted.min_memory_bytes
    return chosen


def age_days(day: str) -> float:
    """Return the days since a day (ISO 8601); NaN of ``""``."""
    if not day:
        return np.nan
    return float((datetime.now(UTC).date() - date.fromisoformat(day)).days)


def select(wanted: OfferFilter, chosen_types: Bools, prices: Offers) -> Offers:
    """Return the priced offers of the chosen types, cheapest first.

    Of equal prices on-demand ones come before spot ones, then the surest (``Provenance.doubt``);
    the others keep the order of the tables (provider, type, region). ``chosen_types``: (types,).
    """
    at = np.flatnonzero(_eligible(wanted, chosen_types, prices))
    found = [_priced(wanted, pricing, at, prices) for pricing in PRICINGS]
    index = np.concatenate([rows for rows, _ in found])
    price = np.concatenate([usd_per_h for _, usd_per_h in found])
    sizes = [len(rows) for rows, _ in found]
    doubt = np.concatenate(
        [
            _doubts(prices, pricing)[prices.provenance_index[rows]]
            for pricing, (rows, _) in zip(PRICINGS, found, strict=True)
        ]
    )
    order = np.lexsort((doubt, np.repeat(np.arange(len(PRICINGS)), sizes), price))
    index, price, way = index[order], price[order], np.repeat(np.array(PRICINGS), sizes)[order]
    band = np.where(way == "spot", prices.spot_interruption_band[index], np.nan)
    return prices.take(index, pricing=way, price_usd_per_h=price, spot_interruption_band=band)


def _doubts(prices: Offers, pricing: Pricing) -> Ints:
    """Return the rank of every provenance among equal prices of one way to pay."""
    doubts = [one.doubt(pricing) for one in prices.provenances]
    ranks = {doubt: rank for rank, doubt in enumerate(sorted(set(doubts)))}
    return np.array([ranks[doubt] for doubt in doubts], dtype=np.int64)


def _eligible(wanted: OfferFilter, chosen_types: Bools, prices: Offers) -> Bools:
    """Return which rows satisfy the filter, whatever they cost; a quota below one is none."""
    rows: Bools = chosen_types[prices.type_index]
    if wanted.regions:
        rows &= _globs(prices.regions, wanted.regions)[prices.region_index]
    good = np.array(
        [not wanted.listings or one.listing in wanted.listings for one in prices.provenances],
        dtype=bool,
    )
    if not good.all():
        rows &= good[prices.provenance_index]
    rows &= prices.max_instances >= 1
    return rows


def _priced(
    wanted: OfferFilter, pricing: Pricing, rows: Ints, prices: Offers
) -> tuple[Ints, Floats]:
    """Return the rows with a wanted price for one way to pay, and these prices."""
    if wanted.is_dated or wanted.max_age_days < np.inf:
        days = [one.day_of(pricing) for one in prices.provenances]
        good = np.array([age_days(day) <= wanted.max_age_days for day in days], dtype=bool)
        rows = rows[good[prices.provenance_index[rows]]]
    usd_per_h = prices.usd_per_h(pricing)[rows]
    with np.errstate(invalid="ignore"):
        is_priced = usd_per_h <= wanted.max_price_usd_per_h
    if pricing not in wanted.pricing:
        is_priced &= False
    return rows[is_priced], usd_per_h[is_priced]


def _known(providers: Collection[str], present: Texts) -> set[str]:
    known = sorted(set(present.tolist()))
    folded = {name.casefold(): name for name in known}
    for name in providers:
        if name.casefold() not in folded:
            close = difflib.get_close_matches(name.casefold(), folded, n=1)
            meant = f"did you mean {folded[close[0]]}? " if close else ""
            raise UsageError(
                f"no provider is called {name!r}", hint=f"{meant}one of: {', '.join(known)}"
            )
    return {folded[name.casefold()] for name in providers}


def _globs(names: Texts, globs: tuple[str, ...]) -> Bools:
    fits = re.compile("|".join(map(fnmatch.translate, globs))).match
    return np.array([fits(name) is not None for name in names.tolist()], dtype=bool)


def _matching_gpus(
    wanted: GpuFilter, types: TypeColumns, accelerators: Mapping[str, Any],
    aliases: Mapping[str, str],
) -> Bools:  # fmt: skip
    names, kind = np.unique(types.accelerator, return_inverse=True)
    sold = (accelerators.get(name) for name in names.tolist())
    memory_gb = np.array([np.nan if one is None else one.memory_gb for one in sold])[kind]
    count = types.accelerator_count
    chosen = np.zeros(len(types), dtype=bool)
    for one in (wanted, *wanted.others):
        fits = (count > 0) & (count >= one.min_count) & (count <= one.max_count)
        if one.names:
            members = (resolve(name, accelerators, aliases) for name in one.names)
            fits &= np.isin(types.accelerator, sorted(frozenset().union(*members)))
        if one.min_memory_gb > 0 or one.max_memory_gb < np.inf:
            fits &= (memory_gb >= one.min_memory_gb) & (memory_gb <= one.max_memory_gb)
        chosen |= fits
    return chosen


_COUNTED: Final = re.compile(r"(?P<count>\d+)\s*[x×]\s*(?P<name>\S+)")


def named(configuration: str | tuple[str, int]) -> tuple[str, int]:
    """Return type and number of machines of a configuration in words.

    Examples
    --------
    >>> named("g5.xlarge"), named("2 x g5.xlarge"), named(("g5.xlarge", 4))
    (('g5.xlarge', 1), ('g5.xlarge', 2), ('g5.xlarge', 4))
    """
    if not isinstance(configuration, str):
        name, count = configuration
        return str(name), int(count)
    found = _COUNTED.fullmatch(configuration.strip())
    return (found["name"], int(found["count"])) if found else (configuration.strip(), 1)
