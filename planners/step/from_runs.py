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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Device, Operator, OperatorKind, Phase, Precision, Work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_parameters import DeviceParameters

Floats = NDArray[np.float64]

SHARES: Final = (0.55, 0.35, 0.07, 0.03)  # usual: products, streams, calls, fixed traffic
PULL: Final = 0.6 * 0.15  # towards them, against one run
ROBUST_LOG: Final = 0.15  # beyond this residual a run counts less
ROUNDS: Final = 5  # after which the weights move no more
_FORWARD: Final = 1 / 3  # of products and traffic, the backward pass has the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured step of a job on one device, or on the slowest of several alike.

    Attributes
    ----------
    step_s : float
        Waiting for other devices is left out. [s]
    """

    device: Device
    batch: float
    step_s: float
    workers: int = 1


def work_from_runs(
    runs: Sequence[MeasuredRun], parameters: DeviceParameters, *, precision: Precision,
    batch: int | None = None,
) -> Work:  # fmt: skip
    """Return the step that would have taken as long as the runs did.

    Parameters
    ----------
    batch : int, optional
        Micro-batch of the result; the median of the runs by default.

    Raises
    ------
    PlanningError
        If there is no run, or a time or batch is not positive.
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
        operators=(*operators, replace(update, fixed_bytes=fixed)),
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
    passes = [one for one in work.operators if one.phase != "optimizer"]
    flop = sum(one.flop for one in passes) / work.micro_batch
    moved = sum(one.bytes for one in passes) / work.micro_batch
    calls = sum(one.count for one in passes if one.kind == "copy")
    fixed = sum(one.fixed_bytes for one in work.operators if one.phase == "optimizer")
    return flop, moved, calls, fixed


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
    return all(one.name.startswith(_NAME) for one in work.operators)
