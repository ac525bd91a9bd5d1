"""Texts of exported files: YAML with what was answered on top, as comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advisor.collectors.printable import shown
from advisor.domain import Estimate
from advisor.export.pick import Pick, Rented


def number(value: float) -> str:
    """Return a number as the JSON has it: read back, it is the same."""
    return repr(float(value))


def estimate_text(one: Estimate, unit: str) -> str:
    """Return a value with its interval, digit for digit that of the JSON."""
    return (
        f"{number(one.value)} {unit} ({number(one.low)} to {number(one.high)}, "
        f"{one.coverage:.0%} interval)"
    )


def answer_lines(pick: Pick) -> Iterator[str]:
    """Yield what was answered, a line each: machines, price, time, cost and alternatives."""
    yield f"Row {pick.rank} of `advisor recommend` for {pick.run}, prices of {pick.prices_of}."
    for one in pick.machines:
        yield f"machines: {machines_text(one)}"
    yield f"price_usd_per_h: {number(pick.price_usd_per_h)}"
    yield f"training_time_h: {estimate_text(pick.training_time_h, 'h')}"
    yield f"cost_usd: {estimate_text(pick.cost_usd, 'USD')}"
    yield f"step_time_s: {estimate_text(pick.step_time_s, 's')}"
    yield f"memory_gib: {number(pick.memory_gib)} on the fullest device"
    for other in pick.alternatives:
        machines = " + ".join(machines_text(one) for one in other.machines)
        yield (f"or: {machines}: {number(other.training_time_h)} h, {number(other.cost_usd)} USD")


def machines_text(one: Rented) -> str:
    """Return equal machines with place and price of one."""
    cards = "" if one.accelerator is None else f" ({one.accelerators:g} x {one.accelerator} each)"
    terms = f", {one.terms}" if one.terms else ""
    return (
        f"{one.count} x {one.instance_type}{cards}, {one.provider} {one.region}, "
        f"{one.pricing}{terms}, {number(one.price_usd_per_h)} USD/h each"
    )


def commented(lines: Sequence[str]) -> str:
    """Return lines as comments of YAML or of a shell; no text in them can end its comment."""
    return "".join(f"# {shown(line)}\n" for line in lines)


def yaml_text(document: Mapping[str, Any] | Sequence[Mapping[str, Any]], pick: Pick) -> str:
    """Return one YAML document, or several, under what was answered.

    Parameters
    ----------
    document : mapping, or sequence of mapping
        In the order in which the keys are written.
    pick : Pick
    """
    import yaml

    several = [document] if isinstance(document, Mapping) else list(document)
    bodies = [
        yaml.dump(one, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=1000)
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

    >>> job_name("20261122-140147-Digits_CNN.py-3529")
    'digits-cnn-py'
    """
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"^\d{8}-\d{6}-|-\d+$", "", run).lower())
    return re.sub(r"^[^a-z]+", "", words[:40]).strip("-") or "training"


def exchangeable(pick: Pick) -> tuple[list[Rented], tuple[str, ...]]:
    """Return the alternatives that the pick's command starts as it is, and a note on the others.

    These are as many machines, with as many accelerators in each.
    """
    own = pick.rented
    alone = [one.machines[0] for one in pick.alternatives if len(one.machines) == 1]
    same = [o for o in alone if (o.count, o.accelerators) == (own.count, own.accelerators)]
    left = len(pick.alternatives) - len(same)
    plural = "alternative has" if left == 1 else "alternatives have"
    note = (f"{left} {plural} other numbers of machines or accelerators: a comment only",)
    return same, note if left else ()
