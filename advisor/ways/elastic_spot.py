"""A way to complete a job: on as many spot machines as there are, up to a number (elastic).

Data-parallel workers only: the batch stays, so fewer machines take more micro-batches, and every
count has the step time that the estimate gives it. See ``planners.spot.growing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.spot.availability import (
    Column,
    Rental,
    Spells,
    SpotJob,
    joined,
    replay_timeline,
    settling_s,
)
from advisor.planners.spot.growing import growing_timeline, nested_levels
from advisor.planners.spot.rentals import RentalColumns, copies_of, cut, scaled_records, starts_s
from advisor.planners.spot.replay import best_interval_s
from advisor.planners.spot.table import GANG_EXPONENT, SpotHistory

# Counts that are looked at everywhere: powers of two and the middle between two of them.
_LARGEST_POWER: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What a job can run on: counts of machines, and the throughput on each.

    Attributes
    ----------
    counts : ndarray of int, shape (k,)
        Ascending; the last is all.
    rate : ndarray of shape (k,)
        Throughput by that on all machines, ascending to 1.
    """

    counts: NDArray[np.int64]
    rate: Column

    @classmethod
    def of(cls, counts: Sequence[int], step_s: Sequence[float]) -> Workers | None:
        """Return the counts that pay, from step times [s]; None where only all machines do.

        A count that is no faster than a smaller one is left out; one that is as fast as all
        machines makes them pointless.

        Parameters
        ----------
        counts : sequence of int
            Ascending; the last is all machines.
        step_s : sequence of float
            nan where a count cannot run the job. [s]
        """
        rate = step_s[-1] / np.asarray(step_s, float)
        kept: list[int] = []
        for at in np.flatnonzero(np.isfinite(rate)):
            if not kept or rate[at] > rate[kept[-1]]:
                kept.append(int(at))
        if len(kept) < 2 or kept[-1] != len(rate) - 1:
            return None
        return cls(counts=np.asarray(counts, dtype=np.int64)[kept], rate=rate[kept])

    @property
    def least_machine_s(self) -> float:
        """Return the least machine time of a second's work on all machines, as if of all [s]."""
        return float(np.min(self.counts / self.counts[-1] / self.rate))


def counts_below(count: int) -> tuple[int, ...]:
    """Return the numbers of machines on the way to ``count``, ascending, itself the last.

    Each is at most half of the next, so that a resize is worth its standstill.

    >>> counts_below(8), counts_below(6), counts_below(10)
    ((1, 2, 4, 8), (1, 3, 6), (1, 2, 4, 10))
    """
    known = sorted({n for k in range(_LARGEST_POWER) for n in (2**k, 3 * 2**k // 2)})
    down = [count]
    while down[-1] > 1:
        down.append(max(n for n in known if n <= max(down[-1] // 2, 1)))
    return tuple(reversed(down))


def elastic_spot(
    work_s: Column, workers: Sequence[Workers], *, history: SpotHistory, checkpoint_s: Column,
    restart_s: Column, hazard: Column,
) -> RentalColumns:  # fmt: skip
    """Return what candidates take and rent, one row a candidate.

    Parameters
    ----------
    work_s : ndarray of shape (n,)
        Useful computing on all machines. [s]
    workers : sequence of Workers
        One a candidate.
    history : SpotHistory
        Records of what spot was like, equally likely.
    checkpoint_s : ndarray of shape (n,)
        Standstill of one save. [s]
    restart_s : ndarray of shape (n,)
        From machines being there to the first useful step. [s]
    hazard : ndarray of shape (n,)
        Of a removal, relative to the history.
    """
    nodes = np.array([float(one.counts[-1]) for one in workers])
    interval_s = best_interval_s(history, nodes, hazard, checkpoint_s)
    recorded: dict[tuple[float, float], tuple[Spells, Column]] = {}
    rentals = []
    for row, one in enumerate(workers):
        kind = (float(nodes[row]), float(hazard[row]))
        if kind not in recorded:
            recorded[kind] = joined(scaled_records(history, *kind), gap_s=0.0)
        job = SpotJob(
            work_s=float(work_s[row]),
            restart_s=float(restart_s[row]),
            checkpoint_interval_s=float(interval_s[row]),
            checkpoint_s=float(checkpoint_s[row]),
        )
        rentals.append(_replayed(*recorded[kind], one, job))
    return RentalColumns.of(rentals, np.ones(nodes.size), interval_s)


def _replayed(spells: Spells, begin: Column, workers: Workers, job: SpotJob) -> Rental:
    """Replay a job over records joined at ``begin``, each as often repeated as it takes."""
    levels = nested_levels(spells, workers.counts, GANG_EXPONENT, begin)
    timeline = growing_timeline(levels, workers.counts, workers.rate, settling_s(job))
    kept = timeline.kept_s(job, timeline.length_s, slice(None))
    record = np.searchsorted(begin, timeline.begin_s, side="right") - 1
    progress = np.bincount(record, weights=kept, minlength=begin.size - 1)
    timeline, begins = timeline.repeated(begin, copies_of(job, progress.tolist()))
    start = starts_s(begins, np.diff(begin))
    rental = replay_timeline(timeline, job, start, np.full(start.shape, job.attempt_s))
    return cut(rental, start, begins)
