"""What the user's own runs of a job say: of its scaling, of answers in their places, of layouts.

Where nothing was measured, links as sold and published constants time the exchange of gradients
(``ways.data_parallel``). Three runs of the job on at least two numbers of devices say more: the
law of ``planners.links.scaling`` is fitted to them, and takes the place of the nominal links
on machines with the same device and network, however many. What the device model says of one
device stands in as runs of its own error, so that other batches than the measured ones are known.

Measured steps of transformers are asked of the same layout problem as the candidates; how far each
answer was off moves the layout model's constants and the devices' times as far as the evidence
goes (``planners.layouts.own_runs``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import TypeColumns
from advisor.jobs import ACTUAL_LOG_SD
from advisor.planners.core import Device, LayoutParameters, Layouts, Work
from advisor.planners.layouts import (
    NAMES,
    LayoutProblem,
    LayoutRuns,
    OwnRunsFit,
    fit_own_runs,
    from_logarithms,
    logarithms,
    sensitivity,
)
from advisor.planners.links import (
    NOISE,
    Array,
    MeasuredPlacements,
    Placements,
    ScalingFit,
    fit_cluster,
)
from advisor.planners.step import CalibrationParameters, DeviceParameters, correlations, step_time

Floats = NDArray[np.float64]
LEAST_RUNS: Final = 3
LEAST_SIZES: Final = 2
# Batches of one device at which the device model stands in, between the least and the most
# measured ones and twice as far.
_BATCHES: Final = 5


Key = tuple[str, float, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """One measured step of the job."""

    key: Key  # of its machines: ``key_of``
    device: Device
    # nodes, per_node: machines, and the devices used of each
    nodes: int
    per_node: int
    batch: float  # samples of a step on one device
    step_s: float  # [s]

    @property
    def workers(self) -> int:
        """Devices in all."""
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The job's own runs beside what is answered in their places, one entry a run.

    Whatever a law cannot follow of them is left in ``errors``, and stands between answers and runs
    unless it is carried back (``estimate.best``).
    """

    runs: tuple[PlacedRun, ...]
    errors: tuple[float, ...]  # ln(measured / answered)

    def at(self, asked: PlacedRun) -> tuple[float, float, float]:
        """Return what to add to ln(step) in a place, and two variances there.

        The first is the share of what the runs leave open, the second what they themselves scatter
        by and how far the law misses them. Kriging of the errors (Rasmussen and Williams, eqs.
        2.25 and 2.26), alike over like batches and numbers of the same device.
        """
        seen = np.array([_likeness(asked, run) for run in self.runs])
        if not (seen > _FAR).any():
            return 0.0, 1.0, 0.0
        near = np.flatnonzero(seen > _FAR)
        runs, errors = [self.runs[i] for i in near], np.array(self.errors)[near]
        whole = np.array([[_likeness(a, b) for b in runs] for a in runs])
        noise = (ACTUAL_LOG_SD / _MISFIT_LOG_SD) ** 2
        solved = np.linalg.solve(whole + noise * np.eye(len(runs)), np.c_[errors, seen[near]])
        told = float(seen[near] @ solved[:, 1])
        missed = float(np.mean(np.square(errors)))
        left = max(1.0 - told, 0.0)
        return float(seen[near] @ solved[:, 0]), left, left * missed + ACTUAL_LOG_SD**2


# By which a law may miss a run [ln], and over which batches [ln] and numbers of devices
# [doublings] it misses alike: round numbers. Below ``_FAR`` of a likeness a run says nothing.
_MISFIT_LOG_SD: Final = 0.3
_BATCH_LENGTH: Final = 0.5
_WORKERS_LENGTH: Final = 0.7
_FAR: Final = 0.01


def _likeness(a: PlacedRun, b: PlacedRun) -> float:
    """Return how alike a law errs in two places: 0 on other devices, or over another network."""
    is_same = a.key[0] == b.key[0] and (a.nodes == b.nodes == 1 or a.key == b.key)
    if not is_same:
        return 0.0
    batches = math.log(a.batch / b.batch) / _BATCH_LENGTH
    workers = math.log2(a.workers / b.workers) / _WORKERS_LENGTH
    return math.exp(-0.5 * (batches**2 + workers**2))


def key_of(fleet: TypeColumns, row: int) -> Key:
    """Return what machines have in common on which a job scales alike: device and network."""
    name = fleet.devices[fleet.device[row]].name if fleet.device[row] >= 0 else ""
    return name, float(fleet.network_bytes_per_s[row]), bool(fleet.is_rdma[row])


def placed(
    fleet: TypeColumns, row: int, nodes: int, global_batch: int, step_s: float
) -> PlacedRun:
    """Return a step on so many machines of a type."""
    per_node = int(fleet.per_node[row])
    return PlacedRun(
        key=key_of(fleet, row), device=fleet.devices[fleet.device[row]], nodes=nodes,
        per_node=per_node, batch=global_batch / (nodes * per_node), step_s=step_s,
    )  # fmt: skip


def measured_clusters(
    runs: Sequence[PlacedRun], work: Work, parameters: DeviceParameters
) -> dict[Key, ScalingFit]:
    """Return the job's law on each kind of machines with runs enough."""
    by_key: dict[Key, list[PlacedRun]] = {}
    for run in runs:
        by_key.setdefault(run.key, []).append(run)
    return {
        key: _fit(own, work, parameters)
        for key, own in by_key.items()
        if len(own) >= LEAST_RUNS and len({run.workers for run in own}) >= LEAST_SIZES
    }


def _fit(own: Sequence[PlacedRun], work: Work, parameters: DeviceParameters) -> ScalingFit:
    batch = np.array([run.batch for run in own])
    device = own[0].device
    asked = np.geomspace(batch.min() / 2, batch.max() * 2, _BATCHES)
    columns = step_time(work, [device], asked, parameters)
    bare_s = columns.micro_batch_s[0] + columns.optimizer_s[0]
    known = MeasuredPlacements(
        placements=placements(
            np.array([*(run.nodes for run in own), *np.ones(_BATCHES)]),
            np.array([*(run.per_node for run in own), *np.ones(_BATCHES)]),
            np.concatenate([batch, asked]),
        ),
        step_s=np.concatenate([[run.step_s for run in own], bare_s]),
        log_sd=np.concatenate([np.full(len(own), NOISE), np.full(_BATCHES, columns.log_sd[0])]),
    )
    # Of a job that is known by its runs alone nobody knows the gradients.
    gradients = work.gradient_bytes if work.gradient_bytes > 0 else None
    return fit_cluster(known, [gradients])


def placements(nodes: Array, per_node: Array, batch: Array) -> Placements:
    """Return runs of the job as the law takes them, all machines alike."""
    nodes, per_node = np.asarray(nodes, float), np.asarray(per_node, float)
    return Placements(
        application=np.zeros(nodes.size, dtype=int),
        nodes=nodes,
        per_node=per_node,
        workers=nodes * per_node,
        batch=np.asarray(batch, float),
    )


def fitted_rows(
    clusters: Mapping[Key, ScalingFit], fleet: TypeColumns, type_index: np.ndarray
) -> list[tuple[ScalingFit, np.ndarray]]:
    """Return each law with the rows that it times."""
    used, place = np.unique(type_index, return_inverse=True)
    keys = [key_of(fleet, int(row)) for row in used]
    found = []
    for key, fit in clusters.items():
        types = [i for i, one in enumerate(keys) if one == key]
        rows = np.flatnonzero(np.isin(place, types))
        if rows.size:
            found.append((fit, rows))
    return found


# What is known of links between machines is known of a few sites', most with RDMA: fits without
# one table each agree on constants that no table moves from their priors, and say nothing of a
# user's network. So much it is off at least: the prior's width of the efficiency of networks
# (``lab.fit.layouts.PRIOR_SD``).
_NETWORK_LOG_SD: Final = 0.15
_OF_NETWORKS: Final = (
    "dp_network_efficiency", "dp_latency_s", "dp_overlap", "pp_efficiency", "pp_latency_s",
    "pp_exposed",
)  # fmt: skip
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout:
    """One measured step as the layout model sees it."""

    # the model on the machines of the run, with the constants that are to be calibrated
    problem: LayoutProblem
    layout: Layouts
    device: Device
    step_s: float  # as measured [s]


@dataclass(frozen=True, kw_only=True)
class OwnLayouts:
    """The layout model after a user's own runs."""

    # parameters, before: the constants after the runs and before
    parameters: LayoutParameters
    before: LayoutParameters
    runs: int  # that they were calibrated on
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

        ``problem``: with the calibrated constants; ``published_log_sd``: deviation without the
        runs.
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

    ``runs``: at least one; all with the same constants; ``spread``: (p,); of the fitted constants,
    as deviations of their logarithms (``layout_model.LayoutModel.log_spread``); ``calibration``:
    how errors on one device and another are correlated.
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


def _between(
    rows: Sequence[Device], columns: Sequence[Device], calibration: CalibrationParameters
) -> Floats:
    """Return correlations between devices; a user's machines of one name have one error."""
    same = np.array([[a.name == b.name for b in columns] for a in rows])
    return np.where(same, 1.0, correlations(rows, columns, calibration))
