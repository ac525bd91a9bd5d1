"""Networks between instances: what a transport's name says, and what providers' pages state.

Names of transports carry the rate of the back-end network, all ports of one instance together:
``"IB-NDR-8x400"`` is eight ports of 400 Gbit/s, ``"RoCE-1600"`` and ``"IB-200"`` the sum. EFA and
GPUDirect-TCPX run over the network interface, whose rate is stated beside them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from advisor.catalogue import files
from advisor.catalogue.offer_columns import Bools, Floats, Ints, Texts, TypeColumns
from advisor.catalogue.tables import numbers, read, texts

GBIT_BYTES: Final = 1e9 / 8
_FABRIC: Final = re.compile(r"(?:IB(?:-[A-Z]+)?|RoCE)-(?:(?P<ports>\d+)x)?(?P<gbps>\d+)")


def rate_of(transport: str) -> float | None:
    """Return the rate that a transport's name states, all ports together. [Gbit/s].

    None where the name states none.

    >>> rate_of("IB-NDR-8x400"), rate_of("RoCE-1600"), rate_of("EFA")
    (3200.0, 1600.0, None)
    """
    match = _FABRIC.fullmatch(transport)
    return float(match["gbps"]) * int(match["ports"] or 1) if match else None


def bypasses_kernel(transport: str) -> bool:
    """Return whether messages go past the kernel (GPUDirect-TCPX does not).

    >>> bypasses_kernel("IB-EDR-100"), bypasses_kernel("EFA"), bypasses_kernel("GPUDirect-TCPX")
    (True, True, False)
    """
    return transport == "EFA" or transport.startswith(("IB-", "RoCE-"))


def sustained_network(gbps: float, transport: str) -> float:
    """Return what traffic between instances gets: the back-end fabric where there is one.

    >>> sustained_network(80.0, "IB-NDR-8x400"), sustained_network(100.0, "EFA")
    (400000000000.0, 12500000000.0)
    """
    rate = rate_of(transport)
    return GBIT_BYTES * (gbps if rate is None else rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkColumns:
    """The networks of all types, one row a type."""

    # bytes_per_s, burst_bytes_per_s: as ``TypeColumns``'; NaN where nobody says
    bytes_per_s: Floats
    burst_bytes_per_s: Floats
    rdma: Texts
    is_rdma: Bools
    # the page that states them, its licence and day; ``""`` where the type's own source does, or
    # none
    source: Texts


def network_columns(
    path: Path | None, provider: Texts, name: Texts,
    *, gbps: Floats, baseline_gbps: Floats, rdma: Texts,
) -> NetworkColumns:  # fmt: skip
    """Join what the types' sources say with what providers' pages state; a page wins.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.

    ``path``: the file of ``files.NETWORKS``; without it the types' sources stand alone; ``gbps``,
    ``baseline_gbps``: as advertised ("up to") and as sustained, of the types' sources; NaN unknown
    [Gbit/s]; ``rdma``: transport, ``""`` where none is known.
    """
    sustained = np.where(np.isnan(baseline_gbps), gbps, baseline_gbps)
    burst, transport = gbps.copy(), rdma.astype(object)
    source = np.full(len(name), "", dtype=object)
    place = {key: at for at, key in enumerate(zip(provider.tolist(), name.tolist(), strict=True))}
    for row in _stated(path):
        at = place.get(row.key)
        if at is None:
            continue
        source[at] = row.source
        if not np.isnan(row.gbps):
            sustained[at] = burst[at] = row.gbps
        if row.rdma:
            transport[at] = row.rdma
    names: list[str] = transport.tolist()
    pairs = zip(sustained.tolist(), names, strict=True)
    return NetworkColumns(
        bytes_per_s=np.array([sustained_network(rate, each) for rate, each in pairs]),
        burst_bytes_per_s=burst * GBIT_BYTES,
        rdma=np.array(names, dtype=str),
        is_rdma=np.array([bypasses_kernel(each) for each in names], dtype=bool),
        source=np.array(source.tolist(), dtype=str),
    )


@dataclass(frozen=True, slots=True)
class _Stated:
    key: tuple[str, str]
    gbps: float
    rdma: str
    source: str


def _stated(path: Path | None) -> Sequence[_Stated]:
    if path is None:
        return ()
    table = read(path, files.NETWORKS)
    cells = zip(
        texts(table, "provider"), texts(table, "instance_type"),
        numbers(table, "network_gbps").tolist(), texts(table, "rdma"), texts(table, "basis"),
        texts(table, "source"), texts(table, "licence"), texts(table, "as_of"),
        strict=True,
    )  # fmt: skip
    return [
        _Stated((provider, name), gbps, rdma, f"{source} ({basis}; {licence}; {day})")
        for provider, name, gbps, rdma, basis, source, licence, day in cells
    ]


# ------------------------------------------------------------------------------------------
# The network taken for granted where nobody states one: a low value of machines of like size.
#
# =================  =============================================================================
# here               meaning, unit
# =================  =============================================================================
# known              the network interface of a type whose source or provider's page states it; of
#                    one with a back-end fabric the front end, for nobody who says nothing of a
#                    network can be taken to have InfiniBand. [bytes/s]
# peers              known types with as many accelerators (none, up to 1, 2, 4 or more) and
#                    0.5 to 2 times the virtual CPUs; the nearest ten in CPUs where there are fewer
# assumed            lower quartile of the peers, every provider weighing the same. [bytes/s]
# spread             root mean square of log(peer / assumed), weighted alike, and widened for a
#                    provider that none of the peers is of
# =================  =============================================================================
#
# The quartile and the factor were chosen by leaving out one provider at a time
# (``lab/experiments/network_assumed.py``): the rule is above the stated network of one accelerated
# type in nine and of one CPU type in three, while the median of the peers is above half of them.


LOW_QUANTILE: Final = 0.25
_LIKE_SIZE: Final = 2.0  # factor in virtual CPUs
_FEWEST_PEERS: Final = 10
# Accelerators of one machine up to which two machines count as alike; above the last: another.
_CLASS_EDGES: Final = (0.0, 1.0, 2.0, 4.0)
# A catalogue in which no type has a known network (one's own machines only): lower quartile and
# spread over all known types of the bundled one, 2026-11-21 (lab/experiments/network_assumed.py).
_NOTHING_KNOWN_BYTES_PER_S: Final = 10e9 / 8
NOTHING_KNOWN_LOG_SD: Final = 1.5
# A provider that nobody asked differs from the known ones by more than these among themselves:
# the factor with which 90 % of a left-out provider's types lie within 1.645 spreads (same
# benchmark, 1.44 over 3,584 types).
_UNSEEN_PROVIDER: Final = 1.44


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedNetworks:
    """What is taken for the network of every type."""

    bytes_per_s: Floats  # known, or assumed; never NaN
    is_assumed: Bools
    log_sd: Floats  # spread of the logarithm of what is assumed; 0 where the network is known


def assumed_networks(types: TypeColumns) -> AssumedNetworks:
    """Return the network of every type, assumed where the catalogue has none."""
    bytes_per_s = np.array(types.network_bytes_per_s, dtype=float)
    is_assumed = np.isnan(bytes_per_s)
    log_sd = np.zeros(len(bytes_per_s))
    peers = _Peers(types, np.flatnonzero(~is_assumed))
    found: dict[tuple[int, float], tuple[float, float]] = {}
    classes = size_class(types.accelerator_count)
    for row in np.flatnonzero(is_assumed).tolist():
        size = int(classes[row]), float(np.nan_to_num(types.vcpus[row], nan=-1.0))
        if size not in found:
            found[size] = peers.assume(*size)
        bytes_per_s[row], log_sd[row] = found[size]
    return AssumedNetworks(bytes_per_s=bytes_per_s, is_assumed=is_assumed, log_sd=log_sd)


def size_class(accelerators: Floats) -> Ints:
    """Return the class of machines by their accelerators: 0, up to 1, 2, 4, more.

    >>> size_class(np.array([0, 0.5, 1, 2, 3, 8])).tolist()
    [0, 1, 1, 2, 3, 4]
    """
    return np.searchsorted(_CLASS_EDGES, np.nan_to_num(accelerators), side="left")


def front_end_bytes_per_s(types: TypeColumns) -> Floats:
    """Return what lasts without a back-end fabric; NaN where unknown [bytes/s]."""
    has_fabric = np.array([rate_of(name) is not None for name in types.rdma.tolist()], dtype=bool)
    front = np.where(has_fabric, types.network_burst_bytes_per_s, types.network_bytes_per_s)
    return np.where(np.isnan(front), types.network_bytes_per_s, front)


class _Peers:
    """The known types, and what they say of one that is not known."""

    def __init__(self, types: TypeColumns, known: Ints) -> None:
        self._rate = front_end_bytes_per_s(types)[known]
        self._class = size_class(types.accelerator_count[known])
        self._vcpus = np.nan_to_num(types.vcpus[known], nan=-1.0)
        _, self._provider = np.unique(types.provider[known], return_inverse=True)

    def assume(self, of_class: int, vcpus: float) -> tuple[float, float]:
        """Return the assumed rate [bytes/s] and its spread for one size; -1 vCPUs is unknown."""
        rows = np.flatnonzero(self._class == of_class)
        if rows.size == 0:
            rows = np.arange(len(self._class))
        if rows.size == 0:
            return _NOTHING_KNOWN_BYTES_PER_S, NOTHING_KNOWN_LOG_SD
        if vcpus > 0:
            rows = self._like(rows, vcpus)
        weight = 1.0 / np.bincount(self._provider[rows])[self._provider[rows]]
        rate = self._rate[rows]
        order = np.argsort(rate, kind="stable")
        reached = np.cumsum(weight[order]) / weight.sum()
        low = rate[order][np.searchsorted(reached, LOW_QUANTILE)]
        spread = np.sqrt(np.average(np.log(rate / low) ** 2, weights=weight))
        return float(low), float(spread) * _UNSEEN_PROVIDER

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
