"""A transformer on every device of a fleet and on the links of two types, by the layout model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.columns import RECOMPUTES, Layouts
from advisor.planners.heterogeneous.uneven_data_parallel import MicroBatchCurve
from advisor.planners.layouts.layout_time import calibrated, data_parallel_s, fixed_s, step_times
from advisor.planners.memory.layout_memory import memory_bytes
from advisor.planners.step.model_units import Unit
from advisor.planners.step.transformer_step import head_s, launch_s, layer_times
from advisor.ways.case import StepCase
from advisor.ways.model_parallel import OnMachine, on_machine
from advisor.ways.pair_laws import (
    POWERS,
    DeviceTimes,
    ReducedSteps,
    Stages,
    machines_and_devices,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_NONE: Final = RECOMPUTES.index("none")
_FULL: Final = RECOMPUTES.index("full")


class LayoutPairs:
    """The layout model of a transformer: activations kept, or computed again."""

    modes: tuple[int, ...] = (_NONE, _FULL)

    def __init__(self, case: StepCase) -> None:
        self.case = case
        fleet = case.fleet
        rows = np.flatnonzero(fleet.is_accelerated & fleet.is_supported & (fleet.device >= 0))
        used, first = np.unique(fleet.device[rows], return_index=True)
        self.on: dict[int, OnMachine] = {
            int(d): on_machine(case, int(rows[i])) for d, i in zip(used, first, strict=True)
        }
        parameters = case.constants.layout.parameters
        # As for equal machines: through the kernel a ring gets what one stream carries.
        stream = case.constants.scaling.collectives.stream_bytes_per_s
        capped = np.minimum(fleet.network_bytes_per_s, stream / parameters.dp_network_efficiency)
        self.network = np.where(fleet.is_rdma, fleet.network_bytes_per_s, capped)
        self.intra = np.minimum(fleet.intra_bytes_per_s, 1e15)
        self.parameters = parameters
        self.problem = next(iter(self.on.values())).problem

    def times(self, mode: int) -> DeviceTimes:
        """Time the whole transformer on all accelerators of the fleet."""
        size = len(self.case.fleet.devices)
        whole, backward = np.zeros((size, POWERS)), np.zeros((size, POWERS))
        kinds, rest = np.zeros((size, 3)), np.zeros((size, 3))
        for device, on in self.on.items():
            whole[device], backward[device], kinds[device] = _curves(on, mode)
            rest[device] = update_s(on), on.log_sd, on.is_extrapolating
        return DeviceTimes(
            whole=MicroBatchCurve(whole),
            backward=MicroBatchCurve(backward),
            kinds=kinds,
            optimizer_s=rest[:, 0],
            log_sd=rest[:, 1],
            is_extrapolating=rest[:, 2] > 0,
        )

    def needed_bytes(
        self, micro_batch: Integers | int, dp: Integers, zero_stage: Integers | int, mode: int
    ) -> Floats:
        """Return what the whole model takes on one device [bytes]."""
        problem = self.problem
        layouts = replace(
            _whole_model(micro_batch, mode), dp=dp, shard_group=dp, zero_stage=zero_stage
        )
        used = memory_bytes(problem.shapes, layouts, problem.software, problem.memory)
        return np.broadcast_to(used, np.shape(dp)).astype(float)

    def reduced(self, stages: Stages) -> ReducedSteps:
        """Return the steps with the reduction over all devices: the slowest links rule it."""
        problem, parameters = self.problem, self.parameters
        nodes, devices = machines_and_devices(self.case, stages)
        layers = np.maximum(np.round(problem.transformer.layers * np.asarray(stages.held)), 1.0)
        layouts = replace(
            _whole_model(1, _NONE),
            dp=devices,
            shard_group=devices,
            accumulation_steps=stages.steps,
            zero_stage=stages.zero_stage,
        )
        case = replace(
            problem.case(layouts),
            shapes=replace(problem.shapes, layers=layers),
            machines=replace(
                problem.machines,
                intra_bytes_per_s=np.minimum.reduce([self.intra[t] for t in stages.types]),
                network_bytes_per_s=np.minimum.reduce([self.network[t] for t in stages.types]),
                devices_per_node=devices / nodes,
                domain_machines=1,  # unlike machines hang in racks of their own
            ),
        )
        computed = stages.micro_batch_s * stages.steps
        exposed = data_parallel_s(case, np.asarray(stages.backward_s), np.asarray(computed))
        shards = np.where(np.asarray(stages.zero_stage) > 0, devices, 1)
        whole = computed + exposed + stages.optimizer_s / shards
        has_table = problem.layer_table is not None
        whole = whole + float(fixed_s(problem.software, parameters, has_table=has_table))
        waiting = whole * parameters.straggler * np.log2(np.maximum(nodes, 1))
        is_rdma = np.logical_and.reduce([self.case.fleet.is_rdma[t] for t in stages.types])
        share = exposed / (whole + waiting)
        spread = share * self.case.constants.scaling.log_sd_communication
        return ReducedSteps(
            step_s=whole + waiting,
            exposed_s=exposed,
            straggler_s=waiting,
            log_sd=np.where(is_rdma & (problem.layer_table is None), 0.0, spread),
        )

    def unit_shares(self, parts: Sequence[Unit]) -> Floats:
        """Return what share of a step each unit takes, the mean over devices, (n_units,)."""
        heads = [_head_share(on) for on in self.on.values()]
        head = float(np.mean(heads))
        is_block = np.array([p.is_block for p in parts])
        shares = np.where(is_block, (1.0 - head) / max(int(is_block.sum()), 1), 0.0)
        shares[-1] += head
        return np.asarray(shares / shares.sum())

    def state_bytes_per_parameter(self, workers: Integers) -> Floats:
        """Return weight, gradient and optimizer state; the latter in shards (ZeRO 1) [bytes]."""
        software = self.problem.software
        sharded = np.asarray(software.optimizer_state_bytes) / np.maximum(workers, 1)
        trained = self.problem.trained_share * (software.gradient_bytes + sharded)
        return np.asarray(self.problem.memory.slack * (software.weight_bytes + trained))

    def link(self, one: Integers, two: Integers) -> tuple[Floats, Floats]:
        """Return the rate and latency between machines of two types [bytes/s], [s]."""
        rate = self.parameters.pp_efficiency * np.minimum(self.network[one], self.network[two])
        return rate, np.full(rate.shape, self.parameters.pp_latency_s)


def _head_share(on: OnMachine) -> float:
    """Return the head's share of a large micro-batch's time on a device."""
    case = on.problem.case(_whole_model(4.0, _NONE))
    layer = layer_times(case)
    layers = on.problem.transformer.layers * float(layer.forward_s + layer.backward_s)
    head = float(head_s(case))
    return head / (head + layers)


def update_s(on: OnMachine) -> float:
    """Return the optimizer's update of the whole model on one device [s]."""
    alone = step_times(on.problem.case(_whole_model(1, _NONE)))
    known = on.problem
    has_table = known.layer_table is not None
    return float(
        alone.optimizer_s - fixed_s(known.software, known.parameters, has_table=has_table)
    )


def _whole_model(micro_batch: Any, mode: int) -> Layouts:
    return Layouts(
        dp=1, tp=1, pp=1, micro_batch=micro_batch, accumulation_steps=1, shard_group=1,
        recompute=mode,
    )  # fmt: skip


def _curves(on: OnMachine, mode: int) -> tuple[Floats, Floats, Floats]:
    """Return both passes, the backward pass [s], and the shares of what is waited for."""
    problem = on.problem
    case = problem.case(_whole_model(np.exp2(np.arange(POWERS)), mode))
    layer = calibrated(layer_times(case), problem.device_factor)
    busy = layer.forward_s + layer.backward_s + layer.recompute_s
    waiting = np.maximum(launch_s(case) * problem.device_factor - busy, 0.0)
    head = np.broadcast_to(head_s(case) * problem.device_factor, (POWERS,))
    layers = problem.transformer.layers
    whole = layers * (busy + waiting) + head
    # As equal machines have it, reductions hide behind the layers, not behind the head.
    behind = layer.backward_s + layer.recompute_s
    streamed = layer.streamed_s
    shares = np.array([(busy - streamed)[2], streamed[2], waiting[2]])
    return whole, layers * behind, shares / shares.sum()
