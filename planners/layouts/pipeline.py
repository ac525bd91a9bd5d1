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
free and its input has arrived. ``replay_s`` computes those start times exactly, all independent
passes of all plans at once: the passes are sorted into levels of their dependency graph, which
depends on (p, m, v) and not on the times, so that a replay takes about 2 (m + p) array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


def even_s(
    stages: ArrayLike,
    micro_batches: ArrayLike,
    stage_s: ArrayLike,
    *,
    virtual_stages: ArrayLike = 1,
) -> Floats:
    """Return the step time of even stages without links: m (1 + bubble) stage_s [s].

    ``stage_s``: t_f + t_b of one micro-batch on one device [s].
    """
    ideal = np.asarray(micro_batches, float) * np.asarray(stage_s, float)
    return np.asarray(ideal * (1 + bubble_fraction(stages, micro_batches, virtual_stages)))


def in_flight(
    stages: int, micro_batches: int, *, schedule: Schedule, virtual_stages: int = 1
) -> Floats:
    """Return how many micro-batches' activations each stage holds at most.

    Counted in micro-batches of all the stage's layers; an interleaved device holds chunks, v of
    which are one micro-batch.
    """
    rank = np.arange(stages)
    if schedule == "gpipe":
        return np.full(stages, float(micro_batches))
    if schedule == "1f1b":
        return np.minimum(stages - rank, micro_batches).astype(float)
    warm_up = np.array([_warm_up(int(r), stages, micro_batches, virtual_stages) for r in rank])
    held = np.minimum(warm_up + 1, micro_batches * virtual_stages)
    return np.asarray(held / virtual_stages)


def replay_s(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    micro_batches: int,
    *,
    schedule: Schedule = "1f1b",
    send_s: ArrayLike = 0.0,
    virtual_stages: int = 1,
) -> Floats:
    """Replay a schedule over stages of any length and return the step times, shape (...) [s].

    ``forward_s``, ``backward_s``: (..., p), of one micro-batch, all chunks of the device together;
    a chunk takes 1/v of it [s]; ``micro_batches``: interleaving needs a multiple of p; ``send_s``:
    from each stage to the next (the last to the first, where interleaved), the same backwards; it
    delays the receiver and keeps no device busy [s]; ``virtual_stages``: more than 1 only where
    interleaved.

    Raises PlanningError if the schedule cannot be run with that many micro-batches.
    """
    plans = np.shape(forward_s)[:-1]
    end = pass_ends(
        forward_s, backward_s, micro_batches, schedule=schedule, send_s=send_s,
        virtual_stages=virtual_stages,
    )  # fmt: skip
    return np.asarray(end.max(axis=1).reshape(plans))


def pass_ends(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    micro_batches: int,
    *,
    schedule: Schedule,
    send_s: ArrayLike = 0.0,
    virtual_stages: int = 1,
) -> Floats:
    """Return when every pass ends, shape (plans, passes); see ``replay_s`` [s].

    A device's passes stand after the other's, each in its order (``device_order``).
    """
    forward = np.asarray(forward_s, float)
    p = forward.shape[-1]
    graph = _graph(schedule, p, micro_batches, virtual_stages)
    durations = np.stack(
        [forward.reshape(-1, p), np.broadcast_to(backward_s, forward.shape).reshape(-1, p)], axis=1
    )  # (plans, forward or backward, stages)
    send = np.broadcast_to(np.asarray(send_s, float), forward.shape).reshape(-1, p)
    # The last column is the end of what has no predecessor.
    end = np.zeros((durations.shape[0], graph.passes + 1))
    for level in graph.levels:
        took = durations[:, level.is_backward, level.device] / virtual_stages
        arrived = end[:, level.source] + send[:, level.link] * level.crosses
        end[:, level.index] = np.maximum(end[:, level.previous], arrived) + took
    return end[:, :-1]


@dataclass(frozen=True, slots=True)
class _Level:
    """Passes that depend only on earlier levels: arrays over the passes."""

    index: Ints
    previous: Ints  # the pass before it on its device
    source: Ints  # the pass whose result it needs
    device: Ints
    is_backward: Ints
    link: Ints  # the stage whose outgoing link the input crosses
    crosses: Ints  # 0 where the input was made on the same device


@dataclass(frozen=True, slots=True)
class _Graph:
    passes: int
    levels: tuple[_Level, ...]


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


@lru_cache(maxsize=64)
def _graph(schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int) -> _Graph:
    """Sort the passes of a schedule into levels of their dependency graph."""
    _check(schedule, stages, micro_batches, virtual_stages)
    orders = [
        device_order(schedule, r, stages, micro_batches, virtual_stages) for r in range(stages)
    ]
    number = {
        (r, step): i
        for i, (r, step) in enumerate(
            (r, step) for r, order in enumerate(orders) for step in order
        )
    }
    nothing = len(number)
    done: set[tuple[int, Pass]] = set()
    rows: list[list[tuple[int, ...]]] = []
    position = [0] * stages
    while any(position[r] < len(orders[r]) for r in range(stages)):
        ready = []
        for r in range(stages):
            if position[r] == len(orders[r]):
                continue
            step = orders[r][position[r]]
            source = _source(r, step, stages, virtual_stages)
            if source is not None and source not in done:
                continue
            before = number[r, orders[r][position[r] - 1]] if position[r] else nothing
            needs = nothing if source is None else number[source]
            link = 0 if source is None else (source[0] if not step[0] else r)
            crosses = int(source is not None and source[0] != r)
            ready.append((r, step, (before, needs, r, int(step[0]), link, crosses)))
        # Level by level: what became ready in this round depends on earlier rounds only.
        rows.append([(number[r, step], *rest) for r, step, rest in ready])
        for r, step, _ in ready:
            done.add((r, step))
            position[r] += 1
    levels = tuple(_Level(*np.array(row, dtype=np.int64).T) for row in rows)
    return _Graph(nothing, levels)


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


# ------------------------------------------------------------------------------------------
# Cutting a model's layers into pipeline stages under memory caps, by dynamic programming.
#
# | here             | papers   | meaning                                                         |
# |------------------|----------|-----------------------------------------------------------------|
# | ``layer_s``      | T        | t_f + t_b of each layer on each stage's device [s]              |
# | ``micro_batches``| m        | micro-batches in a step                                         |
# | ``slowest_s``    | t_max    | the longest stage: guessed, from the set of possible stages [s] |
# | ``send_s``       | C        | both ways over the cut behind a layer [s]                       |
#
# Objective: sum of the stages + (m-1) x the slowest stage, the step time of a pipeline whose
# stages block on sending. For a guess of the slowest stage the least sum is a dynamic programme
# over (stage, layers placed); guesses rise and stop when even the least sum cannot win any more.
# Exact. Sources: Alpa (OSDI'22, section 5), PipeDream (SOSP'19) for the recurrence.


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
    saved activations for one micro-batch [bytes]; ``in_flight``: micro-batches held
    (``planners.layouts.pipeline.in_flight``).

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


# ------------------------------------------------------------------------------------------
# A pipeline's step drawn out: which pass runs on which device from when to when.
#
# Stages are even and a backward pass takes twice as long as a forward one, as products do: that is
# how schedules are drawn in the papers of ``pipeline``. The order of passes and what waits for
# what are exactly those that step times are computed from.


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
    forward = np.ones(stages)
    ends = pass_ends(
        forward, BACKWARD * forward, micro_batches, schedule=schedule,
        virtual_stages=virtual_stages,
    )[0]  # fmt: skip
    passes = (
        (stage, one)
        for stage in range(stages)
        for one in device_order(schedule, stage, stages, micro_batches, virtual_stages)
    )
    found = []
    for (stage, (is_backward, micro_batch, chunk)), end in zip(passes, ends.tolist(), strict=True):
        took = (BACKWARD if is_backward else 1.0) / virtual_stages
        found.append(
            TimedPass(
                stage=stage,
                micro_batch=micro_batch,
                chunk=chunk,
                is_backward=is_backward,
                begin=end - took,
                end=end,
            )
        )
    return tuple(found)
