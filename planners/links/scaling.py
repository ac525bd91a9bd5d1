"""Fit the scaling law of one cluster: maximum a posteriori, with Laplace intervals and kriging.

=======  =============================================================
here     meaning
=======  =============================================================
theta    cluster terms, then each application's terms
J        Jacobian of the log step times, one row a measurement
Sigma    posterior covariance of theta, (J' W J + P)^{-1}
=======  =============================================================

Least squares on log step time with a soft-L1 loss and Gaussian priors. The residuals of an
application's own rows are kriged (a Gaussian process on batch and placement), since some
applications' step time is no smooth function of the batch (data loading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import select

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """Measured or wanted runs of one cluster, as columns of one length."""

    application: NDArray[np.int_]
    # nodes, per_node, workers: n, g (the fullest node's), K
    nodes: Array
    per_node: Array
    workers: Array
    batch: Array  # m, samples per device

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int_]) -> Placements:
        """Return the chosen rows."""
        return select(self, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTerms:
    """Log factors that all applications of a cluster share."""

    seconds_per_gb: float  # log time of a GB of gradients between one device each of many nodes
    # intra, intra_doubling, intra_crossing: phi on one node of two devices; per doubling up to
    # four; per doubling beyond four, where rings cross sockets
    intra: float
    intra_doubling: float
    intra_crossing: float
    # two_nodes, node_doubling: phi between exactly two nodes; per doubling of the nodes beyond two
    two_nodes: float
    node_doubling: float
    # several, several_doubling, crossing: phi across nodes with two or more devices each; per
    # doubling of these up to four; per doubling beyond four
    several: float
    several_doubling: float
    crossing: float
    unevenness: float  # phi per doubling of g n / K
    contention_doubling: float  # h: compute, per doubling of the devices on a node beyond four
    straggler_doubling: float  # s: compute, per doubling of K


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationTerms:
    """What each application brings: arrays with one entry an application.

    Attributes
    ----------
    contention_1, ..., contention_4 : ndarray
        H: log compute with so many devices on the node.
    """

    # fixed_s, per_sample_s: log t0, log t1
    fixed_s: Array
    per_sample_s: Array
    contention_1: Array
    contention_2: Array
    contention_3: Array
    contention_4: Array
    gradients_gb: Array  # log of the gradients' size; C_a = exp(gradients_gb + seconds_per_gb)
    intra: Array  # added to the cluster's ``intra``
    exponent: Array  # power of the cluster's factors between nodes
    overlap: Array
    softness: Array  # log of eps, at most 0


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
    r"""Return compute, communication and exposed communication of every placement.

    Where an application has run on a few devices, this law says what its step takes on more of
    them: the nominal links of ``data_parallel`` are replaced by the cluster's own factors, which
    all its applications share.

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
    beyond four of a node: growth from there on has terms of its own, known by their priors alone
    until a larger run is seen. The form follows the ring all-reduce (``collectives``) and the
    overlap of ``data_parallel``; the factors were found on the public measurements of Pollux and
    Sia (``docs/device_model.md``).
    """
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


CLUSTER = tuple(field.name for field in fields(ClusterTerms))
APPLICATION = tuple(field.name for field in fields(ApplicationTerms))

# Prior (mean, standard deviation) of each term. Log factors: 0.3 is a third more or less. The
# means that are not zero say that nothing gets cheaper with scale; their sizes: intra_crossing
# from single-node runs on 4 and 8 PCIe GPUs of another benchmark (device_model.md), crossing half
# of it, the rest orders of magnitude.
CLUSTER_PRIORS: Mapping[str, tuple[float, float]] = {
    "seconds_per_gb": (0.0, 3.0),
    "intra": (-0.5, 1.5),
    "intra_doubling": (0.0, 0.3),
    "intra_crossing": (0.3, 0.3),
    "two_nodes": (0.0, 0.5),
    "node_doubling": (0.1, 0.15),
    "several": (0.0, 0.5),
    "several_doubling": (0.0, 0.1),
    "crossing": (0.15, 0.15),
    "unevenness": (0.0, 0.3),
    "contention_doubling": (0.03, 0.05),
    "straggler_doubling": (0.015, 0.02),
}
APPLICATION_PRIORS: Mapping[str, tuple[float, float]] = {
    "contention_1": (0.0, 0.2),
    "contention_2": (0.0, 0.1),
    "contention_3": (0.0, 0.1),
    "contention_4": (0.0, 0.1),
    "intra": (0.0, 0.5),
    "exponent": (1.0, 0.2),
    "overlap": (0.0, 1.0),
    "softness": (-1.0, 1.5),
}
KNOWN_GRADIENTS_SD, UNKNOWN_SD = 0.3, 3.0
NOISE = 0.065  # of one row in log step time: placements of equal (n, g) differ by 3 to 7 %
CORNER = 2.0  # of the soft-L1 loss, in NOISE
MOST_EVALUATIONS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlacements:
    """Measured runs of one cluster: placements and their step times, one length.

    ``log_sd`` are their errors in log step time; ``NOISE`` each where they are not given.
    """

    placements: Placements
    step_s: Array
    log_sd: Array | None = None

    @property
    def noise(self) -> Array:
        """One standard deviation of the error of each ln(step)."""
        return np.full(self.step_s.shape, NOISE) if self.log_sd is None else self.log_sd


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """A fitted cluster; predicts step times of the applications it was fitted on."""

    theta: Array  # (terms,)
    covariance: Array  # (terms, terms)
    applications: int
    known: MeasuredPlacements  # the rows of the fit: their residuals are kriged

    def parts(self, placements: Placements) -> StepParts:
        """Return the law's columns, without kriging."""
        return step_parts(*_terms(self.theta, self.applications), placements)

    def predict(self, placements: Placements) -> tuple[Array, Array]:
        """Return step times [s] and the standard deviation of their logarithm."""
        log_step = np.log(self.parts(placements).step_s)
        residual = np.log(self.known.step_s) - np.log(self.parts(self.known.placements).step_s)
        correction, left = _krige(self.known, residual, placements)
        slope = _jacobian(self.theta, self.applications, placements)
        variance = np.einsum("ij,jk,ik->i", slope, self.covariance, slope)
        return np.exp(log_step + correction), np.sqrt(variance + left + NOISE**2)


def fit_cluster(known: MeasuredPlacements, gradient_bytes: Sequence[float | None]) -> ScalingFit:
    """Fit the law to the measured rows of one cluster.

    ``gradient_bytes``: where known, C_a is tied to it; None leaves it free [bytes].

    Raises ValueError if an application has no row or a step time is not positive.
    """
    from scipy.optimize import least_squares

    count = len(gradient_bytes)
    rows = np.bincount(known.placements.application, minlength=count)
    if rows.size != count or not rows.all() or not np.all(known.step_s > 0):
        raise ValueError(f"rows of each application: {rows.tolist()}; step times must be positive")
    mean, sd = _priors(known, gradient_bytes)
    # An application with many rows does not outvote the others; none counts for more than it has.
    weight = np.sqrt(np.minimum(1.0, rows.mean() / rows))[known.placements.application]
    weight = weight / known.noise
    target = np.log(known.step_s)

    def residual(theta: Array) -> Array:
        return np.asarray((_log_step(theta, count, known.placements) - target) * weight)

    def loss(theta: Array) -> Array:
        r = residual(theta)
        soft = np.sign(r) * CORNER * np.sqrt(2.0 * (np.sqrt(1.0 + (r / CORNER) ** 2) - 1.0))
        return np.asarray(np.concatenate([soft, (theta - mean) / sd]))

    def slope(theta: Array) -> Array:
        r = residual(theta)
        # d soft / d r; 1 at the corner's middle, where both are 0.
        root = np.sqrt(1.0 + (r / CORNER) ** 2)
        soft = CORNER * np.sqrt(2.0 * (root - 1.0))
        chain = np.divide(np.abs(r) / root, soft, out=np.ones_like(r), where=soft > 1e-9)
        data = _jacobian(theta, count, known.placements) * (weight * chain)[:, None]
        return np.asarray(np.concatenate([data, np.diag(1.0 / sd)]))

    found = least_squares(
        loss, mean, slope, x_scale=sd, max_nfev=MOST_EVALUATIONS, ftol=1e-8, xtol=1e-8
    )
    return ScalingFit(
        theta=found.x,
        covariance=np.linalg.inv(found.jac.T @ found.jac),
        applications=count,
        known=known,
    )


def cluster_terms(fit: ScalingFit) -> ClusterTerms:
    """Return the fitted terms of the cluster."""
    return _terms(fit.theta, fit.applications)[0]


def application_terms(fit: ScalingFit) -> ApplicationTerms:
    """Return the fitted terms of the applications."""
    return _terms(fit.theta, fit.applications)[1]


def _terms(theta: Array, applications: int) -> tuple[ClusterTerms, ApplicationTerms]:
    cluster = dict(zip(CLUSTER, theta[: len(CLUSTER)].tolist(), strict=True))
    own = theta[len(CLUSTER) :].reshape(applications, len(APPLICATION)).T
    return ClusterTerms(**cluster), ApplicationTerms(**dict(zip(APPLICATION, own, strict=True)))


def _log_step(theta: Array, applications: int, placements: Placements) -> Array:
    return np.asarray(np.log(step_parts(*_terms(theta, applications), placements).step_s))


def _jacobian(theta: Array, applications: int, placements: Placements) -> Array:
    """Forward differences; one term of all applications at once, since rows belong to one each."""
    step = 1e-6
    base = _log_step(theta, applications, placements)
    jacobian = np.zeros((base.size, theta.size))
    for i in range(len(CLUSTER)):
        moved = theta.copy()
        moved[i] += step
        jacobian[:, i] = (_log_step(moved, applications, placements) - base) / step
    rows = np.arange(base.size)
    for k in range(len(APPLICATION)):
        moved = theta.copy()
        moved[len(CLUSTER) + k :: len(APPLICATION)] += step
        own = len(CLUSTER) + placements.application * len(APPLICATION) + k
        jacobian[rows, own] = (_log_step(moved, applications, placements) - base) / step
    return jacobian


def _priors(
    known: MeasuredPlacements, gradient_bytes: Sequence[float | None]
) -> tuple[Array, Array]:
    """Means and standard deviations of theta; scales come from each application's median row."""
    table = [CLUSTER_PRIORS[name] for name in CLUSTER]
    for index, size in enumerate(gradient_bytes):
        own = known.placements.application == index
        typical, batch = np.median(known.step_s[own]), np.median(known.placements.batch[own])
        volume = np.log(0.3 * typical) if size is None else np.log(size / 1e9)
        particular = {
            "fixed_s": (float(np.log(0.3 * typical)), UNKNOWN_SD),
            "per_sample_s": (float(np.log(0.7 * typical / batch)), UNKNOWN_SD),
            "gradients_gb": (float(volume), UNKNOWN_SD if size is None else KNOWN_GRADIENTS_SD),
        }
        table += [(dict(APPLICATION_PRIORS) | particular)[name] for name in APPLICATION]
    mean, sd = np.array(table).T
    return mean, sd


def _krige(
    measured: MeasuredPlacements, residual: Array, wanted: Placements
) -> tuple[Array, Array]:
    """Return the mean and variance of the residual at ``wanted``, an application at a time."""
    known = measured.placements
    mean = np.zeros(wanted.batch.size)
    variance = np.full(wanted.batch.size, _KERNEL_VARIANCE)
    for index in np.unique(wanted.application):
        rows, own = wanted.application == index, known.application == index
        if not own.any():
            continue
        here = known.take(own)
        across = _kernel(wanted.take(rows), here)
        gram = _kernel(here, here) + np.diag(measured.noise[own] ** 2)
        solved = np.linalg.solve(gram, across.T)
        mean[rows] = residual[own] @ solved
        variance[rows] -= np.einsum("ij,ji->i", across, solved)
    return mean, np.maximum(variance, 0.0)


# Standard deviations of the residual that rows share: same batch; same batch and devices per node;
# same devices per node and both on one or on several nodes; neighbouring batches.
_SHARED = (0.10, 0.15, 0.05, 0.05)
_KERNEL_VARIANCE = sum(sd**2 for sd in _SHARED)


def _kernel(left: Placements, right: Placements) -> Array:
    def equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(a[:, None] == b[None, :])

    batch = equal(left.batch, right.batch)
    on_node = equal(np.minimum(left.per_node, 4.0), np.minimum(right.per_node, 4.0))
    reach = equal(left.nodes > 1, right.nodes > 1)
    distance = np.abs(np.log(left.batch)[:, None] - np.log(right.batch)[None, :])
    same_batch, same_both, same_place, near = (sd**2 for sd in _SHARED)
    return np.asarray(
        same_batch * batch
        + same_both * (batch & on_node)
        + same_place * (on_node & reach)
        + near * np.exp(-distance)
    )


def as_record(fit: ScalingFit) -> dict[str, float]:
    """Return the cluster's terms as a plain record, rounded for reading."""
    return {name: round(value, 4) for name, value in asdict(cluster_terms(fit)).items()}
