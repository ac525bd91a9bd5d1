"""What a job rents over time, interval by interval, and its exact replay.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
interval                   a stretch of time in which the job keeps the same machines. [s]
gap                        between two intervals: the job waits. [s]
``rate``            r      progress by that on all machines.
planned change             the job saves before it moves; else it goes back to its last checkpoint.
``restart_s``       R      standstill at the beginning of every interval. [s]
``checkpoint_s``    C      standstill of one save. [s]
=========================  =====================================================================

What an interval adds to the checkpoint depends on the interval alone: ``r (u - R - C)`` of a
length u before a planned change, ``r`` times the whole strides in ``u - R`` before an unplanned
one. So progress and bill are prefix sums over intervals, and each replay is one binary search, as
in ``planners.spot.availability``; here the machines may change from interval to interval.
``planners.spot.strategies`` walks through such changes one by one, and is the oracle of the
tests. The replay is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.planners.spot.availability import Column, Spells, SpotJob, first_reaching


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Which machines a job has from one time to the next, one row an interval.

    Attributes
    ----------
    begin_s, length_s : ndarray of shape (n,)
        In order, each positive, none beginning before the last ends. [s]
    rate : ndarray of shape (n,)
        Progress of a second of computing, relative to all machines; positive.
    is_planned : ndarray of bool, shape (n,)
        The interval ends with a change that the job chooses, so it saves first.
    spot_share, on_demand_share : ndarray of shape (n,)
        Rented share of the machines, by kind.
    """

    begin_s: Column
    length_s: Column
    rate: Column
    is_planned: NDArray[np.bool_]
    spot_share: Column
    on_demand_share: Column

    def kept_s(self, job: SpotJob, length_s: Column, at: NDArray[np.intp] | slice) -> Column:
        """Return what intervals of these lengths and of the kind of rows ``at`` keep [s].

        In seconds of ``SpotJob.attempt_s`` on all machines.
        """
        planned = np.maximum(length_s - job.restart_s - job.checkpoint_s, 0.0)
        kept: Column = self.rate[at] * np.where(self.is_planned[at], planned, job.kept_s(length_s))
        return kept

    def repeated(self, begin_s: Column, copies: Sequence[int]) -> tuple[Timeline, Column]:
        """Return each part of the timeline several times, and where the parts then begin [s].

        Parameters
        ----------
        begin_s : ndarray of shape (parts + 1,)
            Where each part begins and the last one ends; no interval is in two. [s]
        """
        edges = np.searchsorted(self.begin_s, begin_s, side="left")
        length = np.diff(begin_s)
        begins = np.concatenate([[0.0], np.cumsum(length * copies)])
        rows, shift = [], []
        for part, times in enumerate(copies):
            row = np.arange(edges[part], edges[part + 1])
            rows.append(np.tile(row, times))
            to = begins[part] - begin_s[part] + np.arange(times) * length[part]
            shift.append(np.repeat(to, row.size))
        at = np.concatenate(rows)
        return Timeline(
            begin_s=self.begin_s[at] + np.concatenate(shift),
            length_s=self.length_s[at],
            rate=self.rate[at],
            is_planned=self.is_planned[at],
            spot_share=self.spot_share[at],
            on_demand_share=self.on_demand_share[at],
        ), begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """One job started at several times; nan where its machines' record ends before the job does.

    Attributes
    ----------
    finish_s : ndarray of shape (n,)
        From submission. [s]
    spot_s, on_demand_s : ndarray of shape (n,)
        Rented time of each kind; half of the machines for two seconds count as one. [s]
    rented_s : ndarray of shape (n,)
        Time with at least one machine. [s]
    changes : ndarray of shape (n,)
        Times that the job went on on other machines.
    """

    finish_s: Column
    spot_s: Column
    on_demand_s: Column
    rented_s: Column
    changes: Column

    def billed_s(self, price_ratio: float) -> Column:
        """Return the rented time, a spot hour counted as ``price_ratio`` on-demand hours [s]."""
        paid: Column = self.on_demand_s + price_ratio * self.spot_s
        return paid


def replay_timeline(
    timeline: Timeline, job: SpotJob, start_s: Column, attempt_s: Column
) -> Rental:
    """Run jobs over a timeline, one a start.

    Parameters
    ----------
    job : SpotJob
        Its restart, saves and interval; its work is not used.
    start_s, attempt_s : ndarray of shape (n,)
        Submission, and how much is to be done, as ``SpotJob.attempt_s``. [s]
    """
    begin, length, rate = timeline.begin_s, timeline.length_s, timeline.rate
    if not begin.size:
        never = np.full(start_s.shape, np.nan)
        return Rental(
            finish_s=never, spot_s=never, on_demand_s=never, rented_s=never, changes=never
        )
    before = _summed(timeline.kept_s(job, length, slice(None)))
    reach = before[:-1] + rate * np.maximum(length - job.restart_s, 0.0)
    end = begin + length
    at = np.minimum(np.searchsorted(end, start_s, side="right"), begin.size - 1)
    first = np.maximum(begin[at], start_s)
    rest = np.maximum(end[at] - first, 0.0)
    # The interval of the submission is cut: shift the goal by what the whole one would have kept.
    goal = attempt_s - timeline.kept_s(job, rest, at) + before[at + 1]
    is_direct = rate[at] * (rest - job.restart_s) >= attempt_s - 1e-9
    last = np.where(is_direct, at, first_reaching(reach, goal, at + 1))
    is_done = last < begin.size
    last = np.minimum(last, begin.size - 1)
    missing = np.where(is_direct, attempt_s, goal - before[last])
    into = job.restart_s + missing / rate[last]
    finish = np.where(is_direct, first, begin[last]) + into - start_s

    def total(share: Column) -> Column:
        rented = _summed(share * length)
        earlier = share[at] * rest + rented[last] - rented[at + 1]
        spent = np.where(is_direct, 0.0, earlier) + share[last] * into
        return np.where(is_done, spent, np.nan)

    return Rental(
        finish_s=np.where(is_done, finish, np.nan),
        spot_s=total(timeline.spot_share),
        on_demand_s=total(timeline.on_demand_share),
        rented_s=total(np.ones(begin.size)),
        changes=np.where(is_done, (last - at).astype(float), np.nan),
    )


def settling_s(job: SpotJob) -> float:
    """Return how long better machines must have been there before a job moves to them [s].

    As long as a move to them and back costs at most: a save, two restarts and the stride that is
    lost. So a job on a timeline of such moves loses to them at most as much time as it spends
    waiting for better machines while it computes (the rule of renting skis).
    """
    stride = 0.0
    if not job.saves_on_notice:
        stride = job.checkpoint_interval_s
    return 2.0 * (job.restart_s + job.checkpoint_s) + stride


def joined(records: Sequence[Spells], gap_s: float) -> tuple[Spells, Column]:
    """Return records one after the other, ``gap_s`` without machines behind each.

    Returns
    -------
    begin_s : ndarray of shape (records + 1,)
        Where each record begins, and where the last gap ends. [s]
    """
    begin = np.concatenate([[0.0], np.cumsum([record.end_s + gap_s for record in records])])
    pairs = list(zip(records, begin[:-1], strict=True))
    return Spells(
        up_start_s=np.concatenate([record.up_start_s + at for record, at in pairs]),
        up_length_s=np.concatenate([record.up_length_s for record in records]),
        end_s=float(begin[-1]),
    ), begin


def _summed(values: Column) -> Column:
    return np.concatenate([[0.0], np.cumsum(values)])
