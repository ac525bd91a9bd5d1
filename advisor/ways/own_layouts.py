"""What the user's own measured steps of transformers say of the layout model's constants.

Every run is asked of the same layout problem as the candidates; how far each answer was off moves
the constants and the devices' times as far as the evidence goes (``planners.layouts.own_runs``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from advisor.planners.core.columns import Layouts
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.core.nouns import Device
from advisor.planners.layouts.own_runs import (
    NAMES,
    LayoutRuns,
    OwnRunsFit,
    fit_own_runs,
    from_logarithms,
    logarithms,
    sensitivity,
)
from advisor.planners.layouts.problem import LayoutProblem
from advisor.planners.step.calibration import CalibrationParameters, correlations

# What is known of links between machines is known of a few sites', most with RDMA: fits without
# one table each agree on constants that no table moves from their priors, and say nothing of a
# user's network. So much it is off at least: the prior's width of the efficiency of networks
# (``train.layout_model.PRIOR_SD``).
_NETWORK_LOG_SD: Final = 0.15
_OF_NETWORKS: Final = (
    "dp_network_efficiency", "dp_latency_s", "dp_overlap", "pp_efficiency", "pp_latency_s",
    "pp_exposed",
)  # fmt: skip
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout:
    """One measured step as the layout model sees it.

    Attributes
    ----------
    problem : LayoutProblem
        The model on the machines of the run, with the constants that are to be calibrated.
    layout : Layouts
        Scalar columns.
    device : Device
    step_s : float
        As measured. [s]
    """

    problem: LayoutProblem
    layout: Layouts
    device: Device
    step_s: float


@dataclass(frozen=True, kw_only=True)
class OwnLayouts:
    """The layout model after a user's own runs.

    Attributes
    ----------
    parameters, before : LayoutParameters
        The constants after the runs and before.
    runs : int
        That they were calibrated on.
    """

    parameters: LayoutParameters
    before: LayoutParameters
    runs: int
    fit: OwnRunsFit
    devices: tuple[Device, ...]
    calibration: CalibrationParameters

    def log_device(self, device: Device) -> float:
        """Return what to add to the logarithm of a device's times."""
        return self.fit.log_device(self._correlations(device))

    def log_sd(
        self, problem: LayoutProblem, layout: Layouts, device: Device, published_log_sd: float
    ) -> float:
        """Return the deviation of ln(step) of one layout.

        Runs on other devices say less of this one: as much as errors on both are correlated, the
        rest is known as well as without them.

        Parameters
        ----------
        problem : LayoutProblem
            With the calibrated constants.
        layout : Layouts
            Scalar columns.
        device : Device
        published_log_sd : float
            Deviation without the runs.
        """
        known = self._correlations(device)
        _, slopes, device_slope = sensitivity(problem, layout)
        own = self.fit.log_sd(slopes, device_slope, known)
        told = float(np.max(known)) ** 2
        return math.sqrt(told * own**2 + (1 - told) * published_log_sd**2)

    def _correlations(self, device: Device) -> Floats:
        if device.name not in self._known:
            self._known[device.name] = _between([device], self.devices, self.calibration)[0]
        return self._known[device.name]

    @cached_property
    def _known(self) -> dict[str, Floats]:
        """Correlations that were looked up before, by the device's name."""
        return {}


def own_layouts(
    runs: Sequence[MeasuredLayout], spread: Floats, calibration: CalibrationParameters
) -> OwnLayouts:
    """Calibrate the constants of the layout model on a user's own runs.

    Parameters
    ----------
    runs : sequence of MeasuredLayout
        At least one; all with the same constants.
    spread : ndarray of shape (p,)
        Of the fitted constants, as deviations of their logarithms
        (``layout_model.LayoutModel.log_spread``).
    calibration : CalibrationParameters
        How errors on one device and another are correlated.
    """
    before = runs[0].problem.parameters
    least = np.where(np.isin(NAMES, _OF_NETWORKS), _NETWORK_LOG_SD, 0.0)
    devices = tuple(run.device for run in runs)
    correlated = _between(devices, devices, calibration)
    constants, of_devices = np.zeros(len(NAMES)), np.zeros(len(runs))
    for _ in range(_ROUNDS):  # steps are no straight lines of what moves them far
        fit = fit_own_runs(
            LayoutRuns(
                correlations=correlated,
                spread=np.maximum(spread, least),
                **_around(runs, constants, of_devices),
            )
        )
        constants = fit.log_constants()
        of_devices = np.array([fit.log_device(row) for row in correlated])
    return OwnLayouts(
        parameters=from_logarithms(logarithms(before) + constants),
        before=before,
        runs=len(runs),
        fit=fit,
        devices=devices,
        calibration=calibration,
    )


def _around(
    runs: Sequence[MeasuredLayout], constants: Floats, of_devices: Floats
) -> dict[str, Floats]:
    """Return errors and slopes of the runs where the last round left the constants.

    The errors are those of the first constants, if steps were straight lines of these slopes.
    """
    moved = from_logarithms(logarithms(runs[0].problem.parameters) + constants)
    seen = [
        sensitivity(
            replace(
                run.problem,
                parameters=moved,
                device_factor=run.problem.device_factor * math.exp(of_device),
            ),
            run.layout,
        )
        for run, of_device in zip(runs, of_devices, strict=True)
    ]
    left = np.log([run.step_s / step_s for run, (step_s, _, _) in zip(runs, seen, strict=True)])
    slopes = np.array([slopes for _, slopes, _ in seen])
    device_slopes = np.array([slope for _, _, slope in seen])
    return {
        "log_errors": left + slopes @ constants + device_slopes * of_devices,
        "slopes": slopes,
        "device_slopes": device_slopes,
    }


def calibrated_problem(problem: LayoutProblem, own: OwnLayouts, device: Device) -> LayoutProblem:
    """Return the problem after the user's runs."""
    factor = problem.device_factor * math.exp(own.log_device(device))
    return replace(problem, parameters=own.parameters, device_factor=factor)


def _between(
    rows: Sequence[Device], columns: Sequence[Device], calibration: CalibrationParameters
) -> Floats:
    """Return correlations between devices; a user's machines of one name have one error."""
    same = np.array([[a.name == b.name for b in columns] for a in rows])
    return np.where(same, 1.0, correlations(rows, columns, calibration))
