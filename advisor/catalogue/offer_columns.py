"""The catalogue as columns: one row a type, or one row a (type, region).

Columns are read-only NumPy arrays; NaN is "unknown" or "no price". Money is USD per hour, memory
and rates are bytes.

Of one row None is unknown, and of a source's text ``""``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from advisor.planners.step import Devices

Pricing = Literal["on-demand", "spot", "reserved-1y", "reserved-3y"]
PRICINGS: Final[tuple[Pricing, ...]] = get_args(Pricing)
COMMITTED: Final = PRICINGS[2:]  # of which one binds oneself for years
SpeedSource = Literal["measured", "other benchmark", "same cpu model", "same family", "unknown"]
# How a price came about, the surest first: the user's, published, another's day or place scaled,
# computed from something else.
PriceKind = Literal["own", "listed", "scaled", "derived"]
PRICE_KINDS: Final[tuple[PriceKind, ...]] = get_args(PriceKind)
OWN_LISTING: Final = "own"  # of the user's prices and machines
# Of ``Provenance.listing``, the surest first; what has none of them comes last.
_LISTINGS: Final = (OWN_LISTING, "offered", "list-price-no-stock-info", "not-offered-or-unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a group of prices comes from."""

    as_of: str  # ISO date of the source, ``""`` where the source has none
    status: str  # ``"listed"``, or how the on-demand price was derived
    spot_status: str  # the same of the spot price; ``""`` where there is none
    # ``"offered"``, ``"retired"``, ``"not-offered-or-unknown"`` or ``"list-price-no-stock-info"``
    listing: str
    source: str
    licence: str
    # ways to pay of which the price is the user's, in place of the source's, and its day
    own: tuple[Pricing, ...] = ()
    own_as_of: str = ""

    def day_of(self, pricing: Pricing) -> str:
        """Return the day of the price of one way to pay; ``""`` where its source has none."""
        return self.own_as_of if pricing in self.own else self.as_of

    def status_of(self, pricing: Pricing) -> str:
        """Return how the price of one way to pay came about."""
        if pricing in self.own:
            return "own price"
        return (self.spot_status if pricing == "spot" else "") or self.status

    def kind_of(self, pricing: Pricing) -> PriceKind:
        """Return the kind of the price of one way to pay.

        A dedicated tenancy's price is published, and so are those of parts that are added up.
        """
        status = self.status_of(pricing)
        if status.startswith("own"):
            return "own"
        if status.startswith("derived"):
            return "derived"
        return "scaled" if status.startswith("scaled") or " x " in status else "listed"

    def is_sure(self, pricing: Pricing) -> bool:
        """Whether a source of a known day lists the price, of what is offered there.

        The user's own are sure.
        """
        kind, listing = self.kind_of(pricing), self.listing
        is_listed = (kind, listing) == ("listed", "offered") and self.day_of(pricing) != ""
        return is_listed or OWN_LISTING in (kind, listing)

    def doubt(self, pricing: Pricing) -> tuple[int, int, int]:
        """Return what sorts equal prices: the surest kind, then what is offered, then the newest.

        A price without a day is older than all others.
        """
        listing = _LISTINGS.index(self.listing) if self.listing in _LISTINGS else len(_LISTINGS)
        day = self.day_of(pricing)
        days = date.fromisoformat(day).toordinal() if day else 0
        return PRICE_KINDS.index(self.kind_of(pricing)), listing, -days


class TableRow(SimpleNamespace):
    """A row of a table: an attribute a column, in the units of the facts; None is unknown."""


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.str_]
_NO_DEVICES: Final = Devices(())
_UNKNOWN: Final = {"Floats": np.nan, "Ints": 0, "Bools": False, "Texts": ""}


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

    @classmethod
    def filled(cls, length: int, **known: Any) -> Self:
        """Return so many rows; one value stands for all, and what is left out is unknown."""
        kinds = {f.name: _UNKNOWN[str(f.type)] for f in fields(cls) if f.type in _UNKNOWN}
        for name, unknown in kinds.items():
            value = known.get(name, unknown)
            known[name] = value if np.ndim(value) else np.full(length, value)
        return cls(**known)

    def by_name(self) -> dict[str, NDArray[Any]]:
        """Return the columns with one value a row."""
        named = {column.name: getattr(self, column.name) for column in fields(self)}
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, np.ndarray) and name not in self._LOOKED_UP
        }

    def take(self, rows: Ints | Bools | slice, **others: NDArray[Any]) -> Self:
        """Return the chosen rows, with other columns in place of these where they are given."""
        columns = self.by_name().items()
        mine = {name: column[rows] for name, column in columns if name not in others}
        return replace(self, **mine, **others)

    def join(self, other: Self) -> Self:
        """Return these rows and then the other's; what rows refer to is this one's."""
        others = other.by_name()
        joined = {
            name: np.concatenate([column, others[name]]) for name, column in self.by_name().items()
        }
        return replace(self, **joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeColumns(_Columns):
    """Everything a provider says (and others measured) of its instance types, one row a type.

    A machine that nobody sells is a row, too: its texts are empty.
    """

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
    # how surely messages between machines bypass the kernel: 0 or 1 where a transport tells
    rdma_share: Floats
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
    # as the provider or the machine names it; several, with commas between, where it may be any
    cpu_model: Texts
    # cpu_model_source, cpu_baseline_source: the page that states it, its licence and day; ``""``
    # where ``source`` does, or nobody
    cpu_model_source: Texts
    cpu_arch: Texts
    # share of each virtual CPU that lasts: 1 unless the type is burstable, NaN where it is and
    # nobody says
    cpu_baseline: Floats
    # what a machine may compute beyond its baseline from its launch on [vCPU-hours]
    cpu_launch_h: Floats
    # what more than that costs; NaN where the machine is held at its baseline [USD/vCPU-hour]
    cpu_surplus_usd_per_h: Floats
    cpu_baseline_source: Texts
    local_ssd_bytes: Floats
    source: Texts  # where the specification comes from
    # The columns below are those of the device model, which ``advisor.machines`` fills in: it
    # leaves no network unknown, and is told what a job's limits leave of the processors.
    devices: Devices = _NO_DEVICES
    device: Ints  # row in ``devices``; -1 has no time model
    per_node: Ints  # devices that work in one machine
    # machines among which the link inside one joins all devices: 1, or 18 in an NVL72 rack
    domain_machines: Ints
    is_accelerated: Bools
    is_supported: Bools  # an unchanged PyTorch script runs on it
    # intra_bytes_per_s, intra_latency_s, network_latency_s: between devices of a machine, and
    # between machines
    intra_bytes_per_s: Floats
    intra_latency_s: Floats
    network_latency_s: Floats
    # nobody states the network: ``network_bytes_per_s`` is that of machines rented with the same
    # accelerators, or of like size (``networks``)
    is_network_assumed: Bools
    network_log_sd: Floats  # spread of the logarithm of an assumed network; 0 where it is known
    is_recorded: bool = False  # one machine: the one that the job was recorded on
    # machines are rented for the job: they boot, and an image is brought to them
    is_rented: bool = False

    def __len__(self) -> int:
        return len(self.name)

    def boot_s(self, job_boot_s: float | None) -> float:
        """Return how long machines take until a program can start on them [s]."""
        return (job_boot_s or 0.0) if self.is_rented else 0.0

    @property
    def is_rdma(self) -> Bools:
        """Return which are sure to bypass the kernel."""
        return np.asarray(self.rdma_share == 1.0)

    def stated(self) -> dict[str, NDArray[Any]]:
        """Return the columns of what is said of the types, without those of the device model."""
        return dict(itertools.takewhile(lambda one: one[0] != "device", self.by_name().items()))

    def at(self, index: int) -> TableRow:
        """Return what is said of one type, and ``index``, its place among them."""
        cells = ((name, column[index].item()) for name, column in self.stated().items())
        return TableRow(index=index, **{name: None if one != one else one for name, one in cells})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers(_Columns):
    """What is sold: one row a (type, region); prices in USD per hour, NaN where there is none.

    What is selected has one row a (type, region, way to pay), cheapest first.
    """

    _LOOKED_UP: ClassVar[frozenset[str]] = frozenset({"regions"})

    type_index: Ints  # row in ``TypeColumns``
    region_index: Ints  # row in ``regions``
    regions: Texts  # names of all regions
    on_demand_usd_per_h: Floats
    spot_usd_per_h: Floats
    reserved_1y_usd_per_h: Floats
    reserved_3y_usd_per_h: Floats
    # AWS's bands: 0 is below 5 % a month, 1 to 10, 2 to 15, 3 to 20, 4 above 20 %
    spot_interruption_band: Floats  # NaN where unknown, or where another way is selected
    max_instances: Floats  # the user's quota; infinite where none was given
    # shortest_bill_h, bill_step_h: what is charged at least, and what a bill is a whole multiple
    # of; a step of 0 is by the second [h]
    shortest_bill_h: Floats
    bill_step_h: Floats
    provenance_index: Ints  # row in ``provenances``
    provenances: tuple[Provenance, ...]
    # pricing, price_usd_per_h: the way to pay that is selected, and its price; ``""`` and NaN
    # where none is
    pricing: Texts
    price_usd_per_h: Floats
    # most_at_once, most_launched: machines that a new account can rent, inf where no limit is
    # known, and that one of the launchers of the provider rents together; of what is selected
    most_at_once: Floats
    most_launched: Floats
    # is_dated, is_sure: the price selected has a day; and its source lists it, and the offer
    is_dated: Bools
    is_sure: Bools

    def __len__(self) -> int:
        return len(self.type_index)

    def lacks(self, rows: Ints, machines: Ints) -> Ints:
        """Return how much offers lack of what can be had, in so many machines: 0 to 2.

        One is a price to trust (``is_sure``), the other a launcher that rents them.
        """
        by_hand = machines > self.most_launched[rows]
        return by_hand.astype(np.int64) + ~self.is_sure[rows]

    @property
    def region(self) -> Texts:
        """Region names, one a row."""
        return self.regions[self.region_index]

    def source(self, row: int) -> Provenance:
        """Return where the prices of a row come from."""
        return self.provenances[int(self.provenance_index[row])]

    def of_source(self, fact: Callable[[Provenance], str]) -> Texts:
        """Spread what is known of the sources over the rows."""
        return np.array([fact(one) for one in self.provenances], dtype=str)[self.provenance_index]

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


def column_of(pricing: Pricing) -> str:
    """Return the name of the column of one way to pay.

    >>> column_of("reserved-1y")
    'reserved_1y_usd_per_h'
    """
    return pricing.replace("-", "_") + "_usd_per_h"
