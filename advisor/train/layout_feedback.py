"""What a transformer's step took in a layout that is known, beside what was predicted of it.

The measurement is kept beside the recorded runs (``jobs.layout_runs``) and calibrates the layout
model for every transformer that is asked about from then on, on these machines most of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.collectors import store
from advisor.domain import Estimate
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.jobs.layout_runs import LayoutRun, append_layout_run, read_layout_runs
from advisor.jobs.loading import with_layout_runs
from advisor.machines.cluster_text import one_group
from advisor.planners.layouts.grid import SearchSpace
from advisor.predict import STATUSES, Predictor
from advisor.ways.case import SPACE, is_laid_out_by_shape
from advisor.ways.places import places


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutComparison:
    """A measured step beside its prediction.

    Attributes
    ----------
    run : LayoutRun
        As it was kept.
    predicted_s : Estimate
        Before it was. [s]
    known : int
        Measured layouts that the next estimates are calibrated on.
    """

    run: LayoutRun
    predicted_s: Estimate
    known: int

    @property
    def error_fraction(self) -> float:
        """Predicted step over the measured one, less 1."""
        return self.predicted_s.value / self.run.step_s - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval held the measured step."""
        return self.predicted_s.low <= self.run.step_s <= self.predicted_s.high

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema_version": 1,
            "model": self.run.name,
            "machines": self.run.machines,
            "layout": self.run.layout.to_record(),
            "predicted": {"step_time_s": self.predicted_s.to_record()},
            "actual": {"step_time_s": self.run.step_s},
            "error_fraction": self.error_fraction,
            "inside": self.is_inside,
            "layout_runs": self.known,
        }


def note_layout_run(
    job: Job,
    machines: str,
    *,
    step_s: float,
    space: SearchSpace | None = None,
    predictor: Predictor | None = None,
    root: Path | None = None,
) -> LayoutComparison:
    """Keep a measured step of a described transformer, and return it beside the prediction.

    Parameters
    ----------
    job : Job
        Of a transformer that is laid out by its dimensions.
    machines : str
        All that it ran on, as ``--cluster`` takes them.
    step_s : float
        Mean optimizer step. [s]
    space : SearchSpace, optional
        What is known of the layout; the rest is taken to be the fastest that fits.
    predictor : Predictor, optional
    root : Path, optional
        Where runs are recorded.

    Raises
    ------
    UsageError
        If the job is no such transformer, the machines are unlike, or nothing fits on them.
    """
    predictor = predictor or Predictor()
    place = store.local_folder(root)
    job = with_layout_runs(replace(job, layout_runs=()), place)
    group = one_group(machines, predictor.catalogue)
    if job.work is None or job.work.transformer is None:
        raise _not_by_shape(job)
    space = space or SPACE
    (there,) = places(predictor.case(job, space=space), predictor.catalogue, [group])
    if not is_laid_out_by_shape(there.case, np.array([there.row])).all():
        raise _not_by_shape(job)
    columns = predictor.step_columns(
        job, np.array([there.row]), np.array([group.count]), fleet=there.case.fleet, space=space
    )
    if columns.status[0]:
        why = STATUSES[int(columns.status[0])].replace("_", " ")
        raise UsageError(
            f"this run is not one that can be laid out on {machines}: {why}",
            hint="say how it ran: --tp, --pp, --micro-batch, --zero, --recompute, --batch",
        )
    run = LayoutRun(
        name=job.name,
        transformer=job.work.transformer,
        setup=job.work.setup,
        precision=job.work.precision,
        machines=machines,
        layout=columns.layout(0),
        step_s=step_s,
    )
    append_layout_run(place, run)
    return LayoutComparison(
        run=run,
        predicted_s=Estimate.lognormal(float(columns.step_s[0]), float(columns.log_sd[0]), 0.9),
        known=len(read_layout_runs(place)),
    )


def _not_by_shape(job: Job) -> UsageError:
    return UsageError(
        f"{job.name} is not a transformer known by its dimensions",
        hint="name a recorded run instead: advisor runs actual RUN g5.xlarge --step-time 250ms",
    )
