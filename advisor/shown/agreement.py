"""What was predicted against what was measured, as a chart: on the line both are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from advisor.shown.chart import TOGETHER, Chart, Series

# Of very many rows every so many is drawn: more marks than this are one stain.
MOST_ROWS: Final = 1000


def compared_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of the real runs in the record of ``advisor runs compare --json``."""
    runs = record["runs"]
    if not runs:
        return []
    inside = [one for one in runs if one["inside"]]
    outside = [one for one in runs if not one["inside"]]
    labels = {id(one): str(number) for number, one in enumerate(runs, 1)}
    series = [
        Series(
            name=name,
            x=[one["actual_h"] for one in rows],
            y=[one["predicted_h"] for one in rows],
            y_bounds=[(one["low_h"], one["high_h"]) for one in rows],
            labels=[labels[id(one)] for one in rows],
            shape="points",
        )
        for name, rows in (("inside the interval", inside), ("outside", outside))
        if rows
    ]
    return [
        _chart("Predicted against real runs", "h", series, notes=[
            "   ".join(_named(labels[id(one)], one) for one in runs)
        ])
    ]  # fmt: skip


def _named(label: str, one: Mapping[str, Any]) -> str:
    part = one["configuration"]
    return f"{label}: {part['count']} x {part['instance_type']}".replace(" ", TOGETHER)


def scored_charts(
    title: str, predicted: Sequence[float], measured: Sequence[float]
) -> list[Chart]:
    """Return the chart of scored rows; none where only their scores are known.

    Parameters
    ----------
    predicted, measured : sequence of float
        In one unit, positive.
    """
    if not len(measured):
        return []
    every = -(-len(measured) // MOST_ROWS)
    rows = Series(
        name="rows",
        x=list(map(float, measured[::every])),
        y=list(map(float, predicted[::every])),
        shape="points",
    )
    notes = [f"one of every {every} of {len(measured):,} rows is drawn"] if every > 1 else []
    return [_chart(title, "the protocol's unit", [rows], notes=notes)]


def _chart(title: str, unit: str, series: Sequence[Series], *, notes: Sequence[str]) -> Chart:
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
