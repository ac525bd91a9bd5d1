"""The snapshot in use: the bundled one, or the newest that ``update`` made.

Snapshots are folders that are never changed after they were made; a small file names the one in
use and is replaced atomically, so that a crash at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from advisor import data
from advisor.catalogue.places import cache_folder
from advisor.catalogue.snapshot import read_provenances
from advisor.collectors import atomic, bounded
from advisor.errors import CatalogueError

KEPT: Final = 3  # snapshots: the one in use, the one before, and one more
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{12}")


def bundled_folder() -> Path:
    """Return the snapshot that came with the package."""
    return data.root("datasets") / "catalogue"


def current_folder() -> Path:
    """Return the snapshot in use: the updated one, unless the bundled one is newer."""
    updated = updated_folder()
    if updated is None:
        return bundled_folder()
    return updated if newest_date(updated) >= newest_date(bundled_folder()) else bundled_folder()


def named_folder(name: str) -> Path:
    """Return the snapshot that a user calls so: bundled, current, previous, or a folder.

    Raises CatalogueError if it is no folder.
    """
    if name == "bundled":
        return bundled_folder()
    if name == "current":
        return current_folder()
    if name == "previous":
        return previous_folder(current_folder())
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
    try:
        content = bounded.read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


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

    Parameters
    ----------
    write : callable
        Writes the files into the folder it is given.
    made_at : datetime
        In UTC; with a digest of the tables it makes the name.
    unlike : Path
        A snapshot; if the new tables are the same, nothing is made and None returned.
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
