"""From the name of a recorded run to its job, with the real runs that are noted of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.actuals import read_actuals
from advisor.collectors import store
from advisor.job import Job, job_from_recording


def load_job(run: str | Path | None = None, **length: Any) -> Job:
    """Read a recorded run as a job.

    Parameters
    ----------
    run : str, Path or None
        Name or folder of a run; the latest where None.
    **length
        ``epochs``, ``total_steps``, ``total_samples``, ``global_batch``: see
        ``advisor.job.job_from_recording``.

    Raises
    ------
    RecordingError
        If there is no such run, or it cannot be read.
    RunError
        If it lacks what a prediction needs.
    """
    path = store.latest_run() if run is None else store.find_run(str(run))
    job = job_from_recording(store.read_recording(path), **length)
    return replace(job, actuals=read_actuals(path.parent, path.name))
