"""Files that a user downloaded: a folder or an archive takes the place of the network."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.catalogue.adapters import RawFile, Source
from advisor.catalogue.adapters.base import local_file
from advisor.catalogue.update.archive import is_archive, unpack
from advisor.collectors import bounded
from advisor.errors import UsageError

_MAX_FILES: Final = 50_000
_INDEX: Final = "index.json"  # as the raw store writes it


@contextlib.contextmanager
def given_files(path: Path, sources: Sequence[Source]) -> Iterator[dict[str, list[RawFile]]]:
    """Give the files of each source that has any, until the block ends.

    A folder that was itself downloaded by ``update`` (its cache's ``raw``) brings the day of each
    file in its ``index.json``; a file's own date of change is not believed. Raises UsageError if
    there is no such path, or nothing in it is for any source; CatalogueError if an archive is
    damaged or not safe.
    """
    with contextlib.ExitStack() as stack:
        if is_archive(path):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            unpack(path, folder)
        elif path.is_dir():
            folder = path
        else:
            raise UsageError(
                f"{path} is neither a folder nor an archive",
                hint="name a folder, a .zip or a .tar.gz with the downloaded files",
            )
        found = {source.name: _files_of(source, folder, path.name) for source in sources}
        found = {name: files for name, files in found.items() if files}
        if not found:
            raise UsageError(
                f"nothing in {path} is for {', '.join(source.name for source in sources)}",
                hint="put each source's files into a folder of its name; see docs/catalogue.md",
            )
        yield found


def _files_of(source: Source, folder: Path, name: str) -> list[RawFile]:
    try:
        adapter = source.make()
    except Exception:
        return []
    files = []
    for path in sorted(folder.rglob("*"))[:_MAX_FILES]:
        relative = path.relative_to(folder).as_posix()
        if path.is_file() and path.name != _INDEX and adapter.owns(f"{name}/{relative}"):
            file = local_file(relative, path)
            files.append(_dated(file, _index(path.parent).get(path.name)))
    return files


def _index(folder: Path) -> Mapping[str, Any]:
    try:
        content = bounded.read_json(folder / _INDEX)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _dated(file: RawFile, entry: Any) -> RawFile:
    """Add what the index says, if it is of these bytes."""
    if not isinstance(entry, dict) or entry.get("sha256") != file.sha256:
        return file
    return replace(
        file, url=str(entry.get("url", "")), retrieved_at=str(entry.get("retrieved_at", ""))
    )
