"""Policies that order all jobs at every event and let the first that fit run.

``Shortest`` is exact in ties as the published simulator is: its list is sorted stably and keeps
its order. ``Attained`` and ``Gittins`` walk queues 0, 1, 2; in a queue the running jobs stand
before the waiting ones, each in the order in which they came to stand there.

Jobs in the system are columns of one array, sorted and picked together.

The two policies that never preempt: first in first out, and first that fits.

A pass over waiting jobs in order, skipping those that do not fit, takes at each step the
earliest whose size still fits: room only shrinks during a pass, so a skipped job never fits
later in it. Waiting jobs are therefore kept in one line per size, and a pass costs as many looks
as there are sizes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import NEVER
from advisor.planners.queueing.engine import (
    ROUNDING_S,
    Column,
    Engine,
    JobTable,
    Placement,
    QueueParameters,
    Room,
    SharedCluster,
)

# Rows of the array.
JOB, DEVICES, LEFT_S, DONE_S, WAITED_S, RUNS, QUEUE, SUBMIT = range(8)


class Ordered(Engine):
    """Sort, let run what fits in that order, preempt the rest."""

    def __init__(
        self, jobs: JobTable, cluster: SharedCluster, placement: Placement,
        parameters: QueueParameters, *, by_service: bool,
    ) -> None:  # fmt: skip
        super().__init__(jobs, cluster)
        self.parameters = parameters
        self.by_service = by_service
        self.per_node = cluster.devices_per_node if placement == "consolidated" else 0
        self.table: Column = np.empty((8, 0))
        self.event = NEVER
        self.last = 0.0

    def next_event(self) -> float:
        """Return the next end or, in queues, the next change of queue."""
        return self.event

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """Advance, remove what ended, add arrivals, decide who runs."""
        is_over = self._advance(now)
        if arrived:
            self.table = np.concatenate([self.table, self._columns(arrived)], axis=1)
        if self.table.shape[1] and not self._is_plain(now, arrived, is_over):
            self._sort()
            self._let_run(now)
            self._rest()
        self.event = self._next(now)

    def _is_plain(self, now: float, arrived: Sequence[int], is_over: bool) -> bool:
        """Handle an event that changes nothing for the others; say whether it was one."""
        return False

    def _sort(self) -> None:
        """Bring the table into the order of service."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Change the order after who runs is decided; by default nothing."""

    def _ordered(self, *keys: Column) -> None:
        """Sort the table by keys, the last one first; equals keep their order."""
        order = np.lexsort(keys) if len(keys) > 1 else np.argsort(keys[0], kind="stable")
        if np.any(order[1:] < order[:-1]):
            self.table = self.table[:, order]

    def _advance(self, now: float) -> bool:
        """Let time pass; say whether a job ended."""
        table, runs = self.table, self.table[RUNS]
        passed = now - self.last
        table[LEFT_S] -= passed * runs
        table[DONE_S] += passed * runs
        if self.parameters.starvation_ratio > 0:
            table[WAITED_S] += np.where((runs == 0) & (table[DONE_S] > 0), passed, 0.0)
        self.last = now
        if now < self.event - ROUNDING_S:  # an arrival before anything else happens
            return False
        is_over = (runs == 1) & (table[LEFT_S] <= ROUNDING_S)
        if not is_over.any():
            return False
        for job in table[JOB, is_over].astype(int):
            self.finish_s[job] = now
        self.table = table[:, ~is_over]
        return True

    def _columns(self, arrived: Sequence[int]) -> Column:
        new = np.zeros((8, len(arrived)))
        for row, job in enumerate(arrived):
            new[[JOB, DEVICES, LEFT_S, SUBMIT], row] = (
                job, self.devices[job], self.duration[job], self.now,
            )  # fmt: skip
        return new

    def _let_run(self, now: float) -> None:
        table = self.table
        runs = self._fitting(table[DEVICES])
        stopped, started = (table[RUNS] == 1) & ~runs, (table[RUNS] == 0) & runs
        for job in table[JOB, stopped].astype(int):
            self.preemptions[job] += 1
        for at in np.flatnonzero(started):
            job = int(table[JOB, at])
            if np.isnan(self.start_s[job]):
                self.start_s[job] = now
            else:
                table[LEFT_S, at] += self.parameters.preemption_s
        table[RUNS] = runs

    def _fitting(self, sizes: Column) -> NDArray[np.bool_]:
        """Return who runs when jobs of these sizes are placed in order, skipping misfits."""
        if self.per_node:
            return self._fitting_nodes(sizes)
        return fitting(sizes, self.capacity)

    def _fitting_nodes(self, sizes: Column) -> NDArray[np.bool_]:
        """Do the same on nodes, best fit first: a job that fits one node gets one node."""
        levels = [0] * self.per_node + [self.capacity // self.per_node]
        fits = np.zeros(sizes.size, bool)
        for at, size in enumerate(sizes.astype(int).tolist()):
            whole, part = divmod(size, self.per_node)
            if whole and part:  # more than a node: whole nodes, the last one partly used
                if levels[-1] > whole:
                    levels[-1] -= whole + 1
                    levels[self.per_node - part] += 1
                    fits[at] = True
            elif whole:
                if levels[-1] >= whole:
                    levels[-1] -= whole
                    levels[0] += whole
                    fits[at] = True
            else:
                level = next((k for k in range(part, self.per_node + 1) if levels[k]), None)
                if level is not None:
                    levels[level] -= 1
                    levels[level - part] += 1
                    fits[at] = True
        return fits

    def _next(self, now: float) -> float:
        left = self.table[LEFT_S, self.table[RUNS] == 1]
        return now + float(left.min()) if left.size else NEVER


def fitting(sizes: Column, free: float) -> NDArray[np.bool_]:
    """Return who gets devices when jobs of these sizes come in order, misfits skipped."""
    rest, fits = np.arange(sizes.size), np.full(sizes.size, sizes.sum() <= free)
    while not fits.all() and rest.size:
        used = np.cumsum(sizes[rest])
        count = int(np.searchsorted(used, free, side="right"))
        fits[rest[:count]] = True
        if count == rest.size:
            break
        free -= used[count - 1] if count else 0.0
        rest = rest[count + 1 :]
        rest = rest[sizes[rest] <= free]
    return fits


class Shortest(Ordered):
    """Least remaining time, or remaining service, first."""

    def _is_plain(self, now: float, arrived: Sequence[int], is_over: bool) -> bool:
        """Start arrivals that fit beside all that runs, or end a job nobody waited for.

        Those before an arrival in the order leave at least what is free in the end, and those
        after it fit beside it, so nobody else starts or stops. The order is kept up all the same:
        it settles later ties, as the sort is stable.
        """
        runs, sizes = self.table[RUNS], self.table[DEVICES]
        if self.per_node:
            return False
        new = runs.size - len(arrived)
        if is_over and np.any(runs[:new] == 0):
            return False
        if float(sizes @ runs) + sizes[new:].sum() > self.capacity:
            return False
        runs[new:] = 1.0
        for job in arrived:
            self.start_s[job] = now
        self._sort()
        return True

    def _sort(self) -> None:
        left, sizes = self.table[LEFT_S], self.table[DEVICES]
        self._ordered(left * sizes if self.by_service else left)


class Attained(Ordered):
    """2D-LAS: queues by what a job has had so far."""

    def _sort(self) -> None:
        self._ordered(self._moved_last(), self.table[QUEUE])

    def _moved_last(self) -> Column:
        """Demote and promote; return each job's place, behind all others for those moved.

        Those that move in one event line up in the order in which they entered the system.
        """
        count = self.table.shape[1]
        moved = self._demoted() | self._promoted()
        place = np.arange(count, dtype=float)
        place[moved] = count + self.table[JOB, moved]
        return place

    def _rest(self) -> None:
        if not self.table[RUNS].all():
            self._ordered(-self.table[RUNS], self.table[QUEUE])

    def _attained(self) -> Column:
        table = self.table
        attained: Column = table[DONE_S] * (table[DEVICES] if self.by_service else 1.0)
        return attained

    def _limits(self) -> Column:
        """Return the limit of each job's queue; inf in the last."""
        by_queue = np.array([*self.parameters.limits, np.inf])
        limits: Column = by_queue[self.table[QUEUE].astype(int)]
        return limits

    def _demoted(self) -> NDArray[np.bool_]:
        table, attained = self.table, self._attained()
        moved = np.zeros(table.shape[1], bool)
        while True:
            over = (table[RUNS] == 1) & (attained >= self._limits() - ROUNDING_S)
            table[QUEUE] += over
            moved |= over
            # The published simulator looks once an event, so a job falls one queue at a time.
            if self.parameters.as_published or not over.any():
                return moved

    def _promoted(self) -> NDArray[np.bool_]:
        table, ratio = self.table, self.parameters.starvation_ratio
        starved = np.zeros(table.shape[1], bool)
        if ratio > 0:
            starved = (table[RUNS] == 0) & (table[QUEUE] > 0) & (table[DONE_S] > 0)
            starved &= table[WAITED_S] >= table[DONE_S] * ratio - ROUNDING_S
            table[QUEUE, starved] = 0
            table[DONE_S, starved] = 0
            table[WAITED_S, starved] = 0
        return starved

    def _next(self, now: float) -> float:
        table, event = self.table, super()._next(now)
        runs, limits, ratio = table[RUNS] == 1, self._limits(), self.parameters.starvation_ratio
        if self.by_service and self.parameters.as_published:
            ahead = np.ceil((limits - table[DONE_S]) / table[DEVICES])
        elif self.by_service:
            ahead = limits / table[DEVICES] - table[DONE_S]
        else:
            ahead = limits - table[DONE_S]
        candidates = [event, now + float(np.min(ahead[runs], initial=np.inf))]
        if ratio > 0:
            waits = ~runs & (table[QUEUE] > 0) & (table[DONE_S] > 0)
            rest = (table[DONE_S] * ratio - table[WAITED_S])[waits]
            if self.parameters.as_published:  # who stops when overdue waits for another's event
                rest = rest[rest > 0]
            candidates.append(now + max(0.0, float(np.min(rest, initial=np.inf))))
        return min(candidates)


class Gittins(Attained):
    """2D-LAS whose queues are ordered by the Gittins index of the service so far."""

    @cached_property
    def _ranks(self) -> tuple[Column, Column]:
        """Return the service of past jobs, sorted, and the index below each and beyond all."""
        by = self.parameters
        samples = np.sort(np.asarray(by.service_samples, float))
        index = gittins_index(samples, by.quantum, as_published=by.as_published)
        return samples, np.append(index, 0.0)

    def _sort(self) -> None:
        place = self._moved_last()
        samples, index = self._ranks
        rank = index[np.searchsorted(samples, self._attained(), side="right")]
        self._ordered(place, self.table[SUBMIT], -rank, self.table[QUEUE])


def gittins_index(samples: Column, quantum: float, *, as_published: bool = False) -> Column:
    """Return the Gittins index just below each of the sorted samples.

    ``G(a) = P(S - a <= D | S > a) / E[min(S - a, D) | S > a]`` with D the quantum: how likely the
    next quantum of service ends the job, by what it costs. The published simulator leaves out the
    ``- a`` in the expectation, counts neither the last sample nor what lies on the quantum's end,
    and rounds.

    ``samples``: (n,); service of past jobs, sorted [device s]; ``quantum``: [device s].
    """
    first = np.searchsorted(samples, samples - 1.0, side="right")
    attained = samples - 1.0
    ends = np.searchsorted(samples, attained + quantum, side="right")
    if as_published:
        ends = np.where(attained + quantum > samples[-1] - 1.0, samples.size - 1, ends)
    alive = samples.size - first
    total = np.concatenate([[0.0], np.cumsum(samples)])
    spent = total[ends] - total[first]
    if not as_published:
        spent = spent - (ends - first) * attained
    chance = (ends - first) / alive
    cost = (spent + quantum * (samples.size - ends)) / alive
    if as_published:
        chance, cost = np.round(chance, 5) * 1e6, np.round(cost, 5)
    index: Column = np.round(chance / cost, 4) if as_published else chance / cost
    return index


class Waiting(Engine):
    """``fifo`` and ``fit-first``: a job that runs, runs to its end."""

    def __init__(
        self, jobs: JobTable, cluster: SharedCluster, placement: Placement, *, is_strict: bool
    ) -> None:
        super().__init__(jobs, cluster)
        self.is_strict = is_strict
        self.room = Room(cluster, placement)
        self.lines: dict[int, deque[tuple[int, int]]] = {}  # size -> (ticket, job)
        self.order: deque[int] = deque()  # strict: sizes in the order of their tickets
        self.tickets = 0
        self.ends: list[tuple[float, int]] = []
        self.places: dict[int, tuple[tuple[int, int], ...]] = {}

    def next_event(self) -> float:
        """Return when the next job ends."""
        return self.ends[0][0] if self.ends else NEVER

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """End jobs, queue arrivals, start what fits."""
        while self.ends and self.ends[0][0] <= now:
            _, job = heapq.heappop(self.ends)
            self.finish_s[job] = now
            self.room.give(self.devices[job], self.places.pop(job))
        for job in arrived:
            size = self.devices[job]
            self.lines.setdefault(size, deque()).append((self.tickets, job))
            self.order.append(size)
            self.tickets += 1
        while (fitting := self._next_size()) is not None:
            _, job = self.lines[fitting].popleft()
            self.places[job] = self.room.take(fitting)
            self.start_s[job] = now
            heapq.heappush(self.ends, (now + self.duration[job], job))

    def _next_size(self) -> int | None:
        """Return the size of the next job to start; None when nothing may."""
        if self.is_strict:
            if self.order and self.room.fits(self.order[0]):
                return self.order.popleft()
            return None
        heads = [
            (line[0][0], size)
            for size, line in self.lines.items()
            if line and self.room.fits(size)
        ]
        return min(heads)[1] if heads else None
