"""The labelled runs that predictors learn from: those that ship, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.collectors.derive import local_folders
from advisor.errors import RunError, UsageError
from advisor.jobs import file_in
from advisor.records import RunRecord, kind_of, left_aside, note_table, read_runs_as, to_line
from advisor.train.thread_physics import with_device_physics

AUTO: Final = "auto"


def default_paths() -> list[Path]:
    """Return the packaged runs, and the user's own where there are some."""
    own = (file_in(folder) for folder in local_folders())
    return [*_packaged(), *(file for file in own if file is not None)]


def _packaged() -> list[Path]:
    return [data.root("datasets") / name for name in ("runs", "minutes")]


def is_own(records: Sequence[RunRecord]) -> NDArray[np.bool_]:
    """Return which runs are not among those that ship, shape (n,): these were not yet heard."""
    packaged = {to_line(one) for some in read_each(_packaged()).values() for one in some}
    return np.array([to_line(record) not in packaged for record in records])


def left_out_notes(paths: Sequence[Path] | None, fmt: str = AUTO) -> list[str]:
    """Return why notes in the journals among the files are not learned from."""
    journals = [path for path in paths or default_paths() if _format(path, fmt) == "journal"]
    return [line for path in journals if path.exists() for line in left_aside(path)]


def read_runs(paths: Sequence[Path] | None, fmt: str = AUTO) -> list[RunRecord]:
    """Read the runs to learn from.

    Raises UsageError if there are none; RunError if a row makes no sense, or two files have a run
    of the same ``record_id``.

    ``paths``: files or folders; None takes ``default_paths()``.
    """
    return [record for records in read_each(paths, fmt).values() for record in records]


def read_each(paths: Sequence[Path] | None, fmt: str = AUTO) -> dict[Path, list[RunRecord]]:
    """Read the same by file or folder; raises as ``read_runs``."""
    places = list(paths) if paths else default_paths()
    found: dict[str, RunRecord] = {}
    each: dict[Path, list[RunRecord]] = {}
    for path in places:
        for record in with_device_physics(read_runs_as(_format(path, fmt), path), path):
            if record.record_id in found:
                raise RunError(
                    f"{path}: record_id: {record.record_id!r} is in the data twice",
                    hint="name each file once, and give every run its own record_id",
                )
            found[record.record_id] = record
            each.setdefault(path, []).append(record)
    if not found:
        raise UsageError(f"no runs in {', '.join(map(str, places))}", hint="see --data")
    for source in {record.source for record in found.values()}:
        lines = (to_line(record) for record in found.values() if record.source == source)
        note_table(f"runs of {source}", lines)
    return each


def run_files(path: Path) -> list[Path]:
    """Return the files of runs in a folder, or the file itself.

    Raises UsageError if there is none.
    """
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UsageError(f"no .jsonl or .jsonl.gz in {path}", hint="see --data")
    return [file.resolve() for file in files]


def _format(path: Path, fmt: str) -> str:
    """Return the format that is meant: named, or told by what is there."""
    return kind_of(path) if fmt == AUTO else fmt
