"""Records of when nodes were really there, and the exact replay of a job over them.

The bands of AWS Spot Advisor say how often spot instances are taken away: the hazard meant is
``hazard_of_band``.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
trace                      how many nodes were up, from one time to the next.
spell                      a stretch of time with all wanted nodes up, or not. [s]
``work_s``          W      useful computing. [s]
``restart_s``       R      at the beginning of every up spell, the first included. [s]
``interval_s``      tau    useful computing between two checkpoints. [s]
``checkpoint_s``    C      standstill of one save. [s]
``warning_s``       omega  what the provider gives between notice and removal. [s]
interval                   a stretch of time in which the job keeps the same machines. [s]
``rate``            r      progress by that on all machines.
=========================  =====================================================================

Removals are no Poisson process: up spells are heavy-tailed (median an eighth of the mean), and
removals of one pool come in bursts. So nothing here has a rate: jobs are replayed over spells.
A spell of length u carries a job ``floor((u - R) / (tau + C))`` checkpoints forward whatever came
before, so progress is a prefix sum over spells, and each replay one binary search. With a
checkpoint just in time (C <= omega) the spell keeps all of ``u - R - C``, and so does an interval
at rate r, ``r (u - R - C)``, where the job itself chooses to move at its end. Bills are sums too.

Sources: the SkyPilot and Bamboo availability traces (``datasets/availability``); the replay is
our own. Which nodes a spell lacks does not matter to a job that needs all of them; jobs that go on
with fewer are in ``planners.spot.strategies``, which walks through changes one by one and is the
oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import HOUR_S, check_not_negative, check_positive, refused, select

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTrace:
    """A record of how many nodes were there, from one time to the next.

    Raises PlanningError if times are out of order, or no node is ever there.
    """

    name: str
    provider: str = ""
    instance: str = ""
    nodes: int  # nodes that were asked for: the most that could be there
    start_s: Column  # (n,); when each count begins; the first at 0 [s]
    available: NDArray[np.int64]  # (n,); nodes up from then on
    end_s: float  # where the record ends [s]

    def __post_init__(self) -> None:
        times = np.append(self.start_s, self.end_s)
        if self.start_s.shape != self.available.shape or self.start_s.ndim != 1:
            raise ValueError(f"shapes {self.start_s.shape} and {self.available.shape}")
        check_not_negative(f"trace {self.name!r}", time_s=times)
        late = np.flatnonzero(np.diff(times) <= 0)
        if late.size or times[0] != 0:
            at = times[late[0] + 1] if late.size else times[0]
            raise refused(
                f"trace {self.name!r} does not go forward from 0: time {at:g} s",
                "order the rows by time, one row a time",
            )
        if self.nodes < 1 or not np.any(self.available > 0) or np.any(self.available < 0):
            raise refused(
                f"trace {self.name!r} has no node at any time",
                "leave it out: it holds nothing to learn from",
            )

    def spells(self, nodes: int) -> Spells:
        """Return when at least ``nodes`` nodes were up."""
        is_up = np.concatenate([[False], self.available >= nodes, [False]])
        edges = np.append(self.start_s, self.end_s)[np.flatnonzero(np.diff(is_up))]
        return Spells(
            up_start_s=edges[0::2], up_length_s=edges[1::2] - edges[0::2], end_s=self.end_s
        )

    def repeated(self, times: int) -> SpotTrace:
        """Return the record end to end ``times`` times."""
        shift = np.repeat(np.arange(times) * self.end_s, self.start_s.size)
        return replace(
            self, start_s=np.tile(self.start_s, times) + shift,
            available=np.tile(self.available, times), end_s=self.end_s * times,
        )  # fmt: skip

    def between(self, begin_s: float, end_s: float) -> SpotTrace:
        """Return the part of the record from ``begin_s`` to ``end_s``, its clock set to 0."""
        first = int(np.searchsorted(self.start_s, begin_s, side="right")) - 1
        last = int(np.searchsorted(self.start_s, end_s, side="left"))
        return replace(
            self, start_s=np.maximum(self.start_s[first:last] - begin_s, 0.0),
            available=self.available[first:last], end_s=end_s - begin_s,
        )  # fmt: skip

    def recent(self, days: float, nodes: int) -> SpotTrace:
        """Return the last days of the record, or all of it where they never had ``nodes`` up.

        Availability drifts: how a zone was a month ago says less about tomorrow than how it was
        last week.
        """
        begin = max(self.end_s - days * 24 * HOUR_S, 0.0)
        first = int(np.searchsorted(self.start_s, begin, side="right")) - 1
        if not np.any(self.available[first:] >= nodes):
            return self
        return self.between(begin, self.end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spells:
    """When a number of nodes was available together."""

    # up_start_s, up_length_s: (n,); up spells in order, not overlapping [s]
    up_start_s: Column
    up_length_s: Column
    end_s: float  # where the record ends; it begins at 0 [s]

    def __post_init__(self) -> None:
        check_positive("record of spells", end_s=self.end_s)
        ends = self.up_start_s + self.up_length_s
        if self.up_start_s.shape != self.up_length_s.shape or self.up_start_s.ndim != 1:
            raise ValueError(f"shapes {self.up_start_s.shape} and {self.up_length_s.shape}")
        slack = 1e-9 * self.end_s  # sums of lengths round
        gaps = np.diff(np.stack([self.up_start_s, ends], axis=1).ravel(), prepend=0.0)
        is_ordered = np.all(self.up_length_s > 0) and np.all(gaps >= -slack)
        if ends.size and not (is_ordered and ends[-1] <= self.end_s + slack):
            raise ValueError("up spells must be positive, in order and within the record")

    @property
    def availability(self) -> float:
        """Return the share of the time with all nodes up."""
        return float(self.up_length_s.sum() / self.end_s)

    def tiled(self, times: int) -> Spells:
        """Return the record repeated end to end ``times`` times.

        An up spell that meets itself at the seam stays two spells: a job there restarts once more
        than it had to.
        """
        shift = np.repeat(np.arange(times) * self.end_s, self.up_start_s.size)
        return Spells(
            up_start_s=np.tile(self.up_start_s, times) + shift,
            up_length_s=np.tile(self.up_length_s, times),
            end_s=self.end_s * times,
        )

    def scaled(self, *, up: float = 1.0, down: float = 1.0) -> Spells:
        """Return the record with every up and down spell longer by a factor."""
        edges = np.empty(2 * self.up_start_s.size + 1)
        edges[0:-1:2] = self.up_start_s
        edges[1::2] = self.up_start_s + self.up_length_s
        edges[-1] = self.end_s
        lengths = np.diff(edges, prepend=0.0)
        lengths[1::2] *= up
        lengths[0::2] *= down
        ends = np.cumsum(lengths)
        return Spells(
            up_start_s=ends[0:-1:2], up_length_s=lengths[1::2].copy(), end_s=float(ends[-1])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotJob:
    """A job on spot instances."""

    work_s: float  # useful computing [s]
    restart_s: float  # at the beginning of every up spell [s]
    # useful computing between two checkpoints; inf for none but just-in-time ones [s]
    checkpoint_interval_s: float
    checkpoint_s: float = 0.0  # standstill of one save [s]
    # notice before a removal, where the job saves on notice; None where it does not [s]
    warning_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(
            "spot job", work_s=self.work_s, checkpoint_interval_s=self.checkpoint_interval_s
        )
        check_not_negative(
            "spot job", work_s=self.work_s, restart_s=self.restart_s, warning_s=self.warning_s,
            checkpoint_s=self.checkpoint_s,
        )  # fmt: skip

    @property
    def saves_on_notice(self) -> bool:
        """Say whether the checkpoint is done before the node goes."""
        return self.warning_s is not None and self.checkpoint_s <= self.warning_s

    @property
    def wall_s(self) -> float:
        """Return the time of the job on nodes that stay: restart, work and its checkpoints [s]."""
        return self.restart_s + self.attempt_s

    @property
    def attempt_s(self) -> float:
        """Return work and its checkpoints, the final save included [s]."""
        return float(self.attempts_s(np.array([self.work_s]))[0])

    def attempts_s(self, work_s: Column) -> Column:
        """Return ``attempt_s`` of jobs that compute ``work_s`` instead [s]."""
        if self.saves_on_notice or np.isinf(self.checkpoint_interval_s):
            return work_s + self.checkpoint_s
        saves = np.ceil(work_s / self.checkpoint_interval_s - 1e-9)
        return work_s + saves * self.checkpoint_s

    def kept_s(self, up_s: Column) -> Column:
        """Return how much of ``attempt_s`` an up spell that ends too early keeps [s]."""
        able = np.maximum(up_s - self.restart_s, 0.0)
        if self.saves_on_notice:
            return np.maximum(able - self.checkpoint_s, 0.0)
        if np.isinf(self.checkpoint_interval_s):
            return np.zeros_like(able)
        stride = self.checkpoint_interval_s + self.checkpoint_s
        # A spell of exactly m strides keeps m of them: 1e-9 absorbs the rounding of sums.
        return np.floor(able / stride + 1e-9) * stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Which machines a job has from one time to the next, one row an interval."""

    # begin_s, length_s: (n,); in order, each positive, none beginning before the last ends [s]
    begin_s: Column
    length_s: Column
    rate: Column  # (n,); progress of a second of computing, relative to all machines; positive
    # (n,); the interval ends with a change that the job chooses, so it saves first
    is_planned: NDArray[np.bool_]
    # spot_share, on_demand_share: (n,); rented share of the machines, by kind
    spot_share: Column
    on_demand_share: Column

    @classmethod
    def of_spells(cls, spells: Spells) -> Timeline:
        """Return spot machines while all are there, none between."""
        ones = np.ones(spells.up_start_s.size)
        return cls(
            begin_s=spells.up_start_s, length_s=spells.up_length_s, rate=ones,
            is_planned=ones == 0, spot_share=ones, on_demand_share=0.0 * ones,
        )  # fmt: skip

    def kept_s(self, job: SpotJob, length_s: Column, at: NDArray[np.intp] | slice) -> Column:
        """Return what intervals of these lengths and of the kind of rows ``at`` keep [s].

        In seconds of ``SpotJob.attempt_s`` on all machines.
        """
        planned = np.maximum(length_s - job.restart_s - job.checkpoint_s, 0.0)
        kept: Column = self.rate[at] * np.where(self.is_planned[at], planned, job.kept_s(length_s))
        return kept

    def repeated(self, begin_s: Column, copies: Sequence[int]) -> tuple[Timeline, Column]:
        """Return each part of the timeline several times, and where the parts then begin [s].

        ``begin_s``: (parts + 1,); where each part begins and the last one ends; no interval is in
        two [s].
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
        begin = self.begin_s[at] + np.concatenate(shift)
        return replace(select(self, at), begin_s=begin), begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """One job started at several times; nan where its machines' record ends before it does."""

    finish_s: Column  # (n,); from submission [s]
    # spot_s, on_demand_s: (n,); rented time of each kind; half of the machines for two seconds
    # count as one [s]
    spot_s: Column
    on_demand_s: Column
    rented_s: Column  # (n,); time with at least one machine [s]
    changes: Column  # (n,); times that the job went on on other machines

    @classmethod
    def alike(cls, column: Column) -> Rental:
        """Return one column as all of them."""
        return cls(**{one.name: column for one in fields(cls)})

    def billed_s(self, price_ratio: float) -> Column:
        """Return the rented time, a spot hour counted as ``price_ratio`` on-demand hours [s]."""
        paid: Column = self.on_demand_s + price_ratio * self.spot_s
        return paid


def replay_timeline(
    timeline: Timeline, job: SpotJob, start_s: Column, attempt_s: Column
) -> Rental:
    """Run jobs over a timeline, one a start.

    ``job``: its restart, saves and interval; its work is not used; ``start_s``, ``attempt_s``:
    (n,); submission, and how much is to be done, as ``SpotJob.attempt_s`` [s].
    """
    begin, length, rate = timeline.begin_s, timeline.length_s, timeline.rate
    if not begin.size:
        never = np.full(start_s.shape, np.nan)
        return Rental.alike(never)
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
        if not share.any():
            return np.where(is_done, 0.0, np.nan)
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


def replay(spells: Spells, job: SpotJob, start_s: ArrayLike) -> Rental:
    """Run ``job`` over ``spells`` from each of ``start_s``, exactly.

    ``spells``: of all nodes that the job needs; ``start_s``: (n,); when the job is submitted; it
    waits for the next up spell [s].

    Raises PlanningError if a start is negative or no number.
    """
    check_not_negative("replay", start_s=start_s)
    start = np.atleast_1d(np.asarray(start_s, float))
    return replay_timeline(
        Timeline.of_spells(spells), job, start, np.full(start.shape, job.attempt_s)
    )


def first_reaching(reach: Column, needed: Column, begin: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the first index from ``begin`` on with ``reach >= needed``, else ``reach.size``.

    The running maximum of ``reach`` finds it at once, except where a spell before ``begin``
    reached as far (less than a checkpoint's worth is missing): those few walk on.
    """
    tolerance = 1e-9 * np.maximum(1.0, np.abs(needed))
    target = needed - tolerance
    found = np.searchsorted(np.maximum.accumulate(reach), target, side="left")
    walking = np.flatnonzero(found < begin)
    found[walking] = begin[walking]
    while walking.size:
        walking = walking[found[walking] < reach.size]
        walking = walking[reach[found[walking]] < target[walking]]
        found[walking] += 1
    return found


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


# Share of instances taken away in the last month, by band, as the band's middle (0.25 for the open
# one). The hazard is relative to the open band, where we assume that the traced GPU types of
# 2022-2023 stood: the advisor's history does not say.
BAND_FRACTIONS: Final = {"<5%": 0.025, "5-10%": 0.075, "10-15%": 0.125, "15-20%": 0.175,
                         ">20%": 0.25}  # fmt: skip
BANDS: Final = tuple(BAND_FRACTIONS)


def hazard_of_band(band: str) -> float:
    """Return the hazard of an interruption band relative to the open one (``">20%"``).

    A share f taken in a month is a rate ``-ln(1 - f)`` a month.

    Raises PlanningError if there is no such band.

    Examples
    --------
    >>> round(hazard_of_band("<5%"), 3)
    0.088
    """
    if band not in BAND_FRACTIONS:
        raise refused(f"no interruption band {band!r}", f"one of {', '.join(BANDS)}")
    return float(np.log1p(-BAND_FRACTIONS[band]) / np.log1p(-BAND_FRACTIONS[">20%"]))
