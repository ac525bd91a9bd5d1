"""Claims of an answer: what to rent, or why to rent nothing, and what more or less money buys.

Every sentence is made from one ``Claim``, which stands in the record beside it: rows, factors and
probabilities that a reader can check against the list without its words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeGuard

from advisor.quantities import (
    digits,
    hours_text,
    percent_text,
    seconds_text,
    usd_interval,
    usd_text,
)
from advisor.words.pieces import (
    LONGEST_H,
    cost_text,
    lacking_words,
    rented_words,
    standing_words,
    time_text,
    unit_price,
)

Record = Mapping[str, Any]
Place = int | Literal["here"]
ClaimKind = Literal[
    "rent", "standing", "stay", "too_short", "faster", "cheaper", "none_faster", "here", "error",
    "unmeasured", "extrapolating", "deadline_needs", "deadline_missed", "unoffered", "unfed",
    "fallback", "refused", "left_out",
]  # fmt: skip

# Half and twice are said as words where a ratio is this near to them.
_NEAR: Final = 0.05
# Ratios above this say no more than the times do.
_FARTHEST: Final = 100
# A range is called wide from this ratio of its ends on.
_WIDE: Final = 1.2
# Ratios have a decimal below this.
_ROUND_FROM: Final = 10
# Ratios below this are said in percent.
_PERCENT_BELOW: Final = 1.095


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one sentence of an answer says, as data.

    ``row`` is the row that it is about and ``than`` the one that it is compared with: ranks of
    the front, or ``"here"``. ``time_factor`` and ``cost_factor`` are the first's time and cost
    over the other's; ``probability`` is the certainty that was asked for, or with which a
    deadline is missed; ``error_fraction`` the median error that was measured.
    """

    kind: ClaimKind
    text: str
    row: Place | None = None
    than: Place | None = None
    time_factor: float | None = None
    cost_factor: float | None = None
    probability: float | None = None
    error_fraction: float | None = None


def claims_of(
    record: Record, *, certainty: float, worth: float, trouble_h: float,
    here: Record | None = None, unmeasured: str = "", refused: str = "",
) -> tuple[Claim, ...]:  # fmt: skip
    """Return the choice in claims whose sentences stand alone, the most important first.

    Parameters
    ----------
    record : mapping
        Of a recommendation, its picks made.
    certainty : float
        With which a deadline is to be kept.
    worth, trouble_h : float
        The least speed-up for which anything is rented, and what renting costs of one's time [h].
    here : mapping, optional
        This machine, where it keeps the constraints.
    unmeasured : str
        What nobody has measured, where no error is known; as a sentence.
    refused : str
        Why no machine runs the job, where none does; as a sentence.
    """
    by_rank = {one["rank"]: one for one in record["front"]}
    choice = record["picks"].get("best_value")
    nobody = tuple(_unoffered(*one) for one in record.get("unoffered", {}).items())
    if choice is None:
        return (*nobody, *([Claim(kind="refused", text=refused)] if refused else []))
    chosen = by_rank.get(choice)
    if chosen is None:
        assert here is not None
        return (
            *nobody,
            *_stay(here, record["front"], worth * trouble_h),
            *_unseen(record.get("job", {}), here),
            *_left_out(record.get("job", {})),
            *_deadline(record, certainty),
        )
    faster = by_rank.get(record["picks"]["fastest"])
    return (
        Claim(
            kind="rent",
            row=choice,
            text=f"Rent {rented_words(chosen['configuration'])}: {time_text(chosen)}, "
            f"{cost_text(chosen)}.",
        ),
        _standing(chosen),
        *_beside(chosen, record["front"], faster),
        *(_here(here, chosen, worth) if _is_told(here) else ()),
        *_accuracy(record["known_error"], chosen, unmeasured),
        *_unseen(record.get("job", {}), chosen),
        *_left_out(record.get("job", {})),
        *_deadline(record, certainty),
    )


def _standing(chosen: Record) -> Claim:
    """Say what an hour costs, of which day that is, and who rents it."""
    usd, of = unit_price(chosen["configuration"])
    said = f"{usd_text(usd)} per {of}, {standing_words(chosen)}."
    return Claim(kind="standing", row=chosen["rank"], text=said)


def _unoffered(name: str, nearest: Sequence[str]) -> Claim:
    """Say that no provider has an accelerator, or keeps a limit, and what there is instead."""
    flag = name.partition(" ")[0]
    if not name.startswith("--"):
        text = f"No provider in the catalogue offers {name}."
        if nearest:
            text += f" The nearest that is offered is {nearest[0]}: --gpus {nearest[0]}."
    elif nearest and flag == "--cloud":
        text = f"No offer satisfies {name}. Others have it: {flag} {' or '.join(nearest)}."
    elif nearest:
        text = f"No offer satisfies {name}. The nearest is {flag} {' or '.join(nearest)}."
    else:
        text = f"No offer satisfies {name}."
    return Claim(kind="unoffered", text=text)


def _left_out(job: Record) -> Iterator[Claim]:
    """Say what of a model its description lacks or guesses."""
    for said in job.get("left_out", ()):
        yield Claim(kind="left_out", text=f"{said[:1].upper()}{said[1:]}.")


def _time(one: Record) -> float:
    return float(one["training_time_h"]["value"])


def _cost(one: Record) -> float:
    return float(one["cost_usd"]["value"])


def _compared(kind: ClaimKind, row: Record, than: Record, text: str) -> Claim:
    """Return a claim about two rows; ``than`` may be this machine."""
    places: list[Place] = [one["rank"] or "here" for one in (row, than)]
    paid = _cost(than)
    return Claim(
        kind=kind, text=text, row=places[0], than=places[1],
        time_factor=_time(row) / _time(than), cost_factor=_cost(row) / paid if paid else None,
    )  # fmt: skip


def _stay(here: Record, front: Sequence[Record], short_h: float) -> Iterator[Claim]:
    """Say why nothing is rented."""
    if _time(here) < short_h:
        text = f"Too short to rent anything: it takes {hours_text(_time(here))} on this machine."
        yield Claim(kind="too_short", row="here", text=text)
    else:
        own = "free" if _cost(here) == 0 else usd_interval(here["cost_usd"])[0]
        text = f"Stay on this machine: {time_text(here)}, {own}."
        yield Claim(kind="stay", row="here", text=text)
    faster = [one for one in front if _time(one) < _time(here)]
    if faster and _time(here) >= short_h:
        best = min(faster, key=lambda one: _time(one) * _cost(one))
        why = _because(best, here) if _cost(best) < _cost(here) else ""
        text = (
            f"#{best['rank']} is {faster_words(_time(here) / _time(best))} and costs "
            f"{usd_interval(best['cost_usd'])[0]}{why}."
        )
        yield _compared("faster", best, here, text)
    elif front and not faster:
        text = "Nothing that can be rented within the limits is faster."
        yield Claim(kind="none_faster", than="here", text=text)


def _beside(chosen: Record, front: Sequence[Record], faster: Record | None) -> Iterator[Claim]:
    """Say what the next faster and the next cheaper choice would be."""
    if faster is None or faster is chosen:
        faster = _next(front, chosen, -1)
    if faster is not None and _time(faster) < _time(chosen):
        speed, money = _time(chosen) / _time(faster), _cost(faster) / _cost(chosen)
        price = dearer_words(money) if money >= 1.0 else f"is {cheaper_words(money)}"
        machines = _machines(chosen), _machines(faster)
        # What beats the choice in both is not it because it is several machines.
        several = (
            f", on {machines[1]} machines" if money <= 1.0 and machines[1] > machines[0] else ""
        )
        why = several or (_because(faster, chosen) if money <= 1.0 else "")
        text = f"#{faster['rank']} is {faster_words(speed)} and {price}{why}."
        yield _compared("faster", faster, chosen, text)
    cheaper = _next(front, chosen, 1)
    if cheaper is not None and _cost(cheaper) < _cost(chosen):
        share, time = _cost(cheaper) / _cost(chosen), _time(cheaper) / _time(chosen)
        text = f"#{cheaper['rank']} is {cheaper_words(share)} and {slower_words(time)}."
        yield _compared("cheaper", cheaper, chosen, text)
    yield from _doubted(chosen, front, (faster, cheaper))


def _machines(one: Record) -> int:
    return sum(part["count"] for part in one["configuration"])


def _because(one: Record, chosen: Record) -> str:
    said = lacking_words(one, chosen)
    return f", but {said}" if said else ""


def _doubted(
    chosen: Record, front: Sequence[Record], said: Sequence[Record | None]
) -> Iterator[Claim]:
    """Say what is saved by what is as fast, costs less, and lacks what the choice has.

    On more machines it is told where it lacks something besides.
    """
    machines = _machines(chosen)
    found = [
        one for one in front
        if all(one is not other for other in (chosen, *said)) and _cost(one) < _cost(chosen)
        and _time(one) < _PERCENT_BELOW * _time(chosen) and lacking_words(one, chosen)
    ]  # fmt: skip
    if found:
        best = min(found, key=_cost)
        share = cheaper_words(_cost(best) / _cost(chosen))
        several = f", on {_machines(best)} machines" if _machines(best) > machines else ""
        text = f"#{best['rank']} is {share} in the time{several}{_because(best, chosen)}."
        yield _compared("cheaper", best, chosen, text)


def _next(front: Sequence[Record], chosen: Record, way: int) -> Record | None:
    """Return the nearest row before or behind the choice that no plan by a deadline put there."""
    others = [
        one for one in front
        if way * (one["rank"] - chosen["rank"]) > 0 and one["completion"] != "spot-by-deadline"
    ]  # fmt: skip
    return min(others, key=lambda one: abs(one["rank"] - chosen["rank"]), default=None)


def _is_told(here: Record | None) -> TypeGuard[Record]:
    """Whether this machine says anything beside what can be rented: months say nothing."""
    return here is not None and _time(here) <= LONGEST_H


def _here(here: Record, chosen: Record, worth: float) -> Iterator[Claim]:
    ratio = _time(here) / _time(chosen)
    longer = f" ({slower_words(ratio)})" if worth <= ratio < _FARTHEST else ""
    text = f"This machine would take {hours_text(_time(here))}{longer}."
    yield _compared("here", here, chosen, text)


def _accuracy(error: Record | None, chosen: Record, unmeasured: str) -> Iterator[Claim]:
    """Say how far such estimates were off, or that nobody has tested it."""
    if error is not None:
        fraction = float(error["median_ape_fraction"])
        said = f"Typical error {_error_of(error)}: {percent_text(fraction)} (held-out test)."
        yield Claim(kind="error", text=said, error_fraction=fraction)
    elif chosen["extrapolating"]:
        has_gpu = any(part["accelerator"] for part in chosen["configuration"])
        text = f"We have no measurements of {'this GPU family' if has_gpu else 'such machines'}"
        # Where booting takes most of the time, the range of the whole is narrow nevertheless.
        time = chosen["training_time_h"]
        is_wide = time["high"] >= _WIDE * time["low"]
        text += ", so the range is wide." if is_wide else "."
        yield Claim(kind="extrapolating", row=chosen["rank"], text=text)
    elif unmeasured:
        yield Claim(kind="unmeasured", row=chosen["rank"], text=unmeasured)


def _unseen(job: Record, chosen: Record) -> Iterator[Claim]:
    """Say what the recording or description lacks that decides the time."""
    if slow := job.get("fallback"):
        yield Claim(kind="fallback", text=slow)
    parts = chosen["configuration"]
    text = input_words(
        job.get("unseen_input", ""), chosen["throughput_samples_per_s"]["value"],
        sum(part["count"] * part["vcpus"] for part in parts),
    )  # fmt: skip
    if text:
        yield Claim(kind="unfed", row=chosen["rank"] or "here", text=text)


def input_words(unseen: str, samples_per_s: float, vcpus: float = 0.0) -> str:
    """Say that loading was not seen, and how fast it must be; nothing where it was.

    ``unseen``: what is loaded, in the plural; ``vcpus``: of all machines; 0 where that is unknown.

    >>> input_words("images", 25_800.0)
    'No input pipeline was seen: it must deliver 25,800 images/s; profile the script with its \
loader.'
    """
    if not unseen:
        return ""
    each = f", {seconds_text(vcpus / samples_per_s)} of a vCPU for each" if vcpus else ""
    return (
        f"No input pipeline was seen: it must deliver {digits(samples_per_s)} {unseen}/s{each}; "
        "profile the script with its loader."
    )


def _error_of(error: Record) -> str:
    """Say which estimates erred so: on such GPUs, on as many, or of whole training runs."""
    family = str(error["family"]).partition(" ")[2]
    if error["accelerators"]:
        # The jobs that were asked about are named where they are not described as the user's is.
        jobs = "" if error["protocol"] == "described" else f" for {error['jobs']}"
        return f"on {family} GPUs{jobs}"
    if error["of"] == "whole job":
        return "of whole training runs"
    band = str(error["devices"]).removesuffix(" devices")
    return f"on one {family} GPU" if band == "1 device" else f"on {band} {family} GPUs"


def _deadline(record: Record, certainty: float) -> Iterator[Claim]:
    """Say what the deadline asks for, where the choice is not it."""
    picks, by_rank = record["picks"], {one["rank"]: one for one in record["front"]}
    choice, within = picks["best_value"], picks.get("within_deadline")
    late = by_rank[choice]["late_probability"] if choice in by_rank else None
    if late is None or within == choice:
        return
    is_late = late > 1.0 - certainty
    if within is None:
        text = f"It misses the deadline with a probability of {percent_text(late)}."
        yield Claim(kind="deadline_missed", row=choice, probability=late, text=text)
    elif is_late:
        text = (
            f"To meet the deadline with {percent_text(certainty)} certainty, take "
            f"{_surest(by_rank.get(within))}."
        )
        yield Claim(kind="deadline_needs", row=within, than=choice, probability=certainty,
                    text=text)  # fmt: skip


def _surest(one: Record | None) -> str:
    """Return what keeps the deadline, and by which plan where it follows one."""
    if one is None:
        return "this machine"
    late = one["late_probability"]
    if one["completion"] != "spot-by-deadline" or late is None:
        return f"#{one['rank']}"
    chance = f"less than {percent_text(0.01)}" if late < 0.01 else percent_text(late)
    return f"#{one['rank']} as `advisor simulate spot` plans it (late in {chance} of cases)"


def faster_words(ratio: float) -> str:
    """Return a speed-up of at least one.

    >>> faster_words(1.03), faster_words(1.7), faster_words(2.03), faster_words(41.2)
    ('3 % faster', '1.7 times faster', 'twice as fast', '41 times faster')
    """
    if abs(ratio / 2 - 1) <= _NEAR:
        return "twice as fast"
    return _more(ratio, "faster")


def slower_words(ratio: float) -> str:
    """Return a slow-down of at least one.

    >>> slower_words(1.06), slower_words(2.0), slower_words(3.26)
    ('6 % slower', 'half as fast', '3.3 times slower')
    """
    if abs(ratio / 2 - 1) <= _NEAR:
        return "half as fast"
    return _more(ratio, "slower")


def _more(ratio: float, word: str) -> str:
    if ratio < _PERCENT_BELOW:
        share = ratio - 1.0
        return f"{percent_text(share)} {word}" if share >= 0.005 else f"slightly {word}"
    return f"{ratio:.1f} times {word}" if ratio < _ROUND_FROM else f"{ratio:,.0f} times {word}"


def dearer_words(ratio: float) -> str:
    """Return a cost of at least the other's, behind "and".

    >>> dearer_words(1.31), dearer_words(2.0), dearer_words(5.2)
    ('costs 31 % more', 'costs twice as much', 'costs 5.2 times as much')
    """
    if ratio < 2 * (1 - _NEAR):
        share = ratio - 1.0
        return f"costs {percent_text(share)} more" if share >= 0.005 else "costs the same"
    if ratio <= 2 * (1 + _NEAR):
        return "costs twice as much"
    return (
        f"costs {ratio:.1f} times as much"
        if ratio < _ROUND_FROM
        else (f"costs {ratio:,.0f} times as much")
    )


def cheaper_words(share: float) -> str:
    """Return a cost below the other's, as its share.

    >>> cheaper_words(0.84), cheaper_words(0.5), cheaper_words(0.001)
    ('16 % cheaper', 'half the price', 'over 99 % cheaper')
    """
    if abs(2 * share - 1) <= _NEAR:
        return "half the price"
    if share < 0.01:
        return f"over {percent_text(0.99)} cheaper"
    return f"{percent_text(1 - share)} cheaper" if share <= 0.995 else "slightly cheaper"
