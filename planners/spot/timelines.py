"""What a job runs on from moment to moment, where it never waits for spot machines.

Two ways: spot machines while there are any, on-demand ones while there are none
(``replay_alternating``), and workers that start with the spot machines there are and grow as more
come (``growing_timeline``).
"""

from __future__ import annotations

from collections.abc import Sequence

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

    ``spells``: of all nodes that the job needs; ``settle_s``: spot machines are taken when they
    have been there so long [s]; ``end_s``: at least the end of the record; behind it there is no
    spot [s].
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


def replay_alternating(job: SpotJob, spells: Spells, start_s: ArrayLike) -> Rental:
    """Run jobs over recorded spells of spot machines, on demand where there are none.

    =========================  ====================================================================
    here                       meaning, unit
    =========================  ====================================================================
    ``settling_s``      s      spot machines must have been there so long before the job moves to
                               them.
    removal                    back to the last checkpoint, restart on demand.
    return                     a save on demand, restart on spot machines.
    =========================  ====================================================================

    At submission nothing runs yet, so spot machines are taken if they are there, however new.
    Later the job goes on computing on demand for s before it returns to them: many spells of spot
    machines are shorter than a move there and back (``settling_s``), and one that has lasted lasts
    on, for their lengths are heavy-tailed. With spot machines that stay this is plain spot,
    without any it is on demand. Laws: the job finishes after its time on demand by no more than
    its moves cost, and is rented at every moment, so where spot is cheaper it costs no more than
    that time does on demand. A guaranteed deadline is ``planners.spot.last_safe_moment``'s. The
    rule is ours.

    Times beyond the record count as down, so every job ends.

    ``spells``: of all nodes that the job needs; ``start_s``: (n,); submissions [s].
    """
    start = np.atleast_1d(np.asarray(start_s, float))
    attempt = np.full(start.shape, job.attempt_s)
    if not start.size:
        return Rental.alike(start)
    first_s, is_there = _spot_at_submission(spells, start)
    is_direct = is_there & (first_s - job.restart_s >= attempt - 1e-9)
    kept = np.where(is_there, job.kept_s(first_s), 0.0)
    enough = job.restart_s + job.checkpoint_s + job.attempt_s
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


Edges = tuple[Column, Column]  # begins and ends of spells, in order [s]


def growing_timeline(
    levels: Sequence[Edges], counts: NDArray[np.int64], rate: Column, settle_s: float
) -> Timeline:
    """Return what the job runs on while machines come and go.

    =========================  ====================================================================
    here                       meaning, unit
    =========================  ====================================================================
    count               k      machines that the job can run on, ascending; the last is all, n.
    ``rate[k]``         r      throughput on k machines by that on all.
    ``settling_s``      s      more machines must have been there so long before the job grows.
    ``gang_exponent``   gamma  spells of k machines last (k / n)^-gamma times as long as those of
                               n.
    =========================  ====================================================================

    A job that runs on k machines and finds more waits s, saves, and restarts on them; where
    machines go it restarts from its last checkpoint on those that are left. A job that stands
    still takes all that come at once. With all machines coming and going together this is plain
    spot.

    Records say when all n machines were there. Of fewer they are taken to come earlier and to
    leave later, by equal shares of what gamma makes their spells longer, at most to the middle of
    the gap to the next spell. The recorded counts lie between one zone that runs dry as a whole
    (SkyPilot, four nodes) and nodes that go nearly one by one (Bamboo's p3 pool): see
    ``GANG_EXPONENT``. Resizing by save, stop and start is Hydrozoa's (Guo et al., MLSys'22); its
    schedule over phases of training is ``planners.systems.hydrozoa``.

    ``levels``: when at least so many machines are there, by count; each within the one before [s];
    ``counts``: (k,); ascending; ``rate``: (k,); ascending to 1.
    """
    used = _settled(levels, settle_s)
    begins, ends = (np.concatenate(edge) for edge in zip(*used, strict=True))
    edges = np.unique(np.concatenate([begins, ends]))
    if edges.size < 2:
        none = np.zeros(0)
        return Timeline.of_spells(Spells(up_start_s=none, up_length_s=none, end_s=1.0))
    at_begin, at_end = np.searchsorted(edges, begins), np.searchsorted(edges, ends)
    joins = np.bincount(at_begin, minlength=edges.size)
    goes = np.bincount(at_end, minlength=edges.size)
    level = np.cumsum(joins - goes)[:-1]
    # Intervals of like counts that meet are one, except where the machines really went between.
    is_new = np.append(True, (np.diff(level) != 0) | (goes[1:-1] > 0))
    begin, level = edges[:-1][is_new], level[is_new]
    length = np.diff(np.append(begin, edges[-1]))
    after = np.append(level[1:], 0)
    is_on = level > 0
    on = level[is_on] - 1
    return Timeline(
        begin_s=begin[is_on],
        length_s=length[is_on],
        rate=rate[on],
        is_planned=(after > level)[is_on],
        spot_share=counts[on] / counts[-1],
        on_demand_share=np.zeros(on.size),
    )


def nested_levels(
    spells: Spells, counts: NDArray[np.int64], gang_exponent: float,
    record_s: Column | None = None,
) -> list[Edges]:  # fmt: skip
    """Return when at least so many machines are there, by count, from when all of them are.

    ``spells``: of the largest count; ``counts``: (k,); ascending; ``gang_exponent``: spells of k
    of n machines last ``(k / n) ** -gang_exponent`` times as long; ``record_s``: (records + 1,);
    where the records of joined spells begin, and where the last ends: no spell of fewer machines
    goes on from one to the next [s].
    """
    bounds = np.array([0.0, spells.end_s]) if record_s is None else record_s
    begin, end = spells.up_start_s, spells.up_start_s + spells.up_length_s
    gap = np.diff(np.concatenate([[-np.inf], np.stack([begin, end], axis=1).ravel(), [np.inf]]))
    gap = np.maximum(gap[0::2], 0.0)  # before each spell, and behind the last
    record = np.clip(np.searchsorted(bounds, begin, side="right") - 1, 0, bounds.size - 2)
    is_seam = (gap[1:-1] <= 0) | (np.diff(record) > 0)
    levels = []
    for count in counts:
        longer = 0.5 * spells.up_length_s * ((count / counts[-1]) ** -gang_exponent - 1.0)
        first = np.maximum(begin - np.minimum(longer, 0.5 * gap[:-1]), bounds[record])
        last = np.minimum(end + np.minimum(longer, 0.5 * gap[1:]), bounds[record + 1])
        levels.append(_merged(first, last, is_seam))
    return levels


def _merged(begin: Column, end: Column, is_seam: NDArray[np.bool_]) -> Edges:
    """Join spells that meet since both reach the middle of their gap; seams of records stay."""
    meets = (begin[1:] <= end[:-1] * (1.0 + 1e-12)) & ~is_seam
    return begin[np.concatenate([[True], ~meets])], end[np.concatenate([~meets, [True]])]


def _settled(levels: Sequence[Edges], settle_s: float) -> list[Edges]:
    """Let more machines wait, except where the job starts with them from a standstill."""
    lowest = levels[0][0]
    used = [levels[0]]
    for begin, end in levels[1:]:
        started = lowest[np.maximum(np.searchsorted(lowest, begin, side="right") - 1, 0)]
        joins = np.where(begin > started, begin + settle_s, begin)
        is_used = joins < end
        used.append((joins[is_used], end[is_used]))
    return used
