"""Ways of running a job on spot nodes beside one another: numbers and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import Column, SpotTrace
from advisor.shown.chart import Chart, Series
from advisor.simulation.samples import ended, finite, named, sample_percentiles
from advisor.simulation.spot_question import STARTS, SpotQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOutcome:
    """One way of running the job.

    ``finish_h`` and ``cost_usd`` are the 10th, 50th and 90th percentile over replays (inf where
    the job did not end); ``miss_probability`` is None without a deadline.
    """

    name: str
    finish_h: tuple[float, ...]
    cost_usd: tuple[float, ...] | None
    mean_cost_usd: float | None
    miss_probability: float | None
    samples_h: Sequence[float] = field(repr=False, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotAnswer:
    """Every way, on demand first, and the trace they were replayed on."""

    trace: str
    days: float
    availability: float
    question: SpotQuestion
    ways: Sequence[SpotOutcome]
    charts: Sequence[Chart] = field(repr=False, default=())

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record; what never ends is null."""
        return {
            "schema_version": 1,
            "trace": self.trace,
            "days": self.days,
            "availability_fraction": self.availability,
            "job": self.question.to_record(),
            "ways": [
                {
                    "name": way.name,
                    "finish_h": named(way.finish_h),
                    "cost_usd": None if way.cost_usd is None else named(way.cost_usd),
                    "mean_cost_usd": finite(way.mean_cost_usd),
                    "miss_probability": way.miss_probability,
                }
                for way in self.ways
            ],
        }


def outcome(
    name: str, finish_s: Column, cost: Column | None, question: SpotQuestion
) -> SpotOutcome:
    """Return one way of running the job from its replays: time [s] and cost [USD] of each."""
    hours = np.where(np.isnan(finish_s), np.inf, finish_s) / HOUR_S
    deadline = question.deadline_s
    return SpotOutcome(
        name=name,
        finish_h=sample_percentiles(hours),
        cost_usd=None if cost is None else sample_percentiles(cost),
        mean_cost_usd=None if cost is None else float(cost.mean()),
        miss_probability=None if deadline is None else float(np.mean(hours > deadline / HOUR_S)),
        samples_h=np.sort(hours).tolist(),
    )


def charts_of(
    trace: SpotTrace, ways: Sequence[SpotOutcome], question: SpotQuestion
) -> list[Chart]:
    """Return the nodes that were there over time, and the share of replays that have ended."""
    days = np.append(trace.start_s, trace.end_s) / HOUR_S / 24
    counts = np.append(trace.available, trace.available[-1])
    return [
        Chart(
            title=f"Nodes available: {trace.name}",
            x_label="days",
            y_label="nodes",
            series=[Series(name="up", x=days.tolist(), y=counts.tolist(), shape="area")],
        ),
        _ended(ways, question),
    ]


def _ended(ways: Sequence[SpotOutcome], question: SpotQuestion) -> Chart:
    shown = [way for way in ways if len(way.samples_h) > 1]
    finite = [h for way in shown for h in way.samples_h if np.isfinite(h)]
    curves = [ended(way.name, way.samples_h) for way in shown]
    if question.deadline_s is not None:
        at = question.deadline_s / HOUR_S
        curves.append(Series(name="deadline", x=[at], shape="vertical"))
        finite.append(at)
    low, high = min(finite, default=1.0), max(finite, default=10.0)
    return Chart(
        title="Share of replays that have ended",
        x_label="hours since submission (logarithmic)",
        y_label="share",
        series=curves,
        x_range=(0.9 * low, 1.1 * max(high, 1.01 * low)),
        y_range=(0.0, 1.0),
        is_x_logarithmic=True,
        notes=[f"{STARTS} starts spread over the trace; curves that stay below 1: not ended"],
    )
