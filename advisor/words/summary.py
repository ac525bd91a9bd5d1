"""The choice in words: what to rent, or why to rent nothing, and what more or less money buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from advisor.quantities import hours_text
from advisor.words.pieces import cost_text, offer_words, time_text, usd_words

Record = Mapping[str, Any]

# Half and twice are said as words where a ratio is this near to them.
_NEAR: Final = 0.05
# Ratios above this say no more than the times do.
_FARTHEST: Final = 100
# Ratios have a decimal below this.
_ROUND_FROM: Final = 10


def summary_of(
    record: Record, *, certainty: float, worth: float, trouble_h: float,
    here: Record | None = None, unmeasured: str = "",
) -> tuple[str, ...]:  # fmt: skip
    """Return the choice in sentences that stand alone, the most important first.

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
    """
    front, picks, error = record["front"], record["picks"], record["known_error"]
    by_rank = {one["rank"]: one for one in front}
    choice = picks.get("best_value")
    said = [_unoffered(name, nearest) for name, nearest in record.get("unoffered", {}).items()]
    if choice is None:
        return tuple(said)
    chosen = by_rank.get(choice)
    if chosen is None:
        assert here is not None
        said += _stay(here, front, worth * trouble_h)
    else:
        words = offer_words(chosen["configuration"])
        said.append(f"Rent {words}: {time_text(chosen)}, {cost_text(chosen)}.")
        said += _beside(chosen, front, by_rank.get(picks["fastest"]))
        if here is not None:
            ratio = _time(here) / _time(chosen)
            is_said = worth <= ratio < _FARTHEST
            longer = f", {round(ratio):,} times as long" if is_said else ""
            said.append(f"This machine would take {hours_text(_time(here))}{longer}.")
    if error is not None and error["accelerators"] == 0:
        said.append(_error_of_band(error))
    elif error is not None:
        cards = "card" if error["accelerators"] == 1 else "cards"
        # The jobs that were asked about are named where they are not described as the user's is.
        jobs = "" if error["protocol"] == "described" else f"of {error['jobs']} "
        said.append(
            f"Expect an error of {error['median_ape_fraction']:.0%}: the median {jobs}on "
            f"{error['accelerators']} {error['family']} {cards}, each left out of the fit."
        )
    elif chosen is not None and chosen["extrapolating"]:
        said.append("No accelerator of its family was measured: the interval is wide.")
    elif chosen is not None and unmeasured:
        said.append(unmeasured)
    within = picks.get("within_deadline")
    if within is not None and within != choice:
        surest = _surest(by_rank.get(within))
        said.append(f"To keep the deadline with {certainty:.0%} certainty, take {surest}.")
    elif within is None and chosen is not None and chosen["late_probability"]:
        late = f"{chosen['late_probability']:.0%}"
        said.append(f"It misses the deadline with a chance of {late}.")
    return tuple(said)


def _unoffered(name: str, nearest: Sequence[str]) -> str:
    """Say that no provider has an accelerator, and which it could be instead."""
    said = f"No provider in the catalogue offers {name}."
    if not nearest:
        return said
    return f"{said} The nearest that is offered is {nearest[0]}: --gpus {nearest[0]}."


def _error_of_band(error: Record) -> str:
    """Say what is known of many devices: of a step on as many, or of whole training runs."""
    half = f"Expect an error of {error['median_ape_fraction']:.0%}: the median of "
    if error["of"] == "whole job":
        return f"{half}{error['rows']} published training runs, their model family left out."
    return (
        f"{half}{error['rows']:,} published steps on {error['family']}, {error['devices']}, their "
        "source left out."
    )


def _time(one: Record) -> float:
    return float(one["training_time_h"]["value"])


def _cost(one: Record) -> float:
    return float(one["cost_usd"]["value"])


def _stay(here: Record, front: Sequence[Record], short_h: float) -> list[str]:
    """Say why nothing is rented."""
    if _time(here) < short_h:
        return [f"Too short to rent anything: it takes {hours_text(_time(here))} here."]
    own = "free" if _cost(here) == 0 else usd_words(here["cost_usd"])[0]
    said = [f"Stay on this machine: {time_text(here)}, {own}."]
    if front:
        best = min(front, key=lambda one: _time(one) * _cost(one))
        said.append(
            f"Renting pays off where it halves the time: #{best['rank']} takes "
            f"{hours_text(_time(best))} for {usd_words(best['cost_usd'])[0]}."
        )
    return said


def _beside(chosen: Record, front: Sequence[Record], faster: Record | None) -> list[str]:
    """Say what the next faster and the next cheaper choice would be."""
    said = []
    if faster is None or faster is chosen:
        faster = _next(front, chosen, -1)
    if faster is not None and faster["rank"] < chosen["rank"]:
        speed, money = _time(chosen) / _time(faster), _cost(faster) / _cost(chosen)
        said.append(
            f"{_factor(speed)} as fast costs {_factor(money).lower()} as much (#{faster['rank']})."
        )
    cheaper = _next(front, chosen, 1)
    if cheaper is not None:
        share, time = _cost(cheaper) / _cost(chosen), _time(cheaper) / _time(chosen)
        said.append(
            f"For {share:.0%} of the money it takes {_factor(time).lower()} as long "
            f"(#{cheaper['rank']})."
        )
    return said


def _next(front: Sequence[Record], chosen: Record, way: int) -> Record | None:
    """Return the nearest row before or behind the choice that no plan by a deadline put there."""
    others = [
        one for one in front
        if way * (one["rank"] - chosen["rank"]) > 0 and one["completion"] != "spot-by-deadline"
    ]  # fmt: skip
    return min(others, key=lambda one: abs(one["rank"] - chosen["rank"]), default=None)


def _surest(one: Record | None) -> str:
    """Return what keeps the deadline, and by which plan where it follows one."""
    if one is None:
        return "this machine"
    late = one["late_probability"]
    if one["completion"] != "spot-by-deadline" or late is None:
        return f"#{one['rank']}"
    return (
        f"#{one['rank']}, on spot, on demand or waiting as `advisor simulate spot` plans it: late "
        f"in {'less than 1%' if late < 0.01 else f'{late:.0%}'} of cases"
    )


def _factor(ratio: float) -> str:
    """Return a ratio as people say it.

    >>> _factor(2.03), _factor(3.26), _factor(41.2)
    ('Twice', '3.3 times', '41 times')
    """
    if abs(ratio / 2 - 1) <= _NEAR:
        return "Twice"
    return f"{ratio:.1f} times" if ratio < _ROUND_FROM else f"{round(ratio):,} times"
