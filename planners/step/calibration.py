"""Calibration: the factor by which a job's measured steps differ, carried to other devices.

With e = ln(measured / predicted) the error of a job on a device is split into what the job takes
with it everywhere (miscounted operators, a slow framework path) and what belongs to a device:

    e_d = j + g_d,      j ~ N(0, s_j^2),  g_d ~ N(0, s_d^2 - s_j^2)

Seen once on the host h with error variance s_m^2, the best estimate for device d is (normal
conditional expectation; Rasmussen and Williams, "Gaussian Processes", 2006, eq. 2.19)

    E[e_d] = k_dh / (s_h^2 + s_m^2) e_h,      V[e_d] = s_d^2 - k_dh^2 / (s_h^2 + s_m^2)

with k_dh = corr x s_d s_h: near one where host and target are of the same kind, small where not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.nouns import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationParameters:
    """Correlations of a job's error between two devices, and where they come from.

    ``same_device`` is below one: the same type measured again differs by its software.
    ``cpu_to_cpu`` and ``cpu_to_accelerator`` are priors until runs of one job on both exist.
    """

    same_device: float
    same_architecture: float
    same_kind: float
    cpu_to_cpu: float
    cpu_to_accelerator: float


def calibrate(
    predicted_s: ArrayLike,
    measured_s: ArrayLike,
    measured_log_sd: ArrayLike,
    measured_on: Sequence[Device],
    measured_device_log_sd: ArrayLike,
    targets: Sequence[Device],
    target_log_sd: ArrayLike,
    parameters: CalibrationParameters,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what to add to ln(predicted) on each target, and the deviation that remains.

    Parameters
    ----------
    predicted_s, measured_s : array-like of shape (n_measured,)
        Step time by the model and by the clock, at the same micro-batch. [s]
    measured_log_sd : array-like of shape (n_measured,)
        Deviation of ln(measured): noise of the clock.
    measured_on : sequence of Device
        n_measured of them: the host first, further points after.
    measured_device_log_sd : array-like of shape (n_measured,)
        ``StepColumns.log_sd`` of those devices.
    target_log_sd : array-like of shape (n_targets,)
        ``StepColumns.log_sd`` of the targets.

    Returns
    -------
    log_factor, log_sd : ndarray of shape (n_targets,)

    Raises
    ------
    ValueError
        If a time is not positive.
    """
    predicted, measured = np.atleast_1d(predicted_s), np.atleast_1d(measured_s)
    if np.any(predicted <= 0) or np.any(measured <= 0):
        raise ValueError(f"times must be positive: {predicted}, {measured}")
    sd_h = np.atleast_1d(np.asarray(measured_device_log_sd, float))
    sd_t = np.atleast_1d(np.asarray(target_log_sd, float))
    noise = np.atleast_1d(np.asarray(measured_log_sd, float))
    k_hh = correlations(measured_on, measured_on, parameters) * np.outer(sd_h, sd_h)
    k_th = correlations(targets, measured_on, parameters) * np.outer(sd_t, sd_h)
    gain = np.linalg.solve(k_hh + np.diag(noise**2), k_th.T).T  # (n_targets, n_measured)
    log_factor = gain @ np.log(measured / predicted)
    variance = sd_t**2 - np.sum(gain * k_th, axis=1)
    return log_factor, np.sqrt(np.maximum(variance, noise.min() ** 2))


def correlations(
    rows: Sequence[Device], columns: Sequence[Device], parameters: CalibrationParameters
) -> NDArray[np.float64]:
    """Return how a job's errors on some devices and on others are correlated, as a matrix."""
    return np.array([[_correlation(a, b, parameters) for b in columns] for a in rows])


def _correlation(a: Device, b: Device, parameters: CalibrationParameters) -> float:
    if a is b:
        return 1.0
    if a.kind == "cpu" and b.kind == "cpu":
        return parameters.cpu_to_cpu
    if a.kind == "cpu" or b.kind == "cpu":
        return parameters.cpu_to_accelerator
    if a.name == b.name:
        return parameters.same_device
    if a.architecture and a.architecture == b.architecture:
        return parameters.same_architecture
    return parameters.same_kind
