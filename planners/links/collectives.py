r"""Time of the collectives that synchronise workers: alpha-beta with measured efficiency.

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
that form with one alpha; a network without RDMA stays under what one TCP stream carries, however
fast its interface (``docs/device_model.md``).

Everything broadcasts; one rank costs nothing.

Grouping machines so that slow links fall between groups (Zorse, step 1).

| here            | Zorse        | meaning                                                     |
|-----------------|--------------|-------------------------------------------------------------|
| ``weights``     | edge weights | symmetric, bandwidth between two vertices [bytes/s]         |
| ``minimum_cut`` | Stoer-Wagner | the cheapest way to fall into two parts                     |
| ``splits``      | SPLIT        | k parts: cut, k-1 times, the part that is cheapest to cut   |

A minimum k-cut is NP-hard for free k; SPLIT costs at most 2 - 2/k times the best cut (Saran and
Vazirani 1995). Minimum cut: Stoer and Wagner, "A simple min-cut algorithm" (J. ACM 1997).

Communication inside a layer: tensor (and sequence), context and expert parallel, as columns.

| here          | papers | meaning                                                              |
|---------------|--------|----------------------------------------------------------------------|
| ``tokens``    | T      | tokens of a micro-batch on one rank                                  |
| ``volume``    | 2Th    | activations of one layer boundary [bytes]                            |

Tensor parallel: 2 all-reduces forward, 2 backward, 2 more where the forward is recomputed;
sequence parallel splits each into a reduce-scatter and an all-gather of the same volume. Context
parallel passes keys and values round a ring behind the attention. Expert parallel sends each
token to its experts and back, 2 all-to-all forward and 2 backward. Sources: Shoeybi et al.
(Megatron-LM, 2019), Korthikanti et al. (2022), Liu et al. (Ring Attention, 2023), Lepikhin et
al. (GShard, 2020).

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

from advisor.planners.core import (
    Column,
    Floats,
    LayoutCase,
    Machines,
    activation_width,
    busiest_rank,
    bytes_per_s,
    domain_devices,
    domain_network_bytes_per_s,
    passed_layers_share,
    query_columns,
)

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
    stream_bytes_per_s: float  # what a ring reaches at most between nodes without RDMA [bytes/s]
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
    message_bytes: ArrayLike,
    ranks: ArrayLike,
    bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    *,
    efficiency: ArrayLike = 1.0,
) -> Array:
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
    message_bytes: ArrayLike,
    ranks: ArrayLike,
    bytes_per_s: ArrayLike,
    latency_s: ArrayLike = 0.0,
    *,
    efficiency: ArrayLike = 1.0,
) -> Array:
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

    ``has_rdma`` None means: by the interface's rate. Without RDMA a stream's limit holds.
    """
    nominal = np.asarray(bytes_per_s, float)
    bypasses = nominal >= parameters.rdma_from_bytes_per_s if has_rdma is None else has_rdma
    reached = parameters.network_efficiency * nominal
    return np.where(bypasses, reached, np.minimum(reached, parameters.stream_bytes_per_s))


def hierarchical_all_reduce_s(
    message_bytes: ArrayLike,
    devices_per_node: ArrayLike,
    nodes: ArrayLike,
    intra_bytes_per_s: ArrayLike,
    intra_latency_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike,
    parameters: CollectiveParameters,
    *,
    has_rdma: ArrayLike | None = None,
) -> Array:
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
    message_bytes: ArrayLike,
    devices_per_node: ArrayLike,
    nodes: ArrayLike,
    intra_bytes_per_s: ArrayLike,
    intra_latency_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike,
    parameters: CollectiveParameters,
    *,
    has_rdma: ArrayLike | None = None,
) -> Array:
    """Return the time of a reduce-scatter, or all-gather, over all devices of all nodes [s].

    The ring of `hierarchical_all_reduce_s`, one direction only.
    """
    m, g, n = (np.asarray(x, float) for x in (message_bytes, devices_per_node, nodes))
    links = (intra_bytes_per_s, intra_latency_s, network_bytes_per_s, network_latency_s)
    rate, alpha = _slowest_hop(g, n, *links, parameters, has_rdma)
    launch = np.where(g * n > 1, parameters.launch_s, 0.0)
    return reduce_scatter_s(m, g * n, rate, alpha) + launch


def hierarchical_broadcast_s(
    message_bytes: ArrayLike,
    devices_per_node: ArrayLike,
    nodes: ArrayLike,
    intra_bytes_per_s: ArrayLike,
    intra_latency_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike,
    parameters: CollectiveParameters,
    *,
    has_rdma: ArrayLike | None = None,
    is_pipelined: ArrayLike = True,
) -> Array:
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
    devices: Array,
    nodes: Array,
    intra_bytes_per_s: ArrayLike,
    intra_latency_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
    network_latency_s: ArrayLike,
    parameters: CollectiveParameters,
    has_rdma: ArrayLike | None,
) -> tuple[Array, Array]:
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


Part = tuple[int, ...]


def minimum_cut(weights: Floats) -> tuple[float, Part]:
    """Return the cheapest cut of a graph into two parts, and one of the parts.

    ``weights``: (n, n); the diagonal is ignored.

    Raises ValueError if there are fewer than two vertices or the weights are not symmetric.

    Returns
    -------
    weight : float
        Sum of the weights that are cut.
    part : tuple of int
        Vertices on the side that does not hold vertex 0.

    Examples
    --------
    >>> minimum_cut(np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0.0]]))
    (2.0, (2,))
    """
    w = np.array(weights, float)
    if w.shape[0] < 2 or w.shape != w.T.shape or not np.allclose(w, w.T):
        raise ValueError(f"weights must be symmetric over two or more vertices: {w.shape}")
    np.fill_diagonal(w, 0.0)
    merged: list[list[int]] = [[i] for i in range(w.shape[0])]
    alive = list(range(w.shape[0]))
    best = float("inf")
    part: Part = ()
    while len(alive) > 1:
        before_last, last, weight = _cut_of_the_phase(w, alive)
        if weight < best:
            best, part = weight, tuple(sorted(merged[last]))
        w[before_last] += w[last]
        w[:, before_last] += w[:, last]
        w[before_last, before_last] = 0.0
        merged[before_last] += merged[last]
        alive.remove(last)
    if 0 in part:
        part = tuple(i for i in range(w.shape[0]) if i not in part)
    return best, part


def _cut_of_the_phase(w: Floats, alive: list[int]) -> tuple[int, int, float]:
    """Return the last two vertices of a maximum-adjacency order and the last one's weight."""
    attached = np.full(w.shape[0], -np.inf)
    attached[alive] = w[alive[0], alive]
    attached[alive[0]] = -np.inf
    before_last, last, weight = alive[0], alive[0], 0.0
    for _ in range(len(alive) - 1):
        chosen = int(np.argmax(attached))
        before_last, last, weight = last, chosen, float(attached[chosen])
        attached += w[chosen]
        attached[chosen] = -np.inf
    return before_last, last, weight


def split_partitions(weights: Floats) -> list[list[Part]]:
    """Return the SPLIT partition into k parts for every k from 1 to the number of vertices.

    Parts are sorted by their first vertex; partition k+1 refines partition k.
    """
    vertices = np.asarray(weights).shape[0]
    parts: list[Part] = [tuple(range(vertices))]
    partitions = [list(parts)]
    cuts: dict[Part, tuple[float, Part]] = {}
    while len(parts) < vertices:
        for part in parts:
            if len(part) > 1 and part not in cuts:
                weight, inside = minimum_cut(np.asarray(weights)[np.ix_(part, part)])
                cuts[part] = weight, tuple(part[i] for i in inside)
        cheapest = min((p for p in parts if len(p) > 1), key=lambda p: (cuts[p][0], p))
        away = cuts[cheapest][1]
        rest = tuple(i for i in cheapest if i not in away)
        parts = sorted([p for p in parts if p != cheapest] + [away, rest])
        partitions.append(list(parts))
    return partitions


def link_bytes_per_s(machines: Machines, ranks: Column) -> Floats:
    """Return the bandwidth of a ring over ``ranks`` neighbouring devices, per device [bytes/s].

    Inside a node (or the nodes that one switch fabric joins) it is the device's link; beyond, the
    ring enters and leaves each node once and has all its network interfaces.
    """
    inside = np.asarray(ranks) <= domain_devices(machines)
    across = np.minimum(machines.intra_bytes_per_s, domain_network_bytes_per_s(machines))
    return np.where(inside, machines.intra_bytes_per_s, across)


def tensor_parallel_s(case: LayoutCase) -> Floats:
    """Return the exposed all-reduces of one layer and micro-batch, forward and backward [s]."""
    shapes, layouts = case.shapes, case.layouts
    software, parameters = case.software, case.parameters
    tp = np.asarray(layouts.tp, float)
    volume = 2 * layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    volume = volume * shapes.hidden * activation_width(case.machines.precision)
    bandwidth = parameters.tp_efficiency * link_bytes_per_s(case.machines, layouts.tp)
    once = 2 * (tp - 1) / tp * volume / bandwidth + parameters.tp_latency_s * np.log2(tp)
    exposed = np.where(np.asarray(software.overlaps_tp), parameters.tp_exposed, 1.0)
    passed = passed_layers_share(shapes, layouts)
    times = 2 + passed * (2 + 2 * (np.asarray(layouts.recompute) == 2))
    return np.asarray(times * once * exposed)


def context_parallel_s(case: LayoutCase) -> Floats:
    """Return the exposed exchange of keys and values of one layer and micro-batch [s]."""
    shapes, layouts = case.shapes, case.layouts
    machines, parameters = case.machines, case.parameters
    cp = np.asarray(layouts.cp, float)
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / cp
    kv = 2 * 2 * tokens * query_columns(shapes) * (np.asarray(shapes.kv_heads) / shapes.heads)
    bandwidth = link_bytes_per_s(machines, np.asarray(layouts.tp) * layouts.cp)
    # Forward passes keys and values, backward passes them again and their gradients back.
    times = 1 + 2 * passed_layers_share(shapes, layouts)
    sent = times * (cp - 1) * kv / layouts.tp / (parameters.tp_efficiency * bandwidth)
    return np.asarray(parameters.cp_exposed * sent)


def expert_parallel_s(case: LayoutCase) -> Floats:
    """Return the all-to-all exchanges of one layer and micro-batch, forward and backward [s]."""
    shapes, layouts = case.shapes, case.layouts
    machines, parameters = case.machines, case.parameters
    ep = np.asarray(layouts.ep, float)
    tokens = case.tokens
    volume = 2 * tokens * shapes.hidden * np.asarray(shapes.experts_per_token) / layouts.tp
    ranks = np.asarray(layouts.tp) * layouts.ep
    inside = ranks <= domain_devices(machines)
    share = np.asarray(machines.network_bytes_per_s) / machines.devices_per_node
    bandwidth = np.where(inside, machines.intra_bytes_per_s, share)
    passed = passed_layers_share(shapes, layouts)
    times = 2 + passed * (2 + 2 * (np.asarray(layouts.recompute) == 2))
    sent = times * (ep - 1) / ep * volume * busiest_rank(shapes, layouts) * shapes.routed_share
    return np.asarray(sent / (parameters.tp_efficiency * bandwidth))
