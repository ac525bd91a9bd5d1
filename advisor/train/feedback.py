"""What a real run took, against what was predicted: the measurement that narrows and teaches.

It is kept twice beside the recorded runs: as a measured step of the job (``actuals.jsonl``), which
anchors its next estimates at once, and as a run record (``records.jsonl``), from which
``advisor train`` learns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.catalogue import Catalogue
from advisor.collectors import store
from advisor.domain import Candidate, Estimate
from advisor.errors import UsageError
from advisor.jobs.actuals import Actual, append_actual, read_actuals
from advisor.jobs.job import Job
from advisor.jobs.loading import load_job
from advisor.planners.core.units import HOUR_S
from advisor.predict import Predictor
from advisor.ranking import Request, recommend
from advisor.records import append_record
from advisor.records.catalogued import machines_of
from advisor.records.importers.profiled import profile, record
from advisor.train import drift
from advisor.train.labelled import OWN_RUNS

_SAME_PRICE: Final = 0.02  # bills are rounded, and a run is a little longer than its machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A real run beside its prediction.

    Attributes
    ----------
    run, provider, instance_type : str
    count : int
    predicted_h, predicted_usd : Estimate
        Before the run was noted.
    time_h : float
        As given, or what the given step makes of the whole job. [h]
    cost_usd : float or None
    step_s : float
        [s]
    """

    run: str
    provider: str
    instance_type: str
    count: int
    predicted_h: Estimate
    predicted_usd: Estimate
    time_h: float
    cost_usd: float | None
    step_s: float

    @property
    def error_fraction(self) -> float:
        """Predicted time over the real one, less 1."""
        return self.predicted_h.value / self.time_h - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval of the time held the truth."""
        return self.predicted_h.low <= self.time_h <= self.predicted_h.high

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema_version": 1,
            "run": self.run,
            "configuration": {"provider": self.provider, "instance_type": self.instance_type,
                              "count": self.count},
            "predicted": {"training_time_h": self.predicted_h.to_record(),
                          "cost_usd": self.predicted_usd.to_record()},
            "actual": {"training_time_h": self.time_h, "cost_usd": self.cost_usd,
                       "step_time_s": self.step_s},
            "error_fraction": self.error_fraction,
            "inside": self.is_inside,
        }  # fmt: skip


def note_run(
    run: str,
    instance_type: str | None = None,
    *,
    count: int = 1,
    provider: str | None = None,
    time_h: float | None = None,
    step_s: float | None = None,
    cost_usd: float | None = None,
    predictor: Predictor | None = None,
) -> Comparison:
    """Keep what a real run of a recorded job took, and return it beside the prediction.

    Parameters
    ----------
    run : str
        Name, part of a name, or folder of the recorded run.
    instance_type : str, optional
        What it ran on. Without it, the one machine on the job's list whose price is
        ``cost_usd / time_h``.
    count : int
    provider : str, optional
        Where two providers use the same name.
    time_h, step_s : float, optional
        Of the whole job [h], or of its mean step [s]; exactly one.
    cost_usd : float, optional
        Billed for the whole job. [USD]
    predictor : Predictor, optional

    Raises
    ------
    UsageError
        If a value makes no sense, or the machine cannot be told from the price.
    """
    _check(time_h, step_s, cost_usd)
    predictor = predictor or Predictor(Catalogue.load())
    path = store.find_run(run)
    job = load_job(path)
    if instance_type is None:
        instance_type, provider, count = _by_price(job, predictor, time_h, cost_usd)
    row = predictor.catalogue.instance_type(instance_type, provider=provider)
    before = predictor.predict(job, row.name, count=count, provider=row.provider)
    predicted_h = before.training_time_h.value
    if step_s is None:
        assert time_h is not None  # _check
        step_s = before.step_time_s.value * time_h / predicted_h
    elif time_h is None:
        time_h = predicted_h * step_s / before.step_time_s.value
    actual = Actual(run=path.name, provider=row.provider, instance_type=row.name, count=count,
                    step_s=step_s, time_h=time_h, cost_usd=cost_usd)  # fmt: skip
    earlier = len(read_actuals(path.parent, path.name))
    append_actual(path.parent, actual)
    _append_record(path.parent, job, actual, predictor, row.index, earlier)
    found = Comparison(
        run=path.name, provider=row.provider, instance_type=row.name, count=count,
        predicted_h=before.training_time_h, predicted_usd=before.cost_usd, time_h=time_h,
        cost_usd=cost_usd, step_s=step_s,
    )  # fmt: skip
    drift.keep(path.parent, found.to_record())
    return found


def _check(time_h: float | None, step_s: float | None, cost_usd: float | None) -> None:
    if (time_h is None) == (step_s is None):
        raise UsageError(
            f"how long the run took is {'missing' if time_h is None else 'given twice'}",
            hint="give --time 3h12m for the whole job, or --step-time 250ms for a step",
        )
    for name, value in (("time", time_h), ("step time", step_s), ("cost", cost_usd)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"not a {name}: {value}", hint="give a positive number")


def _by_price(
    job: Job, predictor: Predictor, time_h: float | None, cost_usd: float | None
) -> tuple[str, str, int]:
    """Return type, provider and count of the one candidate of the job's list at that price."""
    hint = "name the machine: advisor runs actual RUN g5.xlarge --time 3h12m --cost 14.20"
    if time_h is None or cost_usd is None:
        raise UsageError("on which machine did it run?", hint=hint)
    price = cost_usd / time_h
    answer = recommend(job, Request(pricings=("on-demand", "spot"), top=10_000),
                       predictor=predictor)  # fmt: skip
    same = {_machine(c) for c in answer.front
            if abs(c.configuration.price_usd_per_h / price - 1.0) <= _SAME_PRICE}  # fmt: skip
    if len(same) == 1:
        return same.pop()
    named = ", ".join(f"{n} x {name}" for name, _, n in sorted(same)[:4])
    raise UsageError(
        f"{cost_usd:g} USD in {time_h:.4g} h is {price:.4g} USD/h: "
        + (f"{len(same)} machines on the list cost that ({named})" if same
           else "no machine on the list costs that"),
        hint=hint,
    )  # fmt: skip


def _machine(candidate: Candidate) -> tuple[str, str, int]:
    offer, count = candidate.configuration.parts[0]
    return offer.instance_type, offer.provider, count


def _append_record(
    folder: Path, job: Job, actual: Actual, predictor: Predictor, type_index: int, replicate: int
) -> None:
    """Add the run to those that ``advisor train`` learns from; a program has none to add."""
    known = profile(job)
    if known is None or actual.time_h is None:
        return
    columns = predictor.physics_columns(
        replace(job, actuals=()), np.array([type_index]), np.array([actual.count])
    )
    append_record(
        folder / OWN_RUNS,
        record(
            known,
            machines_of(predictor.catalogue, type_index, actual.count),
            record_id=f"{actual.run}/{actual.count}x{actual.instance_type}/{replicate}",
            workers=int(columns.dp[0]),
            physics_s=float(columns.step_s[0]) * job.total_steps,
            time_s=actual.time_h * HOUR_S,
            cost_usd=actual.cost_usd,
            replicate=replicate,
        ),
    )
