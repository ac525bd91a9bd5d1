"""Fit what rings of devices reach, whichever clusters are left out of the constants of scaling.

- Inside a node: launch, step and efficiency from measured NCCL all-reduces on 8 GPUs
  (``measurements.COLLECTIVES``). On one number of GPUs launch and steps are known only by
  their sum: NCCL's own figures say how it is shared.
- Between nodes with RDMA: step and efficiency from achieved over nominal bus bandwidth by message
  size on 2 to 128 nodes (SimAI's).
- How far a fit on few nodes errs on more of them: the same table, the larger numbers left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.lab.data import COLLECTIVES
from advisor.planners.core.units import bytes_per_s
from advisor.planners.links.collectives import (
    RDMA_FROM_BYTES_PER_S,
    CollectiveParameters,
    ring_all_reduce_s,
)
from advisor.train.few_groups import widening

Array = NDArray[np.float64]
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
    rings = _read_rings(data)
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


def _read_rings(data: Path) -> Rings:
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
