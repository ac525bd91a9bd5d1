"""Published measurements: who made them, where they lie, and how they are read in either form."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from advisor import data
from advisor.collectors import atomic
from advisor.errors import AbsentDataError, ModelError, pip_hint
from advisor.records import RunRecord, reads
from advisor.records.files import read_records, to_line

if TYPE_CHECKING:
    import pandas as pd

    from advisor.records import RunRecord


FOLDER: Final = "measurements"  # of our form, under datasets/ and the user's data folder

_COMPRESSION: Final = 9

_EXACT_BY_DEFAULT: Final = 3  # from this version on pandas reads numbers exactly, unasked


# Published place -> the file that stands for it inside a block; see ``standing_for``.
_STANDING: ContextVar[Mapping[str, Path]] = ContextVar("standing", default=MappingProxyType({}))


@contextmanager
def standing_for(published: str, path: Path) -> Iterator[None]:
    """Let a file stand for a published table: every reader inside the block gets it instead."""
    token = _STANDING.set({**_STANDING.get(), published: path})
    try:
        yield
    finally:
        _STANDING.reset(token)


def _as_is(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """A file that lies in one of two places under a folder of measurements.

    ``file`` is where our form lies under ``measurements/``, ``published`` where the collected one
    does under a folder laid out like ``shared/data``.
    """

    file: str
    published: str

    def path_under(self, root: Path) -> Path | None:
        """Return what there is of it under a folder, the published form first."""
        if self.published in _STANDING.get():
            return _STANDING.get()[self.published]
        for place in (self.published, f"{FOLDER}/{self.file}"):
            if (root / place).exists():
                return root / place
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable(StoredTable):
    # our column -> the published one. Empty where the table has a reader and a writer of its own,
    # which know both forms.
    columns: Mapping[str, str]
    # our columns after ``tidy``, where they are not those of ``columns``
    form: tuple[str, ...] = ()
    # published columns that a table may lack: ours is empty then
    optional: frozenset[str] = frozenset()
    # our column -> the published units in one of ours
    divisors: Mapping[str, float] = field(default_factory=dict)
    # what else is done to the frame of our columns: labels changed, rows left out
    tidy: Callable[[pd.DataFrame], pd.DataFrame] = _as_is
    # makes our form of a folder, where the published form is not one CSV file
    collect: Callable[[Path], pd.DataFrame] | None = None
    # of our form: the rows whose licence lets them ship
    selection: Callable[[pd.DataFrame], pd.DataFrame] = _as_is
    # published columns that tell a user's table from those of other suites; empty where ``advisor
    # validate TABLE`` does not take this table
    tell: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, file: str, published: str, columns: str, *, tell: str = "", **more: Any
    ) -> PublishedTable:
        """Return a table whose columns are words: ``OURS=PUBLISHED/DIVISOR``, ``?`` if optional.

        >>> table = PublishedTable.of("a.csv", "b.csv", "model? step_s=step_ms/1e3")
        >>> table.columns, table.optional, table.divisors
        ({'model': 'model', 'step_s': 'step_ms'}, frozenset({'model'}), {'step_s': 1000.0})
        """
        names, optional, divisors = {}, set(), {}
        for word in columns.split():
            named, _, divisor = word.removesuffix("?").partition("/")
            ours, _, theirs = named.partition("=")
            names[ours] = theirs or ours
            if divisor:
                divisors[ours] = float(divisor)
            if word.endswith("?"):
                optional.add(names[ours])
        return cls(
            file=file, published=published, columns=names, optional=frozenset(optional),
            divisors=divisors, tell=frozenset(tell.split()), **more,
        )  # fmt: skip

    @property
    def ours(self) -> tuple[str, ...]:
        return self.form or tuple(self.columns)

    def normalise(self, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
        """Return our form of a frame, which may be of either form.

        Raises ModelError if a column is missing in both, or a column of numbers holds a text.
        """
        form = list(self.ours)
        if set(form) <= set(frame.columns):
            return frame[form]
        missing = sorted(set(self.columns.values()) - self.optional - set(frame.columns))
        if missing:
            raise ModelError(
                f"cannot read {path}: it lacks the column{'s' * (len(missing) > 1)} "
                f"{', '.join(missing)}",
                hint=f"the form is that of {self.published}",
            )
        ours = frame.reindex(columns=list(self.columns.values()))
        ours = ours.set_axis(list(self.columns), axis=1)
        try:
            for name, divisor in self.divisors.items():
                ours[name] = ours[name].astype(float) / divisor
            return self.tidy(ours)[form].reset_index(drop=True)
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"cannot read {path}: {error}", hint=f"the form is that of {self.published}"
            ) from error

    def read_under(self, root: Path) -> pd.DataFrame | None:
        """Read what there is of this table under a folder, None where there is nothing.

        Raises ModelError if it cannot be read, or as ``normalise``.
        """
        path = self.path_under(root)
        if path is None:
            return None
        if self.collect is not None and path == root / self.published:
            return self.collect(root)
        return self.read_file(path)

    def read_file(self, path: Path) -> pd.DataFrame:
        """Read a file of either form; returns ours.

        Raises ModelError if it cannot be read, or as ``normalise``.
        """
        return self.normalise(read_frame(path), path)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV, packed where the name says so; the same bytes for the same frame."""
    text = frame.to_csv(index=False, lineterminator="\n").encode()
    packed = gzip.compress(text, _COMPRESSION, mtime=0) if path.suffix == ".gz" else text
    atomic.write_bytes(path, packed)


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV or parquet file, numbers exactly as they are written.

    Raises ModelError if it cannot be read.
    """
    import pandas as pd

    options: dict[str, Any] = {"low_memory": False}
    if int(pd.__version__.split(".")[0]) < _EXACT_BY_DEFAULT:
        options["float_precision"] = "round_trip"
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        frame: pd.DataFrame = pd.read_csv(path, **options)
    except ImportError as error:
        raise ModelError(
            f"{path} is read with pyarrow, which is not installed", hint=pip_hint("pyarrow")
        ) from error
    except (OSError, EOFError, ValueError) as error:
        raise ModelError(
            f"cannot read {path}: {error}", hint="name the measurements with --data"
        ) from error
    return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(StoredTable):
    """Labelled runs: as published, and the run records that ``collect`` makes, which ship."""

    collect: Callable[[Path], list[RunRecord]]

    def read_under(self, root: Path) -> list[RunRecord] | None:
        """Read what there is of them under a folder, None where there is nothing.

        Raises RunError if a row makes no sense.
        """
        path = self.path_under(root)
        if path is None:
            return None
        return self.collect(path) if path == root / self.published else read_records(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Files of a repository, ``OWNER/NAME`` on GitHub, at one commit as far as it is known."""

    repository: str
    commit: str

    @property
    def url(self) -> str:
        return f"https://github.com/{self.repository}/tree/{self.commit}"


def github(*places: str) -> tuple[Upstream, ...]:
    """Return the repositories named as ``OWNER/NAME@COMMIT``."""
    parts = (place.partition("@") for place in places)
    return tuple(Upstream(repository=name, commit=commit) for name, _, commit in parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # one object a data set
class Dataset:
    """A data set: tables, labelled runs, and files that keep their published form.

    ``name`` is the folder of its tables in our form; ``ships`` says whether they come with the
    package.
    """

    name: str
    title: str
    upstream: tuple[Upstream, ...]
    licence: str
    ships: bool
    is_joined: bool = False  # upstream's files were joined by hand: only a copy can be fetched
    tables: Mapping[str, PublishedTable] = field(default_factory=dict)
    runs: Mapping[str, Collection] = field(default_factory=dict)
    files: Mapping[str, StoredTable] = field(default_factory=dict)

    def read(self, table: str, folder: Path) -> pd.DataFrame:
        """Read a table in our form from a folder of measurements, or from one file, of any form.

        Raises AbsentDataError if it is not there, or cannot be read.
        """
        found = self.tables[table].read_file(folder) if folder.is_file() else None
        for root in roots(folder):
            if found is None:
                found = self.tables[table].read_under(root)
        if found is None:
            raise self.absent(folder)
        note_frame(f"{self.name}/{table}", found)
        return found

    def read_runs(self, runs: str, folder: Path) -> list[RunRecord]:
        """Read labelled runs from a folder of measurements, in either form.

        Raises AbsentDataError if they are not there. Raises RunError if a row makes no sense.
        """
        for root in roots(folder):
            found = self.runs[runs].read_under(root)
            if found is not None:
                reads.note_table(f"{self.name}/{runs}", [to_line(record) for record in found])
                return found
        raise self.absent(folder)

    def path(self, name: str, folder: Path) -> Path:
        """Return where a file is that keeps its form, or a table that has a reader of its own.

        Raises AbsentDataError if it is nowhere.
        """
        place = self.files[name] if name in self.files else self.tables[name]
        for root in roots(folder):
            found = place.path_under(root)
            if found is not None:
                reads.note_file(f"{self.name}/{name}", found)
                return found
        raise self.absent(folder)

    def has(self, name: str, folder: Path) -> bool:
        one = self.tables[name] if name in self.tables else self.runs[name]
        return any(one.path_under(root) for root in roots(folder))

    def is_in(self, folder: Path) -> bool:
        return all(any(place.path_under(root) for root in roots(folder)) for place in self.places)

    @property
    def places(self) -> tuple[StoredTable, ...]:
        return (*self.tables.values(), *self.runs.values(), *self.files.values())

    def absent(self, folder: Path) -> AbsentDataError:
        if folder != data.root("datasets"):
            return AbsentDataError(
                f"cannot read {self.title}: not under {folder}",
                hint="name a folder laid out like shared/data with --data",
            )
        source = " --from COPY" if self.is_joined else ""
        return AbsentDataError(
            f"cannot read {self.title}: it is not here",
            hint=f"advisor data fetch {self.name}{source}",
        )


def packaged_alone() -> Path:
    """Return the packaged folder as one that was named: nothing fetched, no mirror."""
    return data.root("datasets") / FOLDER / ".."


def roots(folder: Path) -> tuple[Path, ...]:
    """Return the folders that are looked through where measurements of ``folder`` are asked for.

    A folder that was named is looked through alone. The packaged one is followed by what was
    fetched, and by the mirror.
    """
    if folder != data.root("datasets"):
        return (folder,)
    mirror = data.shared()
    return (folder, data.user_data(), *([mirror / "data"] if mirror else []))


def note_frame(name: str, frame: pd.DataFrame) -> None:
    """Note that a table was read; it is written out only where somebody collects."""
    reads.note_table(name, _lines(frame))


def _lines(frame: pd.DataFrame) -> Iterator[str]:
    yield from frame.to_csv(index=False, lineterminator="\n").splitlines()
