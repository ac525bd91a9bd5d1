"""Append-only JSON lines with a checksum each: what was written stays, whatever happens next.

A record is one line of canonical JSON (sorted keys) whose ``crc32`` is that of the line without
it. A line cut short by a crash, or changed, fails its checksum and is skipped and counted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.collectors import atomic, bounded
from advisor.collectors.errors import RecordingError

Row = dict[str, Any]


def to_line(row: Mapping[str, Any]) -> str:
    """Return the record as one checked line, newline included.

    Raises
    ------
    ValueError
        A number is not finite: JSON has no word for it.
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

    Raises
    ------
    RecordingError
        The file cannot be read, or a record fails its checksum.
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


# ------------------------------------------------------------------------------------------
# A run's steps in shared memory: written by the training process, readable after its death.


_HEAD: Final = struct.Struct("=Qd")  # steps written; time.monotonic() at which the loop began
_STEP: Final = struct.Struct("=dd")  # seconds since the loop began; run delay since then


class Tape:
    """Time and run delay at the end of every step, in anonymous memory shared over a fork.

    Parameters
    ----------
    capacity : int
        Steps that fit; later ones are counted and not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._memory = mmap.mmap(-1, _HEAD.size + capacity * _STEP.size)

    def begin(self, now_s: float) -> None:
        """Say that the training loop begins; ``now_s`` is ``time.monotonic()``."""
        _HEAD.pack_into(self._memory, 0, 0, now_s)

    def write(self, elapsed_s: float, delay_s: float) -> None:
        """Add the end of one step."""
        count, began_s = _HEAD.unpack_from(self._memory, 0)
        if count < self.capacity:
            offset = _HEAD.size + count * _STEP.size
            _STEP.pack_into(self._memory, offset, elapsed_s, delay_s)
        _HEAD.pack_into(self._memory, 0, count + 1, began_s)

    @property
    def steps(self) -> int:
        """Steps finished so far."""
        return int(_HEAD.unpack_from(self._memory, 0)[0])

    @property
    def began_s(self) -> float | None:
        """When the loop began, on the clock ``time.monotonic()``; None before [s]."""
        began_s = float(_HEAD.unpack_from(self._memory, 0)[1])
        return began_s or None

    def read(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return elapsed and delay at the end of each kept step, both (steps,) [s]."""
        kept = min(self.steps, self.capacity)
        data = self._memory[_HEAD.size : _HEAD.size + kept * _STEP.size]
        pairs = np.frombuffer(data, dtype=np.float64).reshape(kept, 2)
        return pairs[:, 0], pairs[:, 1]

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
