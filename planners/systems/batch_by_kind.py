"""Plain data parallelism on unlike devices: every kind computes for equally long.

| here        | Cephalo | meaning                                                 |
|-------------|---------|---------------------------------------------------------|
| ``batch``   | B       | samples of a step over all devices                      |
| ``b``       | b_i     | samples of one device of a kind                         |
| ``largest`` | m       | largest micro-batch that fits on a device of the kind   |
| ``T(b)``    | t       | a t(b / a) with a = ceil(b / largest) micro-batches [s] |

Devices of a kind are alike, so the split is one number a kind: the least maximum of T_k(b_k)
with sum n_k b_k >= B (what is over is left out on some devices of the kind that can spare it). T
rises with b, since a micro-batch's time per sample falls with its size: so the least maximum is
found by halving. Exact, as ``uneven_batches`` is, but without its coupling through shared memory:
each device holds the whole state. The gradient is weighted by b_i / B
(``examples/uneven_ddp.py``).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core import Floats, impossible
from advisor.planners.systems.uneven_batches import Ints


@dataclass(frozen=True, slots=True)
class MicroBatchCurve:
    """Forward and backward of a micro-batch on each device, at micro-batches 1, 2, 4, ..."""

    # (n_devices, n_powers); in between the powers of two, straight lines; beyond the last, its
    # line goes on [s]
    time_s: Floats

    def at(self, device: ArrayLike, micro_batch: ArrayLike) -> Floats:
        """Return the time of a micro-batch (at least 1) on a device [s]."""
        u = np.asarray(micro_batch, float)
        i = np.clip(np.frexp(u)[1] - 1, 0, self.time_s.shape[1] - 2)
        share = u / np.exp2(i) - 1.0
        row = np.asarray(device)
        low, high = self.time_s[row, i], self.time_s[row, i + 1]
        return np.asarray(low + share * (high - low))

    def step_s(self, device: ArrayLike, samples: ArrayLike, largest: ArrayLike) -> Floats:
        """Return T(b): the time of so many samples in equal micro-batches that fit [s]."""
        b = np.asarray(samples, np.int64)
        a = -(-b // np.asarray(largest))
        return np.asarray(a * self.at(device, -(-b // a)))


def balance(
    curve: MicroBatchCurve, device: ArrayLike, count: ArrayLike, largest: ArrayLike, batch: int
) -> Ints:
    """Split a batch over several kinds of devices; return the samples of one device by kind.

    ``device``, ``count``: (kinds,); row of the curve, and devices of the kind; ``largest``:
    (kinds,), or (kinds, batch) where it depends on the samples 1, 2, ...; largest micro-batch (at
    least 1).

    Raises PlanningError if there are fewer samples than devices.
    """
    kinds, n, most = (np.asarray(x, np.int64) for x in (device, count, largest))
    if batch < n.sum():
        raise impossible(
            f"a global batch of {batch} gives {n.sum()} GPUs less than one sample each",
            "raise the batch or use fewer GPUs",
        )
    samples = np.arange(1, batch + 1)
    tables = [curve.step_s(k, samples, m) for k, m in zip(kinds, most, strict=True)]
    maxima = np.unique(np.concatenate(tables))
    maxima = maxima[maxima >= max(t[0] for t in tables)]

    def within(maximum: int) -> Ints:
        return np.array([np.searchsorted(t, maxima[maximum], side="right") for t in tables])

    least = bisect.bisect_left(
        range(maxima.size - 1), True, key=lambda k: bool((within(k) * n).sum() >= batch)
    )
    return _trimmed(within(least), n, batch)


def _trimmed(samples: Ints, count: Ints, batch: int) -> Ints:
    """Take away, kind by kind, what the batch does not need."""
    found = samples.copy()
    for k in range(found.size):
        spare = (int((found * count).sum()) - batch) // int(count[k])
        found[k] -= min(max(spare, 0), int(found[k]) - 1)
    return found
