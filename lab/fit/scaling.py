"""Fit the constants of data-parallel scaling: what a cluster of unknown behaviour gets.

- Links inside a node, and between nodes with RDMA: ``fit_links``.
- Without RDMA: the stream limit, overlap and stragglers from the scaling law fitted to all rows
  of the clusters with a known network (``measurements/pollux_sia``).
- Uncertainty: the two variance components that make the planner's uncalibrated errors most likely,
  those of each cluster by constants fitted without it (``variance_components``);
  how they grow with the devices, by numbers of nodes left out of the ring's fit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.lab.data import COLLECTIVES, POLLUX, SIA
from advisor.lab.fit.verbs import FittedFolder, constants_text, log_errors, widening
from advisor.planners.core.errors import MIB, bytes_per_s
from advisor.planners.links.collectives import (
    RDMA_FROM_BYTES_PER_S,
    CollectiveParameters,
    ring_all_reduce_s,
)
from advisor.planners.links.gradients import (
    DataParallelColumns,
    ScalingParameters,
    data_parallel_step,
    expected_maximum,
)
from advisor.planners.links.scaling import (
    MeasuredPlacements,
    Placements,
    ScalingFit,
    application_terms,
    as_record,
    cluster_terms,
    fit_cluster,
)

if TYPE_CHECKING:
    import pandas as pd


# Read the measured step times by placement of Pollux and Sia: one record a cluster.
#
# Of Sia's tables where they are there, else of the part that ships (Pollux's, AWS). Scalability
# rows that repeat a placement row are left out.


PLACEMENTS: Final = "placements"
TABLES: Final = (PLACEMENTS, "scalability")
# Trainable parameters of the public models x 4 bytes (gradients are fp32 in these runs): BERT-base
# 109.5 M, ResNet-18 11.2 M, ResNet-50 25.6 M, YOLOv3 61.9 M. The recording of a job has its own.
GRADIENT_BYTES: Final[Mapping[str, float]] = {
    "bert": 438e6,
    "cifar10": 44.7e6,
    "imagenet": 102e6,
    "yolov3": 248e6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRuns:
    """All measured runs of one cluster."""

    applications: tuple[str, ...]  # names, in the order of the placements' indices
    measured: MeasuredPlacements
    is_placement: NDArray[np.bool_]  # from the placement table

    def take(self, rows: NDArray[np.bool_]) -> MeasuredPlacements:
        """Return the chosen rows; the applications keep their indices."""
        return MeasuredPlacements(
            placements=self.measured.placements.take(rows), step_s=self.measured.step_s[rows]
        )

    @property
    def gradient_bytes(self) -> list[float | None]:
        """Gradients of each application where publicly known."""
        return [GRADIENT_BYTES.get(name) for name in self.applications]


def read_clusters(data: Path) -> dict[str, ClusterRuns]:
    """Read both tables under ``data``; returns cluster name -> runs.

    Raises ModelError if neither table is there, a column is missing, or no row is usable.
    """
    import pandas as pd

    source = SIA if any(SIA.has(name, data) for name in TABLES) else POLLUX
    tables = [
        source.read(name, data).assign(is_placement=name == PLACEMENTS)
        for name in TABLES
        if source.has(name, data)
    ]
    if not tables:
        raise source.absent(data)
    runs = pd.concat(tables, ignore_index=True)
    runs = runs[(runs.step_s > 0) & (runs.local_batch > 0) & (runs.workers >= 1)]
    runs["rounded"] = runs.step_s.round(7)
    key = ["cluster", "application", "nodes", "workers", "local_batch", "rounded"]
    runs = runs[runs.is_placement | ~runs.duplicated(key)]
    if runs.empty:
        raise ModelError(f"no measured run in the tables of {source.title} under {data}")
    return {str(name): _columns(own) for name, own in runs.groupby("cluster")}


def _columns(own: pd.DataFrame) -> ClusterRuns:
    names = tuple(sorted(own.application.astype(str).unique()))
    index = {name: i for i, name in enumerate(names)}

    def column(name: str) -> NDArray[np.float64]:
        return own[name].to_numpy(float)

    return ClusterRuns(
        applications=names,
        measured=MeasuredPlacements(
            placements=Placements(
                application=own.application.astype(str).map(index).to_numpy(int),
                nodes=column("nodes"),
                per_node=column("per_node"),
                workers=column("workers"),
                batch=column("local_batch"),
            ),
            step_s=column("step_s"),
        ),
        is_placement=own.is_placement.to_numpy(bool),
    )


# Errors of the planner of data parallelism on measured clusters, knowing one device and links.
#
# Every application of a cluster is predicted from its own step on one device, nominal links and
# the constants alone: what a user of an unknown cluster gets.


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

    ``constants``: by cluster: the constants that answer for it, fitted without it where there are
    others.
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
    return {name: log_errors(np.concatenate(parts)) for name, parts in errors.items()}


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


# Fit what rings of devices reach, whichever clusters are left out of the constants of scaling.
#
# - Inside a node: launch, step and efficiency from measured NCCL all-reduces on 8 GPUs
#   (``lab.data.COLLECTIVES``). On one number of GPUs launch and steps are known only by
#   their sum: NCCL's own figures say how it is shared.
# - Between nodes with RDMA: step and efficiency from achieved over nominal bus bandwidth by
#   message size on 2 to 128 nodes (SimAI's).
# - How far a fit on few nodes errs on more of them: the same table, the larger numbers left out.


NODE_DEVICES: Final = 8
# Launch of a collective and one step over NVLink by NCCL's own model of a ring with its Simple
# protocol (src/graph/tuning.cc: baseLat 8.4 us, hwLat 3.4 us), each to within a factor of 1.6.
PRIOR_LAUNCH_S, PRIOR_STEP_S, PRIOR_LOG_SD = 8.4e-6, 3.4e-6, 0.5
# Nominal rates of the tables, per direction [bytes/s]: NVSwitch of an A100; six links of a V100;
# eight 200 Gbit/s interfaces a node (the ratio table does not state them: A100 nodes are assumed).
NVLINK_BYTES_PER_S: Final[Mapping[str, float]] = {"a100": 300e9, "v100": 150e9}
TABLE_NETWORK_BYTES_PER_S = 8 * bytes_per_s(200)
_CORNER: Final = 0.1  # log error beyond which a reading counts less


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """Measured rings between nodes, one length: devices, message [bytes], ln(time in seconds)."""

    workers: Array
    size: Array
    log_s: Array

    def fit(self, rows: NDArray[np.bool_]) -> tuple[float, float]:
        """Return step [s] and efficiency by some of the rows."""

        def residual(theta: Array) -> Array:
            return self.errors(*np.exp(theta))[rows]

        step, efficiency = _least_squares(residual, [1e-5, 0.9])
        return step, min(1.0, efficiency)

    def errors(self, step: float, efficiency: float) -> Array:
        """Return ln(predicted / measured) of every row."""
        rate = TABLE_NETWORK_BYTES_PER_S
        ring = ring_all_reduce_s(self.size, self.workers, rate, step, efficiency=efficiency)
        return np.asarray(np.log(ring) - self.log_s)


def fit_links(data: Path) -> tuple[CollectiveParameters, float]:
    """Fit the links on the tables of collectives under ``data``.

    Returns what rings reach, streams without RDMA not yet known, and what a doubling of the
    devices beyond those fitted adds to the deviation of a ring's log time. Raises ModelError if a
    table is missing or holds no usable row.
    """
    launch_s, intra_step_s, intra_efficiency = _fit_inside(data)
    rings = read_rings(data)
    step_s, efficiency = rings.fit(np.ones(rings.size.size, bool))
    links = CollectiveParameters(
        launch_s=launch_s,
        intra_step_s=intra_step_s,
        network_step_s=step_s,
        intra_efficiency=intra_efficiency,
        network_efficiency=efficiency,
        stream_bytes_per_s=bytes_per_s(10),
        rdma_from_bytes_per_s=RDMA_FROM_BYTES_PER_S,
    )
    return links, growth_per_doubling(rings)


def growth_per_doubling(rings: Rings) -> float:
    """Return what a doubling of the devices beyond a fit adds to the deviation of its log errors.

    For every number of devices but the largest: fitted on so many and fewer, asked of more. The
    deviation there is taken to be that of the fitted rows and a share of every doubling, the
    likeliest one, every fit counting the same. One network was measured, and so ``widening`` is
    that of one group.
    """
    from scipy.optimize import minimize_scalar

    parts = []
    for most in np.unique(rings.workers)[:-1]:
        known = rings.workers <= most
        error = rings.errors(*rings.fit(known))
        own = np.sqrt(np.mean(error[known] ** 2))
        beyond = np.log2(rings.workers[~known] / most)
        weight = np.full(beyond.size, 1.0 / beyond.size)
        parts.append((error[~known], np.full(beyond.size, own), beyond, weight))
    if not parts:
        return 0.0
    error, own, beyond, weight = (np.concatenate(column) for column in zip(*parts, strict=True))

    def minus_log_likelihood(share: float) -> float:
        sd = own + share * beyond
        return float(np.sum(weight * (2 * np.log(sd) + (error / sd) ** 2)))

    found = minimize_scalar(
        minus_log_likelihood, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-9}
    )
    return widening(1) * float(found.x)


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
        pull = (theta[:2] - np.log([PRIOR_LAUNCH_S, PRIOR_STEP_S])) / PRIOR_LOG_SD
        return np.concatenate([np.log(launch + ring) - target, _CORNER * pull])

    launch, step, efficiency = _least_squares(residual, [PRIOR_LAUNCH_S, PRIOR_STEP_S, 0.8])
    return launch, step, min(1.0, efficiency)


def read_rings(data: Path) -> Rings:
    table = COLLECTIVES.read("between_nodes", data)
    table = table[table.nodes > 1]
    workers = table.nodes.to_numpy(float) * NODE_DEVICES
    size, ratio = table.message_bytes.to_numpy(float), table.share_of_nominal.to_numpy(float)
    reached = ring_all_reduce_s(size, workers, TABLE_NETWORK_BYTES_PER_S * ratio)
    return Rings(workers=workers, size=size, log_s=np.log(reached))


def _least_squares(residual: Callable[[Array], Array], start: list[float]) -> list[float]:
    from scipy.optimize import least_squares

    # To the last digit: what is rounded later must not depend on where the search gave up.
    found = least_squares(
        residual, np.log(start), loss="soft_l1", f_scale=_CORNER, x_scale="jac",
        xtol=1e-13, ftol=1e-13, gtol=1e-13, max_nfev=1000,
    )  # fmt: skip
    return [float(value) for value in np.exp(found.x)]


Links = tuple[CollectiveParameters, float]  # as ``fit_links`` returns them
DDP_BUCKET_BYTES = 25.0 * MIB  # PyTorch's default, Li et al. 2020, section 4.2


def fitted(given: Path | None, day: str) -> FittedFolder:
    source = packaged.measurements(given)
    laws, clusters = fit_laws(source), read_clusters(source)
    links = fit_links(source)
    constants = _parameters(links, laws, clusters)
    left_out = errors_by_cluster(_without_each(links, laws, clusters), clusters)
    in_sample = errors_by_cluster(dict.fromkeys(laws, constants), clusters)
    record = {name: as_record(law) for name, law in sorted(laws.items())}
    return FittedFolder(
        files={
            "parameters.json": constants_text(constants),
            "clusters.json": json.dumps(record, indent=2) + "\n",
        },
        metrics={"left_out": left_out, "in_sample": in_sample},
    )


def fit(data: Path) -> ScalingParameters:
    """Fit the constants on the tables under ``data`` (laid out like ``shared/data``).

    Raises ModelError if a table is missing or holds no usable row.
    """
    return _parameters(fit_links(data), fit_laws(data), read_clusters(data))


def fit_without_each(data: Path) -> dict[str, ScalingParameters]:
    """Fit the constants without each cluster in turn; one alone leaves nothing to fit on."""
    laws, clusters, links = fit_laws(data), read_clusters(data), fit_links(data)
    return {
        left_out: _parameters(links, _without(left_out, laws), clusters)
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
    links: Links, laws: Mapping[str, ScalingFit], clusters: Mapping[str, ClusterRuns]
) -> ScalingParameters:
    """Return the constants by the laws of some clusters, and the widths by those left out."""
    answering = _without_each(links, laws, clusters)
    compute, communication = variance_components(answering, clusters)
    return replace(
        _constants(links, laws, clusters),
        log_sd_compute=compute,
        log_sd_communication=communication,
    )


def _without_each(
    links: Links, laws: Mapping[str, ScalingFit], clusters: Mapping[str, ClusterRuns]
) -> dict[str, ScalingParameters]:
    """Return by cluster the constants of the others; one alone can only answer for itself."""
    return {name: _constants(links, _without(name, laws) or laws, clusters) for name in laws}


def _without(left_out: str, laws: Mapping[str, ScalingFit]) -> dict[str, ScalingFit]:
    return {name: law for name, law in laws.items() if name != left_out}


def _constants(
    links: Links, laws: Mapping[str, ScalingFit], clusters: Mapping[str, ClusterRuns]
) -> ScalingParameters:
    """Return the constants by the laws of some clusters, before their widths are known."""
    rings, growth = links
    slow = [
        1e9 / np.exp(cluster_terms(law).seconds_per_gb)
        for name, law in laws.items()
        if KNOWN_CLUSTERS[name].network_bytes_per_s < RDMA_FROM_BYTES_PER_S
    ]
    rho = np.concatenate(
        [1 / (1 + np.exp(-application_terms(law).overlap)) for law in laws.values()]
    )
    doubling = [cluster_terms(law).straggler_doubling for law in laws.values()]
    return ScalingParameters(
        collectives=replace(rings, stream_bytes_per_s=float(np.exp(np.mean(np.log(slow)))))
        if slow
        else rings,
        bucket_bytes=DDP_BUCKET_BYTES,
        overlap_fraction=float(min(1.0, np.median(rho) / BACKWARD_FRACTION)),
        # The law's stragglers grow by s in the first doubling, the expected maximum by 0.56.
        straggler_sd_fraction=max(0.0, float(np.mean(doubling))) / float(expected_maximum(2)),
        log_sd_compute=0.0,
        log_sd_communication=0.0,
        log_sd_per_doubling=growth,
        fitted_workers=float(max(clusters[n].measured.placements.workers.max() for n in laws)),
    )
