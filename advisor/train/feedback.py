"""A real run against its prediction: the measurement that narrows and teaches.

It is one entry of the journal (``jobs.journal``): a measured step of the job anchors its next
estimates at once, what was predicted shows whether errors drift (``train.drift``), and the rest of
a run record is what ``advisor train`` learns from.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from advisor.catalogue import Catalogue
from advisor.collectors import store
from advisor.domain import Candidate
from advisor.errors import UsageError
from advisor.jobs.actuals import Actual, append_actual
from advisor.jobs.job import Job
from advisor.jobs.loading import load_job
from advisor.predict import Predictor
from advisor.ranking import Request, recommend
from advisor.records.catalogued import machines_of
from advisor.records.files import to_row
from advisor.records.importers.journal import LABEL
from advisor.records.importers.profiled import profile, record
from advisor.train.drift import Comparison

_SAME_PRICE: Final = 0.02  # bills are rounded, and a run is a little longer than its machine


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

    Raises UsageError if a value makes no sense, or the machine cannot be told from the price.

    Parameters
    ----------
    run : str
        Name, part of a name, or folder of the recorded run.
    instance_type : str, optional
        What it ran on. Without it, the one machine on the job's list whose price is
        ``cost_usd / time_h``.
    provider : str, optional
        Where two providers use the same name.
    time_h, step_s : float, optional
        Of the whole job [h], or of its mean step [s]; exactly one.
    cost_usd : float, optional
        Billed for the whole job. [USD]
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
    found = Comparison(
        actual=actual, predicted_h=before.training_time_h, predicted_usd=before.cost_usd
    )
    parts: dict[str, object] = {"predicted": found.predicted}
    if (learned := _record(job, actual, predictor, row.index)) is not None:
        parts["record"] = learned
    append_actual(path.parent, actual, **parts)
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


def _record(
    job: Job, actual: Actual, predictor: Predictor, type_index: int
) -> dict[str, Any] | None:
    """Return what ``advisor train`` learns from beside time and cost; a program has nothing."""
    known = profile(job)
    if known is None:
        return None
    columns = predictor.physics_columns(
        replace(job, actuals=()), np.array([type_index]), np.array([actual.count])
    )
    row = to_row(
        record(
            known,
            machines_of(predictor.catalogue, type_index, actual.count),
            record_id=actual.run,
            workers=int(columns.dp[0]),
            physics_s=float(columns.step_s[0]) * job.total_steps,
        )
    )
    return {name: value for name, value in row.items() if name not in LABEL}
