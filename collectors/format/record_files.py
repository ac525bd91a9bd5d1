"""Record files: appended to, read when torn or still being written, and whether they still are.

The format is described in ``hooks.format``, which the recorded script carries too.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from advisor.collectors.errors import printable_json
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.format import may_hold_secrets, start_ticks

_SYNC = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


def parse(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes, int]]:
    """Yield (kind, payload, offset of the end) of every whole record in ``data``.

    Whatever is not a record with a true checksum is stepped over: the search goes on with the
    next magic.
    """
    header, magic = fmt.FRAME, fmt.MAGIC
    at = start
    while at + header.size <= len(data):
        mark, kind, length, checksum = header.unpack_from(data, at)
        end = at + header.size + length
        is_frame = mark == magic and length <= fmt.LARGEST_PAYLOAD
        if is_frame and end <= len(data):
            payload = data[at + header.size : end]
            if crc32(payload, kind) == checksum:
                yield kind, payload, end
                at = end
                continue
        at = data.find(magic, at + 1)
        if at < 0:
            return


def parse_json(payload: bytes, *, as_written: Sequence[str] = ()) -> dict[str, Any]:
    """Return a record's JSON object; empty if it is none.

    What is in it was made by the recorded script, or by whoever wrote the file: all text is made
    printable here, once, but for the fields ``as_written``.
    """
    try:
        value = json.loads(payload)
        if not isinstance(value, dict):
            return {}
        if b"\\" not in payload and payload.isascii() and payload.find(b"\x7f") < 0:
            return value  # without an escape JSON has printable signs only
        return {**printable_json(value), **{key: value[key] for key in as_written if key in value}}
    except (ValueError, RecursionError):  # brackets may be nested to any depth
        return {}


def sync_file(path: Path) -> None:
    """Bring a file to the disk, whoever writes it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _SYNC(fd)
    except OSError:
        return
    finally:
        os.close(fd)


def fields(layout: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    """Return a payload's fields; 0 for those that it is too old to have.

    Fields are only ever added at the end: see ``hooks.format``.
    """
    return layout.unpack_from(payload.ljust(layout.size, b"\0"))


class Tail:
    """Follow a growing record file from where it was last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the whole records appended since the last call."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size <= self._offset:
                    return
                data = os.pread(file.fileno(), size - self._offset, self._offset)
        except OSError:
            return
        done = 0
        for kind, payload, end in parse(data):
            done = end
            yield kind, payload
        self._offset += done


class Appender:
    """Append records to a file: one ``write(2)`` each."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.lost = 0

    def write(self, kind: int, payload: bytes) -> None:
        """Append one record; a full disk loses it and nothing else."""
        try:
            frame = fmt.framed(kind, payload)
            if os.write(self._fd, frame) < len(frame):
                self.lost += 1
        except OSError:
            self.lost += 1

    def write_json(self, kind: int, value: dict[str, Any]) -> None:
        """Append a JSON object, without the secrets that may be in it."""
        text = json.dumps(value)
        if may_hold_secrets(text):
            from advisor.collectors.hooks.redaction import redacted_json

            text = json.dumps(redacted_json(value))
        self.write(kind, text.encode())

    def sync(self) -> None:
        """Bring what was written to the disk."""
        try:
            _SYNC(self._fd)
        except OSError:
            self.lost += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


PROFILER_FILE: Final = "profiler.bin"
EVENT_FILES: Final = "ev-*.bin"  # one a hooked process
NOTEBOOK_SCRIPT: Final = "notebook.py"  # a notebook's code, in runs of earlier versions


# A profiler on another machine cannot be looked up, but it writes every second.
_SILENT_S: Final = 60.0
_HEADER_BYTES: Final = 2**20  # a command of 30 000 words takes a quarter of it


def mark() -> dict[str, Any]:
    """Return what tells this process from all others, as a fact: it becomes the profiler."""
    pid = os.getpid()
    return {
        "fact": "made",
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "t_ns": time.monotonic_ns(),
        "machine": machine(),
    }


def machine() -> str:
    """Return what tells this machine, since it was started, and this container from others."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        booted = ""
    return f"{os.uname().nodename} {booted}"


def identity(data: bytes) -> dict[str, Any]:
    """Return pid, start and machine of the profiler that began a file; empty if it says none."""
    found: dict[str, Any] = {}
    for kind, payload, _ in parse(data):
        if kind not in (fmt.FACT, fmt.HEADER):
            break
        fact = parse_json(payload)
        if kind == fmt.HEADER or fact.get("fact") == "made":
            found |= {k: fact[k] for k in ("pid", "start_ticks", "t_ns", "machine") if k in fact}
        if kind == fmt.HEADER:
            break
    return found


def is_alive(found: dict[str, Any], silent_s: float) -> bool:
    """Whether the profiler that left this ``identity`` lives.

    ``found``: empty for a run of an earlier version that was killed before it wrote anything;
    ``silent_s``: since it last wrote [s].
    """
    if found.get("machine", machine()) != machine():
        return silent_s < _SILENT_S
    pid, ticks, begun_ns = (found.get(name, 0) for name in ("pid", "start_ticks", "t_ns"))
    if not (isinstance(pid, int) and isinstance(begun_ns, int)) or pid <= 0:
        return False
    return begun_ns <= time.monotonic_ns() and start_ticks(pid) == ticks != 0


def profiler_lives(run: Path) -> bool:
    """Whether the run in a folder is being recorded, or about to be."""
    path = run / PROFILER_FILE
    try:
        silent_s = time.time() - path.stat().st_mtime
        with path.open("rb") as file:
            data = file.read(_HEADER_BYTES)
    except OSError:
        return False
    return is_alive(identity(data), silent_s)
