"""Contradictions between the sentences of an answer and its record, over random questions.

    python -m advisor.lab.experiments.sentences [--questions N] [--drawn N] [--seed S] [--offers N]

Every question is answered by ``recommend`` as a user's is (described transformers and image
networks, two recordings, random limits); the sentences of its summary and the screen of 80 and
120 columns are read back by the forms below, and each number, row and comparison in them is
checked against the JSON record and the question. The reader knows the record and English, and
nothing of ``advisor.words``: a sentence of no known form is a fault too, so that nothing is said
that is not checked. What is not found out here: whether the record itself is right.

An answer takes seconds, most of them the search for layouts, which the sentences know nothing of.
So ``--drawn`` more answers are made of rows drawn at random (times, costs, prices, deadlines, this
machine, what is known of errors): picked, said and read back in milliseconds.

``--append FILE`` keeps every answer's count and faults, a JSON line each: a run that was ended
goes on from there, and what is taken out of the file (once it is mended) is asked again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.answer import (
    Candidate,
    CompletionWay,
    Configuration,
    Estimate,
    KnownError,
    Named,
    Offer,
    Prices,
    Recommendation,
)
from advisor.api import job_of, ranked
from advisor.ask import Constraints, Question
from advisor.catalogue import Catalogue
from advisor.errors import AdvisorError
from advisor.estimate.predictor import Predictor
from advisor.lab import frame
from advisor.planners.core import Layout
from advisor.rank.front import keeps
from advisor.rank.ranking import picked, told
from advisor.words import listed
from advisor.words.recommendation import SCREEN_LINES, text

Record = Mapping[str, Any]
QUESTIONS: Final = 2000
# Priced offers of the catalogue that is asked about, so that an answer takes a tenth of a second.
OFFERS: Final = 150
# Every so many answers also say what would change them.
CHANGED: Final = 5
WIDTHS: Final = (80, 120)
# The confidence of a deadline where none is asked for (docs/answer.md).
CERTAINTY: Final = 0.9
# Work to rent one machine, where nobody says (``--effort``). [h]
EFFORT_H: Final = 0.5
# Hours of the calendar for an hour of work, and the wait below which nobody minds [h]; both as
# docs/answer.md states them.
CALENDAR: Final = 168 / 40
PATIENCE_H: Final = 4.0
_HOURS: Final = {"us": 1e-6 / 3600, "ms": 1e-3 / 3600, "s": 1 / 3600, "min": 1 / 60, "h": 1.0,
                 "d": 24.0}  # fmt: skip
_TIME: Final = r"[\d,.]+ (?:us|ms|s|min|h|d)"
_USD: Final = r"\$[\d,.]+"
_FASTER: Final = r"(?:twice as fast|[\d,.]+ (?:%|times) faster|slightly faster)"
_SLOWER: Final = r"(?:half as fast|[\d,.]+ (?:%|times) slower|slightly slower)"
_CHEAPER: Final = r"(?:half the price|(?:over )?\d+ % cheaper|slightly cheaper)"
_DEARER: Final = r"(?:costs (?:[\d,.]+ % more|the same|twice as much|[\d,.]+ times as much))"


# Numbers as they are printed, and whether they are those of the record.


def _number(said: str) -> float:
    return float(said.replace(",", "").lstrip("$"))


def _is(said: str, true: float) -> bool:
    """Whether a printed number is the true one, rounded to the digits that are printed."""
    digits = said.replace(",", "").lstrip("$")
    decimals = len(digits.partition(".")[2])
    unit = 10.0**-decimals
    return abs(float(digits) - true) <= 0.5 * unit * (1 + 1e-6) + 1e-12 * abs(true)


def _is_time(said: str, hours: float) -> bool:
    number, unit = said.split()
    return _is(number, hours / _HOURS[unit])


def _is_ratio(said: str, ratio: float) -> bool:
    """Whether words such as "1.7 times slower" or "16 % cheaper" say this ratio (at least one).

    Of "cheaper" the ratio is the other's cost over this one's.
    """
    if "slightly" in said or "the same" in said:
        return 1.0 <= ratio < 1.0051
    if re.match("twice|half|costs twice", said):
        return abs(ratio / 2 - 1) <= 0.0527  # a twentieth, of either cost over the other
    number = re.search(r"[\d,.]+", said)
    assert number is not None
    if "% cheaper" in said:
        share = 100 * (1 - 1 / ratio)
        return share > _number(number[0]) if "over" in said else _is(number[0], share)
    return _is(number[0], 100 * (ratio - 1) if "%" in said else ratio)


def _time(one: Record) -> float:
    return float(one["training_time_h"]["value"])


def _cost(one: Record) -> float:
    return float(one["cost_usd"]["value"])


def _late(one: Record, asked: Record) -> float:
    """Return the probability that a row is late; of this machine, by its interval."""
    if one["late_probability"] is not None:
        return float(one["late_probability"])
    time, limit = one["training_time_h"], asked["deadline"]
    reach = {0.5: 0.67449, 0.8: 1.28155, 0.9: 1.64485, 0.95: 1.95996}[time["coverage"]]
    bound = time["high"] if limit >= time["value"] else time["low"]
    if bound == time["value"]:
        return float(limit < time["value"])
    sds = reach * math.log(limit / time["value"]) / abs(math.log(bound / time["value"]))
    return 0.5 * math.erfc(sds / math.sqrt(2))


# The forms of sentences, each with what it claims.


class Reader:
    """Reads the sentences of one answer against its record."""

    def __init__(self, record: Record, asked: Record) -> None:
        self.record, self.asked = record, asked
        self.rows: dict[Any, Record] = {one["rank"]: one for one in record["front"]}
        if record["here"] is not None:
            self.rows["here"] = record["here"]
        self.pick: Any = record["picks"].get("best_value")
        self.certainty = asked.get("confidence") or CERTAINTY
        self.faults: list[str] = []

    def read(self, sentence: str) -> None:
        """Check one sentence by the form that it has, or against what a description lacks."""
        lacks = [one.casefold() for one in self.record["job"].get("left_out", ())]
        if sentence.removesuffix(".").casefold() in lacks:
            return
        for form, check in _FORMS:
            found = re.fullmatch(form, sentence)
            if found is not None:
                for problem in check(self, found):
                    self.faults.append(f"{problem}: {sentence}")
                return
        self.faults.append(f"no known form: {sentence}")

    def row(self, said: str) -> Record:
        """Return the row that a sentence names."""
        return self.rows[int(said.lstrip("#")) if said.startswith("#") else "here"]

    @property
    def picked(self) -> Record:
        """The best value."""
        return self.rows[self.pick]

    def is_sure(self, one: Record) -> bool:
        """Whether a row keeps the deadline with the certainty that is asked for."""
        return _late(one, self.asked) <= 1 - self.certainty + 1e-9


Problems = Iterator[str]
Check = Callable[[Reader, "re.Match[str]"], Problems]


def _figures(one: Record, found: re.Match[str]) -> Problems:
    if not _is_time(found["time"], _time(one)):
        yield f"time is {_time(one):.5g} h"
    if found["cost"] == "free":
        if _cost(one):
            yield "not free"
    elif not _is(found["cost"], _cost(one)):
        yield f"cost is {_cost(one):.5g}"


def _rent(reader: Reader, found: re.Match[str]) -> Problems:
    one, asked = reader.picked, reader.asked
    yield from _figures(one, found)
    if reader.pick == "here":
        yield "nothing is picked to rent"
    unit = _HOURS[found["time"].split()[1]]
    for name, scale, bounds in (
        ("training_time_h", unit, found["times"].split("-")),
        ("cost_usd", 1.0, found["costs"].split("-")),
    ):
        if not all(_is(said, one[name][end] / scale)
                   for said, end in zip(bounds, ("low", "high"), strict=True)):  # fmt: skip
            yield f"bounds of {name}"
    for part in one["configuration"]:
        named = f"{part['count']} x {part['instance_type']}"
        if named not in found["what"]:
            yield f"does not name {named}"
        devices = part["count"] * part["accelerators_per_instance"]
        if part["accelerator"] and not re.search(rf"\b{devices:g} x ", found["what"]):
            yield f"{devices:g} devices"
        if part["region"] != "all-regions" and part["region"] not in found["what"]:
            yield "region"
        if (part["pricing"] == "spot") != ("spot" in found["what"]):
            yield "spot"
    if asked.get("confidence") is None:
        if _time(one) > asked.get("deadline", math.inf):
            yield "over the deadline"
        if _cost(one) > asked.get("budget", math.inf):
            yield "over the budget"
    elif asked.get("deadline") and not reader.is_sure(one):
        yield "not as certain of the deadline as asked"


def _standing(reader: Reader, found: re.Match[str]) -> Problems:
    parts = reader.picked["configuration"]
    usd = sum(part["price_usd_per_h"] * part["count"] for part in parts)
    devices = _devices(reader.picked) if found["of"] == "GPU-hour" else 1.0
    if not _is(found["usd"], usd / devices):
        yield f"{usd / devices:.5g} USD"
    days = {part["price_as_of"] for part in parts}
    if (found["day"] or "") not in days or ("without a date" in found["price"]) != ("" in days):
        yield f"the price is of {sorted(days)}"
    several = re.split(", | or ", found["who"] or "")
    rented = parts[0]["launchers"] if len(parts) == 1 else []
    if [one.casefold().removesuffix(" ai").replace(" ", "") for one in several if one] != rented:
        yield f"rented by {rented}"


def _stay(reader: Reader, found: re.Match[str]) -> Problems:
    if reader.pick != "here":
        yield "this machine is not the pick"
    here, work_h = reader.rows["here"], CALENDAR * reader.asked.get("effort", EFFORT_H)
    yield from _figures(here, found)
    for one in reader.record["front"]:
        if one["extrapolating"] or _machines(one) > 1 or one["request_h"]:
            continue
        waited_h = max(PATIENCE_H, _time(one) + work_h)
        if one["doubt"] * _cost(one) < _cost(here) and waited_h < _time(here):
            yield f"#{one['rank']} is sooner and cheaper"


def _short(reader: Reader, found: re.Match[str]) -> Problems:
    if reader.pick != "here" or not _is_time(found["time"], _time(reader.rows["here"])):
        yield "not this machine's time"
    # Nobody leaves a machine at hand for less than half the time, the work of renting included.
    if _time(reader.rows["here"]) > 2.0 * reader.asked.get("effort", EFFORT_H):
        yield "not short"


def _faster(reader: Reader, found: re.Match[str]) -> Problems:
    one, than = reader.row(found["row"]), reader.picked
    if _time(one) >= _time(than) or not _is_ratio(found["speed"], _time(than) / _time(one)):
        yield f"{_time(than) / _time(one):.4g} times as fast"
    if found["machines"] and int(found["machines"]) != _machines(one):
        yield f"{_machines(one)} machines"
    yield from _lacking(one, than, found["lacks"])
    money = found["money"]
    if money.startswith("costs $"):
        if not _is(money.removeprefix("costs "), _cost(one)):
            yield "cost"
    elif money.startswith("is "):
        if _cost(one) >= _cost(than) or not _is_ratio(money[3:], _cost(than) / _cost(one)):
            yield f"{_cost(one) / _cost(than):.4g} times the cost"
    elif _cost(one) < _cost(than) or not _is_ratio(money, _cost(one) / _cost(than)):
        yield f"{_cost(one) / _cost(than):.4g} times the cost"


def _lacking(one: Record, than: Record, said: str | None) -> Problems:
    """Yield what a row is said to lack beside another that it does not."""
    has = {
        "its price has no day": all(part["price_as_of"] for part in one["configuration"]),
        "no launcher rents it": bool(one["configuration"][0]["launchers"]),
        "a new account has to ask for it": one["request_h"] <= than["request_h"],
    }
    for name in said.split(" and ") if said else ():
        if has[name]:
            yield f"#{one['rank']} does not lack that"


def _doubted(reader: Reader, found: re.Match[str]) -> Problems:
    one, than = reader.row(found["row"]), reader.picked
    if _cost(one) >= _cost(than) or not _is_ratio(found["money"], _cost(than) / _cost(one)):
        yield f"{_cost(one) / _cost(than):.4g} times the cost"
    if int(found["machines"] or 0) not in (0, _machines(one)):
        yield f"{_machines(one)} machines"
    if _time(one) > 1.1 * _time(than):
        yield f"{_time(one) / _time(than):.4g} times the time"
    yield from _lacking(one, than, found["lacks"])


def _unoffered(reader: Reader, found: re.Match[str]) -> Problems:
    nearest = reader.record["unoffered"].get(found["name"])
    if (
        reader.record["front"]
        or nearest is None
        or (found["nearest"] not in (None, *(one.partition(" ")[0] for one in nearest[:1])))
    ):
        yield "somebody offers it"


def _unfed(reader: Reader, found: re.Match[str]) -> Problems:
    rates = [one["throughput_samples_per_s"]["value"]
             for one in (*reader.record["front"], reader.record["here"]) if one]  # fmt: skip
    if not any(_is(found["rate"], rate) for rate in rates) or not reader.record["job"].get(
        "unseen_input"
    ):
        yield "no row has that rate, or loading was seen"


def _slow(reader: Reader, found: re.Match[str]) -> Problems:
    if found["said"] != reader.record["job"].get("fallback"):
        yield "its kernels were there"


def _refused(reader: Reader, found: re.Match[str]) -> Problems:
    if reader.record["front"] or reader.record["nearest"]:
        yield "some machine runs it"
    if found["needed"] is None:
        return
    there, kept, needed, missed = (
        float(found[name]) for name in ("there", "kept", "needed", "missed")
    )
    if abs(needed - (there - kept) - missed) > 0.02 * needed:
        yield f"{needed} GiB are not {missed} more than {there} less {kept}"


def _machines(one: Record) -> int:
    return sum(int(part["count"]) for part in one["configuration"])


def _cheaper(reader: Reader, found: re.Match[str]) -> Problems:
    one, than = reader.row(found["row"]), reader.picked
    if _cost(one) >= _cost(than) or not _is_ratio(found["money"], _cost(than) / _cost(one)):
        yield f"{_cost(one) / _cost(than):.4g} times the cost"
    if _time(one) < _time(than) or not _is_ratio(found["speed"], _time(one) / _time(than)):
        yield f"{_time(one) / _time(than):.4g} times the time"


def _none_faster(reader: Reader, _: re.Match[str]) -> Problems:
    rented = reader.record["front"]
    if reader.pick != "here" or any(_time(one) < _time(reader.picked) for one in rented):
        yield "a listed row is faster"


def _here(reader: Reader, found: re.Match[str]) -> Problems:
    here = reader.rows["here"]
    if not _is_time(found["time"], _time(here)):
        yield f"time is {_time(here):.5g} h"
    if found["speed"] and not _is_ratio(found["speed"], _time(here) / _time(reader.picked)):
        yield f"{_time(here) / _time(reader.picked):.4g} times"


def _devices(one: Record) -> float:
    return float(sum(p["count"] * p["accelerators_per_instance"] for p in one["configuration"]))


def _error(reader: Reader, found: re.Match[str]) -> Problems:
    known = reader.record["known_error"]
    if known is None or not _is(found["share"], 100 * known["median_ape_fraction"]):
        yield "no such error is known"
    if found["low"] and not int(found["low"]) <= _devices(reader.picked) <= int(found["high"]):
        yield f"the pick has {_devices(reader.picked):g} devices"


def _untested(reader: Reader, found: re.Match[str]) -> Problems:
    if reader.record["known_error"] is not None:
        yield "an error is known"
    devices = _devices(reader.picked)
    if found["devices"] and _number(found["devices"]) != devices:
        yield f"the pick has {devices:g} devices"


def _wide(reader: Reader, found: re.Match[str]) -> Problems:
    time = reader.picked["training_time_h"]
    if not reader.picked["extrapolating"] or reader.record["known_error"] is not None:
        yield "it was measured"
    if (found["wide"] is not None) != (time["high"] / time["low"] >= 1.2):
        yield f"the range is {time['low']:.4g} to {time['high']:.4g} h"


def _needs(reader: Reader, found: re.Match[str]) -> Problems:
    if reader.is_sure(reader.picked):
        yield "the pick keeps the deadline"
    yield from _keeps(reader, found)


def _keeps(reader: Reader, found: re.Match[str]) -> Problems:
    one = reader.row(found["row"])
    if not _is(found["certainty"], 100 * reader.certainty):
        yield "not the certainty that was asked for"
    if not reader.is_sure(one) or one["training_time_h"]["value"] > reader.asked["deadline"]:
        yield f"late with a probability of {_late(one, reader.asked):.3g}"
    if said := found["late"]:
        late = _late(one, reader.asked)
        if not (late < 0.01 if "less" in said else _is(said, 100 * late)):
            yield f"late in {late:.3g}"


def _misses(reader: Reader, found: re.Match[str]) -> Problems:
    if not _is(found["share"], 100 * _late(reader.picked, reader.asked)):
        yield f"late in {_late(reader.picked, reader.asked):.3g}"
    if any(reader.is_sure(one) for one in reader.record["front"]):
        yield "a row keeps the deadline"


_WITHIN: Final = (
    r"(?P<row>#\d+|this machine)(?: as `advisor simulate spot` plans it \(late in "
    r"(?P<late>(?:less than )?\d+) % of cases\))?"
)
_FORMS: Final[Sequence[tuple[str, Check]]] = (
    (rf"Rent (?P<what>.+): (?P<time>{_TIME}) \((?P<times>[^)]+)\), (?P<cost>{_USD}) "
     r"\((?P<costs>[^)]+)\)\.", _rent),
    (rf"(?P<usd>{_USD}) per (?P<of>GPU-hour|hour), (?P<price>(?:your |derived |scaled )?price "
     r"(?:of (?P<day>[\d-]+)|without a date)), stock unknown; (?:rented by hand: no launcher "
     r"rents it|(?P<who>.+) rents it)\.", _standing),
    (rf"Stay on this machine: (?P<time>{_TIME}) \([^)]+\), (?P<cost>free|{_USD})\.", _stay),
    (rf"Too short to rent anything: it takes (?P<time>{_TIME}) on this machine\.", _short),
    (rf"(?P<row>#\d+) is (?P<speed>{_FASTER}) and (?P<money>costs {_USD}|is {_CHEAPER}|{_DEARER})"
     r"(?:, on (?P<machines>\d+) machines)?(?:, but (?P<lacks>.+))?\.", _faster),
    (rf"(?P<row>#\d+) is (?P<money>{_CHEAPER}) in the time(?:, on (?P<machines>\d+) machines)?, "
     r"but (?P<lacks>.+)\.", _doubted),
    (rf"(?P<row>#\d+) is (?P<money>{_CHEAPER}) and (?P<speed>{_SLOWER})\.", _cheaper),
    (r"Nothing that can be rented within the limits is faster\.", _none_faster),
    (rf"This machine would take (?P<time>{_TIME})(?: \((?P<speed>{_SLOWER})\))?\.", _here),
    (r"Typical error (?:of whole training runs|on (?:(?P<low>\d+) to (?P<high>\d+) )?"
     r"(?:more than \d+ )?(?:one )?[A-Z][\w.]*(?: [\w.]+)*? GPUs?(?: for [^:]+)?): "
     r"(?P<share>\d+) % \(held-out test\)\.", _error),
    (r"We have no test results on (?:(?P<devices>[\d,]+) x )?.+? for .+?\. Expect the true value "
     r"inside the range, not at the estimate\.", _untested),
    (r"We have no measurements of (?:this GPU family|such machines)"
     r"(?P<wide>, so the range is wide)?\.", _wide),
    (rf"To meet the deadline with (?P<certainty>\d+) % certainty, take {_WITHIN}\.", _needs),
    (r"No provider in the catalogue offers (?P<name>.+?)\.(?: The nearest that is offered is "
     r"(?P<nearest>\S+): --gpus \S+\.)?", _unoffered),
    (r"No offer satisfies (?P<name>--.+?)\.(?: (?:The nearest is|Others have it:) --\S+ "
     r"(?P<nearest>\S+)(?: or \S+| \(.+?\))*\.)?", _unoffered),
    (r"No input pipeline was seen: it must deliver (?P<rate>[\d.,e+]+) \w+/s"
     r"(?:, (?P<each>.+?) of a vCPU for each)?; profile the script with its loader\.", _unfed),
    (r"(?P<said>[\w, -]+ (?:is|are) not installed here: the slow code .+)", _slow),
    (r"No machine that was considered runs the job\. \d+ x \S+: (?:no layout fits in memory "
     r"\((?P<there>[\d.]+) GiB, of which (?P<kept>[\d.]+) GiB is kept free\): the nearest \(.+?\) "
     r"needs (?P<needed>[\d.]+) GiB and misses by (?P<missed>[\d.]+) GiB; )?.+", _refused),
    (r"It misses the deadline with a probability of (?P<share>\d+) %\.", _misses),
)  # fmt: skip


# The screen: its rows, their labels, and what stands above and below them.


_NAMES: Final = {
    "best value": "best_value", "best": "best_value", "cheapest": "cheapest",
    "in a hurry": "fastest", "hurry": "fastest", "in time": "within_deadline",
    "dated": "dated",
}  # fmt: skip
_RANGE: Final = r"[\d,.]+-[\d,.]+"
_ROW: Final = re.compile(
    rf"(?P<best>[> ]) *(?P<row>\d*) +(?P<said>.*?) *(?P<time>{_TIME}) +(?P<times>{_RANGE})? +"
    rf"(?P<cost>free|{_USD})(?: +(?P<costs>{_RANGE}))?(?: +(?P<rate>[\d.,]+))?"
    r"(?: +(?:by hand|[a-z]+))?(?: +(?:no day|\d{4}-\d\d-\d\d))?"
)


def screen_faults(record: Record, asked: Record, width: int) -> Iterator[str]:
    """Yield what a screen of ``width`` columns says that its record does not."""
    lines = [line for line, _ in text(record, width=width)]
    if len(lines) > SCREEN_LINES or max(map(len, lines)) > width:
        yield f"{len(lines)} lines of {max(map(len, lines))} columns"
    rows = {one["rank"]: one for one in listed(record)}
    if record["here"] is not None:
        rows["here"] = record["here"]
    shown = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if found := _ROW.fullmatch(line):
            place = int(found["row"]) if found["row"] else "here"
            shown.append(place)
            said = found["said"] + (after if after.startswith("     ") else "")
            for problem in _line_faults(record, asked, place, found, said):
                yield f"{problem}: {line}"
    prose = " ".join(line for line in lines if not _ROW.fullmatch(line))
    for rank in set(re.findall(r"#(\d+)", prose)):
        if int(rank) not in shown:
            yield f"#{rank} is named and not listed"
    for rank in re.findall(r"--explain (\d+)", prose):
        if int(rank) not in rows:
            yield f"--explain {rank}: there is no such row"
    yield from _sentences_around(record, " ".join(lines), [rows[place] for place in shown])


def _line_faults(
    record: Record, asked: Record, place: Any, found: re.Match[str], said: str
) -> Iterator[str]:
    """Yield what a line of the table says that its row does not."""
    every = record["front"] or record["nearest"]
    one = record["here"] if place == "here" else next(r for r in every if r["rank"] == place)
    yield from _figures(one, found)
    unit = _HOURS[found["time"].split()[1]]
    for name, scale, bounds in (("training_time_h", unit, "times"), ("cost_usd", 1.0, "costs")):
        ends = (found[bounds] or "").split("-")
        for end, value in zip(("low", "high"), ends, strict=False):
            if value and abs(_number(value) / (one[name][end] / scale) - 1) > _TWO_DIGITS:
                yield f"{end} of {name}"
    parts = one["configuration"]
    for part in parts if place != "here" else ():
        number = part["count"] * (part["accelerators_per_instance"] if part["accelerator"] else 1)
        alike = sum(
            p["count"] * (p["accelerators_per_instance"] if p["accelerator"] else 1)
            for p in parts if p["accelerator"] == part["accelerator"]
        )  # fmt: skip
        if not re.search(rf"\b({number:g}|{alike:g}) ", said):
            yield f"{number:g} of {part['instance_type']}"
    if found["rate"]:
        usd_per_h = sum(part["price_usd_per_h"] * part["count"] for part in parts)
        rates = [usd_per_h / (_devices(one) or 1), usd_per_h]
        if not any(_is(found["rate"], rate) for rate in rates):
            yield f"{usd_per_h:.4g} USD an hour"
    yield from _name_faults(record, asked, place, one, said)


# A number printed with two digits is off by no more, as a share.
_TWO_DIGITS: Final = 0.0556


def _name_faults(
    record: Record, asked: Record, place: Any, one: Record, said: str
) -> Iterator[str]:
    """Yield what is wrong with what a row is said to be picked as."""
    reader = Reader(record, asked)
    for name, pick in _NAMES.items():
        if re.match(rf"(?:[a-z ]+, )?{name}(?:,| |$)", said) is None:
            continue
        if record["picks"].get(pick) != place:
            yield f"is not picked as {name}"
        every = [*record["front"], *([record["here"]] if place == "here" else [])]
        if name == "cheapest" and any(_cost(row) < _cost(one) * (1 - 1e-9) for row in every):
            yield "another one is cheaper"
        if name == "in time" and (
            not reader.is_sure(one)
            or any(_cost(row) < _cost(one) for row in record["front"] if reader.is_sure(row))
        ):
            yield "it is late, or another one is cheaper"
    if said.startswith("fastest ") and any(_time(row) < _time(one) for row in record["front"]):
        yield "another one is faster"


def _sentences_around(record: Record, said: str, shown: Sequence[Record]) -> Iterator[str]:
    """Yield what is wrong in the sentences above the table and below it."""
    rows = listed(record)
    if (boot := re.search(r"times include ([\d.]+) min to boot", said)) and not _is(
        boot[1], record["job"]["transfers"]["boot_s"] / 60
    ):
        yield f"boot takes {record['job']['transfers']['boot_s']} s"
    if "limited by" in said and len({one["bottleneck"] for one in rows}) != 1:
        yield "rows are limited by different parts"
    looked = re.search(r"Compared +([\d,]+) candidates? from +([\d,]+) offers?", said)
    if looked is not None and _number(looked[1]) != record["considered"]:
        yield "candidates"
    days = {str(part["price_as_of"]) for one in shown for part in one["configuration"]
            if part["pricing"] != "own"}  # fmt: skip
    foot = re.search(r"Prices +(.*?)(?: Compared | More |$)", said)
    if foot is None or not days:
        return
    told = set(re.findall(r"\d{4}-\d\d-\d\d", foot[1]))
    if ("without a date" in re.sub(r" +", " ", foot[1])) != ("" in days):
        yield "prices without a date"
    elif not {min(days - {""}, default=""), max(days)} - {""} <= told <= days:
        yield "days of prices"


def claim_faults(record: Record) -> Iterator[str]:
    """Yield claims of the record that its rows contradict."""
    rows: dict[Any, Record] = {one["rank"]: one for one in record["front"]}
    rows["here"] = record["here"]
    if [one["text"] for one in record["claims"]] != list(record["summary"]):
        yield "claims and summary differ"
    for claim in record["claims"]:
        for place in (claim["row"], claim["than"]):
            if place is not None and rows.get(place) is None:
                yield f"no row {place}: {claim['text']}"
        if claim["time_factor"] is not None:
            one, than = rows[claim["row"]], rows[claim["than"]]
            if not math.isclose(claim["time_factor"] * _time(than), _time(one)):
                yield f"time factor: {claim['text']}"
            if claim["cost_factor"] is not None and not math.isclose(
                claim["cost_factor"] * _cost(than), _cost(one)
            ):
                yield f"cost factor: {claim['text']}"


def contradictions(record: Record, asked: Record) -> list[str]:
    """Return everything that an answer says and its record, or the question, contradicts."""
    reader = Reader(record, asked)
    for sentence in record["summary"]:
        try:
            reader.read(sentence)
        except (KeyError, ValueError) as error:
            reader.faults.append(f"{error!r}: {sentence}")
    found = [*reader.faults, *claim_faults(record)]
    for width in WIDTHS:
        found += [f"{width} columns: {one}" for one in screen_faults(record, asked, width)]
    return found


# Random questions.


_RECORDED: Final = ("tests/golden/run-schema-1", "tests/golden/run-rehearsed")
_CNNS: Final = ("224:64:3x256,4x512,6x1024,3x2048:bottleneck", "32:16:2x16,2x32,2x64:basic")
_GPUS: Final = ("T4", "L4", "A10G", "V100", "A100", "A100:8", "H100:8", "H200:8", "B200", "MI300X",
                "RTX-A4000", "L40S,A10G", "T4,V100,A10G", "A100:40GB..80GB:1..8")  # fmt: skip
_CLOUDS: Final = ("aws", "azure", "gcp", "lambda", "verda", "hyperstack", "nebius", "oci",
                  "runpod", "massedcompute", "crusoe", "scaleway", "paperspace")  # fmt: skip


def questions(number: int, seed: int = 0, root: Path = Path()) -> Iterator[dict[str, Any]]:
    """Yield questions as ``recommend`` takes them; ``root``: where the recordings are."""
    random = np.random.default_rng(seed)
    for _ in range(number):
        yield _job(random, root) | _limits(random)


def _some(random: np.random.Generator, low: float, high: float) -> float:
    """Draw log-uniformly, two digits."""
    return float(f"{math.exp(random.uniform(math.log(low), math.log(high))):.2g}")


def _one(random: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(random.integers(len(values)))]


def _job(random: np.random.Generator, root: Path) -> dict[str, Any]:
    kind = random.uniform()
    if kind < 0.3:
        length = {} if random.uniform() < 0.2 else {"total_steps": _some(random, 100, 1e7)}
        return {"run": str(root / _one(random, _RECORDED))} | length
    if kind < 0.5:
        return {"cnn": _one(random, _CNNS), "total_samples": _some(random, 1e5, 3e8),
                "batch": int(2 ** random.integers(5, 11))}  # fmt: skip
    heads = int(_one(random, (4, 8, 12, 16, 25, 32, 40)))
    job: dict[str, Any] = {
        "layers": int(_one(random, (4, 12, 24, 32, 48))), "hidden": heads * 64, "heads": heads,
        "tokens": _some(random, 1e6, 1e10),
    }  # fmt: skip
    if random.uniform() < 0.2:
        job["lora"] = int(_one(random, (8, 16, 64)))
    if random.uniform() < 0.3:
        job["batch"] = int(2 ** random.integers(4, 10))
    if random.uniform() < 0.1:
        job["zero"] = int(random.integers(4))
    return job


def _limits(random: np.random.Generator) -> dict[str, Any]:
    """Draw limits."""
    draws: dict[str, tuple[float, Callable[[], Any]]] = {
        "gpus": (0.2, lambda: _one(random, _GPUS)),
        "cloud": (0.2, lambda: _one(random, _CLOUDS)),
        "budget": (0.3, lambda: _some(random, 0.05, 5000)),
        "deadline": (0.4, lambda: _some(random, 0.2, 500)),
        "confidence": (0.3, lambda: _one(random, (0.5, 0.8, 0.9, 0.95))),
        "spot": (0.4, lambda: True),
        "gain": (0.3, lambda: _one(random, (0.0, 0.05, 0.3))),
        "max_nodes": (0.2, lambda: int(2 ** random.integers(0, 6))),
        "coverage": (0.1, lambda: _one(random, (0.5, 0.8, 0.95))),
        "top": (0.2, lambda: _one(random, (1, 3, 30))),
        "here_price": (0.2, lambda: _some(random, 0.01, 3)),
        "boot": (0.1, lambda: _one(random, ("0m", "5m", "30m"))),
        "max_hourly": (0.1, lambda: _some(random, 1, 300)),
        "data": (0.1, lambda: "20GB"),
        "validation": (0.1, lambda: "5%"),
        "dated": (0.1, lambda: True),
        # Unlike machines are searched for in every tenth: it takes ten times as long.
        "mixed": (0.9, lambda: False),
    }
    return {name: draw() for name, (often, draw) in draws.items() if random.uniform() < often}


def thinned(catalogue: Catalogue, offers: int, seed: int = 0) -> Catalogue:
    """Return the catalogue with as many of its prices, drawn evenly over accelerators."""
    random, prices = np.random.default_rng(seed), catalogue.prices
    names = catalogue.types.accelerator[prices.type_index]
    _, kind, sizes = np.unique(names, return_inverse=True, return_counts=True)
    weight = 1.0 / sizes[kind]
    rows = random.choice(len(prices), offers, replace=False, p=weight / weight.sum())
    return replace(catalogue, prices=prices.take(np.sort(rows)))


def tried(
    asked: dict[str, Any], predictor: Predictor, *, with_changes: bool = True
) -> tuple[list[str], list[str]]:
    """Return the sentences of one answer, and its contradictions; nothing where it is refused."""
    try:
        question = Question.read(asked)
        job = job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
        answer = ranked(job, question, predictor=predictor, with_changes=with_changes)
    except AdvisorError as error:
        return [], [] if error.hint else [f"an error without a hint: {error}"]
    record = answer.to_record()
    return list(record["summary"]), contradictions(record, asked)


def _drawn_row(
    random: np.random.Generator, time_h: float, usd: float, deadline_h: float
) -> Candidate:
    """Return a row of a drawn answer; its rank is given later."""
    card = _one(random, (None, "H100-SXM5-80GB", "A100-PCIe-40GB", "B200-SXM-180GB", "RTX-A4000"))
    count, devices = int(2 ** random.integers(0, 5)), int(_one(random, (1, 4, 8)))
    pricing = _one(random, ("on-demand", "on-demand", "spot"))
    way: CompletionWay = "on-demand"
    if pricing == "spot":
        way = _one(random, ("spot", "spot-with-fallback", "spot-by-deadline"))
    offer = Offer(
        provider=_one(random, _CLOUDS), instance_type=f"type{int(random.integers(99))}.xlarge",
        region=_one(random, ("us-east-1", "FIN-03", "all-regions")), pricing=pricing,
        price_usd_per_h=1.0, accelerator=card, accelerators=float(devices if card else 0), vcpus=8,
        memory_gib=32.0, terms="interruptions unknown" if pricing == "spot" else "",
        price_as_of=_one(random, ("", "2026-07-20", "2025-04-04")),
    )  # fmt: skip
    is_extrapolating = bool(random.uniform() < 0.2)
    # Of a job that boots longer than it trains a range is narrow, whatever was measured.
    is_narrow = is_extrapolating and random.uniform() < 0.3
    sd = 0.03 if is_narrow else float(random.uniform(0.2 if is_extrapolating else 0.02, 0.9))
    time = Estimate.lognormal(time_h, sd)
    cost = Estimate.lognormal(usd, sd) if usd else Estimate(value=0.0, low=0.0, high=0.0)
    bottleneck = _one(random, ("compute", "memory", "network"))
    return Candidate(
        configuration=Configuration(parts=((offer, count),)), layout=Layout(dp=count),
        completion=way, step_time_s=time, throughput_samples_per_s=time, training_time_h=time,
        cost_usd=cost, memory_gib=1.0, bottleneck=bottleneck, shares={bottleneck: 1.0},
        is_extrapolating=is_extrapolating, way="data parallel",
        late_probability=time.above(deadline_h) if math.isfinite(deadline_h) else None,
    )  # fmt: skip


def drawn_answer(random: np.random.Generator) -> tuple[Recommendation, dict[str, Any]]:
    """Return an answer of rows drawn at random, and what was asked of it."""
    asked: dict[str, Any] = {}
    if random.uniform() < 0.6:
        asked["deadline"] = _some(random, 0.5, 200)
    if random.uniform() < 0.4:
        asked["confidence"] = _one(random, (0.5, 0.8, 0.9, 0.95))
    request = Constraints(
        deadline_h=asked.get("deadline"), confidence=asked.get("confidence"),
        effort_h=asked.setdefault("effort", float(_one(random, (0.0, 0.5, 4.0)))),
    )  # fmt: skip
    deadline_h = asked.get("deadline", math.inf)
    size = int(random.integers(0, 9))
    times = np.sort(np.exp(random.uniform(-3, 6, size)))
    costs = np.sort(np.exp(random.uniform(-3, 8, size)))[::-1]
    rows = (_drawn_row(random, float(t), float(c), deadline_h)
            for t, c in zip(times, costs, strict=True))  # fmt: skip
    front = [one for one in rows if keeps(one, request)]
    front = [replace(one, rank=place) for place, one in enumerate(front, start=1)]
    here = None
    if random.uniform() < 0.5:
        usd = 0.0 if random.uniform() < 0.7 else _some(random, 0.01, 100)
        here = replace(_drawn_row(random, _some(random, 0.05, 3000), usd, deadline_h), rank=0)
        offer, _ = here.configuration.parts[0]
        own = replace(offer, provider="here", pricing="own", terms="", price_as_of="")
        here = replace(
            here, configuration=Configuration(parts=((own, 1),)), completion="on-demand"
        )
    error = None
    if random.uniform() < 0.5:
        error = KnownError(
            family="NVIDIA Hopper", median_ape_fraction=float(random.uniform(0.01, 0.6)),
            accelerators=int(random.integers(1, 4)), rows=9, protocol="described",
            day="2026-11-25",
        )  # fmt: skip
    boot = {"transfers": {"boot_s": 120.0}, "total_steps": 1000.0, "global_batch": 32,
            "is_program": False, "total_steps_source": "given"}  # fmt: skip
    answer = told(
        Recommendation(
            run="drawn", job=boot, catalogue=Prices(as_of="2026-07-20", offers=1000),
            predictor=Named(name="drawn", version="1"), considered=1000, rejected={},
            front=tuple(front), here=here, known_error=error, picks=picked(front, here, request),
        ),
        request,
        unmeasured="",
    )  # fmt: skip
    return answer, asked


@dataclass(kw_only=True)
class Tally:
    """What was asked and said so far, and what of it is contradicted."""

    answered: int = 0
    sentences: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: int | str, asked: dict[str, Any], said: int, found: list[str]) -> None:
        """Count an answer of ``said`` sentences, and print what contradicts it."""
        self.answered += bool(said)
        self.sentences += said
        for problem in found:
            self.wrong.append({"question": name, "asked": asked, "problem": problem})
            print(f"{name}: {problem}\n    {asked}", flush=True)


def _ask(given: Any, tally: Tally) -> None:
    """Ask the questions; those whose answers ``--append`` kept are not asked again."""
    path: Path | None = given.append
    kept = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    known = {one["question"]: one for one in map(json.loads, kept)}
    predictor = Predictor(thinned(Catalogue.load(with_overrides=False), given.offers))
    for number, asked in enumerate(questions(given.questions, given.seed, given.root)):
        answer = known.get(number)
        if answer is None or answer["asked"] != asked:
            said, found = tried(asked, predictor, with_changes=number % CHANGED == 0)
            answer = {"question": number, "asked": asked, "said": len(said), "found": found}
            if path:
                with path.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(answer) + "\n")
        tally.add(number, asked, answer["said"], answer["found"])


def main() -> None:
    """Ask, read, and print every contradiction."""
    given = frame.options(
        __doc__,
        {"--questions": QUESTIONS, "--drawn": 0, "--seed": 0, "--offers": OFFERS, "--json": Path,
         "--append": Path, "--root": Path()},
    )  # fmt: skip
    tally = Tally()
    _ask(given, tally)
    random = np.random.default_rng(given.seed)
    for number in range(given.drawn):
        answer, asked = drawn_answer(random)
        record = answer.to_record()
        tally.add(f"drawn {number}", asked, len(record["summary"]), contradictions(record, asked))
    bad = len({one["question"] for one in tally.wrong})
    print(
        f"{given.questions} questions and {given.drawn} drawn answers, {tally.answered} answered "
        f"with {tally.sentences} sentences: "
        f"{len(tally.wrong)} contradictions in {bad} answers"
    )
    frame.write_json(given.json, tally.wrong)


if __name__ == "__main__":
    main()
