"""A recommendation as text for a terminal: the choice first, one screen, nothing said twice."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group
from rich.text import Text

from advisor.collectors.errors import counted
from advisor.errors import UsageError
from advisor.quantities import (
    REACH_90,
    digits,
    hours_interval,
    hours_text,
    percent_text,
    usd_interval,
    usd_text,
)
from advisor.words import pieces
from advisor.words.pieces import wrapped

Record = Mapping[str, Any]

REJECTED: Final = {
    "does_not_fit_in_memory": "do not fit in memory",
    "fewer_samples_than_workers": "have more workers than samples in a batch",
    "network_unknown": "have an unknown network (--known-network leaves them out)",
    "no_time_model": "have no time model",
    "cpu_baseline_unknown": "burst, and no page says which share of their processor lasts",
    "accelerator_not_supported": "have accelerators this script cannot use unchanged",
    "runs_on_one_machine": "are several machines for a program that runs on one",
    "recorded_step_uncertain": (
        "are the machine of the recording, where the step is too uncertain (profile longer)"
    ),
    "over_quota": "are over your quota",
    "over_hourly": "cost more per hour than you allow (--max-hourly)",
    "no_checkpoints": "are spot machines for a job without checkpoints",
    "over_deadline": "are over the deadline",
    "over_budget": "are over the budget",
    "no_price": "have no price",
    "not_offered": "have none in the region, at the price or of the day that you ask for",
    "batch_does_not_divide": "have a device count that does not divide the batch",
    "excluded_by_layout": "have no layout of the requested form",
    "dominated": "are beaten in both time and cost",
    "not_asked": "mix types of machines and were not estimated (--mixed estimates all)",
    "too_little_gain": "are too close to a listed row to tell apart (--gain)",
}
# Reasons that only stand where something runs.
_OF_RUNNING: Final = frozenset({"dominated", "not_asked", "too_little_gain"})
_WAITS: Final[dict[str, str]] = {
    "compute": "arithmetic (compute)",
    "memory": "reading and writing device memory (memory bandwidth)",
    "network": "exchanging gradients and activations (network)",
    "input": "waiting for data (input pipeline)",
    "copy": "copying batches to the GPU (copy)",
    "launch": "kernel launches (the GPU waits for Python)",
    "pipeline": "waiting for other pipeline stages (bubble)",
    "offload": "moving state to host memory and back (offload)",
}
_WORTH_SAYING: Final = 0.001
_NAME: Final = 36
# Times and costs that differ by less are the same. [share]
_SAME: Final = 0.01
_NUMBERS: Final = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
# Ways of training whose degrees say it all.
_TOLD_BY_DEGREES: Final = frozenset(
    {"", "program", "data parallel", "model parallel", "recorded units"}
)


def waits_words(bottleneck: str) -> str:
    """Return what a step waits for in lay words, the term of the trade in brackets."""
    return _WAITS[bottleneck]


def alternatives_words(one: Record, most: int = 2) -> str:
    """Name what could be rented instead at about the same price and time; ``most`` by name.

    Regions of the same machines come first; where they are as good to a percent, that is said.
    """
    others = one["alternatives"]
    own = one["configuration"][0]
    regions: list[Record] = []
    machines: list[Record] = []
    for other in others:
        part = other["configuration"][0]
        is_region = all(part[name] == own[name] for name in ("instance_type", "provider"))
        (regions if is_region else machines).append(other)
    if not regions and not machines:
        return ""
    found, word = (regions, "region") if regions else (machines, "machine")
    if not most:
        return f"{len(others)} similar (--explain {one['rank']})"
    alike = "same" if all(_is_as_good(one, other) for other in found) else "similar"
    named = [_short(other["configuration"][0], word) for other in found[:most]]
    more = len(found) - len(named)
    last = f"{_NUMBERS.get(more, more)} more {word}{'s' if more > 1 else ''}" if more else ""
    return f"{alike} price and time: {_listed([*named, last] if last else named)}"


def _is_as_good(one: Record, other: Record) -> bool:
    """Whether time and cost differ by less than a percent."""
    return all(
        abs(float(other[name]) / float(one[name]["value"]) - 1.0) < _SAME
        for name in ("training_time_h", "cost_usd")
        if one[name]["value"]
    )


def _short(part: Record, word: str) -> str:
    if word == "region":
        return str(part["region"])
    return f"{pieces.machine(part)} ({pieces.provider_name(part['provider'])})"


def _listed(said: Sequence[str]) -> str:
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def explained_text(record: Record, rank: int, *, width: int = 80) -> str:
    """Return everything that is known of one row of the record of ``advisor recommend --json``.

    Raises UsageError if there is no such row.
    """
    rows = record["front"] or record["nearest"]
    one = next((row for row in rows if row["rank"] == rank), None)
    if one is None:
        raise UsageError(
            f"there is no row {rank}", hint=f"give 1 to {len(rows)}" if rows else "nothing to rent"
        )
    return "\n".join(_lines(record, one, max(width, 40)))


def _lines(record: Record, one: Record, width: int) -> Iterator[str]:
    yield from wrapped(f"{one['rank']}: {pieces.offer_words(one['configuration'])}", width)
    yield _pair("time", pieces.time_text(one))
    yield _pair("cost", pieces.cost_text(one))
    direct = pieces.direct_cost_text(one)
    if direct:
        yield from wrapped(_pair("  learned", direct), width, indent=" " * _NAME)
    step = {name: 1e3 * one["step_time_s"][name] for name in ("value", "low", "high")}
    bounds = f"{digits(step['low'])}-{digits(step['high'])}"
    yield _pair("step", f"{digits(step['value'])} ms ({bounds})")
    yield _pair("samples/s", digits(one["throughput_samples_per_s"]["value"]))
    yield _pair("memory per device", pieces.memory_words(one))
    layout = pieces.layout_words(one["layout"])
    yield from wrapped(_pair("layout", layout), width, indent=" " * _NAME)
    yield from ("", "where the time of a step goes")
    for name, share in sorted(one["shares"].items(), key=lambda item: -item[1]):
        if share >= _WORTH_SAYING:
            yield f"  {percent_text(share, 1):>7}  {waits_words(name)}"
    yield from _breakdown(one)
    yield from ("", "why it is listed, and what it assumes")
    for said in dict.fromkeys(one["reasons"]):
        yield from wrapped(f"  - {said}", width, indent="    ")
    if one["alternatives"]:
        yield from ("", "machines of about the same time and cost")
        for other in one["alternatives"]:
            price = f"{hours_text(other['training_time_h'])}, {usd_text(other['cost_usd'])}"
            machines = pieces.offer_words(other["configuration"])
            yield from wrapped(f"  {machines}: {price}", width, indent="    ")
    yield from _looked_at(record, one, width)


def _breakdown(one: Record) -> Iterator[str]:
    yield from ("", "where time and cost go")
    least_h, least_usd = (
        _WORTH_SAYING * one[name]["value"] for name in ("training_time_h", "cost_usd")
    )
    for name, part in one["breakdown"].items():
        if part["time_h"] > least_h or (part["cost_usd"] or 0.0) > least_usd:
            time = hours_text(part["time_h"]) if part["time_h"] > 0 else ""
            cost = usd_text(part["cost_usd"]) if part["cost_usd"] else ""
            yield f"  {pieces.part_words(name):{_NAME - 2}}{time:>10}{cost:>12}"
    for bill in one["bills"]:
        rented = f"rented {bill['pricing']}"
        time, price = hours_text(bill["time_h"]), usd_text(bill["price_usd_per_h"])
        yield f"  {rented:{_NAME - 2}}{time:>10}{price:>12}/h"


def _looked_at(record: Record, one: Record, width: int) -> Iterator[str]:
    yield from ("", *wrapped(_compared(record, [one]), width))
    for reason, number in sorted(record["rejected"].items(), key=lambda item: -item[1]):
        yield f"  {number:>10,} {REJECTED.get(reason, reason)}"
    yield from ("", "notes") if record["notes"] else ()
    for note in record["notes"]:
        yield from wrapped(f"  - {note}", width, indent="    ")


def _pair(name: str, value: str) -> str:
    return f"{name:{_NAME}}{value}"


# Lines of the smallest terminal in use.
SCREEN_LINES: Final = 24
_COMPLETIONS: Final = {
    "spot-with-fallback": "spot, else on demand",
    "elastic-spot": "spot, elastic",
    "spot-by-deadline": "spot, on demand or waiting",
}
_CHANGES: Final = 3
_RANK: Final = 5
_STAR: Final = " *"  # behind machines that are like nothing that was measured
# Narrowest columns of times and costs, and what keeps longer numbers apart.
_NARROWEST: Final = (13, 16)
_BETWEEN: Final = 2


def show_recommendation(
    record: Record, console: Console, *, full: bool = False, command: Sequence[str] = ()
) -> None:
    """Print the list, or the nearest misses where nothing satisfies the constraints.

    ``record`` is that of ``advisor recommend --json``; ``full`` shows every row, not only what
    fits on a screen; ``command``: the words that asked, to which more can be added.
    """
    lines = text(
        record, width=console.width, most=None if full else SCREEN_LINES, command=command,
        is_screen=console.is_terminal,
    )  # fmt: skip
    styled = [Text(line, style="bold" if is_choice else "") for line, is_choice in lines]
    console.print(Group(*styled))


def text(
    record: Record, *, width: int = 80, most: int | None = SCREEN_LINES,
    command: Sequence[str] = (), is_screen: bool = True,
) -> list[tuple[str, bool]]:  # fmt: skip
    """Return the lines, and whether each is the choice itself.

    ``most``: lines of a screen; None shows every row; ``is_screen``: whether changes and the
    command have to fit too; in pipes and files they are whole.
    """
    width, shown = max(width, 40), pieces.listed(record)
    head = [(line, False) for line in wrapped(job_line(record), width)]
    head += _choice(record, width)
    changes, is_whole = len(record["changes"]), most is None or not is_screen
    is_starred = any(one["extrapolating"] for one in shown)
    # What gives way, in this order: all changes but the first, which saves most; the command;
    # what is particular of each row, and how long machines boot.
    steps = [(n, command, False) for n in range(min(changes, _CHANGES), 0, -1)]
    steps += [(min(changes, 1), words, is_short)
              for words, is_short in ((command, False), ((), False), ((), True))]  # fmt: skip
    for number, words, is_short in ((changes, command, False),) if is_whole else steps:
        foot = _foot(record, shown, number, words, width, is_starred)
        rows = _rows(record, shown, width, is_short=is_short)
        shared = wrapped(_shared(record, shown, is_short=is_short), width)
        # What the sentences point to is in the table.
        said = [*record["summary"], *foot]
        below = _foot(record, shown, 0, (), width, is_starred) if is_whole else foot
        room = (most or math.inf) - len(head) - len(shared) - len(below) - 3
        if sum(len(rows[i]) for i in _fitting(record, shown, rows, 0, said)) <= room:
            break
    places = _fitting(record, shown, rows, room, said)
    # The star is explained where it is seen, be it this machine's, and there is room.
    is_starred |= sum(len(rows[i]) for i in places) < room
    is_starred &= any(f"{_STAR} " in f"{line} " for i in places for line in rows[i])
    # Fewer rows have no more days of prices: the foot does not grow.
    left = [shown[i] for i in places if i < len(shown)]
    foot = _foot(record, left, number, words, width, is_starred)
    body = [*shared, *_titles(record, shown, width), *(line for i in places for line in rows[i])]
    body = ["", *body] if body else []
    return head + [(line, False) for line in (*body, *([""] if foot else []), *foot)]


def show_probes(record: Record, console: Console) -> None:
    """Print which short real runs are worth their price, and what to do with what they show."""
    if not record["probes"]:
        console.print(
            Text("\nprobe: No short run is worth its price, because the choice is clear enough.")
        )
        return
    lines = [Text("")]
    for probe in record["probes"]:
        offer = probe["configuration"]
        before, after = (
            math.expm1(REACH_90 * probe[name]) for name in ("log_sd_before", "log_sd_after")
        )
        lines.append(Text(
            f"probe: {probe['minutes']:.0f} min on {pieces.machine(offer)} ({offer['provider']} "
            f"{offer['region']}) for {usd_text(probe['price_usd'])} saves "
            f"{usd_text(probe['gain_usd'])} on average. The time of the choice is then known to "
            f"+{percent_text(after)} instead of +{percent_text(before)} (90 % interval)."
        ))  # fmt: skip
    name = record["probes"][0]["configuration"]["instance_type"]
    lines.append(Text(f"then: advisor runs actual {record['run']} {name} --step-time 250ms"))
    console.print(Group(*lines))


def job_line(record: Record, *, with_source: bool = False) -> str:
    """Say what the job is, and what was measured of it."""
    run, job = record["run"], record["job"]
    if job["is_program"] and "rounds" not in job:
        return (
            f"{run}: a program without training steps, {digits(job['measured_step_s'])} s on "
            f"{job['measured_on']}"
        )
    steps = f"{counted(job['total_steps'], 'step')} of {counted(job['global_batch'], 'sample')}"
    if (rounds := job.get("rounds")) is not None:
        steps = f"{counted(job['total_steps'], rounds['unit'])} of {rounds['kind']}"
    what = "step" if rounds is None else rounds["unit"]
    is_short = job["total_steps"] <= 1  # it is worth a word how it came to that
    steps += f" ({job['total_steps_source']})" if with_source or is_short else ""
    if "measured_step_s" not in job:
        known = "rehearsed" if job.get("is_rehearsed") else "described"
        return f"{run}: {steps} ({known}, not measured)"
    measured = digits(1000 * job["measured_step_s"])
    return f"{run}: {steps}, {measured} ms a {what} on {job['measured_on']}"


def _choice(record: Record, width: int) -> list[tuple[str, bool]]:
    said = list(record["summary"])
    if record["nearest"] or not (said or record["front"]):
        rented = " that can be rented" if record["picks"] else ""
        nearest = " The nearest misses:" if record["nearest"] else ""
        said.append(f"Nothing{rented} satisfies the constraints.{nearest}")
    if not said:
        return []
    lines = [(line, True) for line in wrapped(said[0], width)]
    return lines + [(line, False) for line in wrapped(" ".join(said[1:]), width)]


def _shared(record: Record, rows: list[Record], *, is_short: bool = False) -> str:
    """Return what holds for every row: said once."""
    said = []
    if len({one["bottleneck"] for one in rows}) == 1:
        said.append(f"Steps are limited by {waits_words(rows[0]['bottleneck'])}.")
    boot_s = record["job"]["transfers"].get("boot_s")
    if rows and boot_s and not is_short:
        said.append(f"Rental times include {boot_s / 60:.3g} min to boot and to pull an image.")
    return " ".join(said)


def _widths(record: Record, rows: list[Record]) -> tuple[int, int]:
    """Return the widths of the columns of times and costs: as wide as their longest number."""
    here = record["here"]
    cells = [line for one in (*rows, *([here] if here else [])) for line in _numbers(one)]
    longest = [max((len(line[i]) for line in cells), default=0) + _BETWEEN for i in (0, 1)]
    return max(longest[0], _NARROWEST[0]), max(longest[1], _NARROWEST[1])


def _numbers(one: Record) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return time and cost of a row, and under them their ranges."""
    time, time_range = hours_interval(one["training_time_h"])
    is_free = one["cost_usd"]["high"] == 0
    cost, cost_range = ("free", "") if is_free else usd_interval(one["cost_usd"])
    return (time, cost), (time_range, cost_range)


def _titles(record: Record, rows: list[Record], width: int) -> list[str]:
    shown = rows or [one for one in (record["here"],) if one]
    if not shown:
        return []
    coverage = shown[0]["cost_usd"]["coverage"]
    time, cost = _widths(record, rows)
    title = f"{'':{_RANK}}{'machines':{width - _RANK - time - cost}}"
    share = percent_text(coverage)
    return [f"{title}{f'time ({share})':>{time}}{f'cost ({share})':>{cost}}"]


def _rows(
    record: Record, rows: list[Record], width: int, *, is_short: bool = False
) -> list[list[str]]:
    """Return the lines of every row, and of this machine behind them.

    ``is_short``: what a row is picked as is all that is said of it besides its machines.
    """
    labels = pieces.pick_labels(record)
    best = record["picks"].get("best_value")
    if best is not None and best == record["picks"].get("fastest"):
        labels[best] = [one for one in labels[best] if one != pieces.PICKS["fastest"]]
    is_alike = len({one["bottleneck"] for one in rows}) <= 1
    widths = _widths(record, rows)
    found = [
        _row(
            one,
            str(one["rank"]),
            labels.get(one["rank"], []),
            width,
            widths,
            names_wait=not is_alike,
            is_short=is_short,
        )
        for one in rows
    ]
    if (here := record["here"]) is not None:
        said = labels.get("here", [])
        found.append(_row(here, "here", said, width, widths, names_wait=False))
    return found


def _row(
    one: Record, name: str, labels: list[str], width: int, widths: tuple[int, int], *,
    names_wait: bool,
    is_short: bool = False,
) -> list[str]:  # fmt: skip
    """Return two lines or three: machines, what is in them and where, what is particular."""
    room = width - _RANK - sum(widths)
    mark = _STAR if one["extrapolating"] else ""
    parts = one["configuration"]
    inside = (_inside(part, one, is_short=is_short) for part in parts)
    left = [" + ".join(map(pieces.machine, parts)) + mark, *inside]
    shared = pieces.degrees(one["layout"])
    if len(parts) == 1 and one["way"] not in _TOLD_BY_DEGREES:
        shared = f"{shared}, {one['way']}"
    particular = [", ".join(labels)] if labels else []
    particular += [shared] if shared != "one device" else []
    particular += [f"limited by {one['bottleneck']}"] if names_wait else []
    particular += [said] if (said := pieces.surplus_words(one)) else []
    particular += ["new accounts ask for quota"] if one.get("request_h") else []
    particular += filter(None, [pieces.price_words(parts)])
    lines = []
    for number, said in enumerate(left):
        right = _numbers(one)[number] if number < 2 else ("", "")
        first, *rest = textwrap.wrap(said, room - 1, break_on_hyphens=False) or [""]
        numbers = f"{right[0]:>{widths[0]}}{right[1]:>{widths[1]}}"
        lines.append(f"{name if not number else '':>{_RANK - 1}} {first:{room}}{numbers}")
        lines += [f"{'':{_RANK}}{more}" for more in rest]
    line = ", ".join(labels) if is_short else _particular(particular, one, width - _RANK)
    lines += [f"{'':{_RANK}}{line}"] if line else []
    return [line.rstrip() for line in lines]


def _particular(said_first: list[str], one: Record, room: int) -> str:
    """Return one line of what is particular; alternatives are named as far as there is room."""
    others = (alternatives_words(one, most) for most in (2, 1, 0))
    for said in others if one["alternatives"] else ("",):
        line = "; ".join([*said_first, *([said] if said else [])])
        if len(line) <= room:
            return line
    return textwrap.shorten("; ".join(said_first), room, placeholder=" ...")


def _inside(part: Record, one: Record, *, is_short: bool = False) -> str:
    """Return what is in a machine and where it is, in one line."""
    if part["pricing"] == "own":
        return f"{part['instance_type']}, {pieces.contents_words(part)}"
    pricing = _COMPLETIONS.get(one["completion"], part["pricing"])
    price = "" if pricing == "on-demand" else f", {pricing}"
    price += f", {part['terms']}" if part["terms"] and not is_short else ""
    return f"{pieces.contents_words(part)}, {part['provider']} {part['region']}{price}"


def _fitting(
    record: Record, shown: list[Record], rows: list[list[str]], room: float, said: Sequence[str]
) -> list[int]:
    """Return places of as many rows as fit: best value, this machine, other picks, the others.

    The best value and the rows that ``said`` points to are there in any case.
    """
    places = {one["rank"]: place for place, one in enumerate(shown)}
    named = [places[rank] for rank in record["picks"].values() if isinstance(rank, int)]
    told = map(int, re.findall(r"#(\d+)", " ".join(said)))
    first = dict.fromkeys([*named[:1], *(places[rank] for rank in told if rank in places)])
    wanted = [*range(len(shown), len(rows)), *named, *range(len(shown))]
    kept = list(first)
    for place in dict.fromkeys(wanted):
        fits = not kept or sum(len(rows[i]) for i in (*kept, place)) <= room
        if place not in first and fits:
            kept.append(place)
    return sorted(kept)


def _foot(
    record: Record,
    shown: list[Record],
    changes: int,
    command: Sequence[str],
    width: int,
    is_starred: bool,
) -> list[str]:
    """Return what would change the answer, what was looked at, and where to read on."""
    said = [_change(change) for change in record["changes"][:changes]]
    said = [*(["What would change the answer:"] if said else []), *said]
    if is_starred:
        said.append("* not like anything we measured, so the range is wider")
    looked = _compared(record, shown)
    row = record["picks"].get("best_value")
    row = shown[0]["rank"] if shown and not isinstance(row, int) else row
    more = ["--explain", str(row)]
    if not record["front"]:
        against = record["rejected"]
        if not record["nearest"]:  # what no machine runs is beaten by nothing
            against = {name: n for name, n in against.items() if name not in _OF_RUNNING}
        counts = sorted(against.items(), key=lambda item: -item[1])[:3]
        reasons = ", ".join(f"{n:,} {REJECTED.get(reason, reason)}" for reason, n in counts)
        looked += f" Of the candidates, {reasons}." if reasons else ""
    elif command and shown:
        looked += " More about a row:"
    elif shown:
        looked += f" More about a row: add {' '.join(more)}"
    lines = [
        line
        for one in (*said, looked)
        for line in wrapped(one, width, indent="    " if one.startswith("  ") else "")
    ]
    is_whole = bool(record["front"] and shown and command)
    return [*lines, *(pieces.pasteable([*command, *more], width) if is_whole else [])]


def _compared(record: Record, shown: Sequence[Record]) -> str:
    """Say how much was looked at, and of which days the prices of the rows shown are."""
    looked, prices = counted(record["considered"], "candidate"), pieces.prices_words(shown)
    said = f"Compared {looked} from {counted(record['catalogue']['offers'], 'offer')}."
    return f"{said} Shown are {prices}." if prices else said


def _change(change: Record) -> str:
    """Return what to do, and what the best value takes and costs then."""

    def expected(one: Record) -> str:
        time, cost = one["training_time_h"]["value"], one["cost_usd"]["value"]
        return f"{hours_text(time)}, {usd_text(cost)}"

    line, pick = f"  {expected(change)}: {change['do']}", change["pick"]
    if pick is None:
        return line
    machines = " + ".join(map(pieces.machine, pick["configuration"]))
    return f"{line} (the best value is then {machines}: {expected(pick)})"
