"""Fit the constants of data-parallel scaling: what a cluster of unknown behaviour gets.

- Inside a node: launch, step and efficiency from measured NCCL all-reduces on 8 GPUs
  (``measurements.COLLECTIVES``). On one number of GPUs launch and steps are known only by
  their sum: NCCL's own figures say how it is shared.
- Between nodes with RDMA: step and efficiency from achieved over nominal bus bandwidth by message
  size on 2 to 128 nodes (SimAI's).
- Without RDMA: the stream limit, overlap and stragglers from the scaling law fitted to all rows
  of the clusters with a known network (``measurements/pollux_sia``).
- Uncertainty: the two variance components that make the planner's uncalibrated errors most likely,
  those of each cluster by constants fitted without it (``scaling_errors.variance_components``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.measurements import COLLECTIVES, reads
from advisor.planners.core.units import MIB, bytes_per_s
from advisor.planners.links.collectives import (
    RDMA_FROM_BYTES_PER_S,
    CollectiveParameters,
    ring_all_reduce_s,
)
from advisor.planners.links.data_parallel import (
    ScalingParameters,
    expected_maximum,
)
from advisor.planners.links.scaling_fit import (
    ScalingFit,
    application_terms,
    as_record,
    cluster_terms,
    fit_cluster,
)
from advisor.train import model_folder
from advisor.train.scaling_errors import (
    BACKWARD_FRACTION,
    KNOWN_CLUSTERS,
    errors_by_cluster,
    variance_components,
)
from advisor.train.scaling_runs import ClusterRuns, read_clusters
from advisor.ways import parameters

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
_CORNER: Final = 0.1  # log error beyond which a reading counts less


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What the tables of collectives say, whichever clusters are left out [s, -]."""

    launch_s: float
    intra_step_s: float
    intra_efficiency: float
    network_step_s: float
    network_efficiency: float


def command(
    folder: Annotated[
        Path | None, typer.Option("--data", help="Measurements laid out like shared/data.")
    ] = None,
    out: model_folder.Out = None,
    day: model_folder.Day = None,
) -> None:
    """Fit the constants of data-parallel scaling."""
    target = model_folder.target(out, NAME)
    with reads.collected() as inputs:
        source = packaged.measurements(folder)
        laws, clusters = fit_laws(source), read_clusters(source)
        links = _fit_links(source)
        constants = _parameters(links, laws, clusters)
        left_out = errors_by_cluster(_without_each(links, laws, clusters), clusters)
        in_sample = errors_by_cluster(dict.fromkeys(laws, constants), clusters)
    record = {name: as_record(law) for name, law in sorted(laws.items())}
    fitted = model_folder.FittedModel(
        name=NAME,
        origin=model_folder.origin(NAME, inputs, day, model_folder.option("--data", folder)),
        files={
            "parameters.json": parameters.text(constants),
            "clusters.json": json.dumps(record, indent=2) + "\n",
        },
        metrics={"left_out": left_out, "in_sample": in_sample},
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
    return _parameters(_fit_links(data), fit_laws(data), read_clusters(data))


def fit_without_each(data: Path) -> dict[str, ScalingParameters]:
    """Fit the constants without each cluster in turn; one alone leaves nothing to fit on.

    Raises
    ------
    ModelError
        As ``fit``.
    """
    laws, clusters, links = fit_laws(data), read_clusters(data), _fit_links(data)
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
        collectives=CollectiveParameters(
            launch_s=links.launch_s,
            intra_step_s=links.intra_step_s,
            network_step_s=links.network_step_s,
            intra_efficiency=links.intra_efficiency,
            network_efficiency=links.network_efficiency,
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
        fitted_workers=float(max(clusters[n].measured.placements.workers.max() for n in laws)),
    )


def _fit_links(data: Path) -> Links:
    launch_s, intra_step_s, intra_efficiency = _fit_inside(data)
    network_step_s, network_efficiency = _fit_between(data)
    return Links(
        launch_s=launch_s,
        intra_step_s=intra_step_s,
        intra_efficiency=intra_efficiency,
        network_step_s=network_step_s,
        network_efficiency=network_efficiency,
    )


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

    # To the last digit: what is rounded later must not depend on where the search gave up.
    found = least_squares(
        residual, np.log(start), loss="soft_l1", f_scale=_CORNER, x_scale="jac",
        xtol=1e-13, ftol=1e-13, gtol=1e-13, max_nfev=1000,
    )  # fmt: skip
    return [float(value) for value in np.exp(found.x)]
