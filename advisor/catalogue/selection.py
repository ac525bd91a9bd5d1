"""Choose offers from the columns: what the user asks for, cheapest first."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from advisor.catalogue.columns import (
    Bools,
    Floats,
    Ints,
    OfferColumns,
    PriceColumns,
    Texts,
    TypeColumns,
)
from advisor.catalogue.gpus import GpuFilter
from advisor.catalogue.nouns import PRICINGS, Pricing
from advisor.errors import UsageError


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
    members: Callable[[str], Collection[str]],
    memory_gb: Floats,
) -> Bools:
    """Return which types satisfy the filter, prices aside.

    Parameters
    ----------
    memory_gb : Floats, shape (types,)
        Of one accelerator, as sold.
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
        chosen &= _matching_gpus(wanted.gpus, types, members, memory_gb)
    if wanted.min_vcpus > 0:
        chosen &= types.vcpus >= wanted.min_vcpus
    if wanted.min_memory_bytes > 0:
        chosen &= types.memory_bytes >= wanted.min_memory_bytes
    return chosen


def select(
    wanted: OfferFilter, chosen_types: Bools, prices: PriceColumns, age_days: Floats
) -> OfferColumns:
    """Return the priced offers of the chosen types, cheapest first.

    Equal prices keep the order of the tables (provider, type, region), on-demand before spot.

    Parameters
    ----------
    chosen_types : Bools, shape (types,)
    age_days : Floats, shape (provenances,)
        NaN where undated.
    """
    at = np.flatnonzero(_eligible(wanted, chosen_types, prices, age_days))
    found = [_priced(wanted, pricing, at, prices) for pricing in PRICINGS]
    index = np.concatenate([rows for rows, _ in found])
    price = np.concatenate([usd_per_h for _, usd_per_h in found])
    way = np.repeat(np.array(PRICINGS), [len(rows) for rows, _ in found])
    order = np.argsort(price, kind="stable")
    index, price, way = index[order], price[order], way[order]
    return OfferColumns(
        type_index=prices.type_index[index],
        price_index=index,
        region=prices.regions[prices.region_index[index]],
        pricing=way,
        price_usd_per_h=price,
        spot_interruption_band=np.where(
            way == "spot", prices.spot_interruption_band[index], np.nan
        ),
        max_instances=prices.max_instances[index],
        shortest_bill_h=prices.shortest_bill_h[index],
        bill_step_h=prices.bill_step_h[index],
    )


def _eligible(
    wanted: OfferFilter, chosen_types: Bools, prices: PriceColumns, age_days: Floats
) -> Bools:
    """Return which rows satisfy the filter, whatever they cost; a quota below one is none."""
    rows: Bools = chosen_types[prices.type_index]
    if wanted.regions:
        rows &= _globs(prices.regions, wanted.regions)[prices.region_index]
    good = np.array(
        [
            (not wanted.listings or one.listing in wanted.listings)
            and (wanted.max_age_days == np.inf or age <= wanted.max_age_days)
            for one, age in zip(prices.provenances, age_days.tolist(), strict=True)
        ],
        dtype=bool,
    )
    if not good.all():
        rows &= good[prices.provenance_index]
    rows &= prices.max_instances >= 1
    return rows


def _priced(
    wanted: OfferFilter, pricing: Pricing, rows: Ints, prices: PriceColumns
) -> tuple[Ints, Floats]:
    """Return the rows with a wanted price for one way to pay, and these prices."""
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
            raise UsageError(f"no provider is called {name!r}", hint=f"one of: {', '.join(known)}")
    return {folded[name.casefold()] for name in providers}


def _globs(names: Texts, globs: tuple[str, ...]) -> Bools:
    return np.array(
        [any(fnmatch.fnmatchcase(name, glob) for glob in globs) for name in names.tolist()],
        dtype=bool,
    )


def _matching_gpus(
    wanted: GpuFilter,
    types: TypeColumns,
    members: Callable[[str], Collection[str]],
    memory_gb: Floats,
) -> Bools:
    chosen = types.accelerator_count > 0
    if wanted.names:
        canonical = sorted({one for name in wanted.names for one in members(name)})
        chosen &= np.isin(types.accelerator, canonical)
    count = types.accelerator_count
    chosen &= (count >= wanted.min_count) & (count <= wanted.max_count)
    if wanted.min_memory_gb > 0 or wanted.max_memory_gb < np.inf:
        chosen &= (memory_gb >= wanted.min_memory_gb) & (memory_gb <= wanted.max_memory_gb)
    return chosen
