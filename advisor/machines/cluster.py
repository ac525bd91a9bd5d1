"""A cluster as a user names it: groups of equal machines, with what they cost where known."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.machines.parts import AcceleratorPart
from advisor.planners.core.columns import Machines
from advisor.planners.core.nouns import Cluster, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroup:
    """Equal machines."""

    label: str
    node: Node
    part: AcceleratorPart
    count: int
    # of one machine; None where it was not bought from the catalogue [USD/h]
    price_usd_per_h: float | None = None
    # row of the catalogue's types; None where it was named by its accelerators
    type_index: int | None = None
    # it was named by its accelerators, without a network between machines
    is_network_assumed: bool = False

    @property
    def devices(self) -> int:
        """Accelerators of all machines together."""
        return self.node.devices * self.count

    def machines(self, precision: int = 0) -> Machines:
        """Return one kind of machine as (scalar) columns of the layout model."""
        host = self.node.host.bytes_per_s if self.node.host else self.part.host_bytes_per_s
        return Machines(
            flop_per_s=self.part.flop_per_s,
            memory_bytes_per_s=self.part.memory_bytes_per_s,
            memory_bytes=self.part.memory_bytes,
            intra_bytes_per_s=self.node.intra.bytes_per_s,
            network_bytes_per_s=self.node.network.bytes_per_s,
            devices_per_node=self.node.devices,
            domain_machines=self.node.domain_machines,
            host_bytes_per_s=host,
            host_memory_bytes=self.node.memory_bytes,
            generation=self.part.generation,
            precision=precision,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCluster:
    """Groups of machines that train one job together, and the region they were priced in."""

    groups: tuple[ClusterGroup, ...]
    region: str = ""

    @property
    def devices(self) -> int:
        """Accelerators in all groups together."""
        return sum(g.devices for g in self.groups)

    @property
    def is_mixed(self) -> bool:
        """More than one kind of machine."""
        return len(self.groups) > 1

    @property
    def price_usd_per_h(self) -> float | None:
        """Of all machines; None where one has no price [USD/h]."""
        prices = [g.price_usd_per_h for g in self.groups]
        if any(p is None for p in prices):
            return None
        return sum(p * g.count for p, g in zip(prices, self.groups, strict=True) if p is not None)

    def cluster(self) -> Cluster:
        """Return the planners' cluster: machines and links, no prices."""
        return Cluster(groups=tuple((g.node, g.count) for g in self.groups))
