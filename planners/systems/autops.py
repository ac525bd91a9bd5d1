"""Gradients of several jobs added up on shared aggregators, tensor by tensor.

=====================  =========================================================================
here                   meaning, unit
=====================  =========================================================================
``step_s``        T    of a job, its aggregation aside. [s]
``work_s``        a    of a core to add up one tensor and update its parameters. [s]
``demand``        u    sum a / T: share of one core that a job keeps busy. [cores]
``cap``                most load that is put on a core. [fraction]
``rho``                load of the other jobs on an aggregator. [fraction]
``residual``      r    what is left, on average, of another job's burst that one runs into. [s]
=====================  =========================================================================

    work_s     a = (3 (n - 1) + 7) x bytes / traffic of a core      n workers
    residual   r = sum u b / (2 sum u) over the other jobs          b: a job's burst there
    delay      rho x r / (1 - rho)

A further gradient is read, and added to a sum that is read and written; the update reads
gradient, parameter and two moments and writes three of them (Adam). The delay takes bursts to
come at random (the Pollaczek-Khinchine mean): of two jobs alone the exact one is rho x r, and
jobs of one period that have once made way for each other meet no more, so it is an upper one. A
job's delay is that of its slowest aggregator. Tensors go, largest demand first, to the first
aggregator that stays under the cap and on which no job loses more than allowed.

With equal jobs of demand u a core takes floor(cap / u) of them: sharing saves at most
1 - 1 / floor(cap / u) of one core a job, 75 % at u = 0.2 and a cap of 0.8.

Sources: Parameter Service (AutoPS) publishes "up to 75 %" of the processors and the idea of
tensors as tasks; its equations are not published, these are our own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from advisor.planners.core import PlanningError, check_counts, check_not_negative, check_positive
from advisor.planners.links import ring_all_reduce_s

CAP: Final = 0.8
MOST_LOSS: Final = 0.05
_ADDED: Final = 3.0  # accesses to memory for one more gradient
_UPDATED: Final = 7.0  # and for the update
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedJob:
    """A job whose gradients are aggregated.

    Raises PlanningError if an amount makes no sense.
    """

    name: str
    step_s: float  # of its workers, without aggregation [s]
    work_s: tuple[float, ...]  # of a core, for each tensor in a step [s]

    def __post_init__(self) -> None:
        check_positive(self.name, step_s=self.step_s, work_s=self.work_s)
        check_not_negative(self.name, step_s=self.step_s, work_s=self.work_s)

    @property
    def demand(self) -> float:
        """Share of one core that its aggregation keeps busy [cores]."""
        return sum(self.work_s) / self.step_s

    @property
    def dedicated_cores(self) -> int:
        """Cores of its own that keep up with it."""
        return max(1, math.ceil(self.demand - _ROUNDING))


def aggregation_s(gradient_bytes: float, workers: int, core_bytes_per_s: float) -> float:
    """Return what a core takes to add up and apply one step's gradients of some bytes [s].

    ``core_bytes_per_s``: traffic to memory, read plus written, that one core sustains [bytes/s].
    """
    check_counts("aggregation", workers=workers)
    check_positive("aggregation", core_bytes_per_s=core_bytes_per_s)
    check_not_negative("aggregation", gradient_bytes=gradient_bytes)
    return (_ADDED * (workers - 1) + _UPDATED) * gradient_bytes / core_bytes_per_s


def most_saved_fraction(demand: float, cap: float = CAP) -> float:
    """Return the most that sharing saves of equal jobs' cores, one each [fraction].

    Examples
    --------
    >>> most_saved_fraction(0.2)
    0.75
    """
    check_positive("aggregation", demand=demand, cap=cap)
    return 1.0 - 1.0 / max(1, math.floor(cap / demand + _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Tensors on shared aggregators."""

    loads: tuple[tuple[float, ...], ...]  # by aggregator the load of each job [fraction]
    delay_s: tuple[float, ...]  # of each job in a step [s]
    loss: tuple[float, ...]  # the same over its step [fraction]
    dedicated_cores: int  # that the jobs take each with its own

    @property
    def cores(self) -> int:
        """Aggregators that are shared."""
        return len(self.loads)

    @property
    def saved_fraction(self) -> float:
        """Of the dedicated cores [fraction]."""
        return 1.0 - self.cores / self.dedicated_cores


def pack(
    jobs: Sequence[AggregatedJob], *, cap: float = CAP, most_loss: float = MOST_LOSS
) -> Packing:
    """Put the jobs' tensors on as few aggregators as first fit finds.

    ``cap``: most load of a core; a tensor that is more than that has one to itself [fraction];
    ``most_loss``: most delay of a job over its step; infinite for none [fraction].

    Raises PlanningError if there is no job, or an amount makes no sense.
    """
    check_positive("aggregation", cap=cap, most_loss=most_loss)
    if not jobs:
        raise PlanningError("no job to aggregate for", hint="name runs", exit_code=2)
    if cap >= 1.0:
        raise PlanningError(
            f"a load of {cap:g} on a core is out of range", hint="give less than 1", exit_code=2
        )
    tasks = sorted(
        ((work / job.step_s, k) for k, job in enumerate(jobs) for work in job.work_s),
        key=lambda one: (-one[0], one[1]),
    )
    found: list[list[float]] = []
    for load, k in tasks:
        if not any(_fits(place, load, k, jobs, cap, most_loss) for place in found):
            found.append([0.0] * len(jobs))
            found[-1][k] = load
    delay = tuple(
        max((delay_s(place, k, jobs) for place in found if place[k]), default=0.0)
        for k in range(len(jobs))
    )
    return Packing(
        loads=tuple(tuple(place) for place in found),
        delay_s=delay,
        loss=tuple(one / job.step_s for one, job in zip(delay, jobs, strict=True)),
        dedicated_cores=sum(job.dedicated_cores for job in jobs),
    )


def _fits(
    place: list[float],
    load: float,
    k: int,
    jobs: Sequence[AggregatedJob],
    cap: float,
    most_loss: float,
) -> bool:
    """Put a tensor's load on an aggregator if it fits, and say whether it did."""
    if sum(place) + load > cap + _ROUNDING:
        return False
    place[k] += load
    within = (1.0 + _ROUNDING) * most_loss
    if all(
        delay_s(place, j, jobs) <= within * job.step_s
        for j, job in enumerate(jobs) if place[j]
    ):  # fmt: skip
        return True
    place[k] -= load
    return False


def delay_s(place: Sequence[float], k: int, jobs: Sequence[AggregatedJob]) -> float:
    """Return how long job ``k`` waits for the others on one aggregator, a step [s].

    ``place``: load of each job there [fraction].
    """
    others = [(load, job) for j, (load, job) in enumerate(zip(place, jobs, strict=True)) if j != k]
    rho = sum(load for load, _ in others)
    if rho == 0.0:
        return 0.0
    if rho >= 1.0:
        return math.inf
    residual_s = sum(load * load * job.step_s for load, job in others) / (2.0 * rho)
    return rho * residual_s / (1.0 - rho)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The time of a step to exchange gradients, in three ways."""

    # all_reduce_s, dedicated_s, shared_s: in a ring; through a core of its own; through the shared
    # ones [s]
    all_reduce_s: float
    dedicated_s: float
    shared_s: float


def exchange(
    job: AggregatedJob, *, delay_s: float, gradient_bytes: float, workers: int,
    link_bytes_per_s: float, servers: int = 1,
) -> Exchange:  # fmt: skip
    """Return what exchanging takes: a ring uses no aggregator, a service its own links.

    ``delay_s``: that it waits for others at the shared aggregators [s]; ``workers``, ``servers``:
    machines that train, and machines whose links the aggregators use; ``link_bytes_per_s``: of
    each machine, each way [bytes/s].
    """
    check_counts(job.name, workers=workers, servers=servers)
    check_positive(job.name, link_bytes_per_s=link_bytes_per_s)
    check_not_negative(job.name, delay_s=delay_s, gradient_bytes=gradient_bytes)
    # In, and out again: as much as the fuller of a worker's link and a server's.
    moved_s = 2.0 * gradient_bytes * max(1.0, workers / servers) / link_bytes_per_s
    own_s = moved_s + sum(job.work_s)
    return Exchange(
        all_reduce_s=float(ring_all_reduce_s(gradient_bytes, workers, link_bytes_per_s)),
        dedicated_s=own_s,
        shared_s=own_s + delay_s,
    )


# ------------------------------------------------------------------------------------------
# Aggregation of gradients as a service that several jobs share.
