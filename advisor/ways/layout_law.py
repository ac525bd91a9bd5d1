"""Units of a transformer by the layout model: layers, head, rings and sends (``ways.laws``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from advisor.machines.cluster import ClusterGroup
from advisor.planners.asymmetric_pipeline.zorse import ring_s
from advisor.planners.core.case import LayoutCase
from advisor.planners.core.columns import RECOMPUTES, Layouts, Machines
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.core.nouns import Transformer
from advisor.planners.layouts.layout_time import calibrated, data_parallel_s, fixed_s, step_times
from advisor.planners.layouts.problem import LayoutProblem
from advisor.planners.memory.layout_memory import memory_bytes
from advisor.planners.memory.unit_memory import Kept, UnitTable
from advisor.planners.step.transformer_step import head_s, launch_s, layer_times
from advisor.planners.step.unit_times import UnitTimes
from advisor.ways.model_on import TABULATED, ReducedStep, Stage
from advisor.ways.model_parallel import OnMachine

# Cephalo's and Zorse's measured rings against the plain formula (planners.md 4.7).
RING_FACTOR: Final = 1.15
# The embedding's look-up and the last normalisation beside the layers and the head. [s]
_NOTHING_S: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLaw:
    """Times by the model that lays a transformer out on equal machines.

    Attributes
    ----------
    transformer : Transformer
    table : UnitTable
        Its units; the blocks among them take the layers' time, the last one the head's.
    machines : mapping of str to OnMachine
        The layout problem on each group's machines, by the group's label.
    link_log_sd : float
        Standard deviation of ln(communication time) where a network goes through the kernel.
    """

    transformer: Transformer
    table: UnitTable
    machines: Mapping[str, OnMachine]
    link_log_sd: float = 0.0

    @property
    def name(self) -> str:
        """Which law times the layers."""
        tables = [m.problem.layer_table is not None for m in self.machines.values()]
        if all(tables):
            return "operators"
        return "transformer shapes and operators" if any(tables) else "transformer shapes"

    @property
    def _problem(self) -> LayoutProblem:
        """Any group's: what does not depend on the machines."""
        return next(iter(self.machines.values())).problem

    @property
    def parameters(self) -> LayoutParameters:
        """The constants of the layout model."""
        return self._problem.parameters

    @property
    def fixed_s(self) -> float:
        """What every step takes besides computing, sending and reducing [s]."""
        known = self._problem
        has_table = known.layer_table is not None
        return float(fixed_s(known.software, self.parameters, has_table=has_table))

    def times(self, group: ClusterGroup) -> UnitTimes:
        """Return the times of the units on one of a group's devices, calibrated."""
        on = self.machines[group.label]
        micro = np.array(TABULATED)
        case = on.problem.case(
            Layouts(dp=1, tp=1, pp=1, micro_batch=micro, accumulation_steps=1, shard_group=1)
        )
        factor = on.problem.device_factor
        layer = calibrated(layer_times(case), factor)
        blocks = self.table.is_block
        layers = self.transformer.layers / max(int(np.count_nonzero(blocks)), 1)
        # Launches run ahead of computing; what they take longer falls on every pass alike.
        waiting = launch_s(case) * factor - layer.forward_s - layer.backward_s
        waiting = np.maximum(waiting, 0.0) / 3
        head = np.broadcast_to(head_s(case) * factor, micro.shape) / 3
        forward = np.full((micro.size, blocks.size), _NOTHING_S)
        backward = forward.copy()
        forward[:, blocks] = (layers * (layer.forward_s + waiting))[:, None]
        backward[:, blocks] = (layers * (layer.backward_s + 2 * waiting))[:, None]
        if not blocks[-1]:
            forward[:, -1] += head
            backward[:, -1] += 2 * head
        return UnitTimes(
            micro_batches=micro,
            forward_s=forward,
            backward_s=backward,
            optimizer_s=_update_s(on),
            log_sd=on.log_sd,
        )

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
        waiting = whole * self.parameters.straggler * float(np.log2(max(nodes, 1)))
        step_s = whole + waiting
        # As for equal machines: past the kernel the layers' own errors hold the links'.
        of_links = [
            0.0 if on.is_rdma and on.problem.layer_table is None else self.link_log_sd
            for on in (self.machines[g.label] for g in groups)
        ]
        return ReducedStep(
            step_s=step_s,
            exposed_s=exposed,
            straggler_s=waiting,
            log_sd=max(of_links) * exposed / step_s,
        )

    def _on(self, groups: Sequence[ClusterGroup]) -> list[Machines]:
        return [self.machines[g.label].problem.machines for g in groups]

    def _ring_case(self, groups: Sequence[ClusterGroup], stage: Stage) -> LayoutCase:
        """Return the stage's layers on a ring of all devices, as fast as its slowest link."""
        devices, nodes = sum(g.devices for g in groups), sum(g.count for g in groups)
        layouts = Layouts(
            dp=devices,
            tp=1,
            pp=1,
            micro_batch=1,
            accumulation_steps=stage.steps,
            shard_group=devices,
            zero_stage=stage.zero_stage,
        )
        problem = self._problem
        held = np.count_nonzero(self.table.is_block[stage.units])
        blocks = max(int(np.count_nonzero(self.table.is_block)), 1)
        # A norm beside the blocks is no table: the embedding is, and the head where it is its own.
        whole_table = self.transformer.vocabulary * self.transformer.hidden
        parameters = self.table.parameters[stage.units]
        tables = ~self.table.is_block[stage.units] & (parameters >= max(whole_table, 1))
        links = self._on(groups)
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

    def state_bytes(self, table: UnitTable, workers: int, zero_stage: int) -> Floats:
        """Return weights, gradients and optimizer state by unit on one of ``workers`` [bytes]."""
        problem = self._problem
        software = problem.software
        trained = software.gradient_bytes / (workers if zero_stage >= 2 else 1)
        trained += software.optimizer_state_bytes / (workers if zero_stage >= 1 else 1)
        weight = software.weight_bytes / (workers if zero_stage >= 3 else 1)
        each = weight + problem.trained_share * trained
        return np.asarray(problem.memory.slack * each * table.parameters)

    def replica_bytes(
        self, table: UnitTable, micro_batch: float, workers: int, zero_stage: int, kept: Kept
    ) -> float:
        """Return what the whole model takes on one of ``workers`` [bytes]."""
        problem = self._problem
        layouts = Layouts(
            dp=workers,
            tp=1,
            pp=1,
            micro_batch=micro_batch,
            accumulation_steps=1,
            shard_group=workers,
            zero_stage=zero_stage,
            recompute=RECOMPUTES.index("full" if kept == "recomputed" else "none"),
        )
        return float(memory_bytes(problem.shapes, layouts, problem.software, problem.memory))

    def gather_s(self, groups: Sequence[ClusterGroup], layer_bytes: float) -> float:
        """Return gathering (or scattering) one layer over all devices of the groups [s]."""
        inside = self.parameters.dp_intra_efficiency
        across = self.parameters.dp_network_efficiency
        nodes = sum(g.count for g in groups)
        links: list[float] = []
        for group, machine in zip(groups, self._on(groups), strict=True):
            intra = inside * float(machine.intra_bytes_per_s)
            between = across * float(machine.network_bytes_per_s)
            links += [intra] * (group.node.devices - 1) * group.count
            links += [between] * group.count if nodes > 1 else [intra]
        return ring_s(layer_bytes, links, factor=RING_FACTOR)

    def send_s(self, groups: Sequence[ClusterGroup], sent_bytes: Floats) -> Floats:
        """Return handing a micro-batch to the next stage over the slowest network, one way [s]."""
        network = min(float(m.network_bytes_per_s) for m in self._on(groups))
        sent = np.asarray(sent_bytes) / (self.parameters.pp_efficiency * network)
        return np.asarray(sent + self.parameters.pp_latency_s)


def _update_s(on: OnMachine) -> float:
    """Return the optimizer's update of the whole model on one device [s]."""
    alone = step_times(
        on.problem.case(
            Layouts(dp=1, tp=1, pp=1, micro_batch=1, accumulation_steps=1, shard_group=1)
        )
    )
    known = on.problem
    has_table = known.layer_table is not None
    return float(
        alone.optimizer_s - fixed_s(known.software, known.parameters, has_table=has_table)
    )
