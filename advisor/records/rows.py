"""Rows of a delimited file, every complaint with file, row and column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records.nouns import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table: text in, checked values out. Rows count from 1 below the header."""

    path: Path
    number: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """Return what stands in a column that must not be empty."""
        value = self.cells.get(column) or ""
        if not value.strip():
            raise self.error(column, "is empty")
        return value.strip()

    def label(self, column: str, *, default: str = "") -> str:
        """Return what stands in a column that may be empty."""
        return (self.cells.get(column) or default).strip()

    def real(self, column: str) -> float:
        """Return a finite number."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise self.error(column, f"{text} is not finite")
        return value

    def known(self, column: str) -> float | None:
        """Return a finite number, or None where the cell is empty or says nan."""
        text = (self.cells.get(column) or "").strip()
        return None if text.lower() in ("", "nan", "na", "none") else self.real(column)

    def positive(self, column: str) -> float:
        """Return a positive number."""
        value = self.real(column)
        if value <= 0:
            raise self.error(column, f"{value} is not positive")
        return value

    def count(self, column: str) -> int:
        """Return a positive whole number."""
        value = self.positive(column)
        if value != int(value):
            raise self.error(column, f"{value} is not a whole number")
        return int(value)

    def error(self, column: str, problem: str) -> RunError:
        """Return the complaint about one cell."""
        return RunError(
            f"{self.path}: row {self.number}: {column}: {problem}",
            hint="correct or drop the row; nothing was imported",
        )


@contextmanager
def located(path: Path, row: int) -> Iterator[None]:
    """Add file and row to what a noun refuses."""
    try:
        yield
    except RunError as error:
        raise RunError(f"{path}: row {row}: {error}", hint=error.hint) from error


def read_rows(path: Path, columns: Collection[str], *others: Collection[str]) -> list[Row]:
    """Read a comma-separated file that must have ``columns``, or one of the ``others``.

    Raises RunError if it cannot be read, or a column is missing.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = bounded.csv_tables(lines)
            present = set(reader.fieldnames or ())
            missing = sorted(set(columns) - present)
            if missing and not any(present >= set(other) for other in others):
                names = " ".join(", ".join(reader.fieldnames or ()).split())
                found = names[:200] or "an empty file"
                raise RunError(
                    f"{path}: no column {missing[0]!r}; found {found}",
                    hint=f"its first line names the columns, at least {','.join(columns)}; "
                    "if it is another file, name its format",
                )
            return [Row(path=path, number=n, cells=c) for n, c in enumerate(reader, start=1)]
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}", hint="name the folder or file") from error


def inside(path: Path, name: str) -> Path:
    """Return ``path`` if it is a file, else the file ``name`` in the folder ``path``."""
    return path if path.is_file() else path / name


def located_records(rows: Iterable[Row], build: Callable[[Row], RunRecord]) -> list[RunRecord]:
    """Build a record of each row; what the record refuses is told with file and row."""
    records = []
    for row in rows:
        with located(row.path, row.number):
            records.append(build(row))
    return records


class Repeats:
    """Counts how often a cell has been seen: the replicate number of each row."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def next(self, cell: str) -> int:
        """Return 0 for the first row of a cell, then 1, ..."""
        self._seen[cell] += 1
        return self._seen[cell] - 1
