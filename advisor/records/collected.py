"""Runs that ``advisor collect`` made, as they lie on disk: append-only lines with a checksum each.

A record is one line of canonical JSON (sorted keys) whose ``crc32`` is that of the line without
it. A line cut short by a crash, or changed, fails its checksum and is skipped and counted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic, bounded
from advisor.collectors.errors import RecordingError

Row = dict[str, Any]

SCHEMA: Final = "minicloud/1"


def to_line(row: Mapping[str, Any]) -> str:
    """Return the record as one checked line, newline included.

    Raises ValueError: a number is not finite: JSON has no word for it.
    """
    body = _canonical(row)
    return f'{body[:-1]},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'


def from_line(line: str) -> Row | None:
    """Return the record of a line, or None where the checksum does not match."""
    try:
        row = bounded.parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    found = row.pop("crc32", None)
    return row if found == f"{zlib.crc32(_canonical(row).encode()):08x}" else None


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), allow_nan=False)


class Journal:
    """A file of records that is only ever added to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other collectors off the journal: two at once would disturb each other's runs."""
        import fcntl  # where runs are read, there may be none

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RecordingError(
                    f"another collection is writing to {self.path}",
                    hint="wait for it, or give another --out",
                ) from error
            yield

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one record and have it on disk on return."""
        atomic.append_line(self.path, to_line(row).encode())

    def rows(self) -> Iterator[Row]:
        """Yield the records that pass their checksum, in the order written."""
        if self.path.exists():
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                yield from (row for row in map(from_line, lines) if row is not None)

    def damaged(self) -> int:
        """Return how many lines fail their checksum."""
        if not self.path.exists():
            return 0
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            return sum(1 for line in lines if line.strip() and from_line(line) is None)


def pack(rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write records to ``*.jsonl.gz``, atomically and the same bytes for the same records."""
    count = 0
    with atomic.writing(path) as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        for row in rows:
            packed.write(to_line(row).encode())
            count += 1
    return count


def unpack(path: Path) -> Iterator[Row]:
    """Yield the records of a ``*.jsonl.gz`` file.

    Raises RecordingError: the file cannot be read, or a record fails its checksum.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = from_line(line)
                if row is None:
                    raise RecordingError(
                        f"{path}:{number}: the record fails its checksum",
                        hint="get the file again; it was changed or cut short",
                    )
                yield row
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError(f"cannot read {path}: {error}", hint="is it a .jsonl.gz?") from error


def machine_of(row: Mapping[str, Any]) -> str:
    """Return the machine that a run was made on; rows of before there were several name none."""
    return str(row.get("machine", ""))


def named_on(name: str, machine: str) -> str:
    """Return the name of a job, or of a run, on one of several machines.

    >>> named_on("mlp-w256-b32", ""), named_on("mlp-w256-b32", "EPYC")
    ('mlp-w256-b32', 'mlp-w256-b32 on EPYC')
    """
    return f"{name} on {machine}" if machine else name


def tells_nothing(row: Mapping[str, Any]) -> bool:
    """Return whether a run was cut short because others held its cores.

    What is cut on a quiet machine bounds the time from below; this bounds nothing.
    """
    return bool(row["status"] == "censored" and row["is_noisy"])


def least_disturbed(rows: Iterable[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return each key's best attempt a machine, by key: not noisy first, then least corrected.

    Attempts that tell nothing are left out.
    """
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] == kind and not tells_nothing(row):
            key = named_on(row["key"], machine_of(row))
            known = best.get(key)
            if known is None or _disturbance(row) < _disturbance(known):
                best[key] = dict(row)
    return [best[key] for key in sorted(best)]


def _disturbance(row: Mapping[str, Any]) -> tuple[bool, float]:
    return bool(row["is_noisy"]), float(row.get("correction_fraction") or 0.0)


def is_anchor(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a job's partial run on one machine, the anchor, that ended well."""
    is_single = row["kind"] == "partial" and row["layout"]["kind"] == "single"
    return bool(is_single and row["status"] == "ok")


def nearest(anchors: Iterable[Row], row: Row) -> Row:
    """Return the partial run that was made closest in time to a run.

    A machine is not equally fast all day: the same step took up to 1.5 times the CPU time an hour
    later (``datasets/runs/README.md``), and who rents profiles shortly before.
    """
    at = datetime.fromisoformat(row["started_at"])
    return min(anchors, key=lambda a: abs(datetime.fromisoformat(a["started_at"]) - at))


def read_prices(path: Path) -> dict[str, tuple[float, str]]:
    """Read ``prices.json`` of a collection: shape -> price of one machine [USD/h], and its source.

    Raises RecordingError if the file is not of that form.
    """
    try:
        shapes = bounded.read_json(path)["shapes"]
        return {k: (float(v["usd_per_h"]), str(v["source"])) for k, v in shapes.items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RecordingError(
            f"{path} holds no prices of a collection: {error}",
            hint="remove it: advisor collect writes it anew",
        ) from error


def shape_name(cores: float, rate_bit_per_s: float) -> str:
    """Return the name of a shape.

    Examples
    --------
    >>> shape_name(0.5, 3e8)
    '0.5 cores, 300 Mbit/s'
    """
    return f"{cores:g} cores, {rate_bit_per_s / 1e6:g} Mbit/s"
