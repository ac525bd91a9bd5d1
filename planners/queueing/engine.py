"""The engine behind every queue simulation, whatever its policy.

An engine holds what waits and what runs, and moves from event to event: an arrival, an end, or
what its policy adds. Symbols are in ``planners.queueing.nouns``.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence

from advisor.planners.queueing.nouns import JobTable, Placement, SharedCluster

ROUNDING_S = 1e-6  # times this close are one
NEVER = math.inf


class Engine:
    """Time, arrivals and what is recorded; a policy adds ``next_event`` and ``step``."""

    def __init__(self, jobs: JobTable, cluster: SharedCluster) -> None:
        self.submit: list[float] = jobs.submit_s.tolist()
        self.devices: list[int] = jobs.devices.tolist()
        self.duration: list[float] = jobs.duration_s.tolist()
        self.capacity = cluster.devices
        self.now = -NEVER
        self.cursor = 0  # next job to arrive
        count = len(self.submit)
        self.start_s = [math.nan] * count
        self.finish_s = [math.nan] * count
        self.preemptions = [0] * count

    def next_event(self) -> float:
        """Return the time of the next event that is no arrival."""
        raise NotImplementedError

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """Handle everything that happens at ``now``."""
        raise NotImplementedError

    def run(self, *, until_s: float = NEVER, until_job: int | None = None) -> None:
        """Run to the end, or up to a time (exclusive), or until one job has ended."""
        total = len(self.submit)
        while until_job is None or math.isnan(self.finish_s[until_job]):
            arrival = self.submit[self.cursor] if self.cursor < total else NEVER
            now = min(arrival, self.next_event())
            if now >= until_s or now == NEVER:
                return
            first = self.cursor
            while self.cursor < total and self.submit[self.cursor] == now:
                self.cursor += 1
            self.now = now
            self.step(now, range(first, self.cursor))

    def fork(self) -> Engine:
        """Return a copy that can run on by itself."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(twin, name, {key: copy.copy(inner) for key, inner in value.items()})
            elif isinstance(value, list) and value and isinstance(value[0], list | deque | dict):
                setattr(twin, name, [copy.deepcopy(inner) for inner in value])
            elif hasattr(value, "copy"):
                setattr(twin, name, value.copy())
        return twin

    def submit_now(self, now: float, devices: int, duration_s: float) -> int:
        """Add one job to the table and hand it over at ``now``; return its number."""
        number = len(self.submit)
        # Behind every arrival to come, so that the cursor never meets it.
        self.submit.append(NEVER)
        self.devices.append(devices)
        self.duration.append(duration_s)
        self.start_s.append(math.nan)
        self.finish_s.append(math.nan)
        self.preemptions.append(0)
        self.now = now
        self.step(now, [number])
        return number


class Room:
    """Free devices: counted only, or by node."""

    def __init__(self, cluster: SharedCluster, placement: Placement) -> None:
        self.free = cluster.devices
        self.per_node = cluster.devices_per_node if placement == "consolidated" else 0
        # Nodes by how many devices they have free; dictionaries keep their order.
        self.nodes: list[dict[int, None]] = [{} for _ in range(cluster.devices_per_node + 1)]
        self.nodes[-1] = dict.fromkeys(range(cluster.nodes))

    def fits(self, devices: int) -> bool:
        """Say whether a job of that size could start now."""
        if not self.per_node:
            return devices <= self.free
        if devices <= self.per_node:
            return any(self.nodes[devices:])
        return -(-devices // self.per_node) <= len(self.nodes[-1])

    def take(self, devices: int) -> tuple[tuple[int, int], ...]:
        """Occupy devices, best fit first; return (node, devices) pairs for ``give``."""
        self.free -= devices
        if not self.per_node:
            return ()
        if devices <= self.per_node:
            level = next(k for k in range(devices, self.per_node + 1) if self.nodes[k])
            node = next(iter(self.nodes[level]))
            self._move(node, level, level - devices)
            return ((node, devices),)
        taken = []
        for node in list(self.nodes[-1])[: -(-devices // self.per_node)]:
            part = min(self.per_node, devices)
            self._move(node, self.per_node, self.per_node - part)
            taken.append((node, part))
            devices -= part
        return tuple(taken)

    def give(self, devices: int, places: tuple[tuple[int, int], ...]) -> None:
        """Free what ``take`` occupied."""
        self.free += devices
        for node, part in places:
            level = next(k for k, there in enumerate(self.nodes) if node in there)
            self._move(node, level, level + part)

    def _move(self, node: int, level: int, to: int) -> None:
        del self.nodes[level][node]
        self.nodes[to][node] = None

    def copy(self) -> Room:
        """Return a copy of its own."""
        twin = copy.copy(self)
        twin.nodes = [there.copy() for there in self.nodes]
        return twin
