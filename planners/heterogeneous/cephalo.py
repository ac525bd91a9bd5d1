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

from advisor.planners.core.checks import check_counts, check_not_negative, check_positive
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.layer_latency import Floats, LayerLatency
from advisor.planners.core.units import GIB
from advisor.planners.heterogeneous.state_shards import level_shards, level_utilisation
from advisor.planners.heterogeneous.uneven_split import BatchOptions, Ints, split_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class CephaloConstants:
    """Constants of the authors' planner; each names the term that it stands in.

    Attributes
    ----------
    usable_fraction : float
        Share of a GPU's memory that a plan may fill.
    reserve_bytes : float
        Buffers of the collectives on each GPU. [bytes]
    accumulation_overhead_s : float
        o: each accumulation step after the first, per layer. [s]
    uneven_collective_factor : float
        Slowdown of AG and RS where shards are uneven.
    """

    usable_fraction: float = 0.75
    reserve_bytes: float = 2.0 * GIB
    accumulation_overhead_s: float = 0.010
    uneven_collective_factor: float = 1.25


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
    """What is trained.

    Attributes
    ----------
    global_batch, layers : int
    state_bytes : float
        Sharded over all GPUs. [bytes]
    compute_bytes : tuple of float
        Memory of the computation at micro-batch 1, 2, ...; beyond the last, the mean of the last
        up to five increments is added per sample. [bytes]
    all_gather_s, reduce_scatter_s : float
        Per layer, even shards. [s]
    optimizer_s : float
        Added once a step. [s]
    """

    global_batch: int
    layers: int
    state_bytes: float = 0.0
    compute_bytes: tuple[float, ...] = (0.0,)
    all_gather_s: float = 0.0
    reduce_scatter_s: float = 0.0
    optimizer_s: float = 0.0

    def __post_init__(self) -> None:
        check_counts("job", global_batch=self.global_batch, layers=self.layers)
        if not self.compute_bytes:
            raise PlanningError(
                "job: no memory of the computation", hint="give compute_bytes", exit_code=2
            )
        names = ("state_bytes", "compute_bytes", "all_gather_s", "reduce_scatter_s", "optimizer_s")
        check_not_negative("job", **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenPlan:
    """How the work and the state are split; one entry a GPU, in the order given.

    Attributes
    ----------
    batches, micro_batches, accumulation_steps : tuple of int
        ``batches = micro_batches * accumulation_steps``.
    state_bytes, memory_bytes : tuple of float
        Stored share of the state; all memory in use. [bytes]
    layer_s : tuple of float
        Time of one layer, forward and backward. [s]
    step_s : float
        ``layers * max(layer_s) + optimizer_s``. [s]
    """

    batches: tuple[int, ...]
    micro_batches: tuple[int, ...]
    accumulation_steps: tuple[int, ...]
    state_bytes: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    layer_s: tuple[float, ...]
    step_s: float


def layer_s(
    latency: LayerLatency,
    micro_batch: Ints,
    accumulation_steps: Ints,
    *,
    all_gather_s: Floats,
    reduce_scatter_s: Floats,
    accumulation_overhead_s: float,
) -> Floats:
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


def plan(
    workers: Sequence[Worker],
    job: UnevenJob,
    *,
    constants: CephaloConstants | None = None,
    may_accumulate: bool = True,
    balance_memory: bool = False,
) -> UnevenPlan:
    """Split a step over mixed GPUs so that the slowest of them is as fast as possible.

    Parameters
    ----------
    workers : sequence of Worker
        Equal GPUs get their shares in falling order of batch.
    job : UnevenJob
    constants : CephaloConstants, optional
    may_accumulate : bool, default True
        Whether a GPU may split its batch into micro-batches.
    balance_memory : bool, default False
        Shards equalise the used fraction of memory instead of the largest shard.

    Raises
    ------
    PlanningError
        If there are fewer samples than GPUs, or no split fits into the memory.
    """
    fixed = constants or CephaloConstants()
    _check_workers(workers)
    if job.global_batch < len(workers):
        raise PlanningError(
            f"a global batch of {job.global_batch} gives {len(workers)} GPUs less than one "
            "sample each",
            hint="raise the batch or use fewer GPUs",
            exit_code=3,
        )
    largest = job.global_batch - len(workers) + 1
    compute = memory_curve(job.compute_bytes, largest)
    options = [_options(w, job, len(workers), compute, fixed, may_accumulate) for w in workers]
    budget = _memory_budget(workers, job, compute, fixed)
    chosen = split_batch(options, job.global_batch, compute, budget)
    chosen = _largest_first(workers, chosen)
    return _finish(workers, job, options, chosen, compute, fixed, balance_memory)


def even_plan(
    workers: Sequence[Worker], job: UnevenJob, *, constants: CephaloConstants | None = None
) -> UnevenPlan:
    """Return the plan with equal batches, each GPU still choosing its own accumulation.

    Raises
    ------
    PlanningError
        If the GPUs do not divide the batch or an equal share does not fit somewhere.
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
    options = [BatchOptions(o.b[o.b == b], o.u[o.b == b], o.time_s[o.b == b]) for o in options]
    budget = _memory_budget(workers, job, compute, fixed)
    chosen = split_batch(options, job.global_batch, compute, budget)
    return _finish(workers, job, options, chosen, compute, fixed, False)


def _check_workers(workers: Sequence[Worker]) -> None:
    if not workers:
        raise PlanningError("no GPU to plan for", hint="give at least one", exit_code=2)


def _options(
    worker: Worker,
    job: UnevenJob,
    gpus: int,
    compute: Floats,
    fixed: CephaloConstants,
    may_accumulate: bool,
) -> BatchOptions:
    largest = compute.size - 1
    usable = fixed.usable_fraction * worker.memory_bytes - fixed.reserve_bytes
    u = np.arange(1, largest + 1)
    u = u[compute[u] <= usable]
    steps = [largest // int(x) if may_accumulate else 1 for x in u]
    u_all = np.repeat(u, steps)
    k_all = np.concatenate([np.arange(1, n + 1) for n in steps]) if steps else u_all
    is_uneven = compute[u_all] + job.state_bytes / gpus > usable
    factor = np.where(is_uneven, fixed.uneven_collective_factor, 1.0)
    time_s = layer_s(
        worker.latency,
        u_all,
        k_all,
        all_gather_s=factor * job.all_gather_s,
        reduce_scatter_s=factor * job.reduce_scatter_s,
        accumulation_overhead_s=fixed.accumulation_overhead_s,
    )
    order = np.argsort(time_s, kind="stable")
    return BatchOptions((u_all * k_all)[order], u_all[order], time_s[order])


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
        raise PlanningError(
            f"the state of {job.state_bytes / GIB:.1f} GiB and one sample a GPU need "
            f"{missing / GIB:.1f} GiB more than the {len(workers)} GPUs can give",
            hint=f"tightest {tightest.name} with {tightest.memory_bytes / GIB:.0f} GiB; add GPUs, "
            "offload the optimizer state, or shorten the sequence",
            exit_code=3,
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
    workers: Sequence[Worker],
    job: UnevenJob,
    options: Sequence[BatchOptions],
    chosen: Sequence[tuple[int, int]],
    compute: Floats,
    fixed: CephaloConstants,
    balance_memory: bool,
) -> UnevenPlan:
    b = np.array([b for b, _ in chosen])
    u = np.array([u for _, u in chosen])
    times = [
        float(o.time_s[(o.b == share) & (o.u == micro)][0])
        for o, (share, micro) in zip(options, chosen, strict=True)
    ]
    capacity = fixed.usable_fraction * np.array([w.memory_bytes for w in workers])
    in_use = compute[u] + fixed.reserve_bytes
    level = level_utilisation if balance_memory else level_shards
    shards = level(job.state_bytes, capacity, in_use)
    return UnevenPlan(
        batches=tuple(map(int, b)),
        micro_batches=tuple(map(int, u)),
        accumulation_steps=tuple(map(int, b // u)),
        state_bytes=tuple(map(float, shards)),
        memory_bytes=tuple(map(float, in_use + shards)),
        layer_s=tuple(times),
        step_s=job.layers * max(times) + job.optimizer_s,
    )
