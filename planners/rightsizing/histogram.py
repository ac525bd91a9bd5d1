"""A histogram whose samples fade, as Kubernetes' autoscaler and Autopilot keep it.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
half-life               after it a sample weighs half as much as a new one. [s]
bucket k                from ``first (r^k - 1) / (r - 1)``, r = 1.05: buckets grow by 5 %
======================  =========================================================================

References
----------
.. [1] kubernetes/autoscaler, vertical-pod-autoscaler: ``recommender`` flags and the exponential
   histogram's first bucket and ratio (facts).
"""

from __future__ import annotations

import math
from typing import Final

RATIO: Final = 1.05


class FadingHistogram:
    """Weights by bucket, relative to the newest sample.

    Parameters
    ----------
    first : float
        Width of the first bucket, in the samples' unit.
    """

    def __init__(self, *, first: float, half_life_s: float) -> None:
        self._first, self._half_life_s = first, half_life_s
        self._weights: dict[int, float] = {}
        self._newest_s = 0.0

    def add(self, value: float, *, at_s: float, weight: float = 1.0) -> None:
        """Add a sample taken at a time that never falls."""
        fade = 0.5 ** ((at_s - self._newest_s) / self._half_life_s)
        if fade != 1.0:
            self._weights = {k: fade * w for k, w in self._weights.items()}
        self._newest_s = at_s
        bucket = self._bucket(value)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + weight

    @property
    def is_empty(self) -> bool:
        """Whether no sample was added."""
        return not self._weights

    def percentile(self, share: float) -> float:
        """Return the end of the bucket in which a share of the weight is reached."""
        wanted, reached = share * sum(self._weights.values()), 0.0
        for bucket in sorted(self._weights):
            reached += self._weights[bucket]
            if reached >= wanted * (1 - 1e-12):
                return self._end(bucket)
        raise ValueError("an empty histogram has no percentile")

    def _bucket(self, value: float) -> int:
        if value < self._first:
            return 0
        return int(math.log(value / self._first * (RATIO - 1) + 1) / math.log(RATIO))

    def _end(self, bucket: int) -> float:
        return self._first * (RATIO ** (bucket + 1) - 1) / (RATIO - 1)
