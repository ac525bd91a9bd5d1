"""The catalogue's answers as plain records: what JSON, CSV and tables are made of.

Units stand in the names; None is unknown. Fields may be added, never renamed, within a schema
version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from advisor.catalogue import store
from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.columns import OfferColumns
from advisor.catalogue.networks import GBIT_BYTES
from advisor.catalogue.nouns import PRICINGS, InstanceType
from advisor.catalogue.places import config_folder
from advisor.planners.core.units import GIB
from advisor.planners.spot.bands import BANDS

SCHEMA_VERSION: Final = 1
OFFER_FIELDS: Final = (
    "provider", "instance_type", "region", "pricing", "price_usd_per_h", "accelerator",
    "accelerators", "accelerator_memory_gib", "vcpus", "memory_gib", "network_gbit_per_s",
    "core_speed", "interruption", "max_instances", "as_of", "status", "listing", "source",
)  # fmt: skip
OLD_DAYS: Final = 90  # an age worth a warning


def offer_records(catalogue: Catalogue, offers: OfferColumns) -> list[dict[str, Any]]:
    """Return one record an offer, in their order."""
    types, provenances = catalogue.types, catalogue.prices.provenances
    sources = catalogue.prices.provenance_index[offers.price_index].tolist()
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
        "as_of": [provenances[at].as_of or None for at in sources],
        "status": [
            (provenances[at].spot_status if pricing == "spot" else "") or provenances[at].status
            for at, pricing in zip(sources, offers.pricing.tolist(), strict=True)
        ],
        "listing": [provenances[at].listing for at in sources],
        "source": [provenances[at].source for at in sources],
    }
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _column(column: Any, offers: OfferColumns, unit: float = 1.0) -> list[float | None]:
    values = (column[offers.type_index] / unit).tolist()
    return [None if value != value else round(value, 6) for value in values]


def list_record(catalogue: Catalogue, offers: OfferColumns, found: int) -> dict[str, Any]:
    """Return the answer to ``list``: ``offers`` of the ``found`` ones."""
    return {
        "schema_version": SCHEMA_VERSION,
        "catalogue": {"as_of": catalogue.as_of, "path": str(catalogue.path)},
        "found": found,
        "offers": offer_records(catalogue, offers),
    }


def type_record(catalogue: Catalogue, shown: InstanceType) -> dict[str, Any]:
    """Return the answer to ``show``: specification, links, accelerator, prices by region."""
    specification = asdict(shown)
    specification.pop("index")
    accelerator = catalogue.accelerators.get(shown.accelerator)
    pair = (shown.provider, shown.name)
    measured = [one for one in catalogue.links if (one["provider"], one["instance_type"]) == pair]
    return {
        "schema_version": SCHEMA_VERSION,
        "catalogue": {"as_of": catalogue.as_of, "path": str(catalogue.path)},
        "specification": specification,
        "accelerator": None if accelerator is None else asdict(accelerator),
        "nominal_pcie_bytes_per_s": accelerator and accelerator.pcie_bytes_per_s,
        "measured_links": measured,
        "prices": _price_records(catalogue, shown.index),
    }


def _price_records(catalogue: Catalogue, type_index: int) -> list[dict[str, Any]]:
    prices = catalogue.prices
    records = []
    for row in np.flatnonzero(prices.type_index == type_index).tolist():
        provenance = prices.provenances[int(prices.provenance_index[row])]
        record: dict[str, Any] = {"region": str(prices.regions[prices.region_index[row]])}
        for pricing in PRICINGS:
            usd_per_h = float(prices.usd_per_h(pricing)[row])
            record[f"{pricing.replace('-', '_')}_usd_per_h"] = (
                None if np.isnan(usd_per_h) else usd_per_h
            )
        band, most = prices.spot_interruption_band[row], prices.max_instances[row]
        record["interruption"] = None if np.isnan(band) else BANDS[int(band)]
        record["max_instances"] = None if np.isinf(most) else int(most)
        records.append({**record, **asdict(provenance)})
    return sorted(records, key=lambda one: (one["on_demand_usd_per_h"] or np.inf, one["region"]))


def info_record(catalogue: Catalogue) -> dict[str, Any]:
    """Return the answer to ``info``: where it lies, age and counts by provider, holes."""
    manifest = store.read_manifest(catalogue.path)
    overrides = config_folder() / "overrides.csv"
    return {
        "schema_version": SCHEMA_VERSION,
        "path": str(catalogue.path),
        "as_of": catalogue.as_of,
        "age_days": _known(catalogue.age_days()),
        "is_bundled": catalogue.path == store.bundled_folder(),
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
        "accelerators_without_second_source": sorted(
            one.name
            for one in catalogue.accelerators.values()
            if not one.source_2 or one.source_2.startswith("none")
        ),
    }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _provider_record(catalogue: Catalogue, name: str) -> dict[str, Any]:
    types, prices = catalogue.types, catalogue.prices
    own = types.provider == name
    rows = np.flatnonzero(own[prices.type_index])
    oldest, newest = catalogue.as_of_by_provider.get(name, ("", ""))
    age = catalogue.ages_days().get(name, np.nan)
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
        "age_days": _known(age),
        "holes": {
            "types_without_price": int(own.sum()) - len(priced),
            "types_without_size": int((own & np.isnan(types.memory_bytes)).sum()),
            "types_without_network": int((own & np.isnan(types.network_bytes_per_s)).sum()),
            "types_without_core_speed": int((own & np.isnan(types.core_speed)).sum()),
        },
    }


def flat(record: Mapping[str, Any]) -> dict[str, object]:
    """Return a record of scalars for a row of CSV, safe to open in a spreadsheet.

    A text that a spreadsheet would take for a formula gets a quote in front.

    >>> flat({"name": "=cmd()", "price": -1.5, "note": None})
    {'name': "'=cmd()", 'price': -1.5, 'note': ''}
    """
    return {
        name: "" if value is None else _harmless(value) if isinstance(value, str) else value
        for name, value in record.items()
    }


def _harmless(value: str) -> str:
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value
