"""Read a snapshot: the files of one folder become columns.

Files under CC BY-SA and parts with another licence may be missing; what they fill stays unknown.
Tables that a snapshot made by ``update`` does not carry (accelerators, links) come from the
bundled one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from advisor.catalogue import files
from advisor.catalogue.accelerators import read_accelerators, read_aliases
from advisor.catalogue.billing import bills
from advisor.catalogue.columns import Floats, PriceColumns, Texts, TypeColumns
from advisor.catalogue.nouns import Accelerator, Provenance
from advisor.catalogue.parsed import read_numbers
from advisor.catalogue.specifications import build_types
from advisor.catalogue.tables import Values, read, texts
from advisor.errors import CatalogueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one folder holds; ``folders`` are where further files of it are looked for."""

    folders: tuple[Path, ...]
    types: TypeColumns
    prices: PriceColumns
    accelerators: Mapping[str, Accelerator]
    aliases: Mapping[str, str]


def read_snapshot(folder: Path, bundled: Path) -> Snapshot:
    """Read the tables of ``folder``; those it lacks come from ``bundled``.

    Raises CatalogueError if a file is missing, damaged or breaks a rule: the error names file, row
    and column.
    """
    if not folder.is_dir():
        raise CatalogueError(
            f"no catalogue at {folder}", hint="name a snapshot's folder, or leave it out"
        )
    folders = (folder, bundled)
    accelerators = read_accelerators(
        find(folders, files.ACCELERATORS_FILE) or folder / files.ACCELERATORS_FILE,
        find(folders, files.SHARE_ALIKE_ACCELERATORS_FILE),
    )
    parts = part_names(folder)
    tables = [read(folder / f"types{part}.csv.gz", files.TYPES) for part in parts]
    types = build_types(
        _concatenated(tables),
        find(folders, files.SPECIFICATIONS_FILE),
        find(folders, files.NETWORKS_FILE),
        accelerators,
    )
    _check_unique(types)
    prices = _prices(folder, parts, types, [len(table["provider"]) for table in tables])
    return Snapshot(
        folders=folders,
        types=types,
        prices=prices,
        accelerators=accelerators,
        aliases=read_aliases(
            find(folders, files.ALIASES_FILE) or folder / files.ALIASES_FILE, accelerators
        ),
    )


def find(folders: Sequence[Path], name: str) -> Path | None:
    """Return a file in the first folder that has it."""
    return next((one / name for one in folders if (one / name).is_file()), None)


def part_names(folder: Path) -> list[str]:
    """Return what stands between ``types`` and ``.csv.gz``, the main part first.

    Raises CatalogueError if the folder holds no table of types.
    """
    names = [path.name for path in folder.glob("types*.csv.gz")]
    if not names:
        raise CatalogueError(
            f"{folder} holds no types.csv.gz", hint="name the folder of a snapshot"
        )
    return sorted(name.removeprefix("types").removesuffix(".csv.gz") for name in names)


def read_provenances(folder: Path) -> tuple[Provenance, ...]:
    """Read the sources of a snapshot's prices.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    table = read(folder / files.PROVENANCE_FILE, files.PROVENANCE)
    for number, day in enumerate(texts(table, "as_of"), start=2):
        if not _is_day(day):
            raise CatalogueError(
                f"{files.PROVENANCE_FILE}, row {number}, column 'as_of': is {day!r}, not a day",
                hint="write YYYY-MM-DD, or nothing for a source without a date",
            )
    rows = zip(*(texts(table, name) for name in table), strict=True)
    return tuple(Provenance(**dict(zip(table, row, strict=True))) for row in rows)


def _is_day(text: str) -> bool:
    try:
        return not text or date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _concatenated(tables: Sequence[Mapping[str, Values]]) -> dict[str, Values]:
    out: dict[str, Values] = {}
    for name, first in tables[0].items():
        if isinstance(first, list):
            out[name] = [value for table in tables for value in texts(table, name)]
        else:
            out[name] = np.concatenate([np.asarray(table[name]) for table in tables])
    return out


def _check_unique(types: TypeColumns) -> None:
    seen: set[tuple[str, str]] = set()
    for pair in zip(types.provider.tolist(), types.name.tolist(), strict=True):
        if pair in seen:
            raise CatalogueError(
                f"types.csv.gz holds {pair[1]!r} of {pair[0]} twice",
                hint="keep one row, and one spelling of its name",
            )
        seen.add(pair)


def _prices(
    folder: Path, parts: Sequence[str], types: TypeColumns, lengths: Sequence[int]
) -> PriceColumns:
    regions = np.array(texts(read(folder / files.REGIONS_FILE, files.REGIONS), "region"))
    provenances = read_provenances(folder)
    tables, first_type = [], 0
    for part, length in zip(parts, lengths, strict=True):
        path = folder / f"prices{part}.csv.gz"
        table = read_numbers(path, files.PRICES)
        _check_references(table["type_id"], length, path.name, "type_id")
        _check_references(table["region_id"], len(regions), path.name, "region_id")
        _check_references(table["provenance_id"], len(provenances), path.name, "provenance_id")
        tables.append({**table, "type_id": table["type_id"] + first_type})
        first_type += length
    whole = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return _price_columns(whole, types, regions, provenances)


def _price_columns(
    table: Mapping[str, Floats], types: TypeColumns, regions: Texts,
    provenances: tuple[Provenance, ...],
) -> PriceColumns:  # fmt: skip
    order = np.argsort(regions, kind="stable")
    rank = np.empty(len(regions), dtype=np.int64)
    rank[order] = np.arange(len(regions))
    shortest_h, step_h = bills(types, table["type_id"].astype(np.int64))
    return PriceColumns(
        type_index=table["type_id"].astype(np.int64),
        region_index=rank[table["region_id"].astype(np.int64)],
        regions=regions[order],
        on_demand_usd_per_h=table["on_demand_usd_per_h"],
        spot_usd_per_h=table["spot_usd_per_h"],
        reserved_1y_usd_per_h=table["reserved_1y_usd_per_h"],
        reserved_3y_usd_per_h=table["reserved_3y_usd_per_h"],
        spot_interruption_band=table["spot_interruption_band"],
        max_instances=np.full(len(table["type_id"]), np.inf),
        shortest_bill_h=shortest_h,
        bill_step_h=step_h,
        provenance_index=table["provenance_id"].astype(np.int64),
        provenances=provenances,
    )


def _check_references(values: Floats, limit: int, name: str, column: str) -> None:
    wrong = (values >= limit) | (values != np.floor(values))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise CatalogueError(
            f"{name}, row {at + 2}, column {column!r}: {values[at]:g} is not a row of the table "
            f"it refers to, which has {limit}",
            hint="the files of this snapshot do not belong together: get all of them again",
        )
