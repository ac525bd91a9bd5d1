"""Gradients of several jobs added up on shared aggregators, tensor by tensor.

=====================  =========================================================================
here                   meaning, unit
=====================  =========================================================================
``step_s``        T    of a job, its aggregation aside. [s]
``work_s``        a    of a core to add up one tensor and update its parameters. [s]
``demand``        u    sum a / T: share of one core that a job keeps busy. [cores]
``cap``                most load that is put on a core. [fraction]
``scatter``            recorded steps over their mean: what T is multiplied by, step by step.
=====================  =========================================================================

    work_s     a = (3 (n - 1) + 7) x bytes / traffic of a core      n workers
    loss       mean wait / (T + own work)

A further gradient is read, and added to a sum that is read and written; the update reads
gradient, parameter and two moments and writes three of them (Adam). A tensor that would load a
core beyond the cap is split evenly over several. A job waits for its own result before its next
step, so the loop is closed (``planners.queueing.closed``): jobs of one period that have once made
way for each other meet only as far as their steps scatter, which is played with the recorded
steps. A job's result is there when its slowest aggregator has answered. Tensors of a job are
placed together, or in four groups where that takes fewer cores, the largest first, each on the
first aggregator on which no job then loses more than allowed; where that takes more cores than the
jobs have apart, they stay apart.

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

import numpy as np

from advisor.planners.core import check_counts, check_not_negative, check_positive, refused
from advisor.planners.links import ring_all_reduce_s
from advisor.planners.queueing import closed_loop_waits_s

CAP: Final = 0.8
MOST_LOSS: Final = 0.05
_ADDED: Final = 3.0  # accesses to memory for one more gradient
_UPDATED: Final = 7.0  # and for the update
_ROUNDING: Final = 1e-9
_ROUNDS: Final = 150  # steps of the slowest job that are played
_GROUPS: Final = 4  # of the tensors of a job, each placed as one


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedJob:
    """A job whose gradients are aggregated.

    Raises PlanningError if an amount makes no sense.
    """

    name: str
    step_s: float  # of its workers, without aggregation [s]
    work_s: tuple[float, ...]  # of a core, for each tensor in a step [s]
    # recorded steps over their mean, in any order; steps that never scatter by default
    scatter: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        check_positive(self.name, step_s=self.step_s, work_s=self.work_s, scatter=self.scatter)
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

    ``cap``: most load of a core; a tensor that is more than that is split [fraction];
    ``most_loss``: most delay of a job over its step; infinite for none [fraction].

    Raises PlanningError if there is no job, or an amount makes no sense.
    """
    check_positive("aggregation", cap=cap, most_loss=most_loss)
    if not jobs:
        raise refused("no job to aggregate for", "name runs")
    if cap >= 1.0:
        raise refused(f"a load of {cap:g} on a core is out of range", "give less than 1")
    ways = [_first_fit(jobs, groups, cap, most_loss) for groups in (1, _GROUPS)]
    found = min(ways, key=len)
    dedicated = sum(job.dedicated_cores for job in jobs)
    if len(found) > dedicated:
        found = _apart(jobs)
    delay = delays_s(found, jobs, rounds=4 * _ROUNDS)
    return Packing(
        loads=tuple(tuple(place) for place in found),
        delay_s=tuple(delay),
        loss=tuple(one / _round_s(job) for one, job in zip(delay, jobs, strict=True)),
        dedicated_cores=dedicated,
    )


def _first_fit(
    jobs: Sequence[AggregatedJob], groups: int, cap: float, most_loss: float
) -> list[list[float]]:
    """Return the loads of the aggregators that first fit opens, by job."""
    tasks = sorted(
        ((load, k) for k, job in enumerate(jobs) for load in _tasks(job, groups, cap)),
        key=lambda one: (-one[0], one[1]),
    )
    found: list[list[float]] = []
    for load, k in tasks:
        if not any(_fits(place, found, load, k, jobs, cap, most_loss) for place in found):
            found.append([0.0] * len(jobs))
            found[-1][k] = load
    return found


def _tasks(job: AggregatedJob, count: int, cap: float) -> list[float]:
    """Return a job's tensors as loads below the cap: small ones together, large ones split."""
    parts: list[float] = []
    for work in sorted(job.work_s, reverse=True):
        load = work / job.step_s
        pieces = max(1, math.ceil(load / cap - _ROUNDING))
        parts += [load / pieces] * pieces
    room = max(min(cap, job.demand / count), parts[0])
    groups: list[float] = []
    for load in parts:
        place = next((i for i, one in enumerate(groups) if one + load <= room + _ROUNDING), None)
        if place is None:
            groups.append(load)
        else:
            groups[place] += load
    return groups


def _apart(jobs: Sequence[AggregatedJob]) -> list[list[float]]:
    """Return each job on cores of its own, every tensor split over all of them."""
    return [
        [job.demand / job.dedicated_cores if j == k else 0.0 for j in range(len(jobs))]
        for k, job in enumerate(jobs) for _ in range(job.dedicated_cores)
    ]  # fmt: skip


def _round_s(job: AggregatedJob) -> float:
    """Return a step with its own aggregation on one core or as many as it needs [s]."""
    return job.step_s + sum(job.work_s) / job.dedicated_cores


def _fits(
    place: list[float], places: list[list[float]], load: float, k: int,
    jobs: Sequence[AggregatedJob], cap: float, most_loss: float,
) -> bool:  # fmt: skip
    """Put a task's load on an aggregator if it fits, and say whether it did."""
    if sum(place) + load > cap + _ROUNDING:
        return False
    place[k] += load
    if math.isinf(most_loss) or all(
        delay_s <= most_loss * _round_s(job)
        for delay_s, job in zip(delays_s(places, jobs), jobs, strict=True)
    ):
        return True
    place[k] -= load
    return False


def delays_s(
    places: Sequence[Sequence[float]], jobs: Sequence[AggregatedJob], *, rounds: int = _ROUNDS
) -> list[float]:
    """Return how long each job waits for the others in a step [s].

    ``places``: by aggregator the load of each job [fraction].
    """
    shared = [place for place in places if sum(load > 0 for load in place) > 1]
    if not shared:
        return [0.0] * len(jobs)
    steps = np.array([job.step_s for job in jobs])
    draw = np.random.default_rng(0)
    think = np.stack(
        [draw.choice(np.array(job.scatter), rounds) * job.step_s for job in jobs], axis=1
    )
    waits = closed_loop_waits_s(think, np.array(places) * steps)
    return [float(one) for one in waits]


def exchange(
    job: AggregatedJob, *, delay_s: float, gradient_bytes: float, workers: int,
    link_bytes_per_s: float, servers: int = 1,
) -> dict[str, float]:  # fmt: skip
    """Return what exchanging takes of a step: in a ring, by a core of its own, by shared ones [s].

    A ring uses no aggregator, a service its own links.

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
    return {
        "all_reduce_s": float(ring_all_reduce_s(gradient_bytes, workers, link_bytes_per_s)),
        "dedicated_s": own_s,
        "shared_s": own_s + delay_s,
    }
