"""Machines, layouts, times and money of a record in a few words: the pieces of every text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from advisor.quantities import count_text, digits, hours_interval, seconds_interval, usd_interval

Record = Mapping[str, Any]

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


def hours_words(record: Record) -> tuple[str, str]:
    """Return a time in hours and its bounds: ``("42.0 min", "28.0-63.0")``."""
    return hours_interval(Bounds.of(record))


def seconds_words(record: Record) -> tuple[str, str]:
    """Return a time in seconds and its bounds."""
    return seconds_interval(Bounds.of(record))


def usd_words(record: Record) -> tuple[str, str]:
    """Return money and its bounds: ``("$0.10", "0.067-0.15")``."""
    return usd_interval(Bounds.of(record))


def count_words(record: Record) -> tuple[str, str]:
    """Return a large count and its bounds: ``("37.9B", "17.5B-85.3B")``."""
    low, high = count_text(record["low"]), count_text(record["high"])
    return count_text(record["value"]), f"{low}-{high}"


def interval_text(pair: tuple[str, str]) -> str:
    """Return a value with its bounds behind it: ``"42.0 min (28.0-63.0)"``."""
    return f"{pair[0]} ({pair[1]})"


def time_text(answer: Record) -> str:
    """Return the time of the whole job with its bounds."""
    return interval_text(hours_words(answer["training_time_h"]))


def cost_text(answer: Record) -> str:
    """Return the cost of the whole job with its bounds."""
    return interval_text(usd_words(answer["cost_usd"]))


def direct_cost_text(answer: Record) -> str:
    """Return the cost of the steps as it was learned with no time in between; empty without."""
    if answer["cost_direct_usd"] is None:
        return ""
    value, bounds = usd_words(answer["cost_direct_usd"])
    return f"{value}  ({bounds}; the steps alone, by a model of the cost itself)"


def machine(part: Record) -> str:
    """Return equal machines of a configuration: ``"2 x g5.xlarge"``, ``"this machine"``."""
    own = part["pricing"] == "own"
    return "this machine" if own else f"{part['count']} x {part['instance_type']}"


def machines_words(parts: Sequence[Record]) -> str:
    """Return what is rented: ``"2 x g5.xlarge + 1 x m5.large"``."""
    return " + ".join(f"{part['count']} x {part['instance_type']}" for part in parts)


def contents_words(part: Record) -> str:
    """Return what is in one machine: ``"8 x L4"``, or its processor and memory."""
    if part["accelerator"] is None:
        return f"{part['vcpus']} vCPU, {part['memory_gib']:.4g} GiB"
    return f"{part['accelerators_per_instance']:g} x {part['accelerator']}"


def devices_words(parts: Sequence[Record]) -> str:
    """Return what computes, all machines together: ``"8 x L4"``, or their names without one."""
    if not all(part["accelerator"] for part in parts):
        return machines_words(parts)
    return " + ".join(
        f"{part['count'] * part['accelerators_per_instance']:g} x {part['accelerator']}"
        for part in parts
    )


def place_words(parts: Sequence[Record], completion: str = "on-demand") -> str:
    """Return where machines stand and how they are paid: ``"aws us-east-1, on-demand"``."""
    if all(part["provider"] == "here" for part in parts):
        return str(parts[0]["region"])
    places = dict.fromkeys(f"{part['provider']} {part['region']}".strip() for part in parts)
    pricing = dict.fromkeys(str(part["pricing"]) for part in parts)
    plain = completion in ("on-demand", "spot")
    paid = " + ".join(pricing) if plain else completion.replace("-", " ")
    return ", ".join(filter(None, (" + ".join(places), paid)))


def offer_words(parts: Sequence[Record]) -> str:
    """Return machines, what is in them and where they are.

    Examples
    --------
    >>> offer_words([{"provider": "verda", "instance_type": "1V100.6V", "region": "FIN-01",
    ...               "pricing": "on-demand", "accelerator": "V100-SXM2-16GB", "terms": "",
    ...               "accelerators_per_instance": 1.0, "count": 2}])
    '2 x 1V100.6V (1 x V100-SXM2-16GB each, verda FIN-01)'
    """
    said = []
    for part in parts:
        each = " each" if part["count"] > 1 else ""
        spot = ", spot" if part["pricing"] == "spot" else ""
        spot += f", {part['terms']}" if part["terms"] else ""
        place = f"{part['provider']} {part['region']}{spot}"
        name = f"{part['count']} x {part['instance_type']}"
        said.append(f"{name} ({contents_words(part)}{each}, {place})")
    return " + ".join(said)


def picked_as_words(record: Record, rank: int | str) -> str:
    """Return what a rank of an answer's record is picked as, ``"here"`` included."""
    picks = record.get("picks", {})
    return ", ".join(label for name, label in PICKS.items() if picks.get(name) == rank)


def answer_line(answer: Record) -> str:
    """Return an answer in one line."""
    parts = answer["configuration"]
    said = [interval_text(seconds_words(answer["step_time_s"])) + " a step"]
    if answer["training_time_h"] is not None:
        said = [time_text(answer)]
    if answer["cost_usd"] is not None:
        said.append(cost_text(answer))
    said += [f"limited by {answer['bottleneck']}"] if answer["bottleneck"] else []
    place = place_words(parts, answer["completion"])
    return f"#{answer['rank']} {machines_words(parts)} ({place}): {', '.join(said)}"


def degrees(layout: Record) -> str:
    """Return how many ranks share what, e.g. ``"dp 16 x tp 8 x pp 4"``.

    >>> degrees({"dp": 2, "tp": 4, "pp": 1, "cp": 1, "ep": 1})
    'dp 2 x tp 4'
    """
    names = ("dp", "tp", "pp", "cp", "ep")
    found = [f"{name} {layout[name]}" for name in names if layout[name] > 1]
    return " x ".join(found) or "one device"


def layout_words(layout: Record) -> str:
    """Return a layout in words.

    >>> from advisor.planners.core.nouns import Layout
    >>> layout = Layout(dp=8, micro_batch=2, accumulation_steps=4, zero_stage=2)
    >>> layout_words(layout.to_record())
    'dp 8, micro-batch 2 x 4, ZeRO 2'
    """
    said = [
        degrees(layout).replace(" x ", ", "),
        f"micro-batch {layout['micro_batch']} x {layout['accumulation_steps']}",
    ]
    if layout["zero_stage"]:
        shard = layout["shard_group"]
        said.append(f"ZeRO {layout['zero_stage']}{f' within {shard} ranks' if shard else ''}")
    if layout["recompute"] != "none":
        some = layout.get("partial_layers")
        of = f" of {some} layers a {'chunk' if layout['virtual_stages'] > 1 else 'stage'}"
        said.append(f"{layout['recompute']} recomputation{of if some else ''}")
    if layout["pp"] > 1:
        said.append(layout["schedule"])
    if layout["virtual_stages"] > 1:
        said.append(f"{layout['virtual_stages']} chunks a device")
    if layout["is_sequence_parallel"]:
        said.append("sequence parallel")
    if layout["offload"]:
        some = layout.get("partial_layers") if "activations" in layout["offload"] else None
        of = f" (of {some} layers)" if some else ""
        said.append(f"{' and '.join(sorted(layout['offload']))} in host memory{of}")
    if layout["average_every"] > 1:
        said.append(f"averaged every {layout['average_every']} steps")
    return ", ".join(said)


def units_words(units: Record | None) -> tuple[str, ...]:
    """Return tokens, utilisation and accelerator-hours in one phrase; nothing without units.

    >>> units_words({"tokens_per_s": 123456.0, "utilisation": None, "accelerator_hours": 2310.0})
    ('123,456 tokens/s, 2,310 accelerator-hours',)
    """
    if units is None:
        return ()
    said = []
    if units["tokens_per_s"] is not None:
        said.append(f"{digits(units['tokens_per_s'])} tokens/s")
    if units["utilisation"] is not None:
        said.append(f"MFU {units['utilisation']['fraction']:.0%}")
    if units["accelerator_hours"] is not None:
        said.append(f"{digits(units['accelerator_hours'])} accelerator-hours")
    return (", ".join(said),) if said else ()


def wrapped(text: str, width: int, *, indent: str = "", first: str = "") -> list[str]:
    """Return lines of at most ``width``, names and numbers in one piece; later ones indented."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
