"""From the ticks of a clock to one honest step time.

=============  ================================================================================
name           meaning
=============  ================================================================================
wall           time between two steps on the monotonic clock
delay          how long the step's threads waited for a core in it (``run_delay``): the main
               thread's, or the slowest thread's of its pool where that is more
corrected      wall - delay, the time that the step would take on an idle machine
warm-up        the steps at the beginning before the first that is below 1.5 times the median of
               the ten after it; the first always
=============  ================================================================================

Steps that were traced, that follow a traced one, or in which an epoch began are no ordinary
steps and are left out. The interval is by batch means: steps are autocorrelated on a busy machine,
means of ten long batches hardly are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from advisor.collectors.hooks import format as fmt

# Student's t, 95 % one-sided, by degrees of freedom from 1: a 90 % interval from batch means.
_T_90 = (6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331)
BATCHES = 10
_WARMUP_FACTOR = 1.5
_WARMUP_WINDOW = 10
_LONGEST_WARMUP = 50


@dataclass(slots=True)
class Steps:
    """Ordinary steps as running sums, so that any stretch costs two look-ups.

    Attributes
    ----------
    wall_ns, corrected_ns : list of int
        Running sums over the steps, both beginning with 0.
    end_ns : list of int
        When each step ended.
    left_out_ns : list of int
        Wall time of the steps with an epoch's begin in them.
    last_ns : int
        When the last tick was, ordinary or not.
    ticks : int
        All ticks.
    """

    wall_ns: list[int] = field(default_factory=lambda: [0])
    corrected_ns: list[int] = field(default_factory=lambda: [0])
    end_ns: list[int] = field(default_factory=list)
    left_out_ns: list[int] = field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    last_delay_ns: int = 0
    ticks: int = 0

    def add(self, t_ns: int, delay_ns: int, flags: int) -> None:
        """Take in a tick: time, the main thread's accumulated delay, and flags."""
        self.ticks += 1
        if self.last_ns == 0:
            self.first_ns = self.first_ns or t_ns
        else:
            wall = t_ns - self.last_ns
            # The delay is read less often than fast steps end: a step may carry its forerunners'.
            delay = max(0, delay_ns - self.last_delay_ns)
            if flags & fmt.FLAG_BOUNDARY:
                self.left_out_ns.append(wall)
            elif not flags & (fmt.FLAG_DEEP | fmt.FLAG_AFTER_DEEP) and wall > 0:
                self.wall_ns.append(self.wall_ns[-1] + wall)
                self.corrected_ns.append(self.corrected_ns[-1] + wall - delay)
                self.end_ns.append(t_ns)
        self.last_ns, self.last_delay_ns = t_ns, delay_ns

    @property
    def count(self) -> int:
        """Ordinary steps so far."""
        return len(self.end_ns)

    def corrected(self, begin: int, end: int) -> float:
        """Mean corrected time of steps ``begin`` to ``end`` [s]."""
        return (self.corrected_ns[end] - self.corrected_ns[begin]) / (end - begin) / 1e9

    def wall(self, begin: int, end: int) -> float:
        """Mean wall time of steps ``begin`` to ``end`` [s]."""
        return (self.wall_ns[end] - self.wall_ns[begin]) / (end - begin) / 1e9

    def fastest_per_s(self) -> float:
        """Return the pace of the last second, or of all steps where that is faster [1/s]."""
        if not self.end_ns:
            return 0.0
        span_s = max(self.wall_ns[-1] / 1e9, 1e-9)
        recent = self.count - bisect_left(self.end_ns, self.end_ns[-1] - 1_000_000_000)
        return max(self.count / span_s, float(recent))

    def warmup(self) -> int:
        """Return how many of the first steps are warm-up; they are looked at, not assumed."""
        sums = self.corrected_ns[: _LONGEST_WARMUP + _WARMUP_WINDOW + 2]
        times = [b - a for a, b in pairwise(sums)]
        for first in range(min(len(times), _LONGEST_WARMUP)):
            following = sorted(times[first + 1 : first + 1 + _WARMUP_WINDOW])
            if len(following) < 2:
                return first
            if times[first] <= _WARMUP_FACTOR * following[len(following) // 2]:
                return first
        return min(len(times), _LONGEST_WARMUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean step with its 90 % interval [s]."""

    corrected_s: float
    raw_s: float
    half_width_s: float
    steps: int
    warmup_steps: int

    @property
    def delay_fraction(self) -> float:
        """Share of the wall time spent waiting for a core."""
        return 1.0 - self.corrected_s / self.raw_s if self.raw_s else 0.0


def mean(steps: Steps) -> Mean | None:
    """Return the mean step after warm-up; None before the second ordinary step."""
    warmup = steps.warmup()
    used = steps.count - warmup
    if used < 1:
        return None
    value = steps.corrected(warmup, steps.count)
    return Mean(
        corrected_s=value,
        raw_s=steps.wall(warmup, steps.count),
        half_width_s=_half_width(steps, warmup, value),
        steps=used,
        warmup_steps=warmup,
    )


def _half_width(steps: Steps, warmup: int, value: float) -> float:
    """Half of the batch-means interval; the whole value where a single step has none.

    Fewer steps than batches are a batch each: slow steps are few, and known by their agreement.
    """
    batches = min(BATCHES, steps.count - warmup)
    if batches < 2:
        return value
    size = (steps.count - warmup) // batches
    start = steps.count - batches * size
    means = [steps.corrected(start + i * size, start + (i + 1) * size) for i in range(batches)]
    centre = sum(means) / batches
    variance = sum((one - centre) ** 2 for one in means) / (batches - 1)
    return min(value, _T_90[batches - 2] * math.sqrt(variance / batches))


def pool_excess(steps: Steps, pool: Sequence[tuple[int, int, int]]) -> float:
    """Return the share of the corrected time that the slowest pool thread waited beyond the main.

    Parameters
    ----------
    steps : Steps
    pool : sequence of (time, delay of the slowest thread, delay of the main thread)
        Accumulated. [ns]

    Returns
    -------
    float
        In [0, 1): what is still to be taken off the corrected time.
    """
    if len(pool) < 2:
        return 0.0
    (begin_ns, pool_begin, main_begin), (end_ns, pool_end, main_end) = pool[0], pool[-1]
    beyond = max(0, (pool_end - pool_begin) - (main_end - main_begin))
    begin, end = bisect_left(steps.end_ns, begin_ns), bisect_left(steps.end_ns, end_ns)
    inside = steps.corrected_ns[end] - steps.corrected_ns[begin]
    return min(0.95, beyond / inside) if inside > 0 else 0.0
