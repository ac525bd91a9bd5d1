"""Predicted quantities with their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.answer.json_records import Recorded
from advisor.quantities import QUANTILES, REACH_90, percent_text

__all__ = ["QUANTILES", "REACH_90", "Estimate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Recorded):
    """A predicted quantity with its prediction interval, all in the same unit.

    ``coverage`` is the nominal probability that the truth lies in [low, high].
    """

    value: float
    low: float
    high: float
    coverage: float = 0.9

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"not low <= value <= high: {self}")
        if not 0 < self.coverage < 1:
            raise ValueError(f"coverage must be in (0, 1), got {self.coverage}")

    def __repr__(self) -> str:
        """Say the value and its interval.

        Examples
        --------
        >>> Estimate(value=10.0, low=8.0, high=15.0)
        <Estimate 10 (8-15, 90 %)>
        """
        share = percent_text(self.coverage)
        return f"<Estimate {self.value:.4g} ({self.low:.4g}-{self.high:.4g}, {share})>"

    @classmethod
    def lognormal(cls, value: float, log_sd: float, coverage: float = 0.9) -> Estimate:
        """Return the interval of a positive quantity whose logarithm errs by ``log_sd``.

        Examples
        --------
        >>> round(Estimate.lognormal(10.0, 0.1).high, 2)
        11.79
        """
        spread = math.exp(QUANTILES[coverage] * log_sd)
        return cls(value=value, low=value / spread, high=value * spread, coverage=coverage)

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of ``factor`` (positive) times the quantity."""
        return Estimate(
            value=self.value * factor,
            low=self.low * factor,
            high=self.high * factor,
            coverage=self.coverage,
        )

    def above(self, limit: float) -> float:
        """Return the probability of more than ``limit``: half a log-normal on each side.

        What costs nothing is above no limit but a negative one.

        Examples
        --------
        >>> round(Estimate(value=10.0, low=8.0, high=15.0, coverage=0.9).above(15.0), 3)
        0.05
        """
        if limit <= 0 or self.high <= 0:
            return float(self.high > limit)
        from statistics import NormalDist

        bound = self.high if limit >= self.value else self.low
        if bound == self.value:
            return float(limit < self.value)
        reach = NormalDist().inv_cdf(0.5 + self.coverage / 2)
        sds = reach * math.log(limit / self.value) / abs(math.log(bound / self.value))
        return 1.0 - NormalDist().cdf(sds)
