r"""Robust calibration of the layout model by a user's few measured steps.

==========  =======================================================================
here        meaning
==========  =======================================================================
e           ln(measured / predicted) of the runs, shape (n,)
J           d ln(step) / d ln(constant) at their layouts, shape (n, p)
d           d ln(step) / d ln(device factor) there, shape (n,)
s           spread of the fitted constants, as deviations of their logarithms
rho_ij      correlation of an error between the devices of runs i and j
a, tau      how much the device, and the constants, may be off at this user's
sigma       scale of a run's own error
==========  =======================================================================

.. math::
    e = f + \epsilon, \quad f \sim N(0, K), \quad
    K_{ij} = a^2 d_i d_j \rho_{ij} + \tau^2 \textstyle\sum_k s_k^2 J_{ik} J_{jk}, \quad
    \epsilon_i \sim \sigma\, t_4

A run that disagrees with the others has a large error of its own rather than moving a constant:
Student's likelihood with four degrees of freedom, by Laplace's approximation around the mode
(J. Vanhatalo et al., "Gaussian process regression with Student-t likelihood," NeurIPS 2009). How
far the user's machines are from the published ones is not known, so (a, tau, sigma) are averaged
over a grid by their evidence (C. Rasmussen, C. Williams, "Gaussian Processes for Machine
Learning," 2006, section 5.2). That nothing is off, a = tau = 0, is believed before to
``_NOTHING_IS_OFF``: runs that the model already explains change next to nothing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from advisor.planners.core import Floats, LayoutParameters, Layouts
from advisor.planners.layouts.problem import LayoutProblem

# The grid: standard deviations in log; of the constants as multiples of their spread. Chosen, like
# the belief in nothing being off, on the layout tables (lab/notes/planners.md: after three rows).
_DEVICE_SD: Final = (0.0, 0.05, 0.1, 0.2)
_SPREADS: Final = (0.0, 1.0, 3.0)
_RUN_SD: Final = (0.02, 0.04, 0.08, 0.16)
_NOTHING_IS_OFF: Final = 0.2
_FREEDOM: Final = 4.0
_ROUNDS: Final = 50
_CLOSE: Final = 1e-6
_MOVED: Final = 1e-4  # of a logarithm, for slopes by forward differences
NAMES: Final = tuple(f.name for f in fields(LayoutParameters))


def logarithms(parameters: LayoutParameters) -> Floats:
    """Return the constants' logarithms in the order of ``NAMES``, shape (p,)."""
    return np.log([getattr(parameters, name) for name in NAMES])


def from_logarithms(logs: Floats) -> LayoutParameters:
    """Return the constants of these logarithms, shape (p,)."""
    return LayoutParameters(**dict(zip(NAMES, map(float, np.exp(logs)), strict=True)))


def sensitivity(problem: LayoutProblem, layout: Layouts) -> tuple[float, Floats, float]:
    """Return the step of one layout [s], and what moves it.

    Returns
    -------
    step_s : float
    slopes : ndarray of shape (p,)
        d ln(step) / d ln(constant), in the order of ``NAMES``.
    device_slope : float
        d ln(step) / d ln(device factor).
    """
    moved = np.exp(logarithms(problem.parameters)[:, None] + _MOVED * np.eye(len(NAMES)))
    columns = LayoutParameters(**dict(zip(NAMES, moved, strict=True)))
    device = replace(problem, device_factor=problem.device_factor * math.exp(_MOVED))
    step_s = float(problem.times(layout).step_s)
    slopes = np.log(replace(problem, parameters=columns).times(layout).step_s / step_s) / _MOVED
    device_slope = math.log(float(device.times(layout).step_s) / step_s) / _MOVED
    return step_s, np.broadcast_to(slopes, (len(NAMES),)), device_slope


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRuns:
    """Measured steps beside what the model says of them, one entry a run."""

    log_errors: Floats  # (n,); e
    slopes: Floats  # (n, p); J
    device_slopes: Floats  # (n,); d
    correlations: Floats  # (n, n); rho, 1 on the diagonal
    spread: Floats  # (p,); s

    def __post_init__(self) -> None:
        n, p = self.slopes.shape
        if n < 1 or not np.all(np.isfinite(self.log_errors)):
            raise ValueError("at least one run, every one with a finite error")
        shapes = (self.log_errors.shape, self.device_slopes.shape, self.correlations.shape)
        if shapes != ((n,), (n,), (n, n)) or self.spread.shape != (p,):
            raise ValueError(f"shapes do not match: {shapes}, {self.spread.shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRunsFit:
    """What the runs say: one row a cell of the grid."""

    runs: LayoutRuns
    weights: Floats  # (cells,); posterior probability of each cell
    cells: Floats  # (cells, 3); a, tau, sigma
    solved: Floats  # (cells, n); (K + N)^-1 e, with N the runs' variances at the mode
    inverse: Floats  # (cells, n, n); (K + N)^-1
    scatter: Floats  # (cells,); mean square of what the runs are off after all, outliers included

    def log_constants(self) -> Floats:
        """Return what to add to the constants' logarithms, shape (p,)."""
        pull = (self.weights * self.cells[:, 1] ** 2) @ self.solved
        return np.asarray(self.runs.spread**2 * (pull @ self.runs.slopes))

    def log_device(self, correlations: Floats) -> float:
        """Return what to add to the logarithm of a device's times.

        ``correlations`` are those of its errors with the errors of the runs' devices, shape (n,).
        """
        pull = (self.weights * self.cells[:, 0] ** 2) @ self.solved
        return float(pull @ (correlations * self.runs.device_slopes))

    def log_sd(self, slopes: Floats, device_slope: float, correlations: Floats) -> float:
        """Return the deviation of ln(step) of another run of the user's.

        ``slopes``: (p,); j of its layout; ``device_slope``: d of its layout; ``correlations``:
        (n,); rho of its device with those of the runs.
        """
        runs, (a2, tau2, run2) = self.runs, (self.cells**2).T
        of_device = device_slope * correlations * runs.device_slopes
        of_constants = runs.slopes @ (runs.spread**2 * slopes)
        k = a2[:, None] * of_device + tau2[:, None] * of_constants
        own = a2 * device_slope**2 + tau2 * float(np.sum(runs.spread**2 * slopes**2))
        mean = np.einsum("ci,ci->c", k, self.solved)
        known = np.einsum("ci,cij,cj->c", k, self.inverse, k)
        # The variance of Student's t is nu / (nu - 2) times its squared scale. Where a few runs
        # are further off, as on networks that others use too, the next may be as well.
        next2 = np.maximum(run2 * _FREEDOM / (_FREEDOM - 2), self.scatter)
        each = np.maximum(own - known, 0.0) + next2
        variance = self.weights @ (each + mean**2) - float(self.weights @ mean) ** 2
        return math.sqrt(float(variance))


def fit_own_runs(runs: LayoutRuns) -> OwnRunsFit:
    """Average the calibrations of the grid by their evidence, given the runs."""
    device = runs.correlations * np.outer(runs.device_slopes, runs.device_slopes)
    constants = (runs.slopes * runs.spread**2) @ runs.slopes.T
    cells = np.array(list(itertools.product(_DEVICE_SD, _SPREADS, _RUN_SD)))
    found = [_mode(a * a * device + t * t * constants, runs.log_errors, s) for a, t, s in cells]
    nothing = (cells[:, 0] == 0) & (cells[:, 1] == 0)
    among = np.where(nothing, np.count_nonzero(nothing), np.count_nonzero(~nothing))
    believed = np.where(nothing, _NOTHING_IS_OFF, 1 - _NOTHING_IS_OFF) / among
    evidence = np.array([log for *_, log in found]) + np.log(believed)
    weights = np.exp(evidence - evidence.max())
    return OwnRunsFit(
        runs=runs,
        weights=weights / weights.sum(),
        cells=cells,
        solved=np.array([solved for solved, *_ in found]),
        inverse=np.array([inverse for _, inverse, *_ in found]),
        scatter=np.array([np.mean(np.square(left)) for _, _, left, _ in found]),
    )


def _mode(
    covariance: Floats, errors: Floats, scale: float
) -> tuple[Floats, Floats, Floats, float]:
    """Return (K + N)^-1 e, (K + N)^-1, what the runs are off and the log evidence of one cell."""
    n = errors.size
    weight = np.ones(n)
    for _ in range(_ROUNDS):
        noise = np.diag(scale**2 / weight)
        inverse: Floats = np.asarray(np.linalg.inv(covariance + noise), dtype=np.float64)
        solved = inverse @ errors
        left = (errors - covariance @ solved) / scale
        before, weight = weight, (_FREEDOM + 1) / (_FREEDOM + left**2)
        if np.max(np.abs(weight - before)) < _CLOSE:
            break
    density = math.lgamma((_FREEDOM + 1) / 2) - math.lgamma(_FREEDOM / 2)
    density -= 0.5 * math.log(_FREEDOM * math.pi) + math.log(scale)
    likelihood = n * density - (_FREEDOM + 1) / 2 * np.sum(np.log1p(left**2 / _FREEDOM))
    prior = -0.5 * float((covariance @ solved) @ solved)
    volume = np.linalg.slogdet(np.eye(n) + covariance * (weight / scale**2))[1]
    return solved, inverse, scale * left, float(likelihood + prior - 0.5 * volume)
