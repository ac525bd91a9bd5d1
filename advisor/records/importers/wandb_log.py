"""The file of a Weights & Biases run as it lies on disk: ``run-<id>.wandb``.

After a header of seven bytes it is a log in LevelDB's format (github.com/google/leveldb,
doc/log_format.md) with plain CRC-32 sums: blocks of 32 KiB hold chunks of a checksum (4 bytes),
a length (2) and a kind (1: whole, 2: first, 3: middle, 4: last), little-endian. Each joined record
is a ``Record`` of wandb's own protocol buffers. A run that was killed ends anywhere: what is whole
is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records.tracked import library

_MAGIC: Final = b":W&B"
_HEADER: Final = 7
_BLOCK: Final = 32 << 10
_CHUNK: Final = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass(slots=True, kw_only=True)
class LoggedRun:
    """What a log holds, in the shape of the files that wandb exports."""

    # summary, metadata, config: as ``wandb-summary.json``, ``wandb-metadata.json`` and
    # ``config.json``
    summary: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    # readings, as the lines of ``wandb-events.jsonl``
    events: list[dict[str, Any]] = field(default_factory=list)


def payloads(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log, up to the first that is damaged or cut short.

    Raises ValueError if it is no such log.
    """
    if content[: len(_MAGIC)] != _MAGIC or len(content) < _HEADER:
        raise ValueError("it does not begin as a .wandb file does")
    at, parts = _HEADER, list[bytes]()
    while True:
        left = _BLOCK - at % _BLOCK
        if left < _CHUNK.size:
            at += left
        if at + _CHUNK.size > len(content):
            return
        checksum, length, kind = _CHUNK.unpack_from(content, at)
        at += _CHUNK.size
        part = content[at : at + length]
        at += length
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            return
        if kind in (_WHOLE, _FIRST):
            parts.clear()
        parts.append(part)
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)


def read_log(path: Path) -> LoggedRun:
    """Read a ``.wandb`` file.

    Raises RunError if it cannot be read, or wandb is not installed.
    """
    messages = library("wandb.proto.wandb_internal_pb2")
    decode_error = library("google.protobuf.message").DecodeError
    run, began_s = LoggedRun(), 0.0
    try:
        with path.open("rb") as file:
            content = bounded.read_bytes(file)
        for payload in payloads(content):
            record = messages.Record()
            record.ParseFromString(payload)
            began_s = _take(run, record, began_s)
    except (OSError, ValueError, decode_error) as error:
        raise RunError(f"cannot read {path}: {error}", hint="copy the run again") from error
    return run


def _take(run: LoggedRun, record: Any, began_s: float) -> float:
    """Add one record to the run; return when it began. [s]."""
    kind = record.WhichOneof("record_type")
    if kind == "run":
        began_s = _seconds(record.run.start_time)
        run.config |= _items(record.run.config.update)
        run.metadata.setdefault("host", record.run.host)
    elif kind == "config":
        run.config |= _items(record.config.update)
    elif kind == "environment":
        run.metadata |= _environment(record.environment)
    elif kind == "summary":
        run.summary |= _items(record.summary.update)
    elif kind == "history":
        row = _items(record.history.item)
        run.summary |= {name: row[name] for name in ("_runtime", "_timestamp") if name in row}
    elif kind == "stats":
        run.events.append(_reading(record.stats, began_s))
        run.summary["_runtime"] = max(
            run.events[-1]["_runtime"], run.summary.get("_runtime") or 0.0
        )  # of a run that was killed before it noted anything else
    elif kind == "exit":
        run.metadata["state"] = "failed" if record.exit.exit_code else "finished"
        run.summary["_runtime"] = max(record.exit.runtime, run.summary.get("_runtime") or 0.0)
    return began_s


def _items(items: Any) -> dict[str, Any]:
    """Return names and values; what is nested goes by its last name where it has one name."""
    found = {}
    for item in items:
        names = [item.key] if item.key else list(item.nested_key)
        if len(names) == 1:
            found[names[0]] = bounded.parse_json(item.value_json)
    return found


def _seconds(time: Any) -> float:
    return float(time.seconds) + 1e-9 * float(time.nanos)


def _environment(about: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        name: getattr(about, name)
        for name in ("host", "program", "cpu_count", "cpu_count_logical", "gpu_count")
        if getattr(about, name)
    }
    if about.memory.total:
        found["memory"] = {"total": about.memory.total}
    cards = [card.name for card in about.gpu_nvidia]
    if about.gpu_type or cards:
        found["gpu"] = about.gpu_type or cards[0]
    return found


def _reading(stats: Any, began_s: float) -> dict[str, Any]:
    """Return a reading under the names of the exports; disks are added up."""
    row: dict[str, Any] = {"_runtime": _seconds(stats.timestamp) - began_s}
    for item in stats.item:
        value = bounded.parse_json(item.value_json)
        parts = item.key.split(".")
        if len(parts) == 3 and parts[0] == "disk" and parts[2] in ("in", "out"):
            name = f"system.disk.{parts[2]}"
            row[name] = row.get(name, 0.0) + value
        else:
            row[f"system.{item.key}"] = value
    return row
