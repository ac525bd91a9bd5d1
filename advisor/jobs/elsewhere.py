"""Recordings of one script on several machines: those on GPUs are runs of the job elsewhere.

They lie beside one another where runs are kept (``ADVISOR_RUNS``, a folder or URL that machines
share). Two recordings are of one job if their commands are, interpreter aside, and a sample takes
as many operations in the same precision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from advisor.collectors.derive import read_recording
from advisor.collectors.errors import RecordingError
from advisor.collectors.format import PROFILER_FILE
from advisor.errors import AdvisorError
from advisor.jobs.job import Job
from advisor.jobs.recorded import job_from_recording
from advisor.jobs.runs import Actual

MOST: Final = 8  # recordings looked into, the newest first: each takes some 10 ms
_SAME_FLOP: Final = 0.01  # of a sample: kernels of another device are counted a little differently


def recorded_elsewhere(path: Path, command: tuple[str, ...], job: Job) -> tuple[Actual, ...]:
    """Return the steps of a recorded job that were recorded on other machines' GPUs."""
    name = _script(path)
    beside = sorted(path.parent.glob(f"*-{name}-*"), reverse=True)
    others = [
        one for one in beside
        if one.name != path.name and _script(one) == name and (one / PROFILER_FILE).is_file()
    ]  # fmt: skip
    found = (_read(one, command) for one in others[:MOST])
    return tuple(noted for one in found if one is not None and (noted := step_of(one, job)))


def step_of(other: Job, job: Job) -> Actual | None:
    """Return another recording's step as a run of the job; None where it is none on a GPU."""
    seen, here = other.measured, job.measured
    if seen is None or not seen.device.startswith("cuda") or not seen.host.gpus:
        return None
    is_here = here is not None and here.device.startswith("cuda")
    if is_here and here is not None and here.host.gpus[:1] == seen.host.gpus[:1]:
        return None  # it anchors itself
    if not _are_one(other, job):
        return None
    return Actual(
        run=other.name,
        provider="",
        instance_type=seen.host.gpus[0],
        count=seen.processes,
        step_s=seen.step_s,
        batch=other.recorded_batch * seen.processes,
    )


def _are_one(other: Job, job: Job) -> bool:
    if other.work is None or job.work is None or other.work.precision != job.work.precision:
        return False
    flop = [sum(o.flop for o in w.operators) / w.micro_batch for w in (other.work, job.work)]
    return abs(flop[0] - flop[1]) <= _SAME_FLOP * max(flop)


def _read(path: Path, command: tuple[str, ...]) -> Job | None:
    """Return the job of a recording of that command; None where there is none to read."""
    try:
        recording = read_recording(path)
        if recording.command[1:] != command[1:]:
            return None
        return job_from_recording(recording, total_steps=1.0)
    except (RecordingError, AdvisorError):
        return None  # killed, too short, of another version: no run to learn from


def _script(path: Path) -> str:
    """Return the script's name in a run's: 20261122-000349-train-d610 recorded train."""
    return "-".join(path.name.split("-")[2:-1])
