"""A data set: who measured it, under what licence it may be passed on, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from advisor import data
from advisor.errors import AbsentDataError
from advisor.measurements import reads
from advisor.measurements.collection import Collection
from advisor.measurements.table import FOLDER, PublishedTable
from advisor.records.files import to_line

if TYPE_CHECKING:
    import pandas as pd

    from advisor.records import RunRecord


class Located(Protocol):
    """Something that lies in one of two places under a folder of measurements."""

    @property
    def published(self) -> str:
        """Where its published form lies."""
        ...

    def path_under(self, root: Path) -> Path | None:
        """Return where it is, None where it is not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that keeps its published form.

    Attributes
    ----------
    file, published : str
        As of ``PublishedTable``.
    """

    file: str
    published: str

    def path_under(self, root: Path) -> Path | None:
        """Return where it is under a folder, None where it is not."""
        for place in (self.published, f"{FOLDER}/{self.file}"):
            if (root / place).is_file():
                return root / place
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Files of a public repository at one commit.

    Attributes
    ----------
    repository : str
        ``OWNER/NAME`` on GitHub.
    commit : str
        As long as it is known.
    """

    repository: str
    commit: str

    @property
    def url(self) -> str:
        """Where a person looks at it."""
        return f"https://github.com/{self.repository}/tree/{self.commit}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # one object a data set
class Dataset:
    """A data set.

    Attributes
    ----------
    name : str
        Folder of its tables in our form.
    title : str
        One line.
    upstream : tuple of Upstream
    licence : str
    ships : bool
        Whether its tables come with the package.
    tables : mapping of str to PublishedTable
    runs : mapping of str to Collection
        Labelled runs.
    files : mapping of str to PublishedFile
        Files that keep their published form.
    """

    name: str
    title: str
    upstream: tuple[Upstream, ...]
    licence: str
    ships: bool
    tables: Mapping[str, PublishedTable] = field(default_factory=dict)
    runs: Mapping[str, Collection] = field(default_factory=dict)
    files: Mapping[str, PublishedFile] = field(default_factory=dict)

    def read(self, table: str, folder: Path) -> pd.DataFrame:
        """Read a table in our form from a folder of measurements, or from one file, of any form.

        Raises
        ------
        AbsentDataError
            If it is not there, or cannot be read.
        """
        found = self.tables[table].read_file(folder) if folder.is_file() else None
        for root in roots(folder):
            if found is None:
                found = self.tables[table].read_under(root)
        if found is None:
            raise self.absent(folder)
        reads.note_frame(f"{self.name}/{table}", found)
        return found

    def read_runs(self, runs: str, folder: Path) -> list[RunRecord]:
        """Read labelled runs from a folder of measurements, in either form.

        Raises
        ------
        AbsentDataError
            If they are not there.
        RunError
            If a row makes no sense.
        """
        for root in roots(folder):
            found = self.runs[runs].read_under(root)
            if found is not None:
                reads.note(f"{self.name}/{runs}", [to_line(record) for record in found])
                return found
        raise self.absent(folder)

    def path(self, file: str, folder: Path) -> Path:
        """Return where a file that keeps its form is.

        Raises
        ------
        AbsentDataError
            If it is nowhere.
        """
        for root in roots(folder):
            found = self.files[file].path_under(root)
            if found is not None:
                reads.note_file(f"{self.name}/{file}", found)
                return found
        raise self.absent(folder)

    def place(self, table: str, folder: Path) -> Path:
        """Return where a table is that has a reader of its own.

        Raises
        ------
        AbsentDataError
            If it is nowhere.
        """
        for root in roots(folder):
            found = self.tables[table].path_under(root)
            if found is not None:
                reads.note_file(f"{self.name}/{table}", found)
                return found
        raise self.absent(folder)

    def has(self, name: str, folder: Path) -> bool:
        """Whether a table, or a collection of runs, is there."""
        one = self.tables[name] if name in self.tables else self.runs[name]
        return any(one.path_under(root) for root in roots(folder))

    def is_in(self, folder: Path) -> bool:
        """Whether all of it is there."""
        return all(any(place.path_under(root) for root in roots(folder)) for place in self.places)

    @property
    def places(self) -> tuple[Located, ...]:
        """Everything that is read of it."""
        return (*self.tables.values(), *self.runs.values(), *self.files.values())

    def absent(self, folder: Path) -> AbsentDataError:
        """Return the complaint that this data set is not there."""
        if folder != data.root("datasets"):
            return AbsentDataError(
                f"cannot read {self.title}: not under {folder}",
                hint="name a folder laid out like shared/data with --data",
            )
        return AbsentDataError(
            f"cannot read {self.title}: it is not here", hint=f"advisor data fetch {self.name}"
        )


def roots(folder: Path) -> tuple[Path, ...]:
    """Return the folders that are looked through where measurements of ``folder`` are asked for.

    A folder that was named is looked through alone. The packaged one is followed by what was
    fetched, and by the mirror.
    """
    if folder != data.root("datasets"):
        return (folder,)
    mirror = data.shared()
    return (folder, data.user_data(), *([mirror / "data"] if mirror else []))
