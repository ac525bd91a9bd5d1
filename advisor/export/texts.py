"""Texts of exported files: YAML with what was answered on top, as comments."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from advisor.answer import Offer
from advisor.collectors.errors import shown
from advisor.export.pick import Pick
from advisor.quantities import digits, hours_text, percent_text, usd_text
from advisor.words import (
    cost_text,
    layout_words,
    memory_words,
    standing_words,
    surplus_words,
    time_text,
)

# What the catalogue says where a provider has one price for all its regions.
ANYWHERE: Final = frozenset({"all-regions", "global"})

ONE_TYPE: Final = "a job names one machine type: alternatives are comments only"

# Device plugins' resources by the first letters of the catalogue's accelerators.
PLUGINS: Final[Mapping[str, str]] = {
    "MI": "amd.com/gpu",
    "Radeon": "amd.com/gpu",
    "TPU": "google.com/tpu",
    "Trainium": "aws.amazon.com/neuron",
    "Inferentia": "aws.amazon.com/neuron",
    "Gaudi": "habana.ai/gaudi",
}


def number(value: float) -> str:
    """Return a number with about three digits, of signs that tags take.

    >>> number(2.4567), number(45678.9)
    ('2.46', '45679')
    """
    return digits(value).replace(",", "")


# How a file is known for an earlier export: a word of its first comment, or SageMaker's first tag.
MARKS: Final = (" of `advisor recommend` for ", '"advisor:run"')


def answer_lines(pick: Pick) -> Iterator[str]:
    """Yield what was answered, a line each: machines, layout, price, time, cost, alternatives."""
    record = pick.to_record()
    standing = standing_words(record)
    yield f"Row {pick.rank}{MARKS[0]}{pick.run}{f', {standing}' if standing else ''}."
    for part in pick.configuration.parts:
        yield f"machines: {machines_text(*part)}"
    yield f"layout: {layout_words(pick.layout.to_record())}"
    yield f"price: {usd_text(pick.configuration.price_usd_per_h)} an hour"
    coverage = percent_text(pick.training_time_h.coverage)
    yield f"training time, {coverage} interval: {time_text(record)}"
    surplus = surplus_words(record)
    yield f"cost: {cost_text(record)}{f', {surplus}' if surplus else ''}"
    yield f"memory of the fullest device: {memory_words(record)}"
    for other in pick.alternatives:
        machines = " + ".join(machines_text(*part) for part in other.configuration.parts)
        yield f"or: {machines}: {hours_text(other.training_time_h)}, {usd_text(other.cost_usd)}"


def machines_text(one: Offer, count: int) -> str:
    """Return equal machines with place and price of one."""
    cards = "" if one.accelerator is None else f" ({one.accelerators:g} x {one.accelerator} each)"
    terms = f", {one.terms}" if one.terms else ""
    return (
        f"{count} x {one.instance_type}{cards}, {one.provider} {one.region}, "
        f"{one.pricing}{terms}, {usd_text(one.price_usd_per_h)} an hour each"
    )


def commented(lines: Sequence[str]) -> str:
    """Return lines as comments of YAML or of a shell; no text in them can end its comment."""
    return "".join(f"# {shown(line)}\n" for line in lines)


def marked(text: str, pick: Pick) -> str:
    """Return a text below a comment that says of what it is an export."""
    return commented([next(answer_lines(pick))]) + text


def yaml_text(document: Mapping[str, Any] | Sequence[Mapping[str, Any]], pick: Pick) -> str:
    """Return one YAML document, or several, under what was answered.

    ``document``: in the order in which the keys are written.
    """
    import yaml

    several = [document] if isinstance(document, Mapping) else list(document)
    bodies = [
        yaml.dump(one, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=sys.maxsize)
        for one in several
    ]
    return commented(list(answer_lines(pick))) + "---\n".join(bodies)


def _dumper() -> Any:
    """Return PyYAML's writer, with texts of several lines as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def written(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, written)
    return Dumper


def job_name(run: str) -> str:
    """Return a name that every scheduler takes: lower-case words and dashes, 40 signs at most.

    >>> job_name("20261122-140147-Digits_CNN.py-35f9")
    'digits-cnn-py'
    """
    recorded = re.fullmatch(r"\d{8}-\d{6}-(.+)-[0-9a-f]{4}", run)
    words = re.sub(r"[^a-z0-9]+", "-", (recorded[1] if recorded else run).lower())
    return re.sub(r"^[^a-z]+", "", words[:40]).strip("-") or "training"


def exchangeable(pick: Pick) -> tuple[list[Offer], tuple[str, ...]]:
    """Return the alternatives that the pick's command starts as it is, and a note on the others.

    These are as many machines, with as many accelerators in each, programmed in the same way.
    """
    own = pick.nodes, pick.rented.accelerators, plugin(pick.rented)
    parts = [one.configuration.parts for one in pick.alternatives]
    alone = [part for part, *more in parts if not more]
    same = [one for one, count in alone if (count, one.accelerators, plugin(one)) == own]
    left = len(pick.alternatives) - len(same)
    plural = "alternative has" if left == 1 else "alternatives have"
    note = (f"{left} {plural} other machines than the command starts: a comment only",)
    return same, note if left else ()


def plugin(one: Offer) -> str:
    """Return the device plugin's resource of a machine's accelerators, ``""`` without any."""
    if one.accelerator is None or one.accelerators <= 0:
        return ""
    named = (name for start, name in PLUGINS.items() if one.accelerator.startswith(start))
    return next(named, "nvidia.com/gpu")


def attached(one: Offer) -> tuple[str, str, int]:
    """Return a machine without the cards that GCP attaches to it, and these: name and number.

    The catalogue calls ``n1-standard-4`` with one T4 ``n1-standard-4+1xT4``.
    """
    machine, _, cards = one.instance_type.partition("+")
    count, _, card = cards.partition("x")
    return machine, card, int(count) if count.isdecimal() else 0


def is_in_one_region(one: Offer) -> bool:
    """Whether the region is a region's name, and not the catalogue's word for any of them."""
    return one.region not in ANYWHERE
