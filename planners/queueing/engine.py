"""What every queue simulation has in common, whatever its policy.

An engine holds what waits and what runs; its events are arrivals, ends, and what its policy adds.

Jobs on a shared cluster: what a simulation is given, and what comes out.

=================  ==============================================================================
here               meaning, unit
=================  ==============================================================================
submit, duration   of a job, on the devices that it asks for, all or nothing. [s]
completion (JCT)   finish - submit. [s]
delay              completion - duration: everything that is not computing. [s]
load (rho)         sum of devices x duration / (cluster devices x span of the submissions).
service            devices x computing time so far: what 2D-LAS goes by. [device s]
=================  ==============================================================================
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import NEVER, EventLoop, impossible, refused

Column = NDArray[np.float64]
Policy = Literal["fifo", "fit-first", "shortest", "shortest-gpu", "las", "las-2d", "gittins"]
Placement = Literal["count", "consolidated"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCluster:
    """Equal nodes that many jobs share."""

    nodes: int
    devices_per_node: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.devices_per_node < 1:
            raise refused(
                f"a cluster of {self.nodes} nodes with {self.devices_per_node} devices is empty",
                "give at least one of each",
            )

    @property
    def devices(self) -> int:
        """Return the devices of all nodes."""
        return self.nodes * self.devices_per_node

    def check_fits(self, devices: int) -> None:
        """Refuse a job of one's own that asks for more than there is.

        Raises PlanningError: with exit code 3.
        """
        if devices > self.devices:
            raise impossible(
                f"the job asks for {devices} devices, the cluster has {self.devices}",
                "rent, or ask for fewer devices",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """Jobs in the order of their submission."""

    submit_s: Column  # (n,); not decreasing [s]
    devices: NDArray[np.int64]  # (n,)
    duration_s: Column  # (n,); computing time on those devices [s]

    def __post_init__(self) -> None:
        if not self.submit_s.shape == self.devices.shape == self.duration_s.shape:
            raise ValueError("columns of different length")
        if not self.submit_s.size:
            raise refused("the trace has no job", "check the file's rows")
        is_timed = np.isfinite(self.submit_s)
        is_before = self.submit_s[1:] < self.submit_s[:-1]
        for name, is_bad in (
            ("without a time of submission", ~is_timed),
            ("submitted before the one ahead of it", np.append(False, is_before)),
            ("without devices", self.devices < 1),
            ("without a duration", ~((self.duration_s > 0) & np.isfinite(self.duration_s))),
        ):
            if is_bad.any():
                raise refused(
                    f"job {int(np.flatnonzero(is_bad)[0])} is {name}",
                    "order the jobs by submission and leave out those that never ran",
                )

    def load(self, devices: int) -> float:
        """Return the share of ``devices`` that the jobs keep busy over their submissions."""
        span = float(self.submit_s[-1] - self.submit_s[0])
        service = float((self.devices * self.duration_s).sum())
        return service / (span * devices) if span > 0 else float("inf")

    def check_fits(self, cluster: SharedCluster) -> None:
        """Refuse jobs that ask for more than the cluster has.

        Raises PlanningError: with exit code 3.
        """
        largest = int(self.devices.max())
        if largest > cluster.devices:
            raise impossible(
                f"job {int(self.devices.argmax())} asks for {largest} devices, the cluster has "
                f"{cluster.devices}",
                "give the cluster's real size, or leave such jobs out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueParameters:
    """The parameters that a policy goes by."""

    # service (``las-2d``, ``gittins``; device s) or time (``las``; s) at which a job leaves a
    # queue: the published simulator's 3,250 and 7,200
    limits: tuple[float, ...] = (3250.0, 7200.0)
    # a waiting job returns to the first queue when it waited so many times what it computed; 0 for
    # never
    starvation_ratio: float = 0.0
    preemption_s: float = 0.0  # what a job loses each time it resumes [s]
    service_samples: tuple[float, ...] = ()  # for ``gittins``: service of past jobs [device s]
    quantum: float = 3250.0  # for ``gittins`` [device s]
    # repeat two slips of the published simulator: the time of a demotion divides (limit - time) by
    # devices though the limit is device-seconds, and the Gittins index does not take the service
    # so far off the expected rest
    as_published: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOutcome:
    """When each job started and ended, in the order of the table."""

    # start_s, finish_s: (n,); first start, and end [s]
    start_s: Column
    finish_s: Column
    completion_s: Column  # (n,); [s]
    delay_s: Column  # (n,); completion less duration [s]
    preemptions: NDArray[np.int64]  # (n,)


ROUNDING_S = 1e-6  # times this close are one


class Engine(EventLoop):
    """Jobs of a table on the event simulator; a policy adds ``next_event`` and ``step``."""

    def __init__(self, jobs: JobTable, cluster: SharedCluster) -> None:
        super().__init__(jobs.submit_s.tolist())
        self.devices: list[int] = jobs.devices.tolist()
        self.duration: list[float] = jobs.duration_s.tolist()
        self.capacity = cluster.devices
        count = len(self.submit)
        self.start_s = [math.nan] * count
        self.finish_s = [math.nan] * count
        self.preemptions = [0] * count

    def run_to(self, job: int) -> None:
        """Run until one job has ended."""
        self.run(is_over=lambda: not math.isnan(self.finish_s[job]))

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
