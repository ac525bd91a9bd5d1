"""Evidence of other jobs' runs for a job that is known by its runs and was never on the device.

Every other job j that ran both on the device and where this job ran is asked the same question:
its step is fitted (``from_runs``) to as many runs, on the same devices and nearest to the same
batches, and e = ln(T measured / T of the fitted step) is what such an answer errs by. This job's
is taken to be

    e ~ N(m, K),   K = a_g^2 + a^2 exp(-d^2 / 2 l^2) + a_j^2 [same job] + a_n^2 [same run]

so that all jobs tell of the device, and those whose fitted steps are alike tell the most.

| here           | paper  | meaning, unit                                                        |
|----------------|--------|----------------------------------------------------------------------|
| ``features``   | d of   | ln of products [flop] and traffic [bytes] of a sample, of calls of a |
|                |        | step, of its samples on a device, and of these over those of the     |
|                |        | runs (geometric mean)                                                |
| ``LENGTH``     | l      | of them all [1]                                                      |
| ``DEVICE``, ``ALIKE``, ``JOB``, ``RUN`` | a | deviations of ln(seconds)                        |
| ``usual``      | m      | what published steps say of the device [1]                           |

Source: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", 2006, eqs.
2.23-2.24. The five constants are round numbers near the most evidence on PROFET's and trainpred's
networks, where both agree on them (``validate job``: families of networks left out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.nouns import Precision, Work
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.from_runs import MeasuredRun, amounts_of, steps_s, work_from_runs

Floats = NDArray[np.float64]

LENGTH: Final = 2.0
DEVICE, ALIKE, JOB, RUN = 0.25, 0.3, 0.1, 0.07
MOST: Final = 300  # runs on a device that are heard: those of the steps most alike
_LEAST: Final = np.array(
    [1e3, 1.0, 1.0, 0.0, 0.0]
)  # added to amounts that may be zero [same units]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherJobs:
    """Runs of other jobs, and what is known of the one that is asked for."""

    runs: tuple[tuple[MeasuredRun, ...], ...]
    known: tuple[MeasuredRun, ...]
    precision: Precision
    parameters: DeviceParameters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobErrors:
    """By what jobs were missed on a device, a row for each run on it.

    Attributes
    ----------
    features : ndarray of shape (n, 5)
    job : ndarray of int, shape (n,)
    error : ndarray of shape (n,)
        ln of measured over predicted.
    spread : float
        By which deviations are multiplied to cover nine of ten of these jobs, each left out.
    """

    features: Floats
    job: NDArray[np.int64]
    error: Floats
    spread: float


def features(work: Work, batch: float, known: Sequence[MeasuredRun]) -> Floats:
    """Return what tells steps apart that were fitted to known runs, shape (5,)."""
    flop, moved, calls, _ = amounts_of(work)
    usual = math.exp(float(np.mean(np.log([run.batch for run in known]))))
    return np.asarray(np.log(np.array([flop, moved, calls, batch, batch / usual]) + _LEAST))


@lru_cache(maxsize=256)
def errors_on(others: OtherJobs, device: str) -> JobErrors | None:
    """Return by what the other jobs are missed on a device; None where that cannot be said.

    It can where a job was on the device and on one of those that the job asked for was on, and
    that one was not on the device itself.
    """
    if any(run.device.name == device for run in others.known):
        return None
    rows, jobs, errors = [], [], []
    for number, runs in enumerate(others.runs):
        there = [run for run in runs if run.device.name == device]
        alike = _alike(runs, others.known)
        if not there or not alike:
            continue
        work = work_from_runs(alike, others.parameters, precision=others.precision)
        predicted = steps_s(work, there, others.parameters)
        rows += [features(work, run.batch, alike) for run in there]
        jobs += [number] * len(there)
        errors += [math.log(run.step_s / step_s)
                   for run, step_s in zip(there, predicted, strict=True)]  # fmt: skip
    if not rows:
        return None
    at, job, error = np.array(rows), np.array(jobs), np.array(errors)
    return JobErrors(features=at, job=job, error=error, spread=_spread(at, job, error))


def _alike(runs: Sequence[MeasuredRun], known: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return, of each known run, the one on the same device whose batch is the nearest."""
    found = []
    for run in known:
        same = [one for one in runs if one.device.name == run.device.name]
        if same:
            found.append(min(same, key=lambda one: abs(math.log(one.batch / run.batch))))
    return list({id(one): one for one in found}.values())


def expected_error(at: Floats, seen: JobErrors, usual: float) -> tuple[float, float]:
    """Return mean and deviation of the error of a job that is not among those seen.

    Parameters
    ----------
    at : ndarray of shape (5,)
        ``features`` of its fitted step.
    usual : float
        The mean where nothing is seen. [ln]
    """
    squared = np.sum(((seen.features - at) / LENGTH) ** 2, axis=1)
    heard = np.argsort(squared, kind="stable")[:MOST]
    x, job = seen.features[heard] / LENGTH, seen.job[heard]
    known = _known(x, job)
    cross = _kernel(squared[heard])
    solved = np.linalg.solve(known, np.c_[seen.error[heard] - usual, cross])
    left = DEVICE**2 + ALIKE**2 + JOB**2 + RUN**2 - float(cross @ solved[:, 1])
    log_sd = seen.spread * math.sqrt(max(left, RUN**2))
    return usual + float(cross @ solved[:, 0]), log_sd


def _spread(at: Floats, job: NDArray[np.int64], error: Floats) -> float:
    """Return by what deviations are too small for jobs left out, at least 1.

    The conformal quantile over jobs, each of which counts once (R. Dunn, L. Wasserman, A. Ramdas,
    JASA 118, 2023, for groups); each job left out by the block form of leaving out (Rasmussen,
    Williams, sec. 5.4.2).
    """
    heard = np.unique(np.linspace(0, len(job) - 1, min(len(job), MOST)).astype(int))
    x, group = at[heard] / LENGTH, job[heard]
    names, count = np.unique(group, return_counts=True)
    if len(names) < _LEAST_JOBS:
        return 1.0
    whole = _known(x, group)
    inverse = np.linalg.inv(whole)
    solved = inverse @ error[heard]
    scores = np.empty(len(group))
    for name in names:
        rows = group == name
        left = np.linalg.inv(inverse[np.ix_(rows, rows)])
        scores[rows] = np.abs(left @ solved[rows]) / np.sqrt(np.diagonal(left))
    order = np.argsort(scores)
    mass = np.cumsum(1 / count[np.searchsorted(names, group[order])]) / (len(names) + 1)
    at_level = min(int(np.searchsorted(mass, _LEVEL)), len(order) - 1)
    return max(1.0, float(scores[order][at_level]) / _REACH)


_LEVEL, _REACH, _LEAST_JOBS = 0.9, 1.645, 4  # fewer jobs say nothing of the width


def _known(x: Floats, job: NDArray[np.int64]) -> Floats:
    between = np.sum((x[:, None] - x) ** 2, axis=2)
    return np.asarray(_kernel(between) + JOB**2 * (job[:, None] == job) + RUN**2 * np.eye(len(x)))


def _kernel(squared: Floats) -> Floats:
    return np.asarray(DEVICE**2 + ALIKE**2 * np.exp(-0.5 * squared))
