"""Read and write one table strictly: every fault names the file, the row and the column.

A table is CSV, gzipped where its name ends in ``.gz``. Its columns are declared once as a
``Column`` each; numbers are checked for being numbers and for lying between absurd bounds. Rows
are counted as an editor counts lines: the header is row 1.
"""

from __future__ import annotations

import csv
import gzip
import io
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

import numpy as np

from advisor.catalogue.offer_columns import Bools, Floats, TableRow
from advisor.collectors import atomic, bounded
from advisor.errors import CatalogueError

MAX_BYTES: Final = 256 * 2**20  # of text; the bundled tables together have 5 MB
MAX_ROWS: Final = 2_000_000  # twenty times the bundled table
_END_OF_ROW: Final = -1e300  # no column allows it

Values = Any  # of a column: a list of texts, or numbers as an array
# How a cell is read: ``names`` are texts with semicolons between, a ``flag`` is "yes" or empty.
Kind = Literal["number", "integer", "text", "names", "flag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What a column of a table may hold."""

    name: str
    kind: Kind = "number"
    # low, high: bounds of a number, both allowed
    low: float = 0.0
    high: float = np.inf
    is_required: bool = False  # the column must exist and no cell may be empty
    is_optional: bool = False  # the whole column may be missing
    hint: str = ""  # what may stand in it, for whoever left it out
    fact: str = ""  # what a record calls it; as the column where empty
    unit: float = 1.0  # of a number, in the unit of the fact

    @property
    def is_number(self) -> bool:
        """Whether its cells are numbers."""
        return self.kind in ("number", "integer")

    @property
    def unknown(self) -> Any:
        """What stands for an empty cell."""
        return np.nan if self.is_number else ""


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes as they lie there.

    Raises CatalogueError if the file is missing, unreadable, or larger than ``MAX_BYTES``.
    """
    try:
        with path.open("rb") as file:
            return bounded.read_bytes(file, most_bytes=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CatalogueError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="get the file again, or name another folder",
        ) from error


def unpack(content: bytes, path: Path) -> str:
    """Return the text of a table that was read from ``path``.

    Raises CatalogueError if it is not UTF-8, damaged, or unpacks to more than ``MAX_BYTES``.
    """
    try:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = bounded.read_bytes(cast(IO[bytes], file), most_bytes=MAX_BYTES)
        return content.decode("utf-8-sig")  # spreadsheets begin with the mark
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise CatalogueError(
            f"{path} is damaged: {error}",
            hint="save a table of yours as CSV in UTF-8; get another file again",
        ) from error


def read(path: Path, columns: Sequence[Column]) -> dict[str, Values]:
    """Read a table as one list of texts or one float array a column, NaN for an empty cell.

    Raises CatalogueError if the file cannot be read or a cell breaks its column's rule.
    """
    return parse(unpack(read_bytes(path), path), columns, path.name)


def read_records(path: Path | None, columns: Sequence[Column]) -> tuple[TableRow, ...]:
    """Return what ``read_facts`` does as rows with attributes; none without a file."""
    return tuple(TableRow(**row) for row in read_facts(path, columns)) if path else ()


def read_facts(path: Path, columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Read a table as one mapping a row, by the names and in the units of the facts.

    None is an unknown number, and what a missing column would say. Raises CatalogueError as
    ``read``.
    """
    table = read(path, columns)
    length = max(map(len, table.values()), default=0)
    names = [column.fact or column.name for column in columns]
    facts = (_facts(table.get(one.name, [one.unknown] * length), one) for one in columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*facts, strict=True)]


def _facts(cells: Values, column: Column) -> Sequence[Any]:
    if column.is_number:
        whole = int if column.kind == "integer" else float
        numbers = (np.asarray(cells, float) * column.unit).tolist()
        return [None if one != one else whole(one) for one in numbers]
    if column.kind == "names":
        return [tuple(one.strip() for one in cell.split(";") if one.strip()) for cell in cells]
    return [cell == "yes" for cell in cells] if column.kind == "flag" else list(cells)


def parse(content: str, columns: Sequence[Column], name: str) -> dict[str, Values]:
    """As ``read``, from text; ``name`` stands in the errors."""
    _check_length(content, name)
    rows = _rows(content, name)
    header = rows[0]
    _check_header(header, columns, name)
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise _fault(name, number, "", f"has {len(row)} cells, the header {len(header)}")
    cells = dict(zip(header, zip(*rows[1:], strict=True), strict=True)) if rows[1:] else {}
    return {
        column.name: _values(list(cells.get(column.name, ())), column, name)
        for column in columns
        if column.name in header
    }


def parse_numbers(content: str, columns: Sequence[Column], name: str) -> dict[str, Floats]:
    """As ``parse`` for a large table of numbers only, about five times as fast.

    All cells are converted in one go; where that fails, the slow way finds the fault and says
    where it is.
    """
    _check_length(content, name)
    header, _, body = content.partition("\n")
    names = header.strip().split(",")
    _check_header(names, columns, name)
    known = {column.name: column for column in columns}
    # Each row gets one more cell that marks its end, so that no ragged row passes unseen.
    marked = (body.rstrip("\n") + "\n").replace("\n", f",{_END_OF_ROW:g},")[:-1]
    filled = marked.replace(",,", ",nan,").replace(",,", ",nan,")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # "could not be read to its end"
        try:
            cells = np.fromstring(filled, sep=",", dtype=np.float64).reshape(-1, len(names) + 1)
        except (ValueError, DeprecationWarning):
            cells = np.zeros((0, len(names) + 1))
    out = {key: np.ascontiguousarray(cells[:, at]) for at, key in enumerate(names) if key in known}
    is_sound = len(cells) > 0 and bool((cells[:, -1] == _END_OF_ROW).all())
    if is_sound and all(not _wrong(out[key], known[key]).any() for key in out):
        return out
    slow = parse(content, columns, name)
    return {key: np.asarray(values, dtype=np.float64) for key, values in slow.items()}


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; the same rows give the same bytes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    content = out.getvalue().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, compresslevel=9, mtime=0)
    atomic.write_bytes(path, content)


def cell(value: object) -> str:
    """Write a value as a cell: shortest exact number, empty for unknown.

    >>> cell(2.0), cell(0.1), cell(float("nan")), cell(None), cell("m5.large")
    ('2', '0.1', '', '', 'm5.large')
    """
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0")
    return str(value)


def _rows(content: str, name: str) -> list[list[str]]:
    try:
        rows = list(bounded.csv_rows(io.StringIO(content, newline=""), strict=True))
    except ValueError as error:
        raise CatalogueError(f"{name} is not CSV: {error}", hint="export it again") from error
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise CatalogueError(f"{name} is empty", hint="it needs a header and rows")
    return rows


def _check_length(content: str, name: str) -> None:
    """Refuse a table that is too long before it is taken apart."""
    if content.count("\n") > MAX_ROWS + 1:
        raise CatalogueError(
            f"{name} has more than {MAX_ROWS:,} rows", hint="split it, or keep what you use"
        )


def _check_header(header: Sequence[str], columns: Sequence[Column], name: str) -> None:
    for key in header:
        if header.count(key) > 1:
            raise _fault(name, 1, key, "appears twice")
    for column in columns:
        if column.name not in header and not column.is_optional:
            what = f"is missing; found {', '.join(header)[:200]}"
            raise _fault(name, 1, column.name, what, _missing_hint(header, column, columns))


def _missing_hint(header: Sequence[str], column: Column, columns: Sequence[Column]) -> str:
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        return "separate the columns by commas"
    needed = ",".join(one.name for one in columns if not one.is_optional)
    return f"the first line names the columns, at least {needed}" + (
        f"; {column.name} is {column.hint}" if column.hint else ""
    )


def _values(cells: list[str], column: Column, name: str) -> Values:
    if column.is_required:
        for number, value in enumerate(cells, start=2):
            if not value.strip():
                raise _fault(name, number, column.name, "is empty", column.hint)
    if not column.is_number:
        return cells
    try:
        values = np.array([value or "nan" for value in cells], dtype=np.float64)
    except ValueError:
        values = np.array([_number(value) for value in cells])
    is_empty = np.array([value == "" for value in cells], dtype=bool)  # of no rows too
    # An empty cell is unknown; "nan" typed into a cell is a fault of whoever wrote it.
    wrong = _wrong(values, column) | (np.isnan(values) & ~is_empty)
    if wrong.any():
        at = int(np.argmax(wrong))
        limits = f"a number from {column.low:g} to {column.high:g}"
        raise _fault(name, at + 2, column.name, f"is {cells[at]!r}, not {limits}")
    return values


def _wrong(values: Floats, column: Column) -> Bools:
    unknown = np.isnan(values)
    with np.errstate(invalid="ignore"):
        outside = ~unknown & ~((values >= column.low) & (values <= column.high))
    return outside | np.isinf(values) | (unknown & column.is_required)


def _number(value: str) -> float:
    try:
        return float(value or "nan")
    except ValueError:
        return -np.inf


def _fault(name: str, row: int, column: str, what: str, hint: str = "") -> CatalogueError:
    place = f"{name}, row {row}" + (f", column {column!r}" if column else "")
    return CatalogueError(f"{place}: {what}", hint=hint or "correct that cell and try again")
