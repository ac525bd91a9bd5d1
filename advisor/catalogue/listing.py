"""What the catalogue lists: offers in an order, and its answers as records.

Records are what JSON, CSV and tables are made of. Units stand in their names; None is unknown.
Fields may be added, never renamed, within a schema version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from advisor.catalogue import select as selection
from advisor.catalogue import snapshot
from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.networks import GBIT_BYTES
from advisor.catalogue.offer_columns import (
    PRICINGS,
    Floats,
    Offers,
    TableRow,
    Texts,
    TypeColumns,
    column_of,
)
from advisor.collectors.atomic import config_folder
from advisor.planners.core import GIB
from advisor.planners.spot import BANDS

_Key = Callable[[Catalogue, Offers], Floats | Texts]


def ordered_offers(
    catalogue: Catalogue, offers: Offers, sort: str, *, cheapest: bool = False
) -> Offers:
    """Return offers sorted by ``sort``; equal ones stay cheapest first, unknown ones come last."""
    if cheapest:
        _, first_rows = np.unique(offers.type_index, return_index=True)
        offers = offers.take(np.sort(first_rows))
    if sort == "price":
        return offers
    return offers.take(np.argsort(SORTS[sort](catalogue, offers), kind="stable"))


def _age(_: Catalogue, offers: Offers) -> Floats:
    """Days before the newest price: the freshest first, undated ones last."""
    ages = np.array([one.as_of for one in offers.provenances])
    known = np.where(ages == "", "NaT", ages).astype("datetime64[D]")
    days = -known.astype(np.int64).astype(np.float64)
    days[np.isnat(known)] = np.nan
    return days[offers.provenance_index]


def _of_type(fact: Callable[[TypeColumns], Floats | Texts]) -> _Key:
    return lambda catalogue, offers: fact(catalogue.types)[offers.type_index]


def _price_for(size: Callable[[TypeColumns], Floats]) -> _Key:
    return lambda catalogue, offers: (
        offers.price_usd_per_h / size(catalogue.types)[offers.type_index]
    )


SORTS: Final[Mapping[str, _Key]] = {
    "price": lambda _, offers: offers.price_usd_per_h,
    "price-per-accelerator": _price_for(
        lambda types: np.where(types.accelerator_count > 0, types.accelerator_count, np.nan)
    ),
    "price-per-vcpu": _price_for(lambda types: types.vcpus),
    "name": _of_type(lambda types: np.char.add(np.char.add(types.provider, " "), types.name)),
    "vcpus": _of_type(lambda types: -types.vcpus),
    "memory": _of_type(lambda types: -types.memory_bytes),
    "age": _age,
}


SCHEMA_VERSION: Final = 1
OFFER_FIELDS: Final = (
    "provider", "instance_type", "region", "pricing", "price_usd_per_h", "accelerator",
    "accelerators", "accelerator_memory_gib", "vcpus", "memory_gib", "network_gbit_per_s",
    "core_speed", "interruption", "max_instances", "as_of", "status", "listing", "source",
)  # fmt: skip
OLD_DAYS: Final = 90  # an age worth a warning


def offer_records(catalogue: Catalogue, offers: Offers) -> list[dict[str, Any]]:
    """Return one record an offer, in their order."""
    types = catalogue.types
    sources = [offers.provenances[at] for at in offers.provenance_index.tolist()]
    paid = list(zip(sources, offers.pricing.tolist(), strict=True))
    columns = {
        "provider": types.provider[offers.type_index].tolist(),
        "instance_type": types.name[offers.type_index].tolist(),
        "region": offers.region.tolist(),
        "pricing": offers.pricing.tolist(),
        "price_usd_per_h": offers.price_usd_per_h.tolist(),
        "accelerator": types.accelerator[offers.type_index].tolist(),
        "accelerators": types.accelerator_count[offers.type_index].tolist(),
        "accelerator_memory_gib": _column(types.accelerator_memory_bytes, offers, GIB),
        "vcpus": _column(types.vcpus, offers),
        "memory_gib": _column(types.memory_bytes, offers, GIB),
        "network_gbit_per_s": _column(types.network_bytes_per_s, offers, GBIT_BYTES),
        "core_speed": _column(types.core_speed, offers),
        "interruption": [
            None if band != band else BANDS[int(band)]
            for band in offers.spot_interruption_band.tolist()
        ],
        "max_instances": [
            None if most == np.inf else int(most) for most in offers.max_instances.tolist()
        ],
        "as_of": [one.day_of(pricing) or None for one, pricing in paid],
        "status": [one.status_of(pricing) for one, pricing in paid],
        "listing": [one.listing for one in sources],
        "source": [one.source for one in sources],
    }
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _column(column: Any, offers: Offers, unit: float = 1.0) -> list[float | None]:
    values = (column[offers.type_index] / unit).tolist()
    return [None if value != value else round(value, 6) for value in values]


def _head(catalogue: Catalogue) -> dict[str, Any]:
    read = {"as_of": catalogue.as_of, "path": str(catalogue.path)}
    return {"schema_version": SCHEMA_VERSION, "catalogue": read}


def list_record(catalogue: Catalogue, offers: Offers, found: int) -> dict[str, Any]:
    """Return the answer to ``list``: ``offers`` of the ``found`` ones."""
    shown = set(catalogue.types.accelerator[offers.type_index].tolist())
    return _head(catalogue) | {
        "found": found,
        "offers": offer_records(catalogue, offers),
        "unchecked_accelerators": sorted(shown & set(_unchecked(catalogue))),
    }


def _unchecked(catalogue: Catalogue) -> list[str]:
    return sorted(one.name for one in catalogue.accelerators.values() if not one.is_checked)


def type_record(catalogue: Catalogue, shown: TableRow) -> dict[str, Any]:
    """Return the answer to ``show``: specification, links, accelerator, prices by region."""
    specification = {name: one for name, one in vars(shown).items() if name != "index"}
    accelerator = catalogue.accelerators.get(shown.accelerator)
    pair = (shown.provider, shown.name)
    measured = [one for one in catalogue.links if (one["provider"], one["instance_type"]) == pair]
    return _head(catalogue) | {
        "specification": specification,
        "accelerator": accelerator and accelerator.to_record(),
        "nominal_pcie_bytes_per_s": accelerator and accelerator.nominal_pcie_bytes_per_s,
        "measured_links": measured,
        "prices": _price_records(catalogue, shown.index),
    }


def _price_records(catalogue: Catalogue, type_index: int) -> list[dict[str, Any]]:
    prices = catalogue.prices
    found = []
    for row in np.flatnonzero(prices.type_index == type_index).tolist():
        source = prices.source(row)
        region = str(prices.regions[prices.region_index[row]])
        record: dict[str, Any] = {"region": region}
        record |= {column_of(one): _known(prices.usd_per_h(one)[row]) for one in PRICINGS}
        band, most = prices.spot_interruption_band[row], prices.max_instances[row]
        record["interruption"] = None if np.isnan(band) else BANDS[int(band)]
        record["max_instances"] = None if np.isinf(most) else int(most)
        record |= {name: getattr(source, name) for name in ("listing", "source", "licence")}
        record |= {"as_of": source.day_of("on-demand"), "status": source.status_of("on-demand")}
        record["spot_status"] = source.spot_status and source.status_of("spot")
        place = record["on_demand_usd_per_h"] or np.inf, source.doubt("on-demand"), region
        found.append((place, record))
    return [record for _, record in sorted(found, key=lambda one: one[0])]


def info_record(catalogue: Catalogue) -> dict[str, Any]:
    """Return the answer to ``info``: where it lies, age and counts by provider, holes."""
    manifest = snapshot.read_manifest(catalogue.path)
    overrides = config_folder() / "overrides.csv"
    return {
        "schema_version": SCHEMA_VERSION,
        "path": str(catalogue.path),
        "as_of": catalogue.as_of,
        "age_days": _known(catalogue.age_days()),
        "is_bundled": catalogue.path == snapshot.bundled_folder(),
        "updated_at": manifest.get("made_at"),
        "overrides": str(overrides) if overrides.is_file() else None,
        "types": len(catalogue.types),
        "priced_pairs": int(np.isfinite(catalogue.prices.on_demand_usd_per_h).sum()),
        "accelerators": len(catalogue.accelerators),
        "providers": [
            _provider_record(catalogue, name)
            for name in sorted(set(catalogue.types.provider.tolist()))
        ],
        "core_speed": dict(Counter(catalogue.types.core_speed_source.tolist())),
        "unchecked_accelerators": _unchecked(catalogue),
    }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _provider_record(catalogue: Catalogue, name: str) -> dict[str, Any]:
    types, prices = catalogue.types, catalogue.prices
    own = types.provider == name
    rows = np.flatnonzero(own[prices.type_index])
    oldest, newest = catalogue.as_of_by_provider.get(name, ("", ""))
    priced = np.unique(prices.type_index[rows[np.isfinite(prices.on_demand_usd_per_h[rows])]])
    return {
        "provider": name,
        "types": int(own.sum()),
        "accelerated_types": int((own & (types.accelerator_count > 0)).sum()),
        "regions": len(np.unique(prices.region_index[rows])),
        "on_demand_prices": int(np.isfinite(prices.on_demand_usd_per_h[rows]).sum()),
        "spot_prices": int(np.isfinite(prices.spot_usd_per_h[rows]).sum()),
        "reserved_prices": int(
            (
                np.isfinite(prices.reserved_1y_usd_per_h[rows])
                | np.isfinite(prices.reserved_3y_usd_per_h[rows])
            ).sum()
        ),
        "oldest": oldest or None,
        "newest": newest or None,
        "age_days": _known(selection.age_days(newest)),
        "holes": {
            "types_without_price": int(own.sum()) - len(priced),
            "types_without_size": int((own & np.isnan(types.memory_bytes)).sum()),
            "types_without_network": int((own & np.isnan(types.network_bytes_per_s)).sum()),
            "types_without_core_speed": int((own & np.isnan(types.core_speed)).sum()),
        },
    }


def flat_record(record: Mapping[str, Any]) -> dict[str, object]:
    """Return a record of scalars for a row of CSV, safe to open in a spreadsheet.

    A text that a spreadsheet would take for a formula gets a quote in front.

    >>> flat_record({"name": "=cmd()", "price": -1.5, "note": None})
    {'name': "'=cmd()", 'price': -1.5, 'note': ''}
    """
    return {
        name: "" if value is None else _harmless(value) if isinstance(value, str) else value
        for name, value in record.items()
    }


def _harmless(value: str) -> str:
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value
