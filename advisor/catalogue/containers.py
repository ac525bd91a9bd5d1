"""Containers that are billed by what they are given, and by the second: no machine is rented.

``datasets/catalogue/containers.csv`` has the providers' list prices, each with its day and source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from advisor.catalogue.offer_columns import Record
from advisor.catalogue.snapshot import bundled_folder
from advisor.catalogue.tables import Column, read_facts, record, text
from advisor.errors import CatalogueError, UsageError
from advisor.quantities import parse_cores_and_memory

_MOST_USD: Final = 1000.0
COLUMNS: Final = (
    text("name", is_required=True), text("provider", is_required=True),
    text("region", is_required=True),
    Column(name="vcpu_usd_per_h", high=_MOST_USD, is_required=True, means="of a vCPU"),
    Column(name="gib_usd_per_h", high=_MOST_USD, is_required=True, means="of a GiB of memory"),
    text("accelerator", "that a container can have one of; empty where there is none"),
    Column(name="accelerator_usd_per_h", high=_MOST_USD),
    Column(name="quantum_s", low=1e-3, high=3600, is_required=True, means="time is rounded up to"),
    Column(name="minimum_s", high=86400, is_required=True, means="the least that is billed"),
    Column(name="most_vcpus", low=0.25, high=1000, is_required=True, means="of one container"),
    Column(name="most_gib", low=0.25, high=10_000, is_required=True, means="of one container"),
    text("as_of", is_required=True), text("source", is_required=True),
)  # fmt: skip
_GIB: Final = 2**30


@record(COLUMNS)
class ContainerOffer(Record):
    """A provider's list prices of containers in one region, as ``COLUMNS`` says."""

    def usd_per_h(self, vcpus: float, gib: float, accelerator: str = "") -> float:
        """Return the price of a container [USD/h].

        Raises UsageError if there are none as large, or none with that accelerator.
        """
        if vcpus > self.most_vcpus or gib > self.most_gib:
            raise UsageError(
                f"a container of {self.name} has {self.most_vcpus:g} vCPUs and "
                f"{self.most_gib:g} GiB at most",
                hint=f"give its size: --container {self.name}:{self.most_vcpus:g}x"
                f"{self.most_gib:g}",
            )
        if accelerator and accelerator != self.accelerator:
            has = f"have {self.accelerator}" if self.accelerator else "have no accelerator"
            raise UsageError(
                f"containers of {self.name} {has}, not {accelerator}",
                hint="name another --on, or other containers",
            )
        extra = self.accelerator_usd_per_h if accelerator else 0.0
        return float(vcpus * self.vcpu_usd_per_h + gib * self.gib_usd_per_h + extra)


def container_offers(path: Path | None = None) -> dict[str, ContainerOffer]:
    """Return the offers by name; those of ``path``, by default those that ship.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    where = path or bundled_folder() / "containers.csv"
    found: dict[str, ContainerOffer] = {}
    for row in read_facts(where, COLUMNS):
        extra = row["accelerator_usd_per_h"] or 0.0
        offer = ContainerOffer(**row | {"accelerator_usd_per_h": extra})
        if offer.name in found:
            raise CatalogueError(f"{where}: {offer.name} appears twice", hint="take one row out")
        found[offer.name] = offer
    return found


def container_of(asked: str, *, vcpus: float, gib: float) -> tuple[ContainerOffer, float, float]:
    """Return an offer, the vCPUs and the GiB of ``NAME`` or ``NAME:VCPUSxGIB``.

    ``vcpus``, ``gib``: where no size is said.

    Raises UsageError if nobody offers them, or the size cannot be read.
    """
    name, _, size = asked.partition(":")
    offers = container_offers()
    if name not in offers:
        raise UsageError(f"no containers are called {name!r}", hint=f"one of: {', '.join(offers)}")
    if not size:
        return offers[name], vcpus, gib
    cores, memory_bytes = parse_cores_and_memory(size, option="--container")
    return offers[name], cores, memory_bytes / _GIB
