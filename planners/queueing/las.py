"""2D-LAS for large clusters: the same decisions as ``preemptive.Attained``, found faster.

Further parts: 2D-LAS by Gittins index for large clusters: decides as ``preemptive.Gittins``,
faster.

At most events little changes, so nothing is sorted. Each queue keeps its running jobs in order and
its waiting jobs in one line per size; a pass over a queue costs one comparison while its running
jobs still fit, and as many looks as there are sizes for the waiting ones. Ends, changes of queue
and returns of the starved lie in one heap; an entry is stale when its job's ``version`` has moved
on.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import NEVER
from advisor.planners.queueing.engine import (
    ROUNDING_S,
    Column,
    Engine,
    JobTable,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.preemptive import fitting, gittins_index

Event = Literal["end", "demote", "promote"]


class Lines(Engine):
    """Queues of running lists and waiting lines."""

    def __init__(
        self,
        jobs: JobTable,
        cluster: SharedCluster,
        parameters: QueueParameters,
        *,
        by_service: bool,
    ) -> None:
        super().__init__(jobs, cluster)
        self.parameters = parameters
        self.by_service = by_service
        queues = len(parameters.limits) + 1
        self.running: list[list[int]] = [[] for _ in range(queues)]
        self.used = [0] * queues  # devices of each queue's running jobs
        self.waiting: list[dict[int, deque[tuple[int, int]]]] = [{} for _ in range(queues)]
        self.front, self.back = 0, 0  # tickets given out at either end of the waiting lines
        self.events: list[tuple[float, int, Event, int]] = []
        self.version: dict[int, int] = {}
        self.queue: dict[int, int] = {}
        self.since: dict[int, float] = {}  # running or waiting since
        self.left: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.waited: dict[int, float] = {}

    def next_event(self) -> float:
        """Return the time of the next entry that still holds."""
        while self.events and self.events[0][3] != self.version.get(self.events[0][1]):
            heapq.heappop(self.events)
        return self.events[0][0] if self.events else NEVER

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """End, demote and promote jobs, queue arrivals, walk the queues."""
        demoted: list[int] = []
        promoted: list[int] = []
        while self.next_event() <= now + ROUNDING_S:
            _, job, kind, _ = heapq.heappop(self.events)
            if kind == "end":
                self._end(job, now)
            else:
                (demoted if kind == "demote" else promoted).append(job)
        for job in arrived:
            self.queue[job] = 0
            self.left[job], self.done[job] = self.duration[job], 0.0
            self.waited[job], self.since[job], self.version[job] = 0.0, now, 0
            self._wait(job, is_front=False)
        late: list[list[int]] = [[] for _ in self.running]
        # By rounding a job can reach its limit and its end at once: it has ended.
        for job in sorted(set(demoted) & self.queue.keys()):
            late[self._demote(job, now)].append(job)
        for job in sorted(promoted):
            self._promote(job, now)
        self._walk(now, late)

    def _walk(self, now: float, late: list[list[int]]) -> None:
        """Give devices queue by queue: running jobs, waiting ones, those just demoted."""
        free = self.capacity
        for queue, jobs in enumerate(self.running):
            kept, stopped = self._kept(jobs, self.used[queue], free)
            free -= sum(self.devices[job] for job in kept) if stopped else self.used[queue]
            started, free = self._start_waiting(queue, free, now)
            moved, put_off = self._kept(late[queue], NEVER, free)
            free -= sum(self.devices[job] for job in moved)
            if stopped or started or moved or put_off:
                self.running[queue] = kept + started + moved
                self.used[queue] = sum(self.devices[job] for job in self.running[queue])
                for job in reversed(stopped):
                    self._stop(job, now, is_front=True)
                for job in put_off:
                    self._stop(job, now, is_front=False)

    def _kept(self, jobs: list[int], used: float, free: int) -> tuple[list[int], list[int]]:
        """Split running jobs into those that still fit in order, and the rest."""
        if used <= free:
            return jobs, []
        kept, stopped = [], []
        for job in jobs:
            if self.devices[job] <= free:
                free -= self.devices[job]
                kept.append(job)
            else:
                stopped.append(job)
        return kept, stopped

    def _start_waiting(self, queue: int, free: int, now: float) -> tuple[list[int], int]:
        started = []
        lines = self.waiting[queue]
        while free:
            heads = [(line[0][0], size) for size, line in lines.items() if line and size <= free]
            if not heads:
                break
            size = min(heads)[1]
            job = lines[size].popleft()[1]
            free -= size
            self._start(job, now)
            started.append(job)
        return started, free

    def _start(self, job: int, now: float) -> None:
        if self.done[job] > 0:
            self.waited[job] += now - self.since[job]
        if math.isnan(self.start_s[job]):
            self.start_s[job] = now
        else:
            self.left[job] += self.parameters.preemption_s
        self.since[job] = now
        self._plan(job, now)

    def _plan(self, job: int, now: float) -> None:
        """Enter a running job's end and its change of queue."""
        self.version[job] += 1
        version = self.version[job]
        heapq.heappush(self.events, (now + self.left[job], job, "end", version))
        ahead = self._to_limit(job)
        if ahead < self.left[job]:
            heapq.heappush(self.events, (now + ahead, job, "demote", version))

    def _to_limit(self, job: int) -> float:
        """Return the computing time until a job leaves its queue [s]."""
        queue = self.queue[job]
        if queue == len(self.parameters.limits):
            return NEVER
        limit = self.parameters.limits[queue]
        return (limit / self.devices[job] if self.by_service else limit) - self.done[job]

    def _progress(self, job: int, now: float) -> None:
        passed = now - self.since[job]
        self.left[job] -= passed
        self.done[job] += passed
        self.since[job] = now

    def _stop(self, job: int, now: float, *, is_front: bool) -> None:
        self._progress(job, now)
        self.preemptions[job] += 1
        self._wait(job, is_front=is_front)

    def _wait(self, job: int, *, is_front: bool) -> None:
        """Put a job into its waiting line; the starved have a time to return."""
        line = self.waiting[self.queue[job]].setdefault(self.devices[job], deque())
        if is_front:
            self.front -= 1
            line.appendleft((self.front, job))
        else:
            self.back += 1
            line.append((self.back, job))
        self._plan_return(job)

    def _plan_return(self, job: int) -> None:
        """Make a job's entries stale; the starved get one for their return."""
        self.version[job] += 1
        ratio = self.parameters.starvation_ratio
        if ratio > 0 and self.queue[job] > 0:
            returns = self.since[job] + max(self.done[job] * ratio - self.waited[job], 0.0)
            heapq.heappush(self.events, (returns, job, "promote", self.version[job]))

    def _demote(self, job: int, now: float) -> int:
        """Take a running job out of its queue; return the queue that it falls to."""
        self._progress(job, now)
        self._leave(job)
        while self._to_limit(job) <= ROUNDING_S:
            self.queue[job] += 1
        self._plan(job, now)
        return self.queue[job]

    def _promote(self, job: int, now: float) -> None:
        line = self.waiting[self.queue[job]][self.devices[job]]
        line.remove(next(entry for entry in line if entry[1] == job))
        self._back_to_first(job, now)

    def _back_to_first(self, job: int, now: float) -> None:
        self.queue[job] = 0
        self.done[job] = self.waited[job] = 0.0
        self.since[job] = now
        self._wait(job, is_front=False)

    def _leave(self, job: int) -> None:
        self.running[self.queue[job]].remove(job)
        self.used[self.queue[job]] -= self.devices[job]

    def _end(self, job: int, now: float) -> None:
        self._leave(job)
        self.finish_s[job] = now
        self.version[job] = -1
        for record in (self.queue, self.left, self.done, self.waited, self.since):
            del record[job]


# 2D-LAS by Gittins index for large clusters: decides as ``preemptive.Gittins``, faster.
#
# A job's place is its queue, then the ordinal of its index, then when it came. Of a waiting job
# none of these changes, so each queue keeps one heap of them per size. Those of the running jobs
# change all the time, and are looked at only while somebody waits: where room is left for everyone
# an event costs a few entries of a heap, as in ``las``.
#
# A pass in order of place that skips what does not fit takes the running jobs in stretches, one
# from each waiting job to the next: a stretch is a cumulative sum.


Heap = list[tuple[float, int]]  # (place within the queue, job)
# Rows of a queue's running jobs; BASE_S is when the job would have begun, had it run ever since.
JOB, DEVICES, CAME, BASE_S = range(4)
# Fewer than 2^32 jobs and 2^21 ordinals: places are exact in 53 bits.
CAME_BEFORE = 2.0**32


class GittinsLines(Lines):
    """Queues of running jobs as columns, and of heaps of waiting ones by size."""

    def __init__(
        self, jobs: JobTable, cluster: SharedCluster, parameters: QueueParameters
    ) -> None:
        super().__init__(jobs, cluster, parameters, by_service=True)
        self.samples = np.sort(np.asarray(parameters.service_samples, float))
        index = np.append(gittins_index(self.samples, parameters.quantum), 0.0)
        # Whole numbers that sort as the index does, best first.
        self.ordinal = np.unique(-index, return_inverse=True)[1].astype(float)
        # The same for one job at a time, which numpy is slow for.
        self.sample_list, self.ordinal_list = self.samples.tolist(), self.ordinal.tolist()
        self.tables: list[Column] = [np.empty((4, 0)) for _ in self.running]
        self.heaps: list[dict[int, Heap]] = [{} for _ in self.running]
        self.came: dict[int, int] = {}  # job -> how many came before it
        self.arrivals = 0
        self.waiters = 0

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """Give the arrivals their numbers, then do as 2D-LAS does."""
        for job in arrived:
            self.came[job] = self.arrivals
            self.arrivals += 1
        super().step(now, arrived)

    def _places(self, came: Column, attained: Column) -> Column:
        """Return the places within a queue: ordinal of the index, then order of arrival."""
        at = np.searchsorted(self.samples, attained, side="right")
        places: Column = self.ordinal[at] * CAME_BEFORE + came
        return places

    def _wait(self, job: int, *, is_front: bool) -> None:
        size = self.devices[job]
        at = bisect.bisect_right(self.sample_list, self.done[job] * size)
        place = self.ordinal_list[at] * CAME_BEFORE + self.came[job]
        heapq.heappush(self.heaps[self.queue[job]].setdefault(size, []), (place, job))
        self.waiters += 1
        self._plan_return(job)

    def _promote(self, job: int, now: float) -> None:
        line = self.heaps[self.queue[job]][self.devices[job]]
        line.remove(next(entry for entry in line if entry[1] == job))
        heapq.heapify(line)
        self.waiters -= 1
        self._back_to_first(job, now)

    def _leave(self, job: int) -> None:
        queue = self.queue[job]
        table = self.tables[queue]
        self.tables[queue] = table[:, table[JOB] != job]
        self.used[queue] -= self.devices[job]

    def _join(self, queue: int, jobs: Sequence[int]) -> None:
        """Add jobs that run now to a queue."""
        new = [(j, self.devices[j], self.came[j], self.since[j] - self.done[j]) for j in jobs]
        self.tables[queue] = np.concatenate([self.tables[queue], np.array(new, float).T], axis=1)
        self.used[queue] += sum(self.devices[job] for job in jobs)

    def _walk(self, now: float, late: list[list[int]]) -> None:
        for queue, moved in enumerate(late):
            if moved:
                self._join(queue, moved)
        free = self.capacity
        for queue in range(len(self.tables)) if self.waiters else ():
            if any(self.heaps[queue].values()) or self.used[queue] > free:
                self._pass(queue, free, now)
            free -= self.used[queue]

    def _pass(self, queue: int, free: int, now: float) -> None:
        """Decide who of one queue runs on ``free`` devices."""
        table = self.tables[queue]
        places = self._places(table[CAME], (now - table[BASE_S]) * table[DEVICES])
        if self.used[queue] > free:
            rest = np.arange(places.size)
        else:
            head = self._head(queue, free)
            if head is None:
                return
            # Those before the first waiting job that might run keep their devices.
            rest = np.flatnonzero(places > head[0])
            if not rest.size and not self._head(queue, free - self.used[queue]):
                return
        rest = rest[np.argsort(places[rest])]
        sizes = table[DEVICES, rest]
        free -= self.used[queue] - int(sizes.sum())
        runs, started = self._chosen(queue, places[rest], sizes, free, now)
        if not runs.all():
            stopped = table[JOB, rest[~runs]].astype(int).tolist()
            stays = np.ones(places.size, bool)
            stays[rest[~runs]] = False
            self.tables[queue] = table[:, stays]
            self.used[queue] -= int(sizes[~runs].sum())
            for job in stopped:
                self._stop(job, now, is_front=False)
        if started:
            self._join(queue, started)

    def _chosen(
        self, queue: int, places: Column, sizes: Column, free: int, now: float
    ) -> tuple[NDArray[np.bool_], list[int]]:
        """Walk running and waiting jobs in order; return who goes on, and who starts."""
        runs, at = np.zeros(sizes.size, bool), 0
        started: list[int] = []
        while True:
            head = self._head(queue, free)
            to = sizes.size if head is None else int(np.searchsorted(places, head[0]))
            if to > at:
                runs[at:to] = fitting(sizes[at:to], free)
                free -= int(sizes[at:to][runs[at:to]].sum())
                at = to
                # What fitted before the stretch may not fit behind it.
            elif head is None:
                return runs, started
            else:
                job = heapq.heappop(self.heaps[queue][head[1]])[1]
                self.waiters -= 1
                free -= head[1]
                self._start(job, now)
                started.append(job)

    def _head(self, queue: int, free: int) -> tuple[float, int] | None:
        """Return place and size of the first waiting job that fits."""
        heads = [(line[0][0], size) for size, line in self.heaps[queue].items()
                 if line and size <= free]  # fmt: skip
        return min(heads, default=None)
