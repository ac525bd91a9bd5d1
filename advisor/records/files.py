"""Run records as files: one JSON object a line, refused with file, row and column."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TextIO, cast

from advisor.answer import from_record, to_record
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


def write_records(path: Path, records: Iterable[RunRecord]) -> None:
    """Write records, replacing the file in one step."""
    data = "".join(to_line(record) for record in records).encode()
    atomic.write_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def add_records(path: Path, records: Iterable[RunRecord]) -> int:
    """Add records to what a file holds; return how many took the place of one of their name.

    Raises RunError if the file is there and holds something else.
    """
    kept = {one.record_id: one for one in read_records(path)} if path.exists() else {}
    new = {one.record_id: one for one in records}
    write_records(path, (kept | new).values())
    return len(kept.keys() & new.keys())


def to_line(record: RunRecord) -> str:
    """Return the record as one line of JSON; fields at their default are left out."""
    return json.dumps(to_row(record), allow_nan=False, separators=(",", ":")) + "\n"


def to_row(record: RunRecord) -> dict[str, Any]:
    """Return the record as the JSON object that ``from_row`` reads."""
    return {"schema_version": SCHEMA_VERSION, **to_record(record, is_lean=True)}


def from_row(row: Mapping[str, Any]) -> RunRecord:
    """Return the record that a parsed JSON object describes.

    Raises RunError naming the column that is missing, unknown, of another type, or makes no sense.
    """
    if not isinstance(row, dict):
        raise RunError(f"{row!r} is not a JSON object", hint="see docs/formats.md")
    row = dict(row)
    version = row.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise RunError(
            f"schema_version: {version!r} is not {SCHEMA_VERSION}",
            hint="written by another version of advisor",
        )
    try:
        return from_record(RunRecord, row, where="", is_strict=True)
    except ValueError as error:
        raise RunError(str(error), hint="see docs/formats.md") from error


def unpacked(path: Path) -> IO[bytes]:
    """Open a file to read what is in it, unpacked where it is packed."""
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _open(path: Path) -> TextIO:
    return io.TextIOWrapper(unpacked(path), encoding="utf-8")


def _parse_line(line: str, where: str) -> RunRecord:
    try:
        return from_row(bounded.parse_json(line))
    except ValueError as error:
        raise RunError(
            f"{where}: not JSON ({error})", hint="the writer may have been cut off: drop the row"
        ) from error
    except RunError as error:
        raise RunError(f"{where}: {error}", hint=error.hint or "see docs/formats.md") from error


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
