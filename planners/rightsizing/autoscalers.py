"""Ways of setting limits that are fixed, or learn slowly from what was used.

======================  =========================================================================
policy                  limit
======================  =========================================================================
fixed                   what it is told: the peak of a recorded run, or a multiple of it
``VPA``                 Kubernetes' Vertical Pod Autoscaler: CPU p90 of a histogram of half-life
                        24 h; memory p90 of the peaks of 24 h each, half-life 24 h; + 15 %, at
                        least 25 mcore and 250 MiB, once a minute; after a kill the larger of 1.2
                        times and 100 MB more. The limit is the request here
``AUTOPILOT``           windows of 5 min; CPU p95 (half-life 12 h), memory the largest peak that
                        still weighs (48 h); + 15 %. Its learned recommender was not published in
                        full, nor all its percentiles: this is its rule form, half-lives and
                        margin from memory of the paper
KRR                     Robusta's: CPU p95 set aside without a quota, memory peak + 15 %, at least
                        10 mcore and 100 MiB; fixed
``Oracle``              what will be used: the least that any policy can reserve
======================  =========================================================================

What was learned before (``history``) counts as one run that ended when this one began. Without it
the autoscalers start from ``asked``, what the user asked for.

References
----------
.. [1] kubernetes/autoscaler: flags of the vertical-pod-autoscaler's recommender.
.. [2] K. Rzadca et al., "Autopilot: Workload Autoscaling at Google," EuroSys 2020.
.. [3] robusta-dev/krr: the "simple" strategy's defaults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from advisor.planners.core import HOUR_S, MIB
from advisor.planners.rightsizing.replay import Controller, Period, RecordedUsage, ResourceLimits

RATIO: Final = 1.05


class FadingHistogram:
    """Weights by bucket, relative to the newest sample.

    ======================  =======================================================================
    here                    meaning, unit
    ======================  =======================================================================
    half-life               after it a sample weighs half as much as a new one. [s]
    bucket k                from ``first (r^k - 1) / (r - 1)``, r = 1.05: buckets grow by 5 %
    ======================  =======================================================================

    References
    ----------
    .. [1] kubernetes/autoscaler, vertical-pod-autoscaler: ``recommender`` flags and the
       exponential histogram's first bucket and ratio (facts).

    ``first``: width of the first bucket, in the samples' unit.
    """

    def __init__(self, *, first: float, half_life_s: float) -> None:
        self._first, self._half_life_s = first, half_life_s
        self._weights: dict[int, float] = {}
        self._newest_s = 0.0

    def add(self, value: float, *, at_s: float) -> None:
        """Add a sample taken at a time that never falls."""
        fade = 0.5 ** ((at_s - self._newest_s) / self._half_life_s)
        if fade != 1.0:
            self._weights = {k: fade * w for k, w in self._weights.items()}
        self._newest_s = at_s
        bucket = self._bucket(value)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + 1.0

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


MARGIN: Final = 1.15  # of all three
VPA_BUMP: Final = (1.2, 100e6)  # after a kill: times, and bytes more
KRR_PERCENTILE: Final = 95.0
KRR_EVERY_S: Final = 75.0  # between two of its samples
KRR_LEAST: Final = (0.010, 100 * MIB)
_BUCKETS: Final = (0.01, 1e7)  # widths of the first: cores, bytes


def peak_limits(usage: RecordedUsage, factor: float = 1.0) -> ResourceLimits:
    """Return the peaks of a recorded run, or a multiple of them."""
    peak = max(float(np.max(usage.cores)), 1e-3)
    return ResourceLimits(cores=factor * peak, memory_bytes=factor * max(usage.peak_bytes, 1.0))


def krr_limits(usage: RecordedUsage) -> ResourceLimits:
    """Return what KRR's simple strategy asks for after a recorded run."""
    means, _ = usage.windows(KRR_EVERY_S)
    return ResourceLimits(
        cores=max(KRR_LEAST[0], float(np.percentile(means, KRR_PERCENTILE))),
        memory_bytes=max(KRR_LEAST[1], MARGIN * usage.peak_bytes),
        is_quota=False,
    )


class Oracle(Controller):
    """Knows what the run will use: readings and periods may overlap, so the larger of two counts.

    It never throttles.
    """

    def __init__(self, usage: RecordedUsage) -> None:
        self._usage = usage
        super().__init__(self._needed(0.0, usage.step_s))

    def after(self, seen: Period) -> None:
        """Set what the next period needs."""
        self.limits = self._needed(seen.end_s, seen.length_s)

    def at_memory_limit(self, wanted_bytes: float) -> None:
        """Give what is asked for."""
        self.limits = replace(self.limits, memory_bytes=wanted_bytes)

    def _needed(self, begin_s: float, period_s: float) -> ResourceLimits:
        step_s, last = self._usage.step_s, len(self._usage.cores) - 1
        first = min(int(begin_s / step_s + 1e-9), last)
        end = min(math.ceil((begin_s + period_s) / step_s - 1e-6), last + 1)
        cores = float(np.max(self._usage.cores[first : max(end, first + 1)]))
        return ResourceLimits(
            cores=max(cores, 1e-6), memory_bytes=max(float(self._usage.memory_bytes[first]), 1.0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRule:
    """The rule by which an autoscaler learns: what stands in the table above."""

    every_s: float  # between two changes of the limits [s]
    half_lives_s: tuple[float, float]  # of the histograms of CPU and of memory [s]
    percentiles: tuple[float, float]  # of CPU and of memory [fraction]
    least: tuple[float, float]  # [cores], [bytes]
    memory_window_s: float  # of which the peak counts [s]


VPA: Final = LearningRule(
    every_s=60.0,
    half_lives_s=(24 * HOUR_S, 24 * HOUR_S),
    percentiles=(0.90, 0.90),
    least=(0.025, 250 * MIB),
    memory_window_s=24 * HOUR_S,
)
AUTOPILOT: Final = LearningRule(
    every_s=300.0,
    half_lives_s=(12 * HOUR_S, 48 * HOUR_S),
    percentiles=(0.95, 1.0),
    least=(1e-3, 1.0),
    memory_window_s=300.0,
)


class Autoscaler(Controller):
    """Limits that follow a fading histogram: Kubernetes' ``VPA``, or ``AUTOPILOT``'s rule form.

    ``asked``: what the user asked for: until something was learned.
    """

    def __init__(
        self, *, rule: LearningRule, asked: ResourceLimits, history: RecordedUsage | None = None
    ) -> None:
        self._rule = rule
        self._cpu = FadingHistogram(first=_BUCKETS[0], half_life_s=rule.half_lives_s[0])
        self._memory = FadingHistogram(first=_BUCKETS[1], half_life_s=rule.half_lives_s[1])
        self._began_s = 0.0
        if history is not None:
            self._began_s = history.length_s
            means, _ = history.windows(rule.every_s)
            for i, mean in enumerate(means):
                self._cpu.add(float(mean), at_s=i * rule.every_s)
            for i, peak in enumerate(history.windows(rule.memory_window_s)[1]):
                self._memory.add(float(peak), at_s=i * rule.memory_window_s)
        self._cpu_s = self._passed_s = self._memory_passed_s = self._peak = 0.0
        super().__init__(asked if history is None else self._learned())
        self._now_s = self._began_s

    def after(self, seen: Period) -> None:
        """Learn from a period; the limits change once in ``rule.every_s``."""
        self._now_s += seen.length_s
        self._cpu_s += seen.used_cores * seen.length_s
        self._passed_s += seen.length_s
        self._memory_passed_s += seen.length_s
        self._peak = max(self._peak, seen.memory_bytes)
        if self._passed_s >= self._rule.every_s - 1e-9:
            self._cpu.add(self._cpu_s / self._passed_s, at_s=self._now_s)
            self._cpu_s = self._passed_s = 0.0
            self.limits = self._learned()
            if self._memory_passed_s >= self._rule.memory_window_s - 1e-9:
                self._memory.add(self._peak, at_s=self._now_s)
                self._memory_passed_s = self._peak = 0.0

    def after_oom(self, wanted_bytes: float) -> None:
        """Learn of a kill as of a peak of more than was wanted."""
        times, more = VPA_BUMP
        bumped = max(times * wanted_bytes, wanted_bytes + more)
        self._memory.add(bumped, at_s=self._now_s)
        self.limits = replace(self.limits, memory_bytes=max(bumped, self.limits.memory_bytes))

    def _learned(self) -> ResourceLimits:
        """Return what the histograms say; the peak of the window that is not over counts too."""
        cores = MARGIN * self._cpu.percentile(self._rule.percentiles[0])
        known = (
            0.0 if self._memory.is_empty else self._memory.percentile(self._rule.percentiles[1])
        )
        return ResourceLimits(
            cores=max(self._rule.least[0], cores),
            memory_bytes=max(self._rule.least[1], MARGIN * max(known, self._peak)),
        )
