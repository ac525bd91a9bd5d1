"""Fit the constants of data-parallel scaling: what a cluster of unknown behaviour gets.

- Links inside a node, and between nodes with RDMA: ``scaling_links``.
- Without RDMA: the stream limit, overlap and stragglers from the scaling law fitted to all rows
  of the clusters with a known network (``measurements/pollux_sia``).
- Uncertainty: the two variance components that make the planner's uncalibrated errors most likely,
  those of each cluster by constants fitted without it (``scaling_errors.variance_components``);
  how they grow with the devices, by numbers of nodes left out of the ring's fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.planners.core.units import MIB
from advisor.planners.links.collectives import RDMA_FROM_BYTES_PER_S, CollectiveParameters
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
from advisor.train.fits import FittedFolder
from advisor.train.scaling_errors import (
    BACKWARD_FRACTION,
    KNOWN_CLUSTERS,
    errors_by_cluster,
    variance_components,
)
from advisor.train.scaling_links import fit_links
from advisor.train.scaling_runs import ClusterRuns, read_clusters
from advisor.ways import parameters

Links = tuple[CollectiveParameters, float]  # as ``fit_links`` returns them
DDP_BUCKET_BYTES = 25.0 * MIB  # PyTorch's default, Li et al. 2020, section 4.2


def fitted(given: Path | None, day: str) -> FittedFolder:
    """Fit the constants of data-parallel scaling."""
    source = packaged.measurements(given)
    laws, clusters = fit_laws(source), read_clusters(source)
    links = fit_links(source)
    constants = _parameters(links, laws, clusters)
    left_out = errors_by_cluster(_without_each(links, laws, clusters), clusters)
    in_sample = errors_by_cluster(dict.fromkeys(laws, constants), clusters)
    record = {name: as_record(law) for name, law in sorted(laws.items())}
    return FittedFolder(
        files={
            "parameters.json": parameters.text(constants),
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
