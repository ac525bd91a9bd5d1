"""Spot until the last safe moment, then on demand: the deadline is met and the bill is known.

=======================  ========================================================================
here                     meaning, unit
=======================  ========================================================================
``deadline_s``      D    from submission. [s]
``margin_s``        m    kept besides what finishing on demand needs. [s]
committed           c    work in the last checkpoint. [s]
slack               g    ``D - t - (W - c) - R - saves``, were the node to go now. [s]
=======================  ========================================================================

The job leaves spot when g falls to m. Waiting, restarting and computing all use up g; only a
checkpoint gives some back. A switch from a running node saves first, so it loses nothing; on
demand the job runs to its end. With on-demand nodes always to be had, a deadline of at least
``R + W + saves + m`` is always met. The rule is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import HOUR_S, impossible, refused
from advisor.planners.spot.availability import Column, Spells, SpotJob


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackRun:
    """Jobs that fell back on demand in time, one row a start."""

    finish_s: Column  # (n,); from submission [s]
    # spot_s, on_demand_s: (n,); paid time of each kind [s]
    spot_s: Column
    on_demand_s: Column

    def cost_usd(self, spot_price_usd_per_h: float, price_usd_per_h: float) -> Column:
        """Return the bill of each start; prices are of all nodes together. [USD]."""
        paid: Column = self.spot_s * spot_price_usd_per_h + self.on_demand_s * price_usd_per_h
        return paid / HOUR_S


def replay_with_fallback(
    spells: Spells, job: SpotJob, start_s: ArrayLike, *, deadline_s: float, margin_s: float = 0.0
) -> FallbackRun:
    """Run a job over recorded spells from each start, on demand from the last safe moment on.

    Times beyond the record count as down. Saving on notice is not modelled here: periodic
    checkpoints alone must carry the guarantee.

    Raises PlanningError if not even a job that goes on demand at once meets the deadline.
    """
    check_deadline(job, deadline_s, margin_s)
    start = np.atleast_1d(np.asarray(start_s, float))
    walk = _FallbackWalk(job=job, latest_s=deadline_s - margin_s - job.wall_s, start_s=start)
    at = np.searchsorted(spells.up_start_s + spells.up_length_s, start, side="right")
    while walk.is_open.any():
        row = np.flatnonzero(walk.is_open)
        inside = np.minimum(at[row], spells.up_start_s.size - 1)
        is_over = at[row] >= spells.up_start_s.size
        begin = np.where(is_over, np.inf, np.maximum(spells.up_start_s[inside] - start[row], 0.0))
        end = np.where(
            is_over, np.inf, spells.up_start_s[inside] + spells.up_length_s[inside] - start[row]
        )
        walk.spell(row, begin, end)
        at[row] += 1
    return FallbackRun(finish_s=walk.finish_s, spot_s=walk.spot_s, on_demand_s=walk.on_demand_s)


def check_deadline(job: SpotJob, deadline_s: float, margin_s: float = 0.0) -> None:
    """Refuse a deadline that nothing can meet.

    Raises PlanningError: exit code 2 for a deadline in the past, 3 for one shorter than the job.
    """
    if deadline_s <= 0:
        raise refused(
            f"the deadline lies {-deadline_s:g} s in the past",
            "give the time from now on, e.g. 12h",
        )
    if deadline_s < job.wall_s + margin_s:
        raise impossible(
            f"no plan meets a deadline of {deadline_s / HOUR_S:.2f} h: restart, work, saves and "
            f"margin take {(job.wall_s + margin_s) / HOUR_S:.2f} h without any interruption",
            "give the job more time, or a faster configuration",
        )


class _FallbackWalk:
    """Where each start stands; ``spell`` moves the open ones through one up spell."""

    def __init__(self, *, job: SpotJob, latest_s: float, start_s: Column) -> None:
        self.job = job
        self.latest_s = latest_s  # of the switch, with nothing committed
        self.committed_s: Column = np.zeros(start_s.shape)  # in units of ``attempt_s``
        self.spot_s: Column = np.zeros(start_s.shape)
        self.on_demand_s: Column = np.zeros(start_s.shape)
        self.finish_s: Column = np.full(start_s.shape, np.nan)
        self.is_open: NDArray[np.bool_] = np.ones(start_s.shape, bool)

    def spell(self, row: NDArray[np.intp], begin: Column, end: Column) -> None:
        """Wait until ``begin``, compute until ``end``; leave for on demand when slack is used."""
        job, done = self.job, self.committed_s[row]
        stride = job.checkpoint_interval_s + job.checkpoint_s
        ready = begin + job.restart_s
        leave = self.latest_s + done
        # A stride ends with its save, which gives back all that the stride used up: slack that
        # lasts to the first save lasts to every one.
        is_used = leave < np.minimum(ready + stride, end)
        ends_at = ready + job.attempt_s - done
        is_done = (ends_at <= end) & (~is_used | (ends_at <= leave))
        is_switch = is_used & ~is_done
        self._finish(row[is_done], ends_at[is_done], ends_at[is_done] - begin[is_done])
        self._switch(row[is_switch], leave[is_switch], begin[is_switch], ready[is_switch])
        gone = ~is_done & ~is_switch
        length = end[gone] - begin[gone]
        self.committed_s[row[gone]] += job.kept_s(length)
        self.spot_s[row[gone]] += length

    def _finish(self, row: NDArray[np.intp], at: Column, rented: Column) -> None:
        self.finish_s[row] = at
        self.spot_s[row] += rented
        self.is_open[row] = False

    def _switch(self, row: NDArray[np.intp], at: Column, begin: Column, ready: Column) -> None:
        """Save what runs where that pays, restart on demand, run to the end."""
        unsaved = np.maximum(at - ready, 0.0)
        is_saved = unsaved > self.job.checkpoint_s
        save = np.where(is_saved, self.job.checkpoint_s, 0.0)
        rest = self.job.wall_s - self.committed_s[row] - np.where(is_saved, unsaved, 0.0)
        self.spot_s[row] += np.maximum(at - begin, 0.0) + save
        self.on_demand_s[row] = rest
        self.finish_s[row] = at + save + rest
        self.is_open[row] = False
