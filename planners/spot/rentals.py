"""Many replays of one job as columns: what a candidate rents, over records of what spot was like.

Each record of a history is repeated until the job ends, and the job submitted at ``STARTS`` times
spread over the first copy. A candidate's numbers are those of its own replays, whatever stands
beside it: nothing is interpolated (``planners.spot.table`` is for thousands of candidates).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from advisor.planners.spot.availability import Column, Rental, Spells, SpotJob, joined
from advisor.planners.spot.table import (
    GANG_EXPONENT,
    MAXIMUM_TILES,
    NEVER_S,
    SHOWN,
    STARTS,
    SpotHistory,
)

# Copies of a record behind the one in which the job would end at its mean progress.
_SPARE_COPIES: Final = 2
_COLUMNS: Final = tuple(one.name for one in fields(Rental))


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalColumns:
    """Rentals of candidates, one row each; inf where most replays never end.

    Attributes
    ----------
    mean : Rental
        Expected values of the replays' columns, shape (n,) each.
    finish_s, billed_s : ndarray of shape (n, 3)
        10th, 50th and 90th percentile of the time to the finish, and of the rented time at the
        price of an on-demand hour of all machines. [s]
    billed_mean_s : ndarray of shape (n,)
        Expected value of the latter. [s]
    checkpoint_interval_s : ndarray of shape (n,)
        Useful computing between two saves. [s]
    """

    mean: Rental
    finish_s: Column
    billed_s: Column
    billed_mean_s: Column
    checkpoint_interval_s: Column

    @classmethod
    def of(
        cls, rentals: Sequence[Rental], price_ratio: Column, checkpoint_interval_s: Column
    ) -> RentalColumns:
        """Summarise the replays of each candidate.

        Parameters
        ----------
        price_ratio : ndarray of shape (n,)
            Of a spot hour to an on-demand one.
        checkpoint_interval_s : ndarray of shape (n,)
            [s]
        """
        billed = [r.billed_s(ratio) for r, ratio in zip(rentals, price_ratio, strict=True)]
        return cls(
            mean=Rental(**{
                name: _means([getattr(rental, name) for rental in rentals]) for name in _COLUMNS
            }),
            finish_s=_stacked([_shown(rental.finish_s) for rental in rentals]),
            billed_s=_stacked([_shown(paid) for paid in billed]),
            billed_mean_s=_means(billed),
            checkpoint_interval_s=checkpoint_interval_s,
        )  # fmt: skip


def scaled_records(history: SpotHistory, nodes: float, hazard: float) -> list[Spells]:
    """Return a history's records as ``nodes`` nodes of another hazard would have seen them."""
    return [
        spells.scaled(up=(nodes / recorded) ** -GANG_EXPONENT / hazard)
        for spells, recorded in zip(history.spells, history.nodes, strict=True)
    ]


def availability(history: SpotHistory, nodes: float, hazard: float) -> float:
    """Return the share of the time with all nodes up, the mean over the records."""
    records = scaled_records(history, nodes, hazard)
    return float(np.mean([record.availability for record in records]))


def replay_records(
    records: Sequence[Spells],
    job: SpotJob,
    replay: Callable[[Spells, Column], Rental],
    progress_s: Sequence[float],
) -> Rental:
    """Run a job over every record, from starts spread over each.

    Parameters
    ----------
    replay : callable
        Of spells and starts [s].
    progress_s : sequence of float
        What the job gets done in each record, roughly. [s]
    """
    copies = copies_of(job, progress_s)
    tiled = [record.tiled(times) for record, times in zip(records, copies, strict=True)]
    spells, begin = joined(tiled, gap_s=job.wall_s)
    start = starts_s(begin, np.array([record.end_s for record in records]))
    return cut(replay(spells, start), start, begin)


def copies_of(job: SpotJob, progress_s: Sequence[float]) -> list[int]:
    """Return how often to repeat each record until the job has ended.

    ``progress_s`` is what the job gets done in one copy, roughly. [s]
    """
    return [
        int(min(job.attempt_s / max(done, 1e-9), MAXIMUM_TILES)) + _SPARE_COPIES
        for done in progress_s
    ]


def starts_s(begin_s: Column, length_s: Column) -> Column:
    """Return starts spread over the first copy of each record, shape (records x STARTS,) [s]."""
    share = (np.arange(STARTS) + 0.5) / STARTS
    starts: Column = (begin_s[:-1, None] + share * length_s[:, None]).ravel()
    return starts


def cut(rental: Rental, start_s: Column, begin_s: Column) -> Rental:
    """Return the replays with those as never ended that go on into the next record."""
    is_over = start_s + rental.finish_s <= np.repeat(begin_s[1:], STARTS) + 1e-6
    return Rental(**{
        name: np.where(is_over, getattr(rental, name), np.nan) for name in _COLUMNS
    })  # fmt: skip


def _shown(samples: Column) -> Column:
    """Return the shown quantiles of replays, each an actual one; what never ends is longest."""
    order = np.sort(np.nan_to_num(samples, nan=np.inf))
    at = np.round(np.asarray(SHOWN) * (order.size - 1)).astype(int)
    shown: Column = order[at]
    return shown


def _stacked(rows: Sequence[Column]) -> Column:
    return np.stack(rows) if rows else np.zeros((0, len(SHOWN)))


def _means(rows: Sequence[Column]) -> Column:
    means = np.array([float(np.nan_to_num(row, nan=NEVER_S).mean()) for row in rows])
    return np.where(means < np.sqrt(NEVER_S), means, np.inf)
