"""Cutting a model's layers into pipeline stages under memory caps, by dynamic programming.

| here             | papers   | meaning                                                         |
|------------------|----------|-----------------------------------------------------------------|
| ``layer_s``      | T        | t_f + t_b of each layer on each stage's device [s]              |
| ``micro_batches``| m        | micro-batches in a step                                         |
| ``slowest_s``    | t_max    | the longest stage: guessed, from the set of possible stages [s] |
| ``send_s``       | C        | both ways over the cut behind a layer [s]                       |

Objective: sum of the stages + (m-1) x the slowest stage, the step time of a pipeline whose stages
block on sending. For a guess of the slowest stage the least sum is a dynamic programme over
(stage, layers placed); guesses rise and stop when even the least sum cannot win any more. Exact.
Sources: Alpa (OSDI'22, section 5), PipeDream (SOSP'19) for the recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.units import GIB


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

    Parameters
    ----------
    layer_s : array-like of shape (L,) or (stages, L)
        Per micro-batch; the second form where the stages' devices differ. [s]
    send_s : array-like, broadcastable to (L,)
        Both ways over the cut behind each layer; paid by the stage before the cut. [s]
    state_bytes, activation_bytes : array-like, broadcastable to (L,)
        A layer's parameters, gradients and optimizer state; its saved activations for one
        micro-batch. [bytes]
    in_flight : array-like, broadcastable to (stages,)
        Micro-batches held (``planners.layouts.pipeline.in_flight``).
    capacity_bytes : array-like, broadcastable to (stages,)

    Raises
    ------
    PlanningError
        If there are fewer layers than stages, or no cut fits into the memory.
    """
    times = np.atleast_2d(np.asarray(layer_s, float))
    count = times.shape[1]
    if not 1 <= stages <= count:
        raise PlanningError(
            f"{count} layers cannot be cut into {stages} stages",
            hint=f"use at most {count} stages",
        )
    per_stage = _spans(np.broadcast_to(times, (stages, count)))
    per_stage[:, :, 1:] += np.where(
        np.arange(1, count + 1) < count, np.broadcast_to(np.asarray(send_s, float), (count,)), 0.0
    )
    memory = _spans(np.broadcast_to(state_bytes, (1, count))) + np.broadcast_to(
        in_flight, (stages,)
    )[:, None, None] * _spans(np.broadcast_to(activation_bytes, (1, count)))
    capacity = np.broadcast_to(np.asarray(capacity_bytes, float), (stages,))[:, None, None]
    allowed = np.where(memory <= capacity, per_stage, np.inf)
    cuts = _best_cuts(allowed, micro_batches)
    if cuts is None:
        raise PlanningError(
            f"no cut of {count} layers into {stages} stages fits: "
            f"{_nearest_miss(memory - capacity)}",
            hint="use more stages, recompute activations or shard the state",
            exit_code=3,
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
    guesses = np.unique(allowed[np.isfinite(allowed)])
    found, best = None, np.inf
    least_sum = _least_sum(allowed, np.inf)[0]
    if not np.isfinite(least_sum):
        return None
    for guess in guesses[np.searchsorted(guesses, _lower_bound(allowed, guesses)) :]:
        if least_sum + (micro_batches - 1) * guess >= best:
            break
        total, cuts = _least_sum(allowed, guess)
        if total + (micro_batches - 1) * guess < best:
            best, found = total + (micro_batches - 1) * guess, cuts
    return found


def _lower_bound(allowed: Floats, guesses: Floats) -> float:
    """Return the smallest guess that any cut satisfies: feasibility rises with the guess."""
    low, high = 0, guesses.size - 1
    while low < high:
        middle = (low + high) // 2
        if np.isfinite(_least_sum(allowed, guesses[middle])[0]):
            high = middle
        else:
            low = middle + 1
    return float(guesses[low])


def _least_sum(allowed: Floats, slowest_s: float) -> tuple[float, list[int]]:
    """Return the least sum of stages no longer than ``slowest_s``, and the cuts."""
    stages, edges = allowed.shape[0], allowed.shape[1]
    least = np.full(edges, np.inf)
    least[0] = 0.0
    origins = []
    for i in range(stages):
        reached = least[:, None] + np.where(allowed[i] <= slowest_s, allowed[i], np.inf)
        origins.append(np.argmin(reached, axis=0))
        least = np.min(reached, axis=0)
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
