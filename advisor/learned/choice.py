"""Which configuration to choose for a job, from one run of it and everybody else's runs.

here        in the text   meaning
prices      p_jc          cost of job j on configuration c; nan where it did not complete
anchor      a             the configuration of the one run
size        x_j           ln of the job's time on the anchor, minus its mean over the other jobs

ln(p_jc / p_ja) = alpha_c + beta_c x_j, by ridge regression over the other jobs for each c: a long
job pays for more machines, a short one does not. The penalty on beta is chosen on those jobs,
each family left out in turn, and so is whether to look at the job at all: the constant answer
(least mean p_jc / min_c p_jc) stays unless the regression was better by more than ``_GAIN``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.learned.regret import constant_answer

Floats = NDArray[np.float64]

_PENALTIES: Final = (1.0, 3.0, 10.0, 30.0)
_GAIN: Final = 0.01
_LEAST_SHARE: Final = 0.3  # of the other jobs must have completed on a configuration
_LEAST_JOBS: Final = 3
_NEVER: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Jobs by configurations.

    Attributes
    ----------
    prices : array of shape (jobs, configurations)
        nan where the job did not complete.
    times : array of shape (jobs, configurations)
        Also of runs that failed, where known; nan else. [s]
    has_run : array of shape (jobs, configurations) of bool
    families : array of shape (jobs,) of str
    """

    prices: Floats
    times: Floats
    has_run: NDArray[np.bool_]
    families: NDArray[Any]

    @property
    def ratios(self) -> Floats:
        """Price over the job's best."""
        return np.asarray(self.prices / np.nanmin(self.prices, axis=1, keepdims=True))


def scores(runs: Runs, job: int, others: NDArray[np.intp]) -> Floats:
    """Return a score of each configuration for a job: the least is the choice.

    Parameters
    ----------
    runs : Runs
        Of the job only the run on the anchor is looked at: the constant answer's choice.
    job : int
    others : array of int
        Jobs to learn from.
    """
    constant = constant_answer(runs.ratios[others])
    penalty = _penalty(runs, others)
    if penalty is None:
        return constant
    found = _regressed(runs, job, others, penalty)
    return constant if found is None else found


def _penalty(runs: Runs, others: NDArray[np.intp]) -> float | None:
    """Return the penalty with the least regret on the other jobs; None for the constant answer."""
    best, chosen = _mean_regret(runs, others, None) - _GAIN, None
    for penalty in _PENALTIES:
        value = _mean_regret(runs, others, penalty)
        if value < best:
            best, chosen = value, penalty
    return chosen


def _mean_regret(runs: Runs, jobs: NDArray[np.intp], penalty: float | None) -> float:
    found = []
    for job in jobs:
        rest = jobs[runs.families[jobs] != runs.families[job]]
        if rest.size < _LEAST_JOBS:
            continue
        answer = None if penalty is None else _regressed(runs, int(job), rest, penalty)
        if answer is None:
            answer = constant_answer(runs.ratios[rest])
        found.append(chosen_ratio(runs, int(job), answer))
    return float(np.mean(found)) if found else 1.0


def chosen_ratio(runs: Runs, job: int, answer: Floats) -> float:
    """Return price of the choice over the best price, among what the job completed on."""
    usable = np.isfinite(runs.prices[job])
    return float(runs.ratios[job][usable][np.argmin(answer[usable])])


def walked_ratio(runs: Runs, job: int, answer: Floats, spent: Floats) -> float:
    """Return the same where failures can be chosen: they are paid, and the next best is tried.

    Parameters
    ----------
    spent : array of shape (jobs, configurations)
        What a run cost up to its end or failure.
    """
    paid = 0.0
    for choice in np.argsort(answer, kind="stable"):
        if np.isfinite(runs.prices[job, choice]):
            best = float(np.nanmin(runs.prices[job]))
            return (paid + float(runs.prices[job, choice])) / best
        if runs.has_run[job, choice]:
            paid += float(np.nan_to_num(spent[job, choice]))
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


def _regressed(runs: Runs, job: int, others: NDArray[np.intp], penalty: float) -> Floats | None:
    """Return ln(price / price on the anchor); None where the job failed on the anchor."""
    constant = constant_answer(runs.ratios[others])
    anchor = int(np.argmin(np.where(runs.has_run[job], constant, np.inf)))
    logs = np.log(runs.prices)
    known = others[np.isfinite(logs[others, anchor])]
    if not np.isfinite(logs[job, anchor]) or known.size < _LEAST_JOBS:
        return None
    size = np.log(runs.times[:, anchor])
    size = size - float(np.mean(size[known]))
    answer = np.full(logs.shape[1], _NEVER)
    for column in range(logs.shape[1]):
        target = logs[known, column] - logs[known, anchor]
        seen = np.isfinite(target)
        if seen.sum() < max(_LEAST_JOBS, _LEAST_SHARE * known.size):
            continue
        x, y = size[known][seen], target[seen]
        centred = x - x.mean()
        slope = float(centred @ (y - y.mean())) / (float(centred @ centred) + penalty)
        answer[column] = y.mean() + slope * (size[job] - x.mean())
    return answer
