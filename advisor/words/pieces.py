"""Machines, layouts, times and money of a record in a few words: the pieces of every text."""

from __future__ import annotations

import re
import shlex
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from advisor.providers import provider_of
from advisor.quantities import (
    count_text,
    digits,
    hours_interval,
    percent_text,
    seconds_interval,
    usd_interval,
    usd_text,
)

Record = Mapping[str, Any]

_WITH_UNIT: Final = re.compile(r"(\d) (%|(?:us|ms|s|min|h|d|GiB|GB|MB|x)(?!\w))")

# What names in records are called, by kind.
PHRASES: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(
    Path(__file__).with_name("phrases.toml").read_text("utf-8")
)
# What is picked, by its name in ``Recommendation.picks``.
PICKS: Final[Mapping[str, str]] = PHRASES["picks"]
# Where less than this of a job's time is no steps, nothing is said of its parts.
_WORTH_SAYING: Final = 0.05


def part_words(name: str) -> str:
    """Return what a part of the job's time and cost is."""
    return PHRASES["parts"].get(name, name)


def ledger_words(answer: Record) -> str:
    """Say what a whole job's time goes to, largest first; nothing where it is steps alone."""
    hours = {name: part["time_h"] for name, part in answer["breakdown"].items()}
    whole = sum(hours.values())
    if not whole or hours["steps"] >= (1 - _WORTH_SAYING) * whole:
        return ""
    return ", ".join(
        f"{part_words(name)} {percent_text(time_h / whole)}"
        for name, time_h in sorted(hours.items(), key=lambda item: -item[1])
        if time_h >= _WORTH_SAYING * whole
    )


def count_words(record: Record) -> tuple[str, str]:
    """Return a large count and its bounds: ``("37.9B", "17.5B-85.3B")``."""
    low, high = count_text(record["low"]), count_text(record["high"])
    return count_text(record["value"]), f"{low}-{high}"


def interval_text(pair: tuple[str, str]) -> str:
    """Return a value with its bounds behind it: ``"42.0 min (28.0-63.0)"``."""
    return f"{pair[0]} ({pair[1]})"


# What is said of a price that nobody dates, everywhere.
WITHOUT_DAY: Final = "without a date"
# What is said of a price by its kind, the least sure first; of a listed one nothing.
_PRICES: Final = (
    ("derived", "derived price"), ("scaled", "scaled price"), ("own", "your price"),
)  # fmt: skip


def price_words(parts: Sequence[Record]) -> str:
    """Say of which day prices are, the oldest of several; nothing of a machine at hand.

    >>> price_words([{"price_as_of": "2026-07-30", "price_kind": "listed"}])
    'price of 2026-07-30'
    >>> price_words([{"price_as_of": "", "price_kind": "derived"}])
    'derived price without a date'
    """
    parts = [part for part in parts if part.get("pricing") != "own"]
    if not parts:
        return ""
    kinds = {part.get("price_kind") for part in parts}
    said = next((words for kind, words in _PRICES if kind in kinds), "price")
    return f"{said} {_day(min(str(part.get('price_as_of') or '') for part in parts))}"


# Takes machines that somebody rented by hand.
BY_HAND: Final = "kubernetes"
# What this machine may take to be told beside what can be rented. [h]
LONGEST_H: Final = 30 * 24.0


def launchers(one: Record) -> list[str]:
    """Return the targets of ``advisor export`` that rent all machines of a row."""
    parts = one["configuration"]
    return [] if len(parts) > 1 else list(parts[0].get("launchers", ()))


def target_of(one: Record) -> str:
    """Return the target that a row is exported to where nobody names one; empty: none takes it.

    Machines that no launcher rents, Kubernetes takes once they are rented; this one, torchrun.
    """
    parts = one["configuration"]
    if len(parts) > 1:
        return ""
    here = all(part["provider"] == "here" for part in parts)
    return "torchrun" if here else next(iter(launchers(one)), BY_HAND)


def standing_words(one: Record) -> str:
    """Say of which day the price is, that no source says what is in stock, and who rents it.

    >>> part = {"provider": "a", "price_as_of": "", "launchers": ["skypilot", "dstack"]}
    >>> standing_words({"configuration": [part]})
    'price without a date, stock unknown; SkyPilot or dstack rents it'
    """
    said = price_words(one["configuration"])
    if not said:
        return ""
    names = [PHRASES["launchers"].get(name, name) for name in launchers(one)]
    several = " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    rented = f"{several} rents it" if names else "rented by hand: no launcher rents it"
    return f"{said}, stock unknown; {rented}"


def unit_price(parts: Sequence[Record]) -> tuple[float, str]:
    """Return what an hour of one GPU costs, or of all machines where there is none, and of what.

    >>> part = {"count": 2, "accelerators_per_instance": 8.0, "price_usd_per_h": 16.0}
    >>> unit_price([part]), unit_price([{**part, "accelerators_per_instance": 0.0}])
    ((2.0, 'GPU-hour'), (32.0, 'hour'))
    """
    usd = sum(part["price_usd_per_h"] * part["count"] for part in parts)
    gpus = sum(part["count"] * part["accelerators_per_instance"] for part in parts)
    return (usd / gpus, "GPU-hour") if gpus else (usd, "hour")


def lacking_words(one: Record, than: Record) -> str:
    """Say what a row lacks that another has: a price's day, a launcher, an account's quota.

    A machine at hand has all of it.
    """
    is_own = than["configuration"][0].get("pricing") == "own"

    def undated(row: Record) -> bool:
        return not all(part.get("price_as_of") for part in row["configuration"])

    said = ["its price has no day"] if undated(one) and (is_own or not undated(than)) else []
    said += ["no launcher rents it"] if (is_own or launchers(than)) and not launchers(one) else []
    waits = one.get("request_h", 0.0) > than.get("request_h", 0.0)
    return " and ".join([*said, *(["a new account has to ask for it"] if waits else [])])


def _day(day: str) -> str:
    return f"of {day}" if day else WITHOUT_DAY


def prices_words(rows: Sequence[Record]) -> str:
    """Say of which days the prices of rows are, those of machines at hand apart.

    >>> day, none = ({"configuration": [{"price_as_of": d}]} for d in ("2026-07-30", ""))
    >>> prices_words([day]), prices_words([none]), prices_words([day, none])
    ('prices of 2026-07-30', 'prices without a date', 'prices of 2026-07-30, some without a date')
    """
    parts = [part for one in rows for part in one["configuration"] if part.get("pricing") != "own"]
    days = sorted({str(part.get("price_as_of") or "") for part in parts})
    dated = [day for day in days if day]
    if not dated:
        return f"prices {WITHOUT_DAY}" if parts else ""
    some = "" if days[0] else f", some {WITHOUT_DAY}"
    return f"prices {_day(' to '.join(dict.fromkeys((dated[0], dated[-1]))))}{some}"


def time_text(answer: Record) -> str:
    """Return the time of the whole job with its bounds."""
    return interval_text(hours_interval(answer["training_time_h"]))


def cost_text(answer: Record) -> str:
    """Return the cost of the whole job with its bounds; nobody bills for a machine at hand."""
    return (
        "free"
        if answer["cost_usd"]["high"] == 0
        else interval_text(usd_interval(answer["cost_usd"]))
    )


def surplus_words(answer: Record) -> str:
    """Say how much of a cost is processor time beyond a baseline; ``""`` where there is none."""
    part = answer["breakdown"].get("cpu_surplus")
    if part is None or not part["cost_usd"]:
        return ""
    return f"{usd_text(part['cost_usd'])} of it for processor time beyond the baseline"


def direct_cost_text(answer: Record) -> str:
    """Return the cost of the steps as it was learned with no time in between; empty without."""
    if answer["cost_direct_usd"] is None:
        return ""
    value, bounds = usd_interval(answer["cost_direct_usd"])
    return f"{value}  ({bounds}; the steps alone, by a model of the cost itself)"


def memory_words(answer: Record) -> str:
    """Return what the fullest device needs, of how much, and what of that is kept free.

    >>> memory_words({"memory_gib": 57.31, "device_memory_gib": 79.25, "kept_free_gib": 5.0})
    'needs 57.3 of 79.2 GiB, 5.00 kept free'
    """
    there, free = answer["device_memory_gib"], answer["kept_free_gib"]
    from advisor.planners.layouts import RENTED

    needed = f"needs {digits(answer['memory_gib'])}"
    if there is None:
        return f"{needed} GiB"
    said = f"{needed} of {digits(there)} GiB" + (f", {digits(free)} kept free" if free else "")
    held = answer.get("memory", {})
    is_rented = held.get("decided_at", RENTED) >= RENTED
    return said if is_rented else f"{said}; fits with {percent_text(held['fits_probability'])}"


def memory_table(answer: Record, width: int) -> list[str]:
    """Return what the fullest device holds, term by term, and how likely it fits."""
    held = answer["memory"]
    if not held:
        return ["no terms are known of this way's memory"]
    of = f", of {held['group']}" if "group" in held else ""
    lines = wrapped(f"memory of the fullest device{of} [GiB]", width, indent="    ")
    for name, gib in held["terms_gib"].items():
        where = f"{held['equations'][name]}  ({held['sources'][name]})"
        line = f"  {name.replace('_', ' '):<17}{digits(gib):>7}  {where}"
        lines += wrapped(line, width, indent=" " * 28)
    for name, read in held["read_gib"].items():
        bounds = f"{digits(read['low'])}-{digits(read['high'])}"
        by = PHRASES["read_by"][name]
        line = f"  {f'= {name}':<17}{digits(read['value']):>7}  {bounds}: {by}"
        lines += wrapped(line, width, indent=" " * 28)
    if "fits_probability" in held:
        asked = f"; had to with {percent_text(held['decided_at'])}" if "decided_at" in held else ""
        lines.append(f"  fits with {percent_text(held['fits_probability'])}{asked}")
    return lines


def machine(part: Record) -> str:
    """Return equal machines of a configuration: ``"2 x g5.xlarge"``, ``"this machine"``."""
    own = part["pricing"] == "own"
    return "this machine" if own else f"{part['count']} x {part['instance_type']}"


def sustained_words(one: Record) -> str:
    """Say what lasts of the virtual CPUs of a type that bursts, and what happens beyond it.

    Examples
    --------
    >>> sustained_words(
    ...     {"cpu_baseline": 0.1, "cpu_surplus_usd_per_h": 0.04, "cpu_launch_h": 0.0})
    '10 % of each vCPU; more costs $0.04 a vCPU-hour'
    """
    if one["cpu_baseline"] is None:
        return "unknown: the type bursts, and no page says which share of a vCPU lasts"
    lasts = f"{100 * one['cpu_baseline']:.3g} % of each vCPU"
    if one["cpu_surplus_usd_per_h"] is not None:
        return f"{lasts}; more costs {usd_text(one['cpu_surplus_usd_per_h'])} a vCPU-hour"
    if not one["cpu_launch_h"]:
        return lasts
    return f"{lasts}, and {one['cpu_launch_h']:.3g} vCPU-hours more from launch on"


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


_CARD: Final = re.compile(r"([A-Z]+\d+[A-Z]?)(?:-(SXM\d?|PCIe|NVL))?-(\d+)GB")
# Chips that are sold with several sizes of memory: the size belongs to what they are called.
_SIZES: Final = frozenset({("A100", "40"), ("A100", "80"), ("V100", "16"), ("V100", "32"),
                           ("H100", "96")})  # fmt: skip


def provider_name(code: str) -> str:
    """Return what people call a provider.

    >>> provider_name("aws"), provider_name("mine")
    ('AWS', 'mine')
    """
    return provider_of(code).title or code


def card_name(accelerator: str) -> str:
    """Return what people call an accelerator: the form and size that go without saying left out.

    >>> [card_name(one) for one in ("B200-SXM-180GB", "A100-PCIe-40GB", "RTX-A4000", "T4")]
    ['B200', 'A100 40GB PCIe', 'RTX A4000', 'T4']
    """
    found = _CARD.fullmatch(accelerator)
    if found is None:
        return accelerator.replace("-", " ")
    chip, form, size = found.groups()
    said = [chip, *([f"{size}GB"] if (chip, size) in _SIZES else [])]
    return " ".join(said + ([form] if form in ("PCIe", "NVL") else []))


def rented_words(parts: Sequence[Record]) -> str:
    """Return what is rented as people call it, the provider's own name for it in brackets.

    >>> rented_words([{"provider": "nebius", "instance_type": "8gpu", "region": "us-central1",
    ...                "pricing": "on-demand", "accelerator": "B200-SXM-180GB", "terms": "",
    ...                "accelerators_per_instance": 8.0, "count": 2}])
    '16 x B200 at Nebius, us-central1 (2 x 8gpu)'
    """
    return " + ".join(map(_rented, parts))


def _rented(part: Record) -> str:
    own = f"{part['count']} x {part['instance_type']}"
    region = "" if part["region"] == "all-regions" else f", {part['region']}"
    place = f"at {provider_name(part['provider'])}{region}"
    paid = ", ".join(
        ["spot"] * (part["pricing"] == "spot") + ([part["terms"]] if part["terms"] else [])
    )
    if part["accelerator"] is None:
        each = " each" if part["count"] > 1 else ""
        return f"{own} {place} ({contents_words(part)}{each}{paid and f', {paid}'})"
    devices = f"{part['count'] * part['accelerators_per_instance']:g}"
    inside = f"{own}{paid and f', {paid}'}"
    return f"{devices} x {card_name(part['accelerator'])} {place} ({inside})"


def picked_as_words(record: Record, rank: int | str) -> str:
    """Return what a rank of an answer's record is picked as, ``"here"`` included."""
    return ", ".join(pick_labels(record).get(rank, []))


def listed(record: Record) -> list[Record]:
    """Return the rows that are worth a look: of those beaten by this machine none, if it is it."""
    rows, here = list(record["front"] or record["nearest"]), record.get("here")
    picks = record.get("picks", {})
    if here is None or picks.get("best_value") != "here":
        return rows
    return [
        one for one in rows
        if one["rank"] in picks.values() or any(one[name]["value"] < here[name]["value"]
               for name in ("training_time_h", "cost_usd"))
    ]  # fmt: skip


def pick_labels(record: Record) -> dict[int | str, list[str]]:
    """Return what each row is picked as, by its rank, ``"here"`` included.

    A row outside what was measured is judged by its upper bounds: where such a row is expected to
    cost less than the pick, nothing is called the cheapest.
    """
    picks, found = record.get("picks", {}), dict[int | str, list[str]]()
    every = [*record.get("front", ()), *([record["here"]] if record.get("here") else [])]
    cost = {one["rank"] or "here": one["cost_usd"]["value"] for one in every}
    for name, label in PICKS.items():
        place = picks.get(name)
        if place is None:
            continue
        rented = [usd for other, usd in cost.items() if other != "here" or place == "here"]
        if name == "cheapest" and place in cost and cost[place] > min(rented):
            continue
        found.setdefault(place, []).append(label)
    return found


def answer_line(answer: Record) -> str:
    """Return an answer in one line."""
    parts = answer["configuration"]
    said = [interval_text(seconds_interval(answer["step_time_s"])) + " a step"]
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
        where = f" within {shard} ranks" if shard else ""
        where = where if layout["dp"] * layout["cp"] > 1 else " (on one rank it shares nothing)"
        said.append(f"ZeRO {layout['zero_stage']}{where}")
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
    if layout.get("updates_in_backward"):
        said.append("optimizer in the backward pass")
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
        said.append(f"MFU {percent_text(units['utilisation']['fraction'])}")
    if units["accelerator_hours"] is not None:
        said.append(f"{digits(units['accelerator_hours'])} accelerator-hours")
    return (", ".join(said),) if said else ()


def wrapped(text: str, width: int, *, indent: str = "", first: str = "") -> list[str]:
    """Return lines of at most ``width``; names, and numbers with units, in one piece.

    >>> wrapped("it takes 13.2 min at least", 14)
    ['it takes', '13.2 min at', 'least']
    """
    # A space that no line breaks at, between a number and its unit.
    glued = _WITH_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text)
    lines = textwrap.wrap(
        glued, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def pasteable(command: str | Sequence[str], width: int) -> list[str]:
    r"""Return a shell command as lines that can be pasted; words given one by one stay whole.

    >>> pasteable(["advisor", "recommend", "--region", "us *", "--explain", "4"], 30)
    ['  advisor recommend --region \\', "    'us *' --explain 4"]
    """
    if not isinstance(command, str):
        quoted = (shlex.quote(word).replace(" ", "\N{NO-BREAK SPACE}") for word in command)
        command = " ".join(quoted)
    *firsts, last = wrapped(f"  {command}", width - 2, indent="    ")
    return [*(f"{line} \\" for line in firsts), last]


def indented(line: str, width: int) -> list[str]:
    """Return a line as several that fit, the later ones indented beyond the first."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrapped(line, width, indent=indent) or [""]
