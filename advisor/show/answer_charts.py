"""Charts of answers: candidates by time and cost, layouts by time and memory, real runs.

Rows are numbered as in the tables. Real runs stand against a line on which what was predicted is
what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from advisor.show.charts import TOGETHER, Chart, Series
from advisor.show.palette import ROLES
from advisor.words import devices_words, machines_words, picked_as_words, time_text

TIME_LABEL: Final = "training time (h)"
COST_LABEL: Final = "cost (USD)"
_OTHERS: Final = "other candidates"


def front_chart(record: Mapping[str, Any], *, names: bool = False) -> list[Chart]:
    """Return time against cost, a numbered point a row of an answer; nothing without rows.

    ``record``: of ``advisor recommend --json``; each of its picks has a colour of its own;
    ``names``: write what computes beside the numbers at the points; else it stands in a note;
    False by default.
    """
    shown = record["front"] or record["nearest"]
    if not shown:
        return []
    picked: dict[str, list[Mapping[str, Any]]] = {}
    for one in shown:
        picked.setdefault(picked_as_words(record, one["rank"]), []).append(one)
    picks = record.get("picks", {})
    role = {picks[name]: name for name in reversed([*ROLES]) if name in picks}
    order = sorted(picked, key=lambda label: (label != "", label))  # the others lie below
    return [
        Chart(
            title=_title(record),
            x_label=TIME_LABEL,
            y_label=COST_LABEL,
            series=[
                _front_points(label, rows, role.get(rows[0]["rank"], ""), names=names)
                for label, rows in ((label, picked[label]) for label in order)
            ],
            is_x_logarithmic=None,
            is_y_logarithmic=None,
            notes=list(_notes(record, shown, names=names)),
        )
    ]


def _title(record: Mapping[str, Any]) -> str:
    what = "Time against cost" if record["front"] else "Time against cost of the nearest misses"
    return f"{what}: {record['run']}"


def _points(
    name: str, x: Sequence[Any], y: Sequence[Any], labels: Sequence[str], *,
    is_minor: bool = False, role: str = "",
) -> Series:  # fmt: skip
    """Return labelled points at values, or at estimates with their bounds."""

    def middle(values: Sequence[Any]) -> list[float]:
        return [one["value"] if isinstance(one, Mapping) else one for one in values]

    def bounds(values: Sequence[Any]) -> list[tuple[float, float]]:
        return [(one["low"], one["high"]) for one in values if isinstance(one, Mapping)]

    return Series(
        name=name, x=middle(x), y=middle(y), x_bounds=bounds(x), y_bounds=bounds(y),
        labels=labels, shape="points", is_minor=is_minor, role=role,
    )  # fmt: skip


def _front_points(
    name: str, rows: Sequence[Mapping[str, Any]], role: str, *, names: bool
) -> Series:
    labels = [_front_named(one) if names else str(one["rank"]) for one in rows]
    times, costs = ([one[part] for one in rows] for part in ("training_time_h", "cost_usd"))
    return _points(name or _OTHERS, times, costs, labels, is_minor=not name, role=role)


def _front_named(one: Mapping[str, Any]) -> str:
    return f"{one['rank']}: {devices_words(one['configuration'])}"


def _notes(
    record: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], *, names: bool
) -> Iterator[str]:
    """Yield what the numbers are, and this machine, which costs nothing and has no place."""
    if not names:
        yield "   ".join(_front_named(one).replace(" ", TOGETHER) for one in shown)
    here = record.get("here")
    if here is not None and here["cost_usd"]["high"] == 0:
        picked = picked_as_words(record, "here")
        time = time_text(here).replace(" ", TOGETHER)
        yield f"this machine: {time}, free{f' ({picked})' if picked else ''}"


def plan_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of the record of ``advisor plan --json``, the chosen layout in colour."""
    plans = record["plans"]
    if not plans:
        return []
    chosen, others = [(1, plans[0])], list(enumerate(plans[1:], 2))
    series = [_plans_points("also", others, is_minor=True)] if others else []
    series.append(_plans_points("chosen", chosen, is_minor=False))
    notes = ["   ".join(_plans_named(place, one) for place, one in enumerate(plans, 1))]
    return [
        Chart(
            title="Layouts: time of a step against memory",
            x_label="time of a step (s)",
            y_label="memory of the fullest device (GiB)",
            series=series,
            is_x_logarithmic=True,  # layouts are near one another, and far from 0
            notes=notes,
        )
    ]


def _plans_points(
    name: str, plans: list[tuple[int, Mapping[str, Any]]], *, is_minor: bool
) -> Series:
    times, needed = ([one[of] for _, one in plans] for of in ("step_time_s", "memory_gib"))
    return _points(name, times, needed, [str(at) for at, _ in plans], is_minor=is_minor)


def _plans_named(place: int, one: Mapping[str, Any]) -> str:
    return f"{place}: {one['name']} on {machines_words(one['configuration'])}".replace(
        " ", TOGETHER
    )


def compared_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of the real runs in the record of ``advisor runs compare --json``."""
    runs = record["runs"]
    if not runs:
        return []
    inside = [one for one in runs if one["inside"]]
    outside = [one for one in runs if not one["inside"]]
    labels = {id(one): str(number) for number, one in enumerate(runs, 1)}
    series = [
        _points(
            name, [one["actual_h"] for one in rows],
            [{"value": one["predicted_h"], "low": one["low_h"], "high": one["high_h"]}
             for one in rows],
            [labels[id(one)] for one in rows],
        )
        for name, rows in (("inside the interval", inside), ("outside", outside))
        if rows
    ]  # fmt: skip
    return [
        agreement_chart("Predicted against real runs", "h", series, notes=[
            "   ".join(_named(labels[id(one)], one) for one in runs)
        ])
    ]  # fmt: skip


def _named(label: str, one: Mapping[str, Any]) -> str:
    part = one["configuration"]
    return f"{label}: {part['count']} x {part['instance_type']}".replace(" ", TOGETHER)


def agreement_chart(
    title: str, unit: str, series: Sequence[Series], *, notes: Sequence[str]
) -> Chart:
    """Return what was predicted over what was measured, with the line where both are equal."""
    ends = [
        value
        for one in series
        for point in one.points()
        for value in (point.x, point.y, *(point.y_bounds or ()))
        if value > 0
    ]
    low, high = min(ends), max(ends)
    line = Series(name="predicted = measured", x=[low, high], y=[low, high], is_minor=True)
    return Chart(
        title=title,
        x_label=f"measured ({unit})",
        y_label=f"predicted ({unit})",
        series=[line, *series],
        is_x_logarithmic=True,
        is_y_logarithmic=True,
        notes=notes,
    )
