"""The machines of the user's own cluster as columns that the estimate understands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from advisor.catalogue import Catalogue
from advisor.catalogue.assumed_networks import NOTHING_KNOWN_LOG_SD
from advisor.errors import UsageError
from advisor.machines import devices
from advisor.machines.cluster import ClusterGroup
from advisor.machines.fleet import Fleet, one_type


def own_fleet(
    group: ClusterGroup, catalogue: Catalogue, known: Fleet, *, per_node: int
) -> tuple[Fleet, int]:
    """Return machines and the row among them that is one of ``group``'s.

    A job gets ``per_node`` devices of each: the others are others' jobs', and so is their share
    of the machine's processors and of its memory. ``known`` are the catalogue's machines.

    Raises UsageError if there is no time model of the group's accelerator.
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
    machines = one_type(
        device,
        per_node=per_node,
        intra_bytes_per_s=node.intra.bytes_per_s,
        has_own_links=not node.intra.name.startswith("pcie"),
        network_bytes_per_s=node.network.bytes_per_s,
        is_rdma=bool(node.network.bypasses_kernel),
        vcpus=node.vcpus * share,
        core_speed=node.core_speed,
        host_memory_bytes=node.memory_bytes * share,
        domain_machines=node.domain_machines,
    )
    if not group.is_network_assumed:
        return machines
    return replace(
        machines,
        is_network_assumed=np.array([True]),
        network_log_sd=np.array([NOTHING_KNOWN_LOG_SD]),
    )
