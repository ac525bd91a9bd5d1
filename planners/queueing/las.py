"""2D-LAS for large clusters: the same decisions as ``preemptive.Attained``, found faster.

At most events little changes, so nothing is sorted. Each queue keeps its running jobs in order and
its waiting jobs in one line per size; a pass over a queue costs one comparison while its running
jobs still fit, and as many looks as there are sizes for the waiting ones. Ends, changes of queue
and returns of the starved lie in one heap; an entry is stale when its job's ``version`` has moved
on.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

from advisor.planners.queueing.engine import NEVER, ROUNDING_S, Engine
from advisor.planners.queueing.nouns import JobTable, QueueParameters, SharedCluster

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
        for job in sorted(set(demoted)):
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
