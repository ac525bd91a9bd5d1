"""Cutting a model's layers into pipeline stages under memory caps, by dynamic programming.

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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core import GIB, Floats, PlanningError, impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Layers per stage, the stages' times and memory, and the objective."""

    layers: tuple[int, ...]
    stage_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    step_s: float


def partition(
    layer_s: ArrayLike, micro_batches: int, *, stages: int, send_s: ArrayLike = 0.0,
    state_bytes: ArrayLike = 0.0, activation_bytes: ArrayLike = 0.0, in_flight: ArrayLike = 1.0,
    capacity_bytes: ArrayLike = np.inf,
) -> Partition:  # fmt: skip
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
