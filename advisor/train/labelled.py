"""The labelled runs that predictors learn from: those that ship, and the user's own."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from advisor import data
from advisor.collectors import bounded, store
from advisor.errors import RunError, UsageError
from advisor.jobs import journal
from advisor.records import RunRecord, reads
from advisor.records.files import to_line
from advisor.records.importers import formats

AUTO: Final = "auto"
_COLLECTED: Final = "minicloud"  # what ``advisor collect`` made: a format and a source
_PACKED: Final = ("runs.jsonl.gz", "runs.jsonl")  # of such a folder


def default_paths() -> list[Path]:
    """Return the packaged runs, and the user's own where there are some."""
    own = (journal.file_in(folder) for folder in store.local_folders())
    return [data.root("datasets") / "runs", *(file for file in own if file is not None)]


def read_runs(paths: Sequence[Path] | None, fmt: str = AUTO) -> list[RunRecord]:
    """Read the runs to learn from.

    Raises UsageError if there are none; RunError if a row makes no sense, or two files have a run
    of the same ``record_id``.

    Parameters
    ----------
    paths : sequence of Path or None
        Files or folders; None takes ``default_paths()``.
    """
    places = list(paths) if paths else default_paths()
    found: dict[str, RunRecord] = {}
    for path in places:
        for record in _with_physics(formats.read(_format(path, fmt), path), path):
            if record.record_id in found:
                raise RunError(
                    f"{path}: record_id: {record.record_id!r} is in the data twice",
                    hint="name each file once, and give every run its own record_id",
                )
            found[record.record_id] = record
    if not found:
        raise UsageError(f"no runs in {', '.join(map(str, places))}", hint="see --data")
    for source in {record.source for record in found.values()}:
        lines = (to_line(record) for record in found.values() if record.source == source)
        reads.note(f"runs of {source}", lines)
    return list(found.values())


def run_files(path: Path) -> list[Path]:
    """Return the files of runs in a folder, or the file itself.

    Raises UsageError if there is none.
    """
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UsageError(f"no .jsonl or .jsonl.gz in {path}", hint="see --data")
    return [file.resolve() for file in files]


def _with_physics(records: list[RunRecord], path: Path) -> list[RunRecord]:
    if all(record.source != _COLLECTED for record in records):
        return records
    found: list[RunRecord] = data.laboratory("advisor.train.collected").with_device_physics(
        records, path
    )
    return found


def _format(path: Path, fmt: str) -> str:
    """Return the format that is meant: collected runs name their schema in every row."""
    if fmt != AUTO:
        return fmt
    if path.name == journal.FILE_NAME:
        return "journal"
    file = path
    if path.is_dir():
        file = next((path / n for n in _PACKED if (path / n).is_file()), path)
    if not file.is_file():
        return "records"
    try:
        with (
            gzip.open(file, "rt") if file.suffix == ".gz" else file.open(encoding="utf-8") as rows
        ):
            first = bounded.parse_json(rows.readline())
    except (OSError, EOFError, ValueError):
        return "records"  # its reader says what is wrong with it
    is_collected = isinstance(first, dict) and str(first.get("schema")).startswith(_COLLECTED)
    return _COLLECTED if is_collected else "records"
