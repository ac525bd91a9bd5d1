"""A way to complete a job: on spot machines, and on demand while there are none.

The same machines in the same region: the job moves to on-demand ones when spot machines are taken
away, and back when they have been there again for a while (``planners.spot.alternating``).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from advisor.planners.spot.alternating import replay_alternating
from advisor.planners.spot.availability import Column, Rental, Spells, SpotJob
from advisor.planners.spot.rentals import RentalColumns, replay_records, scaled_records
from advisor.planners.spot.replay import best_interval_s
from advisor.planners.spot.table import SpotHistory

# A record is long enough if it lasts twice the time on demand: moves at most double that
# (``planners.spot.availability.settling_s``), and behind its end the job goes on on demand anyway.
_PROGRESS: Final = 0.5


def spot_with_fallback(
    work_s: Column, *, history: SpotHistory, nodes: Column, checkpoint_s: Column,
    restart_s: Column, hazard: Column, price_ratio: Column,
) -> RentalColumns:  # fmt: skip
    """Return what candidates take and rent, one row a candidate.

    Parameters
    ----------
    work_s : ndarray of shape (n,)
        Useful computing. [s]
    history : SpotHistory
        Records of what spot was like, equally likely.
    nodes : ndarray of shape (n,)
    checkpoint_s : ndarray of shape (n,)
        Standstill of one save. [s]
    restart_s : ndarray of shape (n,)
        From machines being there to the first useful step. [s]
    hazard : ndarray of shape (n,)
        Of a removal, relative to the history.
    price_ratio : ndarray of shape (n,)
        Of a spot hour to an on-demand hour.
    """
    interval_s = best_interval_s(history, nodes, hazard, checkpoint_s)
    rentals = []
    for row in range(work_s.size):
        job = SpotJob(
            work_s=float(work_s[row]),
            restart_s=float(restart_s[row]),
            checkpoint_interval_s=float(interval_s[row]),
            checkpoint_s=float(checkpoint_s[row]),
        )
        records = scaled_records(history, float(nodes[row]), float(hazard[row]))
        progress_s = [_PROGRESS * record.end_s for record in records]
        rentals.append(replay_records(records, job, partial(_replayed, job), progress_s))
    return RentalColumns.of(rentals, price_ratio, interval_s)


def _replayed(job: SpotJob, spells: Spells, start_s: Column) -> Rental:
    return replay_alternating(spells, job, start_s)
