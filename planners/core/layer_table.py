"""Times of one layer on one device by micro-batch, by another law than that of its shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core.layer_latency import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """Forward and backward of one layer at some micro-batches.

    Attributes
    ----------
    micro_batches : array of shape (n,)
        They rise. [samples]
    forward_s, backward_s : arrays of shape (n,)
        Of one micro-batch, starting kernels included. [s]
    launch_s : pair of float
        The part of each that starting kernels takes; it does not grow with the batch. [s]
    """

    micro_batches: Floats
    forward_s: Floats
    backward_s: Floats
    launch_s: tuple[float, float]

    def at(self, micro_batch: ArrayLike) -> tuple[Floats, Floats, tuple[float, float]]:
        """Return forward, backward and the launches of each at micro-batches of any shape [s].

        Between the points on straight lines; beyond them the last line goes on; below the first,
        what is not launching shrinks with the micro-batch.
        """
        b = np.asarray(micro_batch, float)
        return self._line(b, self.forward_s, 0), self._line(b, self.backward_s, 1), self.launch_s

    def _line(self, b: Floats, values: Floats, part: int) -> Floats:
        known, launch = self.micro_batches, self.launch_s[part]
        inside = np.interp(b, known, values)
        if known.size > 1:
            slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
            inside = np.where(b > known[-1], values[-1] + slope * (b - known[-1]), inside)
        below = launch + (values[0] - launch) * b / known[0]
        return np.asarray(np.where(b < known[0], below, inside))
