"""All runs in a line each, without reading again what has ended and was read before.

What a listing shows of a run is kept in ``index.json`` beside the runs, with the size and time of
its profiler's file. That is a cache: whatever is missing, changed, unreadable or made by another
version of the collectors is derived again.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic
from advisor.collectors.errors import printable, printable_json, shown
from advisor.collectors.format import PROFILER_FILE, noun, profiler_lives

INDEX_FILE: Final = "index.json"
UNREADABLE: Final = "unreadable: "


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """What a listing shows of a run."""

    run: str
    status: str  # as in ``Recording``, or ``"unreadable: "`` and why, in one line
    started_at: str | None = None  # ISO 8601, UTC; None where unreadable, as all that follows
    # duration_s, step_s: of the recording, and of a step, corrected [s]
    duration_s: float | None = None
    step_s: float | None = None
    command: tuple[str, ...] = ()


def run_lines(runs: list[Path]) -> list[RunLine]:
    """Return a line a run; one that cannot be read says why and costs no other."""
    if not runs:
        return []
    index = runs[0].parent / INDEX_FILE
    known = _read_index(index)
    lines, kept, is_new = [], {}, False
    for run in runs:
        entry, stamp = known.get(run.name), _stamp(run)
        line = _line_of(entry, stamp)
        if line is None:
            line = _read(run)
            entry = {"stamp": stamp, **asdict(line)} if _is_final(run, line) else None
            is_new |= entry is not None
        lines.append(line)
        if entry is not None:
            kept[run.name] = entry
    if is_new or len(kept) < len(known):
        _write_index(index, kept)
    return lines


def _read(run: Path) -> RunLine:
    from advisor.collectors.derive.store import read_recording

    try:
        seen = read_recording(run)
    except Exception as error:  # whatever is wrong with one run, the others are listed
        return RunLine(run=printable(run.name), status=UNREADABLE + shown(str(error)))
    return RunLine(
        run=seen.run_id,
        status=seen.status,
        started_at=seen.started_at,
        duration_s=seen.duration_s,
        step_s=None if seen.step_time is None else seen.step_time.corrected_s,
        command=seen.command,
    )


def _is_final(run: Path, line: RunLine) -> bool:
    """Whether a run will not change any more: it has ended, or its profiler is dead."""
    if line.status.startswith(UNREADABLE):
        return False  # a disk may come back, an update may read it
    return line.status not in ("running", "killed") or not profiler_lives(run)


def _stamp(run: Path) -> list[int]:
    try:
        about = os.stat(f"{run}/{PROFILER_FILE}")
    except OSError:
        return []
    return [about.st_mtime_ns, about.st_size]


def _line_of(entry: Any, stamp: list[int]) -> RunLine | None:
    """Return a line of the index; None where it is not of this very file, or no line."""
    if not (isinstance(entry, dict) and stamp and entry.get("stamp") == stamp):
        return None
    try:
        return noun(RunLine, {**printable_json(entry), "command": entry.get("command")})
    except TypeError:
        return None


def _read_index(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("made_by") != _version():
        return {}
    runs = content.get("runs")
    return runs if isinstance(runs, dict) else {}


def _write_index(path: Path, runs: dict[str, Any]) -> None:
    with suppress(OSError):  # read-only or full: derived again next time
        atomic.write_text(path, json.dumps({"made_by": _version(), "runs": runs}), mode=0o600)


@cache
def _version() -> list[int]:
    """Return what tells this version of the collectors from others: how many files, how new."""
    folder = Path(sys.modules["advisor.collectors"].__path__[0])
    times = [path.stat().st_mtime_ns for path in folder.rglob("*.py")]
    return [len(times), max(times)]
