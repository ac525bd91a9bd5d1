"""A real step on named machines against its prediction.

A transformer's in its layout calibrates the layout model for every transformer. A recorded job's
is one of its real runs: with three of them on several numbers of devices, its own law of scaling
times it on such machines (``estimate.knowledge.own_runs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from advisor.answer import Estimate, Recorded
from advisor.collectors.derive import find_run, local_folder
from advisor.errors import UsageError
from advisor.estimate import SPACE, STATUSES, Predictor, TimeColumns, places_of
from advisor.jobs import (
    Actual,
    Job,
    LayoutRun,
    append_actual,
    append_layout_run,
    load_job,
    read_layout_runs,
    with_layout_runs,
)
from advisor.machines import ClusterGroup, one_group
from advisor.planners.core import Layout
from advisor.planners.layouts import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison(Recorded):
    """A measured step beside its prediction."""

    schema_version: ClassVar[int] = 1
    said: ClassVar[Mapping[str, str]] = {
        "schema_version": "schema_version", "job": "name", "machines": "machines",
        "layout": "layout", "predicted.step_time_s": "predicted_s",
        "actual.step_time_s": "step_s", "error_fraction": "error_fraction",
        "inside": "is_inside", "runs": "known",
    }  # fmt: skip

    # name, machines: of the job, and what it ran on
    name: str
    machines: str
    layout: Layout  # as it was predicted, where the user did not say it
    predicted_s: Estimate  # before the run was noted [s]
    step_s: float  # as measured [s]
    known: int  # such runs that the next estimates start from

    @property
    def error_fraction(self) -> float:
        """Predicted step over the measured one, less 1."""
        return self.predicted_s.value / self.step_s - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval held the measured step."""
        return self.predicted_s.low <= self.step_s <= self.predicted_s.high


def note_cluster_run(
    run: str, machines: str, *, step_s: float, batch: int | None = None
) -> StepComparison:
    """Keep a measured step of a recorded job, and return it beside the prediction.

    ``run``: name, part of a name, or folder of the recorded run; ``machines``: all that it ran on,
    as ``--cluster`` takes them; ``step_s``: mean optimizer step [s]; ``batch``: samples of a step
    over all devices; as recorded otherwise.

    Raises UsageError if the machines are unlike, or the job cannot run on them.
    """
    predictor = Predictor()
    path = find_run(run)
    job = load_job(path)
    job = job if batch is None else replace(job, global_batch=batch)
    if job.work is None:
        raise UsageError(
            f"{job.name} has no training steps",
            hint="give the whole job's time: advisor runs actual RUN g5.xlarge --time 3h12m",
        )
    group = one_group(machines, predictor.catalogue)
    columns = _columns(predictor, job, group, SPACE)
    append_actual(
        path.parent,
        Actual(
            run=path.name, provider="", instance_type=machines, count=1, step_s=step_s, batch=batch
        ),
    )
    return _compared(job.name, machines, columns, step_s, len(job.actuals) + 1)


def _columns(
    predictor: Predictor, job: Job, group: ClusterGroup, space: SearchSpace
) -> TimeColumns:
    (there,) = places_of(predictor.case(job, space=space), [group])
    columns = predictor.step_columns(
        job, np.array([there.row]), np.array([group.count]), fleet=there.case.fleet, space=space
    )
    if columns.status[0]:
        why = STATUSES[int(columns.status[0])].replace("_", " ")
        raise UsageError(
            f"{job.name} cannot be laid out on {group.count} x {group.label}: {why}",
            hint="say how it ran: --batch, and of a transformer --tp, --pp, --micro-batch, ...",
        )
    return columns


def _compared(
    name: str, machines: str, columns: TimeColumns, step_s: float, known: int
) -> StepComparison:
    return StepComparison(
        name=name,
        machines=machines,
        layout=columns.layout(0),
        predicted_s=Estimate.lognormal(float(columns.step_s[0]), float(columns.log_sd[0]), 0.9),
        step_s=step_s,
        known=known,
    )


def note_layout_run(
    job: Job, machines: str, *, step_s: float, space: SearchSpace | None = None,
    predictor: Predictor | None = None, root: Path | None = None,
) -> StepComparison:  # fmt: skip
    """Keep a measured step of a described transformer, and return it beside the prediction.

    ``job``: of a transformer that is laid out by its dimensions; ``machines``: all that it ran on,
    as ``--cluster`` takes them; ``step_s``: mean optimizer step [s]; ``space``: what is known of
    the layout; the rest is taken to be the fastest that fits.

    Raises UsageError if the job is no such transformer, the machines are unlike, or nothing fits
    on them.
    """
    predictor = predictor or Predictor()
    place = local_folder(root)
    job = with_layout_runs(replace(job, layout_runs=()), place)
    if job.work is None or job.work.transformer is None or job.work.layers:
        raise UsageError(
            f"{job.name} is not a transformer known by its dimensions",
            hint="name a recorded run instead: "
            "advisor runs actual RUN g5.xlarge --step-time 250ms",
        )
    group = one_group(machines, predictor.catalogue)
    columns = _columns(predictor, job, group, space or SPACE)
    append_layout_run(
        place,
        LayoutRun(
            name=job.name,
            transformer=job.work.transformer,
            setup=job.work.setup,
            precision=job.work.precision,
            machines=machines,
            layout=columns.layout(0),
            step_s=step_s,
        ),
    )
    return _compared(job.name, machines, columns, step_s, len(read_layout_runs(place)))
