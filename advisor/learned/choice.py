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

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.learned.regret import constant_answer

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]

GROWTH: Final = 2.0
_PENALTIES: Final = (1.0, 3.0, 10.0, 30.0)
_GAIN: Final = 0.01
_LEAST_SHARE: Final = 0.3  # of the other jobs must have completed on a configuration
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
        return Runs(
            prices=np.where(hidden, np.nan, self.prices),
            times=np.where(hidden, np.nan, self.times),
            has_run=self.has_run & ~hidden,
            families=self.families,
            price_usd_per_h=self.price_usd_per_h,
            measured=np.where(hidden[..., None], np.nan, self.measured),
        )


def scores(runs: Runs, job: int, others: Indices, penalty: float | None) -> Floats:
    """Return a score of each configuration for a job: the less, the sooner it is tried.

    Parameters
    ----------
    runs : Runs
        Of the job one run that completed is looked at: the best by the constant answer.
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

    Parameters
    ----------
    answer : array of shape (configurations,)
        As ``scores``.
    is_small : array of shape (configurations,) of bool
        What comes after all that is larger (``too_small``).
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


def walked_ratio(
    runs: Runs, job: int, answer: Floats, spent: Floats, *, has_growth: bool = False
) -> float:
    """Return the same where failures can be chosen: they are paid, and the next is tried.

    Parameters
    ----------
    spent : array of shape (jobs, configurations)
        What a run cost up to its end or failure.
    """
    paid, failed = 0.0, np.zeros(answer.shape, bool)
    absent = ~runs.has_run[job]
    while not np.all(failed | absent):
        is_small = too_small(runs.price_usd_per_h, failed) & has_growth
        choice = int(in_order(answer, is_small, failed | absent)[0])
        if np.isfinite(runs.prices[job, choice]):
            best = float(np.nanmin(runs.prices[job]))
            return (paid + float(runs.prices[job, choice])) / best
        paid += float(np.nan_to_num(spent[job, choice]))
        failed[choice] = True
    return np.nan


def random_ratio(runs: Runs, job: int, spent: Floats) -> float:
    """Return the mean of ``walked_ratio`` over every order of trying.

    With s configurations that complete, each one that fails comes before all of them, and is paid,
    in one order of s + 1; the one that ends the search is any of the s.
    """
    completes = np.isfinite(runs.prices[job])
    fails = runs.has_run[job] & ~completes
    paid = float(np.nansum(np.where(fails, spent[job], 0.0))) / (int(completes.sum()) + 1)
    prices = runs.prices[job][completes]
    return float((paid + prices.mean()) / prices.min())


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
