"""Records of the real runs that ``advisor runs actual`` noted in a journal (``jobs.journal``)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from advisor.errors import RunError
from advisor.jobs import journal
from advisor.jobs.actuals import from_entry
from advisor.planners.core.units import HOUR_S
from advisor.records import RunRecord
from advisor.records.files import from_row

# Of a record, what the measured step of its entry says.
LABEL: Final = ("record_id", "time_s", "cost_usd", "status", "replicate")


def read(path: Path) -> list[RunRecord]:
    """Read the records in a journal, or in that of a folder.

    Raises RunError if there is none, or one of its records makes no sense.
    """
    if path.is_file() and path.name != journal.FILE_NAME:
        raise RunError(f"{path} is not a journal", hint=f"name a {journal.FILE_NAME}")
    folder = path if path.is_dir() else path.parent
    if journal.file_in(folder) is None:
        raise RunError(f"no {journal.FILE_NAME} in {folder}", hint="name the folder of the runs")
    noted: Counter[str] = Counter()
    rows = []
    for entry in journal.read(folder, "actual", dict):
        row = _labelled(entry, noted)
        if row is not None:
            rows.append(row)
    earlier = (entry for entry in journal.read(folder, "record", dict) if "actual" not in entry)
    rows = [*(entry["record"] for entry in earlier), *rows]
    try:
        return [from_row(row) for row in rows]
    except RunError as error:
        raise RunError(f"{path}: {error}", hint=error.hint or "see docs/records.md") from error


def _labelled(entry: dict[str, Any], noted: Counter[str]) -> dict[str, Any] | None:
    """Return the row of a record with its label; None where nothing is to be learned from it."""
    try:
        actual = from_entry(entry)
    except (TypeError, KeyError, ValueError):
        return None
    replicate = noted[actual.run]
    noted[actual.run] += 1
    if "record" not in entry or actual.time_h is None:
        return None
    row: dict[str, Any] = entry["record"] | {
        "record_id": f"{actual.run}/{actual.count}x{actual.instance_type}/{replicate}",
        "time_s": actual.time_h * HOUR_S,
        "cost_usd": actual.cost_usd,
        "status": "ok",
        "replicate": replicate,
    }
    return row
