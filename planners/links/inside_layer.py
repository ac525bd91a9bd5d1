"""Communication inside a layer: tensor (and sequence), context and expert parallel, as columns.

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
    busiest_rank,
    domain_devices,
    domain_network_bytes_per_s,
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
    return np.asarray(times * once * exposed)


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
