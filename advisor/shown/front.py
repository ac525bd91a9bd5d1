"""Candidates as a chart: training time against cost, numbered as in the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from advisor import words
from advisor.shown.chart import TOGETHER, Chart, Series

TIME_LABEL: Final = "training time (h)"
COST_LABEL: Final = "cost (USD)"
_OTHERS: Final = "other candidates"


def front_chart(record: Mapping[str, Any], *, names: bool = False) -> list[Chart]:
    """Return time against cost, a numbered point a row of an answer; nothing without rows.

    Parameters
    ----------
    record : mapping
        Of ``advisor recommend --json``; each of its picks has a colour of its own.
    names : bool, default False
        Write what computes beside the numbers at the points; else it stands in a note.
    """
    shown = record["front"] or record["nearest"]
    if not shown:
        return []
    picked: dict[str, list[Mapping[str, Any]]] = {}
    for one in shown:
        picked.setdefault(words.picked_as(record, one["rank"]), []).append(one)
    order = sorted(picked, key=lambda label: (label != "", label))  # the others lie below
    return [
        Chart(
            title=_title(record),
            x_label=TIME_LABEL,
            y_label=COST_LABEL,
            series=[_points(label, picked[label], names=names) for label in order],
            is_x_logarithmic=None,
            is_y_logarithmic=None,
            notes=list(_notes(record, shown, names=names)),
        )
    ]


def _title(record: Mapping[str, Any]) -> str:
    what = "Time against cost" if record["front"] else "Time against cost of the nearest misses"
    return f"{what}: {record['run']}"


def _points(name: str, rows: Sequence[Mapping[str, Any]], *, names: bool) -> Series:
    times, costs = ([one[part] for one in rows] for part in ("training_time_h", "cost_usd"))
    return Series(
        name=name or _OTHERS,
        x=[one["value"] for one in times],
        y=[one["value"] for one in costs],
        x_bounds=[(one["low"], one["high"]) for one in times],
        y_bounds=[(one["low"], one["high"]) for one in costs],
        labels=[_named(one) if names else str(one["rank"]) for one in rows],
        shape="points",
        is_minor=not name,
    )


def _named(one: Mapping[str, Any]) -> str:
    return f"{one['rank']}: {words.inside(one['configuration'])}"


def _notes(
    record: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], *, names: bool
) -> Iterator[str]:
    """Yield what the numbers are, and this machine, which costs nothing and has no place."""
    if not names:
        yield "   ".join(_named(one).replace(" ", TOGETHER) for one in shown)
    here = record.get("here")
    if here is not None and here["cost_usd"]["high"] == 0:
        picked = words.picked_as(record, "here")
        time = words.time_text(here).replace(" ", TOGETHER)
        yield f"this machine: {time}, free{f' ({picked})' if picked else ''}"
