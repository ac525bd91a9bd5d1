"""Records of the real runs that ``advisor runs actual`` noted in a journal (``jobs.runs``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.errors import RunError
from advisor.jobs import FILE_NAME, STEPS, Entry, file_in, from_entry, journal_entries
from advisor.quantities import percent_text
from advisor.records.files import from_row
from advisor.records.nouns import RunRecord

# Of a record, what the measured step of its entry says.
LABEL: Final = ("record_id", "time_s", "cost_usd", "status", "replicate")
# Nine of ten start-ups are known to within a third. Where a fifth of a job is no steps, the steps
# are then known to within a twelfth, which is what the shipped model errs by in the median.
MOST_BESIDES: Final = 0.2


def read_journal(path: Path) -> list[RunRecord]:
    """Read the records in a journal, or in that of a folder: times and costs of their steps alone.

    A note of a whole job whose steps are not known is no record (``left_aside``). Raises RunError
    if there is no journal, or one of its records makes no sense.
    """
    noted: Counter[str] = Counter()
    rows = (_labelled(entry, noted) for entry in _entries(path))
    try:
        return [from_row(row) for row in rows if row is not None]
    except RunError as error:
        raise RunError(f"{path}: {error}", hint=error.hint or "see docs/formats.md") from error


def left_aside(path: Path) -> tuple[str, ...]:
    """Return a line for each reason why notes in a journal are not learned from.

    What is compared with physics is the time of a job's steps. Of a whole job's time that is what
    the completion that had been told does not count besides the steps; where it counts more than
    ``MOST_BESIDES`` of the note, or it was not kept, the steps are not known.
    """
    steps = [_steps_of(entry) for entry in _entries(path)]
    unknown = sum(one is None for one in steps)
    besides = sum(one is not None and one["time_s"] is None for one in steps)
    told = (
        (besides, f"more than {percent_text(MOST_BESIDES)} of each is start-up, data, validation, "
                  "checkpoints and failures, so that its steps are not known"),
        (unknown, "versions before kept no word of what was besides the steps"),
    )  # fmt: skip
    return tuple(
        f"not learned from: {many} of {len(steps)} noted runs in {path}; {why} (note a step: "
        "advisor runs actual RUN MACHINE --step-time 310ms)"
        for many, why in told
        if many
    )


def _entries(path: Path) -> tuple[Entry, ...]:
    if path.is_file() and path.name != FILE_NAME:
        raise RunError(f"{path} is not a journal", hint=f"name a {FILE_NAME}")
    folder = path if path.is_dir() else path.parent
    if file_in(folder) is None:
        raise RunError(f"no {FILE_NAME} in {folder}", hint="name the folder of the runs")
    return journal_entries(folder, "record", dict)


def _steps_of(entry: Entry) -> Mapping[str, Any] | None:
    """Return what the steps alone took; None where that was not kept."""
    found = entry.get(STEPS)
    return found if isinstance(found, dict) and {"time_s", "cost_usd"} <= set(found) else None


def _labelled(entry: Entry, noted: Counter[str]) -> dict[str, Any] | None:
    """Return the row of a record with its label; None where nothing is to be learned from it."""
    steps = _steps_of(entry)
    try:
        actual = from_entry(entry)
    except (TypeError, KeyError, ValueError):
        return None
    replicate = noted[actual.run]
    noted[actual.run] += 1
    if steps is None or steps["time_s"] is None:
        return None
    row: dict[str, Any] = entry["record"] | {
        "record_id": f"{actual.run}/{actual.count}x{actual.instance_type}/{replicate}",
        "time_s": steps["time_s"],
        "cost_usd": steps["cost_usd"],
        "status": "ok",
        "replicate": replicate,
    }
    return row
