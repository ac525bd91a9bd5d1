"""The catalogue in use: types, prices, accelerators, and how to ask it."""

from __future__ import annotations

import difflib
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advisor.catalogue import extras, files, gpus, selection, store
from advisor.catalogue.columns import Bools, Floats, OfferColumns, PriceColumns, TypeColumns
from advisor.catalogue.nouns import Accelerator, InstanceType, MeasuredLinks, OtherPrice
from advisor.catalogue.overrides import OWN_LISTING, Overrides
from advisor.catalogue.places import config_folder
from advisor.catalogue.rules import read_rules
from advisor.catalogue.selection import OfferFilter
from advisor.catalogue.snapshot import Snapshot, find, read_snapshot
from advisor.errors import CatalogueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandas import DataFrame


class Catalogue:
    """All instance types and prices of one snapshot.

    Parameters
    ----------
    snapshot : Snapshot

    Attributes
    ----------
    types : TypeColumns
    prices : PriceColumns
    accelerators : mapping of str to Accelerator
    path : Path
        The snapshot's folder.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.types: TypeColumns = snapshot.types
        self.prices: PriceColumns = snapshot.prices
        self.accelerators: Mapping[str, Accelerator] = snapshot.accelerators
        self.path: Path = snapshot.folders[0]
        self._aliases = snapshot.aliases
        self._folders = snapshot.folders

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        *,
        overrides: Path | str | None = None,
        with_overrides: bool = True,
    ) -> Catalogue:
        """Read the snapshot in use, or the one in a folder, with the user's rules laid over it.

        Parameters
        ----------
        path : Path or str, optional
            A snapshot's folder. By default the one ``advisor catalogue update`` made, unless the
            bundled one is newer.
        overrides : Path or str, optional
            The user's rules; by default ``overrides.csv`` in the configuration folder, if any.
        with_overrides : bool
            False leaves the user's rules out.

        Raises
        ------
        CatalogueError
            If a file is missing, damaged or malformed; the error names file, row and column.
        """
        snapshot = _current_snapshot() if path is None else _snapshot(Path(path))
        rules = _rules_file(overrides) if with_overrides else None
        return cls(snapshot if rules is None else _overridden(snapshot, rules))

    def __repr__(self) -> str:
        return (
            f"<Catalogue: {len(self.types):,} instance types, {len(self.prices):,} priced "
            f"(type, region) pairs as of {self.as_of}>"
        )

    @property
    def as_of(self) -> str:
        """ISO date of the newest price."""
        listed = (one for one in self.prices.provenances if one.listing != OWN_LISTING)
        return max((one.as_of for one in listed), default="")

    def age_days(self, today: date | None = None) -> float:
        """Return the age of the newest price in days; NaN where nothing is dated."""
        return _age_days(self.as_of, today)

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

    def ages_days(self, today: date | None = None) -> dict[str, float]:
        """Return the age of each provider's newest price in days; NaN where undated."""
        return {
            name: _age_days(newest, today) for name, (_, newest) in self.as_of_by_provider.items()
        }

    def select(
        self, wanted: OfferFilter | None = None, *, today: date | None = None
    ) -> OfferColumns:
        """Return the priced offers that satisfy the filter, cheapest first.

        Raises
        ------
        UsageError
            If the filter names an accelerator or a provider that does not exist.
        """
        wanted = wanted or OfferFilter()
        ages: Floats = np.array(
            [_age_days(one.as_of, today) for one in self.prices.provenances], dtype=np.float64
        )
        return selection.select(wanted, self.admitted_types(wanted), self.prices, ages)

    def admitted_types(self, wanted: OfferFilter) -> Bools:
        """Return which types satisfy the filter, priced or not.

        Raises
        ------
        UsageError
            If the filter names an accelerator or a provider that does not exist.
        """
        memory = {name: one.memory_gb for name, one in self.accelerators.items()}
        names, inverse = np.unique(self.types.accelerator, return_inverse=True)
        memory_gb = np.array([memory.get(str(name), np.nan) for name in names])[inverse]
        return selection.matching_types(wanted, self.types, self.matching_gpus, memory_gb)

    def instance_type(
        self, name: str, provider: str | None = None, *, suggest: bool = True
    ) -> InstanceType:
        """Return one type by its name, ``"g5.xlarge"`` or ``"aws:g5.xlarge"``.

        ``suggest`` looks for what an unknown name may mean.

        Raises
        ------
        CatalogueError
            If there is none, or several providers have it.
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

        Raises
        ------
        UsageError
            If nothing has this name.
        """
        return gpus.resolve(name, self.accelerators, self._aliases)

    def canonical_gpu(self, name: str) -> str:
        """Return the one accelerator a provider or a driver means by this name.

        Raises
        ------
        UsageError
            If nothing has this name, or only a family of several.
        """
        return gpus.canonical(name, self.accelerators, self._aliases)

    @cached_property
    def links(self) -> tuple[MeasuredLinks, ...]:
        """The instances on which copies between host and devices were measured."""
        return extras.read_links(find(self._folders, files.LINKS_FILE))

    @cached_property
    def other_prices(self) -> tuple[OtherPrice, ...]:
        """Prices of storage and of outgoing traffic."""
        return extras.read_other_prices(find(self._folders, files.OTHER_PRICES_FILE))

    def to_frame(self) -> DataFrame:
        """Return one row a (type, region) with the type's columns beside the prices."""
        import pandas as pd

        types = pd.DataFrame(self.types.by_name())
        prices = pd.DataFrame(
            {
                "region": self.prices.region,
                "on_demand_usd_per_h": self.prices.on_demand_usd_per_h,
                "spot_usd_per_h": self.prices.spot_usd_per_h,
                "reserved_1y_usd_per_h": self.prices.reserved_1y_usd_per_h,
                "reserved_3y_usd_per_h": self.prices.reserved_3y_usd_per_h,
                "spot_interruption_band": self.prices.spot_interruption_band,
                "as_of": self.prices.as_of,
                "status": self.prices.status,
                "price_source": self.prices.source,
            }
        )
        rows = types.take(self.prices.type_index).reset_index(drop=True)
        return pd.concat([rows, prices], axis="columns")


def _snapshot(folder: Path) -> Snapshot:
    return read_snapshot(folder, store.bundled_folder())


def _current_snapshot() -> Snapshot:
    try:
        return _snapshot(store.current_folder())
    except CatalogueError as error:
        if store.updated_folder() is None:
            raise
        raise CatalogueError(
            f"the updated catalogue cannot be read: {error}",
            hint="return to the one before: advisor catalogue rollback",
        ) from error


def _rules_file(named: Path | str | None) -> Path | None:
    if named is not None:
        return Path(named)
    usual = config_folder() / "overrides.csv"
    return usual if usual.is_file() else None


def _overridden(snapshot: Snapshot, path: Path) -> Snapshot:
    rules = read_rules(path)
    saved = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    overrides = Overrides(
        rules=rules,
        saved_at=saved.isoformat(),
        accelerators=snapshot.accelerators,
        canonical=lambda name: gpus.canonical(name, snapshot.accelerators, snapshot.aliases),
    )
    offers = overrides.apply(snapshot.types, snapshot.prices)
    return replace(snapshot, types=offers.types, prices=offers.prices)


def _age_days(as_of: str, today: date | None) -> float:
    if not as_of:
        return np.nan
    return float(((today or datetime.now(UTC).date()) - date.fromisoformat(as_of)).days)
