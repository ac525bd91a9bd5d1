"""Bandwidth between two cards of a machine: over their own links, or PCIe."""

from __future__ import annotations

import re
from typing import Final

from advisor.catalogue import Accelerator

# Copies between host and device, measured on clouds (datasets/catalogue, nvbandwidth), by
# generation: V100 machines 11.1, A10G/L4 13.5, A100 PCIe 26.7, H100 machines 55 GB/s. [bytes/s]
_BYTES_PER_S: Final = {3.0: 11.1e9, 4.0: 26.7e9, 5.0: 55.0e9, 6.0: 55.0e9}
# Without direct transfers a message between two cards crosses PCIe twice, through host memory.
_THROUGH_HOST: Final = 0.5
# What two cards reach of PCIe with direct transfers: the mean of L4 on GCP (10.1 of 12.35 GB/s)
# and RTX PRO 6000 on AWS (54 of 55.6), nvbandwidth. GeForce cards have none since Turing.
_PEER_TO_PEER: Final = 0.9
# Every machine of several T4s in the catalogue passes messages through its host.
_WITHOUT_PEERS: Final = re.compile(r"GTX|TITAN|RTX-[2-5]0[5-9]0|T4$")
# Cards that clouds connect by fewer lanes than the card has: g4dn, nvbandwidth. [bytes/s]
_FEWER_LANES: Final = {"T4": 6.27e9}


def pcie_bytes_per_s(generation: float | None) -> float:
    """Return what a card of a generation copies one way; an unknown one is the third [bytes/s]."""
    return _BYTES_PER_S.get(generation or 3.0, _BYTES_PER_S[3.0])


def link_between(
    row: Accelerator | None, link: str = "", *, host_bytes_per_s: float | None = None
) -> tuple[float, bool]:
    """Return what two cards of a machine reach, one way, and whether over links of their own.

    Bridges join pairs only: in a machine of four or eight most pairs have none, so they count
    where the machine is said to have them.

    Parameters
    ----------
    row : Accelerator or None
        None of a card that the catalogue does not have: no better than PCIe 3 through the host.
    link : str
        What is said of the machine: ``"pcie-host"`` (messages cross the host's memory), another
        ``"pcie..."``, or a link of the cards' own; of none, the card's usual one is taken.
    host_bytes_per_s : float, optional
        Measured between host and a card there; by the card's generation otherwise.
    """
    if row is None:
        return (host_bytes_per_s or pcie_bytes_per_s(None)) * _THROUGH_HOST, False
    has_own = bool(row.link_bytes_per_s) and (bool(link) or "bridge" not in row.link)
    if has_own and row.link_bytes_per_s and not link.startswith("pcie"):
        return float(row.link_bytes_per_s), True
    is_direct = link != "pcie-host" and _WITHOUT_PEERS.match(row.name) is None
    usual = _FEWER_LANES.get(row.name) or pcie_bytes_per_s(row.pcie_generation)
    pcie = host_bytes_per_s or usual
    return pcie * (_PEER_TO_PEER if is_direct else _THROUGH_HOST), False
