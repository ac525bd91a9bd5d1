"""Predicted against actual over time: the comparisons that were noted, and whether errors drift.

``advisor runs actual`` notes what had been predicted beside what a run took (``jobs.journal``).

Of the latest runs, those outside their interval are counted. With a coverage of 90 % each is
outside with probability 0.1; estimates drift where as many as were seen would be outside by chance
in fewer than one case of twenty (binomial tail).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from advisor.domain import Estimate
from advisor.jobs import actuals, journal
from advisor.jobs.actuals import Actual
from advisor.jobs.journal import Entry

RECENT: Final = 10  # runs looked at: errors of a year ago say little of today's
LEAST_PROBABILITY: Final = 0.05
# Fits the learned predictors on the packaged runs and on the user's own, these among them.
RETRAINING: Final = "advisor train models"
_PREDICTED: Final = "predicted"
_EARLIER: Final = "comparison"  # as versions before the journal wrote them


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A real run of a whole job beside what was predicted before it was known."""

    noted_at: str = ""  # ISO 8601, UTC; empty before it is noted
    actual: Actual
    predicted_h: Estimate  # [h]
    predicted_usd: Estimate | None = None  # [USD]

    def __post_init__(self) -> None:
        hours = (self.predicted_h.value, self.predicted_h.low, self.predicted_h.high, self.time_h)
        if not all(math.isfinite(value) and value > 0 for value in hours):
            raise ValueError(f"not positive times: {hours}")

    @property
    def time_h(self) -> float:
        """What the whole job took [h]."""
        return math.nan if self.actual.time_h is None else self.actual.time_h

    @property
    def error_fraction(self) -> float:
        """Predicted time over the real one, less 1."""
        return self.predicted_h.value / self.time_h - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval of the time held the truth."""
        return self.predicted_h.low <= self.time_h <= self.predicted_h.high

    @property
    def predicted(self) -> dict[str, Any]:
        """The prediction as the journal keeps it."""
        cost = {} if self.predicted_usd is None else {"cost_usd": self.predicted_usd.to_record()}
        return {"training_time_h": self.predicted_h.to_record(), **cost}

    @property
    def configuration(self) -> dict[str, Any]:
        """The JSON form of the machines."""
        actual = self.actual
        return {"provider": actual.provider, "instance_type": actual.instance_type,
                "count": actual.count}  # fmt: skip

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form, as ``advisor runs actual`` prints it."""
        return {
            "schema_version": 1,
            "run": self.actual.run,
            "configuration": self.configuration,
            "predicted": self.predicted,
            "actual": {"training_time_h": self.time_h, "cost_usd": self.actual.cost_usd,
                       "step_time_s": self.actual.step_s},
            "error_fraction": self.error_fraction,
            "inside": self.is_inside,
        }  # fmt: skip

    def to_row(self) -> dict[str, Any]:
        """Return the JSON form of one among many, as ``advisor runs compare`` prints it."""
        predicted = self.predicted_h
        return {
            "noted_at": self.noted_at,
            "run": self.actual.run,
            "configuration": self.configuration,
            "predicted_h": predicted.value, "low_h": predicted.low, "high_h": predicted.high,
            "coverage": predicted.coverage,
            "actual_h": self.time_h,
            "error_fraction": self.error_fraction,
            "inside": self.is_inside,
        }  # fmt: skip


def _of(entry: Entry) -> Comparison:
    predicted = dict(entry[_PREDICTED])
    cost = predicted.get("cost_usd")
    return Comparison(
        noted_at=str(entry["noted_at"]),
        actual=actuals.from_entry(entry),
        predicted_h=Estimate(**predicted["training_time_h"]),
        predicted_usd=None if cost is None else Estimate(**cost),
    )


def _of_earlier(entry: Entry) -> Comparison:
    record = entry[_EARLIER]
    took = record["actual"]
    actual = {"run": record["run"], **record["configuration"], "step_s": took["step_time_s"],
              "time_h": took["training_time_h"], "cost_usd": took["cost_usd"]}  # fmt: skip
    return _of({**record, actuals.PART: actual})


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What the latest comparisons say of the intervals."""

    # looked_at, outside: latest comparisons, and those of them outside their interval
    looked_at: int
    outside: int
    probability: float  # of at least as many outside by chance
    median_error: float  # median of predicted over actual, less 1; nan where there is none

    @property
    def is_drifting(self) -> bool:
        """Whether chance explains the errors badly."""
        return self.probability < LEAST_PROBABILITY

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "looked_at": self.looked_at,
            "outside": self.outside,
            "probability": self.probability,
            "median_error_fraction": None if math.isnan(self.median_error) else self.median_error,
            "drifting": self.is_drifting,
        }


def read(*folders: Path) -> tuple[Comparison, ...]:
    """Return the comparisons in the journals in ``folders``, oldest first.

    A line that cannot be read costs no other.
    """
    found = [
        one
        for folder in folders
        for part, parse in ((_EARLIER, _of_earlier), (_PREDICTED, _of))
        for one in journal.read(folder, part, parse)
    ]
    return tuple(sorted(found, key=lambda one: one.noted_at))


def drift(comparisons: Sequence[Comparison]) -> Drift:
    """Return whether the latest ``RECENT`` comparisons leave their intervals too often."""
    latest = comparisons[-RECENT:]
    outside = sum(not one.is_inside for one in latest)
    errors = [one.error_fraction for one in latest]
    return Drift(
        looked_at=len(latest),
        outside=outside,
        probability=at_least(outside, [1.0 - one.predicted_h.coverage for one in latest]),
        median_error=median(errors) if errors else math.nan,
    )


def at_least(outside: int, probabilities: Sequence[float]) -> float:
    """Return the probability that at least so many of independent events happen.

    Their number has the Poisson binomial distribution, a binomial where all are equal.

    Examples
    --------
    >>> round(at_least(2, [0.1, 0.1, 0.1]), 3)
    0.028
    """
    counts = [1.0]
    for p in probabilities:
        counts = [
            (1.0 - p) * none + p * one
            for none, one in zip([*counts, 0.0], [0.0, *counts], strict=True)
        ]
    return min(sum(counts[outside:]), 1.0)
