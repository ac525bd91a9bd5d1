"""The catalogue as columns: one row a type, or one row a (type, region).

Columns are read-only NumPy arrays; NaN is "unknown" or "no price". Money is USD per hour, memory
and rates are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue.nouns import InstanceType, Pricing, Provenance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.str_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Arrays of one length, frozen when the record is made.

    ``_LOOKED_UP`` names the arrays that rows refer to by number and that have a length of their
    own.
    """

    _LOOKED_UP: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def by_name(self) -> dict[str, NDArray[Any]]:
        """Return the columns with one value a row."""
        named = {column.name: getattr(self, column.name) for column in fields(self)}
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, np.ndarray) and name not in self._LOOKED_UP
        }

    def take(self, rows: Ints | Bools) -> Self:
        """Return the chosen rows."""
        return replace(self, **{name: column[rows] for name, column in self.by_name().items()})

    def join(self, other: Self) -> Self:
        """Return these rows and then the other's; what rows refer to is this one's."""
        others = other.by_name()
        joined = {
            name: np.concatenate([column, others[name]]) for name, column in self.by_name().items()
        }
        return replace(self, **joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeColumns(_Columns):
    """Everything a provider says (and others measured) of its instance types, one row a type."""

    provider: Texts
    name: Texts
    # vcpus, memory_bytes: virtual CPUs and main memory; NaN where nobody says
    vcpus: Floats
    memory_bytes: Floats
    accelerator: Texts  # canonical name, ``""`` where there is none
    accelerator_count: Floats  # may be a fraction: a share of one device
    # usable memory of one whole accelerator; the instance has ``count`` times this
    accelerator_memory_bytes: Floats
    # what sustained traffic between instances gets, in one direction: the InfiniBand fabric where
    # there is one, else the baseline (not the burst) rate of the network interface
    network_bytes_per_s: Floats
    network_burst_bytes_per_s: Floats  # the rate the provider advertises ("up to")
    # the page that states the network, its licence and day; ``""`` where ``source`` states it, or
    # nobody does
    network_source: Texts
    # name of the transport, e.g. ``"EFA"``, ``"IB-NDR-8x400"``, ``"RoCE-1600"``; ``""`` where none
    # is known.
    rdma: Texts
    is_rdma: Bools  # the transport bypasses the kernel (GPUDirect-TCPX does not)
    # e.g. ``"nvswitch"``, ``"pcie-host"`` (through host memory); ``""`` unknown.
    intra_node_link: Texts
    # intra_node_bytes_per_s, host_device_bytes_per_s: one-direction copy between two accelerators,
    # and from host memory to one
    intra_node_bytes_per_s: Floats
    # intra_node_basis, host_device_basis: ``"measured"``, ``"measured on another instance with
    # this accelerator"`` or ``""``
    intra_node_basis: Texts
    host_device_bytes_per_s: Floats
    host_device_basis: Texts
    core_speed: Floats  # CoreMark iterations per second and vCPU, all vCPUs busy
    core_speed_source: Texts  # one of ``SpeedSource``
    cpu_model: Texts
    cpu_arch: Texts
    local_ssd_bytes: Floats
    source: Texts  # where the specification comes from

    def __len__(self) -> int:
        return len(self.name)

    def at(self, index: int) -> InstanceType:
        """Make the noun of one row."""
        row: dict[str, Any] = {}
        for name, column in self.by_name().items():
            value = column[index].item()
            row[name] = None if value != value else value
        return InstanceType(index=index, **row)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceColumns(_Columns):
    """One row a (type, region); prices in USD per hour, NaN where there is none."""

    _LOOKED_UP: ClassVar[frozenset[str]] = frozenset({"regions"})

    type_index: Ints  # row in ``TypeColumns``
    region_index: Ints  # row in ``regions``
    regions: Texts  # names of all regions
    on_demand_usd_per_h: Floats
    spot_usd_per_h: Floats
    reserved_1y_usd_per_h: Floats
    reserved_3y_usd_per_h: Floats
    # AWS's bands: 0 is below 5 % a month, 1 to 10, 2 to 15, 3 to 20, 4 above 20 %
    spot_interruption_band: Floats
    max_instances: Floats  # the user's quota; infinite where none was given
    # shortest_bill_h, bill_step_h: what is charged at least, and what a bill is a whole multiple
    # of; a step of 0 is by the second [h]
    shortest_bill_h: Floats
    bill_step_h: Floats
    provenance_index: Ints  # row in ``provenances``
    provenances: tuple[Provenance, ...]

    def __len__(self) -> int:
        return len(self.type_index)

    @property
    def region(self) -> Texts:
        """Region names, one a row."""
        return self.regions[self.region_index]

    @property
    def as_of(self) -> Texts:
        """ISO dates, one a row; ``""`` where the source is undated."""
        return self.of_provenance("as_of")

    @property
    def status(self) -> Texts:
        """How the on-demand prices came about, one a row."""
        return self.of_provenance("status")

    @property
    def source(self) -> Texts:
        """Names of the sources, one a row."""
        return self.of_provenance("source")

    def of_provenance(self, field: str) -> Texts:
        """Spread one field of the provenances over the rows."""
        texts = np.array([getattr(one, field) for one in self.provenances], dtype=str)
        return texts[self.provenance_index]

    def usd_per_h(self, pricing: Pricing) -> Floats:
        """Return the column of one way to pay."""
        column: Floats = getattr(self, column_of(pricing))
        return column

    def with_prices(self, rows: Ints | Bools, prices: Mapping[Pricing, Floats | float]) -> Self:
        """Return a copy in which some rows have other prices."""
        changed: dict[str, Any] = {}
        for pricing, usd_per_h in prices.items():
            column = self.usd_per_h(pricing).copy()
            column[rows] = usd_per_h
            changed[column_of(pricing)] = column
        return replace(self, **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferColumns(_Columns):
    """Priced offers, cheapest first: one row a (type, region, way to pay)."""

    # type_index, price_index: rows in the catalogue's ``types`` and ``prices``
    type_index: Ints
    price_index: Ints
    region: Texts
    pricing: Texts
    price_usd_per_h: Floats
    spot_interruption_band: Floats  # NaN where unknown or not spot
    max_instances: Floats  # the user's quota; infinite where none was given
    # shortest_bill_h, bill_step_h: as in ``PriceColumns``
    shortest_bill_h: Floats
    bill_step_h: Floats

    def __len__(self) -> int:
        return len(self.type_index)


def column_of(pricing: Pricing) -> str:
    """Return the name of the column of one way to pay.

    >>> column_of("reserved-1y")
    'reserved_1y_usd_per_h'
    """
    return pricing.replace("-", "_") + "_usd_per_h"
