"""A real run against its prediction: the measurement that narrows and teaches.

It is one entry of the journal (``jobs.runs``): a measured step of the job anchors its next
estimates at once, what was predicted shows whether errors drift (``drifting``), and the rest of
a run record is what ``advisor train`` learns from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from advisor.answer import Candidate, Estimate, Recorded, told
from advisor.ask import Constraints
from advisor.catalogue import Catalogue
from advisor.collectors.derive import find_run, list_runs
from advisor.collectors.errors import counted, printable
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import Predictor
from advisor.jobs import (
    PART,
    STEPS,
    Actual,
    Entry,
    Job,
    append_actual,
    from_entry,
    journal_entries,
    load_job,
)
from advisor.planners.core import HOUR_S, PlanningError
from advisor.rank import recommend
from advisor.records import (
    LABEL,
    MOST_BESIDES,
    UNKNOWN,
    RunRecord,
    machines_of,
    profile,
    program_of,
    record,
    to_row,
)

# Fits the learned predictors on the packaged runs and on the user's own, these among them.
RETRAINING: Final = "advisor train"
_PREDICTED: Final = "predicted"
_EARLIER: Final = "comparison"  # as versions before the journal wrote them


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Recorded):
    """A real run of a whole job beside what was predicted before it was known."""

    schema_version: ClassVar[int] = 1
    said: ClassVar[Mapping[str, str]] = {
        "schema_version": "schema_version", "run": "actual.run", "configuration": "configuration",
        "predicted": "predicted", "actual.training_time_h": "time_h",
        "actual.cost_usd": "actual.cost_usd", "actual.step_time_s": "actual.step_s",
        "error_fraction": "error_fraction", "inside": "is_inside",
    }  # fmt: skip

    noted_at: str = ""  # ISO 8601, UTC; empty before it is noted
    actual: Actual
    predicted_h: Estimate  # [h]
    predicted_usd: Estimate | None = None  # [USD]
    # whether ``advisor train`` learns from it, and False where no estimate does: too much of it is
    # no steps; None of a program and of a run recorded on a GPU, which it never learns from
    is_learned_from: bool | None = None

    def __post_init__(self) -> None:
        hours = (self.predicted_h.value, self.predicted_h.low, self.predicted_h.high, self.time_h)
        if not all(math.isfinite(value) and value > 0 for value in hours):
            raise ValueError(f"not positive times: {hours}")

    @property
    def time_h(self) -> float:
        """What the whole job took [h]."""
        return math.nan if self.actual.time_h is None else self.actual.time_h

    @property
    def error_fraction(self) -> float:
        """Predicted time over the real one, less 1."""
        return self.predicted_h.value / self.time_h - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval of the time held the truth."""
        return self.predicted_h.low <= self.time_h <= self.predicted_h.high

    @property
    def predicted(self) -> dict[str, Any]:
        """The prediction as the journal keeps it."""
        cost = {} if self.predicted_usd is None else {"cost_usd": self.predicted_usd.to_record()}
        return {"training_time_h": self.predicted_h.to_record(), **cost}

    @property
    def configuration(self) -> dict[str, Any]:
        """The JSON form of the machines."""
        return told(self.actual, ("provider", "instance_type", "count"))

    def to_row(self) -> dict[str, Any]:
        """Return the JSON form of one among many, as ``advisor runs compare`` prints it."""
        return told(self, _ROW)


_ROW: Final = {
    "noted_at": "noted_at", "run": "actual.run", "configuration": "configuration",
    "predicted_h": "predicted_h.value", "low_h": "predicted_h.low", "high_h": "predicted_h.high",
    "coverage": "predicted_h.coverage", "actual_h": "time_h", "error_fraction": "error_fraction",
    "inside": "is_inside",
}  # fmt: skip


def _of(entry: Entry) -> Comparison:
    predicted = dict(entry[_PREDICTED])
    cost = predicted.get("cost_usd")
    return Comparison(
        noted_at=str(entry["noted_at"]),
        actual=from_entry(entry),
        predicted_h=Estimate(**predicted["training_time_h"]),
        predicted_usd=None if cost is None else Estimate(**cost),
    )


def _of_earlier(entry: Entry) -> Comparison:
    record = entry[_EARLIER]
    took = record["actual"]
    actual = {"run": record["run"], **record["configuration"], "step_s": took["step_time_s"],
              "time_h": took["training_time_h"], "cost_usd": took["cost_usd"]}  # fmt: skip
    return _of({**record, PART: actual})


def read(*folders: Path) -> tuple[Comparison, ...]:
    """Return the comparisons in the journals in ``folders``, oldest first.

    A line that cannot be read costs no other.
    """
    found = [
        one
        for folder in folders
        for part, parse in ((_EARLIER, _of_earlier), (_PREDICTED, _of))
        for one in journal_entries(folder, part, parse)
    ]
    return tuple(sorted(found, key=lambda one: one.noted_at))


_SAME_PRICE: Final = 0.02  # bills are rounded, and a run is a little longer than its machine


def note_run(
    run: str, instance_type: str | None = None, *, count: int = 1, provider: str | None = None,
    time_h: float | None = None, step_s: float | None = None, cost_usd: float | None = None,
    predictor: Predictor | None = None, length: Mapping[str, Any] | None = None,
    imported: str | None = None,
) -> Comparison:  # fmt: skip
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
        Of the whole job [h], or of its mean step [s]; at most one. Without either the bill says
        it.
    cost_usd : float, optional
        Billed for the whole job. [USD]
    length : mapping, optional
        Of the real run where it is not the recording's: ``load_job``'s ``epochs``,
        ``total_steps``, ``global_batch``.
    imported : str, optional
        The row that says so, kept so that it is noted once.
    """
    _check(time_h, step_s, cost_usd, instance_type)
    predictor = predictor or Predictor(Catalogue.load())
    path = find_run(run)
    job = load_job(path, **(length or {}))
    if instance_type is None:
        instance_type, provider, count = _by_price(job, predictor, time_h, cost_usd)
    row = predictor.catalogue.instance_type(instance_type, provider=provider)
    before = predictor.predict(job, row.name, count=count, provider=row.provider)
    if time_h is None and step_s is None:
        time_h = _of_bill(cost_usd or 0.0, before)
    time_h, step_s, of_steps_h = _taken(time_h, step_s, before, job.total_steps)
    actual = Actual(run=path.name, provider=row.provider, instance_type=row.name, count=count,
                    step_s=step_s, time_h=time_h, cost_usd=cost_usd,
                    batch=(length or {}).get("global_batch"))  # fmt: skip
    learned = _record(job, actual, predictor, row.index)
    is_known = job.work is None or of_steps_h is not None
    found = Comparison(
        actual=actual, predicted_h=before.training_time_h, predicted_usd=before.cost_usd,
        is_learned_from=None if learned is None and is_known else is_known,
    )  # fmt: skip
    parts: dict[str, object] = {"predicted": found.predicted}
    if imported is not None:
        parts[_IMPORTED] = imported
    if job.work is not None:
        parts[STEPS] = _steps(of_steps_h, cost_usd, before)
    if learned is not None:
        parts["record"] = learned
    append_actual(path.parent, actual, **parts)
    return found


_MOST_TIMES: Final = 5.0  # off what is predicted, where a row does not say how long its job was
_IMPORTED: Final = "imported"  # the part of an entry that names the row it came from
# What rows of a table say of a job's length -> ``load_job``'s word.
_LENGTHS: Final = {"epochs": "epochs", "steps": "total_steps", "batch": "global_batch"}


def note_imported(records: Iterable[RunRecord]) -> list[str]:
    """Note rows of tables as real runs of the latest recording of their program; say how it went.

    A row says program, machine and time; what it computes says a recording of the program, by
    whose name, or the run's, it goes. Rows that were noted before are left alone.
    """
    found = list_runs()
    known = {program_of(path.name): path for path in found} | {path.name: path for path in found}
    roots = {path.parent for path in found}
    had = {row for at in roots for row in journal_entries(at, _IMPORTED, itemgetter(_IMPORTED))}
    predictor, told = Predictor(Catalogue.load()), Counter[str]()
    for one in records:
        machines = one.configuration[0]
        if one.source != "csv" or one.status != "ok" or machines.instance_type == UNKNOWN:
            continue
        path = known.get(one.job.family)
        name = printable(one.job.family)
        if path is None:
            told[f"{name}: nothing recorded says what it computes; record it, and "
                 f"import again: advisor profile {name}.py"] += 1  # fmt: skip
            continue
        row = f"{one.record_id} {one.job.job_id} {machines.count} {one.instance_key} {one.time_s}"
        told[_noted_row(path, one, predictor, row) if row not in had else
             f"{path.name}: noted before"] += 1  # fmt: skip
    return [f"{counted(many, 'row')} of {words}" for words, many in told.items()]


def _noted_row(path: Path, one: RunRecord, predictor: Predictor, row: str) -> str:
    """Note a row as a run of a recording, and return what became of it."""
    machines, facts = one.configuration[0], one.job.facts
    length: dict[str, Any] = {
        ours: value if name != "batch" else int(value)
        for name, ours in _LENGTHS.items()
        if isinstance(value := facts.get(name), float)
    }
    time_h = (one.time_s or 0.0) / HOUR_S
    try:
        usual = predictor.predict(load_job(path, **length), machines.instance_type,
                                  count=machines.count, provider=machines.provider)  # fmt: skip
        times = time_h / usual.training_time_h.value
        if not (length.keys() - {"global_batch"}) and not 1 / _MOST_TIMES < times < _MOST_TIMES:
            return (f"{path.name}: of another length, it seems; add a column steps or "
                    "epochs, and import again")  # fmt: skip
        found = note_run(
            str(path), machines.instance_type, count=machines.count, provider=machines.provider,
            time_h=time_h, cost_usd=one.cost_usd, predictor=predictor,
            length=length, imported=row,
        )  # fmt: skip
    except (AdvisorError, PlanningError) as error:
        return f"{path.name} on {machines.instance_type}: not noted, because {error}"
    if found.is_learned_from is False:
        return f"{path.name}: noted, but too much of the time is not steps to learn from"
    return f"{path.name}: noted as real runs; learn from them: {RETRAINING}"


# Parts of a completion that are the same however long a step is; the others grow with it.
_WHATEVER_THE_STEP: Final = ("start_up", "data_in")
_BILLED_WHATEVER_THE_STEP: Final = (*_WHATEVER_THE_STEP, "shortest_bill", "results_out")


def _taken(
    time_h: float | None, step_s: float | None, before: Candidate, total_steps: float
) -> tuple[float, float, float | None]:
    """Return a job's time [h], step [s] and time in steps [h], None where it is not known.

    Of a whole job whose steps are not known the step is taken to err as its time does; no
    estimate starts from it (``jobs.read_actuals``).
    """
    predicted_h, predicted_s = before.training_time_h.value, before.step_time_s.value
    still_h, share = _divided(before, "time_h", _WHATEVER_THE_STEP)
    if step_s is not None:
        took_h = still_h + (predicted_h - still_h) * step_s / predicted_s
        return took_h, step_s, step_s * total_steps / HOUR_S
    assert time_h is not None  # _check
    steps_h = _known((time_h - still_h) * share, time_h)
    if steps_h is None:
        return time_h, predicted_s * time_h / predicted_h, None
    return time_h, predicted_s * (time_h - still_h) / (predicted_h - still_h), steps_h


def _of_bill(cost_usd: float, before: Candidate) -> float:
    """Return the job's time whose bill this is, what is billed whatever the step set aside [h]."""
    billed = before.cost_usd.value
    still_usd, _ = _divided(before, "cost_usd", _BILLED_WHATEVER_THE_STEP)
    still_h, _ = _divided(before, "time_h", _WHATEVER_THE_STEP)
    if cost_usd <= still_usd:
        raise UsageError(
            f"{cost_usd:g} USD is less than what the machine bills before the first step",
            hint="give --time 3h12m, or --step-time 250ms",
        )
    rest_h = before.training_time_h.value - still_h
    return still_h + rest_h * (cost_usd - still_usd) / (billed - still_usd)


def _divided(before: Candidate, unit: str, standing: Sequence[str]) -> tuple[float, float]:
    """Return what a completion counts whatever the step, and the steps' share of the rest."""
    parts = {name: getattr(part, unit) or 0.0 for name, part in before.breakdown.items()}
    still = sum(parts[name] for name in standing)
    rest = sum(parts.values()) - still
    return still, parts["steps"] / rest if rest > 0 else 0.0


def _known(steps: float, noted: float) -> float | None:
    """Return what the steps are of a noted job; None where too much of it is not steps."""
    return steps if steps >= (1.0 - MOST_BESIDES) * noted else None


def _steps(
    time_h: float | None, cost_usd: float | None, before: Candidate
) -> dict[str, float | None]:
    """Return what the journal keeps of a job's steps alone (``records.left_aside``)."""
    still, share = _divided(before, "cost_usd", _BILLED_WHATEVER_THE_STEP)
    return {
        "time_s": None if time_h is None else time_h * HOUR_S,
        "cost_usd": None if cost_usd is None else _known((cost_usd - still) * share, cost_usd),
    }


def _check(
    time_h: float | None, step_s: float | None, cost_usd: float | None, machine: str | None
) -> None:
    is_billed = cost_usd is not None and machine is not None
    if (time_h is None and step_s is None and not is_billed) or None not in (time_h, step_s):
        raise UsageError(
            f"how long the run took is {'missing' if time_h is None else 'given twice'}",
            hint="give --time 3h12m for the whole job, --step-time 250ms for a step, or the "
            "machine and --cost 14.20",
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
    answer = recommend(job, Constraints(pricings=("on-demand", "spot"), top=10_000),
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
