"""Uneven batches and uneven state on mixed GPUs (Cephalo).

Two decisions are kept apart: which GPU computes how many samples, and which GPU stores how much
of the sharded training state.

| here                  | Cephalo   | meaning                                                   |
|-----------------------|-----------|-----------------------------------------------------------|
| ``global_batch``      | B         | samples a step over all GPUs                              |
| ``b``, ``k``, ``u``   | b, l, m   | samples of a GPU, accumulation steps, micro-batch b/l     |
| ``all_gather_s``      | AG        | gathering one layer's parameters [s]                      |
| ``reduce_scatter_s``  | RS        | scattering one layer's gradients [s]                      |
| ``compute_bytes``     | M_c(m)    | memory of the computation at micro-batch m [bytes]        |
| ``state_bytes``       | 16 P      | parameters, gradients and optimizer state of the model    |

Per layer and GPU, with F = l t_f(m) and K = l t_b(m) + (l-1) o (o: overhead of one accumulation
step), the time is max(AG, F) + max(AG+RS, F+K): the second F is the recomputation. A GPU whose
micro-batch only fits beside less than an even share of the state pays uneven collectives.

Objective: the smallest maximum over the GPUs; among equals the smallest sum of micro-batches,
which is the least memory. Cephalo runs a dynamic programme over (GPU, batch, sum of
micro-batches); here the answer is searched over the possible maxima, and each is tested by a
dynamic programme over (GPU, batch), so that 64 GPUs take a fraction of a second. Same answers as
the authors' code.
Source: Guo et al., "Cephalo" (ICS'25); repository benson-guo/cephalo, MIT, ``split_workload.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.planners.core import (
    GIB,
    Floats,
    LayerLatency,
    PlanningError,
    check_counts,
    check_not_negative,
    check_positive,
    impossible,
    refused,
)
from advisor.planners.systems.uneven_batches import BatchOptions, Ints, split_batch


def level_shards(state_bytes: float, capacity: Floats, in_use: Floats) -> Floats:
    """Split the state so that the largest shard is smallest (``min_params``) [bytes].

    | here      | Cephalo    | meaning                                                 |
    |-----------|------------|---------------------------------------------------------|
    | ``room``  | spare      | usable memory less what the computation takes [bytes]   |
    | ``level`` | min_params | the largest shard: ``shard = min(room, level)`` [bytes] |

    It is water-filling and solved exactly, without iteration. Source: Guo et al., "Cephalo"
    (ICS'25); repository benson-guo/cephalo, MIT, ``split_workload.py``.

    Even where everybody has room; otherwise the full GPUs keep what fits and the rest share the
    overflow: ``shard = min(room, level)``, solved exactly.

    ``capacity``, ``in_use``: (n,); usable memory, and what the computation takes of it [bytes].

    Raises PlanningError if there is not room enough.
    """
    room = np.maximum(capacity - in_use, 0.0)
    # A millionth: the sums of the budget and of the rooms differ by rounding.
    if room.sum() < state_bytes * (1 - 1e-6):
        raise impossible(
            f"the state needs {state_bytes / GIB:.1f} GiB, the GPUs have "
            f"{room.sum() / GIB:.1f} GiB of room",
            "add GPUs, offload the optimizer state or lower the micro-batch",
        )
    ascending = np.sort(room)
    below = np.concatenate([[0.0], np.cumsum(ascending)[:-1]])
    levels = (state_bytes - below) / np.arange(room.size, 0, -1)
    level = levels[int(np.argmax(levels <= ascending))] if (levels <= ascending).any() else np.inf
    shards: Floats = np.minimum(room, level)
    return shards


@dataclass(frozen=True, slots=True, kw_only=True)
class CephaloConstants:
    """Constants of the authors' planner; each names the term that it stands in."""

    usable_fraction: float = 0.75  # share of a GPU's memory that a plan may fill
    reserve_bytes: float = 2.0 * GIB  # buffers of the collectives on each GPU [bytes]
    # o: each accumulation step after the first, per layer [s]
    accumulation_overhead_s: float = 0.010
    uneven_collective_factor: float = 1.25  # slowdown of AG and RS where shards are uneven


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One GPU of a mixed cluster: its name, its memory and how fast it runs a layer."""

    name: str
    memory_bytes: float
    latency: LayerLatency

    def __post_init__(self) -> None:
        check_positive(f"GPU {self.name}", memory_bytes=self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenJob:
    """What is trained."""

    global_batch: int
    layers: int
    state_bytes: float = 0.0  # sharded over all GPUs [bytes]
    # memory of the computation at micro-batch 1, 2, ...; beyond the last, the mean of the last up
    # to five increments is added per sample [bytes]
    compute_bytes: tuple[float, ...] = (0.0,)
    # all_gather_s, reduce_scatter_s: per layer, even shards [s]
    all_gather_s: float = 0.0
    reduce_scatter_s: float = 0.0
    optimizer_s: float = 0.0  # added once a step [s]

    def __post_init__(self) -> None:
        check_counts("job", global_batch=self.global_batch, layers=self.layers)
        if not self.compute_bytes:
            raise refused("job: no memory of the computation", "give compute_bytes")
        names = ("state_bytes", "compute_bytes", "all_gather_s", "reduce_scatter_s", "optimizer_s")
        check_not_negative("job", **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenPlan:
    """How the work and the state are split; one entry a GPU, in the order given."""

    batches: tuple[int, ...]
    micro_batches: tuple[int, ...]
    accumulation_steps: tuple[int, ...]
    # state_bytes, memory_bytes: stored share of the state; all memory in use [bytes]
    state_bytes: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    layer_s: tuple[float, ...]  # time of one layer, forward and backward [s]
    step_s: float  # ``layers * max(layer_s) + optimizer_s`` [s]
    exposed_s: float  # of it, what collectives of no time would save [s]


def layer_s(
    latency: LayerLatency, micro_batch: Ints, accumulation_steps: Ints, *, all_gather_s: Floats,
    reduce_scatter_s: Floats, accumulation_overhead_s: float,
) -> Floats:  # fmt: skip
    """Return the time of one layer on one GPU (section 2.1, step 4) [s]."""
    t_f, t_b = latency.at(micro_batch)
    forward = accumulation_steps * t_f
    backward = accumulation_steps * t_b + (accumulation_steps - 1) * accumulation_overhead_s
    computed: Floats = np.maximum(all_gather_s, forward) + np.maximum(
        all_gather_s + reduce_scatter_s, forward + backward
    )
    return computed


def memory_curve(compute_bytes: Sequence[float], up_to: int) -> Floats:
    """Return the memory of the computation at micro-batches 0..up_to [bytes].

    The entry at 0 is 0. Beyond the measured micro-batches the mean of the last up to five
    increments is added per sample.
    """
    known = np.asarray(compute_bytes, float)
    growth = float(np.diff(known[-6:]).mean()) if known.size > 1 else float(known[0])
    beyond = known[-1] + growth * np.arange(1, max(0, up_to - known.size) + 1)
    return np.concatenate([[0.0], known, beyond])[: up_to + 1]


def plan_cephalo(
    workers: Sequence[Worker], job: UnevenJob, *, constants: CephaloConstants | None = None,
    may_accumulate: bool = True,
) -> UnevenPlan:  # fmt: skip
    """Split a step over mixed GPUs so that the slowest of them is as fast as possible.

    ``workers``: equal GPUs get their shares in falling order of batch; ``may_accumulate``: whether
    a GPU may split its batch into micro-batches; True by default.

    Raises PlanningError if there are fewer samples than GPUs, or no split fits into the memory.
    """
    fixed = constants or CephaloConstants()
    _check_workers(workers)
    if job.global_batch < len(workers):
        raise impossible(
            f"a global batch of {job.global_batch} gives {len(workers)} GPUs less than one "
            "sample each",
            "raise the batch or use fewer GPUs",
        )
    largest = job.global_batch - len(workers) + 1
    compute = memory_curve(job.compute_bytes, largest)
    options = [_options(w, job, len(workers), compute, fixed, may_accumulate) for w in workers]
    budget = _memory_budget(workers, job, compute, fixed)
    chosen = split_batch(options, job.global_batch, compute, budget)
    chosen = _largest_first(workers, chosen)
    return _finish(workers, job, options, chosen, compute, fixed)


def even_plan(
    workers: Sequence[Worker], job: UnevenJob, *, constants: CephaloConstants | None = None
) -> UnevenPlan:
    """Return the plan with equal batches, each GPU still choosing its own accumulation.

    Raises PlanningError if the GPUs do not divide the batch or an equal share does not fit
    somewhere.
    """
    _check_workers(workers)
    if job.global_batch % len(workers):
        raise PlanningError(
            f"{len(workers)} GPUs do not divide a global batch of {job.global_batch}",
            hint=f"use a multiple of {len(workers)}",
        )
    fixed = constants or CephaloConstants()
    b = job.global_batch // len(workers)
    compute = memory_curve(job.compute_bytes, b)
    options = [_options(w, job, len(workers), compute, fixed, True) for w in workers]
    options = [one.chosen(np.flatnonzero(one.b == b)) for one in options]
    budget = _memory_budget(workers, job, compute, fixed)
    chosen = split_batch(options, job.global_batch, compute, budget)
    return _finish(workers, job, options, chosen, compute, fixed)


def _check_workers(workers: Sequence[Worker]) -> None:
    if not workers:
        raise refused("no GPU to plan for", "give at least one")


def _options(
    worker: Worker, job: UnevenJob, gpus: int, compute: Floats, fixed: CephaloConstants,
    may_accumulate: bool,
) -> BatchOptions:  # fmt: skip
    largest = compute.size - 1
    usable = fixed.usable_fraction * worker.memory_bytes - fixed.reserve_bytes
    u = np.arange(1, largest + 1)
    u = u[compute[u] <= usable]
    steps = [largest // int(x) if may_accumulate else 1 for x in u]
    u_all = np.repeat(u, steps)
    k_all = np.concatenate([np.arange(1, n + 1) for n in steps]) if steps else u_all
    is_uneven = compute[u_all] + job.state_bytes / gpus > usable
    factor = np.where(is_uneven, fixed.uneven_collective_factor, 1.0)
    overhead_s = fixed.accumulation_overhead_s
    time_s = layer_s(
        worker.latency, u_all, k_all, all_gather_s=factor * job.all_gather_s,
        reduce_scatter_s=factor * job.reduce_scatter_s, accumulation_overhead_s=overhead_s,
    )  # fmt: skip
    nothing_s = np.zeros(u_all.size)
    compute_s = layer_s(
        worker.latency, u_all, k_all, all_gather_s=nothing_s, reduce_scatter_s=nothing_s,
        accumulation_overhead_s=overhead_s,
    )  # fmt: skip
    order = np.argsort(time_s, kind="stable")
    return BatchOptions(u_all * k_all, u_all, time_s, compute_s).chosen(order)


def _memory_budget(
    workers: Sequence[Worker], job: UnevenJob, compute: Floats, fixed: CephaloConstants
) -> float:
    """Return the memory left for the computations of all GPUs together [bytes]."""
    usable = sum(fixed.usable_fraction * w.memory_bytes - fixed.reserve_bytes for w in workers)
    budget = usable - job.state_bytes
    tightest = min(workers, key=lambda w: w.memory_bytes)
    alone = fixed.usable_fraction * tightest.memory_bytes - fixed.reserve_bytes
    missing = max(len(workers) * compute[1] - budget, compute[1] - alone)
    if missing > 0:
        raise impossible(
            f"the state of {job.state_bytes / GIB:.1f} GiB and one sample a GPU need "
            f"{missing / GIB:.1f} GiB more than the {len(workers)} GPUs can give",
            f"tightest {tightest.name} with {tightest.memory_bytes / GIB:.0f} GiB; add GPUs, "
            "offload the optimizer state, or shorten the sequence",
        )
    return budget


def _largest_first(
    workers: Sequence[Worker], chosen: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Give equal GPUs their shares in falling order: the answer does not depend on their order."""
    sorted_shares = list(chosen)
    for kind in dict.fromkeys(workers):
        places = [i for i, w in enumerate(workers) if w == kind]
        shares = sorted((chosen[i] for i in places), reverse=True)
        for i, share in zip(places, shares, strict=True):
            sorted_shares[i] = share
    return sorted_shares


def _finish(
    workers: Sequence[Worker], job: UnevenJob, options: Sequence[BatchOptions],
    chosen: Sequence[tuple[int, int]], compute: Floats, fixed: CephaloConstants,
) -> UnevenPlan:  # fmt: skip
    b = np.array([b for b, _ in chosen])
    u = np.array([u for _, u in chosen])
    rows = [
        np.flatnonzero((o.b == share) & (o.u == micro))[0]
        for o, (share, micro) in zip(options, chosen, strict=True)
    ]
    times = [float(o.time_s[row]) for o, row in zip(options, rows, strict=True)]
    computed = [float(o.compute_s[row]) for o, row in zip(options, rows, strict=True)]
    capacity = fixed.usable_fraction * np.array([w.memory_bytes for w in workers])
    in_use = compute[u] + fixed.reserve_bytes
    shards = level_shards(job.state_bytes, capacity, in_use)
    return UnevenPlan(
        batches=tuple(map(int, b)), micro_batches=tuple(map(int, u)),
        accumulation_steps=tuple(map(int, b // u)), state_bytes=tuple(map(float, shards)),
        memory_bytes=tuple(map(float, in_use + shards)), layer_s=tuple(times),
        step_s=job.layers * max(times) + job.optimizer_s,
        exposed_s=job.layers * (max(times) - max(computed)),
    )  # fmt: skip
