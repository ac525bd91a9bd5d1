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

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors import bounded
from advisor.planners.queueing import Column, JobTable, OpenJobs
from advisor.records.traces import TraceError, in_range

NOT_ENDED: Final = "that have not ended"


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ran to its end; seconds, and nan where nobody says what it waited."""

    submit_s: float
    devices: int
    duration_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that runs, or waits: what has elapsed, in seconds, is nan then."""

    submit_s: float
    devices: int
    elapsed_s: float


JobRow = EndedJob | OpenJob | str  # or why a row is left out


class LeftOutError(Exception):
    """A row that is no job to simulate; the message is the reason that is counted."""


def checked(
    where: str, submit_s: float, start_s: float, duration_s: float, devices: int
) -> EndedJob | str:
    """Return a job, or why it is none.

    Raises TraceError if it ends before it starts, starts before it was submitted, or is beyond
    all that can be.
    """
    for number in (submit_s, duration_s, devices):
        in_range(where, number)
    if duration_s < 0 or start_s < submit_s:
        raise TraceError(
            f"{where}: {'ends' if duration_s < 0 else 'starts'} "
            f"{-duration_s if duration_s < 0 else submit_s - start_s:g} s before it "
            f"{'starts' if duration_s < 0 else 'was submitted'}",
            hint="export the file again, all times in one time zone",
        )
    if devices < 1:
        return "without a device"
    if not duration_s > 0:
        return "that never ran"
    return EndedJob(submit_s, devices, duration_s, start_s - submit_s)


def date_s(where: str, value: str) -> float:
    """Return a date, or the seconds of an epoch, as seconds of that epoch.

    Raises LeftOutError if there is none. Raises TraceError if it cannot be read; the message
    begins with ``where``.
    """
    if value in ("Unknown", "None", "N/A", ""):
        raise LeftOutError("without a start or an end")
    if value.isdigit():  # SLURM_TIME_FORMAT=%s
        return float(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        raise TraceError(
            f"{where}: cannot read {value!r} as a date", hint="write 2026-11-21T09:30:00"
        ) from None


DEVICE_RESOURCE: Final = re.compile(r".+/(gpu|mig-.+|tpu|neuron|habana.*)$")


def kubernetes_rows(path: Path, text: str) -> Iterator[EndedJob | str]:
    """Yield the job in each object, or why there is none; ``path`` is named in errors.

    Raises TraceError if it is not a list of jobs or pods.
    """
    try:
        document = bounded.parse_json(text)
    except ValueError as error:
        raise TraceError(
            f"{path.name} is not JSON: {error}", hint="kubectl get jobs -A -o json (or pods)"
        ) from None
    items = document.get("items") if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise TraceError(
            f"{path.name} is not a list of Kubernetes objects",
            hint="kubectl get jobs -A -o json (or pods)",
        )
    for number, item in enumerate(items):
        where = f"{path.name}, item {number}"
        try:
            yield _item(where, item)
        except LeftOutError as reason:
            yield str(reason)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise TraceError(
                f"{where}: no Kubernetes job or pod ({error!r})",
                hint="kubectl get jobs -A -o json (or pods)",
            ) from None


def _item(where: str, item: Mapping[str, Any]) -> EndedJob | str:
    kind, status, spec = item["kind"], item.get("status", {}), item["spec"]
    submit = date_s(where, item["metadata"]["creationTimestamp"])
    if kind == "Job":
        copies = int(spec.get("parallelism", 1))
        devices = copies * _container_devices(spec["template"]["spec"])
        # A job without a completion time failed or runs on; its last condition says when.
        ended = status.get("completionTime") or next(
            (
                c["lastTransitionTime"]
                for c in status.get("conditions", ())
                if c["type"] == "Failed"
            ),
            "",
        )
        start = date_s(where, status.get("startTime", ""))
    elif kind == "Pod":
        devices = _container_devices(spec)
        finished = [
            c["state"]["terminated"]["finishedAt"]
            for c in status.get("containerStatuses", ())
            if "terminated" in c.get("state", {})
        ]
        # A pod's startTime is when a node took it: what it waited before is the queue.
        start, ended = date_s(where, status.get("startTime", "")), max(finished, default="")
    else:
        return f"of kind {kind}"
    return checked(where, submit, start, date_s(where, ended) - start, devices)


def _container_devices(spec: Mapping[str, Any]) -> int:
    total = 0
    for container in spec["containers"]:
        resources = container.get("resources", {})
        asked = resources.get("limits") or resources.get("requests") or {}
        total += sum(int(n) for name, n in asked.items() if DEVICE_RESOURCE.fullmatch(name))
    return total


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
            hint="export finished jobs with their GPUs, see docs/formats.md",
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
        try:
            at = _seconds_or_date(where, row[submit])
        except LeftOutError as reason:
            yield str(reason)
            continue
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
        return in_range(where, float(value))
    except ValueError:
        raise TraceError(
            f"{where}: cannot read {value!r} as a number",
            hint="devices are counts, durations seconds",
        ) from None


def left_out_note(left_out: Mapping[str, int]) -> str:
    """Return one line on what was not used; empty where everything was."""
    parts = [f"{count} {reason}" for reason, count in left_out.items()]
    return f"left out: {', '.join(parts)}" if parts else ""
