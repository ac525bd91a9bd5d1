"""Splitting a batch over unlike workers: smallest maximum time, then balance, then least memory.

| here          | Cephalo | meaning                                                             |
|---------------|---------|---------------------------------------------------------------------|
| ``b``, ``u``  | b, m    | samples of a worker and its micro-batch, one row an option          |
| ``weight``    | k       | what a micro-batch costs besides time: its size, or its memory      |
| ``maximum``   | -       | the slowest worker's time, searched over the options' times [s]     |

For a maximum the least total weight is a min-plus dynamic programme over (worker, samples);
feasible maxima are an upper set, found by galloping from a lower bound and halving. Exact.

Where slow links set the pace, splits of very different balance take the same time. Among those
the least maximum of the computing alone is found in the same way, so that least is lost when a
link turns out faster than assumed. (Cephalo leaves such ties to the order of its search.)
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import Floats, impossible

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What one GPU can do: batch, micro-batch and time of every option, by rising time."""

    b: Ints
    u: Ints
    time_s: Floats
    compute_s: Floats  # of that time, what is computed

    def chosen(self, rows: NDArray[np.intp]) -> BatchOptions:
        """Return some of the options, in the order of ``rows``."""
        return BatchOptions(self.b[rows], self.u[rows], self.time_s[rows], self.compute_s[rows])

    def balancing(self, maximum_s: float) -> BatchOptions:
        """Return what takes no longer than ``maximum_s``, timed and sorted by its computing."""
        within = np.flatnonzero(self.time_s <= maximum_s)
        rows = within[np.argsort(self.compute_s[within], kind="stable")]
        return replace(self.chosen(rows), time_s=self.compute_s[rows])


def split_batch(
    options: Sequence[BatchOptions], batch: int, compute: Floats, budget: float
) -> list[tuple[int, int]]:
    """Return (batch, micro-batch) per worker.

    The smallest maximum time comes first, then the smallest maximum of the computing, then the
    smallest micro-batches.

    ``batch``: samples to split; every worker takes at least one; ``compute``: memory of the
    computation by micro-batch, from 0 on [bytes]; ``budget``: for the computations of all workers
    together [bytes].

    Raises PlanningError if no split fits.
    """
    slowest = _least_maximum(options, batch, compute, budget)
    if slowest is None:
        raise impossible(
            "no split of the batch over these GPUs fits into their memory",
            "lower the batch, add GPUs or shorten the sequence",
        )
    options = [one.balancing(slowest) for one in options]
    slowest = _least_maximum(options, batch, compute, budget)
    assert slowest is not None  # what fits is among them
    small = _choose(options, batch, np.arange(compute.size, dtype=float), slowest)
    if sum(compute[u] for _, u in small) <= budget:
        return small
    return _choose(options, batch, compute, slowest)


def _least_maximum(
    options: Sequence[BatchOptions], batch: int, compute: Floats, budget: float
) -> float | None:
    """Return the smallest maximum time of a split that fits [s]; None where none does."""
    maxima = np.unique(np.concatenate([o.time_s for o in options]))

    def fits(maximum: int) -> bool:
        return bool(_programme(options, batch, compute, maxima[maximum])[0][batch] <= budget)

    low = _first_maximum(options, batch, maxima)
    step, high = 1, low
    while not fits(high):  # gallop, then halve
        if high == maxima.size - 1:
            return None
        low, high, step = high + 1, min(high + step, maxima.size - 1), 2 * step
    return float(maxima[bisect.bisect_left(range(high), True, low, key=fits)])


def _first_maximum(options: Sequence[BatchOptions], batch: int, maxima: Floats) -> int:
    """Return the first maximum at which the largest batches reach ``batch``: a lower bound."""
    reach = np.zeros(maxima.size)
    for o in options:
        if not o.b.size:
            return int(maxima.size - 1)
        done = np.searchsorted(o.time_s, maxima, side="right")
        largest = np.concatenate([[-np.inf], np.maximum.accumulate(o.b).astype(float)])
        reach += largest[done]
    return min(int(np.searchsorted(reach, batch)), maxima.size - 1)


def _programme(
    options: Sequence[BatchOptions], batch: int, weight: Floats, maximum: float
) -> tuple[Floats, list[Ints], list[Ints]]:
    """Min-plus dynamic programme over (GPU, batch) of the options within ``maximum``.

    Returns the least total weight of the micro-batches by batch, and per GPU the batch taken at
    each total and the micro-batch that a batch is run with.
    """
    total = np.full(batch + 1, np.inf)
    total[0] = 0.0
    taken, micro = [], []
    for o in options:
        allowed = int(np.searchsorted(o.time_s, maximum, side="right"))
        smallest = np.full(batch + 1, batch + 1)
        np.minimum.at(smallest, o.b[:allowed], o.u[:allowed])
        best, choice = np.full(batch + 1, np.inf), np.zeros(batch + 1, np.int64)
        for b in np.unique(o.b[:allowed]):
            value = total[: batch + 1 - b] + weight[smallest[b]]
            better = value < best[b:]
            best[b:][better] = value[better]
            choice[b:][better] = b
        total = best
        taken.append(choice)
        micro.append(smallest)
    return total, taken, micro


def _choose(
    options: Sequence[BatchOptions], batch: int, weight: Floats, maximum: float
) -> list[tuple[int, int]]:
    _, taken, micro = _programme(options, batch, weight, maximum)
    chosen, left = [], batch
    for choice, smallest in zip(reversed(taken), reversed(micro), strict=True):
        b = int(choice[left])
        chosen.append((b, int(smallest[b])))
        left -= b
    return chosen[::-1]
