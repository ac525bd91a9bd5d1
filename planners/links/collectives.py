"""Time of the collectives that synchronise workers: alpha-beta with measured efficiency.

=========================  ==========  =========================================================
here                       paper       meaning
=========================  ==========  =========================================================
``message_bytes``          m, S        bytes that every rank holds (all-reduce), or the whole
                                       vector that is scattered or gathered
``ranks``                  p, n        processes that take part
``bytes_per_s``            1 / beta    nominal bandwidth of the link, per direction [bytes/s]
``latency_s``              alpha       time of an empty message, with what the library adds [s]
``efficiency``             (none)      share of the nominal bandwidth that large messages reach
``launch_s``               (none)      one call: kernel launch and rendezvous of the ranks [s]
=========================  ==========  =========================================================

A ring moves ``m / p`` bytes in each of ``p - 1`` steps, so its efficiency falls with smaller
messages *and* with more ranks through one constant: bus bandwidth over nominal is
``e / (1 + p alpha e B / m)``. The published table from 16 MB to 16 GB on 16 to 1,024 GPUs follows
that form with one alpha. A network without RDMA stays under what NCCL's sockets reached on AWS at
50 Gbit/s, two threads with eight sockets each by its defaults there, however fast its interface
(``docs/device_model.md``).

Everything broadcasts; one rank costs nothing.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
   in MPICH," IJHPCA 19(1), 2005. Sections 4.1 (all-gather), 4.2 (broadcast), 4.4
   (reduce-scatter), 4.5 (all-reduce); alpha-beta cost model in section 3.
.. [2] P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan," Parallel Computing 35(12), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import bytes_per_s

Array = NDArray[np.float64]
# Interfaces of this rate on bypass the kernel: EFA and InfiniBand start here in the catalogue.
RDMA_FROM_BYTES_PER_S: Final = bytes_per_s(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveParameters:
    """Fitted constants of the collectives (``advisor train scaling``)."""

    launch_s: float
    # intra_step_s, network_step_s: added to the link's own latency in every step inside a node and
    # between nodes [s]
    intra_step_s: float
    network_step_s: float
    # intra_efficiency, network_efficiency: share of nominal bandwidth that large messages reach,
    # in (0, 1]
    intra_efficiency: float
    network_efficiency: float
    # what a ring reaches at most between nodes without RDMA, whatever sockets NCCL opens [bytes/s]
    stream_bytes_per_s: float
    # interfaces of at least this rate are taken to bypass the kernel (EFA, RoCE, InfiniBand)
    rdma_from_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (0 < self.intra_efficiency <= 1 and 0 < self.network_efficiency <= 1):
            raise ValueError(f"efficiencies must be in (0, 1]: {self}")
        if min(self.launch_s, self.intra_step_s, self.network_step_s) < 0:
            raise ValueError(f"times must not be negative: {self}")
        if not self.stream_bytes_per_s > 0:
            raise ValueError(f"a stream must carry something: {self}")


def reduce_scatter_s(
    message_bytes: ArrayLike, ranks: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0,
    *, efficiency: ArrayLike = 1.0,
) -> Array:  # fmt: skip
    r"""Return the time of a ring reduce-scatter of ``message_bytes`` over ``ranks`` [s].

    A ring all-gather is the same run backwards ([1]_, 4.1).

    .. math:: (p - 1) (\alpha + m / (p\, e\, B)) \quad [1]_, \text{4.4}

    Raises ValueError if there is no rank, a size is negative, or a rate not positive.

    Examples
    --------
    >>> float(reduce_scatter_s(4e9, 4, 1e9))
    3.0
    """
    m, p, rate = _checked(message_bytes, ranks, bytes_per_s, efficiency)
    return np.asarray((p - 1.0) * (np.asarray(latency_s, float) + m / (p * rate)))


def ring_all_reduce_s(
    message_bytes: ArrayLike, ranks: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0,
    *, efficiency: ArrayLike = 1.0,
) -> Array:  # fmt: skip
    r"""Return the time of a ring all-reduce: reduce-scatter, then all-gather [s].

    .. math:: 2 (p - 1) (\alpha + m / (p\, e\, B)) \quad [1]_, \text{4.5}

    Examples
    --------
    >>> float(ring_all_reduce_s(1e9, 2, 1e9, 0.5))
    2.0
    """
    return 2.0 * reduce_scatter_s(
        message_bytes, ranks, bytes_per_s, latency_s, efficiency=efficiency
    )


def tree_all_reduce_s(
    message_bytes: ArrayLike, ranks: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike = 0.0
) -> Array:
    r"""Return the time of a pipelined two-tree all-reduce: reduce up, broadcast down [s].

    .. math:: 2 \left(\sqrt{m / B} + \sqrt{\lceil\log_2 p\rceil \alpha}\right)^2

    Each direction sends ``m`` in k blocks through ``ceil(log2 p)`` levels, ``(k + levels) (alpha +
    m / (k B))`` ([2]_, section 3); the best k gives the square. Better than the ring for small
    messages on many ranks.
    """
    m, p, rate = _checked(message_bytes, ranks, bytes_per_s, 1.0)
    levels = np.ceil(np.log2(p))
    one_way = np.square(np.sqrt(m / rate) + np.sqrt(levels * np.asarray(latency_s, float)))
    return np.asarray(np.where(p > 1.0, 2.0 * one_way, 0.0))


def network_rate(
    bytes_per_s: ArrayLike, parameters: CollectiveParameters, *, has_rdma: ArrayLike | None = None
) -> Array:
    """Return the bandwidth that large collectives reach over a node's interface [bytes/s].

    ``has_rdma`` None means: by the interface's rate. Without RDMA the limit of its streams holds;
    a share between 0 and 1, how sure it is, lies between the two by their logarithms.
    """
    nominal = np.asarray(bytes_per_s, float)
    bypasses = nominal >= parameters.rdma_from_bytes_per_s if has_rdma is None else has_rdma
    reached = parameters.network_efficiency * nominal
    return between_transports(reached, parameters.stream_bytes_per_s, bypasses)


def between_transports(
    reached_bytes_per_s: ArrayLike, stream_bytes_per_s: float, has_rdma: ArrayLike
) -> Array:
    """Return the rate of a transport that is so surely RDMA; at 0 and 1 exactly either's."""
    share, rate = np.asarray(has_rdma, float), np.asarray(reached_bytes_per_s, float)
    return np.asarray(rate**share * np.minimum(rate, stream_bytes_per_s) ** (1.0 - share))


def hierarchical_all_reduce_s(
    message_bytes: ArrayLike, devices_per_node: ArrayLike, nodes: ArrayLike,
    intra_bytes_per_s: ArrayLike, intra_latency_s: ArrayLike, network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike, parameters: CollectiveParameters, *,
    has_rdma: ArrayLike | None = None,
) -> Array:  # fmt: skip
    """Return the time of an all-reduce over all devices of all nodes [s].

    The better of two schedules. One ring through all devices: its slowest hop rules every step,
    and it enters and leaves each node once, so the node's whole interface serves it. Or two
    levels, a tree between the nodes: fewer steps, for small messages on many nodes; each device
    then has its share of the interface. On one node this is the flat ring.

    ``message_bytes``: gradient bytes that every device holds; ``intra_bytes_per_s``,
    ``network_bytes_per_s``: nominal bandwidth between two devices of a node, and of a node's
    network interface; ``has_rdma``: none means: by the interface's rate.

    Returns
    -------
    ndarray of the broadcast shape
        0 where there is one device.
    """
    m, g, n = (np.asarray(x, float) for x in (message_bytes, devices_per_node, nodes))
    links = (intra_bytes_per_s, intra_latency_s, network_bytes_per_s, network_latency_s)
    rate, alpha = _slowest_hop(g, n, *links, parameters, has_rdma)
    ring = ring_all_reduce_s(m, g * n, rate, alpha)
    inside_s = parameters.intra_step_s + np.asarray(intra_latency_s, float)
    inside = ring_all_reduce_s(
        m, g, intra_bytes_per_s, inside_s, efficiency=parameters.intra_efficiency
    )
    share = network_rate(network_bytes_per_s, parameters, has_rdma=has_rdma) / g
    # Chunks pass through both levels one after another: the slower one counts.
    tree = np.maximum(inside, tree_all_reduce_s(m / g, n, share, alpha)) + 2.0 * (g - 1) * inside_s
    better = np.where(n > 1, np.minimum(ring, tree), ring)
    return np.asarray(better + np.where(g * n > 1, parameters.launch_s, 0.0))


def hierarchical_reduce_scatter_s(
    message_bytes: ArrayLike, devices_per_node: ArrayLike, nodes: ArrayLike,
    intra_bytes_per_s: ArrayLike, intra_latency_s: ArrayLike, network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike, parameters: CollectiveParameters, *,
    has_rdma: ArrayLike | None = None,
) -> Array:  # fmt: skip
    """Return the time of a reduce-scatter, or all-gather, over all devices of all nodes [s].

    The ring of `hierarchical_all_reduce_s`, one direction only.
    """
    m, g, n = (np.asarray(x, float) for x in (message_bytes, devices_per_node, nodes))
    links = (intra_bytes_per_s, intra_latency_s, network_bytes_per_s, network_latency_s)
    rate, alpha = _slowest_hop(g, n, *links, parameters, has_rdma)
    launch = np.where(g * n > 1, parameters.launch_s, 0.0)
    return reduce_scatter_s(m, g * n, rate, alpha) + launch


def hierarchical_broadcast_s(
    message_bytes: ArrayLike, devices_per_node: ArrayLike, nodes: ArrayLike,
    intra_bytes_per_s: ArrayLike, intra_latency_s: ArrayLike, network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike, parameters: CollectiveParameters, *,
    has_rdma: ArrayLike | None = None, is_pipelined: ArrayLike = True,
) -> Array:  # fmt: skip
    r"""Return the time until all devices have what one of them had; 0 where that is nothing [s].

    .. math:: \lceil \log_2 p \rceil (\alpha + m / B), \quad
              \lceil \log_2 p \rceil\, \alpha + m / B \text{ if pipelined} \quad [1]_, \text{4.2}

    The binomial tree, whose root sends everything so many times, is gloo's; NCCL passes pieces on
    along a chain while others come in.
    """
    m, g, n = (np.asarray(x, float) for x in (message_bytes, devices_per_node, nodes))
    links = (intra_bytes_per_s, intra_latency_s, network_bytes_per_s, network_latency_s)
    rate, alpha = _slowest_hop(g, n, *links, parameters, has_rdma)
    rounds = np.ceil(np.log2(g * n))
    sends = np.where(is_pipelined, np.minimum(rounds, 1.0), rounds)
    took = rounds * alpha + sends * m / rate + np.where(rounds > 0, parameters.launch_s, 0.0)
    return np.asarray(np.where(m > 0, took, 0.0))


def _slowest_hop(
    devices: Array, nodes: Array, intra_bytes_per_s: ArrayLike, intra_latency_s: ArrayLike,
    network_bytes_per_s: ArrayLike, network_latency_s: ArrayLike, parameters: CollectiveParameters,
    has_rdma: ArrayLike | None,
) -> tuple[Array, Array]:  # fmt: skip
    """Bandwidth [bytes/s] and latency [s] of the slowest hop of a ring through all devices."""
    intra = np.asarray(intra_bytes_per_s, float) * parameters.intra_efficiency
    network = network_rate(network_bytes_per_s, parameters, has_rdma=has_rdma)
    between = np.where(devices > 1, np.minimum(intra, network), network)
    alpha = np.where(
        nodes > 1,
        np.asarray(network_latency_s, float) + parameters.network_step_s,
        np.asarray(intra_latency_s, float) + parameters.intra_step_s,
    )
    return np.where(nodes > 1, between, intra), alpha


def _checked(
    message_bytes: ArrayLike, ranks: ArrayLike, bytes_per_s: ArrayLike, efficiency: ArrayLike
) -> tuple[Array, Array, Array]:
    m, p = np.asarray(message_bytes, float), np.asarray(ranks, float)
    rate = np.asarray(bytes_per_s, float) * np.asarray(efficiency, float)
    if not (np.all(p >= 1) and np.all(m >= 0) and np.all(rate > 0)):
        raise ValueError(
            f"need ranks >= 1, bytes >= 0 and rates > 0, got at worst {p.min()}, {m.min()}, "
            f"{rate.min()}"
        )
    return m, p, rate
