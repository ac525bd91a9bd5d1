r"""Limits for the next run of a program, from one that was recorded.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
peak                    most that was resident in the recorded run. [bytes]
settled half            second half of its readings: what start-up added is over
:math:`\sigma`          1.48 times the median distance of the settled half from its line: its
                        standard deviation, but for the jumps of a program's end. [bytes]
slope                   growth over the settled half, where it never fell back. [bytes/s]
======================  =========================================================================

.. math::
    memory = peak + slope \cdot rest + \max(h\, peak,\; h_0,\; 3 \sigma)

CPU: set aside is the 95th percentile of the seconds' largest usage, the quota the least with which
the recorded run would have taken at most 1 % longer (``replay``). The probability of going over
the memory limit is that of readings about a level, or, where memory wanders, of the settled half's
changes, drawn in blocks and added up over the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from advisor.planners.core import check_not_negative
from advisor.planners.rightsizing.replay import (
    Array,
    Controller,
    RecordedUsage,
    ResourceLimits,
    replay,
)

REQUEST_PERCENTILE: Final = 95.0
MOST_SLOWDOWN: Final = 1.01
_HALVINGS: Final = 12
_BLOCKS: Final = 10
_MAD_TO_SD: Final = 1.4826  # of a normal distribution
_FEWEST: Final = 8  # readings that tell growth from noise
_LEAST_CORES: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The room between the recorded peak and the memory limit."""

    fraction: float = 0.05
    least_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("headroom", fraction=self.fraction, least_bytes=self.least_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RightSize:
    """Limits that the next run should ask for."""

    # cpu_request, cpu_limit: set aside, and the quota [cores]
    cpu_request: float
    cpu_limit: float
    memory_bytes: float  # request and limit alike: memory cannot be taken back
    # that the rest of the run goes over it, as far as the recorded run's changes tell
    oom_probability: float

    @property
    def limits(self) -> ResourceLimits:
        """The limits as a policy takes them."""
        return ResourceLimits(cores=self.cpu_limit, memory_bytes=self.memory_bytes)


DEFAULT_HEADROOM: Final = Headroom()
_DRAWS: Final = 400


def right_size(
    recorded: RecordedUsage, *, rest_s: float = 0.0, headroom: Headroom = DEFAULT_HEADROOM
) -> RightSize:
    """Return limits for the next run, which goes on ``rest_s`` longer than the recorded one."""
    memory = memory_limit_bytes(recorded, rest_s=rest_s, headroom=headroom)
    peaks = _peaks_by_second(recorded)
    return RightSize(
        cpu_request=max(_LEAST_CORES, float(np.percentile(peaks, REQUEST_PERCENTILE))),
        cpu_limit=least_quota(recorded),
        memory_bytes=memory,
        oom_probability=oom_probability(recorded, memory, rest_s=rest_s),
    )


def memory_limit_bytes(
    recorded: RecordedUsage, *, rest_s: float = 0.0, headroom: Headroom = DEFAULT_HEADROOM
) -> float:
    """Return the memory that the next run should ask for; the first equation above."""
    check_not_negative("right size", rest_s=rest_s)
    settled = recorded.memory_bytes[len(recorded.memory_bytes) // 2 :]
    slope = growth_bytes_per_s(recorded)
    off = settled - slope * recorded.step_s * np.arange(len(settled))
    sigma = _MAD_TO_SD * float(np.median(np.abs(off - np.median(off))))
    above = max(headroom.fraction * recorded.peak_bytes, headroom.least_bytes, 3.0 * sigma)
    return recorded.peak_bytes + slope * rest_s + above


def growth_bytes_per_s(recorded: RecordedUsage) -> float:
    """Return the growth of memory over the settled half, 0 where it fell back or stood still.

    Between the medians of its first and its last quarter: a program's end, when its memory is
    given back, is in the readings too.
    """
    settled = recorded.memory_bytes[len(recorded.memory_bytes) // 2 :]
    quarters = [float(np.median(one)) for one in np.array_split(settled, 4) if len(one)]
    if len(settled) < _FEWEST or np.any(np.diff(quarters) <= 0):
        return 0.0
    return (quarters[-1] - quarters[0]) / (0.75 * len(settled) * recorded.step_s)


def least_quota(recorded: RecordedUsage) -> float:
    """Return the least fixed quota with which the run takes little longer [cores]."""
    high = max(float(np.max(recorded.cores)), _LEAST_CORES)
    low = min(high, _LEAST_CORES)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # No run gets through less than its mean in time: spare the replay that would say so.
        is_enough = middle * MOST_SLOWDOWN >= float(np.mean(recorded.cores))
        limits = ResourceLimits(cores=middle, memory_bytes=max(recorded.peak_bytes, 1.0))
        if is_enough and replay(recorded, Controller(limits)).slowdown <= MOST_SLOWDOWN:
            high = middle
        else:
            low = middle
    return high


def oom_probability(recorded: RecordedUsage, limit_bytes: float, *, rest_s: float) -> float:
    """Return how likely memory goes over a limit in the rest of a run; 1 where it did already.

    Memory that comes back to its level (a change tends to be undone by the next one) goes over it
    where the normal distribution of its readings does. Otherwise blocks of the settled half's
    changes are drawn and added up.
    """
    if recorded.peak_bytes > limit_bytes:
        return 1.0
    settled = recorded.memory_bytes[len(recorded.memory_bytes) // 2 :]
    changes = np.diff(settled)
    ticks = int(np.ceil(rest_s / recorded.step_s))
    if not ticks or not len(changes):
        return 0.0
    if _is_undone(changes):
        level = float(np.median(settled))
        sigma = _MAD_TO_SD * float(np.median(np.abs(settled - level)))
        below = NormalDist().cdf((limit_bytes - level) / sigma) if sigma > 0 else 1.0
        return 1.0 - float(below**ticks)
    size = max(1, len(changes) // _BLOCKS)
    starts = np.arange(0, len(changes) - size + 1)
    sums = np.array([changes[i : i + size].sum() for i in starts])
    peaks = np.array([np.max(np.cumsum(changes[i : i + size])) for i in starts])
    blocks = min(int(np.ceil(ticks / size)), 2000)
    drawn = np.random.default_rng(0).integers(0, len(starts), (_DRAWS, blocks))
    before = np.cumsum(sums[drawn], axis=1) - sums[drawn]
    most = float(settled[-1]) + np.max(before + peaks[drawn], axis=1)
    return float(np.mean(most > limit_bytes))


def _is_undone(changes: Array) -> bool:
    """Whether changes go back: white noise about a level has a correlation of -1/2."""
    squares = float(np.sum(changes**2))
    return squares == 0 or float(np.sum(changes[1:] * changes[:-1])) < -0.25 * squares


def _peaks_by_second(recorded: RecordedUsage) -> Array:
    """Return the largest reading of every second [cores]."""
    size = max(1, round(1.0 / recorded.step_s))
    begins = np.arange(0, len(recorded.cores), size)
    return np.asarray(np.maximum.reduceat(recorded.cores, begins))
