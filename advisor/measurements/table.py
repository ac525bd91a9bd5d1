"""One published table in two forms: as it was collected, and ours, which ships.

A ``PublishedTable`` knows where both forms lie and how the published one becomes ours: columns
renamed and selected, units changed, rows left out. Readers always hand out our form; a file of the
published form is turned into it on the fly, so that anybody can score a table of the form that was
published.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors import atomic
from advisor.errors import ModelError

if TYPE_CHECKING:
    import pandas as pd

MS_PER_S: Final = 1e3
US_PER_S: Final = 1e6
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
class PublishedTable:
    """A table of a data set.

    Attributes
    ----------
    file : str
        Of our form, under ``measurements/``: ``DATASET/NAME.csv`` or ``.csv.gz``.
    published : str
        Where the published form lies under a folder laid out like ``shared/data``.
    columns : mapping of str to str
        Our column -> the published one. Empty where the table has a reader and a writer of its
        own, which know both forms.
    form : tuple of str
        Our columns after ``tidy``, where they are not those of ``columns``.
    optional : frozenset of str
        Published columns that a table may lack: ours is empty then.
    divisors : mapping of str to float
        Our column -> the published units in one of ours.
    tidy : callable
        What else is done to the frame of our columns: labels changed, rows left out.
    collect : callable or None
        Makes our form of a folder laid out like ``shared/data``, where the published form is not
        one CSV file; ``published`` then tells whether it is there.
    selection : callable
        Of our form: the rows whose licence lets them ship.
    tell : frozenset of str
        Published columns that tell a user's table from those of other suites; empty where
        ``advisor validate TABLE`` does not take this table.
    """

    file: str
    published: str
    columns: Mapping[str, str]
    form: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    divisors: Mapping[str, float] = field(default_factory=dict)
    tidy: Callable[[pd.DataFrame], pd.DataFrame] = _as_is
    collect: Callable[[Path], pd.DataFrame] | None = None
    selection: Callable[[pd.DataFrame], pd.DataFrame] = _as_is
    tell: frozenset[str] = frozenset()

    @property
    def ours(self) -> tuple[str, ...]:
        """The columns of our form."""
        return self.form or tuple(self.columns)

    def normalise(self, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
        """Return our form of a frame, which may be of either form.

        Raises
        ------
        ModelError
            If a column is missing in both, or a column of numbers holds a text.
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

    def path_under(self, root: Path) -> Path | None:
        """Return what there is of this table under a folder, the published form first."""
        if self.published in _STANDING.get():
            return _STANDING.get()[self.published]
        for place in (self.published, f"{FOLDER}/{self.file}"):
            if (root / place).exists():
                return root / place
        return None

    def read_under(self, root: Path) -> pd.DataFrame | None:
        """Read what there is of this table under a folder, None where there is nothing.

        Raises
        ------
        ModelError
            If it cannot be read, or as ``normalise``.
        """
        path = self.path_under(root)
        if path is None:
            return None
        if self.collect is not None and path == root / self.published:
            return self.collect(root)
        return self.read_file(path)

    def read_file(self, path: Path) -> pd.DataFrame:
        """Read a file of either form; returns ours.

        Raises
        ------
        ModelError
            If it cannot be read, or as ``normalise``.
        """
        return self.normalise(read_frame(path), path)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV, packed where the name says so; the same bytes for the same frame."""
    text = frame.to_csv(index=False, lineterminator="\n").encode()
    packed = gzip.compress(text, _COMPRESSION, mtime=0) if path.suffix == ".gz" else text
    atomic.write_bytes(path, packed)


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV or parquet file, numbers exactly as they are written.

    Raises
    ------
    ModelError
        If it cannot be read.
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
        raise ModelError(f"cannot read {path}: {error}", hint="pip install pyarrow") from error
    except (OSError, EOFError, ValueError) as error:
        raise ModelError(
            f"cannot read {path}: {error}", hint="name the measurements with --data"
        ) from error
    return frame
