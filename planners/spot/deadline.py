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

Spot until the last safe moment, then on demand: the deadline is met and the bill is known.

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

A job by a deadline, as its plan moves it over many records of what spot was like.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
plan                       ``planners.spot.policy``: spot, on demand or waiting, by least bill.
replay                     ``planners.spot.deadline``: the plan looked up at short intervals.
``deadline_s``      D      from submission. [s]
``whole_s``                work and its saves at intervals. [s]
``log_sd``          s      standard deviation of the error of ln(work).
=========================  =====================================================================

The plan meets every deadline that on-demand machines alone could meet. So a job whose work is
known up to a log-normal error is late with the probability that ``restart + whole > D``:

    P(late) = 1 - Phi(ln((D - restart) / whole) / s)

What the work is shows within its first minutes, long before the plan has to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import HOUR_S, impossible, refused
from advisor.planners.spot.availability import Column, Spells, SpotJob, joined
from advisor.planners.spot.policy import (
    IDLE,
    ON_DEMAND,
    ON_SPOT,
    SpellHazards,
    SpotPolicy,
    with_saves_s,
)


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


def replay_plan(
    records: Sequence[Spells],
    job: SpotJob,
    *,
    starts: int,
    deadline_s: float,
    spot_price_usd_per_h: float,
    price_usd_per_h: float,
) -> FallbackRun:
    """Run a job by one plan over every record, from starts spread over each.

    The plan knows how long nodes stay and stay away in these records, and nothing of the future.

    ``records``: of all nodes that the job needs; ``spot_price_usd_per_h``, ``price_usd_per_h``: of
    all nodes together [USD/h].

    Raises PlanningError if not even a job that goes on demand at once meets the deadline.

    Returns
    -------
    FallbackRun
        One row a start, record by record.
    """
    nothing = np.zeros(0)
    unknown = Spells(up_start_s=nothing, up_length_s=nothing, end_s=1.0)
    policy = SpotPolicy.of(
        SpellHazards.of(unknown, records), job, deadline_s=deadline_s,
        spot_price_usd_per_h=spot_price_usd_per_h, price_usd_per_h=price_usd_per_h,
    )  # fmt: skip
    lasting = [one.tiled(int(np.ceil(deadline_s / one.end_s)) + 1) for one in records]
    spells, begin_s = joined(lasting, gap_s=deadline_s)
    share = (np.arange(starts) + 0.5) / starts
    length_s = np.array([record.end_s for record in records])
    start_s = (begin_s[:-1, None] + share * length_s[:, None]).ravel()
    return replay_policy(spells, job, start_s, deadline_s=deadline_s, choose=policy.choose)


def late_probability(
    whole_s: ArrayLike, restart_s: ArrayLike, deadline_s: float, log_sd: ArrayLike
) -> Column:
    """Return the probability that jobs miss a deadline that on-demand machines are bought for.

    ``whole_s``, ``restart_s``: expected work with its saves; from having nodes to the first useful
    step [s].

    Examples
    --------
    >>> late_probability(3600.0, 0.0, 3600.0, 0.2).item(), late_probability(3600, 60, 30, 0).item()
    (0.5, 1.0)
    """
    room = np.maximum(deadline_s - np.asarray(restart_s, float), 0.0) / np.asarray(whole_s, float)
    sd = np.asarray(log_sd, float)
    with np.errstate(all="ignore"):
        reach = np.log(room) / sd
    # Without an error the work either fits or does not.
    sure = np.where(room >= 1.0, np.inf, -np.inf)
    reach = np.where((sd > 0) & ~np.isnan(reach), reach, sure)
    tail = NormalDist()
    return np.asarray(np.vectorize(lambda z: 1.0 - tail.cdf(z), otypes=[float])(reach))
