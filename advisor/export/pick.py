"""What is exported: one row of an answer's record, and what is known of the job beside it.

Everything is read from the JSON record of ``advisor recommend --json``: an export holds the
numbers of the answer, and computes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from advisor.domain import CompletionWay, Estimate
from advisor.errors import AdvisorError, UsageError
from advisor.planners.core.nouns import Layout

HERE: Final = "here"


class NothingToExportError(AdvisorError):
    """The answer has no row that satisfies the constraints."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """Equal machines of an answer, in one place at one price.

    Attributes
    ----------
    provider, instance_type, region, pricing, terms : str
    count : int
        Machines.
    price_usd_per_h : float
        Of one. [USD/h]
    accelerator : str or None
    accelerators : float
        In one machine; a fraction where a card is shared.
    """

    provider: str
    instance_type: str
    region: str
    pricing: str
    count: int
    price_usd_per_h: float
    accelerator: str | None
    accelerators: float
    terms: str = ""

    @property
    def is_spot(self) -> bool:
        """Whether the provider may take them away."""
        return self.pricing == "spot"

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Rented:
        """Return what ``Offer.to_record`` wrote."""
        return cls(
            provider=str(record["provider"]),
            instance_type=str(record["instance_type"]),
            region=str(record["region"]),
            pricing=str(record["pricing"]),
            count=_whole(record["count"]),
            price_usd_per_h=float(record["price_usd_per_h"]),
            accelerator=None if record["accelerator"] is None else str(record["accelerator"]),
            accelerators=float(record["accelerators_per_instance"]),
            terms=str(record.get("terms", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """What could be rented in place of the pick: the model cannot tell the two apart.

    Attributes
    ----------
    machines : tuple of Rented
    kind : str
        ``"region"``, ``"provider"`` or ``"machine"``: what differs.
    training_time_h, cost_usd : float
        Expected. [h], [USD]
    """

    machines: tuple[Rented, ...]
    kind: str
    training_time_h: float
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The row of an answer that is exported.

    Attributes
    ----------
    rank : int
    run : str
        The recorded run, or the name of the job.
    machines : tuple of Rented
        Several where machines of several types train together.
    completion : CompletionWay
    way : str
        How the job is trained: a name of ``ways.columns.WAYS``.
    layout : Layout
    step_time_s, training_time_h, cost_usd : Estimate
        [s], [h], [USD]
    memory_gib : float
        Needed on the fullest device. [GiB]
    alternatives : tuple of Instead
        Nearest first.
    prices_of : str
        Day of the newest price. ISO 8601.
    """

    rank: int
    run: str
    machines: tuple[Rented, ...]
    completion: CompletionWay
    way: str
    layout: Layout
    step_time_s: Estimate
    training_time_h: Estimate
    cost_usd: Estimate
    memory_gib: float
    alternatives: tuple[Instead, ...]
    prices_of: str

    @property
    def rented(self) -> Rented:
        """The machines, where they are all of one type."""
        return self.machines[0]

    @property
    def is_spot(self) -> bool:
        """Whether any of the machines may be taken away."""
        return any(one.is_spot for one in self.machines)

    @property
    def nodes(self) -> int:
        """Machines, all together."""
        return sum(one.count for one in self.machines)

    @property
    def price_usd_per_h(self) -> float:
        """Price of all machines together, in USD/h."""
        return sum(one.price_usd_per_h * one.count for one in self.machines)

    @property
    def longest_s(self) -> int:
        """High end of the training time's interval, in whole seconds: where a time limit is set.

        A job that the limit ends is lost, so that the limit is no part of the estimate.
        """
        return -int(-self.training_time_h.high * 3600 // 1)


def read_pick(record: Any, rank: int | None = None) -> Pick:
    """Return a row of the record of ``advisor recommend --json``.

    Parameters
    ----------
    record : mapping
    rank : int, optional
        The row; the best value by default, which may be the machine at hand.

    Raises
    ------
    UsageError
        If there is no such row, or the record is none of a recommendation.
    NothingToExportError
        If nothing satisfied the constraints.
    """
    try:
        return _read(record, rank)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"cannot read this as an answer: {type(error).__name__} {error}",
            hint="give a file that `advisor recommend --json` wrote",
        ) from error


def _read(record: Mapping[str, Any], rank: int | None) -> Pick:
    rows: Sequence[Mapping[str, Any]] = record["front"]
    wanted = rank if rank is not None else record["picks"].get("best_value")
    if wanted is None:
        raise NothingToExportError(
            f"nothing satisfies the constraints for {record['run']}",
            hint="see the nearest misses with `advisor recommend`, and relax one constraint",
        )
    is_here = wanted == HERE
    row = record["here"] if is_here else next((r for r in rows if r["rank"] == wanted), None)
    if row is None:
        raise UsageError(
            f"there is no row {wanted}",
            hint=f"give 1 to {len(rows)}" if rows else "nothing satisfies the constraints",
        )
    layout = dict(row["layout"])
    layout["offload"] = frozenset(layout["offload"])
    if row["completion"] not in get_args(CompletionWay):
        raise ValueError(f"completion {row['completion']!r}")
    return Pick(
        rank=_whole(row["rank"]),
        run=str(record["run"]),
        machines=_machines(row["configuration"]),
        completion=cast(CompletionWay, row["completion"]),
        way=str(row["way"]),
        layout=Layout(**layout),
        step_time_s=Estimate(**row["step_time_s"]),
        training_time_h=Estimate(**row["training_time_h"]),
        cost_usd=Estimate(**row["cost_usd"]),
        memory_gib=float(row["memory_gib"]),
        alternatives=tuple(
            Instead(
                machines=_machines(one["configuration"]),
                kind=str(one["kind"]),
                training_time_h=float(one["training_time_h"]),
                cost_usd=float(one["cost_usd"]),
            )
            for one in row["alternatives"]
        ),
        prices_of=str(record["catalogue"]["as_of"]),
    )


def _machines(parts: Sequence[Mapping[str, Any]]) -> tuple[Rented, ...]:
    found = tuple(Rented.read(part) for part in parts)
    if not found:
        raise ValueError("a configuration without machines")
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value
