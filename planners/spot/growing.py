"""Workers that start with the machines there are and grow as more come (elastic, on spot).

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
count               k      machines that the job can run on, ascending; the last is all, n.
``rate[k]``         r      throughput on k machines by that on all.
``settling_s``      s      more machines must have been there so long before the job grows.
``gang_exponent``   gamma  spells of k machines last (k / n)^-gamma times as long as those of n.
=========================  =====================================================================

A job that runs on k machines and finds more waits s, saves, and restarts on them; where machines
go it restarts from its last checkpoint on those that are left. A job that stands still takes all
that come at once. With all machines coming and going together this is plain spot.

Records say when all n machines were there. Of fewer they are taken to come earlier and to leave
later, by equal shares of what gamma makes their spells longer, at most to the middle of the gap to
the next spell. The recorded counts lie between one zone that runs dry as a whole (SkyPilot, four
nodes) and nodes that go nearly one by one (Bamboo's p3 pool): see ``GANG_EXPONENT``. Resizing by
save, stop and start is Hydrozoa's (Guo et al., MLSys'22); its schedule over phases of training is
``planners.elastic.hydrozoa``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from advisor.planners.spot.availability import Column, Spells, Timeline

Edges = tuple[Column, Column]  # begins and ends of spells, in order [s]


def growing_timeline(
    levels: Sequence[Edges], counts: NDArray[np.int64], rate: Column, settle_s: float
) -> Timeline:
    """Return what the job runs on while machines come and go.

    Parameters
    ----------
    levels : sequence of (ndarray, ndarray)
        When at least so many machines are there, by count; each within the one before. [s]
    counts : ndarray of int, shape (k,)
        Ascending.
    rate : ndarray of shape (k,)
        Ascending to 1.
    """
    used = _settled(levels, settle_s)
    begins, ends = (np.concatenate(edge) for edge in zip(*used, strict=True))
    edges = np.unique(np.concatenate([begins, ends]))
    if edges.size < 2:
        none = np.zeros(0)
        return Timeline(
            begin_s=none, length_s=none, rate=none, is_planned=none.astype(bool),
            spot_share=none, on_demand_share=none,
        )  # fmt: skip
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

    Parameters
    ----------
    spells : Spells
        Of the largest count.
    counts : ndarray of int, shape (k,)
        Ascending.
    gang_exponent : float
        Spells of k of n machines last ``(k / n) ** -gang_exponent`` times as long.
    record_s : ndarray of shape (records + 1,), optional
        Where the records of joined spells begin, and where the last ends: no spell of fewer
        machines goes on from one to the next. [s]
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
