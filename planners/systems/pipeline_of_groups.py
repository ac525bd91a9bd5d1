"""A pipeline of unlike data-parallel groups over a recorded model's units.

| here    | Zorse, Alpa | meaning                                                         |
|---------|-------------|-----------------------------------------------------------------|
| ``M``   | m           | micro-batches of a step                                         |
| ``n_i`` | n_i         | of them those of worker i of its group, by speed                |
| ``t_i`` | T           | forward and backward of one micro-batch of a group's units on i |

Groups are machines between which only the slow links lie (``planners.links.grouping``); a
group shares the micro-batches out by speed, and the units are cut so that the groups need
equally long:

    core_g = max_i n_i t_i,   step = max_g core_g + sum over the other groups of t + exposed

The cut is that of ``partition`` on core_g / M, the steady state. With one worker a group
this is its objective: sum of the stages and (M-1) times the slowest. Zorse's planner (``zorse``)
does the same for equal layers with several stages a group; unlike layers (a CNN) are cut here.
Sources: Zorse (MLSys'26) for the grouping, Alpa (OSDI'22) for the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

import numpy as np

from advisor.planners.core import (
    Floats,
    PlanningError,
    UnitTimes,
    check_counts,
    check_not_negative,
    check_positive,
    refused,
)
from advisor.planners.layouts import partition
from advisor.planners.systems.zorse import proportional

# Orders of up to so many groups are all tried; beyond, the fastest come first.
_ALL_ORDERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Machines that train the same stage, data-parallel."""

    name: str
    workers: tuple[UnitTimes, ...]
    capacity_bytes: float  # usable on its smallest device

    def __post_init__(self) -> None:
        if not self.workers:
            raise refused(f"group {self.name} has no devices", "leave it out")
        check_positive(f"group {self.name}", capacity_bytes=self.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory by unit for one micro-batch size: state, kept activations, and what is always there.

    ``state_bytes`` is a function of the workers that share it. [bytes]
    """

    state_bytes: Callable[[int], Floats]
    kept_bytes: Floats
    base_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPipeline:
    """A cut, in pipeline order."""

    order: tuple[int, ...]  # which of the groups given is each stage
    layers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]  # micro-batches of a step by stage and worker
    # pipeline_s, fill_s: time without the reductions of the gradients; of it what all but the
    # slowest group's steady part adds at the start and the end [s]
    pipeline_s: float
    fill_s: float
    # by stage: micro-batches that a device holds, and what the fullest device needs [bytes]
    in_flight: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    micro_batch: int


def grouped_pipeline(
    groups: Sequence[StageGroup], micro_batch: int, micro_batches: int, *, send_s: Floats,
    memory: StageMemory,
) -> GroupedPipeline:  # fmt: skip
    """Order the groups, share the micro-batches out and cut the units.

    ``send_s``: (n_units,); over the cut behind each unit, one way [s].

    Raises PlanningError if there are fewer units than groups, or nothing fits.
    """
    check_counts("pipeline", micro_batch=micro_batch, micro_batches=micro_batches)
    check_not_negative("pipeline", send_s=send_s)
    found: GroupedPipeline | None = None
    problem: PlanningError | None = None
    for order in _orders(groups):
        try:
            one = _cut(groups, order, micro_batch, micro_batches, send_s, memory)
        except PlanningError as error:
            problem = error
            continue
        if found is None or one.pipeline_s < found.pipeline_s:
            found = one
    if found is None:
        raise problem or PlanningError("a pipeline needs a group")
    return found


def _orders(groups: Sequence[StageGroup]) -> list[tuple[int, ...]]:
    places = range(len(groups))
    if len(groups) <= _ALL_ORDERS:
        return list(permutations(places))
    return [tuple(sorted(places, key=lambda i: -len(groups[i].workers)))]


def _cut(
    given: Sequence[StageGroup], order: tuple[int, ...], micro_batch: int, micro_batches: int,
    send_s: Floats, memory: StageMemory,
) -> GroupedPipeline:  # fmt: skip
    groups = [given[i] for i in order]
    per_worker = [
        np.stack([sum(worker.at(float(micro_batch))) for worker in group.workers])
        for group in groups
    ]  # each (workers, units)
    counts = [proportional(1.0 / t.sum(axis=1), micro_batches) for t in per_worker]
    steady = np.stack(
        [
            (t * n[:, None]).max(axis=0) / micro_batches
            for t, n in zip(per_worker, counts, strict=True)
        ]
    )
    sizes = np.array([len(g.workers) for g in groups])
    # One micro-batch for every worker from here to the end, shared by the stage's workers.
    ahead = np.minimum(np.cumsum(sizes[::-1])[::-1], micro_batches)
    flights = np.ceil(ahead / sizes)
    # The partition has one state for all stages; sharding within a group differs by its size.
    smallest = int(sizes.min())
    found = partition(
        steady,
        micro_batches,
        stages=len(groups),
        send_s=2 * send_s,
        state_bytes=memory.state_bytes(smallest),
        activation_bytes=memory.kept_bytes,
        in_flight=flights,
        capacity_bytes=np.array([g.capacity_bytes for g in groups]) - memory.base_bytes,
    )
    edges = np.concatenate([[0], np.cumsum(found.layers)])
    cores, once = [], []
    for stage, (times, n) in enumerate(zip(per_worker, counts, strict=True)):
        a, b = edges[stage], edges[stage + 1]
        sent = 2 * float(send_s[b - 1]) if stage + 1 < len(groups) else 0.0
        each = times[:, a:b].sum(axis=1) + sent
        cores.append(float((each * n).max()))
        once.append(float(each[n > 0].max()))
    slowest = int(np.argmax(cores))
    fill_s = sum(once) - once[slowest]
    return GroupedPipeline(
        order=order,
        layers=found.layers,
        counts=tuple(tuple(map(int, n)) for n in counts),
        pipeline_s=cores[slowest] + fill_s,
        fill_s=fill_s,
        in_flight=tuple(flights.tolist()),
        memory_bytes=tuple(m + memory.base_bytes for m in found.memory_bytes),
        micro_batch=micro_batch,
    )
