"""Files as they were downloaded, each with its address, day and checksum.

``raw/<source>/<name>`` beside an ``index.json``. A copy is only used again if its checksum still
holds; a file that is being written has another name, so that no half of one is ever found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from advisor.catalogue.adapters.base import RawFile
from advisor.collectors import atomic, bounded
from advisor.errors import CatalogueError

_INDEX: Final = "index.json"


class RawStore:
    """The folder of downloads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, source: str, name: str, url: str) -> RawFile | None:
        """Return the copy from before, if it is of this address and unharmed."""
        entry = self._index(source).get(name)
        try:
            kept = self._file(source, name, entry) if isinstance(entry, dict) else None
        except TypeError:
            return None
        if kept is None or kept.url != url or _sha256(kept.path) != kept.sha256:
            return None
        return kept

    @contextlib.contextmanager
    def writing(self, source: str, name: str) -> Iterator[IO[bytes]]:
        """Open a file to write; it takes its place when the block ends without an error."""
        path = self._path(source, name)
        try:
            with atomic.writing(path) as file:
                yield file
        except OSError as error:
            raise CatalogueError(
                f"cannot write {path}: {error.strerror or error}",
                hint="free some space, or set XDG_CACHE_HOME to another folder",
            ) from error

    def keep(self, source: str, name: str, **entry: str) -> RawFile:
        """Enter a file that was written into the index."""
        kept = self._file(source, name, entry)
        content = json.dumps({**self._index(source), name: entry}, indent=1, sort_keys=True)
        atomic.write_bytes(self._path(source, _INDEX), content.encode())
        return kept

    def _file(self, source: str, name: str, entry: Mapping[str, str]) -> RawFile:
        return RawFile(name=name, path=self._path(source, name), **entry)

    def _index(self, source: str) -> dict[str, Any]:
        try:
            content = bounded.read_json(self._path(source, _INDEX))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _path(self, source: str, name: str) -> Path:
        """Return where a file lies; names come from adapters, perhaps from other packages."""
        for part in (source, name):
            if not part or part.startswith(".") or set(part) & set("/\\\0"):
                raise CatalogueError(
                    f"{part!r} is not a name for a downloaded file",
                    hint="report it to its authors",
                )
        return self._folder / source / name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()
