r"""Step time of measured applications on one cluster, from few devices to many.

Where an application has run on a few devices, this law says what its step takes on more of them:
the nominal links of ``data_parallel`` are replaced by the cluster's own factors, which all its
applications share.

==========  =====================================================================
here        meaning
==========  =====================================================================
n, g, K, m  nodes, most devices on a node, devices in all, samples per device
comp        compute of a step [s]
C           time of the gradients' exchange between one device each of many nodes [s]
phi         that time on this placement over C's ring law
rho         share of the compute that hides communication
eps         softness of the corner where communication stops being hidden
==========  =====================================================================

.. math::
    comp &= (t_0 + t_1 m)\, e^{H_{\min(g, 4)}}\, e^{h \log_2^+(g / 4)} \\
    C &= C_a\, 2 (K - 1) / K\, \phi, \quad z = C - \rho\, comp \\
    step &= comp\, e^{s \log_2 K} + (z + \sqrt{z^2 + (\epsilon C)^2}) / 2

with :math:`\log_2^+ x = \max(\log_2 x, 0)`. What four devices can show is not extrapolated
beyond four of a node: growth from there on has terms of its own, known by their priors alone until
a larger run is seen. The form follows the ring all-reduce (``collectives``) and the overlap of
``data_parallel``; the factors were found on the public measurements of Pollux and Sia
(``docs/scaling.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.tables import select

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """Measured or wanted runs of one cluster, as columns of one length.

    Attributes
    ----------
    nodes, per_node, workers : ndarray
        n, g (the fullest node's), K.
    batch : ndarray
        m, samples per device.
    """

    application: NDArray[np.int_]
    nodes: Array
    per_node: Array
    workers: Array
    batch: Array

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int_]) -> Placements:
        """Return the chosen rows."""
        return select(self, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTerms:
    """Log factors that all applications of a cluster share.

    Attributes
    ----------
    seconds_per_gb : float
        Log time of a GB of gradients between one device each of many nodes.
    intra, intra_doubling, intra_crossing : float
        phi on one node of two devices; per doubling up to four; per doubling beyond four, where
        rings cross sockets.
    two_nodes, node_doubling : float
        phi between exactly two nodes; per doubling of the nodes beyond two.
    several, several_doubling, crossing : float
        phi across nodes with two or more devices each; per doubling of these up to four; per
        doubling beyond four.
    unevenness : float
        phi per doubling of g n / K.
    contention_doubling : float
        h: compute, per doubling of the devices on a node beyond four.
    straggler_doubling : float
        s: compute, per doubling of K.
    """

    seconds_per_gb: float
    intra: float
    intra_doubling: float
    intra_crossing: float
    two_nodes: float
    node_doubling: float
    several: float
    several_doubling: float
    crossing: float
    unevenness: float
    contention_doubling: float
    straggler_doubling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationTerms:
    """What each application brings: arrays with one entry an application.

    Attributes
    ----------
    fixed_s, per_sample_s : ndarray
        log t0, log t1.
    contention_1, ..., contention_4 : ndarray
        H: log compute with so many devices on the node.
    gradients_gb : ndarray
        Log of the gradients' size; C_a = exp(gradients_gb + seconds_per_gb).
    intra : ndarray
        Added to the cluster's ``intra``.
    exponent : ndarray
        Power of the cluster's factors between nodes.
    overlap : ndarray
        Logit of rho.
    softness : ndarray
        Log of eps, at most 0.
    """

    fixed_s: Array
    per_sample_s: Array
    contention_1: Array
    contention_2: Array
    contention_3: Array
    contention_4: Array
    gradients_gb: Array
    intra: Array
    exponent: Array
    overlap: Array
    softness: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Columns of the law: compute, exchange and what of it shows [s]."""

    compute_s: Array
    communication_s: Array
    exposed_s: Array

    @property
    def step_s(self) -> Array:
        """Compute and exposed communication together."""
        return self.compute_s + self.exposed_s


def step_parts(
    cluster: ClusterTerms, applications: ApplicationTerms, placements: Placements
) -> StepParts:
    """Return compute, communication and exposed communication of every placement."""
    a, workers = placements.application, placements.workers
    compute = _compute_s(cluster, applications, placements)
    volume = np.exp(applications.gradients_gb[a] + cluster.seconds_per_gb)
    ring = volume * 2.0 * (workers - 1.0) / workers
    communication = ring * np.exp(_log_phi(cluster, applications, placements))
    hiding = compute / (1.0 + np.exp(-applications.overlap[a]))
    z = communication - hiding
    corner = np.exp(np.minimum(applications.softness[a], 0.0)) * communication
    return StepParts(
        compute_s=compute * np.exp(cluster.straggler_doubling * np.log2(workers)),
        communication_s=communication,
        exposed_s=(z + np.hypot(z, corner)) / 2.0,
    )


def _compute_s(
    cluster: ClusterTerms, applications: ApplicationTerms, placements: Placements
) -> Array:
    a = placements.application
    contention = np.stack([getattr(applications, f"contention_{k}") for k in (1, 2, 3, 4)])
    on_node = np.minimum(placements.per_node, 4.0).astype(int) - 1
    beyond = cluster.contention_doubling * _doublings_beyond_four(placements.per_node)
    alone = (
        np.exp(applications.fixed_s[a]) + np.exp(applications.per_sample_s[a]) * placements.batch
    )
    return np.asarray(alone * np.exp(contention[on_node, a] + beyond))


def _log_phi(
    cluster: ClusterTerms, applications: ApplicationTerms, placements: Placements
) -> Array:
    a, n, g = placements.application, placements.nodes, placements.per_node
    up_to_four, beyond = np.log2(np.minimum(g, 4.0)), _doublings_beyond_four(g)
    inside = (
        cluster.intra
        + applications.intra[a]
        + cluster.intra_doubling * (up_to_four - 1.0)
        + cluster.intra_crossing * beyond
    )
    between = (
        cluster.two_nodes * (n == 2)
        + cluster.node_doubling * np.log2(n / 2.0)
        + cluster.several * (g >= 2)
        + cluster.several_doubling * up_to_four
        + cluster.crossing * beyond
        + cluster.unevenness * np.log2(g * n / placements.workers)
    )
    return np.where(n == 1, inside, applications.exponent[a] * between)


def _doublings_beyond_four(per_node: Array) -> Array:
    return np.asarray(np.maximum(np.log2(per_node / 4.0), 0.0))
