r"""Baselines of ``scaling``: perfect scaling, nominal links, Pollux.

Pollux's own model, calibrated on the same rows [1]_ (m samples a device, K devices; alpha and beta
one pair inside a node, one between nodes):

.. math::
    T_{grad} &= \alpha_c + \beta_c m \\
    T_{sync} &= \alpha + \beta \max(K - 2, 0), \quad 0 \text{ for } K = 1 \\
    T &= (T_{grad}^\gamma + T_{sync}^\gamma)^{1/\gamma}, \quad 1 \le \gamma \le 10

References
----------
.. [1] A. Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep
   Learning," OSDI 2021. Section 3.2, equations (8) to (11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.links.collectives import ring_all_reduce_s
from advisor.planners.links.scaling_fit import MeasuredPlacements
from advisor.planners.links.scaling_law import Placements
from advisor.train.scaling_errors import KNOWN_CLUSTERS, one_device_s

Array = NDArray[np.float64]
# (cluster, gradient bytes or None, known rows of one application, placements wanted) -> step
# times, or None where the baseline lacks a fact.
Baseline = Callable[[str, float | None, MeasuredPlacements, Placements], Array | None]


def perfect_scaling(
    cluster: str, gradient_bytes: float | None, known: MeasuredPlacements, wanted: Placements
) -> Array | None:
    """Take a step to last as on one device; a line in the batch where that was not measured."""
    return one_device_s(known, wanted)


def nominal_links(
    cluster: str, gradient_bytes: float | None, known: MeasuredPlacements, wanted: Placements
) -> Array | None:
    """Perfect scaling plus a ring all-reduce at nominal bandwidth, nothing hidden."""
    alone = perfect_scaling(cluster, gradient_bytes, known, wanted)
    if alone is None or gradient_bytes is None or cluster not in KNOWN_CLUSTERS:
        return None
    links, message = KNOWN_CLUSTERS[cluster], (gradient_bytes, wanted.workers)
    inside = ring_all_reduce_s(*message, links.intra_bytes_per_s, links.intra_latency_s)
    between = ring_all_reduce_s(*message, links.network_bytes_per_s, links.network_latency_s)
    return np.asarray(alone + np.where(wanted.nodes > 1, between, inside))


def pollux(
    cluster: str, gradient_bytes: float | None, known: MeasuredPlacements, wanted: Placements
) -> Array | None:
    """Pollux's seven parameters, least squares on the logarithm of the known rows."""
    from scipy.optimize import least_squares

    placements, target = known.placements, np.log(known.step_s)
    typical, batch = float(np.median(known.step_s)), float(np.median(placements.batch))
    # log alpha_c, beta_c, then log alpha and beta on one node and between nodes; gamma - 1.
    start = np.log([typical / 2, typical / 2 / batch, *[typical / 4, typical / 50] * 2])
    found = least_squares(
        lambda theta: np.log(_pollux_step_s(theta, placements)) - target,
        np.append(start, 1.0),
        bounds=(np.append(start - 18.0, 0.0), np.append(start + 5.0, 9.0)),
        max_nfev=500,
    )
    return _pollux_step_s(found.x, wanted)


def _pollux_step_s(theta: Array, placements: Placements) -> Array:
    alpha_c, beta_c, alpha_r, beta_r, alpha_n, beta_n = np.exp(theta[:6])
    gamma = 1.0 + theta[6]
    gradient = alpha_c + beta_c * placements.batch
    more = np.maximum(placements.workers - 2.0, 0.0)
    several = placements.nodes > 1
    sync = np.where(several, alpha_n + beta_n * more, alpha_r + beta_r * more)
    sync = np.where(placements.workers > 1, sync, 0.0)
    return np.asarray((gradient**gamma + sync**gamma) ** (1.0 / gamma))


BASELINES: Final[Mapping[str, Baseline]] = {
    "perfect scaling": perfect_scaling,
    "alpha-beta at nominal bandwidth": nominal_links,
    "Pollux, seven parameters": pollux,
}
