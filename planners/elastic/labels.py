"""The dynamic program behind ``planners.elastic.hydrozoa``: which workers in which phase.

A label is what a partial schedule has taken: time [s] and bill [worker-seconds]. Labels that end
on the same count of workers compete with each other only, since the next resize depends on the
count; a label that another one beats in both is dropped. Phase by phase each label is continued on
every count. That is label setting (Martins, EJOR 16(2), 1984) on a graph of phases x counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

# Labels kept a count of workers: with fewer (time, bill) pairs than this the program is exact.
MAXIMUM_LABELS = 400


def worker_paths(
    phase_s: Sequence[Column], workers: Sequence[int], resize_s: float
) -> list[tuple[int, ...]]:
    """Return every choice of workers that no other beats in both time and worker-seconds.

    Parameters
    ----------
    phase_s : sequence of ndarray of shape (w,)
        Time of each phase on each count of workers. [s]
    resize_s : float
        Standstill of a change, paid on the larger of the two counts. [s]

    Returns
    -------
    list of tuple of int
        Position in ``workers``, phase by phase.
    """
    counts = np.asarray(workers, float)
    pause = np.where(np.eye(counts.size, dtype=bool), 0.0, resize_s)
    idle = pause * np.maximum(counts[:, None], counts)
    first = phase_s[0]
    labels = _Labels(time=first, paid=first * counts, count=np.arange(counts.size))
    history = []
    for time in phase_s[1:]:
        parts = []
        for k, count in enumerate(counts):
            arriving = _Labels(
                time=labels.time + pause[labels.count, k] + time[k],
                paid=labels.paid + idle[labels.count, k] + time[k] * count,
                count=np.full(labels.count.size, k),
            )
            parts.append((arriving, _surviving(arriving)))
        history.append((labels.count, np.concatenate([kept for _, kept in parts])))
        labels = _Labels(
            time=np.concatenate([new.time[kept] for new, kept in parts]),
            paid=np.concatenate([new.paid[kept] for new, kept in parts]),
            count=np.concatenate([new.count[kept] for new, kept in parts]),
        )
    at = _surviving(labels)
    picks = [labels.count[at]]
    for counts_before, came in reversed(history):
        at = came[at]
        picks.append(counts_before[at])
    return [tuple(path) for path in np.stack(picks[::-1], axis=1).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    time: Column
    paid: Column
    count: NDArray[np.int64]


def _surviving(labels: _Labels) -> NDArray[np.int64]:
    """Return the labels that no other beats in both, thinned evenly to ``MAXIMUM_LABELS``."""
    order = np.lexsort((labels.paid, labels.time))
    paid = labels.paid[order]
    best = np.minimum.accumulate(np.concatenate([[np.inf], paid[:-1]]))
    kept = order[paid < best]
    if kept.size > MAXIMUM_LABELS:
        kept = kept[np.round(np.linspace(0, kept.size - 1, MAXIMUM_LABELS)).astype(int)]
    return kept
