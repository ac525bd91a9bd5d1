"""What a model takes on every device of a fleet and on the links of two types of machines.

As columns, by the laws that equal machines are estimated with: the operators with data-parallel
scaling (``ways.data_parallel``), or the layout model (``ways.model_parallel``) for transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.columns import RECOMPUTES
from advisor.planners.heterogeneous.uneven_data_parallel import MicroBatchCurve
from advisor.planners.links.data_parallel import data_parallel_step
from advisor.planners.memory.training_memory import training_memory_bytes
from advisor.planners.step.device import step_time
from advisor.planners.step.model_units import Unit
from advisor.planners.step.unit_times import unit_shares
from advisor.ways.case import StepCase

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Micro-batches at which devices are timed; a sample of a device lies between two of them.
POWERS: Final = 21
_NONE: Final = RECOMPUTES.index("none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """Calibrated times of the whole model on every device of a fleet, at powers of two.

    Attributes
    ----------
    whole, backward : MicroBatchCurve
        Forward and backward together, and the backward part; one row a device.
    kinds : array of shape (n_devices, 3)
        Shares of compute, memory and launch in ``whole`` at a large micro-batch.
    optimizer_s, log_sd : arrays of shape (n_devices,)
    is_extrapolating : boolean array of shape (n_devices,)
    """

    whole: MicroBatchCurve
    backward: MicroBatchCurve
    kinds: Floats
    optimizer_s: Floats
    log_sd: Floats
    is_extrapolating: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What the devices of one or two types compute together before they reduce gradients.

    Attributes
    ----------
    types, counts : sequences of integer arrays of shape (n,)
        One or two types of machines, and how many of each.
    micro_batch_s, backward_s, optimizer_s : arrays of shape (n,)
        Forward and backward of one micro-batch on the slowest device, the backward part, and the
        update of the stage's parameters. [s]
    steps, zero_stage : integer arrays
    held : array or float
        Share of the model's parameters.
    """

    types: Sequence[Integers]
    counts: Sequence[Integers]
    micro_batch_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    steps: Integers | int = 1
    zero_stage: Integers | int = 0
    held: Floats | float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedSteps:
    """Steps with their reductions, the exposed part and the waiting for stragglers [s].

    ``log_sd`` is what links add to one standard deviation of ln(error).
    """

    step_s: Floats
    exposed_s: Floats
    straggler_s: Floats
    log_sd: Floats


class PairLaw(Protocol):
    """Times on devices, memory, and reductions over the links of two types."""

    modes: tuple[int, ...]

    def times(self, mode: int) -> DeviceTimes:
        """Return the times on every device, activations kept or (mode 2) computed again."""
        ...

    def needed_bytes(
        self, micro_batch: Integers | int, dp: Integers, zero_stage: Integers | int, mode: int
    ) -> Floats:
        """Return what the whole model takes on one device [bytes]."""
        ...

    def reduced(self, stages: Stages) -> ReducedSteps:
        """Return the steps with the reduction over all devices: the slowest links rule it."""
        ...

    def unit_shares(self, parts: Sequence[Unit]) -> Floats:
        """Return what share of a step each unit takes, the mean over devices, (n_units,)."""
        ...

    def state_bytes_per_parameter(self, workers: Integers) -> Floats:
        """Return weight, gradient and optimizer state of a stage of so many devices [bytes]."""
        ...

    def link(self, one: Integers, two: Integers) -> tuple[Floats, Floats]:
        """Return the rate and latency between machines of two types [bytes/s], [s]."""
        ...


class OperatorPairs:
    """The law of the operators, activations kept."""

    modes: tuple[int, ...] = (_NONE,)

    def __init__(self, case: StepCase) -> None:
        self.case = case

    def times(self, mode: int) -> DeviceTimes:
        """Time the whole model on all devices of the fleet that are accelerators."""
        case, fleet, work = self.case, self.case.fleet, self.case.work
        batches = np.exp2(np.arange(POWERS))
        rows = np.array([i for i, d in enumerate(fleet.devices) if d.kind != "cpu"])
        targets = [fleet.devices[i] for i in rows]
        columns = step_time(work, targets, batches, case.constants.device)
        factor, log_sd = case.anchors.calibration(targets, columns.log_sd, case.constants)
        scale = np.exp(factor)
        parts = np.stack([columns.compute_s, columns.memory_s, columns.launch_s], axis=2)
        typical = parts[:, min(int(work.micro_batch).bit_length(), POWERS - 1)]

        def placed(values: NDArray[np.generic]) -> Floats:
            out = np.zeros((len(fleet.devices), *values.shape[1:]))
            out[rows] = values
            return out

        return DeviceTimes(
            whole=MicroBatchCurve(placed(columns.micro_batch_s * scale[:, None])),
            backward=MicroBatchCurve(placed(columns.backward_s * scale[:, None])),
            kinds=placed(typical / typical.sum(axis=1, keepdims=True)),
            optimizer_s=placed(columns.optimizer_s * scale),
            log_sd=placed(log_sd),
            is_extrapolating=placed(columns.is_extrapolating) > 0,
        )

    def needed_bytes(
        self, micro_batch: Integers | int, dp: Integers, zero_stage: Integers | int, mode: int
    ) -> Floats:
        """Return what the whole model takes on one device [bytes]."""
        return training_memory_bytes(
            self.case.work, micro_batch, dp=dp, zero_stage=zero_stage,
            parameters=self.case.constants.memory,
        )  # fmt: skip

    def reduced(self, stages: Stages) -> ReducedSteps:
        """Return the steps with the reduction over all devices: the slowest links rule it."""
        fleet, work = self.case.fleet, self.case.work
        nodes, devices = machines_and_devices(self.case, stages)

        def slowest(column: Floats) -> Floats:
            return np.asarray(np.minimum.reduce([column[t] for t in stages.types]))

        columns = data_parallel_step(
            micro_batch_s=stages.micro_batch_s,
            backward_s=stages.backward_s,
            optimizer_s=stages.optimizer_s,
            accumulation_steps=stages.steps,
            gradient_bytes=work.gradient_bytes * np.asarray(stages.held),
            nodes=nodes,
            devices_per_node=devices / nodes,
            intra_bytes_per_s=slowest(fleet.intra_bytes_per_s),
            intra_latency_s=-slowest(-fleet.intra_latency_s),
            network_bytes_per_s=slowest(fleet.network_bytes_per_s),
            network_latency_s=-slowest(-fleet.network_latency_s),
            zero_stage=stages.zero_stage,
            has_rdma=np.logical_and.reduce([fleet.is_rdma[t] for t in stages.types]),
            parameters=self.case.constants.scaling,
        )
        return ReducedSteps(
            step_s=columns.step_s,
            exposed_s=columns.exposed_s,
            straggler_s=columns.straggler_s,
            log_sd=columns.log_sd,
        )

    def unit_shares(self, parts: Sequence[Unit]) -> Floats:
        """Return what share of a step each unit takes, the mean over devices, (n_units,)."""
        targets = [d for d in self.case.fleet.devices if d.kind != "cpu"]
        return unit_shares(self.case.work, parts, targets, self.case.constants.device)

    def state_bytes_per_parameter(self, workers: Integers) -> Floats:
        """Return weight, gradient and optimizer state of a stage of so many devices [bytes]."""
        work, memory = self.case.work, self.case.constants.memory
        bare = replace(
            work, saved_bytes_per_sample=0.0, input_bytes_per_sample=0.0, transformer=None,
            moments=(),
        )  # fmt: skip
        used = training_memory_bytes(bare, 1, dp=2, parameters=memory) - memory.context_bytes
        return np.full(np.shape(workers), float(used) / max(work.parameters, 1))

    def link(self, one: Integers, two: Integers) -> tuple[Floats, Floats]:
        """Return the rate and latency between machines of two types [bytes/s], [s]."""
        fleet = self.case.fleet
        rate = np.minimum(fleet.network_bytes_per_s[one], fleet.network_bytes_per_s[two])
        latency = np.maximum(fleet.network_latency_s[one], fleet.network_latency_s[two])
        return rate, latency


def machines_and_devices(case: StepCase, stages: Stages) -> tuple[Integers, Integers]:
    """Return how many machines and devices of all types there are."""
    pairs = list(zip(stages.types, stages.counts, strict=True))
    nodes: Integers = np.sum([n for _, n in pairs], axis=0)
    devices: Integers = np.sum([case.fleet.per_node[t] * n for t, n in pairs], axis=0)
    return nodes, devices
