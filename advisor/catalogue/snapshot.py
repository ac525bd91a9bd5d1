"""Read a snapshot: the files of one folder become columns.

Files under CC BY-SA and parts with another licence may be missing; what they fill stays unknown.
Tables that a snapshot made by ``update`` does not carry (accelerators, links) come from the
bundled one.
``current_folder`` is the one in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from advisor import data
from advisor.catalogue import files
from advisor.catalogue.accelerators import Accelerator, listed, other_names, read_accelerators
from advisor.catalogue.offer_columns import Floats, Offers, Provenance, Texts, TypeColumns
from advisor.catalogue.specifications import build_types
from advisor.catalogue.tables import Column, parse_numbers, read, read_bytes, read_facts, unpack
from advisor.collectors import atomic, bounded
from advisor.collectors.atomic import config_folder
from advisor.errors import CatalogueError
from advisor.providers import bills

__all__ = ["cache_folder", "config_folder"]


def cache_folder() -> Path:
    """Return the folder of updated snapshots and downloads: all of it can be fetched again."""
    return atomic.cache_folder() / "catalogue"


_KEPT: Final = 8  # files; a snapshot has two or three tables, an update makes new ones
_SMALL_BYTES: Final = 100_000  # parsed in a few milliseconds anyway


def read_numbers(path: Path, columns: Sequence[Column]) -> dict[str, Floats]:
    """Read a table of numbers, one float array a declared column; a missing one is all NaN.

    A table that was parsed before is read as an array, ten times as fast. The copy is keyed by the
    table's bytes and its declaration, so it cannot be stale; whatever goes wrong with it only
    costs the time to parse again.

    Raises CatalogueError if the file cannot be read or a cell breaks its column's rule.
    """
    packed = read_bytes(path)
    digest = hashlib.sha256(packed + repr(columns).encode()).hexdigest()[:32]
    copy = cache_folder() / "parsed" / f"{digest}.npy"
    matrix = _load(copy, len(columns))
    if matrix is None:
        table = parse_numbers(unpack(packed, path), columns, path.name)
        rows = max(map(len, table.values()))
        missing = np.full(rows, np.nan)
        matrix = np.stack([table.get(column.name, missing) for column in columns])
        if len(packed) > _SMALL_BYTES:
            _save(copy, matrix)
    return {column.name: matrix[at] for at, column in enumerate(columns)}


def _load(copy: Path, columns: int) -> Floats | None:
    try:
        matrix = np.load(copy, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_sound = matrix.dtype == np.float64 and matrix.ndim == 2 and len(matrix) == columns
    return matrix if is_sound else None


def _save(copy: Path, matrix: Floats) -> None:
    out = io.BytesIO()
    np.save(out, matrix, allow_pickle=False)
    with contextlib.suppress(OSError):
        atomic.write_bytes(copy, out.getvalue())
        copies = sorted(copy.parent.glob("*.npy"), key=lambda one: one.stat().st_mtime)
        for old in copies[:-_KEPT]:
            old.unlink()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one folder holds; ``folders`` are where further files of it are looked for."""

    folders: tuple[Path, ...]
    types: TypeColumns
    prices: Offers
    accelerators: Mapping[str, Accelerator]
    aliases: Mapping[str, str]


Kind = TypeVar("Kind", bound=Snapshot)


def read_snapshot(folder: Path, bundled: Path, kind: type[Kind]) -> Kind:
    """Read the tables of ``folder``; those it lacks come from ``bundled``.

    Raises CatalogueError if a file is missing, damaged or breaks a rule: the error names file, row
    and column.
    """
    if not folder.is_dir():
        raise CatalogueError(
            f"no catalogue at {folder}", hint="name a snapshot's folder, or leave it out"
        )
    folders = (folder, bundled)
    accelerators = listed(read_accelerators(folders))
    parts = part_names(folder)
    tables = [read(folder / f"types{part}.csv.gz", files.TYPES) for part in parts]
    types = build_types(
        {name: np.concatenate([table[name] for table in tables]) for name in tables[0]},
        find(folders, files.SPECIFICATIONS_FILE),
        {
            name: find(folders, name)
            for name in (files.NETWORKS_FILE, files.PROCESSORS_FILE, files.BURSTABLE_FILE)
        },
        accelerators,
    )
    _check_unique(types)
    prices = _prices(folder, parts, types, [len(table["provider"]) for table in tables])
    return kind(
        folders=folders,
        types=types,
        prices=prices,
        accelerators=accelerators,
        aliases=other_names(accelerators.values()),
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
    rows = read_facts(folder / files.PROVENANCE_FILE, files.PROVENANCE)
    for number, row in enumerate(rows, start=2):
        if not _is_day(row["as_of"]):
            raise CatalogueError(
                f"{files.PROVENANCE_FILE}, row {number}, column 'as_of': is {row['as_of']!r}, "
                "not a day",
                hint="write YYYY-MM-DD, or nothing for a source without a date",
            )
    return tuple(Provenance(**row) for row in rows)


def _is_day(text: str) -> bool:
    try:
        return not text or date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _check_unique(types: TypeColumns) -> None:
    pairs = Counter(zip(types.provider.tolist(), types.name.tolist(), strict=True))
    for (provider, name), count in pairs.most_common(1):
        if count > 1:
            raise CatalogueError(
                f"types.csv.gz holds {name!r} of {provider} twice",
                hint="keep one row, and one spelling of its name",
            )


def _prices(
    folder: Path, parts: Sequence[str], types: TypeColumns, lengths: Sequence[int]
) -> Offers:
    regions = np.array(read(folder / files.REGIONS_FILE, files.REGIONS)["region"])
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
) -> Offers:  # fmt: skip
    order = np.argsort(regions, kind="stable")
    rank = np.empty(len(regions), dtype=np.int64)
    rank[order] = np.arange(len(regions))
    shortest_h, step_h = bills(types.provider, types.accelerator_count)
    type_index = table["type_id"].astype(np.int64)
    return Offers.filled(
        len(type_index),
        type_index=type_index,
        region_index=rank[table["region_id"].astype(np.int64)],
        regions=regions[order],
        max_instances=np.inf,
        shortest_bill_h=shortest_h[type_index],
        bill_step_h=step_h[type_index],
        provenance_index=table["provenance_id"].astype(np.int64),
        provenances=provenances,
        **{name: column for name, column in table.items() if not name.endswith("_id")},
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


KEPT: Final = 3  # snapshots: the one in use, the one before, and one more
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{12}")


def bundled_folder() -> Path:
    """Return the snapshot that came with the package."""
    return data.root("datasets") / "catalogue"


def current_folder() -> Path:
    """Return the snapshot in use: the updated one, unless the bundled one is newer.

    It is the bundled one, or the newest that ``update`` made. Snapshots are folders that are never
    changed after they were made; a small file names the one in use and is replaced atomically, so
    that a crash at any moment leaves the old one or the new one.
    """
    updated = updated_folder()
    if updated is None:
        return bundled_folder()
    return updated if newest_date(updated) >= newest_date(bundled_folder()) else bundled_folder()


def named_folder(name: str) -> Path:
    """Return the snapshot that a user calls so: bundled, current, previous, or a folder.

    Raises CatalogueError if it is no folder.
    """
    usual: dict[str, Callable[[], Path]] = {
        "bundled": bundled_folder,
        "current": current_folder,
        "previous": lambda: previous_folder(current_folder()),
    }
    if name in usual:
        return usual[name]()
    if not Path(name).is_dir():
        raise CatalogueError(
            f"no snapshot {name!r}", hint="write bundled, current, previous, or a folder"
        )
    return Path(name)


def updated_folder() -> Path | None:
    """Return the snapshot that the last update or rollback chose, or None."""
    try:
        name = _pointer().read_text().strip()
    except (OSError, ValueError):
        return None
    folder = _snapshots() / name
    return folder if _NAME.fullmatch(name) and folder.is_dir() else None


def newest_date(folder: Path) -> str:
    """Return the ISO date of the newest price of a snapshot.

    Raises CatalogueError if its sources cannot be read.
    """
    return max((one.as_of for one in read_provenances(folder)), default="")


def previous_folder(folder: Path) -> Path:
    """Return the snapshot from which this one was made; the bundled one where it is gone."""
    name = str(read_manifest(folder).get("previous", ""))
    before = _snapshots() / name
    return before if _NAME.fullmatch(name) and before.is_dir() else bundled_folder()


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """Return what ``update`` noted of a snapshot; empty for the bundled one."""
    return bounded.read_object(folder / MANIFEST)


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Note how a snapshot was made."""
    atomic.write_text(folder / MANIFEST, json.dumps(content, indent=1) + "\n")


def use(folder: Path) -> None:
    """Make a snapshot the one in use, and forget the oldest ones.

    ``folder`` is the bundled one or one of ``snapshots/``.
    """
    if folder == bundled_folder():
        _pointer().unlink(missing_ok=True)
        return
    atomic.write_bytes(_pointer(), f"{folder.name}\n".encode())
    kept = {folder, previous_folder(folder)}
    made = sorted(one for one in _snapshots().iterdir() if _NAME.fullmatch(one.name))
    for old in made[:-KEPT]:
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def roll_back() -> Path:
    """Return to the snapshot before the one in use, and return its folder.

    Raises CatalogueError if the bundled snapshot is in use already.
    """
    updated = updated_folder()
    if updated is None:
        raise CatalogueError(
            "there is no update to undo: the bundled snapshot is in use",
            hint="see: advisor catalogue info",
        )
    before = previous_folder(updated)
    use(before)
    return before


def add(write: Callable[[Path], None], made_at: datetime, *, unlike: Path) -> Path | None:
    """Make a snapshot and return its folder; it appears only when ``write`` has ended well.

    Hold the lock: what other writers left half done is removed.

    ``write``: writes the files into the folder it is given; ``made_at``: in UTC; with a digest of
    the tables it makes the name; ``unlike``: a snapshot; if the new tables are the same, nothing
    is made and None returned.
    """
    with atomic.drafting_folder(_snapshots() / "new") as partial:
        write(partial)
        if digest(partial) == digest(unlike):
            return None
        folder = _snapshots() / f"{made_at:%Y%m%dT%H%M%SZ}-{digest(partial)}"
        if not folder.exists():  # undone and made again within a second: it is the same
            atomic.put_in_place(partial, folder)
        return folder


def digest(folder: Path) -> str:
    """Return twelve digits that tell the tables of one snapshot from those of another."""
    hashed = hashlib.sha256()
    for path in sorted(folder.glob("*.csv*")):
        if path.name.startswith(("types", "prices", "regions", "provenance")):
            hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:12]


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Let one update run at a time; the system frees the lock of a process that died.

    Raises CatalogueError if another one is running.
    """
    path = cache_folder() / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows: the switch is atomic all the same
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CatalogueError(
                "another update is running", hint="wait until it has ended"
            ) from error
        yield


def _snapshots() -> Path:
    return cache_folder() / "snapshots"


def _pointer() -> Path:
    return cache_folder() / "current"
