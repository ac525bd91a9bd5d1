"""Jobs of a Slurm cluster from an export of ``sacct``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from advisor.collectors import bounded
from advisor.records.job_rows import NOT_ENDED, JobRow, LeftOutError, OpenJob, checked, date_s
from advisor.records.traces import TraceError

GRES: Final = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?P<kind>[^=:,]+))?[=:](?P<count>\d+)")
ELAPSED: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
# One of each must be there.
_COLUMNS: Final = (
    ("JobID",),
    ("Submit",),
    ("Start",),
    ("ElapsedRaw", "Elapsed", "End"),
    ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"),
)


def sacct_rows(path: Path, text: str) -> Iterator[JobRow]:
    """Yield the job in each row, or why there is none; ``path`` is named in errors.

    Raises TraceError if a column is missing, or a row cannot be read.
    """
    reader = bounded.csv_tables(text.splitlines(), delimiter="|")
    names = set(reader.fieldnames or ())
    lacks = ["/".join(group) for group in _COLUMNS if not names & set(group)]
    if lacks:
        raise TraceError(
            f"{path.name}: sacct's columns {', '.join(lacks)} are missing",
            hint="sacct --allusers --parsable2 "
            "--format=JobID,Submit,Start,End,ElapsedRaw,AllocTRES,State",
        )
    for row in reader:
        where = f"{path.name}, line {reader.line_num}"
        if None in row.values():
            raise TraceError(
                f"{where}: fewer columns than the header", hint="is the file cut off there?"
            )
        if "." in row["JobID"]:  # a step of a job: the job has a row of its own
            continue
        try:
            if (unfinished := _unfinished(where, row)) is not None:
                yield unfinished
                continue
            submit, start = date_s(where, row["Submit"]), date_s(where, row["Start"])
            elapsed = _elapsed_s(where, row, start)
            yield checked(where, submit, start, elapsed, _devices(row))
        except LeftOutError as reason:
            yield str(reason)


def _unfinished(where: str, row: Mapping[str, str]) -> OpenJob | None:
    """Return a job on devices that runs or waits, as far as the row says so."""
    state = (row.get("State") or "").partition(" ")[0]
    devices = _devices(row)
    if state not in ("RUNNING", "PENDING") or not devices:
        return None
    submit = date_s(where, row["Submit"])
    if state == "PENDING":
        return OpenJob(submit, devices, np.nan)
    raw = row.get("ElapsedRaw") or ""
    return OpenJob(submit, devices, float(raw)) if raw.isdigit() else None


def _devices(row: Mapping[str, str]) -> int:
    """Return the GPUs of a job: the total where given, else the sum over kinds."""
    for name in ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES"):
        found = list(GRES.finditer(row.get(name) or ""))
        if found:
            totals = [int(m["count"]) for m in found if m["kind"] is None]
            return totals[0] if totals else sum(int(m["count"]) for m in found)
    return 0


def _elapsed_s(where: str, row: Mapping[str, str], start_s: float) -> float:
    state = (row.get("State") or "").partition(" ")[0]
    if state in ("RUNNING", "PENDING", "SUSPENDED"):
        raise LeftOutError(NOT_ENDED)
    if (raw := row.get("ElapsedRaw") or "").isdigit():
        return float(raw)
    if elapsed := row.get("Elapsed"):
        match = ELAPSED.fullmatch(elapsed)
        if match is None:
            raise TraceError(
                f"{where}: cannot read {elapsed!r} as an elapsed time", hint="write D-HH:MM:SS"
            )
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return date_s(where, row.get("End", "")) - start_s
