"""The catalogue in use: types, prices, accelerators, and how to ask it."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor.catalogue import files, snapshot
from advisor.catalogue import select as selection
from advisor.catalogue.accounts import with_standing
from advisor.catalogue.offer_columns import (
    OWN_LISTING,
    PRICINGS,
    Bools,
    Offers,
    TableRow,
    column_of,
)
from advisor.catalogue.select import OfferFilter
from advisor.catalogue.snapshot import Snapshot, find, read_snapshot
from advisor.catalogue.tables import read_facts, read_records
from advisor.collectors.atomic import config_folder
from advisor.errors import CatalogueError

if TYPE_CHECKING:
    from pandas import DataFrame


_KEPT: Final = 4  # selections; each of all offers takes ten megabytes


class Catalogue(Snapshot):
    """All instance types and prices of one snapshot."""

    @classmethod
    def load(
        cls, path: Path | str | None = None, *, overrides: Path | str | None = None,
        with_overrides: bool = True,
    ) -> Catalogue:  # fmt: skip
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
            found = selection.select(wanted, chosen, self.prices)
            self._selected[key] = with_standing(self.types, found)
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
        rows = read_facts(path, files.columns("links")) if path else ()
        peers = {"yes": True, "no": False}
        return tuple(row | {"has_peer_access": peers.get(row.pop("p2p"))} for row in rows)

    @cached_property
    def other_prices(self) -> tuple[TableRow, ...]:
        """What is billed besides instances: storage and outgoing traffic."""
        return read_records(
            find(self.folders, files.OTHER_PRICES_FILE), files.columns("other_prices")
        )

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
