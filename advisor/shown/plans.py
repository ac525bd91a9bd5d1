"""Layouts of a job as a chart: time of a step against the memory of the fullest device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.shown.chart import TOGETHER, Chart, Series
from advisor.words import machines


def plan_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of the record of ``advisor plan --json``, the chosen layout in colour."""
    plans = record["plans"]
    if not plans:
        return []
    chosen, others = [(1, plans[0])], list(enumerate(plans[1:], 2))
    series = [_points("also", others, is_minor=True)] if others else []
    series.append(_points("chosen", chosen, is_minor=False))
    notes = ["   ".join(_named(place, one) for place, one in enumerate(plans, 1))]
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


def _points(name: str, plans: list[tuple[int, Mapping[str, Any]]], *, is_minor: bool) -> Series:
    times = [one["step_time_s"] for _, one in plans]
    return Series(
        name=name,
        x=[time["value"] for time in times],
        y=[one["memory_gib"] for _, one in plans],
        x_bounds=[(time["low"], time["high"]) for time in times],
        labels=[str(place) for place, _ in plans],
        shape="points",
        is_minor=is_minor,
    )


def _named(place: int, one: Mapping[str, Any]) -> str:
    return f"{place}: {one['name']} on {machines(one['configuration'])}".replace(" ", TOGETHER)
