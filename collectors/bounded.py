"""The one way in which this project reads text that others wrote: JSON, TOML and CSV, with bounds.

What is not plain data of a reasonable size is refused with a ``ValueError`` that says why:
too many bytes, nested too deeply, numbers that are not finite or have more digits than any
quantity, cells and rows beyond the limits. Nothing else is raised by what is in the text.

Standard library only.
"""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

# The largest files of ours are recorded runs and price lists of some megabytes.
MOST_BYTES: Final = 256 << 20
MOST_TOML_BYTES: Final = 1 << 20  # tomllib takes a second for a megabyte
# Configurations of models nest five deep, records of runs ten.
_BLOCK: Final = 1 << 20
MOST_DEPTH: Final = 100
MOST_DIGITS: Final = 40  # of a whole number: flop of the largest trainings have 26
MOST_ROWS: Final = 20_000_000
MOST_COLUMNS: Final = 10_000


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a UTF-8 file.

    Raises ValueError if it is larger than ``most_bytes``, or not UTF-8.
    """
    with path.open("rb") as file:
        return read_bytes(file, most_bytes=most_bytes).decode()


def read_bytes(file: IO[bytes], *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is left in an open file, no more memory than that taken.

    ``file.read(most_bytes)`` would set all of that aside first.

    Raises ValueError if there are more than ``most_bytes``: it may be a device, or unpacked as it
    is read.
    """
    content = bytearray()
    while block := file.read(_BLOCK):
        content += block
        if len(content) > most_bytes:
            raise ValueError(f"more than {most_bytes >> 20} MiB")
    return bytes(content)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; see ``parse_json``."""
    return parse_json(read_text(path))


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty where it cannot be read, or is none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value.

    Raises ValueError if it is no JSON, nested deeper than ``MOST_DEPTH``, or holds a number that
    is not finite or has more than ``MOST_DIGITS`` digits.
    """
    try:
        value = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} deep") from None
    _check_depth(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML table, within the same bounds as ``parse_json``."""
    if len(text) > MOST_TOML_BYTES:
        raise ValueError(f"larger than {MOST_TOML_BYTES >> 20} MiB")
    try:
        value = tomllib.loads(text, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} deep") from None
    _check_depth(value)
    _check_whole(value)
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file; see ``parse_toml``."""
    return parse_toml(read_text(path, most_bytes=MOST_TOML_BYTES))


class csv_rows:  # noqa: N801  (stands where csv.reader stood)
    """Rows of cells as ``csv.reader`` gives them, within bounds.

    Raises ValueError if a cell is larger than ``csv.field_size_limit()``, quotes do not match, or
    there are more rows or columns than the limits.
    """

    def __init__(self, lines: Iterable[str], **style: Any) -> None:
        self._reader = csv.reader(lines, **style)
        self._rows = 0

    @property
    def line_num(self) -> int:
        """Lines read so far."""
        return self._reader.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        try:
            row = next(self._reader)
        except csv.Error as error:
            raise ValueError(f"line {self._reader.line_num}: {error}") from None
        self._rows += 1
        if self._rows > MOST_ROWS or len(row) > MOST_COLUMNS:
            raise ValueError(
                f"line {self._reader.line_num}: more than {MOST_ROWS:,} rows "
                f"or {MOST_COLUMNS:,} columns"
            )
        return row


if TYPE_CHECKING:
    _Rows = csv.DictReader[str]
else:
    _Rows = csv.DictReader


class csv_tables(_Rows):  # noqa: N801  (stands where csv.DictReader stood)
    """A ``csv.DictReader`` that reads through ``csv_rows``.

    A row with more cells than the header raises ValueError where these are not empty, or the style
    is strict.
    """

    def __init__(
        self, lines: Iterable[str], fieldnames: Sequence[str] | None = None, **style: Any
    ) -> None:
        super().__init__([], fieldnames, **style)
        self.reader = csv_rows(lines, **style)  # type: ignore[assignment]
        self._is_strict = bool(style.get("strict"))

    def __next__(self) -> dict[str | Any, str | Any]:
        row = super().__next__()
        more = row.pop(None, ())
        if any(cell.strip() for cell in more) or (more and self._is_strict):
            raise ValueError(f"line {self.line_num}: more cells than the header")
        return row


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is not a finite number")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"nested more than {MOST_DEPTH} deep")


def _check_whole(value: Any) -> None:
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest.extend(one.values())
        elif isinstance(one, list):
            rest.extend(one)
        elif isinstance(one, int) and abs(one) >= 10**MOST_DIGITS:
            raise ValueError(f"a number of more than {MOST_DIGITS} digits")
