"""Networks between instances: what a transport's name says, and what providers' pages state.

Names of transports carry the rate of the back-end network, all ports of one instance together:
``"IB-NDR-8x400"`` is eight ports of 400 Gbit/s, ``"RoCE-1600"`` and ``"IB-200"`` the sum. EFA and
GPUDirect run over the network interfaces, whose advertised rate is stated beside them and lasts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import files
from advisor.catalogue.offer_columns import Floats, Texts
from advisor.catalogue.tables import read_facts

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
    [Gbit/s]; ``rdma``: transport, ``""`` where none is known.
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
        "is_rdma": of_transports(rdma, bypasses_kernel, bool),
        "network_source": source.astype(str),
    }
