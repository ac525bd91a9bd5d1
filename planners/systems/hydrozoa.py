"""Workers that join and leave: a schedule of worker counts beside the best fixed one (Hydrozoa).

===================  ============  =============================================================
here                 in papers     meaning, unit
===================  ============  =============================================================
``samples``          E_min         samples that a phase needs at a very small batch.
``noise_batch``      B_noise       gradient noise scale tr(S) / |G|^2. [samples]
``batch``            B             global batch. [samples]
needed samples       E             ``E_min (1 + B / B_noise)``.
``steps``            S             ``E / B``.
``spread_fraction``  sigma         of the workers' compute, over its mean.
step                 t             ``(t0 + t1 B / w) (1 + sigma E[max_w]) + sync(w)``. [s]
``resize_s``         C_resize      standstill when workers join or leave. [s]
``quantum_s``                      the provider bills rented time in whole multiples. [s]
===================  ============  =============================================================

The noise scale grows while a model trains, so a batch that wasted samples at the start is right at
the end, and with it more workers: that is what a schedule gains over a fixed count. For given
workers, time and bill are proportional, so the batch that is fastest is also the cheapest, and
only the workers of each phase remain to be chosen: a label-setting dynamic program over phases x
workers keeps every (time, bill) that no other one beats, and so gives the whole trade-off.

Sources: Hydrozoa (Guo et al., MLSys'22; abstract only, its formulas are not public here);
McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11 (needed samples and steps); the noise
scale is measured by ``gradient_noise``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import HOUR_S, check_not_negative, check_positive, impossible, refused
from advisor.planners.links import expected_maximum

Column = NDArray[np.float64]

# Labels kept a count of workers: with fewer (time, bill) pairs than this the program is exact.
MAXIMUM_LABELS = 400


def worker_paths(
    phase_s: Sequence[Column], workers: Sequence[int], resize_s: Column
) -> list[tuple[int, ...]]:
    """Return every choice of workers that no other beats in both time and worker-seconds.

    A label is what a partial schedule has taken: time [s] and bill [worker-seconds]. Labels that
    end on the same count of workers compete with each other only, since the next resize depends on
    the count; a label that another one beats in both is dropped. Phase by phase each label is
    continued on every count. That is label setting (Martins, EJOR 16(2), 1984) on a graph of
    phases x counts.

    ``phase_s``: (w,); time of each phase on each count of workers [s]; ``resize_s``: (w, w);
    standstill of a change from one count to another, paid on the larger of the two [s].

    Returns
    -------
    list of tuple of int
        Position in ``workers``, phase by phase.
    """
    counts = np.asarray(workers, float)
    pause = np.where(np.eye(counts.size, dtype=bool), 0.0, resize_s)
    idle = pause * np.maximum(counts[:, None], counts)
    first = phase_s[0]
    time, paid, at = first, first * counts, np.arange(counts.size)
    history = []
    for length in phase_s[1:]:
        parts = []
        for k, count in enumerate(counts):
            ends = time + pause[at, k] + length[k]
            bill = paid + idle[at, k] + length[k] * count
            kept = _surviving(ends, bill)
            parts.append((ends[kept], bill[kept], np.full(kept.size, k), kept))
        before = at
        time, paid, at, came = map(np.concatenate, zip(*parts, strict=True))
        history.append((before, came))
    last = _surviving(time, paid)
    picks = [at[last]]
    for counts_before, came in reversed(history):
        last = came[last]
        picks.append(counts_before[last])
    return [tuple(path) for path in np.stack(picks[::-1], axis=1).tolist()]


def _surviving(time: Column, paid: Column) -> NDArray[np.int64]:
    """Return the labels that no other beats in both, thinned evenly to ``MAXIMUM_LABELS``."""
    order = np.lexsort((paid, time))
    ranked = paid[order]
    best = np.minimum.accumulate(np.concatenate([[np.inf], ranked[:-1]]))
    kept = order[ranked < best]
    if kept.size > MAXIMUM_LABELS:
        kept = kept[np.round(np.linspace(0, kept.size - 1, MAXIMUM_LABELS)).astype(int)]
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of training with one noise scale, e.g. an epoch."""

    samples: float  # samples needed at the smallest batch [samples]
    # none where the profile did not measure it: then the batch stays as it is [samples]
    noise_batch: float | None = None

    def __post_init__(self) -> None:
        if not self.samples > 0 or not (self.noise_batch is None or self.noise_batch > 0):
            raise refused(
                f"a phase needs samples and a positive noise scale, got {self}",
                "leave the noise scale out where it was not measured",
            )

    def needed_samples(self, batch: Column) -> Column:
        """Return the samples that the phase takes at each batch."""
        if self.noise_batch is None:
            return np.full(np.shape(batch), self.samples)
        needed: Column = self.samples * (1.0 + batch / self.noise_batch)
        return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerScaling:
    """The step on each count of workers."""

    workers: tuple[int, ...]  # counts that the job can run on, ascending
    step_s: float  # part of a step that does not depend on the batch [s]
    sample_s: float  # time a sample on one worker [s]
    sync_s: tuple[float, ...]  # exposed communication of a step, by count of workers [s]
    # standard deviation over workers of what they compute in a step, over its mean: all wait for
    # the slowest, the longer the more they are
    spread_fraction: float = 0.0
    # how the job lies on each count, in any words: a change of it is a resize, too, in which the
    # state is written and read again as the other layout needs it. Empty where it never changes
    layouts: tuple[str, ...] = ()
    relayout_s: float = 0.0  # standstill beside ``resize_s`` where the layout changes [s]
    # what the whole job takes besides its steps, over them, by count of workers: validation,
    # saves, failures, stalls. Empty for steps alone
    besides: tuple[float, ...] = ()
    # the step of some batches on each count, where it was estimated: inf where none runs [s]
    told_s: Mapping[float, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, told in (("layouts", self.layouts), ("besides", self.besides)):
            if told and len(told) != len(self.workers):
                raise ValueError(f"{len(self.workers)} counts for {len(told)} {name}")
        if not self.workers or len(self.workers) != len(self.sync_s):
            raise ValueError(f"{len(self.workers)} counts for {len(self.sync_s)} sync times")
        if not (np.all(np.diff((0, *self.workers)) > 0) and self.sample_s > 0):
            raise refused(
                f"worker counts must ascend from 1 and samples take time, got {self}",
                "give counts such as 1, 2, 4, 8 and a positive time a sample",
            )

        check_not_negative("workers", step_s=self.step_s, sync_s=self.sync_s, besides=self.besides)
        check_not_negative(
            "workers", sample_s=self.sample_s, spread_fraction=self.spread_fraction,
            relayout_s=self.relayout_s,
        )  # fmt: skip

    def resizes_s(self, resize_s: float) -> Column:
        """Return the standstill of each change of counts, shape (workers, workers) [s]."""
        names = np.asarray(self.layouts or [""] * len(self.workers))
        pause: Column = resize_s + self.relayout_s * (names[:, None] != names)
        return pause

    def steps_s(self, batch: Column) -> Column:
        """Return the step time, shape (batches, workers): as told, else by the law [s]."""
        counts = np.asarray(self.workers)
        waiting = 1.0 + self.spread_fraction * expected_maximum(counts)
        computing = self.step_s + self.sample_s * batch[:, None] / counts
        steps: Column = computing * waiting + np.asarray(self.sync_s)
        for at, size in enumerate(batch.tolist()):
            steps[at] = self.told_s.get(size, steps[at])
        return steps

    def whole_s(self, batch: Column) -> Column:
        """Return the same with what the whole job takes besides [s]."""
        whole: Column = self.steps_s(batch) * (1.0 + np.asarray(self.besides or 0.0))
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """The bill of one worker."""

    price_usd_per_h: float
    quantum_s: float = 1.0  # rented time is rounded up to whole multiples [s]
    minimum_s: float = 0.0  # least billed time of a rental [s]
    startup_s: float = 0.0  # billed before a worker can compute [s]
    # of what stands beside the workers for as long as the job takes: a coordinator
    beside_usd_per_h: float = 0.0

    def __post_init__(self) -> None:
        names = ("price_usd_per_h", "minimum_s", "startup_s", "beside_usd_per_h")
        check_not_negative("billing", **{name: getattr(self, name) for name in names})
        check_positive("billing", quantum_s=self.quantum_s)

    def rental_s(self, rented_s: Column) -> Column:
        """Return the billed time of rentals [s]."""
        begun = np.ceil((rented_s + self.startup_s) / self.quantum_s - 1e-9) * self.quantum_s
        return np.maximum(begun, self.minimum_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Workers and batch of each phase, and what they come to.

    ``cost_usd`` is the bill with quanta, minima and start-ups; ``time_s`` includes
    the start-up of the first and the resizes.
    """

    workers: tuple[int, ...]
    batches: tuple[float, ...]
    phase_s: tuple[float, ...]
    time_s: float
    cost_usd: float

    @classmethod
    def of(
        cls, workers: Sequence[int], batches: Sequence[float], phase_s: Sequence[float],
        billing: Billing,
    ) -> Schedule:  # fmt: skip
        """Return workers and batches with their time and bill."""
        return cls(
            workers=tuple(workers), batches=tuple(batches), phase_s=tuple(phase_s),
            time_s=billing.startup_s + float(sum(phase_s)),
            cost_usd=billed_cost_usd(workers, phase_s, billing),
        )  # fmt: skip

    @property
    def resizes(self) -> int:
        """Return how often the count changes."""
        return int(np.count_nonzero(np.diff(self.workers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPlan:
    """The best fixed count and the best schedule under the same limit.

    Both take the best batch in every phase, so that what growing the batch saves is not credited
    to workers that come and go; ``constant`` keeps one batch, too. ``front`` holds every schedule
    that no other beats in both time and bill.
    """

    fixed: Schedule | None
    elastic: Schedule
    front: tuple[Schedule, ...] = field(default=())
    constant: Schedule | None = None

    @property
    def saving_fraction(self) -> float | None:
        """Return the share of the fixed bill that the schedule saves; None without a fixed one."""
        return None if self.fixed is None else 1.0 - self.elastic.cost_usd / self.fixed.cost_usd

    @property
    def batch_saving_fraction(self) -> float | None:
        """Return the share of the bill that each phase's best batch saves on fixed workers."""
        if self.fixed is None or self.constant is None:
            return None
        return 1.0 - self.fixed.cost_usd / self.constant.cost_usd


def elastic_plan(
    phases: Sequence[Phase], scaling: WorkerScaling, billing: Billing, *, batch: float,
    batches: Sequence[float] = (), resize_s: float = 60.0, deadline_s: float | None = None,
    budget_usd: float | None = None,
) -> ElasticPlan:  # fmt: skip
    """Choose workers (and batch) for each phase, and the best fixed count beside it.

    Raises PlanningError if nothing meets the limit (exit code 3), or a value makes no sense.

    Parameters
    ----------
    batch : float
        The job's own global batch. [samples]
    batches : sequence of float
        Batches that phases with a measured noise scale may take instead. [samples]
    resize_s : float
        Standstill when the count changes; 60 s is of the order of Parcae's measured 29-95 s. [s]
    deadline_s : float, optional
        Cheapest schedule within it; without a limit the cheapest of all. [s]
    budget_usd : float, optional
        Fastest schedule within it. [USD]
    """
    if not phases or not batch > 0 or resize_s < 0:
        raise refused(
            f"{len(phases)} phases, batch {batch:g} and resize time {resize_s:g} s make no plan",
            "give at least one phase and positive sizes",
        )
    options = np.array(sorted({batch, *batches}), float)
    tables = [_phase_table(phase, scaling, batch, options) for phase in phases]
    constant = _constant(phases, scaling, billing, options)
    pauses = scaling.resizes_s(resize_s)
    fixed = constant + [
        _schedule(tables, (k,) * len(phases), scaling, billing, pauses)
        for k in range(len(scaling.workers))
    ]
    elastic = [
        _schedule(tables, picks, scaling, billing, pauses)
        for picks in worker_paths([time for time, _ in tables], scaling.workers, pauses)
    ]
    # Quanta and start-ups can make a fixed count cheaper than what it approximates.
    constant, fixed, elastic = (
        [one for one in found if np.isfinite(one.time_s)] for found in (constant, fixed, elastic)
    )
    front = _undominated(elastic + fixed)
    best = _within(front, deadline_s, budget_usd)
    if best is None:
        raise impossible(
            _why_not(front, deadline_s, budget_usd), "raise the limit, or allow more workers"
        )
    return ElasticPlan(
        fixed=_within(fixed, deadline_s, budget_usd), elastic=best, front=tuple(front),
        constant=_within(constant, deadline_s, budget_usd),
    )  # fmt: skip


def billed_cost_usd(workers: Sequence[int], phase_s: Sequence[float], billing: Billing) -> float:
    """Return the bill of a schedule: the k-th worker is rented while at least k work [USD].

    Each uninterrupted rental of each worker is rounded up by itself.
    """
    counts, lengths = np.asarray(workers), np.asarray(phase_s, float)
    clock, total, below = np.concatenate([[0.0], np.cumsum(lengths)]), 0.0, 0
    for level in np.unique(counts):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], counts >= level, [False]])))
        rentals = billing.rental_s(clock[edges[1::2]] - clock[edges[0::2]])
        total += float(rentals.sum()) * int(level - below)
        below = level
    beside = float(billing.rental_s(clock[-1:])[0]) * billing.beside_usd_per_h
    return (total * billing.price_usd_per_h + beside) / HOUR_S


def _phase_table(
    phase: Phase, scaling: WorkerScaling, batch: float, options: Column
) -> tuple[Column, Column]:
    """Return the time and the best batch of a phase on each count of workers, shape (w,)."""
    allowed = options if phase.noise_batch is not None else np.array([batch])
    steps = phase.needed_samples(allowed) / allowed
    time = steps[:, None] * scaling.whole_s(allowed)
    best = time.argmin(axis=0)
    return np.take_along_axis(time, best[None], axis=0)[0], allowed[best]


def _constant(
    phases: Sequence[Phase], scaling: WorkerScaling, billing: Billing, options: Column
) -> list[Schedule]:
    """Return every constant count with every constant batch."""
    steps = np.array([phase.needed_samples(options) / options for phase in phases])
    if all(phase.noise_batch is None for phase in phases):
        steps, options = steps[:, :1], options[:1]
    schedules = []
    for at, size in enumerate(options):
        times = steps[:, at, None] * scaling.whole_s(options[[at]])
        for column, count in enumerate(scaling.workers):
            workers, sizes = (count,) * len(phases), (float(size),) * len(phases)
            schedules.append(Schedule.of(workers, sizes, times[:, column].tolist(), billing))
    return schedules


def _schedule(
    tables: Sequence[tuple[Column, Column]], picks: tuple[int, ...], scaling: WorkerScaling,
    billing: Billing, pauses: Column,
) -> Schedule:  # fmt: skip
    workers = tuple(scaling.workers[k] for k in picks)
    lengths = [float(time[k]) for (time, _), k in zip(tables, picks, strict=True)]
    # A resize is paid on the larger of the two counts: by the phase that has it.
    for at in range(1, len(picks)):
        if picks[at] != picks[at - 1]:
            pause = float(pauses[picks[at - 1], picks[at]])
            lengths[at if workers[at] > workers[at - 1] else at - 1] += pause
    batches = [float(best[k]) for (_, best), k in zip(tables, picks, strict=True)]
    return Schedule.of(workers, batches, lengths, billing)


def _undominated(schedules: list[Schedule]) -> list[Schedule]:
    kept: list[Schedule] = []
    for schedule in sorted(schedules, key=lambda s: (s.time_s, s.cost_usd)):
        if not kept or schedule.cost_usd < kept[-1].cost_usd:
            kept.append(schedule)
    return kept


def _within(
    schedules: Sequence[Schedule], deadline_s: float | None, budget_usd: float | None
) -> Schedule | None:
    """Return the fastest within a budget, else the cheapest within the deadline."""
    fitting = [
        s
        for s in schedules
        if (deadline_s is None or s.time_s <= deadline_s)
        and (budget_usd is None or s.cost_usd <= budget_usd)
    ]
    if budget_usd is not None and deadline_s is None:
        return min(fitting, key=lambda s: (s.time_s, s.cost_usd), default=None)
    return min(fitting, key=lambda s: (s.cost_usd, s.time_s), default=None)


def _why_not(front: Sequence[Schedule], deadline_s: float | None, budget_usd: float | None) -> str:
    fastest, cheapest = front[0], front[-1]
    limits = []
    if deadline_s is not None:
        limits.append(f"{deadline_s / HOUR_S:.2f} h")
    if budget_usd is not None:
        limits.append(f"{budget_usd:.2f} USD")
    return (
        f"no schedule within {' and '.join(limits)}: the fastest takes "
        f"{fastest.time_s / HOUR_S:.2f} h for {fastest.cost_usd:.2f} USD, the cheapest "
        f"{cheapest.time_s / HOUR_S:.2f} h for {cheapest.cost_usd:.2f} USD"
    )
