"""The time and memory of one split of equal machines for a model that is cut at its units.

| here               | papers | meaning                                                           |
|--------------------|--------|-------------------------------------------------------------------|
| ``u``, ``a``       | b, m   | micro-batch, and micro-batches of a step on one device            |
| ``dp, tp, pp``     | d, t, p| degrees; dp tp pp is the number of devices                        |
| ``local``          | B / d  | samples of a step on one data-parallel rank                       |
| ``T_i``            | T      | a micro-batch's passes, exchanges and sends on stage i [s]        |

    step = max(sum_i T_i + (a - 1) max_i T_i + exposed reductions + optimizer + offload, load)

with the stages cut by ``planners.layouts.pipeline`` over the units' times under the memory of the
device (1F1B's micro-batches in flight); one stage is plain data parallel, its reductions hidden as
``planners.links.gradients`` says. A transformer that is laid out by its shapes takes the same of
its units, in even stages (``planners.layouts.time``); what it sends and reduces, and how much it
waits for the slowest rank, differ. Sources: PipeDream and Alpa for the form, as in ``pipeline``;
ZeRO-Offload (Ren et al., 2021) for the optimizer on the host; Shoeybi et al. (2019) for two
all-reduces a block and direction.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    Floats,
    Layout,
    LayoutParameters,
    Node,
    PlanningError,
    UnitTimes,
    Work,
)
from advisor.planners.layouts.pipeline import Partition, in_flight, partition
from advisor.planners.layouts.problem import Found, PlannedLayout, planned
from advisor.planners.layouts.time import StepTimes, between_stages_bytes_per_s, moved_s
from advisor.planners.links import (
    DataParallelColumns,
    ScalingParameters,
    data_parallel_step,
    hierarchical_all_reduce_s,
)
from advisor.planners.memory import (
    Kept,
    MemoryParameters,
    UnitTable,
    base_bytes,
    model_state,
    offloaded_bytes,
    unit_state_bytes,
)
from advisor.planners.step import TransformerBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitProblem:
    """A model to be cut at its units on one kind of node: an ordinary script's, as recorded."""

    work: Work
    table: UnitTable
    blocks: TransformerBlocks | None
    memory: MemoryParameters
    scaling: ScalingParameters
    node: Node
    times: Mapping[int, UnitTimes]  # by tensor-parallel degree; 1 is always there
    kept_free_bytes: float = 0.0  # of a device's memory, what a layout may not fill
    # constants of what moves to the host and back
    parameters: LayoutParameters = field(default_factory=LayoutParameters)
    load_s_per_sample: float = 0.0  # of one device's share of the machine's loader cores [s]
    loads_inline: bool = False  # loading happens in the training loop, not beside it
    # what was found of the model whatever the machine, by what it depends on
    seen: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def capacity_bytes(self) -> float:
        """What a layout may fill of a device's memory."""
        return self.node.device.memory_bytes - self.kept_free_bytes


# Repeats of one run on one machine with the same software scatter by 3 % (reference: MLPerf
# rounds): a layout that gains less is not worth its complexity.
INDISTINGUISHABLE: Final = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSplit:
    """One split of the machines among a model's units; the micro-batch is left to choose."""

    problem: UnitProblem
    layout: Layout  # degrees, ZeRO stage, and what becomes of activations and state
    nodes: int
    local: int  # samples of a step on one data-parallel rank
    micro_batches: tuple[int, ...] = ()  # micro-batches to try, rising

    @property
    def kept(self) -> Kept:
        """What becomes of the activations between forward and backward."""
        if self.layout.recompute == "full":
            return "recomputed"
        return "offloaded" if "activations" in self.layout.offload else "kept"

    @property
    def updates_on_host(self) -> bool:
        """The optimizer's state lies in host memory, and its CPUs update it."""
        return "optimizer" in self.layout.offload

    def state_bytes(self) -> Floats:
        """Return each unit's weights, gradients and optimizer state on a device [bytes]."""
        known, layout = self.problem, self.layout
        key = ("state", layout.tp, layout.dp, layout.zero_stage, layout.offload)
        if key not in known.seen:
            known.seen[key] = unit_state_bytes(
                known.work, known.table, tp=layout.tp, dp=layout.dp,
                zero_stage=layout.zero_stage, offload=layout.offload, memory=known.memory,
            )  # fmt: skip
        state: Floats = known.seen[key]
        return state

    def on_host_bytes(self, micro_batch: int) -> float:
        """Return the host memory that a machine's devices take for offloading [bytes]."""
        table, layout = self.problem.table, self.layout
        if not layout.offload:
            return 0.0
        kept = float(table.kept_bytes(layout.tp, "kept").sum()) * micro_batch
        per_device = offloaded_bytes(
            self.problem.work,
            table,
            tp=layout.tp,
            dp=layout.dp,
            zero_stage=self.layout.zero_stage,
            kept_bytes=kept,
            offload=self.layout.offload,
        )
        return per_device * self.problem.node.devices / layout.pp

    def times(self, micro_batch: Floats) -> tuple[Floats, Floats, Floats]:
        """Return forward, backward and tensor-parallel exchange by unit, (n, n_units) [s]."""
        forward, backward = self.problem.times[self.layout.tp].at(micro_batch)
        again = self.kept == "recomputed"
        if again:
            backward = backward + forward
        exchanged = np.zeros_like(forward)
        blocks = self.problem.blocks
        if self.layout.tp > 1 and blocks is not None:
            volume = micro_batch * blocks.tokens * blocks.hidden * blocks.element_bytes
            once = self._all_reduce_s(volume, self.layout.tp, 1)
            exchanged = once[:, None] * (6.0 if again else 4.0) * self.problem.table.is_block
        return forward, backward, exchanged

    def _all_reduce_s(self, volume: Floats, per_node: int, nodes: int) -> Floats:
        node = self.problem.node
        return hierarchical_all_reduce_s(
            volume,
            per_node,
            nodes,
            node.intra.bytes_per_s,
            node.intra.latency_s,
            node.network.bytes_per_s,
            node.network.latency_s,
            self.problem.scaling.collectives,
        )

    def reduced(
        self, micro_batch_s: Floats, backward_s: Floats, optimizer_s: float, steps: Floats,
        *, share: float | None = None,
    ) -> DataParallelColumns:  # fmt: skip
        """Return the data-parallel columns of one stage's ranks.

        ``share``: of the model on each of them; what tensor parallelism leaves by default.
        """
        node, layout = self.problem.node, self.layout
        stage = layout.dp * layout.tp
        nodes = max(1, stage // node.devices)
        work = self.problem.work
        if share is None:
            held = float(self.problem.table.held_parameters(layout.tp).sum())
            share = held / max(work.parameters, 1)
        return data_parallel_step(
            micro_batch_s=micro_batch_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            accumulation_steps=steps,
            gradient_bytes=work.gradient_bytes * share,
            buffer_bytes=work.buffer_bytes * share,
            nodes=nodes,
            devices_per_node=min(stage, node.devices) // layout.tp,
            intra_bytes_per_s=node.intra.bytes_per_s,
            intra_latency_s=node.intra.latency_s,
            # The tp rings of a machine share its network.
            network_bytes_per_s=node.network.bytes_per_s / layout.tp,
            network_latency_s=node.network.latency_s,
            has_rdma=node.network.bypasses_kernel,
            zero_stage=self.layout.zero_stage,
            parameters=self.problem.scaling,
        )

    def offload_s(self, a: Floats, u: Floats, compute_s: Floats) -> Floats:
        """Return the exposed transfers to the host and its update of the optimizer [s]."""
        known, layout = self.problem, self.layout
        node, offload = known.node, layout.offload
        if not offload or node.host is None:
            return np.zeros_like(a)
        held = float(known.table.held_parameters(layout.tp).sum()) / layout.pp
        share = held / max(known.work.parameters, 1)
        weights = known.work.parameter_bytes * share
        shards = layout.dp if layout.zero_stage else 1
        updates, passing = float("optimizer" in offload) / shards, np.zeros_like(a)
        if "parameters" in offload:
            passing = passing + weights / (layout.dp if layout.zero_stage == 3 else 1)
        if "activations" in offload:
            passing = passing + u * float(known.table.kept_bytes(layout.tp, "kept").sum())
        # Gradients down, parameters up; the CPUs touch gradients, parameters and state.
        touched = model_state(weights, weights, known.work.optimizer_state_bytes * share)
        return moved_s(
            known.parameters, node.host.bytes_per_s, node.devices, compute_s,
            updated_bytes=updates * 2 * weights,
            touched_bytes=updates * touched.device_bytes,
            passing_bytes=a * 2 * passing,
        )  # fmt: skip

    def update_s(self, share: float | None = None) -> float:
        """Return the update of a stage's share of the model, before any sharding [s].

        ``share``: of it on each rank; what tensor parallelism leaves by default.
        """
        if self.updates_on_host:
            return 0.0
        whole_s = self.problem.times[self.layout.tp].optimizer_s
        return whole_s if share is None else whole_s * share * self.layout.tp

    def log_sd(self, of_links: ArrayLike) -> float:
        """Return the deviation of ln(step) with what communication adds."""
        return float(np.hypot(self.problem.times[self.layout.tp].log_sd, of_links))

    def load_s(self, step_s: Floats, samples: float) -> Floats:
        """Return what loading one device's samples adds to a step [s]."""
        load = np.asarray(self.problem.load_s_per_sample * samples)
        return load + 0 * step_s if self.problem.loads_inline else np.maximum(load - step_s, 0.0)

    def send_rates(self) -> tuple[float, float]:
        """Return what handing a message over a cut takes, and each of its bytes, one way [s]."""
        node, layout = self.problem.node, self.layout
        link = between_stages_bytes_per_s(
            node.intra.bytes_per_s, node.network.bytes_per_s, node.devices,
            layout.dp * layout.tp, layout.pp,
        )  # fmt: skip
        one = node.intra if self.nodes == 1 else node.network
        return one.latency_s, 1.0 / layout.tp / float(link)

    def send_s(self, u: int) -> Floats:
        """Return handing one micro-batch over a cut behind each unit, one way [s]."""
        alone_s, byte_s = self.send_rates()
        return np.asarray(alone_s + u * self.problem.table.output_bytes * byte_s)

    def described(self, micro_batch: int) -> Layout:
        """Return the layout with a micro-batch and how many of it make a step."""
        steps = -(-self.local // micro_batch)
        return replace(self.layout, micro_batch=micro_batch, accumulation_steps=steps)


def without_pipeline(split: UnitSplit, seen: Found) -> PlannedLayout | None:
    """Return the layout of the fastest micro-batch that fits, None where none does."""
    u = np.array(split.micro_batches, float)
    a = np.ceil(split.local / u)
    forward, backward, exchanged = (x.sum(axis=1) for x in split.times(u))
    used, host = _memory(split, u)
    fits = _fits(split, used, host, u, seen)
    if not fits.any():
        return None
    each_s = forward + backward + exchanged
    columns = split.reduced(each_s, backward, split.update_s(), a)
    times = _whole(split, columns, a * each_s, a * exchanged, (a, u, a * each_s))
    i = int(np.argmin(np.where(fits, times.step_s, np.inf)))
    seen.least_s = min(seen.least_s, float(times.step_s[i]))
    return planned(
        split.described(int(u[i])), times, (used, host), (i,), u.shape,
        stages=(len(split.problem.table.names),),
        log_sd=split.log_sd(columns.log_sd[i]),
    )  # fmt: skip


def _whole(
    split: UnitSplit, columns: DataParallelColumns, line_s: Floats, traded_s: Floats,
    moved: tuple[Floats, Floats, Floats], *, computed_s: Floats | None = None,
    share: float | None = None,
) -> StepTimes:  # fmt: skip
    """Return a step with what its devices load and move to their host.

    ``line_s``: all micro-batches through all stages; ``computed_s``: computing of them on the
    slowest stage, all but the exchanges by default [s]; ``moved``: as ``UnitSplit.offload_s``.
    """
    moved_s = split.offload_s(*moved)
    loaded = split.load_s(columns.step_s + moved_s, split.local)
    computed = line_s - traded_s if computed_s is None else computed_s
    shards = split.layout.dp if split.layout.zero_stage else 1
    return StepTimes(
        step_s=columns.step_s + moved_s + loaded,
        compute_s=computed,
        inside_layer_s=traded_s,
        pipeline_s=np.maximum(line_s - computed - traded_s, 0.0),
        data_parallel_s=columns.exposed_s + columns.straggler_s,
        optimizer_s=np.asarray(split.update_s(share) / shards),
        offload_s=moved_s,
        input_s=loaded,
    )


def _memory(split: UnitSplit, u: Floats) -> tuple[Floats, Floats]:
    """Return what one stage takes on the device and on its host, by micro-batch [bytes]."""
    table, tp, memory = split.problem.table, split.layout.tp, split.problem.memory
    activations = table.kept_bytes(tp, split.kept).sum() + table.live_bytes(tp, split.kept)
    used = base_bytes(split.problem.work, u, memory) + split.state_bytes().sum()
    host = np.array([split.on_host_bytes(int(x)) for x in u])
    return used + memory.slack * u * activations, host


def _fits(
    split: UnitSplit, used: Floats, host: Floats, u: Floats, seen: Found
) -> NDArray[np.bool_]:
    room, host_room = split.problem.capacity_bytes, split.problem.node.memory_bytes
    fits = (used <= room) & (host <= host_room)
    seen.fitting += int(np.count_nonzero(fits))
    if not fits.any():
        excess = np.maximum(used - room, host - host_room)
        seen.misses(float(excess.min()), split.described(int(u[int(np.argmin(excess))])))
    return np.asarray(fits)


def with_pipeline(split: UnitSplit, seen: Found) -> PlannedLayout | None:
    """Return the layout of the fastest micro-batch over pp stages that fits; few are cut."""
    found: list[PlannedLayout] = []
    bounds = sorted(zip(least_s(split).tolist(), split.micro_batches, strict=True))
    for bound_s, u in bounds:
        if bound_s > INDISTINGUISHABLE * seen.least_s:
            break
        cut = _cut(split, u, seen)
        if cut is None:
            continue
        seen.fitting += 1
        if cut.step_s <= INDISTINGUISHABLE * seen.least_s:
            found.append(_pipelined(split, u, cut))
            seen.least_s = min(seen.least_s, found[-1].step_s)
    return min(found, key=lambda x: x.step_s, default=None)


def least_s(split: UnitSplit) -> Floats:
    """Return bounds from below on the step of any cut, by micro-batch [s]."""
    u = np.array(split.micro_batches, float)
    forward, backward, exchanged = split.times(u)
    unit_s = np.asarray(forward + backward + exchanged)  # (n, n_units)
    whole_s, steps, pp = unit_s.sum(axis=1), np.ceil(split.local / u), split.layout.pp
    if pp == 1:
        return np.asarray(steps * whole_s)
    # Whatever the cuts, nothing smaller than the smallest output is handed over at any of them.
    outputs = np.sort(split.problem.table.output_bytes[:-1])
    alone_s, byte_s = split.send_rates()
    send_s = 2 * ((pp - 1) * alone_s + u * outputs[: pp - 1].sum() * byte_s)
    least_send_s = 2 * (alone_s + u * outputs[0] * byte_s)
    slowest_s = np.maximum(np.maximum(whole_s / pp, unit_s.max(axis=1)), least_send_s)
    return np.asarray(whole_s + send_s + (steps - 1) * slowest_s)


def _cut(split: UnitSplit, u: int, seen: Found) -> Partition | None:
    """Return the best cut of the units for a micro-batch, None where none fits."""
    model, layout = split.problem, split.layout
    a = -(-split.local // u)
    unit_s = sum(x[0] for x in split.times(np.array([float(u)])))
    held = model.memory.slack * u * model.table.kept_bytes(layout.tp, split.kept)
    capacity = split.problem.capacity_bytes - _beside_units(split, u)
    flights = in_flight(layout.pp, a, schedule="1f1b")
    if split.on_host_bytes(u) > split.problem.node.memory_bytes:
        return None
    state = split.state_bytes()
    can_hold = state.sum() + flights.min() * held.sum() <= layout.pp * capacity
    sends = 2 * split.send_s(u)
    worth_s = INDISTINGUISHABLE * seen.least_s
    cut = None
    if can_hold:
        cut = _cut_under(unit_s, sends, a, state, held, flights, capacity, worth_s)
    if cut is None:
        # An even cut's mean stage: how far the model as a whole is from fitting.
        mean = (state.sum() + flights.mean() * held.sum()) / layout.pp
        seen.misses(max(float(mean - capacity), 1.0), split.described(u))
    return cut


def _cut_under(
    unit_s: Floats, send_s: Floats, micro_batches: int,
    state: Floats, held: Floats, flights: Floats, capacity: float, worth_s: float,
) -> Partition | None:  # fmt: skip
    """Return the best cut whose stages hold no more than ``capacity``, None where none does.

    Where the best of all cuts is slower than ``worth_s``, it is returned whatever it holds.
    """
    cut = _fastest_cut(unit_s.tobytes(), send_s.tobytes(), len(flights), micro_batches)
    stage_bytes = _stage_bytes(cut, state, held, flights)
    if cut.step_s > worth_s or np.all(stage_bytes <= capacity):
        return replace(cut, memory_bytes=tuple(stage_bytes.tolist()))
    try:
        return partition(
            unit_s, micro_batches, stages=len(flights), send_s=send_s,
            state_bytes=state, activation_bytes=held, in_flight=flights, capacity_bytes=capacity,
        )  # fmt: skip
    except PlanningError:
        return None


@lru_cache(maxsize=4096)
def _fastest_cut(unit_s: bytes, send_s: bytes, stages: int, micro_batches: int) -> Partition:
    """Return the best cut where memory is no matter: the same for all that divides state."""
    times, sends = np.frombuffer(unit_s), np.frombuffer(send_s)
    return partition(times, micro_batches, stages=stages, send_s=sends)


def _stage_bytes(cut: Partition, state: Floats, held: Floats, flights: Floats) -> Floats:
    """Return what a cut's stages hold of state and kept activations [bytes]."""
    starts = np.concatenate([[0], np.cumsum(cut.layers)[:-1]])
    return np.asarray(np.add.reduceat(state, starts) + flights * np.add.reduceat(held, starts))


def _beside_units(split: UnitSplit, u: int) -> float:
    """Return what a stage's device holds beside state and kept activations [bytes]."""
    model = split.problem
    live = model.memory.slack * u * model.table.live_bytes(split.layout.tp, split.kept)
    return live + float(base_bytes(model.work, np.array(float(u)), model.memory))


def _pipelined(split: UnitSplit, u: int, cut: Partition) -> PlannedLayout:
    model, layout = split.problem, split.layout
    a = -(-split.local // u)
    edges = np.concatenate([[0], np.cumsum(cut.layers)])
    slow = int(np.argmax(cut.stage_s))
    inside = slice(edges[slow], edges[slow + 1])
    forward, backward, exchanged = (x[0][inside].sum() for x in split.times(np.array([float(u)])))
    parameters = np.add.reduceat(model.table.held_parameters(layout.tp), edges[:-1])
    heaviest = float(parameters.max()) / max(model.work.parameters, 1)
    line_s, nothing = np.array(cut.step_s), np.array(0.0)
    columns = split.reduced(
        line_s, backward, split.update_s(heaviest), np.array(1.0), share=heaviest
    )
    times = _whole(
        split, columns, line_s, a * exchanged, (np.array(float(a)), np.array(float(u)), nothing),
        computed_s=a * (forward + backward), share=heaviest,
    )  # fmt: skip
    used = np.array(max(cut.memory_bytes) + _beside_units(split, u))
    return planned(
        split.described(u), times, (used, np.array(split.on_host_bytes(u))), (), (),
        stages=cut.layers, log_sd=split.log_sd(columns.log_sd),
    )  # fmt: skip
