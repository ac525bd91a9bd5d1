"""Pipeline schedules: how long a step takes with even stages (formula) and any stages (replay).

| here           | papers  | meaning                                                            |
|----------------|---------|--------------------------------------------------------------------|
| ``stages``     | p       | devices of the pipeline                                            |
| ``micro_batches`` | m    | micro-batches in a step                                            |
| ``virtual_stages`` | v   | model chunks of a device; v = 1 unless interleaved                 |
| ``forward_s``  | t_f     | forward of one micro-batch on a stage, all its chunks together [s] |
| ``backward_s`` | t_b     | backward, recomputation included [s]                               |
| ``send_s``     | C       | handing activations (or their gradient) to the neighbour [s]       |

Even stages: step = (m + (p-1)/v)(t_f + t_b), so the bubble is (p-1)/(v m) of the ideal: Huang et
al. (GPipe, 2019), Narayanan et al. (SC'21, section 2.2). GPipe and 1F1B take equally long and
differ in memory: m against p micro-batches in flight.

Uneven stages: every device runs its passes in its schedule's order, each as soon as the device is
free and its input has arrived. ``replay_s`` computes those start times exactly. How many
micro-batches a stage holds is ``planners.memory.transformers``'s (``in_flight``).

Cutting a model's layers into pipeline stages under memory caps, by dynamic programming.

| here             | papers   | meaning                                                         |
|------------------|----------|-----------------------------------------------------------------|
| ``layer_s``      | T        | t_f + t_b of each layer on each stage's device [s]              |
| ``micro_batches``| m        | micro-batches in a step                                         |
| ``slowest_s``    | t_max    | the longest stage: guessed, from the set of possible stages [s] |
| ``send_s``       | C        | both ways over the cut behind a layer [s]                       |

Objective: sum of the stages + (m-1) x the slowest stage, the step time of a pipeline whose
stages block on sending. For a guess of the slowest stage the least sum is a dynamic programme
over (stage, layers placed); guesses rise and stop when even the least sum cannot win any more.
Exact. Sources: Alpa (OSDI'22, section 5), PipeDream (SOSP'19) for the recurrence.

A pipeline's step drawn out: which pass runs on which device from when to when.

Stages are even and a backward pass takes twice as long as a forward one, as products do: that is
how schedules are drawn in the papers of ``pipeline``. The order of passes and what waits for
what are exactly those that step times are computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import GIB, Floats, PlanningError, Schedule, impossible, refused

Ints = NDArray[np.int64]
# One pass: (is it a backward, micro-batch, chunk of the device).
Pass = tuple[bool, int, int]


def bubble_fraction(
    stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike = 1
) -> Floats:
    """Return idle time over ideal time of even stages: (p-1)/(v m).

    >>> float(bubble_fraction(4, 12))
    0.25
    """
    p, m, v = (np.asarray(x, float) for x in (stages, micro_batches, virtual_stages))
    return np.asarray((p - 1) / (v * m))


def replay_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro_batches: int,
    *,
    schedule: Schedule = "1f1b",
    send_s: Sequence[float] | None = None,
    virtual_stages: int = 1,
) -> float:
    """Replay a schedule over stages of any length and return the step time [s].

    ``forward_s``, ``backward_s``: by stage, of one micro-batch, all chunks of the device together;
    a chunk takes 1/v of it [s]; ``micro_batches``: interleaving needs a multiple of p; ``send_s``:
    from each stage to the next (the last to the first, where interleaved), the same backwards; it
    delays the receiver and keeps no device busy [s]; ``virtual_stages``: more than 1 only where
    interleaved.

    Raises PlanningError if the schedule cannot be run with that many micro-batches.
    """
    times = (forward_s, backward_s, send_s or [0.0] * len(forward_s))
    ended = _pass_ends(*times, micro_batches, schedule, virtual_stages)
    return max(max(one.values()) for one in ended)


def _pass_ends(
    forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float],
    micro_batches: int, schedule: Schedule, virtual_stages: int,
) -> list[dict[Pass, float]]:  # fmt: skip
    """Return when every pass ends, by device in its order (``device_order``) [s]."""
    stages = len(forward_s)
    _check(schedule, stages, micro_batches, virtual_stages)
    orders = [
        device_order(schedule, r, stages, micro_batches, virtual_stages) for r in range(stages)
    ]
    ended: list[dict[Pass, float]] = [{} for _ in orders]
    while any(len(done) < len(order) for done, order in zip(ended, orders, strict=True)):
        for rank, order in enumerate(orders):
            free_s = next(reversed(ended[rank].values()), 0.0)
            for step in order[len(ended[rank]) :]:
                arrived_s = 0.0
                if source := _source(rank, step, stages, virtual_stages):
                    sender, made = source
                    if made not in ended[sender]:
                        break
                    # A gradient crosses the link that its activation came by.
                    link_s = send_s[rank if step[0] else sender] if sender != rank else 0.0
                    arrived_s = ended[sender][made] + link_s
                took_s = (backward_s if step[0] else forward_s)[rank] / virtual_stages
                free_s = ended[rank][step] = max(free_s, arrived_s) + took_s
    return ended


def _warm_up(rank: int, stages: int, micro_batches: int, virtual_stages: int) -> int:
    """Return forwards before the first backward of an interleaved device (Megatron-LM)."""
    ahead = 2 * (stages - rank - 1) + (virtual_stages - 1) * stages
    return min(ahead, micro_batches * virtual_stages)


def device_order(
    schedule: Schedule, rank: int, stages: int, micro_batches: int, virtual_stages: int = 1
) -> list[Pass]:
    """Return the passes of one device in the order in which it runs them.

    >>> device_order("1f1b", 1, 2, 2)
    [(False, 0, 0), (True, 0, 0), (False, 1, 0), (True, 1, 0)]
    """
    m, v, p = micro_batches, virtual_stages, stages
    if schedule == "gpipe":
        ahead = m
    elif schedule == "1f1b":
        ahead = min(p - rank - 1, m)
    else:
        ahead = _warm_up(rank, p, m, v)
    total = m * v
    forwards: list[Pass] = []
    backwards: list[Pass] = []
    for k in range(total):
        micro = k // (p * v) * p + k % p if v > 1 else k
        chunk = k % (p * v) // p if v > 1 else 0
        forwards.append((False, micro, chunk))
        backwards.append((True, micro, v - 1 - chunk))
    order = forwards[:ahead]
    for k in range(total - ahead):
        order += [forwards[ahead + k], backwards[k]]
    return order + backwards[total - ahead :]


def _check(schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int) -> None:
    if min(stages, micro_batches, virtual_stages) < 1:
        raise refused(
            f"{stages} stages, {micro_batches} micro-batches and {virtual_stages} virtual stages: "
            "each must be at least 1"
        )
    if virtual_stages > 1 and schedule != "interleaved":
        raise refused(
            f"{virtual_stages} virtual stages need the interleaved schedule, not {schedule}"
        )
    if virtual_stages > 1 and micro_batches % stages:
        raise PlanningError(
            f"interleaving {stages} stages needs a multiple of {stages} micro-batches, "
            f"got {micro_batches}",
            hint="change the accumulation steps or use 1f1b",
        )


def _source(rank: int, step: Pass, stages: int, virtual_stages: int) -> tuple[int, Pass] | None:
    """Return (device, pass) whose result a pass needs; None for the first forward."""
    is_backward, micro, chunk = step
    if not is_backward:
        if rank:
            return rank - 1, (False, micro, chunk)
        return (stages - 1, (False, micro, chunk - 1)) if chunk else None
    if rank < stages - 1:
        return rank + 1, (True, micro, chunk)
    if chunk < virtual_stages - 1:
        return 0, (True, micro, chunk + 1)
    return rank, (False, micro, chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Layers per stage, the stages' times and memory, and the objective."""

    layers: tuple[int, ...]
    stage_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    step_s: float


def partition(
    layer_s: ArrayLike,
    micro_batches: int,
    *,
    stages: int,
    send_s: ArrayLike = 0.0,
    state_bytes: ArrayLike = 0.0,
    activation_bytes: ArrayLike = 0.0,
    in_flight: ArrayLike = 1.0,
    capacity_bytes: ArrayLike = np.inf,
) -> Partition:
    """Cut layers into stages, each of at least one layer, in the stages' given order.

    ``layer_s``: (L,); per micro-batch; the second form where the stages' devices differ [s];
    ``send_s``: both ways over the cut behind each layer; paid by the stage before the cut [s];
    ``state_bytes``, ``activation_bytes``: a layer's parameters, gradients and optimizer state; its
    saved activations for one micro-batch [bytes]; ``in_flight``: micro-batches held.

    Raises PlanningError if there are fewer layers than stages, or no cut fits into the memory.
    """
    times = np.atleast_2d(np.asarray(layer_s, float))
    count = times.shape[1]
    if not 1 <= stages <= count:
        raise PlanningError(
            f"{count} layers cannot be cut into {stages} stages",
            hint=f"use at most {count} stages",
        )
    capacity = np.broadcast_to(np.asarray(capacity_bytes, float), (stages,))[:, None, None]
    is_free = bool(np.all(np.isinf(capacity)))
    # Stages of equal devices share one table of spans.
    per_stage = _spans(times)
    per_stage[:, :, 1:] += np.where(
        np.arange(1, count + 1) < count, np.broadcast_to(np.asarray(send_s, float), (count,)), 0.0
    )
    memory = _spans(np.broadcast_to(state_bytes, (1, count))) + np.broadcast_to(
        in_flight, (stages,)
    )[:, None, None] * _spans(np.broadcast_to(activation_bytes, (1, count)))
    allowed = per_stage if is_free else np.where(memory <= capacity, per_stage, np.inf)
    allowed = np.broadcast_to(allowed, (stages, count + 1, count + 1))
    per_stage = np.broadcast_to(per_stage, allowed.shape)
    cuts = _best_cuts(allowed, micro_batches)
    if cuts is None:
        raise impossible(
            f"no cut of {count} layers into {stages} stages fits: "
            f"{_nearest_miss(memory - capacity)}",
            "use more stages, recompute activations or shard the state",
        )
    ends = [*cuts, count]
    starts = [0, *cuts]
    stage_s = tuple(
        float(per_stage[i, a, b]) for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    )
    return Partition(
        layers=tuple(b - a for a, b in zip(starts, ends, strict=True)),
        stage_s=stage_s,
        memory_bytes=tuple(
            float(memory[i, a, b]) for i, (a, b) in enumerate(zip(starts, ends, strict=True))
        ),
        step_s=sum(stage_s) + (micro_batches - 1) * max(stage_s),
    )


def _spans(values: Floats) -> Floats:
    """Return sums over the layers [a, b) as an array (stages, a, b); inf where b <= a."""
    total = np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)
    spans: Floats = total[:, None, :] - total[:, :, None]
    edge = np.arange(total.shape[1])
    spans[:, edge[:, None] >= edge[None, :]] = np.inf
    return spans


def _best_cuts(allowed: Floats, micro_batches: int) -> list[int] | None:
    least_sum = _least_sum(allowed, np.inf)[0]
    if not np.isfinite(least_sum):
        return None
    # What is broadcast has one stage's times only.
    own = allowed[:1] if allowed.strides[0] == 0 else allowed
    guesses = _apart(np.unique(own[np.isfinite(own)]))
    found, best = None, np.inf
    for guess in guesses[np.searchsorted(guesses, _least_slowest_s(allowed)) :]:
        # Sums of the same stages differ in their last bits.
        if least_sum + (micro_batches - 1) * guess >= best * (1 - 1e-12):
            break
        total, cuts = _least_sum(allowed, guess)
        if total + (micro_batches - 1) * guess < best:
            best, found = total + (micro_batches - 1) * guess, cuts
    return found


def _apart(guesses: Floats) -> Floats:
    """Return the last of each run of rising values that only rounding keeps apart.

    Spans of equal layers are equal times, but not to the last bit.
    """
    is_last = np.append(guesses[1:] > guesses[:-1] * (1 + 1e-12), True)
    return np.asarray(guesses[is_last])


def _least_slowest_s(allowed: Floats) -> float:
    """Return the slowest stage of the cut whose slowest stage is fastest."""
    slowest = allowed[0, 0]
    for stage in allowed[1:]:
        slowest = np.maximum(slowest[:, None], stage).min(axis=0)
    return float(slowest[-1])


def _least_sum(allowed: Floats, slowest_s: float) -> tuple[float, list[int]]:
    """Return the least sum of stages no longer than ``slowest_s``, and the cuts."""
    stages, edges = allowed.shape[0], allowed.shape[1]
    least = np.full(edges, np.inf)
    least[0] = 0.0
    origins = []
    is_same = allowed.strides[0] == 0
    for i in range(stages):
        if i == 0 or not is_same:
            stage = np.where(allowed[i] <= slowest_s, allowed[i], np.inf)
        reached = least[:, None] + stage
        origin = np.argmin(reached, axis=0)
        origins.append(origin)
        least = reached[origin, np.arange(edges)]
    cuts, edge = [], edges - 1
    for origin in reversed(origins[1:]):
        edge = int(origin[edge])
        cuts.append(edge)
    return float(least[-1]), cuts[::-1]


def _nearest_miss(excess: Floats) -> str:
    """Say how far the least demanding placement of the worst single layer is from fitting."""
    single = np.stack([np.diagonal(excess[i], offset=1) for i in range(excess.shape[0])])
    worst = float(single.min(axis=0).max())
    if worst > 0:
        return f"one layer alone needs {worst / GIB:.2f} GiB more than any stage has"
    return "each layer fits alone, together they do not"


BACKWARD = 2.0  # of a forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPass:
    """One pass of a micro-batch through a device's chunk of the model."""

    # stage, micro_batch, chunk: counted from 0
    stage: int
    micro_batch: int
    chunk: int
    is_backward: bool
    # begin, end: times in forward passes of a whole stage
    begin: float
    end: float


def timeline(
    stages: int, micro_batches: int, *, schedule: Schedule = "1f1b", virtual_stages: int = 1
) -> tuple[TimedPass, ...]:
    """Return every pass of one step, a device after the other.

    Raises PlanningError if the schedule cannot be run with that many micro-batches.

    Examples
    --------
    >>> [(one.stage, one.begin, one.end) for one in timeline(2, 1)]
    [(0, 0.0, 1.0), (0, 4.0, 6.0), (1, 1.0, 2.0), (1, 2.0, 4.0)]
    """
    alike = [1.0] * stages, [BACKWARD] * stages, [0.0] * stages
    ended = _pass_ends(*alike, micro_batches, schedule, virtual_stages)
    return tuple(
        TimedPass(
            stage=stage,
            micro_batch=micro_batch,
            chunk=chunk,
            is_backward=is_backward,
            begin=end - (BACKWARD if is_backward else 1.0) / virtual_stages,
            end=end,
        )
        for stage, passes in enumerate(ended)
        for (is_backward, micro_batch, chunk), end in passes.items()
    )
