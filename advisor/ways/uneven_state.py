"""Fully sharded data parallelism with uneven batches and uneven shards (Cephalo)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.layer_latency import Floats
from advisor.planners.heterogeneous import cephalo
from advisor.planners.heterogeneous.cephalo import CephaloConstants, UnevenJob, Worker
from advisor.ways.answer import Choice
from advisor.ways.model_on import ModelOn, ReducedStep, Stage
from advisor.ways.on_groups import ALONE, OnGroups, fullest

NAME: Final = "uneven batches and state"
# A unit has its own time at every micro-batch: no second charge for accumulating.
_CONSTANTS: Final = CephaloConstants(accumulation_overhead_s=0.0)


def uneven_state(case: OnGroups) -> Choice:
    """Plan fully sharded data parallelism with uneven batches and state (Cephalo).

    Raises
    ------
    PlanningError
        If there are fewer samples than GPUs, no split fits, or other degrees are asked for.
    """
    case.refuse(
        **ALONE, micro_batch=(), accumulation_steps=(), zero_stages=(3,), recomputes=("full",)
    )
    model, groups = case.model, case.groups
    layers = len(model.table.names)
    layer_bytes = model.weight_bytes * model.work.parameters / layers
    gather = model.law.gather_s(groups, layer_bytes)
    of_group = [
        Worker(
            name=g.part.name,
            memory_bytes=g.node.device.memory_bytes,
            latency=model.layer_latency(g, layers),
        )
        for g in groups
    ]
    workers = [w for w, g in zip(of_group, groups, strict=True) for _ in range(g.devices)]
    job = UnevenJob(
        global_batch=case.global_batch,
        layers=layers,
        state_bytes=_state_bytes(model),
        compute_bytes=tuple(_compute_bytes(model)),
        all_gather_s=gather,
        reduce_scatter_s=gather,
        optimizer_s=max(model.times(g).optimizer_s for g in groups) / case.cluster.devices,
    )
    found = cephalo.plan(workers, job, constants=_CONSTANTS)
    whole = _with_stragglers(model, found.step_s)
    total = max(sum(found.state_bytes), 1.0)
    return case.choice(
        NAME,
        whole.step_s,
        model.log_sd(groups, whole.log_sd),
        memory_bytes=fullest(case.worker_labels(), found.memory_bytes),
        parts_s={"network": whole.straggler_s},
        details={
            "batches": list(found.batches),
            "accumulation_steps": list(found.accumulation_steps),
            "state_share": [s / total for s in found.state_bytes],
            "even_step_s": _even_s(model, workers, job),
        },
        notes=("shards of unequal size need Cephalo's own FSDP; no released framework",),
    )


def _with_stragglers(model: ModelOn, computed_s: float) -> ReducedStep:
    """Return the step with what waits for stragglers; its collectives are in it already."""
    stage = Stage(computed_s=computed_s, backward_s=computed_s, optimizer_s=0.0, last=0)
    waiting = model.law.reduced(model.groups, stage)
    return replace(waiting, step_s=computed_s + waiting.straggler_s + model.law.fixed_s)


def _even_s(model: ModelOn, workers: Sequence[Worker], job: UnevenJob) -> float | None:
    """Return the step with equal batches; None where they do not divide or do not fit [s]."""
    try:
        even = cephalo.even_plan(workers, job, constants=_CONSTANTS)
    except PlanningError:
        return None
    return _with_stragglers(model, even.step_s).step_s


def _state_bytes(model: ModelOn) -> float:
    """Return weights, gradients and optimizer state of the model, all shards together [bytes]."""
    work = model.work
    return work.parameter_bytes + work.gradient_bytes + work.optimizer_state_bytes


def _compute_bytes(model: ModelOn) -> Floats:
    """Return memory of the computation by micro-batch: unit inputs and one live unit."""
    table = model.table
    each = table.kept_bytes(1, "recomputed").sum() + table.live_bytes(1, "recomputed")
    micro = np.arange(1.0, 9.0)
    return np.asarray(model.memory.slack * micro * (each + model.work.input_bytes_per_sample))
