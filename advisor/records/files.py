"""Run records as files: one JSON object a line, refused with file, row and column."""

from __future__ import annotations

import gzip
import json
import types
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from advisor.collectors import atomic, bounded
from advisor.errors import RunError
from advisor.records.nouns import SCHEMA_VERSION, RunRecord


def read_records(path: Path) -> list[RunRecord]:
    """Read every record of a ``.jsonl`` or ``.jsonl.gz`` file.

    Raises RunError if the file cannot be read, a row is not a record (the message names file, row
    and column), or two rows have the same ``record_id``.
    """
    records = list(iterate_records(path))
    seen: dict[str, int] = {}
    for row, record in enumerate(records, start=1):
        if record.record_id in seen:
            raise RunError(
                f"{path}: row {row}: record_id: {record.record_id!r} is that of row "
                f"{seen[record.record_id]}",
                hint="give every run its own record_id",
            )
        seen[record.record_id] = row
    return records


def iterate_records(path: Path) -> Iterator[RunRecord]:
    """Yield the records of a file one by one; blank lines are skipped."""
    try:
        with _open(path) as lines:
            for row, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse_line(line, f"{path}: row {row}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise RunError(
            f"cannot read {path}: {error}", hint="give a .jsonl or .jsonl.gz file"
        ) from (error)


def write_records(path: Path, records: Iterable[RunRecord], *, is_kept: bool = False) -> None:
    """Write records, replacing the file in one step.

    Raises RunError if ``is_kept`` is true and the file holds something else: nobody named it.
    """
    data = "".join(to_line(record) for record in records).encode()
    data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    if is_kept and path.exists() and path.read_bytes() != data:
        raise RunError(f"{path} exists", hint=f"--out {path} replaces it; or name another file")
    atomic.write_bytes(path, data)


def to_line(record: RunRecord) -> str:
    """Return the record as one line of JSON; fields at their default are left out."""
    return json.dumps(to_row(record), allow_nan=False, separators=(",", ":")) + "\n"


def to_row(record: RunRecord) -> dict[str, Any]:
    """Return the record as the JSON object that ``from_row`` reads."""
    return {"schema_version": SCHEMA_VERSION, **_lean(record)}


def from_row(row: Mapping[str, Any]) -> RunRecord:
    """Return the record that a parsed JSON object describes.

    Raises RunError naming the column that is missing, unknown, of another type, or makes no sense.
    """
    if not isinstance(row, dict):
        raise RunError(f"{row!r} is not a JSON object")
    row = dict(row)
    version = row.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise RunError(
            f"schema_version: {version!r} is not {SCHEMA_VERSION}",
            hint="written by another version of advisor",
        )
    return cast(RunRecord, _build(RunRecord, row, ""))


def _open(path: Path) -> typing.TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _parse_line(line: str, where: str) -> RunRecord:
    try:
        return from_row(bounded.parse_json(line))
    except ValueError as error:
        raise RunError(
            f"{where}: not JSON ({error})", hint="the writer may have been cut off: drop the row"
        ) from error
    except RunError as error:
        raise RunError(f"{where}: {error}", hint=error.hint or "see docs/formats.md") from error


def _lean(noun: Any) -> dict[str, Any]:
    """Return a noun's fields as plain data, without those that are at their default."""
    lean: dict[str, Any] = {}
    for f in fields(noun):
        value = getattr(noun, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if default is MISSING or value != default:
            lean[f.name] = _plain(value)
    return lean


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _lean(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _build(kind: type, row: Any, where: str) -> object:
    """Build a noun of this package from plain data, ``where`` naming the column so far."""
    if not isinstance(row, dict):
        raise RunError(f"{where}: {row!r} is not an object")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    if unknown := set(row) - set(known):
        raise RunError(f"{where}{min(unknown)}: no such field")
    values: dict[str, Any] = {}
    for name, f in known.items():
        if name in row:
            values[name] = _convert(hints[name], row[name], f"{where}{name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise RunError(f"{where}{name}: missing")
    try:
        return kind(**values)
    except RunError as error:
        raise RunError(f"{where}{error}", hint=error.hint) from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return ``value`` as the type that ``hint`` asks for."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _build(cast(type, hint), value, f"{where}.")
    if origin is types.UnionType or origin is typing.Union:
        if value is None and types.NoneType in inner:
            return None
        if isinstance(value, str) and str in inner:
            return value
        return _convert(next(t for t in inner if t not in (types.NoneType, str)), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(inner[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {k: _convert(inner[1], v, f"{where}.{k}") for k, v in value.items()}
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    is_number = isinstance(value, int | float)
    if hint is float and is_number:
        return float(value)
    if hint is int and isinstance(value, int | float) and float(value).is_integer():
        return int(value)
    if hint is bool and isinstance(value, bool):
        return value
    if (hint is str or typing.get_origin(hint) is typing.Literal) and isinstance(value, str):
        return value
    raise RunError(f"{where}: {value!r} is not {getattr(hint, '__name__', hint)}")


# Our own records, a file or a folder of files.


def read_own(path: Path) -> list[RunRecord]:
    """Read a ``.jsonl`` or ``.jsonl.gz`` file, or every such file of a folder in order.

    Raises RunError naming file, row and column of a bad value, or a folder without records.
    """
    if path.is_file():
        return read_records(path)
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")])
    if not files:
        raise RunError(f"no .jsonl or .jsonl.gz in {path}", hint="name the folder of the records")
    return [record for file in files for record in read_records(file)]
