"""Fit the constants of data-parallel scaling: what a cluster of unknown behaviour gets.

- Inside a node: launch, step and efficiency from measured NCCL all-reduces on 8 GPUs
  (``measurements.COLLECTIVES``, vTrain's).
- Between nodes with RDMA: step and efficiency from achieved over nominal bus bandwidth by message
  size on 2 to 128 nodes (SimAI's).
- Without RDMA: the stream limit, overlap and stragglers from the scaling law fitted to all rows
  of the clusters with a known network (``measurements/pollux_sia``).
- Uncertainty: the two variance components that make the planner's uncalibrated errors on those
  rows most likely, every application of a cluster counting the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.collectors import atomic
from advisor.errors import ModelError
from advisor.measurements import COLLECTIVES
from advisor.planners.core.units import MIB, bytes_per_s
from advisor.planners.links.collectives import (
    RDMA_FROM_BYTES_PER_S,
    CollectiveParameters,
    ring_all_reduce_s,
)
from advisor.planners.links.data_parallel import (
    DataParallelColumns,
    ScalingParameters,
    data_parallel_step,
    expected_maximum,
)
from advisor.planners.links.scaling_law import Placements
from advisor.train.scaling_fit import (
    MeasuredPlacements,
    ScalingFit,
    application_terms,
    as_record,
    cluster_terms,
    fit_cluster,
)
from advisor.train.scaling_runs import ClusterRuns, read_clusters
from advisor.ways import parameters

if TYPE_CHECKING:
    pass

Array = NDArray[np.float64]
DDP_BUCKET_BYTES = 25.0 * MIB  # PyTorch's default, Li et al. 2020, section 4.2
NODE_DEVICES = 8
# Nominal rates of the tables, per direction [bytes/s]: NVSwitch of an A100; six links of a V100;
# eight 200 Gbit/s interfaces a node (the ratio table does not state them: A100 nodes are assumed).
NVLINK_BYTES_PER_S: Final[Mapping[str, float]] = {"a100": 300e9, "v100": 150e9}
TABLE_NETWORK_BYTES_PER_S = 8 * bytes_per_s(200)
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


def command(
    folder: Annotated[
        Path | None, typer.Option("--data", help="Measurements laid out like shared/data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; default: trained_models/scaling.")
    ] = None,
) -> None:
    """Fit the constants of data-parallel scaling from measurements."""
    source = packaged.measurements(folder)
    target = out or packaged.root("trained_models") / "scaling"
    laws = fit_laws(source)
    path = parameters.write(_parameters(source, laws), target)
    record = {name: as_record(law) for name, law in laws.items()}
    atomic.write_text(target / "clusters.json", json.dumps(record, indent=2) + "\n")
    typer.echo(f"wrote {path}")


def fit(data: Path) -> ScalingParameters:
    """Fit the constants on the tables under ``data`` (laid out like ``shared/data``).

    Raises
    ------
    ModelError
        If a table is missing or holds no usable row.
    """
    return _parameters(data, fit_laws(data))


def fit_laws(data: Path) -> dict[str, ScalingFit]:
    """Fit the scaling law to all rows of each cluster whose links are known."""
    clusters = read_clusters(data)
    laws = {
        name: fit_cluster(runs.measured, runs.gradient_bytes)
        for name, runs in clusters.items()
        if name in KNOWN_CLUSTERS
    }
    if not laws:
        raise ModelError(f"none of the clusters {', '.join(KNOWN_CLUSTERS)} is in the tables")
    return laws


def _parameters(data: Path, laws: Mapping[str, ScalingFit]) -> ScalingParameters:
    launch, intra_step, intra = _fit_inside(data)
    network_step, network = _fit_between(data)
    slow = [
        1e9 / np.exp(cluster_terms(law).seconds_per_gb)
        for name, law in laws.items()
        if KNOWN_CLUSTERS[name].network_bytes_per_s < RDMA_FROM_BYTES_PER_S
    ]
    rho = np.concatenate(
        [1 / (1 + np.exp(-application_terms(law).overlap)) for law in laws.values()]
    )
    doubling = [cluster_terms(law).straggler_doubling for law in laws.values()]
    clusters = read_clusters(data)
    first = ScalingParameters(
        collectives=CollectiveParameters(
            launch_s=launch,
            intra_step_s=intra_step,
            network_step_s=network_step,
            intra_efficiency=intra,
            network_efficiency=network,
            stream_bytes_per_s=float(np.exp(np.mean(np.log(slow)))) if slow else bytes_per_s(10),
            rdma_from_bytes_per_s=RDMA_FROM_BYTES_PER_S,
        ),
        bucket_bytes=DDP_BUCKET_BYTES,
        overlap_fraction=float(min(1.0, np.median(rho) / BACKWARD_FRACTION)),
        # The law's stragglers grow by s in the first doubling, the expected maximum by 0.56.
        straggler_sd_fraction=max(0.0, float(np.mean(doubling))) / float(expected_maximum(2)),
        log_sd_compute=0.0,
        log_sd_communication=0.0,
        log_sd_per_doubling=0.1,
        fitted_workers=float(max(c.measured.placements.workers.max() for c in clusters.values())),
    )
    compute, communication = _variance_components(first, clusters)
    return replace(first, log_sd_compute=compute, log_sd_communication=communication)


def _fit_inside(data: Path) -> tuple[float, float, float]:
    """Return launch [s], step [s] and efficiency inside a node."""
    table = COLLECTIVES.read("all_reduce", data)
    table = table[
        (table.accelerators == NODE_DEVICES) & table.accelerator.isin(list(NVLINK_BYTES_PER_S))
    ]
    size = table.message_bytes.to_numpy(float)
    nominal = table.accelerator.map(NVLINK_BYTES_PER_S).to_numpy(float)
    target = np.log(table.all_reduce_s.to_numpy(float))

    def residual(theta: Array) -> Array:
        launch, step, efficiency = np.exp(theta)
        ring = ring_all_reduce_s(size, NODE_DEVICES, nominal, step, efficiency=efficiency)
        return np.asarray(np.log(launch + ring) - target)

    launch, step, efficiency = _least_squares(residual, [3e-5, 3e-6, 0.8])
    return launch, step, min(1.0, efficiency)


def _fit_between(data: Path) -> tuple[float, float]:
    """Return step [s] and efficiency between nodes with RDMA."""
    table = COLLECTIVES.read("between_nodes", data)
    nodes = table.nodes.to_numpy(float)
    size, ratio = table.message_bytes.to_numpy(float), table.share_of_nominal.to_numpy(float)
    several = nodes > 1
    workers, size = nodes[several] * NODE_DEVICES, size[several]
    rate = TABLE_NETWORK_BYTES_PER_S
    target = np.log(ring_all_reduce_s(size, workers, rate * ratio[several]))

    def residual(theta: Array) -> Array:
        step, efficiency = np.exp(theta)
        ring = ring_all_reduce_s(size, workers, rate, step, efficiency=efficiency)
        return np.asarray(np.log(ring) - target)

    step, efficiency = _least_squares(residual, [1e-5, 0.9])
    return step, min(1.0, efficiency)


def _least_squares(residual: Callable[[Array], Array], start: list[float]) -> list[float]:
    from scipy.optimize import least_squares

    found = least_squares(residual, np.log(start), loss="soft_l1", f_scale=0.1)
    return [float(value) for value in np.exp(found.x)]


def _variance_components(
    constants: ScalingParameters, clusters: Mapping[str, ClusterRuns]
) -> tuple[float, float]:
    """Return log_sd_compute and log_sd_communication of greatest likelihood.

    The mean squared log error of a row is taken to be ``c^2 + (communication / step x n)^2``.
    """
    from scipy.optimize import minimize

    error, share, weight = [], [], []
    for name, runs in clusters.items():
        for index, size in enumerate(runs.gradient_bytes):
            own = runs.take(runs.measured.placements.application == index)
            alone = one_device_s(own, own.placements)
            is_fit = name in KNOWN_CLUSTERS and runs.applications[index] not in INPUT_BOUND
            if size is None or alone is None or not is_fit:
                continue
            columns = uncalibrated(name, size, alone, own.placements, constants)
            several = own.placements.workers > 1
            error.append(np.log(own.step_s / columns.step_s)[several])
            share.append((columns.communication_s / columns.step_s)[several])
            weight.append(np.full(int(several.sum()), 1.0 / several.sum()))
    e, s, w = np.concatenate(error), np.concatenate(share), np.concatenate(weight)

    def minus_log_likelihood(theta: Array) -> float:
        variance = np.exp(2 * theta[0]) + (s * np.exp(theta[1])) ** 2
        return float(np.sum(w * (np.log(variance) + e**2 / variance)))

    found = minimize(minus_log_likelihood, np.log([0.1, 0.5]), method="Nelder-Mead")
    compute, communication = np.exp(found.x)
    return float(compute), float(communication)


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
