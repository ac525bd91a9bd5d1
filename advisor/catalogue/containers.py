"""Containers that are billed by what they are given, and by the second: no machine is rented.

``datasets/catalogue/containers.csv`` has the providers' list prices, each with its day and source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.catalogue import files
from advisor.catalogue.snapshot import bundled_folder
from advisor.catalogue.tables import read_facts
from advisor.errors import CatalogueError, UsageError
from advisor.planners.systems import Billing
from advisor.quantities import parse_cores_and_memory

COLUMNS: Final = files.columns("containers")
_GIB: Final = 2**30


def container_offers(path: Path | None = None) -> dict[str, Mapping[str, Any]]:
    """Return the rows by name, as ``COLUMNS`` says; those of ``path``, by default those that ship.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    where = path or bundled_folder() / "containers.csv"
    found: dict[str, Mapping[str, Any]] = {}
    for row in read_facts(where, COLUMNS):
        if row["name"] in found:
            raise CatalogueError(f"{where}: {row['name']} appears twice", hint="take one row out")
        found[row["name"]] = row
    return found


def container_billing(
    asked: str, *, vcpus: float = 0.0, gib: float = 0.0, accelerator: str = "",
    coordinator: tuple[float, float] | None = None, startup_s: float = 0.0,
) -> tuple[Billing, str]:  # fmt: skip
    """Return the bill of workers in containers, ``NAME`` or ``NAME:VCPUSxGIB``; and it in words.

    ``vcpus``, ``gib``: of a worker, where no size is said; ``coordinator``: the same of what
    stands beside them all.

    Raises UsageError if nobody offers them, or the size is not known or cannot be read.
    """
    name, _, size = asked.partition(":")
    offers = container_offers()
    if name not in offers:
        raise UsageError(f"no containers are called {name!r}", hint=f"one of: {', '.join(offers)}")
    if size:
        vcpus, memory_bytes = parse_cores_and_memory(size, option="--container")
        gib = memory_bytes / _GIB
    if not vcpus or not gib:
        raise UsageError(
            "the size of a container is not known", hint=f"give it: --container {asked}:4x16"
        )
    row = offers[name]
    words = f"{name} in {row['region']}: {vcpus:g} vCPUs"
    words += f" and one {accelerator}" if accelerator else ""
    words += f", {gib:g} GiB a worker"
    if coordinator is not None:
        words += f", a coordinator of {coordinator[0]:g} and {coordinator[1]:g} GiB"
    billing = Billing(
        price_usd_per_h=_usd_per_h(row, vcpus, gib, accelerator),
        quantum_s=row["quantum_s"], minimum_s=row["minimum_s"], startup_s=startup_s,
        beside_usd_per_h=0.0 if coordinator is None else _usd_per_h(row, *coordinator),
    )  # fmt: skip
    return billing, f"{words}; list prices of {row['as_of']}"


def _usd_per_h(row: Mapping[str, Any], vcpus: float, gib: float, accelerator: str = "") -> float:
    """Return the price of a container [USD/h]."""
    name, most_vcpus, most_gib = row["name"], row["most_vcpus"], row["most_gib"]
    if vcpus > most_vcpus or gib > most_gib:
        raise UsageError(
            f"a container of {name} has {most_vcpus:g} vCPUs and {most_gib:g} GiB at most",
            hint=f"give its size: --container {name}:{most_vcpus:g}x{most_gib:g}",
        )
    if accelerator and accelerator != row["accelerator"]:
        has = f"have {row['accelerator']}" if row["accelerator"] else "have no accelerator"
        raise UsageError(
            f"containers of {name} {has}, not {accelerator}",
            hint="name another --on, or other containers",
        )
    extra = row["accelerator_usd_per_h"] or 0.0 if accelerator else 0.0
    return float(vcpus * row["vcpu_usd_per_h"] + gib * row["gib_usd_per_h"] + extra)
