"""Containers that are billed by what they are given, and by the second: no machine is rented.

``datasets/catalogue/containers.csv`` has the providers' list prices, each with its day and source.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from advisor.catalogue.offer_columns import Record
from advisor.catalogue.snapshot import bundled_folder
from advisor.catalogue.tables import Column, read_facts, record, text
from advisor.errors import CatalogueError, UsageError
from advisor.planners.systems import Billing
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
class Container(Record):
    """Containers that are sold in one region, as ``COLUMNS`` says, and what a worker gets."""

    # vcpus, gib: of a worker
    vcpus: float = 0.0
    gib: float = 0.0
    card: str = ""  # the accelerator of a worker
    coordinator: tuple[float, float] | None = None  # vCPUs and GiB of what stands beside them

    def billing(self, startup_s: float) -> Billing:
        """Return the bill of a worker and of what stands beside them all."""
        return Billing(
            price_usd_per_h=self.usd_per_h(self.vcpus, self.gib, self.card),
            quantum_s=self.quantum_s, minimum_s=self.minimum_s, startup_s=startup_s,
            beside_usd_per_h=self.usd_per_h(*self.coordinator) if self.coordinator else 0.0,
        )  # fmt: skip

    @property
    def words(self) -> str:
        """Say offer, sizes, day and source of the price."""
        card = f" and one {self.card}" if self.card else ""
        beside = ""
        if self.coordinator is not None:
            beside = f", a coordinator of {self.coordinator[0]:g} and {self.coordinator[1]:g} GiB"
        return (
            f"{self.name} in {self.region}: {self.vcpus:g} vCPUs{card}, "
            f"{self.gib:g} GiB a worker{beside}; list prices of {self.as_of}"
        )

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


def container_offers(path: Path | None = None) -> dict[str, Container]:
    """Return the offers by name; those of ``path``, by default those that ship.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    where = path or bundled_folder() / "containers.csv"
    found: dict[str, Container] = {}
    for row in read_facts(where, COLUMNS):
        extra = row["accelerator_usd_per_h"] or 0.0
        offer = Container(**row | {"accelerator_usd_per_h": extra})
        if offer.name in found:
            raise CatalogueError(f"{where}: {offer.name} appears twice", hint="take one row out")
        found[offer.name] = offer
    return found


def container_of(asked: str, *, vcpus: float, gib: float) -> Container:
    """Return the containers that ``NAME`` or ``NAME:VCPUSxGIB`` says.

    ``vcpus``, ``gib``: where no size is said.

    Raises UsageError if nobody offers them, or the size cannot be read.
    """
    name, _, size = asked.partition(":")
    offers = container_offers()
    if name not in offers:
        raise UsageError(f"no containers are called {name!r}", hint=f"one of: {', '.join(offers)}")
    if size:
        vcpus, memory_bytes = parse_cores_and_memory(size, option="--container")
        gib = memory_bytes / _GIB
    return replace(offers[name], vcpus=vcpus, gib=gib)
