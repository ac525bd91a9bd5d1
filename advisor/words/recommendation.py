"""A recommendation as text for a terminal: the choice first, one screen, nothing said twice."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
from advisor.reasons import REASONS
from advisor.words import pieces
from advisor.words.pieces import PHRASES, wrapped

Record = Mapping[str, Any]

# Reasons that only stand where something runs.
_OF_RUNNING: Final = frozenset({"dominated", "not_asked", "too_little_gain"})
_WORTH_SAYING: Final = 0.001
_NAME: Final = 36
# Times and costs that differ by less are the same. [share]
_SAME: Final = 0.01
_NUMBERS: Final = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
# Ways of training whose degrees say it all.
_TOLD_BY_DEGREES: Final = frozenset(
    {"", "program", "data parallel", "model parallel", "recorded units"}
)


def rejected_words(reason: str) -> str:
    """Return why machines are not listed, behind their number."""
    return REASONS[reason]["many"] if reason in REASONS else reason


def waits_words(bottleneck: str) -> str:
    """Return what a step waits for in lay words, the term of the trade in brackets."""
    return PHRASES["waits"][bottleneck]


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
    prices = pieces.prices_words([one])
    said = f"Compared {_compared(record)}." + (f" Shown are {prices}." if prices else "")
    yield from ("", *wrapped(said, width))
    for reason, number in sorted(record["rejected"].items(), key=lambda item: -item[1]):
        yield f"  {number:>10,} {rejected_words(reason)}"
    yield from ("", "notes") if record["notes"] else ()
    for note in record["notes"]:
        yield from wrapped(f"  - {note}", width, indent="    ")


def _pair(name: str, value: str) -> str:
    return f"{name:{_NAME}}{value}"


# Lines of the smallest terminal in use.
SCREEN_LINES: Final = 24
_CHANGES: Final = 3
# Rows of a screen.
_ROWS: Final = 5
_STAR: Final = "*"  # behind machines that are like nothing that was measured
_LABEL: Final = 9
_BELOW: Final = " " * 5
_BETWEEN: Final = 2
# Claims about how far to trust the pick: said below the table.
_DOUBTS: Final = ("error", "unmeasured", "extrapolating")


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

    Above stands the choice, then a table with a line a row, then what has to be known of the
    choice, a name before each line. ``most``: lines of a screen, within which the least important
    give way; None shows everything; ``is_screen``: pipes and files have all changes and the
    command.
    """
    width, is_full = max(width, 40), most is None
    shown = pieces.listed(record)
    head = [(line, False) for line in wrapped(job_line(record), width)]
    head += _choice(record, width)
    if record.get("unoffered") and not (is_full or record["nearest"] or record["picks"]):
        return head  # nothing was looked at that could be told of
    table = _table(record, shown, width, is_full=is_full)
    every = [*shown, record["here"]][: max(len(table) - 1, 0)]
    asked = partial(_named, record, width, command, is_full=is_full, is_screen=is_screen)
    named = asked(every)
    room = math.inf if most is None else most - len(head) - (2 if table else 0)
    always = sum(len(lines) for order, lines in named if order <= _ALWAYS) + 1
    places = list[int]()
    for place, stands in _first(record, shown, " ".join(line for line, _ in head), len(every)):
        fits = sum(len(table[p + 1]) for p in (*places, place)) + always <= room
        if stands or fits or not is_screen:
            places.append(place)
    used, kept = sum(len(table[place + 1]) for place in places), list[int]()
    for number in sorted(range(len(named)), key=lambda number: named[number][0]):
        order, lines = named[number]
        # What it points to is in the table.
        more = [p for p in _told(shown, " ".join(lines)) if p not in places]
        size = len(lines) + sum(len(table[p + 1]) for p in more) + (not kept)
        if lines and (order <= _ALWAYS or not is_screen or used + size <= room):
            kept.append(number)
            places += more
            used += size
    for place in range(len(every)):
        fits = len(places) < _ROWS and used + len(table[place + 1]) <= room
        if place not in places and (is_full or fits):
            places.append(place)
            used += len(table[place + 1])
    rows = [line for place in sorted(places) for line in table[place + 1]]
    # Of the rows that are there: fewer have no more days, and no more stars.
    named = asked([every[place] for place in places])
    foot = [line for number in sorted(kept) for line in named[number][1]]
    body = [*(["", *table[0], *rows] if table else []), *(["", *foot] if foot else [])]
    return head + [(line, False) for line in body]


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
    said = [one["text"] for one in record["claims"] if one["kind"] not in _DOUBTS]
    if record["nearest"] or not (said or record["front"]):
        rented = " that can be rented" if record["picks"] else ""
        nearest = " The nearest misses:" if record["nearest"] else ""
        said.append(f"Nothing{rented} satisfies the constraints.{nearest}")
    if not said:
        return []
    lines = [(line, True) for line in wrapped(said[0], width)]
    return lines + [(line, False) for line in wrapped(" ".join(said[1:]), width)]


# What one line of the table says: texts (rank, what the row is picked as, machines, provider,
# region), numbers (time, its range, cost, its range, USD an hour, what rents it, day of the
# price), and what is particular.
_Cells = tuple[tuple[str, ...], tuple[str, ...], str]


def _table(
    record: Record, rows: list[Record], width: int, *, is_full: bool = False
) -> list[list[str]]:
    """Return the title, then the lines of every row, and of this machine behind them.

    A machine at hand that takes longer than a month says nothing beside what can be rented.
    """
    here = record["here"]
    is_hopeless = rows and here and here["training_time_h"]["value"] > pieces.LONGEST_H
    every = [*rows, *([here] if here and not is_hopeless else [])]
    if not every:
        return []
    names = _pick_names(record)
    is_alike = len({one["bottleneck"] for one in rows}) <= 1
    by_gpu = all(part["accelerator"] for one in rows or every for part in one["configuration"])
    cells = [_cells(one, names, names_wait=not is_alike, by_gpu=by_gpu) for one in every]
    share = percent_text(every[0]["cost_usd"]["coverage"])
    title = (
        ("", "", "GPUs" if by_gpu else "machines", "where", ""),
        ("time", f"({share})", "cost", f"({share})", "$/GPU-h" if by_gpu else "$/h", "launch",
         "price of"), "",
    )  # fmt: skip
    return _aligned([title, *cells], width, is_full=is_full)


def _pick_names(record: Record) -> dict[int | str, str]:
    """Return what each row is picked as, in a few letters; the fastest of all where nothing else.

    Somebody in a hurry takes ``fastest`` of the picks, which is not always the fastest row.
    """
    found = {}
    for place, said in pieces.pick_labels(record).items():
        names = [name for name, label in pieces.PICKS.items() if label in said]
        if names[0] == "best_value" and "fastest" in names and len(names) > 1:
            names.remove("fastest")
        called = PHRASES["shortest_picks" if len(names) > 1 else "short_picks"]
        found[place] = ", ".join(called[name] for name in names[:2])
    front = record["front"]
    if front:
        first = min(front, key=lambda one: float(one["training_time_h"]["value"]))["rank"]
        found.setdefault(first, "fastest")
    return found


def _cells(
    one: Record, names: Mapping[int | str, str], *, names_wait: bool, by_gpu: bool
) -> _Cells:
    """Return the columns of a row, or of this machine."""
    parts, place = one["configuration"], one["rank"] or "here"
    name = names.get(place, "")
    own = parts[0]["pricing"] == "own" and parts[0]["provider"] == "here"
    time, times = hours_interval(one["training_time_h"])
    cost, costs = usd_interval(one["cost_usd"]) if one["cost_usd"]["high"] else ("free", "")
    usd_per_h = sum(part["price_usd_per_h"] * part["count"] for part in parts)
    usd_per_h = pieces.unit_price(parts)[0] if by_gpu else usd_per_h
    machines = "this machine" if own else _computing(parts)
    where = list(dict.fromkeys(pieces.provider_name(part["provider"]) for part in parts))
    regions = dict.fromkeys(part["region"] for part in parts if part["region"] != "all-regions")
    paid = PHRASES["short_completions"].get(one["completion"], str(one["completion"] or ""))
    where += [] if paid in ("on-demand", "") or own else [paid]
    paid_so = {part["pricing"] for part in parts}
    where += [said for pricing, said in PHRASES["short_commitments"].items() if pricing in paid_so]
    texts = (
        f"{'>' if name.startswith('best') else ' '}{one['rank'] or '':>2}", name,
        f"{machines} {_STAR}" if one["extrapolating"] else machines,
        "" if own else ", ".join(where), "" if own else " + ".join(regions),
    )  # fmt: skip
    rate = digits(usd_per_h) if usd_per_h else ""
    days = sorted(str(part.get("price_as_of") or "no day") for part in parts)
    rented = ("", "") if own else (next(iter(pieces.launchers(one)), "by hand"), days[-1])
    numbers = (time, _brief(times), cost, _brief(costs), rate, *rented)
    return texts, numbers, _particular(one, names_wait=names_wait)


def _computing(parts: Sequence[Record]) -> str:
    """Return what computes as people call it: accelerators, or machines without one."""
    said: Counter[str] = Counter()
    for part in parts:
        if part["accelerator"]:
            devices = part["count"] * part["accelerators_per_instance"]
            said[pieces.card_name(part["accelerator"])] += devices
        else:
            said[part["instance_type"]] += part["count"]
    return " + ".join(f"{number:g} {name}" for name, number in said.items())


def _brief(bounds: str) -> str:
    """Return a range with whole numbers, or two digits of what is below ten.

    >>> _brief("18.6-63.7"), _brief("6.08-20.48"), _brief("1,234-5,678"), _brief("0.40-2.23")
    ('19-64', '6.1-20', '1,234-5,678', '0.4-2.2')
    """

    def brief(found: re.Match[str]) -> str:
        number = float(found[0].replace(",", ""))
        return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"

    return re.sub(r"[\d,.]+", brief, bounds)


def _aligned(cells: list[_Cells], width: int, *, is_full: bool) -> list[list[str]]:
    """Return the lines of each, in columns.

    The region gives way first, then the day and what rents it, then the hourly price, then texts
    go below.
    """
    every_text, every_number, particular = zip(*cells, strict=True)
    for kept, shown in ((5, 7), (4, 7), (4, 6), (4, 5), (4, 4), (2, 5), (1, 5), (1, 4)):
        left = _columns([texts[:kept] for texts in every_text], "<" * kept, (0, 1, 1, 1, 1))
        right = _columns([one[:shown] for one in every_number], "><><><<", (0, 1, 2, 1, 2, 2, 2))
        if len(left[0]) + _BETWEEN + len(right[0]) <= width:
            break
    found = []
    for texts, line, numbers, below in zip(every_text, left, right, particular, strict=True):
        lines = [f"{line}{numbers:>{width - len(line)}}".rstrip()]
        rest = " ".join(filter(None, texts[kept:])) if kept < 4 and texts[0] else ""
        for said in (rest, below if is_full else ""):
            lines += wrapped(said, width, indent=_BELOW, first=_BELOW)
        found.append(lines)
    return found


def _columns(rows: Sequence[tuple[str, ...]], align: str, gaps: Sequence[int]) -> list[str]:
    """Return a line a row, all of one length; empty columns are left out.

    ``align``: ``<`` or ``>`` of each column; ``gaps``: letters before it.
    """
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "".join(
            f"{'':{gap}}{said:{how}{size}}"
            for said, how, gap, size in zip(row, align, gaps, sizes, strict=False)
            if size
        )
        for row in rows
    ]


def _particular(one: Record, *, names_wait: bool) -> str:
    """Return what is particular of a row: its machines, its layout, its price, what is like it."""
    parts = one["configuration"]
    if parts[0]["pricing"] == "own":
        return f"{parts[0]['instance_type']}, {pieces.contents_words(parts[0])}"
    shared = pieces.degrees(one["layout"])
    if len(parts) == 1 and one["way"] not in _TOLD_BY_DEGREES:
        shared = f"{shared}, {one['way']}"
    said = [
        " + ".join(map(pieces.machine, parts)),
        PHRASES["completions"].get(one["completion"], ""),
        *(part["terms"] for part in parts if part["terms"]),
        shared if shared != "one device" else "",
        f"limited by {one['bottleneck']}" if names_wait else "",
        pieces.surplus_words(one),
        "new accounts ask for quota" if one.get("request_h") else "",
        pieces.price_words(parts),
        alternatives_words(one) if one["alternatives"] else "",
    ]
    return "; ".join(filter(None, said))


def _first(
    record: Record, shown: list[Record], said: str, rows: int
) -> Iterator[tuple[int, bool]]:
    """Yield the places of rows that come first, and whether they stand in any case.

    The best value, what is named and this machine do; other picks do where there is room, the
    price with a day last.
    """
    places: dict[int | str, int] = {one["rank"]: place for place, one in enumerate(shown)}
    picked = sorted(record["picks"].items(), key=lambda one: one[0] == "dated")
    best, *picks = [places[one] for _, one in picked if one in places] or [0]
    sure = [*([best] if shown else []), *_told(shown, said), *range(len(shown), rows)]
    yield from ((place, True) for place in dict.fromkeys(sure))
    yield from ((place, False) for place in dict.fromkeys(picks) if place not in sure)


def _told(shown: list[Record], said: str) -> list[int]:
    """Return the places of the rows that a text names by their ranks."""
    places = {one["rank"]: place for place, one in enumerate(shown)}
    ranks = map(int, re.findall(r"#(\d+)", said))
    return list(dict.fromkeys(places[rank] for rank in ranks if rank in places))


# Lines behind a name, and how early they give way: the highest order first.
_Named = tuple[int, list[str]]
# Lines up to this order stand in any case.
_ALWAYS: Final = 1
# What is offered besides what can be listed stands before what a flag would change.
_GIVES_WAY: Final = {"elastic": 3, "unreleased": 3}


def _named(
    record: Record, width: int, command: Sequence[str], rows: Sequence[Record], *, is_full: bool,
    is_screen: bool,
) -> list[_Named]:  # fmt: skip
    """Return what has to be known besides the table, in the order in which it is printed.

    ``rows``: of the table. What there is nothing to say of has no lines.
    """
    every = [*record["front"], *([record["here"]] if record["here"] else [])]
    best = record["picks"].get("best_value")
    pick = next((one for one in every if (one["rank"] or "here") == best), None)
    doubts = " ".join(one["text"] for one in record["claims"] if one["kind"] in _DOUBTS)
    changes = record["changes"][: None if is_full or not is_screen else _CHANGES]
    # What a flag would change, and in full everything.
    notes = [one for one in record["notes"] if is_full or ("--" in one and not one[0].isdigit())]
    assumed = [one.rstrip(".") for one in (*record["job"].get("assumptions", ()), *notes)]
    is_starred = any(one["extrapolating"] for one in rows)
    star = "like nothing we measured, so the range is wider" if is_starred else ""
    return [
        _line(1, "Fits", "" if pick is None else _fits(pick, record["job"]), width),
        _line(1, "Sure?", doubts, width),
        *(
            _line(
                (1, 2, _GIVES_WAY.get(one["name"], 6))[min(place, 2)] if is_screen else 1,
                "" if place else "Change",
                _change(one),
                width,
            )
            for place, one in enumerate(changes)
        ),
        _line(2, "Serving", record["serving"], width),
        _line(3, "Assumed", "; ".join(assumed), width, most=None if is_full else 2),
        _line(7, "Steps", _shared(record, pieces.listed(record)), width),
        _line(2, _STAR, star, width),
        _line(2, "Prices", _prices(pick, rows), width),
        _line(8, "Compared", _compared(record), width),
        (_ALWAYS, _rejections(record, width)),
        (_ALWAYS, [] if pick is None else _export(pick, command, width)),
        (6 if is_screen else 1, _by_hand(rows, width)),
        (5 if is_screen else 1, _more(record, pieces.listed(record), command, width)),
    ]


def _line(order: int, name: str, said: str, width: int, most: int | None = None) -> _Named:
    """Return a sentence behind its name, wrapped; ``most``: lines, the rest is left out."""
    first, indent = f"{name:<{_LABEL}}", " " * _LABEL
    lines = wrapped(said, width, indent=indent, first=first) if said else []
    if most is not None and len(lines) > most:
        kept = lines[most - 1][: width - 4].rpartition(" ")[0]
        lines = [*lines[: most - 1], f"{kept} ..."]
    return order, lines


def _fits(pick: Record, job: Record) -> str:
    """Say what the pick needs of its memory, how the job is laid out on it, and what runs that."""
    needed, layout = pieces.memory_words(pick), pick["layout"]
    if pick["device_memory_gib"] is None:
        return needed
    run = f" ({pick['framework']} runs it)" if pick.get("framework") else ""
    batch, ranks = job.get("global_batch"), pick["devices"]
    split = layout["tp"] * layout["cp"] > 1 and layout["pp"] == layout["ep"] == 1
    is_odd = f"; a batch of {batch} does not divide over {ranks} GPUs"
    odd = is_odd if split and batch and batch % ranks else ""
    return f"{needed}; {pieces.layout_words(layout)}{run}{odd}"


def _shared(record: Record, rows: list[Record]) -> str:
    """Return what holds for every row: said once."""
    said = []
    if len({one["bottleneck"] for one in rows}) == 1:
        said.append(f"limited by {waits_words(rows[0]['bottleneck'])}")
    boot_s = record["job"]["transfers"].get("boot_s")
    if rows and boot_s:
        said.append(f"times include {boot_s / 60:.3g} min to boot and to pull an image")
    return "; ".join(said)


def _prices(pick: Record | None, rows: Sequence[Record]) -> str:
    """Say of which days the prices of the rows shown are, where that is not the pick's own."""
    own = "" if pick is None else pieces.price_words(pick["configuration"])
    days = pieces.prices_words(rows).removeprefix("prices ")
    return "" if own.removeprefix("price ") == days else days


# Flags of a recommendation that ``advisor export`` does not have: of its display, of own machines.
_NOT_EXPORTED: Final = ("--full", "--plot", "--cluster", "--no-cluster")


def _export(pick: Record, command: Sequence[str], width: int) -> list[str]:
    """Return how the pick is handed over: the question's own words, to what rents it."""
    target = pieces.target_of(pick)
    if not (command and target):
        return []
    asked, is_asked = [], True
    for word in command[2:]:  # a flag, or its value
        is_asked = not word.startswith(_NOT_EXPORTED) if word.startswith("-") else is_asked
        asked += [word] if is_asked else []
    rank = [str(pick["rank"])] if pick["rank"] else []
    words = [command[0], "export", *rank, "--to", target, *asked]
    first, *rest = pieces.pasteable(words, width - _LABEL + 2)
    return [f"{'Export':<{_LABEL}}{first.strip()}", *(f"{'':{_LABEL - 2}}{x}" for x in rest)]


def _by_hand(rows: Sequence[Record], width: int) -> list[str]:
    """Say which rows of the table no launcher rents."""
    by_hand = [one["rank"] or 0 for one in rows if pieces.target_of(one) == pieces.BY_HAND]
    rented = _listed([str(one) for one in sorted(by_hand)])
    row_word = "row" if len(by_hand) == 1 else "rows"
    said = f"no launcher rents {row_word} {rented}: --to {pieces.BY_HAND}" if by_hand else ""
    return _line(0, "By hand", said, width)[1]


def _rejections(record: Record, width: int) -> list[str]:
    """Say why nothing is offered, where nothing is."""
    if record["front"]:
        return []
    against = record["rejected"]
    if not record["nearest"]:  # what no machine runs is beaten by nothing
        against = {name: n for name, n in against.items() if name not in _OF_RUNNING}
    counts = sorted(against.items(), key=lambda item: -item[1])[:3]
    reasons = ", ".join(f"{n:,} {rejected_words(reason)}" for reason, n in counts)
    return wrapped(f"Candidates: {reasons}.", width) if reasons else []


def _more(
    record: Record, shown: Sequence[Record], command: Sequence[str], width: int
) -> list[str]:
    """Return how to ask for all that is known of a row."""
    row = record["picks"].get("best_value")
    row = shown[0]["rank"] if shown and not isinstance(row, int) else row
    if not shown:
        return []
    asked = ["--explain", str(row)]
    if not (command and record["front"]):
        return [f"{'More':<{_LABEL}}add {' '.join(asked)}"]
    first, *rest = pieces.pasteable([*command, *asked], width - _LABEL + 2)
    return [f"{'More':<{_LABEL}}{first.strip()}", *(f"{'':{_LABEL - 2}}{line}" for line in rest)]


def _change(change: Record) -> str:
    """Return what to do, and what the best value takes and costs then."""

    def expected(one: Record) -> str:
        time, cost = one["training_time_h"]["value"], one["cost_usd"]["value"]
        return f"{hours_text(time)}, {usd_text(cost) if cost else 'free'}"

    line, pick = f"{expected(change)}: {change['do']}", change["pick"]
    if pick is None:
        return line
    if expected(pick) == expected(change):
        return f"{line}, on {_computing(pick['configuration'])}"
    machines = " + ".join(map(pieces.machine, pick["configuration"]))
    return f"{line} (the best value is then {machines}: {expected(pick)})"


def _compared(record: Record) -> str:
    """Say how much was looked at."""
    offers = counted(record["catalogue"]["offers"], "offer")
    return f"{counted(record['considered'], 'candidate')} from {offers}"
