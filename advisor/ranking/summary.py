"""The choice in words: what to rent, or why to rent nothing, and what more or less money buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from advisor.domain import Candidate, Configuration, Estimate, KnownError
from advisor.quantities import hours_interval, hours_text, usd_interval
from advisor.ranking.picks import CONFIDENCE, LEAST_SPEED_UP, TROUBLE_H, Pick
from advisor.ranking.request import Request

# Half and twice are said as words where a ratio is this near to them.
_NEAR: Final = 0.05
# Ratios above this say no more than the times do.
_FARTHEST: Final = 100
# Ratios have a decimal below this.
_ROUND_FROM: Final = 10


def keeps(one: Candidate, request: Request) -> bool:
    """Whether a candidate keeps deadline and budget, with the confidence that was asked for."""
    return not broken(request, one.training_time_h, one.cost_usd)


def broken(
    request: Request, time_h: Estimate, cost_usd: Estimate | None
) -> tuple[Literal["deadline", "budget"], ...]:
    """Return which of deadline and budget a job breaks, with the confidence that was asked for.

    Parameters
    ----------
    request : Request
    time_h, cost_usd : Estimate, Estimate or None
        Of the whole job; what has no price breaks no budget. [h], [USD]
    """
    confidence = request.confidence
    found: list[Literal["deadline", "budget"]] = []
    limits: tuple[tuple[Literal["deadline", "budget"], float | None, Estimate | None], ...] = (
        ("deadline", request.deadline_h, time_h), ("budget", request.budget_usd, cost_usd),
    )  # fmt: skip
    for name, limit, one in limits:
        if limit is None or one is None:
            continue
        if one.value > limit if confidence is None else one.above(limit) > 1 - confidence:
            found.append(name)
    return tuple(found)


def summary(
    front: Sequence[Candidate], here: Candidate | None, picks: Mapping[str, Pick],
    error: KnownError | None = None, *, confidence: float | None = None, unmeasured: str = "",
) -> tuple[str, ...]:  # fmt: skip
    """Return the choice in sentences that stand alone, the most important first.

    Parameters
    ----------
    front : sequence of Candidate
    here : Candidate or None
        This machine, where it keeps the constraints.
    picks : mapping of str to int or "here"
        As ``picks.picks`` makes them.
    error : KnownError or None
        Of the best value's hardware.
    confidence : float or None
        With which the deadline is to be kept.
    unmeasured : str
        What nobody has measured, where there is no error; as a sentence.
    """
    by_rank = {one.rank: one for one in front}
    choice = picks.get("best_value")
    if choice is None:
        return ()
    said = []
    if not isinstance(choice, int):
        assert here is not None
        said += _stay(here, front)
    else:
        chosen = by_rank[choice]
        said.append(f"Rent {offer_words(chosen.configuration)}: {_numbers(chosen)}.")
        said += _beside(chosen, front, picks)
        if here is not None:
            ratio = here.training_time_h.value / chosen.training_time_h.value
            longer = _times(ratio, ", {} times as long") if ratio < _FARTHEST else ""
            said.append(
                f"This machine would take {hours_text(here.training_time_h.value)}{longer}."
            )
    if error is not None:
        said.append(
            f"Expect an error of {error.median_ape_fraction:.0%}: the median {_of_jobs(error)}on "
            f"{_cards(error)}, each left out of the fit."
        )
    elif isinstance(choice, int) and by_rank[choice].is_extrapolating:
        said.append("No accelerator of its family was measured: the interval is wide.")
    elif isinstance(choice, int) and unmeasured:
        said.append(unmeasured)
    within = picks.get("within_deadline")
    if within is not None and within != choice:
        sure = f"{confidence or CONFIDENCE:.0%}"
        said.append(
            f"To keep the deadline with {sure} certainty, take {_surest(by_rank, within)}."
        )
    elif within is None and isinstance(choice, int) and by_rank[choice].late_probability:
        late = f"{by_rank[choice].late_probability:.0%}"
        said.append(f"It misses the deadline with a chance of {late}.")
    return tuple(said)


def offer_words(configuration: Configuration) -> str:
    """Return machines, what is in them and where they are.

    Examples
    --------
    >>> from advisor.domain import Offer
    >>> offer = Offer(provider="verda", instance_type="1V100.6V", region="FIN-01",
    ...               pricing="on-demand", price_usd_per_h=0.14, accelerator="V100-SXM2-16GB",
    ...               accelerators=1, vcpus=6, memory_gib=23)
    >>> offer_words(Configuration(parts=((offer, 2),)))
    '2 x 1V100.6V (1 x V100-SXM2-16GB each, verda FIN-01)'
    """
    words = []
    for offer, count in configuration.parts:
        inside = f"{offer.vcpus} vCPU, {offer.memory_gib:g} GiB"
        if offer.accelerator is not None:
            inside = f"{offer.accelerators:g} x {offer.accelerator}"
        each = " each" if count > 1 else ""
        spot = ", spot" if offer.pricing == "spot" else ""
        spot += f", {offer.terms}" if offer.terms else ""
        place = f"{offer.provider} {offer.region}{spot}"
        words.append(f"{count} x {offer.instance_type} ({inside}{each}, {place})")
    return " + ".join(words)


def _of_jobs(error: KnownError) -> str:
    """Name the jobs that were asked about, where they are not described as the user's is."""
    return "" if error.protocol == "described" else f"of {error.jobs} "


def _cards(error: KnownError) -> str:
    cards = "card" if error.accelerators == 1 else "cards"
    return f"{error.accelerators} {error.family} {cards}"


def _numbers(one: Candidate) -> str:
    time, time_range = hours_interval(one.training_time_h)
    cost, cost_range = usd_interval(one.cost_usd)
    return f"{time} ({time_range}), {cost} ({cost_range})"


def _stay(here: Candidate, front: Sequence[Candidate]) -> list[str]:
    """Say why nothing is rented."""
    time_h = here.training_time_h.value
    own = "free" if here.cost_usd.value == 0 else usd_interval(here.cost_usd)[0]
    if time_h < LEAST_SPEED_UP * TROUBLE_H:
        return [f"Too short to rent anything: it takes {hours_text(time_h)} here."]
    time, bounds = hours_interval(here.training_time_h)
    said = [f"Stay on this machine: {time} ({bounds}), {own}."]
    if front:
        best = min(front, key=lambda one: one.training_time_h.value * one.cost_usd.value)
        said.append(
            f"Renting pays off where it halves the time: #{best.rank} takes "
            f"{hours_text(best.training_time_h.value)} for {usd_interval(best.cost_usd)[0]}."
        )
    return said


def _beside(chosen: Candidate, front: Sequence[Candidate], picks: Mapping[str, Pick]) -> list[str]:
    """Say what the next faster and the next cheaper choice would be."""
    by_rank = {one.rank: one for one in front}
    said = []
    fastest = picks["fastest"]
    faster = by_rank.get(fastest) if isinstance(fastest, int) else None
    if faster is None or faster is chosen:
        faster = _next(front, chosen, -1)
    if faster is not None and faster.rank < chosen.rank:
        speed = chosen.training_time_h.value / faster.training_time_h.value
        money = faster.cost_usd.value / chosen.cost_usd.value
        said.append(
            f"{_factor(speed)} as fast costs {_factor(money).lower()} as much (#{faster.rank})."
        )
    cheaper = _next(front, chosen, 1)
    if cheaper is not None:
        share = cheaper.cost_usd.value / chosen.cost_usd.value
        time = cheaper.training_time_h.value / chosen.training_time_h.value
        said.append(
            f"For {share:.0%} of the money it takes {_factor(time).lower()} as long "
            f"(#{cheaper.rank})."
        )
    return said


def _next(front: Sequence[Candidate], chosen: Candidate, way: int) -> Candidate | None:
    """Return the nearest row before or behind the choice that no plan by a deadline put there."""
    others = [
        one for one in front
        if way * (one.rank - chosen.rank) > 0 and one.completion != "spot-by-deadline"
    ]  # fmt: skip
    return min(others, key=lambda one: abs(one.rank - chosen.rank), default=None)


def _surest(by_rank: Mapping[int, Candidate], place: Pick) -> str:
    """Return what keeps the deadline, and by which plan where it follows one."""
    if not isinstance(place, int):
        return "this machine"
    one, late = by_rank[place], by_rank[place].late_probability
    if one.completion != "spot-by-deadline" or late is None:
        return f"#{place}"
    return (
        f"#{place}, on spot, on demand or waiting as `advisor simulate spot` plans it: late in "
        f"{'less than 1%' if late < 0.01 else f'{late:.0%}'} of cases"
    )


def _factor(ratio: float) -> str:
    """Return a ratio as people say it.

    >>> _factor(2.03), _factor(3.26), _factor(41.2)
    ('Twice', '3.3 times', '41 times')
    """
    if abs(ratio / 2 - 1) <= _NEAR:
        return "Twice"
    return f"{ratio:.1f} times" if ratio < _ROUND_FROM else f"{round(ratio):,} times"


def _times(ratio: float, words: str) -> str:
    return words.format(f"{round(ratio):,}") if ratio >= LEAST_SPEED_UP else ""
