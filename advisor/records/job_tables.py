"""Read what a shared cluster ran: Slurm's ``sacct``, Kubernetes jobs or pods, or a plain table.

Form, told by the file itself:

- ``sacct --allusers --parsable2 --format=JobID,Submit,Start,End,ElapsedRaw,AllocTRES,State``
  (``|`` between columns; ``Elapsed``, ``ReqTRES``, ``AllocGRES`` and ``ReqGRES`` are understood)
- ``kubectl get jobs -A -o json`` or ``kubectl get pods -A -o json``
- CSV with a submission (``submit_time``, ``submit_s``, ``timestamp``, ``time``), a number of
  devices (``num_gpu``, ``num_gpus``, ``gpus``, ``devices``, ``num_replicas``) and a duration
  (``duration``, ``duration_s``), as the Tiresias and Philly traces have.

Jobs that asked for no device, never ran, or have not ended are left out and counted; those of
``sacct`` that run or wait are kept beside, for what is submitted now. A job's own
duration on its own devices is what it took there; it is not corrected for what shared the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.collectors import bounded
from advisor.planners.queueing.nouns import Column, JobTable
from advisor.planners.queueing.start import OpenJobs
from advisor.records.job_rows import NOT_ENDED, EndedJob, JobRow, OpenJob, checked, date_s
from advisor.records.kubernetes import kubernetes_rows
from advisor.records.sacct import sacct_rows
from advisor.records.traces import TraceError

SUBMIT_COLUMNS: Final = ("submit_time", "submit_s", "timestamp", "time")
DEVICE_COLUMNS: Final = ("num_gpu", "num_gpus", "gpus", "devices", "num_replicas")
DURATION_COLUMNS: Final = ("duration_s", "duration")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTrace:
    """The jobs of a shared cluster, and what really happened to them."""

    jobs: JobTable  # their clock starts at the first submission
    # (n,); from submission to start as recorded; nan where the file does not say [s]
    waited_s: Column
    left_out: Mapping[str, int]  # rows that were not used, by reason
    source: str
    # those that run or wait at the time of the export; none where the file does not say
    open_jobs: OpenJobs


def read_cluster_trace(path: Path) -> ClusterTrace:
    """Read the jobs of a shared cluster.

    Raises TraceError if the file cannot be read, has no known form, or holds no job that ran on
    devices.
    """
    try:
        text = bounded.read_text(path)
        form, rows = _rows(path, text)
        read = list(rows)
    except (ValueError, OverflowError, OSError) as error:
        raise TraceError(
            f"cannot read {path}: {error}", hint="name an export of sacct, kubectl or a CSV"
        ) from None
    ended = sorted((row for row in read if isinstance(row, EndedJob)), key=_submission)
    unfinished = sorted((row for row in read if isinstance(row, OpenJob)), key=_submission)
    left_out = Counter(NOT_ENDED if isinstance(row, OpenJob) else row
                       for row in read if not isinstance(row, EndedJob))  # fmt: skip
    if not ended:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise TraceError(
            f"{path.name} ({form}) has no job that ran on devices: {reasons or 'it is empty'}",
            hint="export finished jobs with their GPUs, see docs/completion.md",
        )
    submit = np.array([job.submit_s for job in ended])
    return ClusterTrace(
        jobs=JobTable(
            submit_s=submit - submit[0],
            devices=np.array([job.devices for job in ended], np.int64),
            duration_s=np.array([job.duration_s for job in ended]),
        ),
        waited_s=np.array([job.waited_s for job in ended]),
        left_out=dict(left_out),
        source=f"{path.name} ({form})",
        open_jobs=OpenJobs(
            devices=np.array([job.devices for job in unfinished], np.int64),
            elapsed_s=np.array([job.elapsed_s for job in unfinished], float),
        ),
    )


def _rows(path: Path, text: str) -> tuple[str, Iterator[JobRow]]:
    """Return the form of a file, and its rows."""
    if text.lstrip()[:1] in ("{", "["):
        return "Kubernetes", kubernetes_rows(path, text)
    if "|" in text.partition("\n")[0]:
        return "sacct", sacct_rows(path, text)
    return "job table", _table(path, text)


def _submission(job: EndedJob | OpenJob) -> float:
    return job.submit_s


def _table(path: Path, text: str) -> Iterator[EndedJob | str]:
    reader = bounded.csv_tables(text.splitlines())
    names = [name.strip() for name in reader.fieldnames or ()]
    submit, devices, duration = (
        next((name for name in wanted if name in names), None)
        for wanted in (SUBMIT_COLUMNS, DEVICE_COLUMNS, DURATION_COLUMNS)
    )
    if submit is None or devices is None or duration is None:
        there = ", ".join(names)[:200] or "(none)"
        raise TraceError(
            f"{path.name} has the columns {there}: no known form of jobs",
            hint="name the columns submit_time, num_gpu, duration (seconds or dates)",
        )
    for row in reader:
        where = f"{path.name}, line {reader.line_num}"
        if None in row.values():
            raise TraceError(
                f"{where}: fewer columns than the header", hint="is the file cut off there?"
            )
        at = _seconds_or_date(where, row[submit])
        count, length = _plain(where, row[devices]), _plain(where, row[duration])
        job = checked(where, at, at, length, int(count))
        yield job if isinstance(job, str) else replace(job, waited_s=np.nan)


def _seconds_or_date(where: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return date_s(where, value)


def _plain(where: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise TraceError(
            f"{where}: cannot read {value!r} as a number",
            hint="devices are counts, durations seconds",
        ) from None


def left_out_note(left_out: Mapping[str, int]) -> str:
    """Return one line on what was not used; empty where everything was."""
    parts = [f"{count} {reason}" for reason, count in left_out.items()]
    return f"left out: {', '.join(parts)}" if parts else ""
