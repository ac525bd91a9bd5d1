"""Fit the process of the device model's errors (``planners.step.residual``) on measured steps.

Amplitudes maximise evidence times a wide prior, on one row of every sweep; their lengths and the
correlation between precisions are set (chosen on these rows by devices and models left out). The
spread of intervals is read off the errors of devices left out in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.planners.core.nouns import Device
from advisor.planners.step.device import step_time
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.device_rates import unmeasured
from advisor.planners.step.residual import (
    AMPLITUDES,
    CLOCK_LOG_SD,
    ResidualParameters,
    SeenErrors,
    error_points,
    measured_covariance,
    shapes,
)
from advisor.train.measured_step import MeasuredStep

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

JOB_LENGTH: Final = 0.4
DEVICE_LENGTH: Final = 1.5
OTHER_PRECISION: Final = 0.5
KEPT_OF_A_SWEEP: Final = 3  # batches of one model on one device: the others say little more
PRIOR: Final = 0.1  # median of an amplitude; a factor of e either way is one deviation
ITERATIONS: Final = 12  # of the evidence's maximisation; the amplitudes move little after


def equation_s(step: MeasuredStep, device: Device, parameters: DeviceParameters) -> float:
    """Return what the step-time equation says of a measured step on a device [s]."""
    columns = step_time(step.work, [device], [float(step.work.micro_batch)], parameters)
    update_s = float(columns.optimizer_s[0]) if step.has_update else 0.0
    return float(columns.micro_batch_s[0, 0]) + update_s


def fit_residual(
    steps: Sequence[MeasuredStep], parameters: DeviceParameters, *, has_spread: bool = True
) -> ResidualParameters:
    """Return the process fitted on measured steps of GPUs.

    Parameters
    ----------
    steps : sequence of MeasuredStep
    parameters : DeviceParameters
        Of the equation whose errors they show.
    has_spread : bool
        Whether to widen intervals to what devices left out show.
    """
    kept = seen_steps(steps)
    points = error_points([s.work for s in kept], [s.device for s in kept])
    measured = np.log([s.seconds for s in kept])
    by_peaks, by_rates = (
        np.array([np.log(equation_s(s, d, parameters)) for s, d in zip(kept, on, strict=True)])
        for on in ([unmeasured(s.device) for s in kept], [s.device for s in kept])
    )
    seen = SeenErrors(points=points, of_peaks=measured - by_peaks, of_rates=measured - by_rates)
    return fit_errors(seen, thinned(kept, 1), has_spread=has_spread)


def seen_steps(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return the steps whose errors the process sees, in the order of ``SeenErrors``."""
    return [steps[i] for i in thinned(steps, KEPT_OF_A_SWEEP) if steps[i].device.kind == "gpu"]


def fit_errors(seen: SeenErrors, rows: Ints, *, has_spread: bool = True) -> ResidualParameters:
    """Return the process fitted on errors; the amplitudes on some of the rows."""
    scale = seen.points.rates.std(axis=0)
    bare = ResidualParameters(
        amplitudes=dict.fromkeys(AMPLITUDES, PRIOR),
        job_length=JOB_LENGTH,
        device_length=DEVICE_LENGTH,
        other_precision=OTHER_PRECISION,
        rate_scales=tuple(np.where(scale > 0, scale, 1.0).tolist()),
        spread=1.0,
        seen=seen,
    )
    few = seen.points.take(rows)
    found = _by_evidence(shapes(few, few, bare), seen.of_peaks[rows])
    fitted = replace(bare, amplitudes=dict(zip(AMPLITUDES, found.tolist(), strict=True)))
    if not has_spread:
        return fitted
    mean, log_sd = left_out(fitted, seen.points.device)
    ratio = np.abs(seen.of_peaks - mean) / log_sd
    return replace(fitted, spread=float(np.quantile(ratio, 0.9) / REACH_90))


def thinned(steps: Sequence[MeasuredStep], most: int) -> Ints:
    """Return at most so many rows of every (suite, model, precision, device), evenly apart."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, s in enumerate(steps):
        groups.setdefault((s.suite, s.model, s.is_half, s.device.name), []).append(i)
    kept: list[int] = []
    for rows in groups.values():
        if most == 1:
            kept.append(rows[len(rows) // 2])
        elif len(rows) <= most:
            kept += rows
        else:
            kept += [rows[round(i)] for i in np.linspace(0, len(rows) - 1, most)]
    return np.array(sorted(kept), dtype=np.int64)


def left_out(parameters: ResidualParameters, groups: NDArray[np.str_]) -> tuple[Floats, Floats]:
    """Return mean and deviation of every error by specifications, its group left out.

    By the inverse of the whole covariance, block by block: with P = (K + N)^-1 and a group o the
    mean is e_o - P_oo^-1 (P e)_o, the covariance P_oo^-1 (Rasmussen and Williams, eq. 5.12).
    """
    seen = parameters.seen
    inverse = np.linalg.inv(measured_covariance(seen.points, parameters))
    weighted = inverse @ seen.of_peaks
    mean, variance = np.empty((2, len(seen.points)))
    for group in np.unique(groups):
        out = np.flatnonzero(groups == group)
        block = np.linalg.inv(inverse[np.ix_(out, out)])
        mean[out] = seen.of_peaks[out] - block @ weighted[out]
        variance[out] = np.diagonal(block)
    return mean, np.sqrt(np.maximum(variance, 1e-9))


def without(parameters: ResidualParameters, out: NDArray[np.bool_]) -> ResidualParameters:
    """Return the process with some of its errors not seen."""
    seen = parameters.seen
    kept = SeenErrors(
        points=seen.points.take(~out), of_peaks=seen.of_peaks[~out], of_rates=seen.of_rates[~out]
    )
    return replace(parameters, seen=kept)


def _by_evidence(kernels: Floats, errors: Floats) -> Floats:
    """Return amplitudes that maximise evidence x prior. Kernels of shape (5, n, n)."""
    from scipy.linalg import cho_solve, cholesky
    from scipy.optimize import minimize

    size = errors.size
    flat = kernels.reshape(len(kernels), -1)
    prior = np.log(PRIOR)

    def negative(log_amplitude: Floats) -> tuple[float, Floats]:
        variance = np.exp(2 * log_amplitude)
        whole = (variance @ flat).reshape(size, size)
        whole[np.diag_indices(size)] += CLOCK_LOG_SD**2
        lower = cholesky(whole, lower=True, check_finite=False)
        solved = cho_solve((lower, True), errors, check_finite=False)
        inverse = cho_solve((lower, True), np.eye(size), check_finite=False)
        excess = (inverse - np.outer(solved, solved)).ravel()
        pull = log_amplitude - prior
        value = 0.5 * errors @ solved + np.log(np.diag(lower)).sum() + 0.5 * pull @ pull
        return float(value), np.asarray((flat @ excess) * variance + pull)

    found = minimize(
        negative, np.full(len(kernels), prior), jac=True, method="L-BFGS-B",
        options={"maxiter": ITERATIONS},
    )  # fmt: skip
    return np.asarray(np.exp(found.x), float)
