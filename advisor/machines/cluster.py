"""A cluster as a user names it: groups of equal machines, with what they cost where known.

``parse_cluster`` tells how a text is written, ``read_cluster`` what a file has.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.catalogue import (
    GBIT_BYTES,
    Accelerator,
    AssumedNetwork,
    Catalogue,
    KnownNetworks,
    OfferFilter,
    TableRow,
    link_between,
)
from advisor.collectors import bounded
from advisor.errors import AdvisorError, CatalogueError, UsageError
from advisor.planners.core import GIB, Device, Link, Machines, Node, bytes_per_s
from advisor.planners.links import RDMA_FROM_BYTES_PER_S
from advisor.quantities import parse_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGroup:
    """Equal machines."""

    label: str
    node: Node
    part: Accelerator
    count: int
    # of one machine; None where it was not bought from the catalogue [USD/h]
    price_usd_per_h: float | None = None
    region: str = ""  # that the cluster was priced in
    # row of the catalogue's types; None where it was named by its accelerators
    type_index: int | None = None
    # what its network is taken to be where it was named by its accelerators alone; None where it
    # is stated, or that of its type
    assumed_network: AssumedNetwork | None = None

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
            generation=self.part.kernels,
            precision=precision,
            elementwise_flop_per_s=self.part.elementwise_flop_per_s,
        )


Cluster = tuple[ClusterGroup, ...]  # that trains one job; several groups are a mixed one


_HINT: Final = (
    'write e.g. "2x a2-highgpu-8g + 4x g2-standard-48" or "8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps"'
)
_GPUS: Final = re.compile(
    r"""(?:(?P<nodes>\d{1,9})\s*x\s*)?(?P<gpus>\d{1,9})\s*x\s*(?P<name>[A-Za-z][\w. -]*?)
    (?::(?P<link>(?!(?:rdma|tcp)\b)[A-Za-z]\w*))?(?::(?P<watts>\d+(\.\d+)?)\s*W)?
    (?::(?P<before>rdma|tcp))?(?:@(?P<rate>[^@:]+))?(?::(?P<after>rdma|tcp))?$""",
    re.VERBOSE | re.IGNORECASE,
)
_TYPES: Final = re.compile(r"(?:(?P<count>\d{1,9})\s*x\s*)?(?P<name>[A-Za-z][\w.-]*)$")
_MOST_PER_NODE: Final = 16
# GB200 and GB300 NVL72: 18 trays, machines of their own with four devices each.
_PER_TRAY: Final = 4
_MOST_NODES: Final = 100_000
_LONGEST_TEXT: Final = 20_000
# Host memory of a machine that is only named by its accelerators: twice theirs, the cloud habit.
_HOST_PER_DEVICE_MEMORY: Final = 2.0
# One message over the network: TCP in the order of magnitude; NCCL inside a machine.
_NETWORK_LATENCY_S: Final = 48e-6
_RDMA_LATENCY_S: Final = 15e-6
_INTRA_LATENCY_S: Final = 10e-6
# What a card's user may have measured of its nominal rate: of an Ethernet frame of 1,538 bytes on
# the wire, preamble and gap among them, 1,448 are TCP's payload. No rate in the catalogue lies
# between 85 Gbit/s, which is sold without RDMA, and 100.
_MEASURED_SHARE: Final = 1448 / 1538
# Where nobody says how a network is used: RDMA cards (RoCE) start here, and are ever more usual up
# to the rate that all have it.
_RDMA_POSSIBLE_FROM: Final = bytes_per_s(10)


def read_cluster(text: str, catalogue: Catalogue) -> Cluster:
    """Read a cluster from its text, or from the file that the text names.

    A file (``.json`` or ``.toml``) has a list ``groups`` of tables with ``instance_type`` and
    ``count``, or ``gpu``, ``gpus_per_node``, ``nodes``, ``link``, ``power_limit_w``,
    ``network_gbps`` and ``transport``.

    Raises UsageError if it cannot be read. Raises CatalogueError if an instance type or
    accelerator is unknown.
    """
    path = Path(text)
    if path.suffix not in (".json", ".toml"):
        return parse_cluster(text, catalogue)
    try:
        read = bounded.read_toml if path.suffix == ".toml" else bounded.read_json
        record: Any = read(path)
        groups = record["groups"] if isinstance(record, dict) else record
        words = [_words(group) for group in groups]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot read the cluster in {path}: {error}",
            hint="needed: a list `groups` of tables with instance_type, or gpu and gpus_per_node",
        ) from error
    return parse_cluster("+".join(words), catalogue)


def _words(group: Any) -> str:
    if not isinstance(group, dict):
        raise ValueError(f"{str(group)[:40]!r} is not a table")  # noqa: TRY004
    if "instance_type" in group:
        return f"{int(group.get('count', 1))}x{group['instance_type']}"
    link = f":{group['link']}" if "link" in group else ""
    transport = f":{group['transport']}" if "transport" in group else ""
    power = f":{float(group['power_limit_w']):g}W" if "power_limit_w" in group else ""
    rate = f"@{group['network_gbps']}Gbps" if "network_gbps" in group else ""
    count = f"{int(group.get('nodes', 1))}x{int(group['gpus_per_node'])}"
    return f"{count}x{group['gpu']}{link}{power}{rate}{transport}"


def parse_cluster(text: str, catalogue: Catalogue) -> Cluster:
    """Parse what stands after ``--cluster``.

    ``"2x a2-highgpu-8g + 4x g2-standard-48"`` names instance types of the catalogue;
    ``"8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps"`` names accelerators: ``[MACHINES x] GPUS x NAME``,
    the link inside a machine after a colon (``nvlink`` or ``pcie``; the card's own otherwise) and
    its power limit after another (``:500W``, as ``nvidia-smi`` says it), and the machine's network
    after an at sign (otherwise that of machines that are rented with these accelerators), and
    whether it bypasses the kernel (``@25Gbps:rdma``: InfiniBand, RoCE and EFA do) or not
    (``:tcp``). Where that is not said, it does from 100 Gbps on, as sold or as measured of such a
    card, does not up to 10, and is taken between the two in between. More than eight GPUs without
    a number of machines are in as many as hold them (``machines_filled``). ``72xGB200`` is a rack:
    18 machines of four whose NVLink joins all 72, each with that network. Groups are joined by
    ``+`` or a comma, and the two forms may be mixed.

    Raises UsageError if the text is no such expression or a count makes no sense. Raises
    CatalogueError if an instance type or accelerator is unknown.
    """
    items = [item.strip() for item in re.split(r"[+,]", text[: _LONGEST_TEXT + 1])]
    if len(text) > _LONGEST_TEXT:
        raise UsageError(f"a cluster of {len(text):,} letters", hint=_HINT)
    if not all(items):
        raise UsageError(f"cannot read the cluster {text!r}", hint=_HINT)
    groups = _merged([_group(item, catalogue) for item in items])
    wanted = {group.type_index for group in groups if group.type_index is not None}
    prices, region = _prices(wanted, catalogue)
    return tuple(
        replace(group, region=region, price_usd_per_h=prices.get(group.type_index))
        for group in groups
    )


def one_group(text: str, catalogue: Catalogue) -> ClusterGroup:
    """Parse a cluster of equal machines.

    Raises UsageError if the text cannot be read or names unlike machines. Raises CatalogueError if
    an instance type or accelerator is unknown.
    """
    groups = read_cluster(text, catalogue)
    if len(groups) > 1:
        raise UsageError(f"different machines in {text!r}", hint="name machines of one kind")
    return groups[0]


def _merged(groups: Iterable[ClusterGroup]) -> list[ClusterGroup]:
    """Join groups of the same machine: named twice is the sum, not a mixed cluster."""
    found: dict[Node, ClusterGroup] = {}
    for group in groups:
        known = found.get(group.node)
        found[group.node] = replace(group, count=group.count + (known.count if known else 0))
    labels = [group.label for group in found.values()]
    return [
        group if labels.count(group.label) == 1 else _told_apart(group) for group in found.values()
    ]


def _told_apart(group: ClusterGroup) -> ClusterGroup:
    """Return a group called by its links, too, as another has the same accelerators."""
    link, network = group.node.intra.name, group.node.network
    rate = network.bytes_per_s / GBIT_BYTES
    return replace(group, label=f"{group.label}:{link}@{rate:g}Gbps")


def _group(item: str, catalogue: Catalogue) -> ClusterGroup:
    named = _TYPES.match(item)
    unknown: AdvisorError | None = None
    # Some providers call their machines by the accelerator: "8xA100" still means the card.
    if named and not _is_gpu(named["name"], catalogue):
        try:
            found = catalogue.instance_type(named["name"])
        except CatalogueError as error:
            unknown = error
        else:
            return group_of_type(found, _count(named["count"] or "1", item), catalogue)
    explicit = _GPUS.match(item)
    if explicit:
        try:
            return _of_gpus(explicit, item, catalogue)
        except UsageError as error:
            if unknown is None or "out of range" in str(error):
                raise
            raise CatalogueError(
                f"neither an instance type nor an accelerator is called {named['name']!r}"
                if named
                else str(error),
                hint=f"{unknown.hint}; {error.hint}",
            ) from error
    if unknown is not None:
        raise unknown
    raise UsageError(f"cannot read {item!r} in the cluster", hint=_HINT)


def _is_gpu(name: str, catalogue: Catalogue) -> bool:
    try:
        return bool(catalogue.matching_gpus(name))
    except UsageError:
        return False


def _count(digits: str, item: str) -> int:
    count = int(digits)
    if not 1 <= count <= _MOST_NODES:
        raise UsageError(f"the number of machines in {item!r} is out of range", hint=_HINT)
    return count


def group_of_type(found: TableRow, count: int, catalogue: Catalogue) -> ClusterGroup:
    """Return machines of a type of the catalogue, without a price.

    Raises CatalogueError if the type has no whole accelerator.
    """
    row = catalogue.accelerators.get(found.accelerator)
    devices = int(found.accelerator_count)
    if row is None or devices < 1:
        raise CatalogueError(
            f"{found.name} has no whole accelerator",
            hint="the planner lays out on accelerators; see: advisor catalogue list --gpus L4",
        )
    link, host, rate = (
        found.intra_node_link, found.host_device_bytes_per_s, found.network_bytes_per_s,
    )  # fmt: skip
    is_rdma, card = found.rdma_share == 1.0, row.laid_out()
    if rate is None:
        peers = KnownNetworks(catalogue.types, catalogue.accelerators)
        assumed = peers.network(card.name, found.accelerator_count, found.vcpus or -1.0)
        rate, is_rdma = assumed.bytes_per_s, is_rdma or assumed.is_rdma
    measured = found.intra_node_bytes_per_s
    return _machines(
        found.name, card, count, devices, link or card.link_name,
        measured or link_between(row, link, host_bytes_per_s=host)[0],
        _network_link(rate, float(is_rdma)),
        host_bytes_per_s=host,
        vcpus=int(found.vcpus or 1),
        core_speed=found.core_speed,
        memory_bytes=found.memory_bytes,
        domain_machines=card.domain_machines(devices),
        type_index=found.index,
    )  # fmt: skip


# Accelerators of a usual machine: also what is taken for those that nobody rents, since a server
# has slots for eight full-length cards.
_USUAL_IN_ONE: Final = 8


def machines_filled(count: int, name: str, catalogue: Catalogue) -> tuple[int, int]:
    """Return in how many machines ``count`` accelerators are of which no more is said.

    Returns
    -------
    machines, each : int
        As of ``whole_machines``; what fills no machines is in equal parts of some.
    """
    rented = catalogue.types.accelerator_count[catalogue.types.accelerator == name]
    sizes = rented.tolist() or range(1, _USUAL_IN_ONE + 1)
    return whole_machines(count, name, sizes, in_part=True)


def whole_machines(
    count: int, name: str, sizes: Iterable[float], *, in_part: bool = False
) -> tuple[int, int]:
    """Return into how many machines of the sizes that exist so many accelerators go, and how.

    One, up to what the largest holds; else as few of one size as they fill, of eight rather than
    of more. No more than twice as many as would hold them: nobody who says 17 means 17 machines.

    ``in_part``: use an equal part of each where they fill none; False by default.

    Raises UsageError, with the nearest numbers that go, if there are none.

    Examples
    --------
    >>> [whole_machines(n, "H100", (1, 2, 4, 8), in_part=True) for n in (6, 16, 12, 10)]
    [(1, 6), (2, 8), (3, 4), (2, 5)]
    """
    whole = [int(size) for size in sizes if size >= 1 and size % 1 == 0] or [1]
    most, usual = max(whole), [size for size in whole if size <= _USUAL_IN_ONE]

    def held(number: int) -> int:
        """Return the accelerators of each machine; 0 where there are no such machines."""
        if number <= most:
            return number
        for among in (usual, whole, range(1, most + 1) if in_part else ()):
            each = max((size for size in among if number % size == 0), default=0)
            if each and number // each <= 2 * math.ceil(number / most):
                return each
        return 0

    each = held(count)
    if not each:
        below, above = (
            next(n for n in itertools.count(count + step, step) if held(n)) for step in (-1, 1)
        )
        raise UsageError(
            f"{count} x {name} fill no equal machines: one holds {most} at most",
            hint=f"ask for {below} or {above}, or name the machines: advisor plan --cluster "
            f"'{count // most}x{most}x{name} + 1x{count % most}x{name}'",
        )
    return count // each, each


def _of_gpus(words: re.Match[str], item: str, catalogue: Catalogue) -> ClusterGroup:
    gpus, nodes = int(words["gpus"]), _count(words["nodes"] or "1", item)
    known = catalogue.accelerators[one_gpu(words["name"], catalogue)].laid_out()
    limit = "" if words["watts"] is None else f":{float(words['watts']):g}W"
    if words["watts"] is not None:
        known = known.limited(float(words["watts"]))
    domain = known.domain_machines(max(gpus, 1))
    if known.link_devices and gpus > _PER_TRAY and gpus % _PER_TRAY == 0:
        # A rack, or a part of one: its switches join that many devices and no more.
        domain = min(gpus, known.link_devices) // _PER_TRAY
        gpus, nodes = _PER_TRAY, nodes * (gpus // _PER_TRAY)
    if words["nodes"] is None and gpus > _USUAL_IN_ONE:
        nodes, gpus = machines_filled(gpus, known.name, catalogue)
    if not 1 <= gpus <= _MOST_PER_NODE:
        raise UsageError(
            f"a machine cannot have {gpus} accelerators",
            hint=f"write MACHINESxGPUSxNAME, e.g. {max(gpus // 8, 1)}x8x{words['name']}",
        )
    link = (words["link"] or known.link_name).lower()
    if link == "pcie":
        intra, _ = link_between(known, link)
    elif link.startswith(("nvlink", "nvswitch", "xgmi", "infinity")):
        if known.link_name == "pcie":
            raise UsageError(f"{known.name} has no {link}", hint="leave the link out, or say pcie")
        intra = known.peer_bytes_per_s
    else:
        raise UsageError(f"unknown link {link!r} in {item!r}", hint="say nvlink or pcie")
    assumed, said = None, (words["before"] or words["after"] or "").lower()
    if words["rate"] is None:
        assumed = KnownNetworks(catalogue.types, catalogue.accelerators).network(known.name, gpus)
        if said:
            assumed = replace(assumed, is_rdma=said == "rdma")
        network = _network_link(assumed.bytes_per_s, float(assumed.is_rdma))
    else:
        rate = _network(words["rate"])
        network = _network_link(rate, float(said == "rdma") if said else _usual_rdma_share(rate))
    return _machines(
        f"{gpus}x{known.name}{limit}", known, nodes, gpus, link, intra, network,
        vcpus=12 * gpus, domain_machines=domain, assumed_network=assumed,
    )  # fmt: skip


def _usual_rdma_share(rate: float) -> float:
    """Return how surely a network of which only the rate [bytes/s] is said has RDMA."""
    surely = _MEASURED_SHARE * RDMA_FROM_BYTES_PER_S
    share = math.log(rate / _RDMA_POSSIBLE_FROM) / math.log(surely / _RDMA_POSSIBLE_FROM)
    return min(max(share, 0.0), 1.0)


def network_latency_s(rdma_share: ArrayLike) -> NDArray[np.float64]:
    """Return the latency of networks by how surely they have RDMA, geometric between the two."""
    share = np.asarray(rdma_share, float)
    return np.asarray(_RDMA_LATENCY_S**share * _NETWORK_LATENCY_S ** (1.0 - share))


def _network_link(rate: float, rdma_share: float) -> Link:
    return Link(
        name="network",
        bytes_per_s=rate,
        latency_s=float(network_latency_s(rdma_share)),
        rdma_share=rdma_share,
    )


def _network(text: str) -> float:
    """Return the network of a machine, in bits unless bytes are written. [bytes/s]."""
    word = text.strip()
    rate = parse_rate(re.sub(r"b/s$", "bps", word), option="the network in --cluster")
    if rate <= 0:
        raise UsageError(f"a network rate of {word} is out of range", hint=_HINT)
    return rate


def one_gpu(name: str, catalogue: Catalogue) -> str:
    """Return the one accelerator meant; of several of one family and memory, the SXM form."""
    family, _, memory = name.strip().partition("-")
    try:
        return catalogue.canonical_gpu(name)
    except UsageError as error:
        try:
            kin = sorted(catalogue.matching_gpus(family))
        except UsageError:
            raise error from None
        fitting = [k for k in kin if not memory or k.upper().endswith("-" + memory.upper())]
        if len(fitting) != 1:
            fitting = [k for k in fitting if "SXM" in k] or fitting
        if len(fitting) == 1:
            return fitting[0]
        raise UsageError(
            f"{name!r} may be any of {', '.join(fitting or kin)}", hint="name one of them"
        ) from None


def _machines(
    label: str, card: Accelerator, count: int, devices: int, link: str, intra_bytes_per_s: float,
    network: Link, *, vcpus: int, domain_machines: int, host_bytes_per_s: float | None = None,
    core_speed: float | None = None, memory_bytes: float | None = None,
    type_index: int | None = None, assumed_network: AssumedNetwork | None = None,
) -> ClusterGroup:  # fmt: skip
    """Return equal machines; what is not said of their hosts is the usual."""
    device = Device(
        name=card.name,
        kind="gpu",
        memory_bytes=card.memory_bytes,
        memory_bytes_per_s=card.memory_bytes_per_s,
        sustained_fp16_flop_per_s=card.flop_per_s,
    )
    usual_bytes = max(_HOST_PER_DEVICE_MEMORY * devices * card.memory_bytes, 64 * GIB)
    node = Node(
        name=label,
        device=device,
        devices=devices,
        intra=Link(name=link, bytes_per_s=intra_bytes_per_s, latency_s=_INTRA_LATENCY_S),
        network=network,
        host=Link(name="pcie", bytes_per_s=host_bytes_per_s or card.host_bytes_per_s),
        vcpus=vcpus,
        core_speed=core_speed,
        memory_bytes=memory_bytes or usual_bytes,
        domain_machines=domain_machines,
    )
    return ClusterGroup(
        label=label, node=node, part=card, count=count, type_index=type_index,
        assumed_network=assumed_network,
    )  # fmt: skip


def _prices(wanted: set[int], catalogue: Catalogue) -> tuple[dict[int | None, float], str]:
    """Return on-demand prices by type in the one region where all together are cheapest.

    Machines of one cluster are bought in one region, of equal ones where their prices are surest;
    where no region sells all of them, none has a price.
    """
    if not wanted:
        return {}, ""
    offers = catalogue.select(OfferFilter(pricing=["on-demand"]))
    found: dict[str, dict[int | None, float]] = {}
    for i in np.flatnonzero(np.isin(offers.type_index, list(wanted))).tolist():
        # Offers come cheapest first, of equal prices the surest: so do the regions.
        there = found.setdefault(str(offers.regions[offers.region_index[i]]), {})
        there.setdefault(int(offers.type_index[i]), float(offers.price_usd_per_h[i]))
    complete = {name: there for name, there in found.items() if wanted <= there.keys()}
    if not complete:
        return {}, ""
    region = min(complete, key=lambda name: sum(complete[name].values()))
    return complete[region], region
