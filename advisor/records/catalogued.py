"""Machines of the catalogue as records name them."""

from __future__ import annotations

import math
from dataclasses import replace

from advisor.catalogue import Catalogue, named
from advisor.records.nouns import Instances


def machines_of(catalogue: Catalogue, type_index: int, count: int) -> Instances:
    """Return ``count`` machines of a type of the catalogue as records name them."""
    types = catalogue.types
    name, cards = str(types.accelerator[type_index]), float(types.accelerator_count[type_index])
    network = float(types.network_bytes_per_s[type_index])
    return Instances(
        provider=str(types.provider[type_index]),
        instance_type=str(types.name[type_index]),
        count=count,
        vcpus=float(types.vcpus[type_index]),
        memory_gib=float(types.memory_bytes[type_index]) / 2**30,
        accelerator=name,
        accelerators=max(math.ceil(cards), 1) if name else 0,
        network_gbit_per_s=network * 8e-9 if count > 1 and network > 0 else None,
    )


def named_machines(
    configuration: str, catalogue: Catalogue, *, price_usd_per_h: float | None = None
) -> Instances:
    """Return machines that a user names: ``"g5.xlarge"``, ``"2 x aws:g5.xlarge"``.

    ``price_usd_per_h``: what one of them was paid [USD/h].

    Raises CatalogueError if the catalogue has no such type, or several providers have it.
    """
    name, count = named(configuration)
    machines = machines_of(catalogue, catalogue.instance_type(name).index, count)
    return replace(machines, price_usd_per_h=price_usd_per_h)
