"""Errors of the planner of data parallelism on measured clusters, knowing one device and links.

Every application of a cluster is predicted from its own step on one device, nominal links and
the constants alone: what a user of an unknown cluster gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.planners.core.units import bytes_per_s
from advisor.planners.links.data_parallel import (
    DataParallelColumns,
    ScalingParameters,
    data_parallel_step,
)
from advisor.planners.links.scaling_fit import MeasuredPlacements
from advisor.planners.links.scaling_law import Placements
from advisor.train.few_groups import widening
from advisor.train.scaling_runs import ClusterRuns

Array = NDArray[np.float64]
INPUT_BOUND = frozenset({"yolov3"})  # limited by loading (SOURCE.md): not what is fitted here
BACKWARD_FRACTION = 2 / 3  # of forward and backward: two products for each of the forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCluster:
    """Nominal links of a cluster in the placement tables [bytes/s, s]."""

    intra_bytes_per_s: float
    network_bytes_per_s: float
    intra_latency_s: float = 5e-6
    network_latency_s: float = 3e-5


# PCIe 3.0 x16 (T4, 2080Ti), NVLink 3 (A100); interfaces: SOURCE.md, and Sia's section 4.2.
KNOWN_CLUSTERS: Final[Mapping[str, KnownCluster]] = {
    "aws": KnownCluster(intra_bytes_per_s=12e9, network_bytes_per_s=bytes_per_s(50)),
    "rtx": KnownCluster(intra_bytes_per_s=12e9, network_bytes_per_s=bytes_per_s(50)),
    "dgx-ext": KnownCluster(intra_bytes_per_s=300e9, network_bytes_per_s=bytes_per_s(1600)),
}


def variance_components(
    constants: Mapping[str, ScalingParameters], clusters: Mapping[str, ClusterRuns]
) -> tuple[float, float]:
    """Return log_sd_compute and log_sd_communication of greatest likelihood, for a new cluster.

    The mean squared log error of a row is taken to be ``c^2 + (communication / step x n)^2``.
    Every cluster counts the same, and within it every application. Both are Student's quantile
    over the normal one wider, with as many degrees of freedom as clusters: the error of a cluster
    never seen is a draw among clusters, and of these there are few. Raises ModelError if no
    application can be asked on several devices.

    Parameters
    ----------
    constants : mapping of str to ScalingParameters
        By cluster: the constants that answer for it, fitted without it where there are others.
    """
    from scipy.optimize import minimize

    found = list(_errors_by_application(constants, clusters))
    if not found:
        raise ModelError("no application was measured on one device and on several")
    applications = Counter(name for name, _, _ in found)
    e = np.concatenate([error for _, error, _ in found])
    s = np.concatenate([share for _, _, share in found])
    w = np.concatenate(
        [np.full(error.size, 1.0 / error.size / applications[name]) for name, error, _ in found]
    )

    def minus_log_likelihood(theta: Array) -> float:
        variance = np.exp(2 * theta[0]) + (s * np.exp(theta[1])) ** 2
        return float(np.sum(w * (np.log(variance) + e**2 / variance)))

    tight = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000, "maxfev": 5000}
    best = minimize(minus_log_likelihood, np.log([0.1, 0.5]), method="Nelder-Mead", options=tight)
    compute, communication = widening(len(applications)) * np.exp(best.x)
    return float(compute), float(communication)


def _errors_by_application(
    constants: Mapping[str, ScalingParameters], clusters: Mapping[str, ClusterRuns]
) -> Iterator[tuple[str, Array, Array]]:
    """Yield (cluster, ln(measured / predicted), communication over step) by application."""
    for name, known in sorted(constants.items()):
        runs = clusters[name]
        for index, size in enumerate(runs.gradient_bytes):
            own = runs.take(runs.measured.placements.application == index)
            alone = one_device_s(own, own.placements)
            is_fit = runs.applications[index] not in INPUT_BOUND
            several = own.placements.workers > 1
            if size is None or alone is None or not is_fit or not several.any():
                continue
            columns = uncalibrated(name, size, alone, own.placements, known)
            error = np.log(own.step_s / columns.step_s)[several]
            yield name, error, (columns.communication_s / columns.step_s)[several]


def errors_by_cluster(
    constants: Mapping[str, ScalingParameters], clusters: Mapping[str, ClusterRuns]
) -> dict[str, dict[str, float]]:
    """Return |ln(predicted / measured)| by cluster, by its own constants: rows, mean, median."""
    errors: dict[str, list[Array]] = {}
    for name, error, _ in _errors_by_application(constants, clusters):
        errors.setdefault(name, []).append(np.abs(error))
    pooled = {name: np.concatenate(parts) for name, parts in errors.items()}
    return {
        name: {
            "rows": int(error.size),
            "mean_log_error": round(float(error.mean()), 4),
            "median_log_error": round(float(np.median(error)), 4),
        }
        for name, error in pooled.items()
    }


def uncalibrated(
    cluster: str,
    gradient_bytes: float,
    alone_s: Array,
    placements: Placements,
    constants: ScalingParameters,
) -> DataParallelColumns:
    """Return the planner's columns, knowing only one-device times and nominal links."""
    return data_parallel_step(
        micro_batch_s=alone_s,
        backward_s=BACKWARD_FRACTION * alone_s,
        optimizer_s=0.0,
        accumulation_steps=1,
        gradient_bytes=gradient_bytes,
        nodes=placements.nodes,
        devices_per_node=placements.workers / placements.nodes,
        parameters=constants,
        **asdict(KNOWN_CLUSTERS[cluster]),
    )


def one_device_s(known: MeasuredPlacements, wanted: Placements) -> Array | None:
    """Return one application's step on one device: measured, else a line in the batch [s]."""
    alone = known.placements.workers == 1
    batch, step = known.placements.batch[alone], known.step_s[alone]
    if not batch.size:
        return None
    slope, fixed = np.polyfit(batch, step, 1) if np.unique(batch).size > 1 else (0.0, step.mean())
    fitted = np.maximum(fixed + slope * wanted.batch, step.min())
    same = wanted.batch[:, None] == batch[None, :]
    measured = (same * step).sum(axis=1) / np.maximum(same.sum(axis=1), 1)
    return np.asarray(np.where(same.any(axis=1), measured, fitted))
