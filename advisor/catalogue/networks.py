"""Networks between machines: what a transport's name says, pages state, and what is assumed.

``rate_of`` reads names, ``network_columns`` joins what types' sources and pages say, and
``KnownNetworks`` tells what is assumed where neither does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import files
from advisor.catalogue.accelerators import Accelerator
from advisor.catalogue.offer_columns import Bools, Floats, Ints, Texts, TypeColumns
from advisor.catalogue.tables import read_facts
from advisor.planners.links import RDMA_FROM_BYTES_PER_S
from advisor.quantities import REACH_90

GBIT_BYTES: Final = 1e9 / 8
# A published workstation of four RTX 5090 on a Threadripper PRO board has two ports of 10 Gbit/s,
# of which a job's traffic takes one: github.com/autonomous-ai/autonomous-computer at 12cf2e6,
# 4x-5090/README.md (MIT), read 2026-11-28.
_WORKSTATION_BYTES_PER_S: Final = 10 * GBIT_BYTES
# An assumed network lies within a factor of two, nine times of ten, where accelerators tell it.
_MOST_LOG_SD: Final = math.log(2) / REACH_90

LOW_QUANTILE: Final = 0.25
_LIKE_SIZE: Final = 2.0  # factor in virtual CPUs
_FEWEST_PEERS: Final = 10
# Accelerators of one machine up to which two machines count as alike; above the last: another.
_CLASS_EDGES: Final = (0.0, 1.0, 2.0, 4.0)
# A catalogue in which no type has a known network (one's own machines only): lower quartile and
# spread over all known types of the bundled one, 2026-11-21 (lab/experiments/network_assumed.py).
_NOTHING_KNOWN_BYTES_PER_S: Final = 10e9 / 8
_NOTHING_KNOWN_LOG_SD: Final = 1.5
# A provider that nobody asked differs from the known ones by more than these among themselves:
# the factor with which 90 % of a left-out provider's types lie within 1.645 spreads (same
# benchmark, 1.44 over 3,584 types).
_UNSEEN_PROVIDER: Final = 1.44
_FABRIC: Final = re.compile(r"(?:IB(?:-[A-Z]+)?|RoCE)-(?:(?P<ports>\d+)x)?(?P<gbps>\d+)")


def rate_of(transport: str) -> float | None:
    """Return the rate that a transport's name states, all ports together. [Gbit/s].

    Names of transports carry the rate of the back-end network, all ports of one instance together:
    ``"IB-NDR-8x400"`` is eight ports of 400 Gbit/s, ``"RoCE-1600"`` and ``"IB-200"`` the sum. EFA
    and GPUDirect run over the network interfaces, whose advertised rate is stated beside them and
    lasts.
    None where the name states none.

    >>> rate_of("IB-NDR-8x400"), rate_of("RoCE-1600"), rate_of("EFA")
    (3200.0, 1600.0, None)
    """
    match = _FABRIC.fullmatch(transport)
    return float(match["gbps"]) * int(match["ports"] or 1) if match else None


def bypasses_kernel(transport: str) -> bool:
    """Return whether what is sent goes past the kernel, into the accelerators' memory.

    GPUDirect-TCPX, too: only its headers are the kernel's, and every accelerator has flows of its
    own (Google, "Maximize GPU network bandwidth with GPUDirect", 2025).

    >>> bypasses_kernel("IB-EDR-100"), bypasses_kernel("GPUDirect-TCPXO"), bypasses_kernel("")
    (True, True, False)
    """
    return transport == "EFA" or transport.startswith(("IB-", "RoCE-", "GPUDirect-"))


def sustained_network(gbps: float, transport: str) -> float:
    """Return what traffic between instances gets: the back-end fabric where there is one.

    >>> sustained_network(80.0, "IB-NDR-8x400"), sustained_network(100.0, "EFA")
    (400000000000.0, 12500000000.0)
    """
    rate = rate_of(transport)
    return GBIT_BYTES * (gbps if rate is None else rate)


def of_transports(rdma: Texts, fact: Callable[[str], object], kind: type) -> NDArray[Any]:
    """Return what is known of every type's transport, asked once of each name; None is NaN."""
    names, name = np.unique(rdma, return_inverse=True)
    return np.array([fact(one) for one in names.tolist()], dtype=kind)[name]


def network_columns(
    path: Path | None, provider: Texts, name: Texts,
    *, gbps: Floats, baseline_gbps: Floats, rdma: Texts,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Join what the types' sources say with what pages state, as columns of ``TypeColumns``.

    A page wins.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.

    ``path``: the file of ``files.NETWORKS``; without it the types' sources stand alone; ``gbps``,
    ``baseline_gbps``: as advertised ("up to") and as sustained, of the types' sources; NaN unknown
    [Gbit/s]; ``rdma``: transport, ``""`` where none is known, ``"no RDMA"`` as told.
    """
    # A baseline limits ordinary traffic: what goes past the kernel has the interfaces' whole rate.
    is_whole = np.isnan(baseline_gbps) | of_transports(rdma, bypasses_kernel, bool)
    sustained = np.where(is_whole, gbps, baseline_gbps)
    burst, transport = gbps.copy(), rdma.astype(object)
    source = np.full(len(name), "", dtype=object)
    place = {key: at for at, key in enumerate(zip(provider.tolist(), name.tolist(), strict=True))}
    for row in read_facts(path, files.NETWORKS) if path else ():
        at = place.get((row["provider"], row["instance_type"]))
        if at is None:
            continue
        source[at] = "{source} ({basis}; {licence}; {as_of})".format_map(row)
        if row["network_gbps"] is not None:
            sustained[at] = burst[at] = row["network_gbps"]
        if row["rdma"]:
            transport[at] = row["rdma"]
    rdma = transport.astype(str)
    fabric = of_transports(rdma, rate_of, float)
    return {
        "network_bytes_per_s": GBIT_BYTES * np.where(np.isnan(fabric), sustained, fabric),
        "network_burst_bytes_per_s": burst * GBIT_BYTES,
        "rdma": rdma,
        "rdma_share": of_transports(rdma, bypasses_kernel, float),
        "network_source": source.astype(str),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedNetwork:
    """What is taken for the network of one machine."""

    bytes_per_s: float
    log_sd: float  # spread of its logarithm
    # messages bypass the kernel: a fabric, or as with a rate that a user states
    is_rdma: bool = False


def with_assumed_networks(
    types: TypeColumns, accelerators: Mapping[str, Accelerator]
) -> TypeColumns:
    """Return the types with a network each, assumed where the catalogue has none."""
    rate, rdma_share = types.network_bytes_per_s.copy(), types.rdma_share.copy()
    is_assumed, log_sd = np.isnan(rate), np.zeros(len(types))
    peers = KnownNetworks(types, accelerators)
    for row in np.flatnonzero(is_assumed).tolist():
        vcpus = float(np.nan_to_num(types.vcpus[row], nan=-1.0))
        name, count = str(types.accelerator[row]), float(types.accelerator_count[row])
        found = peers.network(name, count, vcpus)
        rate[row], log_sd[row] = found.bytes_per_s, found.log_sd
        # "no RDMA": so says a page; how fast the interface is, nobody does.
        rdma_share[row] = max(rdma_share[row], found.is_rdma and types.rdma[row] != "no RDMA")
    return replace(
        types, network_bytes_per_s=rate, is_network_assumed=is_assumed, network_log_sd=log_sd,
        rdma_share=rdma_share,
    )  # fmt: skip


def size_class(accelerators: Floats) -> Ints:
    """Return the class of machines by their accelerators: 0, up to 1, 2, 4, more.

    >>> size_class(np.array([0, 0.5, 1, 2, 3, 8])).tolist()
    [0, 1, 1, 2, 3, 4]
    """
    return np.searchsorted(_CLASS_EDGES, np.nan_to_num(accelerators), side="left")


def front_end_bytes_per_s(types: TypeColumns) -> Floats:
    """Return what lasts without a back-end fabric; NaN where unknown [bytes/s]."""
    has_fabric = np.isfinite(of_transports(types.rdma, rate_of, float))
    front = np.where(has_fabric, types.network_burst_bytes_per_s, types.network_bytes_per_s)
    return np.where(np.isnan(front), types.network_bytes_per_s, front)


class KnownNetworks:
    """The types whose network is known, and what they say of a machine whose is not.

    Machines with accelerators are taken to have the network of the machines that are rented with
    the same accelerators; where only machines with fewer or more of them are known, as much for
    each accelerator; where none is, that of accelerators of the same architecture. Consumer cards
    are in workstations. Of machines without accelerators it is a low value of machines of like
    size.

    ========  =====================================================================================
    here      meaning, unit
    ========  =====================================================================================
    known     types whose source or provider's page states a network: the rate of the fabric
              that its transport names, else that of the network interface. [bytes/s]
    peers     the known types that are compared; of those with accelerators only the ones with
              a fabric, where there is one: who trains on several machines rents these
    assumed   median of the peers, every provider weighing the same; of machines without
              accelerators the lower quartile. [bytes/s]
    spread    root mean square of log(peer / assumed) over the peers' providers and one more,
              whose network is off by the factor of two that bounds the spread
    ========  =====================================================================================
    """

    def __init__(self, types: TypeColumns, accelerators: Mapping[str, Accelerator]) -> None:
        known = np.flatnonzero(~np.isnan(types.network_bytes_per_s))
        self._rate = types.network_bytes_per_s[known]
        self._front = front_end_bytes_per_s(types)[known]
        self._accelerators = accelerators
        self._accelerator = types.accelerator[known]
        self._count = np.nan_to_num(types.accelerator_count[known])
        self._has_fabric = of_transports(types.rdma[known], bypasses_kernel, bool)
        self._vcpus = np.nan_to_num(types.vcpus[known], nan=-1.0)
        _, self._provider = np.unique(types.provider[known], return_inverse=True)
        self._found: dict[tuple[str, float, float], AssumedNetwork] = {}

    def network(self, accelerator: str, count: float, vcpus: float = -1.0) -> AssumedNetwork:
        """Return the network of a machine with so many accelerators; -1 vCPUs is unknown."""
        key = (accelerator, count, -1.0 if accelerator else vcpus)
        if key not in self._found:
            found = self._of_accelerator(accelerator, count) if accelerator else None
            self._found[key] = found or self._of_size(count, vcpus)
        return self._found[key]

    def _of_accelerator(self, name: str, count: float) -> AssumedNetwork | None:
        row = self._accelerators.get(name)
        if row is not None and row.is_consumer:
            return AssumedNetwork(bytes_per_s=_WORKSTATION_BYTES_PER_S, log_sd=_MOST_LOG_SD)
        is_same = self._accelerator == name
        rows = np.flatnonzero(is_same & (self._count == count))
        if rows.size:
            found = self._median(rows, self._rate)
            is_fast = found.bytes_per_s >= RDMA_FROM_BYTES_PER_S
            return replace(found, is_rdma=found.is_rdma or is_fast)
        alike: list[tuple[str, ...]] = []
        if row is not None:
            alike = [(row.architecture, row.form), (row.architecture,)]
        for is_alike in (is_same, *map(self._is_kin, alike)):
            rows = np.flatnonzero(is_alike & (self._count > 0))
            if rows.size:
                # The largest machines: a slice of one has a slice of its network, or none.
                rows = rows[self._count[rows] == self._count[rows].max()]
                return self._median(rows, self._rate / np.maximum(self._count, 1.0) * count)
        return None

    def _is_kin(self, kind: tuple[str, ...]) -> Bools:
        """Return which types have accelerators of an architecture, and of a form where named."""
        kin = {
            name
            for name, row in self._accelerators.items()
            if (row.architecture, row.form)[: len(kind)] == kind and not row.is_consumer
        }
        return np.isin(self._accelerator, list(kin))

    def _median(self, rows: Ints, rate: Floats) -> AssumedNetwork:
        has_fabric = bool(self._has_fabric[rows].any())
        if has_fabric:
            rows = rows[self._has_fabric[rows]]
        middle, spread = self._weighed(rows, rate[rows], 0.5)
        providers = len(set(self._provider[rows].tolist()))
        log_sd = math.sqrt((providers * spread**2 + _MOST_LOG_SD**2) / (providers + 1))
        return AssumedNetwork(
            bytes_per_s=middle,
            log_sd=min(log_sd, _MOST_LOG_SD),
            is_rdma=has_fabric and middle >= RDMA_FROM_BYTES_PER_S,
        )

    def _of_size(self, count: float, vcpus: float) -> AssumedNetwork:
        """Return a low value of machines with a like number of accelerators and CPUs."""
        classes = size_class(self._count)
        rows = np.flatnonzero(classes == size_class(np.array([count]))[0])
        if rows.size == 0:
            rows = np.arange(len(self._count))
        if rows.size == 0:
            return AssumedNetwork(
                bytes_per_s=_NOTHING_KNOWN_BYTES_PER_S, log_sd=_NOTHING_KNOWN_LOG_SD
            )
        if vcpus > 0:
            rows = self._like(rows, vcpus)
        low, spread = self._weighed(rows, self._front[rows], LOW_QUANTILE)
        return AssumedNetwork(bytes_per_s=low, log_sd=spread * _UNSEEN_PROVIDER)

    def _weighed(self, rows: Ints, rate: Floats, quantile: float) -> tuple[float, float]:
        """Return a quantile of rates, and the spread of their logarithm about it."""
        weight = 1.0 / np.bincount(self._provider[rows])[self._provider[rows]]
        order = np.argsort(rate, kind="stable")
        reached = np.cumsum(weight[order]) / weight.sum()
        value = rate[order][np.searchsorted(reached, quantile)]
        return float(value), float(np.sqrt(np.average(np.log(rate / value) ** 2, weights=weight)))

    def _like(self, rows: Ints, vcpus: float) -> Ints:
        """Return the rows of like size; an unknown number of CPUs is far from all."""
        known = self._vcpus[rows] > 0
        apart = np.full(len(rows), np.inf)
        apart[known] = np.abs(np.log(self._vcpus[rows][known] / vcpus))
        near = rows[apart <= np.log(_LIKE_SIZE)]
        return (
            near
            if near.size >= _FEWEST_PEERS
            else rows[np.argsort(apart, kind="stable")[:_FEWEST_PEERS]]
        )
