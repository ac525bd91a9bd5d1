"""Pipelines whose stages are unequal groups of GPUs over unequal links (Zorse).

| here                 | Zorse  | meaning                                                         |
|----------------------|--------|-----------------------------------------------------------------|
| ``forward_s``        | t_f    | forward of one layer for one micro-batch on a GPU [s]           |
| ``both_s``           | T      | t_f + t_b: the backward pass recomputes the forward [s]         |
| ``all_gather_s``     | AG     | gathering one layer's parameters in a group [s]                 |
| ``reduce_scatter_s`` | RS     | scattering one layer's gradients in a group [s]                 |
| ``send_receive_s``   | SR     | handing one micro-batch's activations to the next stage [s]     |
| ``counts``           | n_i    | micro-batches that GPU i of a group processes in a step         |
| ``degree``           | v      | ministages of a group; stages go round the groups v times       |
| ``chunks``           | -      | layers of a group's ministages                                  |

Machines are grouped so that slow links fall between groups (``planners.links.grouping``). Inside a
group: data parallel with sharded state and micro-batches in proportion to speed. Across groups:
layers in proportion to the groups' speed, cut into ministages, so that a group's memory holds two
ministages unsharded and not all its layers. All times are seconds: upstream divides modelled
collective times by 1000 and compares them with milliseconds, which makes them vanish.
Source: Zorse (MLSys'26); repository benson-guo/zorse, MIT, ``zorse_planner.py`` and
``zorse_optimizer``; its golden plans are reproduced exactly in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    GIB,
    Floats,
    PlanningError,
    check_counts,
    check_not_negative,
    check_positive,
    impossible,
    refused,
)
from advisor.planners.memory import Ledger, model_state, without_terms
from advisor.planners.systems.cephalo import Worker

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZorseConstants:
    """Constants of the authors' planner; each names the term that it stands in."""

    # parameter_bytes, optimizer_bytes: per parameter: the working copy, and what is sharded for
    # the optimizer [bytes]
    parameter_bytes: float = 2.0
    optimizer_bytes: float = 12.0
    # activations of a micro-batch kept at stage boundaries, as multiples of sequence x hidden
    boundary_activations: float = 3.0
    reserve_bytes: float = 2.0 * GIB  # context and buffers on each GPU [bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineGroup:
    """GPUs that train the same layers data-parallel.

    ``all_gather_s`` and ``reduce_scatter_s`` are per layer. [s]
    """

    workers: tuple[Worker, ...]
    all_gather_s: float = 0.0
    reduce_scatter_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.workers:
            raise refused("a group has no GPUs", "leave it out")
        check_not_negative(
            "group", all_gather_s=self.all_gather_s, reduce_scatter_s=self.reduce_scatter_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJob:
    """What is trained: ``layer_parameters`` and ``hidden`` are of one (repeated) layer."""

    global_batch: int
    layers: int
    layer_parameters: float
    sequence: int
    hidden: int

    def __post_init__(self) -> None:
        names = ("global_batch", "layers", "sequence", "hidden")
        check_counts("job", **{name: getattr(self, name) for name in names})
        check_not_negative("job", layer_parameters=self.layer_parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymmetricPlan:
    """A pipeline over groups, in pipeline order."""

    groups: tuple[PipelineGroup, ...]
    micro_batch: int
    degree: int
    # of the stages in pipeline order: ministage j of group g is stage ``j * len(groups) + g``
    layers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]  # micro-batches in a step, by group and GPU
    # startup_s, core_s, drain_s, step_s: ``step_s`` is their sum
    startup_s: float
    core_s: float
    drain_s: float
    step_s: float
    ledgers: tuple[Ledger, ...]  # per GPU, by group [bytes]
    # all but two ministages of the parameters, and the optimizer's state, lie in host memory
    is_offloaded: bool = False
    host_bytes: float = 0.0  # host memory that offloading takes, over all groups [bytes]

    @property
    def memory_bytes(self) -> tuple[float, ...]:
        """What a GPU takes, by group [bytes]."""
        return tuple(float(without_terms(one)) for one in self.ledgers)

    def without_network_s(self) -> tuple[float, float, float]:
        """Return start-up, core and drain over links that take no time [s]."""
        return schedule_s(
            [replace(group, all_gather_s=0.0, reduce_scatter_s=0.0) for group in self.groups],
            [np.array(count) for count in self.counts],
            list(np.reshape(self.layers, (self.degree, -1)).T),
            self.micro_batch,
            0.0,
        )


def ring_s(payload_bytes: float, ring_bytes_per_s: Sequence[float], *, factor: float) -> float:
    """Return the time of a ring all-gather or reduce-scatter over unequal links [s].

    Every one of the n-1 steps waits for the slowest link (section 4.7); ``factor`` is the
    authors' 1.15, and 2.5 on the one host where their model and their measurement can be
    compared.

    >>> round(ring_s(4e9, [1e9, 2e9, 2e9, 2e9], factor=1.0), 9)
    3.0
    """
    n = len(ring_bytes_per_s)
    check_positive("ring", bytes_per_s=ring_bytes_per_s)
    return 0.0 if n < 2 else (n - 1) * payload_bytes / n / min(ring_bytes_per_s) * factor


def share_counts(workers: Sequence[Worker], micro_batch: int, micro_batches: int) -> Ints:
    """Share micro-batches over a group's GPUs by speed; the fastest takes the remainder."""
    both = _zorse_both_s(workers, micro_batch)[1]
    return proportional(1.0 / both, micro_batches)


def proportional(speed: Floats, total: int) -> Ints:
    """Share a whole number out by speed; the fastest takes the remainder."""
    shares: Ints = np.floor(total * speed / speed.sum() + 1e-9).astype(np.int64)
    shares[int(np.argmax(speed))] += total - int(shares.sum())
    return shares


def _zorse_both_s(workers: Sequence[Worker], micro_batch: int) -> tuple[Floats, Floats]:
    times = [w.latency.at(micro_batch) for w in workers]
    forward = np.array([float(f) for f, _ in times])
    return forward, forward + np.array([float(b) for _, b in times])


def share_layers(group_s: Floats, layers: int, degree: int) -> list[Ints]:
    """Share layers over groups by speed and cut each share into ``degree`` ministages.

    ``group_s``: (groups,); time of one layer over a group's whole share of the step [s].

    Raises PlanningError if there are fewer layers than ministages.

    Returns
    -------
    list of arrays of shape (degree,)
        Layers of each group's ministages. What the even division leaves over goes, one layer at
        a time, to the group that would then be fastest.
    """
    if layers < group_s.size * degree:
        raise PlanningError(
            f"{layers} layers do not fill {group_s.size} groups x {degree} ministages",
            hint="use fewer groups or a smaller interleave degree",
        )
    even = np.maximum(proportional(1.0 / group_s, layers) // degree, 1)
    while even.sum() * degree > layers:
        # At least one layer a ministage may ask for more than there are: the slowest gives.
        can_give = np.flatnonzero(even > 1)
        even[can_give[np.argmax((group_s * even)[can_give])]] -= 1
    chunks = [np.full(degree, int(n)) for n in even]
    for _ in range(layers - int(even.sum()) * degree):
        totals = np.array([c.sum() for c in chunks])
        group = chunks[int(np.argmin(group_s * (totals + 1)))]
        group[int(np.argmin(group))] += 1
    return chunks


def schedule_s(
    groups: Sequence[PipelineGroup], counts: Sequence[Ints], chunks: Sequence[Ints],
    micro_batch: int, send_receive_s: float,
) -> tuple[float, float, float]:  # fmt: skip
    """Return start-up, core and drain of a step (section 3.1, step 5) [s]."""
    times = [_zorse_both_s(g.workers, micro_batch) for g in groups]
    forward = [float(f.max()) for f, _ in times]
    both = [float(t.max()) for _, t in times]
    stages = [(g, int(c[j])) for j in range(chunks[0].size) for g, c in enumerate(chunks)]
    edge = min(len(groups) + 1, len(stages))
    first, last = stages[0], stages[-1]
    startup = sum(forward[g] * n for g, n in stages[:edge]) + send_receive_s * (edge - 1)
    startup += max(groups[first[0]].all_gather_s - forward[first[0]], 0.0) * first[1]
    drain = sum(both[g] * n for g, n in stages[-edge:]) + send_receive_s * (edge - 1)
    drain += max(groups[last[0]].reduce_scatter_s - both[last[0]], 0.0) * last[1]
    core = max(
        _core_s(group, *time, count, chunk, send_receive_s)
        for group, time, count, chunk in zip(groups, times, counts, chunks, strict=True)
    )
    return startup, core, drain


def _core_s(
    group: PipelineGroup, forward: Floats, both: Floats, counts: Ints, chunk: Ints, send_s: float
) -> float:
    """Return the steady part of one group: the sum over its ministages [s]."""
    layers = chunk[:, None]  # (ministages, GPUs)
    # The first micro-batch of the first ministage belongs to the start-up.
    started = np.where(np.arange(chunk.size)[:, None] == 0, 1, 0)
    forward_counts = np.maximum(counts[None, :] - started, 0)
    up = (np.maximum(forward * layers, send_s) * forward_counts).max(axis=1)
    down = (np.maximum(both * layers, send_s) * counts[None, :]).max(axis=1)
    gathered, scattered = group.all_gather_s, group.all_gather_s + group.reduce_scatter_s
    return float((np.maximum(up, gathered * chunk) + np.maximum(down, scattered * chunk)).sum())


def memory_ledger(
    gpus: int, chunk: Ints, job: PipelineJob, micro_batch: int, fixed: ZorseConstants, *,
    is_offloaded: bool,
) -> Ledger:  # fmt: skip
    """Return the memory of each GPU of a group, by term (section 3.1, step 6) [bytes]."""
    pairs = chunk[:-1] + chunk[1:] if chunk.size > 1 else chunk
    whole, layers = float(pairs.max()), float(chunk.sum())
    shared = model_state(
        (layers - whole) * fixed.parameter_bytes, 0, layers * fixed.optimizer_bytes, dp=gpus,
        zero_stage=3, moves_weights=is_offloaded, moves_optimizer=is_offloaded,
    )  # fmt: skip
    boundary = micro_batch * job.sequence * job.hidden * fixed.parameter_bytes
    each = job.layer_parameters
    return {
        "parameters": shared.weights * each, "optimizer": shared.optimizer * each,
        "gathered": np.asarray(whole * fixed.parameter_bytes * each),
        "activations": np.asarray(fixed.boundary_activations * boundary),
        "context": np.asarray(fixed.reserve_bytes),
    }  # fmt: skip


def best_of_groups(
    groups: Sequence[PipelineGroup], job: PipelineJob, *, send_receive_s: Callable[[int], float],
    micro_batches: Sequence[int] | None = None, constants: ZorseConstants | None = None,
    may_offload: bool = False,
) -> AsymmetricPlan:  # fmt: skip
    """Choose micro-batch and interleave degree for groups in pipeline order.

    ``send_receive_s``: time to hand its activations to the next stage [s]; ``micro_batches``: to
    try; default the powers of two that divide the batch; ``may_offload``: try parameters and
    optimizer in host memory where a plan does not fit otherwise; False by default.

    Raises PlanningError if no combination fits into memory.
    """
    if not groups:
        raise refused("a pipeline needs a group", "give at least one")
    fixed = constants or ZorseConstants()
    tried = micro_batches or [
        2**i for i in range(job.global_batch.bit_length()) if job.global_batch % 2**i == 0
    ]
    sends_s = {m: send_receive_s(m) for m in tried}
    check_not_negative("link between groups", send_receive_s=list(sends_s.values()))
    plans = [
        p
        for m, send_s in sends_s.items()
        for v in range(1, min(job.layers // 2, len(groups)) + 3)
        for p in _plans(groups, job, m, v, send_s, fixed, may_offload)
    ]
    if not plans:
        raise PlanningError(
            f"{job.layers} layers cannot be cut over {len(groups)} groups", hint="use fewer groups"
        )
    fitting = [p for p in plans if _excess_bytes(p) <= 0]
    if not fitting:
        nearest = min(plans, key=_excess_bytes)
        raise impossible(
            f"no pipeline over these groups fits: the nearest misses by "
            f"{_excess_bytes(nearest) / GIB:.1f} GiB (micro-batch {nearest.micro_batch}, "
            f"{nearest.degree} ministages)",
            "add GPUs to the tightest group, or allow offloading to host memory",
        )
    return min(fitting, key=lambda p: p.step_s)


def _plans(
    groups: Sequence[PipelineGroup], job: PipelineJob, micro_batch: int, degree: int,
    send_receive_s: float, fixed: ZorseConstants, may_offload: bool,
) -> list[AsymmetricPlan]:  # fmt: skip
    if job.layers < len(groups) * degree or job.global_batch % micro_batch:
        return []
    total = job.global_batch // micro_batch
    counts = [share_counts(g.workers, micro_batch, total) for g in groups]
    both = [_zorse_both_s(g.workers, micro_batch)[1] for g in groups]
    group_s = np.array([float((t * n).max()) for t, n in zip(both, counts, strict=True)])
    chunks = share_layers(group_s, job.layers, degree)
    parts = schedule_s(groups, counts, chunks, micro_batch, send_receive_s)
    state = float(model_state(fixed.parameter_bytes, 0, fixed.optimizer_bytes).device_bytes)
    return [
        AsymmetricPlan(
            groups=tuple(groups),
            micro_batch=micro_batch,
            degree=degree,
            layers=tuple(int(c[j]) for j in range(degree) for c in chunks),
            counts=tuple(tuple(map(int, n)) for n in counts),
            startup_s=parts[0],
            core_s=parts[1],
            drain_s=parts[2],
            step_s=sum(parts),
            ledgers=tuple(
                memory_ledger(
                    len(g.workers), c, job, micro_batch, fixed, is_offloaded=is_offloaded
                )
                for g, c in zip(groups, chunks, strict=True)
            ),
            is_offloaded=is_offloaded,
            host_bytes=state * job.layers * job.layer_parameters if is_offloaded else 0.0,
        )
        for is_offloaded in ([False, True] if may_offload else [False])
    ]


def _excess_bytes(plan: AsymmetricPlan) -> float:
    smallest = [min(w.memory_bytes for w in g.workers) for g in plan.groups]
    return max(m - s for m, s in zip(plan.memory_bytes, smallest, strict=True))


def order_groups(groups: Sequence[PipelineGroup], bytes_per_s: Floats) -> list[int]:
    """Chain groups: the fastest all-gather first, then always the best-connected next.

    ``bytes_per_s``: (groups, groups); average bandwidth between two groups [bytes/s].
    """
    order = [int(np.argmin([g.all_gather_s for g in groups]))]
    while len(order) < len(groups):
        left = [i for i in range(len(groups)) if i not in order]
        order.append(max(left, key=lambda i: (bytes_per_s[order[-1], i], -i)))
    return order
