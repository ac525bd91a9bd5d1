"""Offers as sources list them: what adapters make, what is checked and merged, what is written.

Columns (``offer_columns.py``) answer questions; these rows go into and out of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from advisor.catalogue import files
from advisor.catalogue.offer_columns import Provenance
from advisor.catalogue.snapshot import part_names, read_provenances
from advisor.catalogue.tables import parse_numbers, read, read_bytes, unpack, write

UNCONFIRMED_PART: Final = ".skypilot-catalog"  # the source whose licence is not confirmed
TYPE_FACTS: Final = tuple(column.name for column in files.TYPES)
_IDS: Final = ("type_id", "region_id", "provenance_id")
_PRICES: Final = tuple(column for column in files.PRICES if column.name not in _IDS)


def _with_columns(cls: type[ListedOffer]) -> type[ListedOffer]:
    """Give the class a field for each column of ``files.LISTED``; ``""``, None or 0 is unknown."""
    for column in files.LISTED:
        number = 0.0 if column.is_required else None
        cls.__annotations__[column.name] = "Any"
        setattr(cls, column.name, number if column.is_number else "")
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@_with_columns
class ListedOffer:
    """A machine as a source states it, and its prices in one region; ``files.LISTED`` says more.

    ``accelerator`` is the provider's own name until it is resolved, canonical in the files. A
    machine without a price has no region and no provenance.
    """

    provenance: Provenance | None = None

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Any]]

        def __init__(self, **facts: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    @property
    def type_key(self) -> tuple[str, str]:
        """Provider and name: all rows of a snapshot that share it have the same machine."""
        return self.provider, self.instance_type

    @property
    def key(self) -> tuple[str, str, str]:
        """Provider, name and region: no two rows of a snapshot share it."""
        return self.provider, self.instance_type, self.region

    @property
    def sold(self) -> Provenance:
        """Where its prices come from."""
        if self.provenance is None:
            raise ValueError(f"{self.instance_type} has no price")
        return self.provenance


Listed = tuple[ListedOffer, ...]


def types_of(rows: Iterable[ListedOffer]) -> dict[tuple[str, str], ListedOffer]:
    """Return the first row of every type."""
    found: dict[tuple[str, str], ListedOffer] = {}
    for row in rows:
        found.setdefault(row.type_key, row)
    return found


def with_types(rows: Listed, types: Mapping[tuple[str, str], ListedOffer]) -> Listed:
    """Return the rows, and without a price the types that none of them has."""
    nothing: dict[str, Any] = dict.fromkeys(column.name for column in _PRICES)
    nothing |= {"region": "", "provenance": None}
    there = types_of(rows)
    bare = (replace(one, **nothing) for key, one in types.items() if key not in there)
    return (*rows, *bare)


def read_rows(folder: Path) -> Listed:
    """Read a snapshot's types and prices as rows; types without a price come last.

    Raises CatalogueError if a file is missing, damaged or breaks a rule.
    """
    regions = read(folder / files.REGIONS_FILE, files.REGIONS)["region"]
    provenances = read_provenances(folder)
    rows: list[ListedOffer] = []
    bare: list[ListedOffer] = []
    for part in part_names(folder):
        table = read(folder / f"types{part}.csv.gz", files.TYPES)
        cells = zip(*(np.asarray(values).tolist() for values in table.values()), strict=True)
        types = [_known(dict(zip(table, row, strict=True))) for row in cells]
        path = folder / f"prices{part}.csv.gz"
        numbers = parse_numbers(unpack(read_bytes(path), path), files.PRICES, path.name)
        priced = set()
        for row in zip(*(values.tolist() for values in numbers.values()), strict=True):
            price = _known(dict(zip(numbers, row, strict=True)))
            at = int(price.pop("type_id"))
            priced.add(at)
            price["region"] = regions[int(price.pop("region_id"))]
            price["provenance"] = provenances[int(price.pop("provenance_id"))]
            rows.append(ListedOffer(**types[at], **price))
        bare += [ListedOffer(**facts) for at, facts in enumerate(types) if at not in priced]
    return (*rows, *bare)


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in row.items()}


def write_rows(folder: Path, rows: Iterable[ListedOffer]) -> None:
    """Write types and prices as the files of a snapshot; equal rows give equal bytes.

    A type goes with its prices into the part of the unconfirmed licence if one of them is so.
    Raises ValueError if a key stands twice: a merge went wrong.
    """
    rows = sorted(rows, key=lambda one: one.key)
    if len({one.key for one in rows}) != len(rows):
        raise ValueError("a price appears twice")
    prices = [one for one in rows if one.region]
    regions = sorted({one.region for one in prices})
    provenances = sorted({one.sold for one in prices}, key=_provenance_cells)
    write(folder / files.REGIONS_FILE, ["region"], ([region] for region in regions))
    names = [column.name for column in files.PROVENANCE]
    write(folder / files.PROVENANCE_FILE, names, map(_provenance_cells, provenances))
    places = (
        {region: at for at, region in enumerate(regions)},
        {provenance: at for at, provenance in enumerate(provenances)},
    )
    apart = {one.type_key for one in prices if "unconfirmed" in one.sold.licence}
    for part, is_apart in (("", False), (UNCONFIRMED_PART, True)):
        types = [one for key, one in types_of(rows).items() if (key in apart) == is_apart]
        if types or not is_apart:
            _write_part(folder, part, types, prices, places)


def _provenance_cells(one: Provenance) -> tuple[str, ...]:
    return (one.as_of, one.status, one.spot_status, one.listing, one.source, one.licence)


def _write_part(
    folder: Path, part: str, types: Sequence[ListedOffer], prices: Iterable[ListedOffer],
    places: tuple[Mapping[str, int], Mapping[Provenance, int]],
) -> None:  # fmt: skip
    write(
        folder / f"types{part}.csv.gz",
        TYPE_FACTS,
        ([getattr(one, name) for name in TYPE_FACTS] for one in types),
    )
    place = {one.type_key: at for at, one in enumerate(types)}
    chosen = [one for one in prices if one.type_key in place]
    known = [
        column.name
        for column in _PRICES
        if not (column.is_optional and all(getattr(one, column.name) is None for one in chosen))
    ]
    write(
        folder / f"prices{part}.csv.gz",
        [*_IDS, *known],
        (
            [
                place[one.type_key],
                places[0][one.region],
                places[1][one.sold],
                *(getattr(one, name) for name in known),
            ]
            for one in chosen
        ),
    )
