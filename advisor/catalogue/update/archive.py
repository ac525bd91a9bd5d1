"""Unpack a zip or tar file that a user gave, into a folder of its own and nowhere else."""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

from advisor.errors import CatalogueError

MAX_BYTES: Final = 2 << 30  # of all files unpacked
MAX_FILES: Final = 50_000
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A file of an archive; ``is_plain`` is false for links, devices and the like."""

    name: str
    is_folder: bool
    is_plain: bool
    content: IO[bytes] | None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack all files of an archive into a folder.

    Raises CatalogueError if the archive is damaged, holds a link or a name that leads out of the
    folder, or unpacks to more than is reasonable.
    """
    size = 0
    try:
        for number, member in enumerate(_members(archive), start=1):
            if number > MAX_FILES:
                raise _refused(archive, f"holds more than {MAX_FILES:,} files")
            target = folder.joinpath(*_safe_parts(archive, member.name))
            if member.is_folder:
                continue
            if not member.is_plain or member.content is None:
                raise _refused(archive, f"holds {member.name!r}, which is not a plain file")
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.content as source, target.open("wb") as file:
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


def _members(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                mode = entry.external_attr >> 16
                is_plain = not stat.S_IFMT(mode) or stat.S_ISREG(mode)
                is_folder = entry.is_dir()
                content = opened.open(entry) if is_plain and not is_folder else None
                yield _Member(
                    name=entry.filename, is_folder=is_folder, is_plain=is_plain, content=content
                )
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            content = packed.extractfile(member) if member.isreg() else None
            yield _Member(
                name=member.name,
                is_folder=member.isdir(),
                is_plain=member.isreg(),
                content=content,
            )


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
