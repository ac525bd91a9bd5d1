"""Predicted against actual over time: the comparisons that were kept, and whether errors drift.

``advisor runs actual`` keeps each comparison beside the runs in ``comparisons.jsonl`` (one JSON
object a line, append-only), as it stood before the run was noted.

Of the latest runs, those outside their interval are counted. With a coverage of 90 % each is
outside with probability 0.1; estimates drift where as many as were seen would be outside by chance
in fewer than one case of twenty (binomial tail).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from advisor.jobs.noted import NotedFile

FILE_NAME: Final = "comparisons.jsonl"
RECENT: Final = 10  # runs looked at: errors of a year ago say little of today's
LEAST_PROBABILITY: Final = 0.05
# Fits the learned predictors on the packaged runs and on the user's own, these among them.
RETRAINING: Final = "advisor train models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A real run beside the prediction that was made before it was known.

    Attributes
    ----------
    noted_at : str
        ISO 8601, UTC.
    run, provider, instance_type : str
    count : int
        Machines.
    predicted_h, low_h, high_h, actual_h : float
        Of the whole job. [h]
    coverage : float
        Of the interval.
    """

    noted_at: str
    run: str
    provider: str
    instance_type: str
    count: int
    predicted_h: float
    low_h: float
    high_h: float
    actual_h: float
    coverage: float

    def __post_init__(self) -> None:
        hours = (self.predicted_h, self.low_h, self.high_h, self.actual_h)
        if not all(math.isfinite(value) and value > 0 for value in hours):
            raise ValueError(f"not positive times: {hours}")
        if not self.low_h <= self.predicted_h <= self.high_h or not 0 < self.coverage < 1:
            raise ValueError("not an interval with its coverage")

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Compared:
        """Return what ``Comparison.to_record`` wrote, with ``noted_at``."""
        machines, time = record["configuration"], record["predicted"]["training_time_h"]
        return cls(
            noted_at=str(record["noted_at"]),
            run=str(record["run"]),
            provider=str(machines["provider"]),
            instance_type=str(machines["instance_type"]),
            count=int(machines["count"]),
            predicted_h=float(time["value"]),
            low_h=float(time["low"]),
            high_h=float(time["high"]),
            coverage=float(time["coverage"]),
            actual_h=float(record["actual"]["training_time_h"]),
        )

    @property
    def error_fraction(self) -> float:
        """Predicted time over the real one, less 1."""
        return self.predicted_h / self.actual_h - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval held the truth."""
        return self.low_h <= self.actual_h <= self.high_h

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "noted_at": self.noted_at,
            "run": self.run,
            "configuration": {"provider": self.provider, "instance_type": self.instance_type,
                              "count": self.count},
            "predicted_h": self.predicted_h, "low_h": self.low_h, "high_h": self.high_h,
            "coverage": self.coverage,
            "actual_h": self.actual_h,
            "error_fraction": self.error_fraction,
            "inside": self.is_inside,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What the latest comparisons say of the intervals.

    Attributes
    ----------
    looked_at, outside : int
        Latest comparisons, and those of them outside their interval.
    probability : float
        Of at least as many outside by chance.
    median_error : float
        Median of predicted over actual, less 1; nan where there is none.
    """

    looked_at: int
    outside: int
    probability: float
    median_error: float

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


_NOTED: Final = NotedFile(name=FILE_NAME, parse=Compared.of)


def keep(folder: Path, record: Mapping[str, Any], *, now: datetime | None = None) -> Compared:
    """Add a comparison's record to those beside the runs in ``folder``, and return it."""
    noted = (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    kept = {**record, "noted_at": noted}
    _NOTED.append(folder, kept)
    return Compared.of(kept)


def read(*folders: Path) -> tuple[Compared, ...]:
    """Return the comparisons beside the runs in ``folders``, oldest first.

    A line that cannot be read costs no other.
    """
    found = (one for folder in folders for one in _NOTED.read(folder))
    return tuple(sorted(found, key=lambda one: one.noted_at))


def drift(comparisons: Sequence[Compared]) -> Drift:
    """Return whether the latest ``RECENT`` comparisons leave their intervals too often."""
    latest = comparisons[-RECENT:]
    outside = sum(not one.is_inside for one in latest)
    errors = [one.error_fraction for one in latest]
    return Drift(
        looked_at=len(latest),
        outside=outside,
        probability=at_least(outside, [1.0 - one.coverage for one in latest]),
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
