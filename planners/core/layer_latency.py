"""Measured time of one layer by micro-batch: what the mixed-GPU planners start from.

| here             | Cephalo      | meaning                                                 |
|------------------|--------------|---------------------------------------------------------|
| ``forward_s``    | t_f(m)       | forward of one layer at micro-batch m [s]               |
| ``backward_s``   | t_b(m)       | its backward, without recomputation [s]                 |
| ``forward_line`` | a_f m + c_f  | (a_f, c_f): outside the measured range [s/sample], [s]  |

Inside the measured range the points rule (between two of them, linear interpolation); outside,
the line. Source: Cephalo (ICS'25), ``split_workload.py`` and ``runtime_estimator.py`` of its
repository; on its 232 profiled cases the line errs 2.0 % in the median, 7.1 % at the 90th
percentile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.arrays import Floats
from advisor.planners.core.errors import check_positive, refused

Line = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLatency:
    """Forward and backward time of one layer on one device, by micro-batch."""

    # measured micro-batches, rising; empty where only the lines are known
    micro_batches: tuple[int, ...] = ()
    # forward_s, backward_s: times at ``micro_batches`` [s]
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    # forward_line, backward_line: (slope [s/sample], intercept [s]) outside the measured range
    forward_line: Line
    backward_line: Line

    def __post_init__(self) -> None:
        if not len(self.micro_batches) == len(self.forward_s) == len(self.backward_s):
            raise ValueError("micro_batches, forward_s and backward_s differ in length")
        if list(self.micro_batches) != sorted(set(self.micro_batches)):
            raise ValueError(f"micro_batches must rise: {self.micro_batches}")
        if min(self.forward_line[0], self.backward_line[0]) <= 0:
            raise ValueError(f"a line that does not rise: {self}")
        check_positive("layer's latency", forward_s=self.forward_s, backward_s=self.backward_s)
        for name, line in (("forward", self.forward_line), ("backward", self.backward_line)):
            if not all(map(math.isfinite, line)):
                raise refused(
                    f"layer's latency: a {name} line of {line} is out of range",
                    "give slope and intercept in seconds",
                )

    @classmethod
    def from_points(
        cls, micro_batches: Sequence[int], forward_s: Sequence[float], backward_s: Sequence[float]
    ) -> LayerLatency:
        """Fit the lines by least squares; a single point gives a line through the origin."""
        order = np.argsort(micro_batches)
        m = np.asarray(micro_batches)[order]
        forward, backward = np.asarray(forward_s)[order], np.asarray(backward_s)[order]
        return cls(
            micro_batches=tuple(int(x) for x in m),
            forward_s=tuple(float(x) for x in forward),
            backward_s=tuple(float(x) for x in backward),
            forward_line=_fit_line(m, forward),
            backward_line=_fit_line(m, backward),
        )

    def at(self, micro_batch: ArrayLike) -> tuple[Floats, Floats]:
        """Return forward and backward time at each micro-batch, in its shape [s]."""
        m = np.asarray(micro_batch, float)
        return (
            self._curve(m, self.forward_s, self.forward_line),
            self._curve(m, self.backward_s, self.backward_line),
        )

    def _curve(self, m: Floats, points: tuple[float, ...], line: Line) -> Floats:
        # A line fitted at large m may have a negative intercept: never below a pure proportion
        # of its slope's thousandth, so that no extrapolation turns a time negative.
        outside = np.maximum(line[0] * m + line[1], 1e-3 * line[0] * m)
        if not points:
            return outside
        inside = np.interp(m, self.micro_batches, points)
        measured = (m >= self.micro_batches[0]) & (m <= self.micro_batches[-1])
        return np.where(measured, inside, outside)


def _fit_line(m: NDArray[np.int64], times: Floats) -> Line:
    if m.size == 1:
        return float(times[0] / m[0]), 0.0
    slope, intercept = np.polyfit(m, times, 1)
    # Noise on near-constant times can turn the slope: then time per sample at the largest batch.
    return (float(slope), float(intercept)) if slope > 0 else (float(times[-1] / m[-1]), 0.0)
