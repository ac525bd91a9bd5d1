"""Spot machines while there are any, on-demand ones while there are none: the job never waits.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
``settling_s``      s      spot machines must have been there so long before the job moves to them.
removal                    back to the last checkpoint, restart on demand.
return                     a save on demand, restart on spot machines.
=========================  =====================================================================

At submission nothing runs yet, so spot machines are taken if they are there, however new. Later
the job goes on computing on demand for s before it returns to them: many spells of spot machines
are shorter than a move there and back (``settling_s``), and one that has
lasted lasts on, for their lengths are heavy-tailed. With spot machines that stay this is plain
spot, without any it is on demand. Laws: the job finishes after its time on demand by no more than
its moves cost, and is rented at every moment, so where spot is cheaper it costs no more than that
time does on demand. A guaranteed deadline is ``planners.spot.fallback``'s. The rule is our own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.spot.availability import (
    Column,
    Rental,
    Spells,
    SpotJob,
    Timeline,
    replay_timeline,
    settling_s,
)


def alternating_timeline(spells: Spells, settle_s: float, end_s: float) -> Timeline:
    """Return on-demand and spot intervals in turn, from 0 to ``end_s``.

    Parameters
    ----------
    spells : Spells
        Of all nodes that the job needs.
    settle_s : float
        Spot machines are taken when they have been there so long. [s]
    end_s : float
        At least the end of the record; behind it there is no spot. [s]
    """
    end = spells.up_start_s + spells.up_length_s
    begin = spells.up_start_s + settle_s
    is_used = begin < end
    edges = np.stack([begin[is_used], end[is_used]], axis=1).ravel()
    edges = np.concatenate([[0.0], edges, [end_s]])
    length = np.diff(edges)
    is_spot = np.arange(length.size) % 2 == 1
    rows = np.flatnonzero(length > 0)
    spot = is_spot[rows].astype(float)
    return Timeline(
        begin_s=edges[:-1][rows],
        length_s=length[rows],
        rate=np.ones(rows.size),
        is_planned=~is_spot[rows],
        spot_share=spot,
        on_demand_share=1.0 - spot,
    )


def replay_alternating(
    spells: Spells, job: SpotJob, start_s: ArrayLike, attempt_s: ArrayLike | None = None
) -> Rental:
    """Run jobs over recorded spells of spot machines, on demand where there are none.

    Times beyond the record count as down, so every job ends.

    Parameters
    ----------
    spells : Spells
        Of all nodes that the job needs.
    start_s : array-like of shape (n,)
        Submissions. [s]
    attempt_s : array-like of shape (n,), optional
        How much each is to do; by default what ``job`` has to. [s]
    """
    start = np.atleast_1d(np.asarray(start_s, float))
    attempt = np.broadcast_to(
        np.asarray(job.attempt_s if attempt_s is None else attempt_s, float), start.shape
    )
    if not start.size:
        return Rental(
            finish_s=start, spot_s=start, on_demand_s=start, rented_s=start, changes=start
        )
    first_s, is_there = _spot_at_submission(spells, start)
    is_direct = is_there & (first_s - job.restart_s >= attempt - 1e-9)
    kept = np.where(is_there, job.kept_s(first_s), 0.0)
    enough = job.restart_s + job.checkpoint_s + float(attempt.max())
    timeline = alternating_timeline(
        spells, settling_s(job), max(spells.end_s, float(start.max())) + enough
    )
    rest = replay_timeline(timeline, job, start + first_s, attempt - kept)
    spot = np.where(is_direct, job.restart_s + attempt, first_s + rest.spot_s)
    on_demand = np.where(is_direct, 0.0, rest.on_demand_s)
    return Rental(
        finish_s=spot + on_demand,
        spot_s=spot,
        on_demand_s=on_demand,
        rented_s=spot + on_demand,
        changes=np.where(is_direct, 0.0, rest.changes + is_there),
    )


def _spot_at_submission(spells: Spells, start: Column) -> tuple[Column, NDArray[np.bool_]]:
    """Return how long spot machines stay from each start [s], and whether they are there."""
    if not spells.up_start_s.size:
        return np.zeros(start.shape), np.zeros(start.shape, bool)
    end = spells.up_start_s + spells.up_length_s
    at = np.minimum(np.searchsorted(end, start, side="right"), end.size - 1)
    is_there = (spells.up_start_s[at] <= start) & (start < end[at])
    return np.where(is_there, end[at] - start, 0.0), is_there
