"""Offers: machines that are sold, or rented together; their bills, and where numbers are from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from advisor.answer.json_records import Recorded, float_of, plain_of, shown, with_hooks
from advisor.providers import launched_by

if TYPE_CHECKING:
    from cattrs import Converter


# What a job runs on until it is done: on-demand machines, spot ones, spot ones with on-demand ones
# in their place while there are none, as many spot machines as there are, or what a plan by the
# deadline says.
CompletionWay = Literal[
    "on-demand", "spot", "spot-with-fallback", "elastic-spot", "spot-by-deadline"
]  # fmt: skip
COMPLETIONS: Final[tuple[CompletionWay, ...]] = get_args(CompletionWay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An instance type in a region at a price.

    ``accelerators`` is the number in one instance (a fraction where a card is shared), 0 with
    ``accelerator`` None for a machine without. ``price_usd_per_h`` is nan where nobody states one
    and ``vcpus`` 0 where they are not known. ``terms`` says what is particular of the price: a
    reservation or a capacity block of the user's, how often spot machines are taken away.
    ``price_as_of`` is the day of the price (ISO 8601, ``""`` where its source has none),
    ``price_kind`` one of ``"own"``, ``"listed"``, ``"scaled"`` and ``"derived"``, and
    ``price_status`` how it came about. ``listing`` is what the source says of the offer there
    (``Provenance.listing``), ``most_at_once`` how many machines a new account can rent (None: no
    limit is known).
    """

    provider: str
    instance_type: str
    region: str
    pricing: str
    price_usd_per_h: float
    accelerator: str | None
    accelerators: float
    vcpus: int
    memory_gib: float
    terms: str = ""
    price_as_of: str = ""
    price_kind: str = ""
    price_status: str = ""
    listing: str = ""
    most_at_once: int | None = None

    def __repr__(self) -> str:
        """Say what is sold, where, how it is paid and for how much."""
        inside = f"{self.vcpus} vCPU, {self.memory_gib:g} GiB"
        if self.accelerator is not None:
            inside = f"{self.accelerators:g} x {self.accelerator}"
        terms = f", {self.terms}" if self.terms else ""
        return (
            f"<Offer {self.provider} {self.instance_type} {self.region}, {self.pricing}{terms}: "
            f"{self.price_usd_per_h:.4g} USD/h, {inside}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is rented together: ``(offer, count)`` parts; several parts are a mixed cluster."""

    parts: tuple[tuple[Offer, int], ...]

    def __repr__(self) -> str:
        """Say what is rented together, and its price."""
        machines = " + ".join(f"{n} x {offer.instance_type}" for offer, n in self.parts)
        return f"<Configuration {machines}: {self.price_usd_per_h:.4g} USD/h>"

    @property
    def price_usd_per_h(self) -> float:
        """Price of all instances together; nan where one has none [USD/h]."""
        return sum(offer.price_usd_per_h * count for offer, count in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(Recorded):
    """What could be rented in place of a candidate: the model cannot tell the two apart.

    ``kind`` says what differs: the same type elsewhere, the same accelerators elsewhere, or the
    machines. Time and cost are expected ones.
    """

    configuration: Configuration
    kind: Literal["region", "provider", "machine"]
    training_time_h: float
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of a job takes of its expected time and cost; None: not priced [h], [USD]."""

    time_h: float
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill(Recorded):
    """What is expected to be rented at one price: time and price as of all instances [h]."""

    written: ClassVar[tuple[str, ...]] = ("cost_usd",)

    pricing: str
    time_h: float
    price_usd_per_h: float

    @property
    def cost_usd(self) -> float:
        """What is paid at this price."""
        return self.time_h * self.price_usd_per_h


def _row(offer: Offer, count: int) -> dict[str, Any]:
    price = None if math.isnan(offer.price_usd_per_h) else offer.price_usd_per_h
    record = {name: getattr(offer, name) for name in Offer.__slots__}
    each = record.pop("accelerators")
    return record | {
        "count": count, "price_usd_per_h": price, "accelerators_per_instance": each,
        "launchers": list(launched_by(offer.provider, count)),
    }  # fmt: skip


def _rows(configuration: Configuration) -> list[dict[str, Any]]:
    return [_row(*one) for one in configuration.parts]


def _read_rows(rows: Any, _: Any) -> Configuration:
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"machines are wanted, got {shown(rows)}")
    return Configuration(parts=tuple(_part(row) for row in rows))


def _part(row: Any) -> tuple[Any, int]:
    """Read equal machines: what is offered, and how many."""
    if not isinstance(row, Mapping):
        raise TypeError(f"machines must be an object, got {shown(row)}")
    values = dict(row)
    price, each = values["price_usd_per_h"], values.pop("accelerators_per_instance")
    values |= {"price_usd_per_h": math.nan if price is None else float_of(price, float)}
    values |= {"accelerators": float_of(each, float), "memory_gib": float(values["memory_gib"])}
    count = plain_of(values.pop("count"), int)
    return Offer(**{name: values[name] for name in Offer.__slots__ if name in values}), count


def _as_records(converter: Converter) -> None:
    """Write a configuration as its list of machines, an offer as one of them."""
    converter.register_unstructure_hook(Configuration, _rows)
    converter.register_structure_hook(Configuration, _read_rows)
    converter.register_unstructure_hook(Offer, lambda offer: _row(offer, 1))
    converter.register_structure_hook(Offer, lambda row, _: _part(row)[0])


with_hooks(_as_records)


Source = Literal["measured", "looked up", "computed", "learned", "given", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number the estimate rests on: what it is, its value in words, and where it is from."""

    what: str
    value: str
    source: Source
    note: str = ""
