"""A model on devices: its units of layers, with what they take on any of them.

The ways over unlike machines (``advisor.estimate.best``) ask everything of this one noun, whether
the model was recorded or described. Its ``law`` says what the units and their communication take:

| law             | units' times              | reductions             | memory                   |
|-----------------|---------------------------|------------------------|--------------------------|
| ``OperatorLaw`` | ``step.model_units``      | ``links.gradients``    | ``memory.recorded_steps``|
| ``LayoutLaw``   | ``step.transformer``      | ``layouts.time``       | ``memory.transformers``  |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.case import Constants, StepCase, is_laid_out_by_shape
from advisor.estimate.unlike.places import Place, places_of
from advisor.estimate.ways.data_parallel import kept_free_bytes
from advisor.estimate.ways.model_parallel import OnMachine, on_machine
from advisor.estimate.ways.recorded_units import UnitModel, unit_model
from advisor.machines import ClusterGroup
from advisor.planners.core import (
    PRECISION_BYTES,
    RECOMPUTES,
    Column,
    Floats,
    LayerLatency,
    LayoutCase,
    Layouts,
    Transformer,
    UnitTimes,
    Work,
)
from advisor.planners.layouts import LayoutProblem, data_parallel_s, fixed_s, update_s
from advisor.planners.links import data_parallel_step, hierarchical_reduce_scatter_s
from advisor.planners.memory import (
    Kept,
    Ledger,
    MemoryConstants,
    MemoryParameters,
    UnitTable,
    base_ledger,
    parameter_ledger,
    parameter_state,
    stage_ledger,
    without_terms,
    work_ledger,
)
from advisor.planners.step import KERNELS, Unit, block_times, step_time, work_units
from advisor.planners.systems import ring_s

# Micro-batches at which units are timed; lines in between and beyond.
TABULATED = tuple(float(2**k) for k in range(17))
# Micro-batches at which the planners of equal layers are given times; lines beyond.
_OF_LAYERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the devices of several groups compute together before they reduce gradients."""

    computed_s: float  # forward and backward of all micro-batches, on the slowest device [s]
    backward_s: float  # backward of one micro-batch there: what a reduction can hide behind [s]
    optimizer_s: float  # update of the stage's parameters, before any sharding [s]
    # the stage's units as places in a table; all by default
    units: slice = field(default_factory=lambda: slice(None))
    steps: int = 1  # micro-batches of a step
    zero_stage: int = 0


@dataclass(frozen=True, slots=True)
class ReducedStep:
    """A step with its reductions: all of it, the exposed part, what waits for stragglers [s].

    ``log_sd`` is what communication adds to one standard deviation of ln(error).
    """

    step_s: float
    exposed_s: float
    straggler_s: float
    log_sd: float


@dataclass(frozen=True, kw_only=True)
class ModelOn:
    """A model as units, with what they take on any device."""

    work: Work
    parts: tuple[Unit, ...]
    table: UnitTable  # the units as columns
    law: LayoutLaw | OperatorLaw
    constants: Constants
    places: tuple[Place, ...]  # the groups of machines that it is on

    @property
    def groups(self) -> tuple[ClusterGroup, ...]:
        """The groups of machines, with the links that the estimate reads."""
        return tuple(p.group for p in self.places)

    @property
    def memory(self) -> MemoryParameters:
        """The constants of the memory model."""
        return self.constants.memory

    def stage_ledger(
        self, units: slice, micro_batch: float, in_flight: float, workers: int
    ) -> Ledger:
        """Return what a device holds of some units, whose state ``workers`` share, by term.

        ``in_flight``: micro-batches whose activations it holds.
        """
        table = self.table
        held = float(table.parameters[units].sum())
        if units.stop == len(table.names):
            held += self.tied_parameters
        kept = in_flight * micro_batch * float(table.kept_bytes(1, "kept")[units].sum())
        base = base_ledger(self.work, micro_batch, self.memory, kept=kept)
        return stage_ledger(held, self.law.parameter(workers, _shared(workers)), base)

    def times(self, group: ClusterGroup, kept: Kept = "kept") -> UnitTimes:
        """Return the times of the units on one of a group's devices; made once a group."""
        key = group.label, kept
        if key not in self._timed:
            self._timed[key] = self.law.times(group, kept)
        return self._timed[key]

    @cached_property
    def _timed(self) -> dict[tuple[str, Kept], UnitTimes]:
        return {}

    @property
    def blocks(self) -> int:
        """Repeated blocks among the units."""
        return int(np.count_nonzero(self.table.is_block))

    @property
    def weight_bytes(self) -> float:
        """A parameter as the products read it, which is what is gathered [bytes]."""
        stored = self.work.parameter_bytes / max(self.work.parameters, 1)
        return min(stored, float(max(PRECISION_BYTES[self.work.precision], 2)))

    def state_bytes(self, workers: int) -> Floats:
        """Return weights, gradients and optimizer state by unit, shared by ``workers`` [bytes].

        A head that shares the embedding's table has its own in a stage of its own.
        """
        each = without_terms(self.law.parameter(workers, _shared(workers)))
        parameters = self.table.parameters.copy()
        parameters[-1] += self.tied_parameters
        return np.asarray(each * parameters)

    @property
    def tied_parameters(self) -> int:
        """Parameters of a table that head and embedding share."""
        model = self.work.transformer
        is_tied = model is not None and model.has_tied_embeddings and model.has_head
        return model.vocabulary * model.hidden if model is not None and is_tied else 0

    def kept_bytes(self, micro_batch: float) -> Floats:
        """Return the activations that one micro-batch keeps by unit [bytes]."""
        return self.memory.slack * micro_batch * self.table.kept_bytes(1, "kept")

    def base_bytes(self, micro_batch: float) -> float:
        """Return what a device holds whatever its units [bytes]."""
        return float(without_terms(base_ledger(self.work, micro_batch, self.memory)))

    def room_bytes(self, group: ClusterGroup) -> float:
        """Return what may be filled of a group's device [bytes]."""
        memory = np.array([group.node.device.memory_bytes])
        is_accelerated = np.array([group.node.device.kind != "cpu"])
        return float(memory[0] - kept_free_bytes(memory, is_accelerated)[0])

    def layer_latency(self, group: ClusterGroup, layers: int) -> LayerLatency:
        """Return the mean of ``layers`` layers that the model would equal, by micro-batch."""
        forward, backward = self.times(group).at(np.array(_OF_LAYERS, float))
        return LayerLatency.from_points(
            _OF_LAYERS,
            [float(t) for t in forward.sum(axis=1) / layers],
            [float(t) for t in backward.sum(axis=1) / layers],
        )

    def loading_s(self, samples: Mapping[str, float], step_s: float) -> float:
        """Return what loading adds to a step, ``samples`` on a device by its group's label [s]."""
        waits = [
            p.case.waiting_s(np.array([step_s]), np.array([b]), np.array([p.row]))
            for p in self.places
            if (b := float(samples.get(p.group.label, 0.0)))
        ]
        return float(np.max(waits, initial=0.0))

    def log_sd(
        self, groups: Sequence[ClusterGroup], added: float = 0.0, micro_batch: Column = 1
    ) -> float:
        """Return one standard deviation of ln(error) of a step on unlike devices."""
        kernel = KERNELS[self.work.setup.base_bits]
        of_weights = max(kernel.log_sd_on(g.part.architecture) for g in groups)
        of_times = max(self.times(g).log_sd for g in groups)
        return math.hypot(of_times, of_weights, added, self.law.other_log_sd(groups, micro_batch))


def _shared(workers: int) -> int:
    """Return the ZeRO stage at which workers of a stage share its state."""
    return 1 if workers > 1 else 0


def replica(
    micro_batch: Column, workers: int = 1, *, steps: Column = 1, zero_stage: Column = 0,
    kept: Kept = "kept",
) -> Layouts:  # fmt: skip
    """Return data-parallel workers that hold the whole model, as columns of the layout model."""
    return Layouts(
        dp=workers, tp=1, pp=1, micro_batch=micro_batch, accumulation_steps=steps,
        shard_group=workers, zero_stage=zero_stage,
        recompute=RECOMPUTES.index("full" if kept == "recomputed" else "none"),
    )  # fmt: skip


# Cephalo's and Zorse's measured rings against the plain formula (planners.md 4.7).
RING_FACTOR: Final = 1.15
# The whole model on one device, one sample at a time.
_WHOLE: Final = Layouts(dp=1, tp=1, pp=1, micro_batch=1, accumulation_steps=1, shard_group=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLaw:
    """Times by the model that lays a transformer out on equal machines."""

    transformer: Transformer
    # its units; the blocks among them take the layers' time, the last one the head's
    table: UnitTable
    # the layout problem on each group's machines, by the group's label
    machines: Mapping[str, OnMachine]
    # standard deviation of ln(communication time) where a network goes through the kernel
    link_log_sd: float = 0.0

    @property
    def name(self) -> str:
        """Which law times the layers."""
        tables = [m.problem.block_table is not None for m in self.machines.values()]
        if all(tables):
            return "operators"
        return "transformer shapes and operators" if any(tables) else "transformer shapes"

    @property
    def _problem(self) -> LayoutProblem:
        """Any group's: what does not depend on the machines."""
        return next(iter(self.machines.values())).problem

    @property
    def fixed_s(self) -> float:
        """What every step takes besides computing, sending and reducing [s]."""
        return float(fixed_s(self._problem))

    def times(self, group: ClusterGroup, kept: Kept) -> UnitTimes:
        """Return the times of the units on one of a group's devices, calibrated."""
        on = self.machines[group.label]
        micro = np.array(TABULATED)
        block = block_times(on.problem.case(replica(micro, kept=kept)))
        forward, backward = block.by_unit(self.table.is_block, self.transformer.layers)
        return UnitTimes(
            micro_batches=micro, forward_s=forward, backward_s=backward,
            optimizer_s=float(update_s(on.problem.case(_WHOLE))), log_sd=on.law.log_sd,
        )  # fmt: skip

    def reduced(self, groups: Sequence[ClusterGroup], stage: Stage) -> ReducedStep:
        """Return the step of a stage with the reduction over all devices of the groups."""
        devices, nodes = sum(g.devices for g in groups), sum(g.count for g in groups)
        exposed = float(
            data_parallel_s(
                self._ring_case(groups, stage),
                np.asarray(stage.backward_s),
                np.asarray(stage.computed_s),
            )
        )
        shards = devices if stage.zero_stage else 1
        whole = stage.computed_s + exposed + stage.optimizer_s / shards + self.fixed_s
        waiting = whole * self._problem.parameters.straggler * float(np.log2(max(nodes, 1)))
        step_s = whole + waiting
        # As for equal machines: past the kernel the layers' own errors hold the links'.
        of_links = [
            0.0 if on.is_rdma and on.problem.block_table is None else self.link_log_sd
            for on in (self.machines[g.label] for g in groups)
        ]
        return ReducedStep(
            step_s=step_s,
            exposed_s=exposed,
            straggler_s=waiting,
            log_sd=max(of_links) * exposed / step_s,
        )

    def other_log_sd(self, groups: Sequence[ClusterGroup], micro_batch: Column) -> float:
        """Return nothing: the layers' errors hold their hosts'."""
        return 0.0

    def _ring_case(self, groups: Sequence[ClusterGroup], stage: Stage) -> LayoutCase:
        """Return the stage's layers on a ring of all devices, as fast as its slowest link."""
        devices, nodes = sum(g.devices for g in groups), sum(g.count for g in groups)
        layouts = replica(1, devices, steps=stage.steps, zero_stage=stage.zero_stage)
        problem = self._problem
        held = np.count_nonzero(self.table.is_block[stage.units])
        blocks = max(int(np.count_nonzero(self.table.is_block)), 1)
        # A norm beside the blocks is no table: the embedding is, and the head where it is its own.
        whole_table = self.transformer.vocabulary * self.transformer.hidden
        parameters = self.table.parameters[stage.units]
        tables = ~self.table.is_block[stage.units] & (parameters >= max(whole_table, 1))
        links = [self.machines[g.label].problem.machines for g in groups]
        return replace(
            problem.case(layouts),
            shapes=replace(
                problem.shapes,
                layers=held * self.transformer.layers / blocks,
                vocabulary=self.transformer.vocabulary if tables.any() else 0,
                tables=int(np.count_nonzero(tables)),
            ),
            machines=replace(
                problem.machines,
                intra_bytes_per_s=min(float(m.intra_bytes_per_s) for m in links),
                network_bytes_per_s=min(float(m.network_bytes_per_s) for m in links),
                devices_per_node=devices / nodes,
                domain_machines=min(float(m.domain_machines) for m in links),
            ),
        )

    @property
    def memory(self) -> MemoryConstants:
        """The constants of the memory model."""
        return self._problem.memory

    def parameter(self, workers: int, zero_stage: int = 0) -> Ledger:
        """Return what a parameter takes on one of ``workers``, slack included [bytes]."""
        problem = self._problem
        rows = replica(1, workers, zero_stage=zero_stage)
        each = parameter_state(rows, problem.software, problem.shapes, np.asarray(float(workers)))
        return {
            "parameters": each.weights, "gradients": each.gradients, "optimizer": each.optimizer,
            "rounding": (problem.memory.slack - 1) * each.device_bytes,
        }  # fmt: skip

    def replica_ledger(self, replica: Layouts, kept: Kept) -> Ledger:
        """Return what the whole model takes on one of data-parallel workers, by term [bytes]."""
        return self._problem.ledger(replica)

    def replica_bytes(self, replica: Layouts, kept: Kept) -> Floats:
        """Return what has to be there for it, as sure as it must fit [bytes]."""
        return self._problem.sure_bytes(self._problem.needs(replica))

    def runs(self, replica: Layouts) -> NDArray[np.bool_]:
        """Return where a framework runs data-parallel workers so."""
        admits = self._problem.admits
        shape = np.shape(replica.zero_stage)
        return np.broadcast_to(True if admits is None else admits(replica), shape)

    def gather_s(self, groups: Sequence[ClusterGroup], layer_bytes: float) -> float:
        """Return gathering (or scattering) one layer over all devices of the groups [s]."""
        constants = self._problem.parameters
        nodes = sum(g.count for g in groups)
        links: list[float] = []
        for group in groups:
            machine = self.machines[group.label].problem.machines
            intra = constants.dp_intra_efficiency * float(machine.intra_bytes_per_s)
            between = constants.dp_network_efficiency * float(machine.network_bytes_per_s)
            links += [intra] * (group.node.devices - 1) * group.count
            links += [between] * group.count if nodes > 1 else [intra]
        return ring_s(layer_bytes, links, factor=RING_FACTOR)

    def send_s(self, groups: Sequence[ClusterGroup], sent_bytes: Floats) -> Floats:
        """Return handing a micro-batch to the next stage over the slowest network, one way [s]."""
        rates = (self.machines[g.label].problem.machines.network_bytes_per_s for g in groups)
        network = min(float(rate) for rate in rates)
        sent = np.asarray(sent_bytes) / (self._problem.parameters.pp_efficiency * network)
        return np.asarray(sent + self._problem.parameters.pp_latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLaw:
    """Times by the device model, calibrated on what was measured of the job.

    It times units operator by operator: of recorded runs, in fp32, on any device.
    """

    units: UnitModel  # the job's units, timed once a device
    table: UnitTable  # with what a described head keeps
    name: str = "operators"
    fixed_s: float = 0.0  # the operators hold all that a step takes [s]

    def times(self, group: ClusterGroup, kept: Kept) -> UnitTimes:
        """Return the times of the units on one of a group's devices, calibrated."""
        times = self.units.times(group.node.device)
        if kept == "kept":
            return times
        return replace(times, backward_s=times.backward_s + times.forward_s)

    def reduced(self, groups: Sequence[ClusterGroup], stage: Stage) -> ReducedStep:
        """Return the step of a stage with the reduction over all devices of the groups."""
        work, scaling = self.units.case.work, self.units.case.constants.scaling
        held = sum(p.parameters for p in self.units.parts[stage.units]) / max(work.parameters, 1)
        nodes = sum(g.count for g in groups)
        columns = data_parallel_step(
            micro_batch_s=stage.computed_s / stage.steps,
            backward_s=stage.backward_s,
            optimizer_s=stage.optimizer_s,
            accumulation_steps=stage.steps,
            gradient_bytes=work.gradient_bytes * held,
            buffer_bytes=work.buffer_bytes * held,
            is_pipelined=all(g.node.device.kind != "cpu" for g in groups),
            nodes=nodes,
            devices_per_node=sum(g.devices for g in groups) / nodes,
            zero_stage=stage.zero_stage,
            parameters=scaling,
            has_rdma=_rdma_share(groups),
            **slowest_links(groups),
        )
        parts = (float(getattr(columns, part.name)) for part in fields(ReducedStep))
        return ReducedStep(*parts)

    def other_log_sd(self, groups: Sequence[ClusterGroup], micro_batch: Column) -> float:
        """Return what unknown hosts, and another number of devices, add (``data_parallel``)."""
        case, targets = self.units.case, [g.node.device for g in groups]
        each = np.broadcast_to(np.asarray(micro_batch, float), len(targets))
        hosts = step_time(case.work, targets, each, case.constants.device).host_log_sd
        heard = case.anchors.unheard(targets, case.constants)
        of_size = case.anchors.size_log_sd(np.array([sum(g.devices for g in groups)]))
        return math.hypot(float((np.diagonal(hosts) * heard).max()), float(of_size[0]))

    @property
    def memory(self) -> MemoryParameters:
        """The constants of the memory model."""
        return self.units.case.constants.memory

    def parameter(self, workers: Column, zero_stage: Column = 0) -> Ledger:
        """Return what a parameter takes on one of ``workers``, slack included [bytes]."""
        return parameter_ledger(
            self.units.case.work, dp=workers, zero_stage=zero_stage, memory=self.memory
        )

    def replica_ledger(self, replica: Layouts, kept: Kept) -> Ledger:
        """Return what the whole model takes on one of data-parallel workers, by term [bytes]."""
        work, micro, table = self.units.case.work, np.asarray(replica.micro_batch), self.table
        if kept == "kept":
            return work_ledger(
                work, micro, dp=replica.dp, zero_stage=replica.zero_stage, parameters=self.memory,
                accumulates=np.asarray(replica.accumulation_steps) > 1,
            )  # fmt: skip
        base = base_ledger(
            work, micro, self.memory, kept=micro * table.kept_bytes(1, kept).sum(),
            live=micro * table.live_bytes(1, kept),
        )  # fmt: skip
        each = self.parameter(replica.dp, replica.zero_stage)
        return stage_ledger(float(table.parameters.sum()), each, base)

    def replica_bytes(self, replica: Layouts, kept: Kept) -> Floats:
        """Return what must have room for it [bytes]."""
        return without_terms(self.replica_ledger(replica, kept))

    def gather_s(self, groups: Sequence[ClusterGroup], layer_bytes: float) -> float:
        """Return gathering (or scattering) one layer over all devices of the groups [s]."""
        nodes = sum(g.count for g in groups)
        links = slowest_links(groups)
        return float(
            hierarchical_reduce_scatter_s(
                layer_bytes,
                sum(g.devices for g in groups) / nodes,
                nodes,
                links["intra_bytes_per_s"],
                links["intra_latency_s"],
                links["network_bytes_per_s"],
                links["network_latency_s"],
                self.units.case.constants.scaling.collectives,
                has_rdma=_rdma_share(groups),
            )
        )

    def send_s(self, groups: Sequence[ClusterGroup], sent_bytes: Floats) -> Floats:
        """Return handing a micro-batch to the next stage over the slowest network, one way [s]."""
        links = slowest_links(groups)
        sent = np.asarray(sent_bytes) / links["network_bytes_per_s"]
        return np.asarray(links["network_latency_s"] + sent)


def slowest_links(groups: Sequence[ClusterGroup]) -> dict[str, float]:
    """Return the links of one ring through all machines: the slowest rule it."""
    return {
        "intra_bytes_per_s": min(g.node.intra.bytes_per_s for g in groups),
        "intra_latency_s": max(g.node.intra.latency_s for g in groups),
        "network_bytes_per_s": min(g.node.network.bytes_per_s for g in groups),
        "network_latency_s": max(g.node.network.latency_s for g in groups),
    }


def _rdma_share(groups: Sequence[ClusterGroup]) -> float | None:
    """Return how surely all machines' networks bypass the kernel; None: by their rates."""
    known = [g.node.network.rdma_share for g in groups]
    return min((one for one in known if one is not None), default=None)


def model_on(case: StepCase, groups: Sequence[ClusterGroup]) -> ModelOn:
    """Return a job's model as units, with what they take on the groups' devices.

    ``case``: the job, with recorded layers or a described transformer, over the catalogue's fleet.

    Raises UsageError if there is no time model of an accelerator.
    """
    return model_at(case, places_of(case, groups))


def model_at(case: StepCase, found: tuple[Place, ...]) -> ModelOn:
    """Return a job's model as units, with what they take at these places.

    By the law by which equal machines of the groups would be laid out.
    """
    work, parts, table = units_of(case)
    by_shape = [is_laid_out_by_shape(p.case, np.array([p.row])).all() for p in found]
    law: LayoutLaw | OperatorLaw
    if work.transformer is not None and all(by_shape):
        law = LayoutLaw(
            transformer=work.transformer,
            table=table,
            machines={p.group.label: on_machine(p.case, p.row) for p in found},
            link_log_sd=case.constants.scaling.log_sd_communication,
        )
    else:
        law = OperatorLaw(units=operator_units(case), table=table)
    return ModelOn(
        work=work, parts=parts, table=table, law=law, constants=case.constants, places=found
    )


def units_of(case: StepCase) -> tuple[Work, tuple[Unit, ...], UnitTable]:
    """Return the job's work with its layers, their units and those as columns; made once."""

    def made() -> tuple[Work, tuple[Unit, ...], UnitTable]:
        work = with_layers(case.work)
        parts = work_units(work)
        return work, parts, unit_table(work, parts, case.constants.memory.logit_bytes)

    return case.once(("units and their table",), made)


def with_layers(work: Work) -> Work:
    """Return the work with its layers: as recorded, or those of the described transformer."""
    if work.layers or work.transformer is None:
        return work
    from advisor.planners.layouts import transformer_layers  # a recording has its own

    return replace(work, layers=transformer_layers(work.transformer, precision=work.precision))


def unit_table(work: Work, parts: Sequence[Unit], logit_bytes: float) -> UnitTable:
    """Return the units as columns; a described head keeps its logits besides. [bytes]."""
    table = UnitTable.of(parts, work)
    model = work.transformer
    if model is None or not model.has_head or work.saved_bytes_per_sample > 0:
        return table
    saved = table.saved_bytes.copy()
    saved[-1] += logit_bytes * model.sequence * model.vocabulary
    return replace(table, saved_bytes=saved)


def operator_units(case: StepCase) -> UnitModel:
    """Return the job's units, timed once for all ways; a described job's case has none itself."""
    work, _, _ = units_of(case)
    if work is case.work:
        return unit_model(case)
    key = "units of a described job", id(case.fleet)
    return case.once(key, lambda: UnitModel(replace(case, work=work)))
