"""The machines of the user's own cluster as columns that the estimate understands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from advisor import devices
from advisor.catalogue import Catalogue
from advisor.clusters import ClusterGroup
from advisor.errors import UsageError
from advisor.predict.fleet import LATENCY_S, Fleet


def own_fleet(
    group: ClusterGroup, catalogue: Catalogue, known: Fleet, *, per_node: int
) -> tuple[Fleet, int]:
    """Return machines and the row among them that is one of ``group``'s.

    A job gets ``per_node`` devices of each: the others are others' jobs', and so is their share
    of the machine's processors and of its memory. ``known`` are the catalogue's machines.

    Raises
    ------
    UsageError
        If there is no time model of the group's accelerator.
    """
    if group.type_index is not None:
        share = per_node / known.per_node[group.type_index]
        return replace(
            known,
            per_node=np.full_like(known.per_node, per_node),
            vcpus=known.vcpus * share,
            host_memory_bytes=known.host_memory_bytes * share,
        ), group.type_index
    return _named_by_accelerator(group, catalogue, per_node), 0


def _named_by_accelerator(group: ClusterGroup, catalogue: Catalogue, per_node: int) -> Fleet:
    node, name = group.node, group.part.name
    row = catalogue.accelerators.get(name)
    device = devices.catalogue_device(row)
    if row is None or device is None:
        raise UsageError(
            f"there is no time model of {name}",
            hint="name an accelerator of `advisor catalogue list --gpus`",
        )
    share = per_node / node.devices
    link = "host" if node.intra.name.startswith("pcie") else "nvlink"
    # A network that bypasses the kernel is not assumed.
    return Fleet(
        devices=(device,),
        device=np.zeros(1, dtype=np.int64),
        per_node=np.array([per_node]),
        is_accelerated=np.ones(1, dtype=bool),
        is_supported=np.ones(1, dtype=bool),
        intra_bytes_per_s=np.array([node.intra.bytes_per_s if per_node > 1 else np.inf]),
        intra_latency_s=np.array([LATENCY_S[link]]),
        network_bytes_per_s=np.array([node.network.bytes_per_s]),
        network_latency_s=np.array([LATENCY_S["ethernet"]]),
        is_rdma=np.zeros(1, dtype=bool),
        vcpus=np.array([node.vcpus * share]),
        core_speed=np.array([np.nan if node.core_speed is None else node.core_speed]),
        host_memory_bytes=np.array([node.memory_bytes * share]),
    )
