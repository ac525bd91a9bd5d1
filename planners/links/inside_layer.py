"""Communication inside a layer: tensor (and sequence), context and expert parallel, as columns.

| here          | papers | meaning                                                              |
|---------------|--------|----------------------------------------------------------------------|
| ``tokens``    | T      | tokens of a micro-batch on one rank                                  |
| ``volume``    | 2Th    | activations of one layer boundary [bytes]                            |

Tensor parallel: 2 all-reduces forward, 2 backward, 2 more where the forward is recomputed;
sequence parallel splits each into a reduce-scatter and an all-gather of the same volume. Context
parallel passes keys and values round a ring behind the attention. Expert parallel sends each
token to its experts and back, 2 exchanges forward and 2 backward. Sources: Shoeybi et al.
(Megatron-LM, 2019), Korthikanti et al. (2022), Liu et al. (Ring Attention, 2023), Lepikhin et
al. (GShard, 2020).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    Column,
    Floats,
    LayoutCase,
    Machines,
    activation_width,
    domain_devices,
    domain_network_bytes_per_s,
    expert_group,
    expert_tensor_ranks,
    passed_layers_share,
    query_columns,
)

# Cards that reach less of one another have no direct transfers: half of PCIe 4 and of 3.
_BY_HOST_BYTES_PER_S: Final = 15e9


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
    is_by_host, link = _by_host(case)
    once = 2 * (tp - 1) / tp * volume / (parameters.tp_efficiency * link)
    once = once + parameters.tp_latency_s * np.log2(tp)
    once = once + np.where(is_by_host, parameters.host_message_s, 0.0)
    exposed = np.where(np.asarray(software.overlaps_tp), parameters.tp_exposed, 1.0)
    passed = passed_layers_share(shapes, layouts)
    times = 2 + passed * (2 + 2 * (np.asarray(layouts.recompute) == 2))
    return np.asarray(times * once * exposed * (1 + _second(case)) / 2)


def _second(case: LayoutCase) -> Floats:
    """Return a layer's exchange around its second block, over that around attention.

    The ranks that share an expert's products gather all tokens that it meets, ``k`` times as many
    for a layer as a dense one has; ranks with experts of their own gather none (Megatron Core's
    ``expert_tensor_parallel_size`` 1). What every token meets beside its experts is as attention.
    """
    shapes, tp = case.shapes, np.asarray(case.layouts.tp, float)
    etp = expert_tensor_ranks(case.layouts)
    ring = (etp - 1) / etp * tp / np.maximum(tp - 1, 1.0)
    routed = shapes.routed_share * np.asarray(shapes.experts_per_token) * ring
    beside = np.where(np.asarray(shapes.dense_ffn) > 0, 1.0, 1.0 - shapes.routed_share)
    return np.where(np.asarray(shapes.experts) > 1, routed + beside, 1.0)


def _by_host(case: LayoutCase) -> tuple[NDArray[np.bool_], Floats]:
    """Return which tensor-parallel rings pass a host's memory, and every ring's rate [bytes/s].

    A lone copy waits until it is in that memory: half of what the host's link carries. Messages
    are cut into pieces, some of which come in while others go out; what that takes to fill is paid
    once a message (``host_message_s``).
    """
    machines, tp = case.machines, np.asarray(case.layouts.tp)
    link, lone = link_bytes_per_s(machines, tp), np.asarray(machines.intra_bytes_per_s, float)
    is_by_host = (tp > 1) & (tp <= domain_devices(machines)) & (lone < _BY_HOST_BYTES_PER_S)
    piped = np.maximum(np.minimum(2 * lone, machines.host_bytes_per_s), lone)
    return np.asarray(is_by_host), np.where(is_by_host, piped, link)


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
    """Return the exposed exchanges of one layer and micro-batch, forward and backward [s]."""
    shapes, layouts = case.shapes, case.layouts
    parameters, software = case.parameters, case.software
    inside, across = token_copies(case)
    volume = (
        2 * case.tokens * shapes.hidden / layouts.tp * activation_width(case.machines.precision)
    )
    joined = np.minimum(expert_group(layouts), domain_devices(case.machines))
    network = domain_network_bytes_per_s(case.machines) / joined
    passed = passed_layers_share(shapes, layouts)
    times = 2 + passed * (2 + 2 * (np.asarray(layouts.recompute) == 2))
    # Both links carry at once: what comes by the network goes on inside as it arrives.
    slower = np.maximum(inside / case.machines.intra_bytes_per_s, across / network)
    sent = times * volume * slower * case.busiest * shapes.routed_share
    # Two micro-batches side by side, one of which exchanges while the other computes: where
    # stages interleave (Megatron Core's ``overlap_moe_expert_parallel_comm``).
    hides = np.asarray(software.overlaps_ep, bool) & (np.asarray(layouts.virtual_stages) > 1)
    exposed = np.where(hides, parameters.tp_exposed, 1.0)
    return np.asarray(exposed * sent / parameters.ep_efficiency)


def token_copies(case: LayoutCase) -> tuple[Floats, Floats]:
    """Return how often a token is sent inside a node, and to other nodes, of the mean token.

    Every expert that it meets is anywhere in the group. Sent for each expert, ``k`` copies less
    those that stay. Sent once for each node that has any of them (DeepEP, HybridEP), and from
    there once to each rank that does: of ``n`` equal parts, ``n (1 - (1 - 1/n)^k)`` have any.
    A node is what one link joins: a rack of 72 where there are such.
    """
    k, ep = np.asarray(case.shapes.experts_per_token, float), np.asarray(case.layouts.ep, float)
    # Ranks that share an expert may lie on several nodes themselves.
    nodes = expert_group(case.layouts) / domain_devices(case.machines)
    nodes = np.minimum(np.maximum(nodes, 1.0), ep)
    local = 1 - 1 / np.maximum(ep / nodes, 1.0)
    near, far = k / nodes * local, k * (nodes - 1) / nodes
    once_near = ep * (1 - (1 - 1 / ep) ** k) * local
    once_far = (nodes - 1) * (1 - (1 - 1 / nodes) ** k)
    is_once = np.asarray(case.software.sends_once, bool)
    return np.where(is_once, once_near, near), np.where(is_once, once_far, far)
