"""Stages of a pipeline over unlike groups: what a layer takes in each, and how many each holds.

| here             | meaning                                                                    |
|------------------|----------------------------------------------------------------------------|
| ``layer_s``      | forward and backward of one layer and micro-batch in a group [s]           |
| ``most``         | layers that fit into a stage of the group                                  |
| ``head_s``       | what the last stage does besides [s]                                       |
| ``slowest_s``    | the longest stage, to be made as short as possible [s]                     |

A stage time is a whole number of layers of its group, the last one's a whole number and the head.
The least limit under which all layers find room is one of those: per group it is found by halving,
for all columns at once. Columns are (n,), one row a candidate; lists are by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.columns import Layouts, layer_parameters
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.layouts.layout_time import calibrated, ring_bytes_per_s
from advisor.planners.layouts.problem import LayoutProblem
from advisor.planners.links.tensor_parallel import tensor_parallel_s
from advisor.planners.memory.layout_memory import (
    kept_bytes,
    layer_activation_bytes,
    sent_bytes,
)
from advisor.planners.step.transformer_step import launch_s, layer_times

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedColumns:
    """Candidates: the width (data-parallel ranks), micro-batch and choices all groups share.

    Attributes
    ----------
    width, micro_batch, steps, recompute, zero_stage : arrays of shape (n,)
    tp, pp : list of arrays of shape (n,)
        Tensor-parallel degree and stages, by group in pipeline order.
    """

    width: Ints
    micro_batch: Ints
    steps: Ints
    recompute: Ints
    zero_stage: Ints
    tp: list[Ints]
    pp: list[Ints]

    @property
    def stages(self) -> Ints:
        """Stages of all groups together."""
        total: Ints = np.sum(self.pp, axis=0)
        return total

    def layouts(self, group: int) -> Layouts:
        """Return the layout model's columns of one group's stages."""
        return Layouts(
            dp=self.width,
            tp=self.tp[group],
            pp=self.stages,
            micro_batch=self.micro_batch,
            accumulation_steps=self.steps,
            shard_group=self.width,
            zero_stage=self.zero_stage,
            recompute=self.recompute,
            is_sequence_parallel=self.tp[group] > 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStages:
    """One group's stages: a layer's time, a send, and memory as fixed + layers x each.

    All arrays of shape (n,); ``update_s`` is exposed reduction and optimizer of a stage as
    ``update_fixed_s`` + layers x ``update_layer_s``, before what hides it is taken off.
    """

    layer_s: Floats
    send_s: Floats
    fixed_bytes: Floats
    layer_bytes: Floats
    most: Ints
    layer_parameters: Floats
    embedding_parameters: Floats
    ring_bytes_per_s: Floats
    stream_bytes_per_s: Floats


def group_stages(
    problems: Sequence[LayoutProblem], columns: MixedColumns, group: int
) -> GroupStages:
    """Return what one group's stages take, for every candidate."""
    problem, tp = problems[group], columns.tp[group]
    here, parameters = problem.machines, problem.parameters
    case = problem.case(columns.layouts(group))
    layer = calibrated(layer_times(case), problem.device_factor)
    busy = layer.forward_s + layer.backward_s + layer.recompute_s
    busy = busy + tensor_parallel_s(case)
    side_by_side = np.minimum(columns.width * tp, int(here.devices_per_node))
    network = float(here.network_bytes_per_s) / side_by_side
    width = problem.transformer.hidden / tp
    boundary = 2 * columns.micro_batch * float(problem.transformer.sequence) * width
    send = boundary / (parameters.pp_efficiency * network) + parameters.pp_latency_s
    fixed, each, weights, embedding = _memory(problem, columns, group, len(problems))
    room = np.maximum(problem.capacity_bytes - fixed, 0.0)
    return GroupStages(
        layer_s=np.maximum(busy, launch_s(case) * problem.device_factor),
        send_s=np.where(columns.stages > 1, send, 0.0),
        fixed_bytes=fixed,
        layer_bytes=each,
        most=np.floor(room / each).astype(np.int64),
        layer_parameters=weights,
        embedding_parameters=embedding,
        ring_bytes_per_s=ring_bytes_per_s(case, columns.width),
        stream_bytes_per_s=case.stream_bytes_per_s,
    )


def _memory(
    problem: LayoutProblem, columns: MixedColumns, group: int, groups: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return fixed bytes, bytes a layer, parameters a layer and embedding parameters."""
    shapes, software, memory = problem.shapes, problem.software, problem.memory
    layouts, tp = columns.layouts(group), columns.tp[group]
    attention, ffn = layer_parameters(shapes)
    weights = np.asarray((attention + ffn) / tp)
    is_end = group in (0, groups - 1)
    embedding = np.asarray(shapes.vocabulary, float) * shapes.hidden / tp * is_end
    shards = np.where(columns.zero_stage >= 1, columns.width, 1)
    trained = np.asarray(software.gradient_bytes) + software.optimizer_state_bytes / shards
    states = software.weight_bytes + problem.trained_share * trained
    whole = layer_activation_bytes(shapes, layouts, software)
    live = np.where(columns.recompute == 2, whole, 0.0)
    logits = memory.logit_bytes * columns.micro_batch * np.asarray(shapes.sequence, float)
    logits = logits * shapes.vocabulary / tp * (group == groups - 1)
    # A group's first stage holds most: as many micro-batches as stages follow it, itself included.
    behind = columns.stages - np.sum(columns.pp[:group], axis=0)
    held = np.minimum(behind, columns.steps)
    sent = np.where(columns.stages > 1, held * sent_bytes(shapes, layouts, software), 0.0)
    fixed = memory.context_bytes + memory.slack * (live + logits + sent + embedding * states)
    each = memory.slack * (weights * states + held * kept_bytes(shapes, layouts, software))
    return np.asarray(fixed), np.asarray(each), weights, np.asarray(embedding)


def apportion(
    layers: int,
    stages: Sequence[Ints],
    layer_s: Sequence[Floats],
    most: Sequence[Ints],
    head_s: Floats,
) -> tuple[list[Ints], Ints, Floats]:
    """Share layers over unlike stages so that the slowest is as fast as possible.

    Parameters
    ----------
    stages : by group, arrays of shape (n,)
        Stages of the group.
    layer_s, most : by group, arrays of shape (n,)
        Time of a layer [s]; most layers that a stage can hold.
    head_s : array of shape (n,)
        What the last stage of the last group does besides. [s]

    Returns
    -------
    counts : list of arrays
        Most layers of a stage of each group within the slowest stage's time.
    last : array
        The same of the last stage, which has the head besides.
    slowest_s : array
        The longest stage; inf where the layers find no room. [s]
    """

    def placed(limit: Floats) -> tuple[list[Ints], Ints, Ints]:
        # A billionth: k layers must fit into k times a layer's time, rounded as it may be.
        counts = [
            np.minimum(np.floor(limit / t * (1 + 1e-9)), m).astype(np.int64)
            for t, m in zip(layer_s, most, strict=True)
        ]
        last = np.floor(np.maximum(limit - head_s, 0.0) / layer_s[-1] * (1 + 1e-9))
        last = np.minimum(last, most[-1]).astype(np.int64)
        total: Ints = np.sum([p * n for p, n in zip(stages, counts, strict=True)], axis=0)
        total = total - counts[-1] + last
        everybody = np.min([*counts, last], axis=0) >= 1
        return counts, last, np.where(everybody, total, -1)

    best = np.full(head_s.shape, np.inf)
    for group, (t, m) in enumerate(zip(layer_s, most, strict=True)):
        for extra in (0.0, head_s) if group == len(layer_s) - 1 else (0.0,):
            low, high = np.ones_like(m), np.minimum(np.maximum(m, 1), layers)
            while (low < high).any():
                middle = (low + high) // 2
                enough = placed(middle * t + extra)[2] >= layers
                high = np.where(enough & (low < high), middle, high)
                low = np.where(enough | (low >= high), low, middle + 1)
            limit = high * t + extra
            best = np.where(placed(limit)[2] >= layers, np.minimum(best, limit), best)
    counts, last, _ = placed(np.where(np.isfinite(best), best, 0.0))
    return counts, last, best


def update_s(
    columns: MixedColumns,
    stages: Sequence[GroupStages],
    layers: Sequence[Ints],
    parameters: LayoutParameters,
) -> Floats:
    """Return the slowest group's exposed gradient reduction and optimizer update [s]."""
    slowest = np.zeros(columns.width.shape)
    d = columns.width
    for group, n in zip(stages, layers, strict=True):
        held = n * group.layer_parameters + group.embedding_parameters
        # Scatter fp32 gradients and gather 16-bit weights, or all-reduce the gradients.
        per_parameter = np.where(columns.zero_stage >= 1, 4 + 2, 2 * 4)
        reduction = per_parameter * held * (d - 1) / d / group.ring_bytes_per_s
        # Two thirds of a layer's time are its backward pass.
        hidden = parameters.dp_overlap * n * group.layer_s * 2 / 3
        updated = held / np.where(columns.zero_stage >= 1, d, 1)
        update = parameters.optimizer_bytes * updated / group.stream_bytes_per_s
        slowest = np.maximum(slowest, np.maximum(reduction - hidden, 0.0) + update)
    return np.asarray(slowest + parameters.step_s)
