"""The configuration to try next for a job, from its own runs and those of other jobs.

here        in the text   meaning
prices      p_jc          cost of job j on configuration c; nan where it did not complete
anchor      a             the configuration of the job's own run that completed
x           x_j           ln of the job's time on the anchor, and what was measured there

ln(p_jc / p_ja) = alpha_c + beta_c x_j, by ridge regression over the other jobs for each c: a long
job pays for more machines, one that keeps its GPU busy for a faster one. The penalty on beta is
chosen on those jobs, each family left out in turn, and so is whether to look at the job at all:
the constant answer (least mean p_jc / min_c p_jc) stays unless the regression was better by more
than ``_GAIN``.

A run that failed or timed out says that the machines were too small. What is tried next costs more
than ``GROWTH`` times as much an hour as the largest that failed: doubling pays for few failures on
the way to what is enough. Of those, the best by the score. The rule is our own; the price stands
for the size, for it is known of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Recorded
from advisor.errors import UsageError
from advisor.learned.regrets import _LEAST_SHARE, _families, _means, cell, constant_answer
from advisor.records import RunRecord

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]

GROWTH: Final = 2.0
_PENALTIES: Final = (1.0, 3.0, 10.0, 30.0)
_GAIN: Final = 0.01
_LEAST_JOBS: Final = 3
_NEVER: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Jobs by configurations."""

    prices: Floats  # (jobs, configurations); nan where the job did not complete
    times: Floats  # (jobs, configurations); also of runs that failed, where known; nan else [s]
    has_run: Flags  # (jobs, configurations)
    families: NDArray[Any]  # (jobs,)
    price_usd_per_h: Floats  # (configurations,); of all machines; nan where unknown [USD/h]
    # (jobs, configurations, facts); means of what was measured during the run; nan where it was
    # not
    measured: Floats

    @property
    def ratios(self) -> Floats:
        """Price over the job's best; nan for a job that never completed."""
        some = np.isfinite(self.prices).any(axis=1)
        least = np.full(len(self.prices), np.nan)
        least[some] = np.nanmin(self.prices[some], axis=1)
        return np.asarray(self.prices / least[:, None])

    def seen_by(self, job: int, seen: Flags) -> Runs:
        """Return the runs with nothing of a job but those on the configurations in ``seen``."""
        hidden = np.zeros(self.has_run.shape, bool)
        hidden[job] = ~seen
        return replace(
            self,
            prices=np.where(hidden, np.nan, self.prices),
            times=np.where(hidden, np.nan, self.times),
            has_run=self.has_run & ~hidden,
            measured=np.where(hidden[..., None], np.nan, self.measured),
        )


def scores(runs: Runs, job: int, others: Indices, penalty: float | None) -> Floats:
    """Return a score of each configuration for a job: the less, the sooner it is tried.

    ``runs``: of the job one run that completed is looked at: the best by the constant answer.
    """
    found = None if penalty is None else _regressed(runs, job, others, penalty)
    return constant_answer(runs.ratios[others]) if found is None else found


def penalty_for(runs: Runs, others: Indices) -> float | None:
    """Return the penalty with the least regret on some jobs; None for the constant answer.

    Each family is left out in turn, and of its jobs only the run on what is best for the rest is
    looked at.
    """
    best, chosen = _mean_regret(runs, others, None) - _GAIN, None
    for penalty in _PENALTIES:
        value = _mean_regret(runs, others, penalty)
        if value < best:
            best, chosen = value, penalty
    return chosen


def in_order(answer: Floats, is_small: Flags, failed: Flags) -> Indices:
    """Return configurations in the order of trying, after some of them failed.

    ``answer``: (configurations,); as ``scores``; ``is_small``: (configurations,); what comes after
    all that is larger (``too_small``).
    """
    order: Indices = np.lexsort((answer, is_small, failed))
    return order


def too_small(price_usd_per_h: Floats, failed: Flags) -> Flags:
    """Say what does not cost more than twice as much an hour as the largest that failed."""
    known = failed & np.isfinite(price_usd_per_h)
    if not known.any():
        return np.zeros(failed.shape, bool)
    # Prices are sums of rounded ones: twice the machines may cost a little more than twice.
    least = GROWTH * price_usd_per_h[known].max() * (1.0 + 1e-9)
    return np.asarray(np.nan_to_num(price_usd_per_h, nan=np.inf) <= least)


def chosen_ratio(runs: Runs, job: int, answer: Floats) -> float:
    """Return price of the choice over the best price, among what the job completed on."""
    usable = np.isfinite(runs.prices[job])
    return float(runs.ratios[job][usable][np.argmin(answer[usable])])


def anchor_of(runs: Runs, job: int, others: Indices) -> int:
    """Return which of the job's own configurations is best on average over the other jobs."""
    usual = constant_answer(runs.ratios[others])
    return int(np.argmin(np.where(runs.has_run[job], usual, np.inf)))


def _mean_regret(runs: Runs, jobs: Indices, penalty: float | None) -> float:
    found = []
    for job in jobs:
        rest = jobs[runs.families[jobs] != runs.families[job]]
        if rest.size < _LEAST_JOBS:
            continue
        known = runs
        if penalty is not None:
            seen = np.arange(runs.prices.shape[1]) == anchor_of(runs, int(job), rest)
            known = runs.seen_by(int(job), seen)
        answer = scores(known, int(job), rest, penalty)
        found.append(chosen_ratio(runs, int(job), answer))
    return float(np.mean(found)) if found else 1.0


def _regressed(runs: Runs, job: int, others: Indices, penalty: float) -> Floats | None:
    """Return ln(price / price on the anchor); None where the job completed nowhere."""
    usual = constant_answer(runs.ratios[others])
    done = np.isfinite(runs.prices[job]) & np.isfinite(runs.times[job])
    if not done.any():
        return None
    anchor = int(np.argmin(np.where(done, usual, np.inf)))
    logs = np.log(runs.prices)
    x = np.column_stack([np.log(runs.times[:, anchor]), runs.measured[:, anchor]])
    x = x[:, np.isfinite(x[job])]
    known = others[np.isfinite(logs[others, anchor]) & np.isfinite(x[others]).all(axis=1)]
    if known.size < _LEAST_JOBS:
        return None
    x = (x - x[known].mean(axis=0)) / np.maximum(x[known].std(axis=0), 1e-9)
    answer = np.full(logs.shape[1], _NEVER)
    for column in range(logs.shape[1]):
        target = logs[known, column] - logs[known, anchor]
        seen = np.isfinite(target)
        if seen.sum() >= max(_LEAST_JOBS, _LEAST_SHARE * known.size):
            answer[column] = _ridge(x[known][seen], target[seen], x[job], penalty)
    answer[done] = logs[job, done] - logs[job, anchor]
    return answer


def _ridge(x: Floats, y: Floats, at: Floats, penalty: float) -> float:
    """Return a ridge regression's value at a point."""
    middle = x.mean(axis=0)
    centred = x - middle
    gram = centred.T @ centred + penalty * np.eye(x.shape[1])
    slope = np.linalg.solve(gram, centred.T @ (y - y.mean()))
    return float(y.mean() + slope @ (at - middle))


_MEAN: Final = "_mean"  # how the means of a run's readings are called among its facts
_LEAST_OTHERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTry:
    """One configuration that a job has not failed on."""

    rank: int
    configuration: str  # machines, their number, and the layout
    price_usd_per_h: float | None  # of all machines [USD/h]
    # cost over the best possible, as it was for other jobs; None where too few ran there
    expected_ratio: float | None
    cost_usd: float | None  # what the job cost there, where it has run [USD]
    is_too_small: bool  # it does not cost more than twice as much an hour as what failed


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTries(Recorded):
    """What to try next for a job."""

    schema_version: int = 1
    job: str
    other_jobs: int  # that were learned from
    # the order follows the job's own run; else it is the same for all jobs, since nothing better
    # was found on the others
    looks_at_job: bool
    failed: Sequence[str]  # configurations on which the job failed or was cut short
    tries: Sequence[NextTry]  # the first is to be tried first; what failed is not among them


def next_tries(records: Sequence[RunRecord], job: str) -> NextTries:
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
                rank=rank,
                configuration=cells[c].strip(),
                price_usd_per_h=_known(runs.price_usd_per_h[c]),
                expected_ratio=_known(ratio[c]),
                cost_usd=_known(runs.prices[at, c]),
                is_too_small=bool(small[c]),
            )
            for rank, c in enumerate((c for c in order.tolist() if not failed[c]), 1)
        ],
        failed=[cells[c].strip() for c in np.flatnonzero(failed)],
        other_jobs=int(others.size),
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
    jobs = sorted({r.job.job_id for r in records if r.status == "ok" or r.job.job_id == asked})
    cells = sorted({cell(r) for r in records})
    facts = sorted({name for r in records for name in _facts(r)})
    hourly = {cell(r): r.price_usd_per_h for r in records if r.price_usd_per_h is not None}
    costs = [(_spent_usd(r),) for r in records]
    spent = _means(records, costs, jobs)[..., 0]
    completed = [
        cost if r.status == "ok" else None for r, cost in zip(records, costs, strict=True)
    ]
    times = [None if r.time_s is None else (r.time_s,) for r in records]
    measured = [[own.get(name, np.nan) for name in facts] for own in map(_facts, records)]
    runs = Runs(
        prices=_means(records, completed, jobs)[..., 0],
        times=_means(records, times, jobs)[..., 0],
        has_run=~np.isnan(spent),
        families=_families(records, jobs),
        price_usd_per_h=np.array([hourly.get(name, np.nan) for name in cells], float),
        measured=_means(records, measured, jobs, width=len(facts)),
    )
    return runs, np.nan_to_num(spent), jobs, cells


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
