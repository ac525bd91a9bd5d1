"""A transformer over accelerators: data, tensor, pipeline, context and expert parallelism.

Every row of machines gets the fastest of all layouts that fit (``planners.layouts.problem``):
degrees, schedule, micro-batch, ZeRO stage over all ranks or inside a node, recomputation, and
host memory where nothing fits without. Layer times come from one of two laws (``laws``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Bottleneck
from advisor.catalogue import Accelerator
from advisor.errors import UsageError
from advisor.estimate.case import StepCase, machine_key
from advisor.estimate.knowledge.layout_model import (
    PRECISION_CODES,
    Asked,
    Outside,
    chip_of,
    operator_table,
    passed_share,
    shapes_law,
    software_of,
    trained_share,
)
from advisor.estimate.time_columns import CODE, WAITS, TimeColumns, shares_of, way_code
from advisor.estimate.ways.data_parallel import kept_free_bytes
from advisor.jobs import restacked
from advisor.machines import host_room_bytes
from advisor.planners.core import (
    BACKWARDS,
    RELEASES,
    STACKS,
    Device,
    Layout,
    Layouts,
    Machines,
    Software,
    Stack,
    StackFacts,
    TrainingSetup,
    UnitTimes,
    shapes_of,
)
from advisor.planners.layouts import (
    Found,
    LayoutProblem,
    PlannedLayout,
    SearchSpace,
    frameworks_of,
    is_runnable,
    layout_columns,
)
from advisor.planners.links import between_transports
from advisor.planners.memory import WIDTHS, MemoryParameters, spread
from advisor.planners.step import KERNELS, block_times, step_time
from advisor.quantities import REACH_90

WAY: Final = way_code("model parallel")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Micro-batches at which the law of the operators is tabulated.
_TABULATED: Final = tuple(float(2**k) for k in range(8))
# Host to device where nothing is known of the card's generation (PCIe 3, measured on clouds).
_HOST_BYTES_PER_S: Final = 11.1e9
_DEGREES: Final = ("tp", "pp", "cp", "ep")
# What each part of a planned step waits for (``planners.layouts.time.StepTimes``).
_WAITS: Final[dict[str, Bottleneck]] = {
    "compute_s": "compute",
    "inside_layer_s": "network",
    "data_parallel_s": "network",
    "pipeline_s": "pipeline",
    "optimizer_s": "memory",
    "offload_s": "offload",
    "input_s": "input",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """The law that times a job's layers on a device, and how far to trust it."""

    # the accelerator and the code of its precision by the law of the shapes; None and 0 by that of
    # the operators, whose times are ``block_table``
    part: Accelerator | None
    precision: int
    block_table: UnitTimes | None
    factor: float  # what measured steps say of the first law
    log_sd: float
    # the same of a layout over several devices where nobody named the stack, and where nobody
    # said how the model is split: 0 where one is, and by the law of the operators
    unnamed_log_sd: float
    open_log_sd: float
    is_extrapolating: bool


@dataclass(frozen=True, slots=True)
class OnMachine:
    """A layout problem on one kind of machine, and how far its times are to be trusted."""

    problem: LayoutProblem
    law: OnDevice
    is_rdma: bool

    @property
    def per_node(self) -> int:
        """Devices of a machine."""
        return int(self.problem.machines.devices_per_node)


def model_parallel(case: StepCase, type_index: Integers, count: Integers) -> TimeColumns:
    """Estimate the step on ``count`` machines of each type in the fastest layout that fits.

    ``type_index``, ``count``: (n,); rows of the fleet's types, all of them accelerators.
    """
    columns = case.no_times(WAY, type_index, count)
    for row in np.flatnonzero(columns.status == 0):
        on = on_machine(case, int(type_index[row]))
        key = (*machine_key(case, int(type_index[row])), int(count[row]))
        devices = int(count[row]) * on.per_node
        found = case.once(key, partial(search, case, on.problem, devices))
        _put(case, columns, int(row), on, found)
    return columns


def least_split_s(case: StepCase, type_index: Integers, count: Integers) -> Floats:
    """Return a bound from below on the step in any layout that is looked for; (n,) [s]."""
    found = []
    for row, nodes in zip(type_index.tolist(), count.tolist(), strict=True):
        on, batch = on_machine(case, row), case.job.global_batch
        spaces = stack_spaces(case.space, case.work.setup)
        bounds = (
            on.problem.bounds_s(nodes * on.per_node, batch, within_links(space, on.problem))
            for space in spaces
        )
        found.append(min(float(one.min(initial=np.inf)) for one in bounds))
    return np.array(found)


def search(case: StepCase, problem: LayoutProblem, devices: int) -> Found:
    """Return the fastest layout on so many devices of a kind, or of the problem's kinds."""
    batch = case.job.global_batch
    for space in stack_spaces(case.space, case.work.setup):
        found = problem.search(devices, batch, within_links(space, problem))
        if found.best is not None:
            break
    return found


def space_on(case: StepCase, problem: LayoutProblem) -> SearchSpace:
    """Return the case's space, tensor parallelism inside what one link joins.

    What nobody asked for otherwise is as the job's stack has it.
    """
    return within_links(stack_spaces(case.space, case.work.setup)[0], problem)


def stack_spaces(space: SearchSpace, setup: TrainingSetup) -> tuple[SearchSpace, ...]:
    """Return where to look for a layout, one after the other until some layout fits.

    First what the setup's stack does of what nobody asked for otherwise; then all that it can.
    Of a stack that nobody named: then all, for what it does not do another one may.
    """
    if (facts := setup.facts) is None:
        return (space,)
    usual = replace(space.sharded_as(facts), **_defaults(space, facts))
    if setup.is_stack_assumed:
        return usual, space
    able = _split_by(usual, facts.degrees)
    if facts.usual_degrees is None:
        return (able,)
    return _split_by(usual, facts.usual_degrees), able


def _split_by(space: SearchSpace, degrees: Sequence[str]) -> SearchSpace:
    """Return the space with every other degree at 1 that is left open."""
    closed = (name for name in _DEGREES if name not in degrees)
    ones: dict[str, Any] = {name: 1 for name in closed if getattr(space, name) is None}
    return replace(space, **ones)


def check_stack(space: SearchSpace, setup: TrainingSetup) -> None:
    """Refuse what the stack does not have: a schedule, or of a named one a degree or a word.

    Raises UsageError naming the option and the stacks that have it.
    """
    asked = space.schedule or ("interleaved" if (space.chunks or 1) > 1 else None)
    # What nobody named runs as Megatron's pipelines do.
    facts = setup.facts or STACKS["megatron-core"]
    if asked not in (None, "1f1b", *facts.able_schedules):
        able = ", ".join(name for name, one in STACKS.items() if asked in one.able_schedules)
        word = f"--stack {setup.stack}" if setup.named_stack else "software that nobody names"
        flag = f"--schedule {asked}" if space.schedule else f"--chunks {space.chunks}"
        raise UsageError(
            f"{word} has no {flag}", hint=f"leave it out, or name a stack that has it: {able}"
        )
    if asked in BACKWARDS and setup.kernels == "compiled":
        raise UsageError(
            f"--schedule {asked} computes gradients of weights apart: compiled models cannot",
            hint="add --kernels eager",
        )
    if setup.named_stack is None or setup.facts is None:
        return
    degrees = facts.degrees
    for name in _DEGREES:
        if (getattr(space, name) or 1) > 1 and name not in degrees:
            why = "" if degrees else ": every rank computes the whole model"
            able = ", ".join(stack for stack, facts in STACKS.items() if name in facts.degrees)
            raise UsageError(
                f"--stack {setup.named_stack} has no --{name}{why}",
                hint=f"leave one of them out, or name a stack that has it: {able}",
            )
    words: set[tuple[str, str]] = {("--offload", one) for one in space.moves or ()}
    words |= {("--loss", setup.loss)} if setup.loss else set()
    words |= {("--optimizer", setup.optimizer)} if "optimizer" in setup.said else set()
    words |= {("--optimizer-in-backward", "")} if space.updates_in_backward else set()
    for option, value, is_known in stack_words(setup.named_stack):
        if (option, value) in words and not is_known:
            able = ", ".join(
                stack for stack in STACKS if (option, value, True) in stack_words(stack)
            )
            raise UsageError(
                f"--stack {setup.named_stack} has no {option} {value}".rstrip(),
                hint=f"leave one of them out, or name a stack that has it: {able}",
            )


def stack_words(stack: Stack | None) -> tuple[tuple[str, str, bool], ...]:
    """Return the words that change what a step keeps: option, value, and whether a stack has it.

    ``stack``: None has all of them: somebody's own loop.
    """
    facts = StackFacts(setup={}, updates_in_backward=True) if stack is None else STACKS[stack]
    everything = StackFacts(setup={})
    return (
        *(("--loss", one, one in facts.losses) for one in everything.losses),
        ("--optimizer-in-backward", "", facts.updates_in_backward),
        *(("--optimizer", one, one in facts.optimizers) for one in everything.optimizers),
        *(("--offload", one, one in facts.offloads) for one in everything.offloads),
        *(("--recompute", one, one in facts.recomputes) for one in everything.recomputes),
    )


def within_links(space: SearchSpace, problem: LayoutProblem) -> SearchSpace:
    """Return the space where tensor parallelism stays inside what one link joins."""
    if space.tp is not None:
        return space
    return replace(space, max_tp=min(space.max_tp, problem.joined_devices))


def _defaults(space: SearchSpace, facts: StackFacts) -> dict[str, Any]:
    """Return what a stack does by default of what a space leaves open."""
    open_space = SearchSpace()
    # Sharding inside nodes only has a switch of its own everywhere (HSDP, optimizer instances).
    found: dict[str, Any] = {"may_shard_in_nodes": False, "schedules": facts.schedules}
    if space.recomputes == open_space.recomputes:
        found["recomputes"] = facts.recomputes
    found["offloads"] = tuple(one for one in space.offloads if one in facts.offloads)
    return found


def on_machine(case: StepCase, row: int) -> OnMachine:
    """Return the layout problem on the machines of one type; made once."""

    def made() -> OnMachine:
        index = int(case.fleet.device[row])
        on = case.once(("on device", index), lambda: _law_on(case, case.fleet.devices[index]))
        machines = _machines(case, row, on)
        any_ = case.once(("layout problem",), lambda: _on_any(case, machines))
        problem = replace(
            any_, machines=machines, block_table=on.block_table, device_factor=on.factor, seen={}
        )
        return OnMachine(problem=problem, law=on, is_rdma=bool(case.fleet.is_rdma[row]))

    return case.once(machine_key(case, row), made)


def _on_any(case: StepCase, machines: Machines) -> LayoutProblem:
    """Return what the problems on all machines have in common, on some."""
    work, constants, space = case.work, case.constants, case.space
    assert work.transformer is not None
    setup, is_open = work.setup, space.recomputes == SearchSpace().recomputes
    return LayoutProblem(
        transformer=work.transformer,
        machines=machines,
        software=software_of(work),
        parameters=constants.layout.parameters,
        memory=_told(constants.memory, setup),
        sureness=space.sureness,
        trained_share=trained_share(work),
        passed_share=passed_share(work),
        # The stack recomputes or offloads some layers only, where nobody says which.
        parts_layers=is_open and setup.facts is not None and setup.facts.parts_layers,
        admits=partial(
            is_runnable,
            shapes=shapes_of(work.transformer),
            setup=setup,
            precision=work.precision,
            frameworks=frameworks_of(setup),
        ),
    )


def _told(memory: MemoryParameters, setup: TrainingSetup) -> MemoryParameters:
    """Return the constants of memory, less sure of what nobody says how it is computed."""
    is_named = setup.named_stack is not None
    unsaid = 1.0 if is_named else memory.unsaid_spread
    all_terms = spread(
        memory, is_loose=setup.kernels == "eager" or setup.has_adapters, is_named=is_named,
        is_quantised=setup.base_bits < 16,
    )  # fmt: skip
    wide = dict.fromkeys(WIDTHS, float(all_terms))
    # What is loose errs by what nobody said of it, too.
    wide["activations_log_sd"] = max(wide["activations_log_sd"], unsaid)
    if setup.loss is None:
        wide["logits_log_sd"] = max(wide["logits_log_sd"], unsaid)
    return replace(memory, **{name: getattr(memory, name) * by for name, by in wide.items()})


def _law_on(case: StepCase, device: Device) -> OnDevice:
    work, constants = case.work, case.constants
    law = shapes_law(device, work, case.accelerators, constants.device.fitted_architectures)
    known = None if law is None else law[0]
    bare_sd, unnamed, open_sd = np.zeros(1), 0.0, 0.0
    if known is None or known.is_inferred:
        timed = step_time(work, [device], _TABULATED, constants.device)
        bare_sd = timed.log_sd
    if known is not None:
        # Of a card whose rate nobody measured the shapes tell no more than the operators do
        # (``validate described``: on layers they err by a quarter, the operators by a fifth).
        is_mixture = work.transformer is not None and work.transformer.experts > 1
        told: Asked = "told the stack, mixture" if is_mixture else "told the stack"
        of_law = _law_log_sd(case, known.kernels, told)
        open_sd = _law_log_sd(case, known.kernels, "told the stack, layout open")
        if work.setup.named_stack is None:
            unnamed = _law_log_sd(case, known.kernels, "plain, mixture" if is_mixture else "plain")
            open_sd = _law_log_sd(case, known.kernels, "plain, layout open")
        bare_sd = np.maximum(bare_sd, of_law)
    factor, log_sd = case.anchors.calibration(
        [device], bare_sd, constants, "operators" if known is None else "transformer shapes"
    )
    if case.own is not None:
        factor = factor + case.own.log_device(device)
    table = None if known else operator_table(work, timed, float(factor[0]))
    # Whether nobody said by which degrees the model is split, and the stack has several.
    widest = stack_spaces(case.space, work.setup)[-1]
    is_open = case.space.is_part or None in (widest.tp, widest.pp, widest.cp)
    return OnDevice(
        part=known,
        precision=law[1] if law else _SENT_WIDE.get(work.precision, 0),
        block_table=table,
        factor=float(np.exp(factor[0])) if known is not None else 1.0,
        log_sd=float(log_sd[0]),
        unnamed_log_sd=unnamed,
        open_log_sd=open_sd if is_open else 0.0,
        is_extrapolating=known.is_inferred if known else bool(timed.is_extrapolating[0]),
    )


def _law_log_sd(case: StepCase, generation: int, asked: Asked) -> float:
    """Return the deviation of ln(step) that left-out tables of a way to ask say; made once."""
    layout = case.constants.layout
    return case.once(
        ("law", generation, asked),
        lambda: layout.log_half_width(generation, 0.9, asked=asked) / REACH_90,
    )


# Index into ``PRECISIONS`` where another law than the shapes' times the layers: what is sent is
# twice as wide in single precision.
_SENT_WIDE: Final = {"fp32": PRECISION_CODES["tf32"], "tf32": PRECISION_CODES["tf32"]}


def _machines(case: StepCase, row: int, on: OnDevice) -> Machines:
    """Return the machines of one type as (scalar) columns of the layout model."""
    fleet, work, constants = case.fleet, case.work, case.constants
    device, known = fleet.devices[fleet.device[row]], on.part
    network = float(fleet.network_bytes_per_s[row])
    if not fleet.is_rdma[row]:
        # Past the kernel a ring reaches what the layout model was fitted on; through it, what
        # NCCL's streams carry.
        stream = constants.scaling.collectives.stream_bytes_per_s
        fitted = constants.layout.parameters if case.own is None else case.own.before
        streams = stream / fitted.dp_network_efficiency
        network = float(between_transports(network, streams, fleet.rdma_share[row]))
    memory = np.array([device.memory_bytes])
    return Machines(
        flop_per_s=known.flop_per_s if known else 1.0,
        memory_bytes_per_s=known.memory_bytes_per_s if known else device.memory_bytes_per_s,
        memory_bytes=device.memory_bytes,
        kept_free_bytes=float(kept_free_bytes(memory, np.array([True]))[0]),
        intra_bytes_per_s=min(float(fleet.intra_bytes_per_s[row]), 1e15),
        network_bytes_per_s=min(network, 1e15) if np.isfinite(network) else 1e15,
        devices_per_node=int(fleet.per_node[row]),
        domain_machines=int(fleet.domain_machines[row]),
        host_bytes_per_s=known.host_bytes_per_s if known else _HOST_BYTES_PER_S,
        host_memory_bytes=host_room_bytes(case.job, work, fleet, row),
        generation=known.kernels if known else 1,
        precision=on.precision,
        elementwise_flop_per_s=known.elementwise_flop_per_s if known else math.inf,
        is_ultra=int(known.is_ultra) if known else 0,
        relative_power=known.relative_power if known else 1.0,
    )


def _put(case: StepCase, columns: TimeColumns, row: int, on: OnMachine, found: Found) -> None:
    """Write what a search found into one row."""
    best = found.best
    if best is None:
        why = "excluded_by_layout" if case.space.fixed else "batch_does_not_divide"
        columns.status[row] = CODE["does_not_fit_in_memory" if found.nearest else why]
        return
    kind, layout = int(columns.type_index[row]), best.layout
    samples = np.array([layout.global_batch / layout.devices])
    parts = waits_of(on.problem, best)
    parts["input"] = case.waiting_s(np.array([best.step_s]), samples, np.array([kind]))
    shares = put_layout(columns, row, best, WAY, parts)
    columns.log_sd[row] = layout_log_sd(case, on, kind, layout, shares)
    columns.is_extrapolating[row] = on.law.is_extrapolating


def put_layout(
    columns: TimeColumns, row: int, best: PlannedLayout, way: int, parts: dict[Bottleneck, Floats]
) -> dict[Bottleneck, Floats]:
    """Write a planned layout into one row; return what its step waits for, as shares."""
    step_s, shares = shares_of(parts)
    columns.status[row], columns.way[row] = CODE["ok"], way
    columns.step_s[row] = step_s[0]
    for name, share in shares.items():
        columns.shares[name][row] = share[0]
    one = layout_columns(best.layout)
    for field in Layouts.__slots__:
        getattr(columns.layouts, field)[row] = getattr(one, field)
    columns.memory_bytes[row] = best.memory_bytes
    columns.host_bytes[row] = best.host_bytes
    return shares


def layout_log_sd(
    case: StepCase, on: OnMachine, type_index: int, layout: Layout,
    shares: dict[Bottleneck, Floats],
) -> float:  # fmt: skip
    """Return the deviation of ln(step) of a layout, after the user's own runs where there are."""
    of_layout = on.law.log_sd
    if layout.devices > 1:
        of_layout = max(of_layout, on.law.unnamed_log_sd, on.law.open_log_sd)
    device = case.fleet.devices[case.fleet.device[type_index]]
    of_weights = KERNELS[case.work.setup.base_bits].log_sd_on(device.architecture)
    # The layout model was fitted on networks that bypass the kernel: its errors hold theirs.
    of_links = float(shares["network"][0] * case.constants.scaling.log_sd_communication)
    if on.is_rdma and on.problem.block_table is None:
        of_links = 0.0
    published = math.hypot(
        of_layout, of_links, of_weights, _release_log_sd(case, on, layout),
        *outside(case, on, layout).values(),
    )  # fmt: skip
    if case.own is None:
        return published
    return case.own.log_sd(on.problem, layout_columns(layout), device, published)


# Mixtures of one model, card and batch took 1.0 to 2.8 times as long by NeMo's recipes of 26.02 as
# by those of 26.04 (Megatron-Bridge's tables), half of them within 5 %: 1.5 times in a year.
_MIXTURE_LOG_SD: Final = math.log(1.5) / REACH_90


def _release_log_sd(case: StepCase, on: OnMachine, layout: Layout) -> float:
    """Return the deviation of ln(step) by a stack's release, where its user names none.

    An interval of 90 % holds what the farthest of them takes in that layout, and of a mixture of
    experts what no law here tells apart yet.
    """
    setup, problem = case.work.setup, on.problem
    if setup.named_stack is None or setup.release or problem.block_table is not None:
        return 0.0
    released = case.once(("releases",), lambda: _releases(case))
    if released is None:
        return 0.0

    def farthest() -> float:
        of_all = replace(problem, software=released).times(layout_columns(layout)).step_s
        return float(np.max(np.abs(np.log(of_all / of_all[0]))))

    # What software takes hardly depends on the network: once for all machines of a device.
    machines = problem.machines
    key = ("release", machines.flop_per_s, machines.memory_bytes_per_s, layout)
    is_mixture = problem.transformer.experts > 1
    return math.hypot(case.once(key, farthest) / REACH_90, _MIXTURE_LOG_SD if is_mixture else 0.0)


def _releases(case: StepCase) -> Software | None:
    """Return what a named stack does, today and in its releases, as columns; None of others."""
    work, setup = case.work, case.work.setup
    said = {name: getattr(setup, name) for name in setup.said}
    found = [software_of(work)] + [
        software_of(replace(work, setup=restacked(setup, {**said, "stack": f"{stack}@{name}"})))
        for stack in RELEASES.keys() & {setup.named_stack}
        for name, _, _ in RELEASES[stack]
    ]
    kinds = list(dict.fromkeys(found))
    names = (one.name for one in fields(Software))
    columns = {name: np.array([getattr(kind, name) for kind in kinds]) for name in names}
    return Software(**columns) if len(found) > 1 else None


def outside(case: StepCase, on: OnMachine, layout: Layout) -> dict[Outside, float]:
    """Return in what a layout leaves what the law of the shapes was fitted on, as deviations."""
    part, model = on.law.part, case.work.transformer
    if part is None or model is None:
        return {}
    return case.constants.layout.outside(
        part.kernels, chip=chip_of(part.name), precision=on.law.precision,
        stack=case.work.setup.named_stack, hidden=model.hidden, devices=layout.devices,
        has_experts=model.experts > 1,
    )  # fmt: skip


def network_slope(problem: LayoutProblem, layout: Layout) -> float:
    """Return by how much ln(step) of a layout falls as the logarithm of the network rises.

    From half of it to twice: collectives, and what stages of a pipeline send one another.
    """
    rates = float(problem.machines.network_bytes_per_s) * np.array([0.5, 2.0])
    on_both = replace(problem, machines=replace(problem.machines, network_bytes_per_s=rates))
    step_s = on_both.times(layout_columns(layout)).step_s
    slow_s, fast_s = np.broadcast_to(step_s, 2).tolist()
    return math.log(slow_s / fast_s) / math.log(4.0)


def waiting_parts(best: PlannedLayout) -> dict[Bottleneck, Floats]:
    """Return what a layout's step waits for; the parts add up to it [s], each of shape (1,)."""
    parts: dict[Bottleneck, Floats] = {name: np.zeros(1) for name in WAITS}
    for part, wait in _WAITS.items():
        parts[wait] += best.parts_s[part]
    return parts


def waits_of(problem: LayoutProblem, best: PlannedLayout) -> dict[Bottleneck, Floats]:
    """Return the same, with what its units wait for memory and for launches told apart."""
    parts = waiting_parts(best)
    block = block_times(problem.case(layout_columns(best.layout)))
    per_stage = -(-problem.transformer.layers // best.layout.pp)
    steps, whole = best.layout.accumulation_steps, best.parts_s["compute_s"]
    streamed = steps * per_stage * float(block.streamed_s)
    computed = steps * float(per_stage * block.computed_s + block.head_s) - streamed
    scale = min(whole / max(computed + streamed, 1e-30), 1.0)
    parts["compute"][0] = scale * computed
    parts["memory"] += scale * streamed
    parts["launch"] += whole - scale * (computed + streamed)
    return parts
