"""The time and memory of one split of equal machines for a recorded model.

| here               | papers | meaning                                                           |
|--------------------|--------|-------------------------------------------------------------------|
| ``u``, ``a``       | b, m   | micro-batch, and micro-batches of a step on one device            |
| ``dp, tp, pp``     | d, t, p| degrees; dp tp pp is the number of devices                        |
| ``local``          | B / d  | samples of a step on one data-parallel rank                       |

What a case takes is put together in ``planners.layouts.recorded_stages``. Sources:
``links.data_parallel``, ``memory``; ZeRO-Offload (Ren et al., 2021) for the optimizer on the host;
Shoeybi et al. (2019) for two all-reduces a block and direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.nouns import Layout
from advisor.planners.layouts.recorded_layout import RecordedMachine, RecordedModel
from advisor.planners.links.collectives import hierarchical_all_reduce_s
from advisor.planners.links.data_parallel import DataParallelColumns, data_parallel_step
from advisor.planners.memory.unit_memory import Kept, offloaded_bytes, unit_state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCase:
    """One layout of a recorded model; the micro-batch is what is left to choose.

    Attributes
    ----------
    layout : Layout
        Degrees, ZeRO stage, and what becomes of activations and state.
    local : int
        Samples of a step on one data-parallel rank.
    micro_batches : tuple of int
        Micro-batches to try, rising.
    """

    model: RecordedModel
    machine: RecordedMachine
    layout: Layout
    nodes: int
    local: int
    micro_batches: tuple[int, ...] = ()

    @property
    def kept(self) -> Kept:
        """What becomes of the activations between forward and backward."""
        if self.layout.recompute == "full":
            return "recomputed"
        return "offloaded" if "activations" in self.layout.offload else "kept"

    @property
    def capacity_bytes(self) -> float:
        """What a layout may fill of a device's memory."""
        return self.model.usable_fraction * self.machine.node.device.memory_bytes

    @property
    def updates_on_host(self) -> bool:
        """The optimizer's state lies in host memory, and its CPUs update it."""
        return "optimizer" in self.layout.offload

    def state_bytes(self) -> Floats:
        """Return each unit's weights, gradients and optimizer state on a device [bytes]."""
        return unit_state_bytes(
            self.model.work,
            self.model.table,
            tp=self.layout.tp,
            dp=self.layout.dp,
            zero_stage=self.layout.zero_stage,
            offload=self.layout.offload,
            memory=self.model.memory,
        )

    def on_host_bytes(self, micro_batch: int) -> float:
        """Return the host memory that a machine's devices take for offloading [bytes]."""
        table, layout = self.model.table, self.layout
        kept = float(table.kept_bytes(layout.tp, "kept").sum()) * micro_batch
        per_device = offloaded_bytes(
            self.model.work,
            table,
            tp=layout.tp,
            dp=layout.dp,
            zero_stage=self.layout.zero_stage,
            kept_bytes=kept,
            offload=self.layout.offload,
        )
        return per_device * self.machine.node.devices / layout.pp

    def times(self, micro_batch: Floats) -> tuple[Floats, Floats, Floats]:
        """Return forward, backward and tensor-parallel exchange by unit, (n, n_units) [s]."""
        forward, backward = self.machine.times[self.layout.tp].at(micro_batch)
        again = self.kept == "recomputed"
        if again:
            backward = backward + forward
        exchanged = np.zeros_like(forward)
        blocks = self.model.blocks
        if self.layout.tp > 1 and blocks is not None:
            volume = micro_batch * blocks.tokens * blocks.hidden * blocks.element_bytes
            once = self._all_reduce_s(volume, self.layout.tp, 1)
            exchanged = once[:, None] * (6.0 if again else 4.0) * self.model.table.is_block
        return forward, backward, exchanged

    def _all_reduce_s(self, volume: Floats, per_node: int, nodes: int) -> Floats:
        node = self.machine.node
        return hierarchical_all_reduce_s(
            volume,
            per_node,
            nodes,
            node.intra.bytes_per_s,
            node.intra.latency_s,
            node.network.bytes_per_s,
            node.network.latency_s,
            self.model.scaling.collectives,
        )

    def reduced(
        self, micro_batch_s: Floats, backward_s: Floats, optimizer_s: float, steps: Floats,
        *, gradient_bytes: float | None = None,
    ) -> DataParallelColumns:  # fmt: skip
        """Return the data-parallel columns of one stage's ranks."""
        node, layout = self.machine.node, self.layout
        stage = layout.dp * layout.tp
        nodes = max(1, stage // node.devices)
        held = float(self.model.table.held_parameters(layout.tp).sum())
        whole = self.model.work.gradient_bytes * held / max(self.model.work.parameters, 1)
        return data_parallel_step(
            micro_batch_s=micro_batch_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            accumulation_steps=steps,
            gradient_bytes=whole if gradient_bytes is None else gradient_bytes,
            nodes=nodes,
            devices_per_node=min(stage, node.devices) // layout.tp,
            intra_bytes_per_s=node.intra.bytes_per_s,
            intra_latency_s=node.intra.latency_s,
            # The tp rings of a machine share its network.
            network_bytes_per_s=node.network.bytes_per_s / layout.tp,
            network_latency_s=node.network.latency_s,
            has_rdma=node.network.bypasses_kernel,
            zero_stage=self.layout.zero_stage,
            parameters=self.model.scaling,
        )

    def offload_s(self, a: Floats, u: Floats, compute_s: Floats) -> Floats:
        """Return the exposed transfers to the host and its update of the optimizer [s]."""
        node, layout, model = self.machine.node, self.layout, self.model
        offload = self.layout.offload
        if not offload or node.host is None:
            return np.zeros_like(a)
        held = float(model.table.held_parameters(layout.tp).sum()) / layout.pp
        share = held / max(model.work.parameters, 1)
        weights = model.work.parameter_bytes * share
        link = node.host.bytes_per_s
        shards = layout.dp if layout.zero_stage else 1
        update = 0.0
        if "optimizer" in offload:
            # Gradients down, parameters up; the CPUs touch gradients, parameters and state.
            state = model.work.optimizer_state_bytes * share + 2 * weights
            update = 2 * weights / shards / link
            update += node.devices * state / shards / model.host_update_bytes_per_s
        moved = np.zeros_like(a)
        if "parameters" in offload:
            moved = moved + a * 2 * weights / (layout.dp if layout.zero_stage == 3 else 1) / link
        if "activations" in offload:
            kept = float(model.table.kept_bytes(layout.tp, "kept").sum())
            moved = moved + a * 2 * u * kept / link
        return update + np.maximum(moved - model.offload_overlap * compute_s, 0.0)

    def load_s(self, step_s: Floats, samples: float) -> Floats:
        """Return what loading one device's samples adds to a step [s]."""
        load = np.asarray(self.machine.load_s_per_sample * samples)
        return load + 0 * step_s if self.machine.loads_inline else np.maximum(load - step_s, 0.0)

    def send_s(self, u: int) -> Floats:
        """Return handing one micro-batch over a cut behind each unit, one way [s]."""
        node, layout = self.machine.node, self.layout
        volume = u * self.model.table.output_bytes
        if self.nodes == 1:
            return node.intra.latency_s + volume / layout.tp / node.intra.bytes_per_s
        # All ranks of a machine send at once through its one network.
        senders = min(layout.dp * layout.tp, node.devices) // layout.tp
        return node.network.latency_s + volume * senders / node.network.bytes_per_s

    def described(self, micro_batch: int) -> Layout:
        """Return the layout with a micro-batch and how many of it make a step."""
        steps = -(-self.local // micro_batch)
        return replace(self.layout, micro_batch=micro_batch, accumulation_steps=steps)
