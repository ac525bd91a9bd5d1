"""A job that is known by its runs alone: which step would have taken so long on these devices.

The time of a step of b samples on device d is taken to be

    t = b F / R_d + b B / W_d + n l + P / W_d

and F, B, n and P are the non-negative numbers that err least on the runs, relative to each run
and robustly, pulled towards the shares that jobs usually have of the four terms. The result is a
``Work`` of four operators, so that whatever asks for a job's step can be asked of this one.

| here             | paper | meaning, unit                                                       |
|------------------|-------|---------------------------------------------------------------------|
| ``flop``         | F     | products of a sample [flop]                                         |
| ``bytes``        | B     | traffic of a sample [bytes]                                         |
| ``calls``        | n     | calls of a step, each taking a device's latency l                   |
| ``fixed``        | P     | traffic of a step, whatever its batch [bytes]                       |
| rates            | R, W  | of products and of streams by the device model [flop/s], [bytes/s]  |

Sources: the roofline of ``planners.step.device``; non-negative least squares, C. L. Lawson,
R. J. Hanson, "Solving Least Squares Problems", 1974, ch. 23. The shares and their weight were
chosen on Lambda's suite with whole GPUs left out.

What other jobs' runs say of a device that the job was never on is ``JobErrors``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    Device,
    Operator,
    OperatorKind,
    Operators,
    Phase,
    PlanningError,
    Precision,
    Work,
)
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters

Floats = NDArray[np.float64]

SHARES: Final = (0.55, 0.35, 0.07, 0.03)  # usual: products, streams, calls, fixed traffic
PULL: Final = 0.6 * 0.15  # towards them, against one run
ROBUST_LOG: Final = 0.15  # beyond this residual a run counts less
ROUNDS: Final = 5  # after which the weights move no more
_FORWARD: Final = 1 / 3  # of products and traffic, the backward pass has the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured step of a job on one device, or on the slowest of several alike."""

    device: Device
    batch: float
    step_s: float  # waiting for other devices is left out [s]
    workers: int = 1


def work_from_runs(
    runs: Sequence[MeasuredRun], parameters: DeviceParameters, *, precision: Precision,
    batch: int | None = None,
) -> Work:  # fmt: skip
    """Return the step that would have taken as long as the runs did.

    ``batch``: micro-batch of the result; the median of the runs by default.

    Raises PlanningError if there is no run, or a time or batch is not positive.
    """
    if not runs:
        raise PlanningError("no run to know the job by", hint="give one run or more")
    for run in runs:
        if not (run.step_s > 0 and np.isfinite(run.step_s) and run.batch >= 1):
            raise PlanningError(
                f"a step of {run.batch:g} samples in {run.step_s} s on {run.device.name}",
                hint="give positive times and batches",
            )
    seconds = np.array([run.step_s for run in runs])
    one_each = [
        steps_s(_work(_UNITS * only, 1, precision), runs, parameters)
        for only in np.eye(4)[[0, 1, 3]]
    ]
    latency_s = np.array([parameters.latency_s[run.device.kind] for run in runs])
    terms = np.stack([*one_each[:2], latency_s, one_each[2]], axis=1)
    amounts = _amounts(terms / seconds[:, None])
    at = batch or max(round(float(np.median([run.batch for run in runs]))), 1)
    # The median run takes as long as it did by the device model itself.
    errors = np.log(seconds / steps_s(_work(amounts, 1, precision), runs, parameters))
    return _work(amounts * np.exp(np.median(errors)), at, precision)


# Sizes at which a term is timed alone, in place of 1: away from every rounding.
_UNITS: Final = np.array([1e9, 1e6, 1.0, 1e6])


def steps_s(work: Work, runs: Sequence[MeasuredRun], parameters: DeviceParameters) -> Floats:
    """Return the step of a work on the device of every run, at its batch [s]."""
    devices = list({id(run.device): run.device for run in runs}.values())
    row = {id(device): i for i, device in enumerate(devices)}
    batches, at = np.unique([float(run.batch) for run in runs], return_inverse=True)
    columns = step_time(work, devices, batches, parameters)
    rows = [row[id(run.device)] for run in runs]
    return np.asarray(columns.micro_batch_s[rows, at] + columns.optimizer_s[rows])


def _amounts(relative: Floats) -> Floats:
    """Return the four amounts, in ``_UNITS``, that make every row of terms sum to about one."""
    from scipy.optimize import nnls

    scale = relative.mean(axis=0)
    rows = relative / scale
    shares = np.array(SHARES)
    pull = np.eye(len(shares)) * PULL * np.sqrt(len(relative))
    w = np.ones(len(relative))
    found = shares
    for _ in range(ROUNDS):
        found, _ = nnls(np.r_[rows * w[:, None], pull], np.r_[w, pull @ shares])
        residual = np.log(np.maximum(rows @ found, 1e-12))
        centred = residual - np.median(residual)
        w = 1.0 / np.sqrt(1 + (centred / ROBUST_LOG) ** 2)
    return np.asarray(found / scale * _UNITS)


def _work(amounts: Floats, batch: int, precision: Precision) -> Work:
    flop, moved, calls, fixed = (float(one) for one in amounts)
    passes: tuple[tuple[Phase, float], ...] = (("forward", _FORWARD), ("backward", 1 - _FORWARD))
    operators = [
        _operator(kind, phase, precision, share * calls * (kind == "copy"),
                  share * batch * flop * (kind == "matmul"),
                  share * batch * moved * (kind == "elementwise"))
        for phase, share in passes
        for kind in _KINDS
    ]  # fmt: skip
    update = _operator("optimizer", "optimizer", precision, 0.0, 0.0, fixed)
    return Work(
        operators=Operators.of([*operators, replace(update, fixed_bytes=fixed)]),
        micro_batch=batch,
        parameters=0,
        trainable_parameters=0,
        parameter_bytes=0.0,
        optimizer_state_bytes=0.0,
        saved_bytes_per_sample=0.0,
        precision=precision,
    )


def amounts_of(work: Work) -> tuple[float, float, float, float]:
    """Return products and traffic of a sample, calls and fixed traffic of a step fitted to runs.

    In [flop], [bytes], [1], [bytes].
    """
    operators = work.operators
    passes = ~operators.is_update
    return (
        float(operators.flop[passes].sum()) / work.micro_batch,
        float(operators.bytes[passes].sum()) / work.micro_batch,
        float(operators.count[passes & (operators.kind == "copy")].sum()),
        float(operators.fixed_bytes[~passes].sum()),
    )


_KINDS: Final[tuple[OperatorKind, ...]] = ("matmul", "elementwise", "copy")
_NAME: Final = "runs::"
_NO_CALL: Final = 1e-9  # an operator has calls, even one that stands for an amount


def _operator(
    kind: OperatorKind, phase: Phase, precision: Precision, calls: float, flop: float,
    moved: float,
) -> Operator:  # fmt: skip
    return Operator(
        name=_NAME + kind, kind=kind, phase=phase, count=max(calls, _NO_CALL), flop=flop,
        bytes=moved, dtype=precision,
    )  # fmt: skip


def is_known_by_runs(work: Work) -> bool:
    """Whether the work is such a one: nothing is known of its parameters or memory."""
    return all(name.startswith(_NAME) for name in work.operators.name)


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

    Evidence of other jobs' runs for a job that is known by its runs and was never on the device.

    Every other job j that ran both on the device and where this job ran is asked the same
    question: its step is fitted (``from_runs``) to as many runs, on the same devices and nearest
    to the same batches, and e = ln(T measured / T of the fitted step) is what such an answer errs
    by. This job's is taken to be

        e ~ N(m, K),   K = a_g^2 + a^2 exp(-d^2 / 2 l^2) + a_j^2 [same job] + a_n^2 [same run]

    so that all jobs tell of the device, and those whose fitted steps are alike tell the most.

    | here                                    | paper | meaning, unit                             |
    |-----------------------------------------|-------|-------------------------------------------|
    | ``features``                            | d of  | ln of a sample's products [flop] and      |
    |                                         |       | traffic [bytes], of a step's calls, of a  |
    |                                         |       | device's samples, and over the runs' mean |
    | ``LENGTH``                              | l     | of them all [1]                           |
    | ``DEVICE``, ``ALIKE``, ``JOB``, ``RUN`` | a     | deviations of ln(seconds)                 |
    | ``usual``                               | m     | mean by published steps of the device [1] |

    Source: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", 2006,
    eqs. 2.23-2.24. The five constants are round numbers near the most evidence on PROFET's and
    trainpred's networks, where both agree on them (``validate job``: families of networks left
    out).
    """

    features: Floats  # (n, 5)
    job: NDArray[np.int64]  # (n,)
    error: Floats  # (n,); ln of measured over predicted
    # by which deviations are multiplied to cover nine of ten of these jobs, each left out
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


@lru_cache(maxsize=256)
def shared_with(others: OtherJobs, device: str) -> OtherJobs:
    """Return the other jobs beside the known runs on devices that most of those on ``device`` had.

    An answer from more runs than the others can be asked with errs otherwise than theirs.
    """
    there = [
        {run.device.name for run in runs}
        for runs in others.runs
        if any(run.device.name == device for run in runs)
    ]
    had = {
        run.device.name
        for run in others.known
        if 2 * sum(run.device.name in names for names in there) >= len(there) > 0
    }
    kept = tuple(run for run in others.known if run.device.name in had)
    return others if len(kept) in (0, len(others.known)) else replace(others, known=kept)


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

    ``at``: (5,); ``features`` of its fitted step; ``usual``: the mean where nothing is seen [ln].
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
