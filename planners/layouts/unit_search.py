"""Layouts of a model that is cut at its units on equal machines: data, tensor, pipeline parallel.

| here               | papers | meaning                                                           |
|--------------------|--------|-------------------------------------------------------------------|
| ``u``, ``a``       | b, m   | micro-batch, and micro-batches of a step on one device            |
| ``dp, tp, pp``     | d, t, p| degrees; dp tp pp is the number of devices                        |
| ``local``          | B / d  | samples of a step on one data-parallel rank                       |
| ``T_i``            | T      | a micro-batch's passes, exchanges and sends on stage i [s]        |

    step = max(sum_i T_i + (a - 1) max_i T_i + exposed reductions + optimizer + offload, load)

with the stages cut by ``stage_cuts`` over the units' times under the memory of the device (1F1B's
micro-batches in flight); one stage is plain data parallel, its reductions hidden as
``planners.links.gradients`` says. A transformer that is laid out by its shapes takes the same of
its units, in even stages (``planners.layouts.time``); what it sends and reduces, and how much it
waits for the slowest rank, differ. Sources: PipeDream and Alpa for the form, as in ``stage_cuts``;
ZeRO-Offload (Ren et al., 2021) for the optimizer on the host; Shoeybi et al. (2019) for two
all-reduces a block and direction.

Every (machines, tp, pp, micro-batch, ZeRO stage, way with the activations) is looked at, by rising
bound on its step, until no bound can win any more. Deterministic: of layouts that no measurement
would tell apart the simplest wins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import product
from typing import Any, Final

import numpy as np

from advisor.planners.core import (
    Column,
    Floats,
    Layout,
    LayoutParameters,
    Node,
    PlanningError,
    UnitTimes,
    Work,
    impossible,
)
from advisor.planners.layouts.frameworks import RECORDED, is_runnable, layout_columns
from advisor.planners.layouts.problem import (
    INDISTINGUISHABLE,
    Found,
    PlannedLayout,
    SearchSpace,
    divisors,
    may_stand_alone,
    planned,
)
from advisor.planners.layouts.search import misses
from advisor.planners.layouts.stage_cuts import Partition, partition
from advisor.planners.layouts.time import StepTimes, between_stages_bytes_per_s, moved_s
from advisor.planners.links import (
    DataParallelColumns,
    ScalingParameters,
    data_parallel_step,
    hierarchical_all_reduce_s,
)
from advisor.planners.memory import (
    Kept,
    Ledger,
    MemoryParameters,
    UnitTable,
    base_ledger,
    model_state,
    offloaded_bytes,
    parameter_ledger,
    stage_ledger,
    without_terms,
)
from advisor.planners.step import TransformerBlocks

# What becomes of activations and state, by rising cost: of equal layouts the first wins.
_WAYS: Final = (
    Layout(),
    Layout(recompute="full"),
    Layout(offload=frozenset({"optimizer"})),
    Layout(recompute="full", offload=frozenset({"optimizer"})),
    Layout(offload=frozenset({"activations"})),
    Layout(offload=frozenset({"optimizer", "parameters"})),
    Layout(recompute="full", offload=frozenset({"optimizer", "parameters"})),
)
# Deeper pipelines than this have never been published.
_DEEPEST: Final = 64


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

    def state_bytes(self, layout: Layout) -> Floats:
        """Return each unit's weights, gradients and optimizer state on a device [bytes]."""
        alone = layout.devices == 1
        key = ("state", layout.tp, layout.dp, layout.zero_stage, layout.offload, alone)
        if key not in self.seen:
            each = without_terms(self._each_parameter(layout))
            self.seen[key] = self.table.held_parameters(layout.tp) * each
        state: Floats = self.seen[key]
        return state

    def _each_parameter(self, layout: Layout) -> Ledger:
        """Return what a parameter takes of a device, by term [bytes]."""
        # DeepSpeed's offload, which takes gradients as they come from ZeRO 2 on, and on one rank.
        is_passed = layout.zero_stage >= 2 or layout.dp == 1
        moves = {"gradients"} if "optimizer" in layout.offload and is_passed else set()
        return parameter_ledger(
            self.work, dp=layout.dp, zero_stage=layout.zero_stage, offload=layout.offload | moves,
            is_alone=layout.devices == 1, memory=self.memory,
        )  # fmt: skip

    def ledger(self, layout: Layout) -> Ledger:
        """Return the memory of the fullest stage's device, by term [bytes].

        The stages are those that a layout was found with: the best cut that fits.
        """
        cut = self.cut(layout, Found())
        if cut is None:
            raise ValueError(f"{layout} does not fit")
        starts, u = np.cumsum((0, *cut.layers[:-1])), float(layout.micro_batch)
        held, kept = (
            np.add.reduceat(one, starts)
            for one in (
                self.table.held_parameters(layout.tp),
                u * self.table.kept_bytes(layout.tp, _kept(layout)),
            )
        )
        kept = kept * self.flights(layout)
        each = self._each_parameter(layout)
        full = int(np.argmax(held * without_terms(each) + self.memory.slack * kept))
        return stage_ledger(held[full], each, self._passing(layout, u, kept[full]))

    def _passing(self, layout: Layout, micro_batch: Column, kept: Column = 0.0) -> Ledger:
        """Return what a stage's device holds beside state; ``kept``: activations in flight."""
        live = micro_batch * np.asarray(self.table.live_bytes(layout.tp, _kept(layout)))
        return base_ledger(
            self.work, micro_batch, self.memory, kept=kept, live=live,
            is_alone=layout.devices == 1, update_share=self._updated(layout),
        )  # fmt: skip

    def _updated(self, layout: Layout) -> float:
        """Return the share of the parameters that a device updates; a stage's is the mean one."""
        if "optimizer" in layout.offload:
            return 0.0
        return 1.0 / (layout.tp * layout.pp * (layout.dp if layout.zero_stage else 1))

    def on_host_bytes(self, layout: Layout, micro_batch: Floats) -> Floats:
        """Return the host memory that a machine's devices take for offloading [bytes]."""
        if not layout.offload:
            return np.zeros_like(micro_batch)
        state = offloaded_bytes(
            self.work, self.table, tp=layout.tp, dp=layout.dp, zero_stage=layout.zero_stage,
            offload=layout.offload,
        )  # fmt: skip
        kept = float(self.table.kept_bytes(layout.tp, "kept").sum()) * micro_batch
        moved = state + kept * ("activations" in layout.offload)
        return np.asarray(moved * self.node.devices / layout.pp)

    def pass_s(self, layout: Layout, micro_batch: Floats) -> tuple[Floats, Floats, Floats]:
        """Return forward, backward and tensor-parallel exchange by unit, (..., n_units) [s]."""
        forward, backward = self.times[layout.tp].at(micro_batch)
        again = layout.recompute == "full"
        if again:
            backward = backward + forward
        exchanged = np.zeros_like(forward)
        if layout.tp > 1 and (blocks := self.blocks) is not None:
            node = self.node
            once = hierarchical_all_reduce_s(
                micro_batch * blocks.tokens * blocks.hidden * blocks.element_bytes, layout.tp, 1,
                node.intra.bytes_per_s, node.intra.latency_s, node.network.bytes_per_s,
                node.network.latency_s, self.scaling.collectives,
            )  # fmt: skip
            exchanged = once[..., None] * (6.0 if again else 4.0) * self.table.is_block
        return forward, backward, exchanged

    def reduced(
        self, layout: Layout, through_s: Column, backward_s: Column, optimizer_s: float,
        share: float, *, micro_batches: Column | None = None, zero_stage: Column | None = None,
    ) -> DataParallelColumns:  # fmt: skip
        """Return the data-parallel columns of one stage's ranks.

        To its reductions a pipeline is one long micro-batch.

        ``through_s``: all micro-batches through all stages [s]; ``share``: of the model on each of
        the ranks; ``micro_batches``, ``zero_stage``: the layout's by default.
        """
        node, stage = self.node, layout.dp * layout.tp
        several = layout.accumulation_steps if micro_batches is None else micro_batches
        steps = np.asarray(several if layout.pp == 1 else 1)
        return data_parallel_step(
            micro_batch_s=through_s / steps,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            accumulation_steps=steps,
            gradient_bytes=self.work.gradient_bytes * share,
            buffer_bytes=self.work.buffer_bytes * share,
            nodes=max(1, stage // node.devices),
            devices_per_node=min(stage, node.devices) // layout.tp,
            intra_bytes_per_s=node.intra.bytes_per_s,
            intra_latency_s=node.intra.latency_s,
            # The tp rings of a machine share its network.
            network_bytes_per_s=node.network.bytes_per_s / layout.tp,
            network_latency_s=node.network.latency_s,
            has_rdma=node.network.rdma_share,
            zero_stage=layout.zero_stage if zero_stage is None else zero_stage,
            parameters=self.scaling,
        )

    def offload_s(self, layout: Layout, compute_s: float) -> float:
        """Return the exposed transfers to the host and its update of the optimizer [s]."""
        node, offload = self.node, layout.offload
        if not offload or node.host is None:
            return 0.0
        held = float(self.table.held_parameters(layout.tp).sum()) / layout.pp
        share = held / max(self.work.parameters, 1)
        weights = self.work.parameter_bytes * share
        # Gradients down, parameters up; the CPUs touch gradients, parameters and state.
        touched = model_state(weights, weights, self.work.optimizer_state_bytes * share)
        updates = float("optimizer" in offload) / (layout.dp if layout.zero_stage else 1)
        passing = 0.0
        if "parameters" in offload:
            passing += weights / (layout.dp if layout.zero_stage == 3 else 1)
        if "activations" in offload:
            kept = float(self.table.kept_bytes(layout.tp, "kept").sum())
            passing += layout.micro_batch * kept
        waits = moved_s(
            self.parameters, node.host.bytes_per_s, node.devices, np.array(compute_s),
            updated_bytes=updates * 2 * weights, touched_bytes=updates * touched.device_bytes,
            passing_bytes=layout.accumulation_steps * 2 * passing,
        )  # fmt: skip
        return float(waits)

    def load_s(self, step_s: float, samples: float) -> float:
        """Return what loading one device's samples adds to a step [s]."""
        load = self.load_s_per_sample * samples
        return load if self.loads_inline else max(load - step_s, 0.0)

    def send_s(self, layout: Layout, sent_bytes: Floats) -> Floats:
        """Return handing messages over a cut, one way [s]."""
        node = self.node
        link = between_stages_bytes_per_s(
            node.intra.bytes_per_s, node.network.bytes_per_s, node.devices,
            layout.dp * layout.tp, layout.pp,
        )  # fmt: skip
        one = node.intra if layout.devices <= node.devices else node.network
        return np.asarray(one.latency_s + sent_bytes / (layout.tp * float(link)))

    def least_s(self, layout: Layout, micro_batches: Floats, steps: Floats) -> Floats:
        """Return bounds from below on the step of any cut, by micro-batch [s]."""
        u, pp = micro_batches, layout.pp
        unit_s = np.asarray(sum(self.pass_s(layout, u)))  # (n, n_units)
        whole_s = unit_s.sum(axis=1)
        if pp == 1:
            return np.asarray(steps * whole_s)
        # Whatever the cuts, no less than the smallest outputs is handed over.
        outputs = np.sort(self.table.output_bytes[:-1])[: pp - 1]
        sends = 2 * self.send_s(layout, u[:, None] * outputs)
        slowest_s = np.maximum(np.maximum(whole_s / pp, unit_s.max(axis=1)), sends[:, 0])
        return np.asarray(whole_s + sends.sum(axis=1) + (steps - 1) * slowest_s)

    def least_reduced_s(
        self, layout: Layout, micro_batches: Floats, steps: Floats, zero_stages: Sequence[int]
    ) -> Floats:
        """Return the bounds with what no cut hides of the reductions, (ZeRO stages, n) [s].

        A stage has at least its even share of the gradients, and hides no more of their exchange
        than all the model's backward passes; stage 3 may hide one of its three beside forward.
        """
        least_s = self.least_s(layout, micro_batches, steps)
        zero = np.array(zero_stages)[:, None]
        if layout.dp == 1:
            return np.broadcast_to(least_s, (zero.size, least_s.size))
        backward_s = self.pass_s(layout, micro_batches)[1].sum(axis=1)
        held = float(self.table.held_parameters(layout.tp).sum()) / layout.pp
        columns = self.reduced(
            layout, least_s, backward_s, 0.0, held / max(self.work.parameters, 1),
            micro_batches=steps, zero_stage=zero,
        )  # fmt: skip
        if layout.pp == 1:
            return columns.step_s
        left = columns.communication_s * np.where(zero == 3, 2 / 3, 1.0)
        hidden_s = self.scaling.overlap_fraction * backward_s
        return np.asarray(least_s + np.maximum(left - hidden_s, 0.0))

    def beside_bytes(self, layout: Layout, micro_batch: Floats) -> Floats:
        """Return what a stage's device holds beside state and kept activations [bytes]."""
        return without_terms(self._passing(layout, micro_batch))

    def lacking_bytes(self, layout: Layout, micro_batch: Floats, steps: Floats) -> Floats:
        """Return by how much an even cut's mean stage, or the host, misses its memory [bytes].

        Shape (2, n): with as few micro-batches in flight as the last stage has, without which no
        cut fits, and with those of the schedule.
        """
        held = self.memory.slack * self.table.kept_bytes(layout.tp, _kept(layout)).sum()
        flights = np.minimum.outer(np.arange(1.0, layout.pp + 1), steps)
        most = np.stack([flights[0], flights.mean(axis=0)]) * micro_batch * held
        beside = self.beside_bytes(layout, micro_batch)
        device = (self.state_bytes(layout).sum() + most) / layout.pp + beside - self.capacity_bytes
        host = self.on_host_bytes(layout, micro_batch) - self.node.memory_bytes
        return np.asarray(np.maximum(device, host))

    def look(
        self, layout: Layout, local: int, micro_batches: Floats, bounds_s: Floats, seen: Found
    ) -> Iterator[PlannedLayout]:
        """Yield a layout at the micro-batches that fit and could win, by rising bound."""

        def at(row: int) -> Layout:
            size = int(micro_batches[row])
            return replace(layout, micro_batch=size, accumulation_steps=-(-local // size))

        least, mean = self.lacking_bytes(layout, micro_batches, np.ceil(local / micro_batches))
        if least.min() > 0:
            seen.misses(max(float(mean.min()), 1.0), at(int(np.argmin(mean))))
            return
        for row in np.argsort(bounds_s, kind="stable").tolist():
            if bounds_s[row] > INDISTINGUISHABLE * seen.least_s:
                return
            if least[row] > 0:
                continue
            cut = self.cut(at(row), seen)
            if cut is None:
                seen.misses(max(float(mean[row]), 1.0), at(row))
                continue
            seen.fitting += 1
            if cut.step_s <= INDISTINGUISHABLE * seen.least_s:
                yield self.over(cut, at(row), local, seen)

    def flights(self, layout: Layout) -> Floats:
        """Return the micro-batches that each stage holds of 1F1B."""
        held = np.arange(float(layout.pp), 0, -1)
        return np.asarray(np.minimum(held, layout.accumulation_steps))

    def cut(self, layout: Layout, seen: Found) -> Partition | None:
        """Return the best cut of the units into a layout's stages, None where none fits."""
        u = np.array(float(layout.micro_batch))
        return _cut_under(
            np.asarray(sum(self.pass_s(layout, u))),
            2 * self.send_s(layout, u * self.table.output_bytes),
            layout.accumulation_steps,
            self.state_bytes(layout),
            self.memory.slack * u * self.table.kept_bytes(layout.tp, _kept(layout)),
            self.flights(layout),
            self.capacity_bytes - float(self.beside_bytes(layout, u)),
            INDISTINGUISHABLE * seen.least_s,
        )

    def over(self, cut: Partition, layout: Layout, local: int, seen: Found) -> PlannedLayout:
        """Return a layout over its cut; ``local``: samples of a step on one rank."""
        u, a, times = np.array(float(layout.micro_batch)), layout.accumulation_steps, self.times
        edges = np.concatenate([[0], np.cumsum(cut.layers)])
        slow = int(np.argmax(cut.stage_s))
        inside = slice(edges[slow], edges[slow + 1])
        forward, backward, exchanged = (float(one[inside].sum()) for one in self.pass_s(layout, u))
        parameters = np.add.reduceat(self.table.held_parameters(layout.tp), edges[:-1])
        share = float(parameters.max()) / max(self.work.parameters, 1)
        update_s = 0.0 if "optimizer" in layout.offload else times[layout.tp].optimizer_s
        update_s *= share * layout.tp if layout.pp > 1 else 1.0
        columns = self.reduced(layout, cut.step_s, backward, update_s, share)
        moved_s = self.offload_s(layout, cut.step_s)
        loaded_s = self.load_s(float(columns.step_s) + moved_s, local)
        computed_s, traded_s = a * (forward + backward), a * exchanged
        step = StepTimes(
            step_s=columns.step_s + moved_s + loaded_s,
            compute_s=np.array(computed_s),
            inside_layer_s=np.array(traded_s),
            pipeline_s=np.array(max(cut.step_s - computed_s - traded_s, 0.0)),
            data_parallel_s=columns.exposed_s + columns.straggler_s,
            optimizer_s=np.array(update_s / (layout.dp if layout.zero_stage else 1)),
            offload_s=np.array(moved_s),
            input_s=np.array(loaded_s),
        )
        used = np.asarray(max(cut.memory_bytes) + self.beside_bytes(layout, u))
        found = planned(
            layout, step, (used, self.on_host_bytes(layout, u)), (), (), stages=cut.layers,
            log_sd=float(np.hypot(times[layout.tp].log_sd, columns.log_sd)),
        )  # fmt: skip
        seen.least_s = min(seen.least_s, found.step_s)
        return found


def _kept(layout: Layout) -> Kept:
    """Return what becomes of the activations between forward and backward."""
    if layout.recompute == "full":
        return "recomputed"
    return "offloaded" if "activations" in layout.offload else "kept"


def _cut_under(
    unit_s: Floats, send_s: Floats, micro_batches: int,
    state: Floats, held: Floats, flights: Floats, capacity: float, worth_s: float,
) -> Partition | None:  # fmt: skip
    """Return the best cut whose stages hold no more than ``capacity``, None where none does.

    Where the best of all cuts is slower than ``worth_s``, it is returned whatever it holds.
    """
    cut = _fastest_cut(unit_s.tobytes(), send_s.tobytes(), len(flights), micro_batches)
    starts = np.concatenate([[0], np.cumsum(cut.layers)[:-1]])
    stage_bytes = np.add.reduceat(state, starts) + flights * np.add.reduceat(held, starts)
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
    if stages == 1:
        whole_s = float(times.sum())
        return Partition(
            layers=(times.size,), stage_s=(whole_s,), memory_bytes=(0.0,),
            step_s=micro_batches * whole_s,
        )  # fmt: skip
    return partition(times, micro_batches, stages=stages, send_s=sends)


def search_units(
    problem: UnitProblem, nodes: int, global_batch: int, *, space: SearchSpace | None = None,
    worth_s: float = float("inf"),
) -> PlannedLayout:  # fmt: skip
    """Return the best layout of a model's units on equal machines.

    ``global_batch``: one that the data-parallel ranks do not divide is rounded up on some of them;
    ``space``: units are not divided by context or expert parallelism, nor recomputed selectively;
    ``worth_s``: layouts whose step is sure to be slower are not looked at.

    Raises PlanningError if nothing divides or nothing fits; the message names the nearest miss.
    """
    space = space or SearchSpace()
    for name in ("cp", "ep"):
        if max(getattr(space, name) or 1, getattr(space, f"min_{name}")) > 1:
            raise impossible(f"units of layers are not divided by {name}")
    seen = Found(least_s=worth_s)
    splits = list(_splits(problem, nodes, global_batch, space))
    # What moves to the host and back never pays where the model fits without.
    for is_offloaded in (False, True):
        ways = [way for way in _WAYS if bool(way.offload) == is_offloaded]
        candidates = list(_candidates(problem, splits, global_batch, ways, space))
        found: list[PlannedLayout] = []
        for bounds_s, layout, local, sizes in sorted(candidates, key=lambda x: x[0].min()):
            if bounds_s.min() > INDISTINGUISHABLE * seen.least_s:
                break
            found += problem.look(layout, local, sizes, bounds_s, seen)
        if found:
            limit = INDISTINGUISHABLE * min(x.step_s for x in found)
            return min((x for x in found if x.step_s <= limit), key=_complexity)
        seen.considered += len(candidates)
    raise _nothing(problem, seen, nodes, global_batch, space)


def _complexity(found: PlannedLayout) -> tuple[float, ...]:
    layout = found.layout
    return (
        len(layout.offload),
        layout.pp,
        layout.tp,
        layout.zero_stage,
        layout.recompute != "none",
        found.step_s,
    )


def _candidates(
    problem: UnitProblem, splits: Sequence[Layout], global_batch: int, ways: Sequence[Layout],
    space: SearchSpace,
) -> Iterator[tuple[Floats, Layout, int, Floats]]:  # fmt: skip
    """Yield layouts that something runs, each with a rank's samples and micro-batches to try.

    First of each are bounds on its step, by micro-batch: what is moved to the host is not in them.
    """
    for split in splits:
        local = -(-global_batch // split.dp)
        sizes = np.array(_micro_batches(local, space), float)
        bounds: dict[str, Floats] = {}
        stages = space.zero_stages
        for way, (at, zero) in product(ways if sizes.size else (), enumerate(stages)):
            if not _is_run(problem, split, way, zero, space):
                continue
            layout = replace(way, dp=split.dp, tp=split.tp, pp=split.pp, zero_stage=zero)
            if way.recompute not in bounds:
                steps = np.ceil(local / sizes)
                bounds[way.recompute] = problem.least_reduced_s(layout, sizes, steps, stages)
            yield bounds[way.recompute][at], layout, local, sizes


def _splits(
    problem: UnitProblem, nodes: int, global_batch: int, space: SearchSpace
) -> Iterator[Layout]:
    """Yield the degrees that divide the machines."""
    per_node = problem.node.devices
    devices = nodes * per_node
    for tp in problem.times:
        if space.tp not in (None, tp) or tp < space.min_tp or per_node % tp:
            continue
        for pp in divisors(devices // tp):
            dp = devices // (tp * pp)
            stage = dp * tp
            is_whole = stage % per_node == 0 or per_node % stage == 0
            if space.pp not in (None, pp) or pp < space.min_pp or not is_whole:
                continue
            if dp <= global_batch and pp <= min(len(problem.table.names), _DEEPEST):
                yield Layout(dp=dp, tp=tp, pp=pp)


def _micro_batches(local: int, space: SearchSpace) -> tuple[int, ...]:
    """Return micro-batches to try: the local batch halved until it is one, or those fixed."""
    steps = space.accumulation_steps
    found = {-(-local // 2**k) for k in range(local.bit_length())}
    if steps is not None:
        found = {-(-local // steps)}
    if space.micro_batch is not None:
        found = {space.micro_batch} if local % space.micro_batch == 0 else set()
    return tuple(sorted(u for u in found if steps in (None, -(-local // u))))


def _is_run(
    problem: UnitProblem, split: Layout, way: Layout, zero_stage: int, space: SearchSpace
) -> bool:
    """Whether something runs one split of the devices so, and it is no repetition."""
    if way.recompute not in space.recomputes or not way.offload <= set(space.offloads):
        return False
    # What offloads an optimizer takes its gradients along.
    if space.moves is not None and way.offload != set(space.moves) - {"gradients"}:
        return False
    if way.recompute == "full" and len(problem.table.names) < 2:
        return False
    if split.devices == 1:
        shares_on_cpu = zero_stage > 0 and problem.node.device.kind == "cpu"
        moves = "parameters" in way.offload
        if shares_on_cpu or not may_stand_alone(zero_stage, moves, space):
            return False
    elif split.dp == 1 and zero_stage > 0:
        return False
    # The rules of what runs a script ask which degrees are above one.
    return _runs(way, zero_stage, *(min(one, 2) for one in (split.dp, split.tp, split.pp)))


@cache
def _runs(way: Layout, zero_stage: int, dp: int, tp: int, pp: int) -> bool:
    """Return whether something runs a script so."""
    layout = replace(way, dp=dp, tp=tp, pp=pp, zero_stage=zero_stage)
    return bool(is_runnable(layout_columns(layout), frameworks=RECORDED))


def _nothing(
    problem: UnitProblem, seen: Found, nodes: int, global_batch: int, space: SearchSpace
) -> PlanningError:  # fmt: skip
    devices = nodes * problem.node.devices
    if not seen.considered:
        return impossible(
            f"nothing divides {devices} devices in a way that PyTorch or DeepSpeed runs",
            "leave the tensor- or pipeline-parallel degree, the ZeRO stage or offload open",
        )
    if seen.nearest is None:
        return impossible(
            f"nothing divides: {len(problem.table.names)} units of layers and a batch of "
            f"{global_batch} on {devices} devices",
            "raise the batch, or change the number of devices or the fixed degrees",
        )
    excess, layout = seen.nearest
    nearest = (
        f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, micro-batch {layout.micro_batch}, "
        f"ZeRO {layout.zero_stage}, recompute {layout.recompute}"
    )
    is_fixed = space.micro_batch is not None and layout.micro_batch > 1
    smaller = "with a smaller micro-batch" if is_fixed else "with a smaller model"
    return misses(nearest, problem.capacity_bytes, problem.kept_free_bytes, excess, [smaller])
