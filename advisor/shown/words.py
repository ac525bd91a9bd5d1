"""Answers in one line: what ``repr`` shows, and the cells of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from advisor.quantities import hours_interval, usd_interval

# What is picked, by its name in ``Recommendation.picks``.
PICKS: Final[Mapping[str, str]] = {
    "best_value": "best value",
    "cheapest": "cheapest",
    "fastest": "fastest worth its money",
    "within_deadline": "cheapest that keeps the deadline",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A record's value with its bounds, all in one unit."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, record: Mapping[str, float]) -> Bounds:
        """Return what an ``Estimate`` wrote."""
        return cls(value=record["value"], low=record["low"], high=record["high"])


def machines(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return what is rented: ``"2 x g5.xlarge + 1 x m5.large"``."""
    return " + ".join(f"{part['count']} x {part['instance_type']}" for part in parts)


def inside(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return what computes, all machines together: ``"8 x L4"``, or their names without one."""
    if not all(part["accelerator"] for part in parts):
        return machines(parts)
    return " + ".join(
        f"{part['count'] * part['accelerators_per_instance']:g} x {part['accelerator']}"
        for part in parts
    )


def where(parts: Sequence[Mapping[str, Any]], completion: str = "on-demand") -> str:
    """Return where machines stand and how they are paid: ``"aws us-east-1, on-demand"``."""
    if all(part["provider"] == "here" for part in parts):
        return str(parts[0]["region"])
    places = dict.fromkeys(f"{part['provider']} {part['region']}" for part in parts)
    pricing = dict.fromkeys(str(part["pricing"]) for part in parts)
    plain = completion in ("on-demand", "spot")
    paid = " + ".join(pricing) if plain else completion.replace("-", " ")
    return f"{' + '.join(places)}, {paid}"


def picked_as(record: Mapping[str, Any], rank: int | str) -> str:
    """Return what a rank of an answer's record is picked as, ``"here"`` included."""
    picks = record.get("picks", {})
    return ", ".join(label for name, label in PICKS.items() if picks.get(name) == rank)


def time_text(candidate: Mapping[str, Any]) -> str:
    """Return the time of the whole job with its bounds: ``"42.0 min (28.0-63.0)"``."""
    value, bounds = hours_interval(Bounds.of(candidate["training_time_h"]))
    return f"{value} ({bounds})"


def cost_text(candidate: Mapping[str, Any]) -> str:
    """Return the cost of the whole job with its bounds: ``"$0.10 (0.067-0.15)"``."""
    value, bounds = usd_interval(Bounds.of(candidate["cost_usd"]))
    return f"{value} ({bounds})"


def candidate_line(candidate: Mapping[str, Any]) -> str:
    """Return a candidate in one line."""
    parts = candidate["configuration"]
    return (
        f"#{candidate['rank']} {machines(parts)} ({where(parts, candidate['completion'])}): "
        f"{time_text(candidate)}, {cost_text(candidate)}, limited by {candidate['bottleneck']}"
    )
