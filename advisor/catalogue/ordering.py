"""Put offers into another order than cheapest first, and cut them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.columns import Floats, OfferColumns, Texts

_Key = Callable[[Catalogue, OfferColumns], Floats | Texts]


def ordered(
    catalogue: Catalogue, offers: OfferColumns, sort: str, *, cheapest: bool = False
) -> OfferColumns:
    """Return offers sorted by ``sort``; equal ones stay cheapest first, unknown ones come last."""
    if cheapest:
        _, first_rows = np.unique(offers.type_index, return_index=True)
        offers = offers.take(np.sort(first_rows))
    if sort == "price":
        return offers
    return offers.take(np.argsort(SORTS[sort](catalogue, offers), kind="stable"))


def first(offers: OfferColumns, count: int) -> OfferColumns:
    """Return the first ``count`` offers."""
    return offers.take(np.arange(min(count, len(offers))))


def _per_accelerator(catalogue: Catalogue, offers: OfferColumns) -> Floats:
    count = catalogue.types.accelerator_count[offers.type_index]
    return offers.price_usd_per_h / np.where(count > 0, count, np.nan)


def _per_vcpu(catalogue: Catalogue, offers: OfferColumns) -> Floats:
    return offers.price_usd_per_h / catalogue.types.vcpus[offers.type_index]


def _name(catalogue: Catalogue, offers: OfferColumns) -> Texts:
    types = catalogue.types
    joined = np.char.add(np.char.add(types.provider, " "), types.name)
    return joined[offers.type_index]


def _age(catalogue: Catalogue, offers: OfferColumns) -> Floats:
    """Days before the newest price: the freshest first, undated ones last."""
    ages = np.array([one.as_of for one in catalogue.prices.provenances])
    known = np.where(ages == "", "NaT", ages).astype("datetime64[D]")
    days = -known.astype(np.int64).astype(np.float64)
    days[np.isnat(known)] = np.nan
    return days[catalogue.prices.provenance_index[offers.price_index]]


SORTS: Final[Mapping[str, _Key]] = {
    "price": lambda _, offers: offers.price_usd_per_h,
    "price-per-accelerator": _per_accelerator,
    "price-per-vcpu": _per_vcpu,
    "name": _name,
    "vcpus": lambda catalogue, offers: -catalogue.types.vcpus[offers.type_index],
    "memory": lambda catalogue, offers: -catalogue.types.memory_bytes[offers.type_index],
    "age": _age,
}
