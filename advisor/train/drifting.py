"""Whether errors drift: what the latest real runs say of the intervals.

Of the latest runs, those outside their interval are counted. With a coverage of 90 % each is
outside with probability 0.1; estimates drift where as many as were seen would be outside by
chance in fewer than one case of twenty (binomial tail).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Final

from advisor.answer import Recorded
from advisor.train.feedback import Comparison

RECENT: Final = 10  # runs looked at: errors of a year ago say little of today's
LEAST_PROBABILITY: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift(Recorded):
    """What the latest comparisons say of the intervals."""

    renamed: ClassVar[Mapping[str, str]] = {
        "median_error": "median_error_fraction", "is_drifting": "drifting",
    }  # fmt: skip
    written: ClassVar[tuple[str, ...]] = ("is_drifting",)

    # looked_at, outside: latest comparisons, and those of them outside their interval
    looked_at: int
    outside: int
    probability: float  # of at least as many outside by chance
    median_error: float | None  # median of predicted over actual, less 1; None where there is none

    @property
    def is_drifting(self) -> bool:
        """Whether chance explains the errors badly."""
        return self.probability < LEAST_PROBABILITY


def drift(comparisons: Sequence[Comparison], *, learned_at: str = "") -> Drift:
    """Return whether the latest ``RECENT`` comparisons leave their intervals too often.

    ``learned_at``: when the user's runs were last learned from (ISO 8601, UTC): what was noted
    before was predicted by answers that are no longer given.
    """
    latest = [one for one in comparisons if one.noted_at > learned_at][-RECENT:]
    outside = sum(not one.is_inside for one in latest)
    errors = [one.error_fraction for one in latest]
    return Drift(
        looked_at=len(latest),
        outside=outside,
        probability=at_least(outside, [1.0 - one.predicted_h.coverage for one in latest]),
        median_error=median(errors) if errors else None,
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
