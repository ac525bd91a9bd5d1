"""Fit the constants of data-parallel scaling: what a cluster of unknown behaviour gets.

- Inside a node: launch, step and efficiency from measured NCCL all-reduces on 8 GPUs
  (``planners/nccl_allreduce_intranode.csv``). On one number of GPUs launch and steps are known
  only by their sum: NCCL's own figures say how it is shared.
- Between nodes with RDMA: step and efficiency from achieved over nominal bus bandwidth by message
  size on 2 to 128 nodes (``planners/collective_busbw_ratio.csv``).
- Without RDMA: the stream limit, overlap and stragglers from the scaling law fitted to all rows
  of the clusters with a known network (``measurements/pollux_sia``).
- Uncertainty: the two variance components that make the planner's uncalibrated errors on those
  rows most likely, every application of a cluster counting the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.measurements import reads
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
from advisor.train import model_folder
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
    import pandas as pd

Array = NDArray[np.float64]
NAME: Final = "scaling"
DDP_BUCKET_BYTES = 25.0 * MIB  # PyTorch's default, Li et al. 2020, section 4.2
NODE_DEVICES = 8
# Launch of a collective and one step over NVLink by NCCL's own model of a ring with its Simple
# protocol (src/graph/tuning.cc: baseLat 8.4 us, hwLat 3.4 us), each to within a factor of 1.6.
PRIOR_LAUNCH_S, PRIOR_STEP_S, PRIOR_LOG_SD = 8.4e-6, 3.4e-6, 0.5
# Nominal rates of the tables, per direction [bytes/s]: NVSwitch of an A100; six links of a V100;
# eight 200 Gbit/s interfaces a node (the ratio table does not state them: A100 nodes are assumed).
NVLINK_BYTES_PER_S: Final[Mapping[str, float]] = {"a100": 300e9, "v100": 150e9}
TABLE_NETWORK_BYTES_PER_S = 8 * bytes_per_s(200)
INPUT_BOUND = frozenset({"yolov3"})  # limited by loading (SOURCE.md): not what is fitted here
_CORNER: Final = 0.1  # log error beyond which a reading counts less
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
    out: model_folder.Out = None,
    day: model_folder.Day = None,
) -> None:
    """Fit the constants of data-parallel scaling from measurements."""
    target = model_folder.target(out, NAME)
    with reads.collected() as inputs:
        source = packaged.measurements(folder)
        laws, clusters = fit_laws(source), read_clusters(source)
        constants = _parameters(source, laws, clusters)
    record = {name: as_record(law) for name, law in sorted(laws.items())}
    fitted = model_folder.FittedModel(
        name=NAME,
        origin=model_folder.origin(NAME, inputs, day, model_folder.option("--data", folder)),
        files={
            "parameters.json": parameters.text(constants),
            "clusters.json": json.dumps(record, indent=2) + "\n",
        },
        metrics={"uncalibrated": _errors(constants, clusters)},
    )
    model_folder.write(fitted, target)
    typer.echo(f"wrote {target}")


def fit(data: Path) -> ScalingParameters:
    """Fit the constants on the tables under ``data`` (laid out like ``shared/data``).

    Raises
    ------
    ModelError
        If a table is missing or holds no usable row.
    """
    return _parameters(data, fit_laws(data), read_clusters(data))


def fit_without_each(data: Path) -> dict[str, ScalingParameters]:
    """Fit the constants without each cluster in turn; one alone leaves nothing to fit on.

    Raises
    ------
    ModelError
        As ``fit``.
    """
    laws, clusters = fit_laws(data), read_clusters(data)
    return {
        left_out: _parameters(
            data,
            {name: law for name, law in laws.items() if name != left_out},
            {name: runs for name, runs in clusters.items() if name != left_out},
        )
        for left_out in laws
        if len(laws) > 1
    }


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


def _parameters(
    data: Path, laws: Mapping[str, ScalingFit], clusters: Mapping[str, ClusterRuns]
) -> ScalingParameters:
    """Return the constants by the laws of some clusters and those clusters' errors."""
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
    table = _read(data / "planners" / "nccl_allreduce_intranode.csv")
    table = table[(table.n_gpus == NODE_DEVICES) & table.gpu.isin(list(NVLINK_BYTES_PER_S))]
    size = table.bytes.to_numpy(float)
    nominal = table.gpu.map(NVLINK_BYTES_PER_S).to_numpy(float)
    target = np.log(table.out_of_place_us.to_numpy(float) * 1e-6)

    def residual(theta: Array) -> Array:
        launch, step, efficiency = np.exp(theta)
        ring = ring_all_reduce_s(size, NODE_DEVICES, nominal, step, efficiency=efficiency)
        pull = (theta[:2] - np.log([PRIOR_LAUNCH_S, PRIOR_STEP_S])) / PRIOR_LOG_SD
        return np.concatenate([np.log(launch + ring) - target, _CORNER * pull])

    launch, step, efficiency = _least_squares(residual, [PRIOR_LAUNCH_S, PRIOR_STEP_S, 0.8])
    return launch, step, min(1.0, efficiency)


def _fit_between(data: Path) -> tuple[float, float]:
    """Return step [s] and efficiency between nodes with RDMA."""
    table = _read(data / "planners" / "collective_busbw_ratio.csv")
    table = table[table.table == "nic"]
    nodes = table.scope.str.extract(r"^(\d+)Node-")[0].astype(float).to_numpy()
    size, ratio = table.message_bytes.to_numpy(float), table.achieved_over_nominal.to_numpy(float)
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

    # To the last digit: what is rounded later must not depend on where the search gave up.
    found = least_squares(
        residual, np.log(start), loss="soft_l1", f_scale=_CORNER, x_scale="jac",
        xtol=1e-13, ftol=1e-13, gtol=1e-13, max_nfev=1000,
    )  # fmt: skip
    return [float(value) for value in np.exp(found.x)]


def _variance_components(
    constants: ScalingParameters, clusters: Mapping[str, ClusterRuns]
) -> tuple[float, float]:
    """Return log_sd_compute and log_sd_communication of greatest likelihood.

    The mean squared log error of a row is taken to be ``c^2 + (communication / step x n)^2``.
    """
    from scipy.optimize import minimize

    found = list(_uncalibrated_errors(constants, clusters))
    e = np.concatenate([error for _, error, _ in found])
    s = np.concatenate([share for _, _, share in found])
    w = np.concatenate([np.full(error.size, 1.0 / error.size) for _, error, _ in found])

    def minus_log_likelihood(theta: Array) -> float:
        variance = np.exp(2 * theta[0]) + (s * np.exp(theta[1])) ** 2
        return float(np.sum(w * (np.log(variance) + e**2 / variance)))

    tight = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000, "maxfev": 5000}
    best = minimize(minus_log_likelihood, np.log([0.1, 0.5]), method="Nelder-Mead", options=tight)
    compute, communication = np.exp(best.x)
    return float(compute), float(communication)


def _uncalibrated_errors(
    constants: ScalingParameters, clusters: Mapping[str, ClusterRuns]
) -> Iterator[tuple[str, Array, Array]]:
    """Yield (cluster, ln(measured / predicted), communication over step) by application."""
    for name, runs in sorted(clusters.items()):
        for index, size in enumerate(runs.gradient_bytes):
            own = runs.take(runs.measured.placements.application == index)
            alone = one_device_s(own, own.placements)
            is_fit = name in KNOWN_CLUSTERS and runs.applications[index] not in INPUT_BOUND
            several = own.placements.workers > 1
            if size is None or alone is None or not is_fit or not several.any():
                continue
            columns = uncalibrated(name, size, alone, own.placements, constants)
            error = np.log(own.step_s / columns.step_s)[several]
            yield name, error, (columns.communication_s / columns.step_s)[several]


def _errors(
    constants: ScalingParameters, clusters: Mapping[str, ClusterRuns]
) -> dict[str, dict[str, float]]:
    """Return |ln(predicted / measured)| by cluster: rows, mean, median. In the fit's sight."""
    errors: dict[str, list[Array]] = {}
    for name, error, _ in _uncalibrated_errors(constants, clusters):
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


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise ModelError(f"{path} is missing", hint="name a folder laid out like shared/data")
    return pd.read_csv(path)
