"""Files as they were downloaded, each with its address, day and checksum.

``raw/<source>/<name>`` beside an ``index.json``. A copy is only used again if its checksum still
holds; a file that is being written has another name, so that no half of one is ever found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from advisor.catalogue.adapters.base import RawFile
from advisor.collectors import atomic, bounded
from advisor.errors import CatalogueError

_INDEX: Final = "index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the index says of a file."""

    source: str
    name: str
    url: str
    sha256: str
    retrieved_at: str
    etag: str
    last_modified: str

    @property
    def headers(self) -> dict[str, str]:
        """What to send so that the server answers only if the file has changed."""
        headers = {}
        if self.etag:
            headers["If-None-Match"] = self.etag
        if self.last_modified:
            headers["If-Modified-Since"] = self.last_modified
        return headers


class RawStore:
    """The folder of downloads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, source: str, name: str, url: str) -> Kept | None:
        """Return the copy from before, if it is of this address and unharmed."""
        entry = self._index(source).get(name)
        try:
            kept = Kept(source=source, name=name, **entry) if isinstance(entry, dict) else None
        except TypeError:
            return None
        if kept is None or kept.url != url or _sha256(self._path(source, name)) != kept.sha256:
            return None
        return kept

    def confirmed(self, kept: Kept, checked_at: str) -> RawFile:
        """Return a copy that the server says is still current: it is as of now."""
        return self.keep(
            kept.source,
            kept.name,
            url=kept.url,
            sha256=kept.sha256,
            retrieved_at=checked_at,
            etag=kept.etag,
            last_modified=kept.last_modified,
        )

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
        kept = Kept(source=source, name=name, **entry)
        known = asdict(kept)
        del known["source"], known["name"]
        content = json.dumps({**self._index(source), name: known}, indent=1, sort_keys=True)
        atomic.write_bytes(self._path(source, _INDEX), content.encode())
        return RawFile(
            name=name,
            path=self._path(source, name),
            url=kept.url,
            retrieved_at=kept.retrieved_at,
            sha256=kept.sha256,
        )

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
