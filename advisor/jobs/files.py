"""Jobs as files: what a step computes, how long the job is, what was measured of it.

One JSON object, ``{"schema_version": 1, "kind": "advisor-job", "job": {...}}``, whose fields are
those of ``advisor.jobs.job.Job`` and of the nouns inside it. Everything is checked when it is
read: nothing of another version, no missing or unknown field, no impossible size.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic, bounded
from advisor.domain import from_record, to_record
from advisor.errors import RunError
from advisor.jobs.job import Job
from advisor.planners.step.device import PRODUCTS

SCHEMA_VERSION: Final = 1
KIND: Final = "advisor-job"
_HINT: Final = "write it again: advisor predict ... --save-job FILE"


def write_job(job: Job, path: Path) -> None:
    """Write a job; the file is whole or not there.

    Raises RunError if it cannot be written.
    """
    # Runs in known layouts are the user's, not the job's: they stand beside the recorded runs.
    own = to_record(replace(job, layout_runs=()))
    del own["layout_runs"]
    record = {"schema_version": SCHEMA_VERSION, "kind": KIND, "job": own}
    try:
        atomic.write_text(path, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}", hint="choose another place") from error


def read_job(path: Path) -> Job:
    """Read a job.

    Raises RunError if the file cannot be read, is of another version, or a value in it makes no
    sense; the message names the field.
    """
    try:
        record = bounded.read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the job file {path}: {error}", hint=_HINT) from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise RunError(f"{path} is not a job file", hint=_HINT)
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {version}; this advisor reads {SCHEMA_VERSION}",
            hint="write it again with this version, or use the advisor that wrote it",
        )
    try:
        job = from_record(Job, _today(record.get("job")), where="job", is_strict=True)
        _check(job)
    except ValueError as error:
        raise RunError(
            f"{path}: {error}", hint="correct the field, or write the file again"
        ) from error
    return job


def _today(job: Any) -> Any:
    """Return a job as it is written today; older files say only whether it ``is_compiled``."""
    work = job.get("work") if isinstance(job, dict) else None
    if not isinstance(work, dict) or "setup" in work or "is_compiled" not in work:
        return job
    rest = {name: value for name, value in work.items() if name != "is_compiled"}
    kernels = "compiled" if work["is_compiled"] is True else "eager"
    return job | {"work": rest | {"setup": {"kernels": kernels}}}


def _check(job: Job) -> None:
    if job.work is None and job.program is None:
        raise ValueError("job has neither work nor program")
    for name, value in (
        ("global_batch", job.global_batch), ("total_steps", job.total_steps),
        ("recorded_batch", job.recorded_batch),
    ):  # fmt: skip
        if not value > 0:
            raise ValueError(f"job.{name} must be positive, got {value}")
    if job.work is None:
        return
    for operator in job.work.operators:
        if operator.kind in PRODUCTS and operator.flop == 0:
            raise ValueError(
                f"operator {operator.name!r} ({operator.phase}) is a {operator.kind} without flop"
            )
