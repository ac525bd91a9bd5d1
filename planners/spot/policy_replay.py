"""A job that moves between spot, on demand and waiting, looked after at short intervals.

=======================  ========================================================================
here                     meaning, unit
=======================  ========================================================================
look                     a moment at which the plan is asked, every ``look_s``. [s]
done, saved              work so far, and work in the last checkpoint. [s]
slack             g      ``D - t - (W - saved) - R``: left if the node went now. [s]
=======================  ========================================================================

Whatever the plan says, the job is on demand from the last look at which g would not last to the
next one; a node that computes may save once more instead if saving costs nothing. So a deadline of
at least ``R + W + saves`` is always met while on-demand nodes can be had, for any plan and any
record of availability. A move saves first. A node that is removed between two looks is gone for
the rest of that interval. The rule is our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.spot.availability import Column, Spells, SpotJob
from advisor.planners.spot.last_safe_moment import FallbackRun, check_deadline
from advisor.planners.spot.policy import IDLE, ON_DEMAND, ON_SPOT, with_saves_s

# (to go [s], work left [s], mode, is up, age of the spell [s]) -> mode, one row a job.
Choose = Callable[[float, Column, NDArray[np.intp], NDArray[np.bool_], Column], NDArray[np.intp]]
# Looks are a minute apart, or a 2,000th of the time to the deadline.
_SHORTEST_LOOK_S: Final = 60.0
_LOOKS: Final = 2000
_TINY_S: Final = 1e-6


def replay_policy(
    spells: Spells, job: SpotJob, start_s: ArrayLike, *, deadline_s: float, choose: Choose
) -> FallbackRun:
    """Run a job over recorded spells from each start, as a plan says.

    Times beyond the record count as down.

    Raises PlanningError if not even a job that goes on demand at once meets the deadline.

    Parameters
    ----------
    spells : Spells
        Of all nodes that the job needs.
    job : SpotJob
        Where it saves on notice it saves at intervals too, for the deadline's sake: a removal then
        costs one save and nothing else.
    start_s : array-like of shape (n,)
        Submissions. [s]
    choose : callable
        The plan, e.g. ``SpotPolicy.choose``.
    """
    check_deadline(replace(job, warning_s=None), deadline_s)
    start = np.atleast_1d(np.asarray(start_s, float))
    look = max(_SHORTEST_LOOK_S, deadline_s / _LOOKS)
    walk = _Walk(spells, job, start, deadline_s, look)
    # An on-demand node that was started in time may end between the last look and the deadline.
    for number in range(int(np.ceil(deadline_s / look)) + 1):
        if not walk.is_open.any():
            break
        walk.look(number * look, choose)
    return FallbackRun(finish_s=walk.finish_s, spot_s=walk.spot_s, on_demand_s=walk.on_demand_s)


class _Walk:
    """Where each job stands; ``look`` moves all that are not done to the next look."""

    def __init__(
        self, spells: Spells, job: SpotJob, start: Column, deadline_s: float, look_s: float
    ) -> None:
        self.job, self.start, self.deadline_s, self.look_s = job, start, deadline_s, look_s
        self.whole_s = with_saves_s(job)
        ends = spells.up_start_s + spells.up_length_s
        edges = np.stack([spells.up_start_s, ends], axis=1).ravel()
        self.edges: Column = edges if edges.size else np.array([np.inf])
        zeros = [np.zeros(start.shape) for _ in range(5)]
        self.done_s, self.saved_s, self.standstill_s, self.spot_s, self.on_demand_s = zeros
        self.mode = np.full(start.shape, IDLE, dtype=np.intp)
        self.finish_s: Column = np.full(start.shape, np.nan)

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """Jobs that are not done."""
        return np.isnan(self.finish_s)

    def look(self, at_s: float, choose: Choose) -> None:
        """Ask the plan, move where it and the deadline say, and compute until the next look."""
        now = self.start + at_s
        edge = np.searchsorted(self.edges, now, side="right")
        is_up = edge % 2 == 1
        since = np.where(edge > 0, self.edges[np.maximum(edge - 1, 0)], 0.0)
        until = np.full(now.shape, np.inf)
        inside = edge < self.edges.size
        until[inside] = self.edges[edge[inside]] - now[inside]
        to_go = self.deadline_s - at_s
        rest = self.whole_s - self.done_s + self.standstill_s
        wanted = choose(to_go, rest, self.mode, is_up, now - since)
        wanted = np.where((wanted == ON_SPOT) & ~is_up, IDLE, wanted)
        self._move(self._in_time(wanted, to_go))
        self._compute(at_s, until)

    def _in_time(self, wanted: NDArray[np.intp], to_go_s: float) -> NDArray[np.intp]:
        """Return what may be waited for, on demand where nothing may."""
        job, look = self.job, self.look_s - _TINY_S
        missing = self.whole_s + job.restart_s
        is_moving = (wanted != self.mode) & (self.mode != IDLE)
        left = np.maximum(self.done_s - job.checkpoint_s, self.saved_s)
        kept = np.where(is_moving, left, self.saved_s)
        is_short = to_go_s - (missing - kept) < look
        # Only a save that costs nothing can be had at every look.
        stays = (wanted == ON_SPOT) & (self.mode == ON_SPOT) & (job.checkpoint_s == 0.0)
        stays &= is_short & (to_go_s - (missing - self.done_s) >= look)
        self.saved_s = np.where(stays, self.done_s, self.saved_s)
        return np.where(is_short & ~stays, ON_DEMAND, wanted)

    def _move(self, wanted: NDArray[np.intp]) -> None:
        """Leave what the job is on, saved where that pays, and begin to restart."""
        job, moves = self.job, self.is_open & (wanted != self.mode)
        saves = moves & (self.mode != IDLE) & (self.done_s - self.saved_s > job.checkpoint_s)
        self.saved_s = np.where(saves, self.done_s - job.checkpoint_s, self.saved_s)
        self.done_s = np.where(moves, self.saved_s, self.done_s)
        standstill = np.where(wanted != IDLE, job.restart_s, 0.0)
        self.standstill_s = np.where(moves, standstill, self.standstill_s)
        self.mode = np.where(self.is_open, wanted, IDLE)

    def _compute(self, at_s: float, until_s: Column) -> None:
        """Compute until the next look, the end, or the node's removal."""
        is_spot, is_on = self.mode == ON_SPOT, self.mode != IDLE
        length = np.where(is_spot, np.minimum(until_s, self.look_s), self.look_s)
        length = np.where(is_on, length, 0.0)
        still = np.minimum(self.standstill_s, length)
        work = np.minimum(length - still, self.whole_s - self.done_s)
        self.standstill_s = self.standstill_s - still
        self.done_s = self.done_s + work
        self.spot_s += np.where(is_spot, still + work, 0.0)
        self.on_demand_s += np.where(self.mode == ON_DEMAND, still + work, 0.0)
        self._save()
        ended = is_on & (self.done_s >= self.whole_s - _TINY_S)
        self.finish_s = np.where(ended, at_s + still + work, self.finish_s)
        self._remove(is_spot & ~ended & (until_s <= self.look_s))
        self.mode = np.where(ended, IDLE, self.mode)

    def _save(self) -> None:
        """Keep the whole strides since the last save."""
        stride = self.job.checkpoint_interval_s + self.job.checkpoint_s
        if np.isfinite(stride):
            whole = np.floor((self.done_s - self.saved_s) / stride + 1e-9) * stride
            self.saved_s = self.saved_s + whole

    def _remove(self, gone: NDArray[np.bool_]) -> None:
        """Take nodes away; a job that saves on notice loses the time of the save."""
        if self.job.saves_on_notice:
            kept = np.maximum(self.done_s - self.job.checkpoint_s, self.saved_s)
            self.saved_s = np.where(gone, kept, self.saved_s)
        self.done_s = np.where(gone, self.saved_s, self.done_s)
        self.standstill_s = np.where(gone, 0.0, self.standstill_s)
        self.mode = np.where(gone, IDLE, self.mode)
