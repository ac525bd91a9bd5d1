"""The profiler's own file: what was asked for, where, every reading and their series, the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args

from advisor.collectors.errors import RecordingError
from advisor.collectors.format import (
    ProcessSeries,
    Reading,
    RunStatus,
    Throttling,
    TouchedReading,
    identity,
    parse,
    parse_json,
    read_reading,
    read_touched,
)
from advisor.collectors.hooks import format as fmt


@dataclass(slots=True)
class ProfilerLog:
    """The profiler's own file.

    ``header`` holds what was asked for and where; ``end`` how it ended, empty while it has not.
    """

    header: dict[str, Any] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    processes: list[tuple[int, ...]] = field(default_factory=list)  # ``format.PROCESS_PAYLOAD``
    touched: list[TouchedReading] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)


def read_profiler_log(path: Path) -> ProfilerLog:
    """Read the profiler's file.

    Raises RecordingError if it is missing, holds nothing, or was written by a later version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"no recording at {path.parent}: {error.strerror}",
            hint="list the recorded runs with `advisor runs list`",
        ) from error
    log = ProfilerLog()
    for kind, payload, _ in parse(data):
        if kind == fmt.HEADER:
            log.header = log.header or _header(payload, path.parent.parent)
        elif kind == fmt.READING and len(payload) >= fmt.READING_BYTES and log.header:
            log.readings.append(read_reading(payload, log.header["t_ns"]))
        elif kind == fmt.PROCESS and len(payload) >= fmt.PROCESS_PAYLOAD.size:
            log.processes.append(fmt.PROCESS_PAYLOAD.unpack_from(payload))
        elif kind == fmt.TOUCHED and log.header:
            if (window := read_touched(payload, log.header["t_ns"])) is not None:
                log.touched.append(window)
        elif kind == fmt.FACT:
            fact = parse_json(payload)
            if fact.get("fact") == "warning":
                log.warnings.append(str(fact.get("text")))
        elif kind == fmt.END:
            log.end = parse_json(payload)
    _check(log, path.parent, is_empty=not data or bool(identity(data)))
    return log


# What a header and an end must be made of, as far as they say it at all.
_TYPES: Final[dict[str, type | UnionType]] = {
    "t_ns": int, "started_at": str, "command": list, "host": dict, "options": dict, "status": str,
    "stop_reason": str, "exit_code": int | None, "max_rss_bytes": int, "cpu_ns": int,
}  # fmt: skip


def _header(payload: bytes, store: Path) -> dict[str, Any]:
    """Return the header; the command as it is kept today, also of runs of earlier versions."""
    header = parse_json(payload, as_written=("command",))
    command = header.get("command")
    is_older = header.get("command_kept") != "list"
    if is_older and isinstance(command, list) and all(isinstance(one, str) for one in command):
        from advisor.collectors.format import key_for_reading, stored_command

        header["command"] = stored_command(command, key_for_reading(store))
    return header


def _check(log: ProfilerLog, run: Path, *, is_empty: bool) -> None:
    version = log.header.get("schema_version")
    if not log.header:
        what = "is empty" if is_empty else "has no readable beginning"
        raise RecordingError(
            f"the recording {run.name} {what}",
            hint="profile again; `advisor runs rm` removes this one",
        )
    if not isinstance(version, int) or version > fmt.SCHEMA_VERSION:
        raise RecordingError(
            f"the recording {run.name} has schema version {version}, this advisor reads up to "
            f"{fmt.SCHEMA_VERSION}",
            hint="update the advisor",
        )
    for values in (log.header, log.end):
        for name, kind in _TYPES.items():
            if name in values and not isinstance(values[name], kind):
                raise _contradiction(run, f"{name} {values[name]!r}")
    if not all(isinstance(word, str) for word in log.header.get("command", ())):
        raise _contradiction(run, "command is not a list of words")
    if log.end and log.end.get("status") not in get_args(RunStatus):
        raise _contradiction(run, f"status {log.end.get('status')!r}")


def _contradiction(run: Path, what: str) -> RecordingError:
    return RecordingError(
        f"the recording {run.name} contradicts itself: {what[:200]}",
        hint="profile again; `advisor runs rm` removes this one",
    )


def process_series(
    readings: Sequence[tuple[int, ...]], start_ns: int, ranks: Mapping[int, int]
) -> tuple[ProcessSeries, ...]:
    """Return each process's series, in the order of their first readings."""
    by_process: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for one in readings:
        by_process.setdefault(one[1:3], []).append(one)
    found = []
    for (pid, _), its in by_process.items():
        t_ns, _, _, rss, cpu_ns, minor, major, received, sent = zip(*its, strict=True)
        found.append(ProcessSeries(
            pid=pid, rank=ranks.get(pid), t_s=tuple((t - start_ns) / 1e9 for t in t_ns),
            rss_bytes=rss, cpu_s=tuple(cpu / 1e9 for cpu in cpu_ns), minor_faults=minor,
            major_faults=major, received_bytes=received, sent_bytes=sent,
        ))  # fmt: skip
    return tuple(found)


def throttling(readings: Sequence[Reading]) -> tuple[Throttling, ...]:
    """Return the stretches in which the throttled time grew from each reading to the next."""
    found: list[Throttling] = []
    for before, after in pairwise(readings):
        lost_s = after.throttled_s - before.throttled_s
        if lost_s <= 0:
            continue
        begin_s, so_far_s = before.t_s, 0.0
        if found and found[-1].end_s == before.t_s:
            last = found.pop()
            begin_s, so_far_s = last.begin_s, last.throttled_s
        found.append(Throttling(begin_s=begin_s, end_s=after.t_s, throttled_s=so_far_s + lost_s))
    return tuple(found)
