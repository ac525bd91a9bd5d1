"""``advisor train steps``: the user's own measured runs, heard for every job on the same cards.

A recorded job whose real run was noted (``advisor runs actual``) says by how much the step-time
equation errs there. Those errors join the published ones (``planners.step.calibrate``): they carry
over to the user's other jobs by how alike the steps and the devices are, and tell of the host that
starts the calls on that card, which published steps never do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from advisor.ask import option
from advisor.catalogue import Catalogue
from advisor.collectors import atomic
from advisor.collectors.derive import list_runs
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import place_of
from advisor.jobs import Actual, Job, load_job
from advisor.machines import (
    OwnErrors,
    catalogue_fleet,
    device_parameters,
    errors_record,
    model_day,
    own_steps_file,
)
from advisor.planners.core import Device, PlanningError, Work
from advisor.planners.step import (
    OWN_HOST,
    SeenErrors,
    at_batch,
    error_points,
    step_time,
    unmeasured,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """A job's step as it was measured on one accelerator of the user's."""

    job: str
    work: Work  # at the batch that ran
    device: Device
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSteps:
    """Learn from measured runs how machines differ."""

    # fmt: off
    runs: Path | None = option("Folder of recordings (default: where they are kept).")
    out: Path | None = option("File to write (default: where answers look).")
    # fmt: on

    def __call__(self) -> None:
        steps = list(own_steps(self.runs))
        if not steps:
            raise UsageError(
                "no recorded job has a measured run on one accelerator",
                hint="note one: advisor runs actual RUN TYPE --step-time 310ms",
            )
        file = self.out or own_steps_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        record = errors_record(OwnErrors(device_model=model_day(), seen=errors_of(steps)))
        atomic.write_bytes(file, (json.dumps(record) + "\n").encode())
        jobs, cards = len({s.job for s in steps}), sorted({s.device.name for s in steps})
        typer.echo(f"{len(steps)} runs of {jobs} jobs on {', '.join(cards)}: {file}")


def own_steps(runs: Path | None = None) -> Iterator[OwnStep]:
    """Yield the measured steps of recorded jobs on single accelerators; unread ones are left."""
    catalogue = Catalogue.load()
    for folder in list_runs(runs):
        try:
            job = load_job(folder)
        except (AdvisorError, PlanningError):
            continue
        for actual in job.actuals:
            device = _one_gpu(actual, catalogue)
            if device is not None and job.work is not None:
                yield _measured(job, job.work, actual, device)


def _measured(job: Job, work: Work, actual: Actual, device: Device) -> OwnStep:
    batch = max(actual.batch or job.global_batch, 1)
    return OwnStep(job=job.name, work=at_batch(work, batch), device=device, seconds=actual.step_s)


def _one_gpu(actual: Actual, catalogue: Catalogue) -> Device | None:
    """Return the GPU of a run's machines where they have one in all."""
    try:
        fleet, (row,), (count,) = place_of(actual, catalogue, lambda: catalogue_fleet(catalogue))
    except AdvisorError:
        return None
    if fleet.device[row] < 0 or int(count) * int(fleet.per_node[row]) != 1:
        return None
    device = fleet.devices[fleet.device[row]]
    return device if device.kind == "gpu" else None


def errors_of(steps: list[OwnStep]) -> SeenErrors:
    """Return the errors of the equation on own steps, their hosts the user's."""
    known = device_parameters()
    by_peaks, by_rates, host_log_sd = np.empty((3, len(steps)))
    for i, one in enumerate(steps):
        bare, told = (
            step_time(one.work, [d], [float(one.work.micro_batch)], known)
            for d in (unmeasured(one.device), one.device)
        )
        by_peaks[i], by_rates[i] = (
            np.log(t.micro_batch_s[0, 0] + t.optimizer_s[0]) for t in (bare, told)
        )
        host_log_sd[i] = told.host_log_sd[0, 0]
    points = error_points(
        [s.work for s in steps], [s.device for s in steps],
        [OWN_HOST + s.device.name for s in steps], host_log_sd.tolist(),
        [OWN_HOST + s.job for s in steps],
    )  # fmt: skip
    measured = np.log([s.seconds for s in steps])
    return SeenErrors(points=points, of_peaks=measured - by_peaks, of_rates=measured - by_rates)
