"""Run records as jobs by configurations, and what to try next for one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import UsageError
from advisor.learned.choice import Floats, Runs, in_order, penalty_for, scores, too_small
from advisor.learned.regret import cell, constant_answer
from advisor.records import RunRecord

_MEAN: Final = "_mean"  # how the means of a run's readings are called among its facts
_LEAST_OTHERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTry:
    """One configuration that a job has not failed on."""

    configuration: str  # machines, their number, and the layout
    price_usd_per_h: float | None  # of all machines [USD/h]
    # cost over the best possible, as it was for other jobs; None where too few ran there
    expected_ratio: float | None
    cost_usd: float | None  # what the job cost there, where it has run [USD]
    is_too_small: bool  # it does not cost more than twice as much an hour as what failed


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTries:
    """What to try next for a job."""

    job: str
    tries: Sequence[NextTry]  # the first is to be tried first; what failed is not among them
    failed: Sequence[str]  # configurations on which the job failed or was cut short
    others: int  # jobs that were learned from
    # the order follows the job's own run; else it is the same for all jobs, since nothing better
    # was found on the others
    looks_at_job: bool

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "schema_version": 1,
            "job": self.job,
            "other_jobs": self.others,
            "looks_at_job": self.looks_at_job,
            "failed": list(self.failed),
            "tries": [
                {"rank": rank, **{name: getattr(one, name) for name in NextTry.__slots__}}
                for rank, one in enumerate(self.tries, 1)
            ],
        }


def choose(records: Sequence[RunRecord], job: str) -> NextTries:
    """Return what to try next for a job, from all runs there are.

    Raises UsageError if fewer than two other jobs have completed.
    """
    runs, _, jobs, cells = matrices(records, asked=job)
    at = jobs.index(job)
    others = np.array([i for i in range(len(jobs)) if i != at], dtype=np.intp)
    if others.size < _LEAST_OTHERS:
        raise UsageError(
            f"{others.size} other jobs have completed runs: nothing can be learned from them",
            hint="add runs of other jobs on the machines in question (advisor runs import)",
        )
    penalty = penalty_for(runs, others)
    answer = scores(runs, at, others, penalty)
    done = np.isfinite(runs.prices[at])
    failed = runs.has_run[at] & ~done
    # Once it has completed somewhere, what it failed on elsewhere was not too small.
    small = too_small(runs.price_usd_per_h, failed) & ~done.any()
    order = in_order(answer, small, failed)
    ratio = _expected(runs, at, others, answer, penalty is not None and bool(done.any()))
    return NextTries(
        job=job,
        tries=[
            NextTry(
                configuration=cells[c].strip(),
                price_usd_per_h=_known(runs.price_usd_per_h[c]),
                expected_ratio=_known(ratio[c]),
                cost_usd=_known(runs.prices[at, c]),
                is_too_small=bool(small[c]),
            )
            for c in order.tolist()
            if not failed[c]
        ],
        failed=[cells[c].strip() for c in np.flatnonzero(failed)],
        others=int(others.size),
        looks_at_job=penalty is not None and bool(done.any()),
    )


def _expected(
    runs: Runs, job: int, others: NDArray[np.intp], answer: Floats, is_log: bool
) -> Floats:
    """Return cost over the best: predicted, or the mean of other jobs; nan where few ran."""
    usual = constant_answer(runs.ratios[others])
    rare = usual >= usual.max() if usual.max() >= 1e6 else np.zeros(usual.shape, bool)
    found = np.exp(np.minimum(answer - answer.min(), 50.0)) if is_log else usual
    return np.where(rare | ~np.isfinite(found), np.nan, found)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def matrices(
    records: Sequence[RunRecord], asked: str | None = None
) -> tuple[Runs, Floats, list[str], list[str]]:
    """Return runs by job and configuration, what each cost until it ended, jobs, configurations.

    Repeats are averaged. A job that never completed is left out, for it has no best price, unless
    it is the one that is asked for.
    """
    completed = {r.job.job_id for r in records if r.status == "ok"}
    jobs = sorted(completed if asked is None else completed | {asked})
    cells = sorted({cell(r) for r in records})
    shape = (len(jobs), len(cells))
    place_job = {name: i for i, name in enumerate(jobs)}
    place_cell = {name: i for i, name in enumerate(cells)}
    sums = {name: np.zeros(shape) for name in ("price", "prices", "spent", "time", "times", "ran")}
    families = np.array([""] * len(jobs), dtype=object)
    hourly = np.full(len(cells), np.nan)
    facts = sorted({name for r in records for name in _facts(r)})
    measured = np.zeros((*shape, len(facts)))
    for record in records:
        column = place_cell[cell(record)]
        price = record.price_usd_per_h
        hourly[column] = hourly[column] if price is None else price
        if record.job.job_id not in place_job:
            continue
        at = place_job[record.job.job_id], column
        families[at[0]] = record.job.family
        own = _facts(record)
        measured[at] += [own.get(name, np.nan) for name in facts]
        for name, amount in _amounts(record).items():
            sums[name][at] += amount
    with np.errstate(invalid="ignore", divide="ignore"):
        runs = Runs(
            prices=sums["price"] / sums["prices"],
            times=sums["time"] / sums["times"],
            has_run=sums["ran"] > 0,
            families=families,
            price_usd_per_h=hourly,
            measured=measured / sums["ran"][..., None],
        )
        return runs, np.nan_to_num(sums["spent"] / sums["ran"]), jobs, cells


def _amounts(record: RunRecord) -> dict[str, float]:
    """Return what one run adds to the sums of its place."""
    spent = _spent_usd(record)
    found = {"ran": 1.0, "spent": spent}
    if record.time_s is not None:
        found |= {"time": record.time_s, "times": 1.0}
    if record.status == "ok":
        found |= {"price": spent, "prices": 1.0}
    return found


def _facts(record: RunRecord) -> dict[str, float]:
    """Return the means of what was measured during a run that completed."""
    if record.status != "ok":
        return {}
    return {
        name: float(value)
        for name, value in record.facts.items()
        if name.endswith(_MEAN) and isinstance(value, int | float)
    }


def _spent_usd(record: RunRecord) -> float:
    if record.cost_usd is not None:
        return record.cost_usd
    price = record.price_usd_per_h
    return 0.0 if price is None or record.time_s is None else price * record.time_s / 3600.0
