"""Files that a user downloaded: a folder or an archive takes the place of the network.

A zip or tar file is unpacked into a folder of its own and nowhere else.
"""

from __future__ import annotations

import contextlib
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from advisor.catalogue.providers.base import RawFile, local_file
from advisor.catalogue.providers.sources import Source
from advisor.collectors import bounded
from advisor.errors import CatalogueError, UsageError

MAX_BYTES: Final = 2 << 30  # of all files unpacked
MAX_FILES: Final = 50_000
_BLOCK: Final = 1 << 20
_INDEX: Final = "index.json"  # as the raw store writes it


def unpack(archive: Path, folder: Path) -> None:
    """Unpack all files of an archive into a folder.

    Raises CatalogueError if the archive is damaged, holds a link or a name that leads out of the
    folder, or unpacks to more than is reasonable.
    """
    size = 0
    try:
        for number, (name, is_folder, content) in enumerate(_members(archive), start=1):
            if number > MAX_FILES:
                raise _refused(archive, f"holds more than {MAX_FILES:,} files")
            target = folder.joinpath(*_safe_parts(archive, name))
            if is_folder:
                continue
            if content is None:
                raise _refused(archive, f"holds {name!r}, which is not a plain file")
            target.parent.mkdir(parents=True, exist_ok=True)
            with content as source, target.open("wb") as file:
                while block := source.read(_BLOCK):
                    size += len(block)
                    if size > MAX_BYTES:
                        raise _refused(archive, f"unpacks to more than {MAX_BYTES >> 30} GiB")
                    file.write(block)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as error:
        raise _refused(archive, f"cannot be unpacked: {error}") from error


def is_archive(path: Path) -> bool:
    """Tell whether a path is a file that ``unpack`` understands."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def _members(archive: Path) -> Iterator[tuple[str, bool, IO[bytes] | None]]:
    """Go through the names: whether it is a folder's, and the bytes of what is a plain file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                is_plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
                is_file = is_plain and not entry.is_dir()
                yield entry.filename, entry.is_dir(), opened.open(entry) if is_file else None
        return
    with tarfile.open(archive) as packed:
        for one in packed:
            yield one.name, one.isdir(), packed.extractfile(one) if one.isreg() else None


def _safe_parts(archive: Path, name: str) -> tuple[str, ...]:
    """Return the parts of a member's name; refuse what leads out of the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name:
        raise _refused(archive, f"holds {name!r}, which leads out of its folder")
    return path.parts


def _refused(archive: Path, what: str) -> CatalogueError:
    return CatalogueError(
        f"{archive.name} {what}", hint="unpack it yourself and name the folder, if you trust it"
    )


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
                hint="put each source's files into a folder of its name; see docs/prices.md",
            )
        yield found


def _files_of(source: Source, folder: Path, name: str) -> list[RawFile]:
    try:
        adapter = source.make()
    except Exception:
        return []
    files = []
    for path in sorted(folder.rglob("*"))[:MAX_FILES]:
        relative = path.relative_to(folder).as_posix()
        if path.is_file() and path.name != _INDEX and adapter.owns(f"{name}/{relative}"):
            file = local_file(relative, path)
            index = bounded.read_object(path.parent / _INDEX)
            files.append(_dated(file, index.get(path.name)))
    return files


def _dated(file: RawFile, entry: Any) -> RawFile:
    """Add what the index says, if it is of these bytes."""
    if not isinstance(entry, dict) or entry.get("sha256") != file.sha256:
        return file
    return replace(
        file, url=str(entry.get("url", "")), retrieved_at=str(entry.get("retrieved_at", ""))
    )
