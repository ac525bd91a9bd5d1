"""Verdicts as text, from their JSON records: the gate's, advice on a job, caches of experts.

Advice is one screen, the strongest first, each with what to do.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from advisor.errors import UsageError
from advisor.planners.core import GIB
from advisor.quantities import (
    digits,
    hours_interval,
    hours_text,
    percent_text,
    usd_interval,
    usd_text,
)
from advisor.words import pieces
from advisor.words.pieces import PHRASES, cost_text, indented, time_text, wrapped
from advisor.words.recommendation import SCREEN_LINES
from advisor.words.summary import faster_words

__all__ = ["SCREEN_LINES", "advice_text", "explained_advice"]


def text(record: Mapping[str, Any], *, width: int | None = None) -> str:
    """Return the verdict, a line a machine, what is against it, and what would do.

    ``record``: of ``advisor gate --json``; ``width``: columns; the terminal's otherwise.
    """
    columns = width or shutil.get_terminal_size().columns
    lines = []
    for one in record["submission"]:
        lines.append(f"{_word(one)}: {one['asked']}{_numbers(one)}")
        lines += [f"  {reason['limit']}: {reason['text']}" for reason in one["reasons"]]
        if one["note"]:
            lines.append(f"  note: {one['note']}")
    if record["note"]:
        lines.append(f"note: {record['note']}")
    for one in record["remedies"]:
        if one["label"]:
            lines.append(f"{PHRASES['verdicts'][one['kind']]}: {one['label']}{_numbers(one)}")
    return "\n".join(part for line in lines for part in indented(line, columns))


def _word(one: Mapping[str, Any]) -> str:
    if not one["judged"]:
        return "not judged"
    return "passes" if one["passes"] else "refused"


def _numbers(one: Mapping[str, Any]) -> str:
    said = [] if one["training_time_h"] is None else [time_text(one)]
    said += [] if one["cost_usd"] is None else [cost_text(one)]
    if one["candidate"] is not None:
        said += filter(None, [pieces.standing_words(one["candidate"])])
    return f": {', '.join(said)}" if said else ""


Record = Mapping[str, Any]

_NUMBER: Final = 3
_SAVED: Final = 12
_NAME: Final = 16
# A change of time or cost below this is rounding or the draw of a replay: "1.00 times as fast".
_NOTHING: Final = 0.005


def advice_text(
    record: Record, *, width: int = 80, most: int | None = SCREEN_LINES,
    command: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Return the lines: where the job stands, then the advice that fits.

    ``record`` is that of ``advisor advise --json``; ``most`` is the number of lines to stay
    within; None shows everything; ``command``: the words that asked, to which more can be added.
    """
    width, found = max(width, 40), record["advice"]
    head = _head(record, width)
    notes = [line for one in record["notes"] for line in wrapped(one, width, indent="  ")]
    notes = ["", *notes] if notes else []
    if not found:
        none = "The recording shows no change that would pay off."
        return [*head, "", none, *notes]
    items = [_item(place, one, width) for place, one in enumerate(found, start=1)]
    title = f"{'':{_NUMBER}}{'change':{width - _NUMBER - 2 * _SAVED}}"
    title = f"{title}{'time saved':>{_SAVED}}{'cost saved':>{_SAVED}}"
    foot = [*notes, "", "For the evidence and the lines to paste:"]
    foot += pieces.pasteable([*command, "--explain", "1"], width)
    shown, room = len(items), None if most is None else most - len(head) - 2 - len(foot)
    if room is not None:
        while shown > 1 and sum(map(len, items[:shown])) > room:
            shown -= 1
    if shown < len(items):
        foot.insert(len(notes) + 1, f"{len(items) - shown} more: --full")
    return [*head, "", title, *(line for item in items[:shown] for line in item), *foot]


def explained_advice(record: Record, number: int, *, width: int = 80) -> list[str]:
    """Return everything that is known of one piece of advice.

    Raises UsageError if there is no such advice.
    """
    found = record["advice"]
    if not 1 <= number <= len(found):
        known = f"give 1 to {len(found)}" if found else "there is none"
        raise UsageError(f"there is no advice {number}", hint=known)
    one = found[number - 1]
    kept = (
        "training gives the same result"
        if one["model_kept"]
        else "training may give another result"
    )
    lines = [f"{number}: {one['name']}", ""]
    for name, said in (
        ("change", one["change"]), ("time saved", saving_words(one["time_saved_h"], is_time=True)),
        ("cost saved", saving_words(one["cost_saved_usd"], is_time=False)),
        ("evidence", f"{PHRASES['evidence'][one['evidence']]}: {one['rests_on']}"),
        ("holds when", one["condition"]), ("the model", kept),
    ):  # fmt: skip
        lines += wrapped(f"{name:{_NAME}}{said}", max(width, 40), indent=" " * _NAME)
    what = {"flag": "add", "lines": "write", "yaml": "paste"}[one["how"]["kind"]]
    return [*lines, "", f"{what}:", *(f"    {line}" for line in one["how"]["text"].splitlines())]


def _head(record: Record, width: int) -> list[str]:
    """Return what is judged, and on what."""
    now = record["now"]
    if now is None:
        return wrapped(_served_words(record["run"], record["advice"][0]["details"]), width)
    parts, cost = now["configuration"], now["cost_usd"]
    paid = "free" if cost["high"] == 0 else usd_text(cost["value"])
    place = "this machine" if parts[0]["pricing"] == "own" else pieces.offer_words(parts)
    seen = "as it is" if record["is_whole"] else "as far as it was recorded"
    line = f"{record['run']} {seen}: {pieces.time_text(now)}, {paid} on {place}."
    if not record["meets_constraints"]:
        line += " This does not meet the constraints."
    return wrapped(" ".join(filter(None, (line, record["serving"]))), width)


def _served_words(run: str, details: Record) -> str:
    """Return where a mixture is served, how fast, and for how much."""
    line = f"{run} served on {details['place']}"
    if details["price_usd_per_h"]:
        line += (
            f" ({usd_text(details['price_usd_per_h'])}/h): "
            f"{usd_text(details['usd_per_million_tokens'])} per million tokens"
        )
    return f"{line}, {digits(details['tokens_per_s'])} tokens/s."


def _item(place: int, one: Record, width: int) -> list[str]:
    """Return a piece of advice: what to change and what it saves, then its evidence."""
    room = width - _NUMBER - 2 * _SAVED
    first, *rest = textwrap.wrap(one["change"], room - 1, break_on_hyphens=False) or [""]
    time = _saved(one["time_saved_h"], one["time_factor"], hours_text)
    cost = _saved(one["cost_saved_usd"], one["cost_factor"], usd_text)
    lines = [f"{place:>{_NUMBER - 1}} {first:{room}}{time:>{_SAVED}}{cost:>{_SAVED}}"]
    lines += [f"{'':{_NUMBER}}{more}" for more in rest]
    about = "; ".join(_about(one))
    if len(about) > width - _NUMBER:
        about = f"{about[: width - _NUMBER - 4].rstrip()} ..."
    lines.append(f"{'':{_NUMBER}}{about}")
    return [line.rstrip() for line in lines]


def _about(one: Record) -> Iterator[str]:
    yield PHRASES["evidence"][one["evidence"]]
    if one["time_saved_h"] is not None and one["time_factor"] <= 1.0 - _NOTHING:
        yield faster_words(1.0 / max(one["time_factor"], 1e-3))
    if not one["model_kept"]:
        yield "check the trained model"
    yield _first_line(one["how"]["text"])


def _first_line(text: str) -> str:
    """Return the first line to paste; of a diff the first that it adds."""
    lines = text.splitlines()
    if not lines[0].startswith("--- "):
        return lines[0].strip()
    return next((line[1:].strip() for line in lines[2:] if line.startswith("+")), lines[0])


def _saved(saved: Record | None, factor: float, said: Callable[[float], str]) -> str:
    if saved is None or not saved["value"] or abs(1.0 - factor) < _NOTHING:
        return "-"
    return said(saved["value"]) if saved["value"] > 0 else f"-{said(-saved['value'])}"


def saving_words(saved: Record | None, *, is_time: bool) -> str:
    """Return a saving with its bounds, and whether it may be none at all."""
    if saved is None or saved["value"] == 0:
        return "none"
    if saved["value"] < 0:
        lost = {"value": -saved["value"], "low": -saved["high"], "high": -saved["low"]}
        return f"none; {_bounded({**saved, **lost}, is_time=is_time)} more"
    return _bounded(saved, is_time=is_time)


def _bounded(saved: Record, *, is_time: bool) -> str:
    clipped = {**saved, "low": max(saved["low"], 0.0)}
    value, bounds = hours_interval(clipped) if is_time else usd_interval(clipped)
    may_lose = "; it may also be a loss" if saved["low"] < 0 else ""
    return f"{value} ({bounds}, {percent_text(saved['coverage'])}{may_lose})"


_COLUMNS: Final = ("lru", "lfu", "periodic", "learned", "oracle")
_WIDTH: Final = 10


def cache_table(details: Mapping[str, Any]) -> list[str]:
    """Return the hit rate of each size and policy, and the latency of the best that serves.

    ``details``: of the advice ``expert-cache``.
    """
    by_size: dict[int, dict[str, Mapping[str, Any]]] = {}
    for one in details["sizes"]:
        by_size.setdefault(one["cached"], {})[one["policy"]] = one
    shown = [one for one in _COLUMNS if any(one in row for row in by_size.values())]
    heads = ("experts", "GiB", *shown, "ms/token")
    lines = ["", "Share of the needed experts that are cached, by policy:", ""]
    lines.append("".join(f"{head:>{_WIDTH}}" for head in heads).rstrip())
    for cached, row in sorted(by_size.items()):
        best = min(one["token_s"] for policy, one in row.items() if policy != "oracle")
        cells = [f"{cached}", f"{digits(row['lru']['memory_bytes'] / GIB)}"]
        rates = [row[policy]["hit_rate"] if policy in row else None for policy in shown]
        cells += ["-" if rate is None else percent_text(rate, 1) for rate in rates]
        cells.append(digits(1e3 * best))
        lines.append("".join(f"{cell:>{_WIDTH}}" for cell in cells))
    note = "The oracle knows all later tokens, so no cache loads less."
    return [*lines, "", note] if "oracle" in shown else lines
