"""Runs that nobody ended: close those that hold something, take away those that never did."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal

from advisor.collectors import store
from advisor.collectors.errors import RecordingError
from advisor.collectors.hooks import format as fmt
from advisor.collectors.printable import printable, shown
from advisor.collectors.profiler_life import identity, profiler_lives
from advisor.collectors.records import parse
from advisor.collectors.run_files import EVENT_FILES, PROFILER_FILE

# Larger files hold readings: a header takes a few KiB, and is not read again and again.
_MOST_BYTES: Final = 2**20
# A run of an earlier version that bears no mark of its profiler: the host's benchmark, which came
# before the first record, took half a minute at most.
_UNMARKED_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of a run."""

    run: str
    what: Literal["closed", "deleted", "recording", "unreadable"]
    why: str


def recover_all(root: store.Root | None = None) -> list[Recovered]:
    """Close or take away every run whose profiler was killed; return what became of each."""
    found = []
    for run in store.list_runs(root):
        outcome = _recovered(run)
        if outcome is not None:
            found.append(outcome)
    return found


def _recovered(run: Path) -> Recovered | None:
    name = printable(run.name)
    try:
        if never_recorded(run):
            store.remove(run)
            return Recovered(run=name, what="deleted", why="nothing was recorded")
        if _has_ended(run):
            return None
        if profiler_lives(run):
            return Recovered(run=name, what="recording", why="its profiler is at work")
        seen = store.recover(run)
        return Recovered(run=name, what="closed", why=f"{seen.duration_s:.0f} s are kept")
    except Exception as error:  # one bad run costs no other
        return Recovered(run=name, what="unreadable", why=shown(str(error)))


def clean(root: store.Root | None = None) -> int:
    """Take away the runs that never held a reading and whose profiler is dead; return how many.

    What cannot be read or deleted is left: this is done in passing.
    """
    removed = 0
    try:
        runs = [run for place in store.local_folders(root) for run in store.list_runs(place)]
    except RecordingError:
        return 0
    for run in runs:
        try:
            if never_recorded(run):
                store.remove(run)
                removed += 1
        except (OSError, RecordingError):
            continue
    return removed


def never_recorded(run: Path) -> bool:
    """Whether a run is this user's, its profiler is dead, and no reading or step was recorded.

    Its folder must hold nothing but a recording's files.
    """
    path = run / PROFILER_FILE
    about = path.stat()
    if about.st_size > _MOST_BYTES or about.st_uid != os.geteuid() or run.is_symlink():
        return False
    data = path.read_bytes()
    if not _holds_beginning_only(data):  # first: most runs have a reading right after the header
        return False
    if not identity(data) and time.time() - about.st_mtime < _UNMARKED_S:
        return False
    return _holds_nothing_beside(run) and not profiler_lives(run)


def _holds_beginning_only(data: bytes) -> bool:
    """Whether a profiler's file was cut off before its first reading, and is not damaged."""
    at = 0
    for kind, _, end in parse(data):
        if kind not in (fmt.HEADER, fmt.FACT):
            return False
        at = end
    # One record may be torn off; more than that is damage, and somebody may want to look at it.
    return len(data) - at < fmt.FRAME.size or data[at : at + 2] == fmt.MAGIC


def _holds_nothing_beside(run: Path) -> bool:
    for entry in os.scandir(run):
        is_events = fnmatchcase(entry.name, EVENT_FILES)
        if not (is_events or entry.name in (PROFILER_FILE, fmt.CONTROL_FILE)):
            return False
        if is_events and _holds_steps(Path(entry.path)):
            return False
    return True


def _holds_steps(path: Path) -> bool:
    return any(kind not in (fmt.HEADER, fmt.FACT) for kind, _, _ in parse(path.read_bytes()))


def _has_ended(run: Path) -> bool:
    return any(kind == fmt.END for kind, _, _ in parse((run / PROFILER_FILE).read_bytes()))
