"""The catalogue in use: types, prices, accelerators, how to ask it, and its answers as records.

Records are what JSON, CSV and tables are made of. Units stand in their names; None is unknown.
Fields may be added, never renamed, within a schema version.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor.catalogue import files, snapshot
from advisor.catalogue import select as selection
from advisor.catalogue.networks import GBIT_BYTES
from advisor.catalogue.offer_columns import (
    OWN_LISTING,
    PRICINGS,
    Bools,
    Floats,
    Offers,
    TableRow,
    Texts,
    TypeColumns,
    column_of,
)
from advisor.catalogue.select import OfferFilter
from advisor.catalogue.snapshot import Snapshot, find, read_snapshot
from advisor.catalogue.tables import read_facts, read_records
from advisor.collectors.atomic import config_folder
from advisor.errors import CatalogueError
from advisor.planners.core import GIB
from advisor.planners.spot import BANDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandas import DataFrame


_KEPT: Final = 4  # selections; each of all offers takes ten megabytes


class Catalogue(Snapshot):
    """All instance types and prices of one snapshot."""

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        *,
        overrides: Path | str | None = None,
        with_overrides: bool = True,
    ) -> Catalogue:
        """Read the snapshot in use, or the one in a folder, with the user's rules laid over it.

        Raises CatalogueError if a file is missing, damaged or malformed; the error names file, row
        and column.

        Parameters
        ----------
        path : Path or str, optional
            A snapshot's folder. By default the one ``advisor catalogue update`` made, unless the
            bundled one is newer.
        overrides : Path or str, optional
            The user's rules; by default ``overrides.csv`` in the configuration folder, if any.
        with_overrides : bool
            False leaves the user's rules out.
        """
        try:
            folder = snapshot.current_folder() if path is None else Path(path)
            read = read_snapshot(folder, snapshot.bundled_folder(), cls)
        except CatalogueError as error:
            if path is not None or snapshot.updated_folder() is None:
                raise
            raise CatalogueError(
                f"the updated catalogue cannot be read: {error}",
                hint="return to the one before: advisor catalogue rollback",
            ) from error
        rules = _rules_file(overrides) if with_overrides else None
        if rules is not None:
            from advisor.catalogue.overrides import apply_rules, read_rules

            read = apply_rules(read_rules(rules), read)
        return read

    def __repr__(self) -> str:
        return (
            f"<Catalogue: {len(self.types):,} instance types, {len(self.prices):,} priced "
            f"(type, region) pairs as of {self.as_of}>"
        )

    @property
    def path(self) -> Path:
        """The snapshot's folder."""
        return self.folders[0]

    @property
    def as_of(self) -> str:
        """ISO date of the newest price."""
        listed = (one for one in self.prices.provenances if one.listing != OWN_LISTING)
        return max((one.as_of for one in listed), default="")

    def age_days(self) -> float:
        """Return the age of the newest price in days; NaN where nothing is dated."""
        return selection.age_days(self.as_of)

    @cached_property
    def as_of_by_provider(self) -> dict[str, tuple[str, str]]:
        """Oldest and newest date of each provider's prices; ``""`` where undated."""
        provider = self.types.provider[self.prices.type_index]
        codes, inverse = np.unique(provider, return_inverse=True)
        count = len(self.prices.provenances)
        pairs = np.unique(inverse * count + self.prices.provenance_index)
        dates: dict[str, set[str]] = {str(name): set() for name in codes}
        for pair in pairs.tolist():
            dates[str(codes[pair // count])].add(self.prices.provenances[pair % count].as_of)
        return {name: (min(found), max(found)) for name, found in dates.items()}

    def select(self, wanted: OfferFilter | None = None) -> Offers:
        """Return the priced offers that satisfy the filter, cheapest first.

        Raises UsageError if the filter names an accelerator or a provider that does not exist.
        """
        wanted = wanted or OfferFilter()
        key = f"{wanted!r} on {datetime.now(UTC).date()}"  # prices age
        if key not in self._selected:
            if len(self._selected) == _KEPT:
                self._selected.clear()
            chosen = self.admitted_types(wanted)
            self._selected[key] = selection.select(wanted, chosen, self.prices)
        return self._selected[key]

    @cached_property
    def _selected(self) -> dict[str, Offers]:
        """What was selected last: an answer asks for the same offers several times."""
        return {}

    def admitted_types(self, wanted: OfferFilter) -> Bools:
        """Return which types satisfy the filter, priced or not.

        Raises UsageError if the filter names an accelerator or a provider that does not exist.
        """
        return selection.matching_types(wanted, self.types, self.accelerators, self.aliases)

    def instance_type(
        self, name: str, provider: str | None = None, *, suggest: bool = True
    ) -> TableRow:
        """Return one type by its name, ``"g5.xlarge"`` or ``"aws:g5.xlarge"``.

        ``suggest`` looks for what an unknown name may mean. Raises CatalogueError if there is
        none, or several providers have it.
        """
        owner, _, name = name.rpartition(":")
        provider = owner or provider
        found = np.array(self._rows_by_name.get(name.lower(), ()), dtype=np.int64)
        if provider is not None:
            found = found[self.types.provider[found] == provider]
        if len(found) == 1:
            return self.types.at(int(found[0]))
        if len(found) > 1:
            owners = ", ".join(self.types.provider[found].tolist())
            raise CatalogueError(
                f"several providers have an instance type {name!r}",
                hint=f"say which provider: {owners}",
            )
        known = self._rows_by_name if suggest else {}
        close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
        rows = sorted(row for one in close for row in self._rows_by_name[one])
        meant = dict.fromkeys(self.types.name[rows].tolist())
        whose = f" of {provider}" if provider else ""
        raise CatalogueError(
            f"no instance type{whose} is called {name!r}",
            hint=f"did you mean {' or '.join(meant)}?" if meant else "see: advisor catalogue list",
        )

    @cached_property
    def _rows_by_name(self) -> dict[str, list[int]]:
        """The rows of the types by their name in lower case, made once."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self.types.name.tolist()):
            rows.setdefault(name.lower(), []).append(row)
        return rows

    def matching_gpus(self, name: str) -> frozenset[str]:
        """Return the canonical names a typed accelerator name stands for: one, or a family.

        Raises UsageError if nothing has this name.
        """
        return selection.resolve(name, self.accelerators, self.aliases)

    def canonical_gpu(self, name: str) -> str:
        """Return the one accelerator a provider or a driver means by this name.

        Raises UsageError if nothing has this name, or only a family of several.
        """
        return selection.canonical(name, self.accelerators, self.aliases)

    @cached_property
    def links(self) -> tuple[dict[str, Any], ...]:
        """The instances on which copies were measured (nvbandwidth); none without the file.

        One direction, None where not measured; ``gpu_name`` is as the driver says it, copies
        between devices are over all pairs, and with ``has_peer_access`` do not go through host
        memory.
        """
        path = find(self.folders, files.LINKS_FILE)
        rows = read_facts(path, files.LINKS) if path else ()
        peers = {"yes": True, "no": False}
        return tuple(row | {"has_peer_access": peers.get(row.pop("p2p"))} for row in rows)

    @cached_property
    def other_prices(self) -> tuple[TableRow, ...]:
        """What is billed besides instances: storage and outgoing traffic."""
        return read_records(find(self.folders, files.OTHER_PRICES_FILE), files.OTHER_PRICES)

    def to_frame(self) -> DataFrame:
        """Return one row a (type, region) with the type's columns beside the prices."""
        import pandas as pd

        types = pd.DataFrame(self.types.stated())
        prices = pd.DataFrame(
            {
                "region": self.prices.region,
                **{column_of(one): self.prices.usd_per_h(one) for one in PRICINGS},
                "spot_interruption_band": self.prices.spot_interruption_band,
                "as_of": self.prices.of_source(lambda one: one.day_of("on-demand")),
                "status": self.prices.of_source(lambda one: one.status_of("on-demand")),
                "price_source": self.prices.of_source(lambda one: one.source),
            }
        )
        rows = types.take(self.prices.type_index).reset_index(drop=True)
        return pd.concat([rows, prices], axis="columns")


def _rules_file(named: Path | str | None) -> Path | None:
    if named is not None:
        return Path(named)
    usual = config_folder() / "overrides.csv"
    return usual if usual.is_file() else None


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
