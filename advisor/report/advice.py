"""Advice as text for a terminal: one screen, the strongest first, each with what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from advisor.advice.record import Advice, AdviceList
from advisor.domain import Estimate
from advisor.errors import UsageError
from advisor.quantities import hours_interval, hours_text, usd_interval, usd_text
from advisor.ranking.summary import offer_words
from advisor.report.terminal import SCREEN_LINES

__all__ = ["SCREEN_LINES", "explained", "text"]

_NUMBER: Final = 3
_SAVED: Final = 12
_NAME: Final = 16
_EVIDENCE: Final = {
    "measured": "measured",
    "table": "from a published table",
    "formula": "computed",
}


def text(found: AdviceList, *, width: int = 80, most: int | None = SCREEN_LINES) -> list[str]:
    """Return the lines: where the job stands, then the advice that fits.

    ``most`` is the number of lines to stay within; None shows everything.
    """
    width = max(width, 40)
    head = _head(found, width)
    if not found.advice:
        return [*head, "", "Nothing of what was recorded says that a change would pay."]
    items = [_item(place, one, width) for place, one in enumerate(found.advice, start=1)]
    title = f"{'':{_NUMBER}}{'change':{width - _NUMBER - 2 * _SAVED}}"
    title = f"{title}{'time saved':>{_SAVED}}{'cost saved':>{_SAVED}}"
    foot = ["", "What each rests on, and what to paste: --explain 1"]
    shown, room = len(items), None if most is None else most - len(head) - 2 - len(foot)
    if room is not None:
        while shown > 1 and sum(map(len, items[:shown])) > room:
            shown -= 1
    if shown < len(items):
        foot[1] += f"; {len(items) - shown} more: --full"
    return [*head, "", title, *(line for item in items[:shown] for line in item), *foot]


def explained(found: AdviceList, number: int, *, width: int = 80) -> list[str]:
    """Return everything that is known of one piece of advice.

    Raises
    ------
    UsageError
        If there is no such advice.
    """
    if not 1 <= number <= len(found.advice):
        known = f"give 1 to {len(found.advice)}" if found.advice else "there is none"
        raise UsageError(f"there is no advice {number}", hint=known)
    one = found.advice[number - 1]
    width = max(width, 40)
    kept = "the same is learned" if one.is_model_kept else "what is learned may differ"
    lines = [f"{number}: {one.name}", ""]
    for name, words in (
        ("change", one.change), ("time saved", saving_words(one.time_saved_h, is_time=True)),
        ("cost saved", saving_words(one.cost_saved_usd, is_time=False)),
        ("evidence", f"{_EVIDENCE[one.evidence]}: {one.rests_on}"), ("holds when", one.condition),
        ("the model", kept),
    ):  # fmt: skip
        lines += textwrap.wrap(
            f"{name:{_NAME}}{words}", width, subsequent_indent=" " * _NAME,
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
    what = {"flag": "add", "lines": "write", "yaml": "paste"}[one.how.kind]
    return [*lines, "", f"{what}:", *(f"    {line}" for line in one.how.text.splitlines())]


def _head(found: AdviceList, width: int) -> list[str]:
    """Return what is judged, and on what."""
    now = found.now
    time, bounds = hours_interval(now.training_time_h)
    cost = "free" if now.cost_usd.high == 0 else usd_text(now.cost_usd.value)
    place = (
        "this machine"
        if now.configuration.parts[0][0].pricing == "own"
        else offer_words(now.configuration)
    )
    line = f"{found.run} as it is: {time} ({bounds}), {cost} on {place}."
    if not found.meets_constraints:
        line += " That misses the constraints."
    return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False)


def _item(place: int, one: Advice, width: int) -> list[str]:
    """Return a piece of advice: what to change and what it saves, then its evidence."""
    room = width - _NUMBER - 2 * _SAVED
    first, *rest = textwrap.wrap(one.change, room - 1, break_on_hyphens=False) or [""]
    numbers = f"{_time(one.time_saved_h):>{_SAVED}}{_cost(one.cost_saved_usd):>{_SAVED}}"
    lines = [f"{place:>{_NUMBER - 1}} {first:{room}}{numbers}"]
    lines += [f"{'':{_NUMBER}}{more}" for more in rest]
    about = "; ".join(_about(one))
    if len(about) > width - _NUMBER:
        about = f"{about[: width - _NUMBER - 4].rstrip()} ..."
    lines.append(f"{'':{_NUMBER}}{about}")
    return [line.rstrip() for line in lines]


def _about(one: Advice) -> Iterator[str]:
    yield _EVIDENCE[one.evidence]
    if one.time_saved_h is not None and one.time_factor < 1.0:
        yield f"{1.0 / max(one.time_factor, 1e-3):.2f} times as fast"
    if not one.is_model_kept:
        yield "check what is learned"
    yield _first_line(one.how.text)


def _first_line(text: str) -> str:
    """Return the first line to paste; of a diff the first that it adds."""
    lines = text.splitlines()
    if not lines[0].startswith("--- "):
        return lines[0].strip()
    return next((line[1:].strip() for line in lines[2:] if line.startswith("+")), lines[0])


def _time(saved: Estimate | None) -> str:
    if saved is None or saved.value == 0:
        return "-"
    return hours_text(saved.value) if saved.value > 0 else f"-{hours_text(-saved.value)}"


def _cost(saved: Estimate | None) -> str:
    if saved is None or saved.value == 0:
        return "-"
    return usd_text(saved.value) if saved.value > 0 else f"-{usd_text(-saved.value)}"


def saving_words(saved: Estimate | None, *, is_time: bool) -> str:
    """Return a saving with its bounds, and whether it may be none at all."""
    if saved is None or saved.value == 0:
        return "none"
    if saved.value < 0:
        lost = Estimate(value=-saved.value, low=-saved.high, high=-saved.low,
                        coverage=saved.coverage)  # fmt: skip
        return f"none; {_bounded(lost, is_time=is_time)} more"
    return _bounded(saved, is_time=is_time)


def _bounded(saved: Estimate, *, is_time: bool) -> str:
    least = max(saved.low, 0.0)
    clipped = Estimate(value=saved.value, low=least, high=saved.high, coverage=saved.coverage)
    value, bounds = hours_interval(clipped) if is_time else usd_interval(clipped)
    may_lose = "; it may also cost" if saved.low < 0 else ""
    return f"{value} ({bounds}, {saved.coverage:.0%}{may_lose})"
