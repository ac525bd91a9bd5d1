"""Pipelines whose stages are groups of unlike machines.

Two forms, the better one counts (one that a released framework runs before one that none does):

- Groups cut along the slow links, of any size, each data parallel inside; the units are cut so
  that all groups need equally long (``systems.grouped_pipeline``). For any model.
- Stages of one width and one tensor-parallel degree, as Megatron-LM runs them
  (``planners.layouts.mixed``). For transformers whose layers are timed by their shapes.

And a way of its own: ministages that go round such groups (Zorse), for models of repeated blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from advisor.answer import Answer, Command
from advisor.estimate.knowledge.laws import LayoutLaw, ReducedStep, Stage
from advisor.estimate.unlike.groups import ALONE, Machines, OnGroups, fullest_ledgers
from advisor.estimate.ways.even import over_slowest_links, plainly
from advisor.estimate.ways.model_parallel import stack_spaces
from advisor.estimate.ways.recorded_units import GAIN, could_gain
from advisor.planners.core import GIB, Floats, Layout, PlanningError, shapes_of
from advisor.planners.layouts import (
    MachineGroup,
    MixedPlan,
    frameworks_of,
    is_runnable,
    search_mixed,
)
from advisor.planners.links import split_partitions
from advisor.planners.memory import without_terms
from advisor.planners.systems import (
    AsymmetricPlan,
    GroupedPipeline,
    PipelineGroup,
    PipelineJob,
    StageGroup,
    StageMemory,
    Worker,
    ZorseConstants,
    best_of_groups,
    grouped_pipeline,
    order_groups,
)


def stages_of_one_width(case: OnGroups) -> Answer:
    """Plan a pipeline whose groups hold as many layers as they are fast; Megatron-LM runs it.

    Raises PlanningError if the layers are not timed by a transformer's shapes, or nothing divides
    or fits.
    """
    law = case.model.law
    if not isinstance(law, LayoutLaw):
        raise PlanningError("no transformer that is laid out by its shape")
    setup = case.model.work.setup
    if setup.named_stack is not None and frameworks_of(setup)[0] != "megatron":
        raise PlanningError(f"Megatron-LM runs it, and --stack {setup.stack} was named")
    admits = partial(
        is_runnable, shapes=shapes_of(law.transformer), setup=setup,
        precision=case.model.work.precision, frameworks=("megatron",),
    )  # fmt: skip
    groups = [
        MachineGroup(problem=replace(law.machines[g.label].problem, admits=admits), nodes=g.count)
        for g in case.groups
    ]
    found = _found(case, groups)
    ordered = [case.groups[i] for i in found.order]
    return case.choice(
        "pipeline over groups",
        found.step_s,
        case.model.log_sd(case.groups),
        samples=case.even_samples(),
        ledgers={g.label: held for g, held in zip(ordered, found.ledgers, strict=True)},
        layouts={g.label: layout for g, layout in zip(ordered, found.layouts, strict=True)},
        parts_s=_waits(found),
        details={
            "order": [g.label for g in ordered],
            "groups_by_stage": [
                " + ".join(ordered[i].label for i in held) for held in found.groups_by_stage
            ],
            "layers_by_stage": list(found.layers),
            "stage_s": list(found.stage_s),
            "micro_batch": found.layouts[0].micro_batch,
            "considered": found.considered,
            "fitting": found.fitting,
        },
        commands=_stages_of_one_width_commands(case, law, found),
        notes=(_RANKED[any(len(held) > 1 for held in found.groups_by_stage)],),
    )


def _found(case: OnGroups, groups: Sequence[MachineGroup]) -> MixedPlan:
    """Return the fastest of what the stack does; of all, where nobody named one that can."""
    first, *others = stack_spaces(case.space, case.model.work.setup)
    # What else it can do is asked for only where nothing fits, however slow.
    most_s = case.most_s if not others else math.inf
    try:
        return search_mixed(groups, case.global_batch, space=first, most_s=most_s)
    except PlanningError:
        if not others:
            raise
        return search_mixed(groups, case.global_batch, space=others[-1])


# By whether a stage spans groups.
_RANKED: Final = (
    "machines are ranked in this order, so that each group holds consecutive stages",
    "machines are ranked in this order: a stage that spans groups is as fast as its slowest",
)


def _waits(found: MixedPlan) -> dict[str, float]:
    """Return what a stage waits for: others' filling and draining, and links (with the update)."""
    many = found.layouts[0].accumulation_steps
    computing_s = many * sum(found.stage_s) / len(found.stage_s)
    line_s = found.step_s - found.network_s
    return {"network": found.network_s, "pipeline": line_s - computing_s}


def _stages_of_one_width_commands(
    case: OnGroups, law: LayoutLaw, found: MixedPlan
) -> tuple[Command, ...]:
    from advisor.estimate.launch.megatron import command_line

    ordered = [case.groups[i] for i in found.order]
    whole = replace(found.layouts[0], pp=len(found.layers))
    firsts = [sum(g.count for g in ordered[:i]) for i in range(len(ordered))]
    work = case.model.work
    return tuple(
        Command(
            group=g.label,
            text=command_line(
                whole,
                law.transformer,
                nodes=case.nodes,
                per_node=g.node.devices,
                setup=work.setup,
                precision=work.precision,
                layers=found.layers,
                launcher_arguments="--node-rank $NODE_RANK",
            )
            + f"  # NODE_RANK {first}{f' to {first + g.count - 1}' if g.count > 1 else ''}",
        )
        for g, first in zip(ordered, firsts, strict=True)
    )


NAME: Final = "pipeline over groups"
# More stages than machines cut by slow links, and more than published asymmetric pipelines have.
_MOST_GROUPS: Final = 8
_NOT_RELEASED: Final = (
    "no released framework runs stages of several unequal devices: PyTorch's pipelines take one "
    "device a stage, Megatron-LM's stages of one width"
)


def pipeline_over_groups(case: OnGroups) -> Answer:
    """Plan a pipeline whose stages are groups of machines.

    Raises PlanningError if there are fewer units than groups, nothing divides, nothing fits,
    other degrees are asked for, or equal machines would not be cut into stages, either.
    """
    worth_s = _worth_s(case)
    found: list[Answer] = []
    problems: list[PlanningError] = []
    forms: list[Callable[[OnGroups], Answer]] = [stages_of_one_width] if case.is_laid_out else []
    is_cut = case.space.stage_layers is not None  # the other form has units, and its own cut
    if not is_cut and not (case.only_released and _has_no_framework(case)):
        forms.append(_grouped)
    for form in forms:
        try:
            found.append(form(case))
        except PlanningError as error:
            problems.append(error)
    if not found:
        raise problems[0] if problems else PlanningError(_NOT_RELEASED)
    best = min(found, key=lambda c: (not c.commands, c.step_time_s.value))
    if best.step_time_s.value >= worth_s:
        raise PlanningError("stages save too little waiting for the network")
    return best


def _worth_s(case: OnGroups) -> float:
    """Return the step from which on units are not cut, by the rule of equal machines [s]."""
    if case.model.work.transformer is not None:
        return float("inf")
    alike = over_slowest_links(case)
    plain = [plainly(p, -(-case.devices // p.group.node.devices)) for p in alike]
    if not any(could_gain(p.case, one).any() for p, one in zip(alike, plain, strict=True)):
        raise PlanningError("stages would save too little waiting for the network")
    return max(float(np.nan_to_num(one.step_s[0], nan=np.inf)) for one in plain) / GAIN


def words(choice: Answer, names: Mapping[str, str]) -> str:
    """Say which groups hold which stages, groups by ``names``."""
    details = choice.details
    order = [
        " + ".join(names.get(label, label) for label in group.split(" + "))
        for group in details.get("order") or details["groups"]
    ]
    cut = "+".join(map(str, details["layers_by_stage"]))
    return (
        f"pipeline over {', then '.join(order)}: {cut} layers by stage, micro-batches of "
        f"{details['micro_batch']}"
    )


def _has_no_framework(case: OnGroups) -> bool:
    """Whether stages of groups have no framework: described layers, or machines of several."""
    return case.model.work.transformer is not None or any(g.node.devices > 1 for g in case.groups)


def partitions(case: OnGroups) -> list[list[Machines]]:
    """Return the machines in 2, 3, ... groups, cut along the slow links."""
    machines = case.machines()
    limit = min(_MOST_GROUPS, len(case.model.parts))
    rates = np.array([m.node.network.bytes_per_s for m in machines])
    return [
        [[machines[i] for i in part] for part in parts]
        for parts in split_partitions(np.minimum(rates[:, None], rates[None, :]))[1:limit]
    ]


def _grouped(case: OnGroups) -> Answer:
    best: tuple[ReducedStep, GroupedPipeline, list[Machines]] | None = None
    problem: PlanningError | None = None
    stages = range(2, _MOST_GROUPS + 1)
    case.refuse(
        **(ALONE | {"pp": stages}), accumulation_steps=(), zero_stages=(0, 1), recomputes=("none",)
    )
    for held in partitions(case):
        if case.space.pp not in (None, len(held)):
            continue
        groups = [
            StageGroup(
                name=" + ".join(sorted({m.label for m in part})),
                workers=tuple(case.model.times(m) for m in part for _ in range(m.node.devices)),
                capacity_bytes=min(case.model.room_bytes(m) for m in part),
            )
            for part in held
        ]
        for u in _micro_batches(case, held):
            try:
                cut = grouped_pipeline(
                    groups, u, -(-case.global_batch // u), send_s=_send_s(case, held, u),
                    memory=_memory(case, u),
                )  # fmt: skip
            except PlanningError as error:
                problem = error
                continue
            whole = _reduced(case, held, cut)
            if best is None or whole.step_s < best[0].step_s:
                best = whole, cut, held
    if best is None:
        raise problem or PlanningError(
            "one machine, or one unit of layers, makes no pipeline",
            hint="give more machines",
            exit_code=3,
        )
    return _described(case, *best)


def _micro_batches(case: OnGroups, held: Sequence[Machines]) -> list[int]:
    """Return micro-batches that leave every worker of every stage at least one."""
    widest = max(sum(m.node.devices for m in part) for part in held)
    most, asked = case.global_batch // widest, case.space.micro_batch
    if asked is not None:
        return [asked] if asked <= most else []
    return [2**k for k in range(most.bit_length()) if 2**k <= most]


def _send_s(case: OnGroups, held: Sequence[Machines], u: int) -> Floats:
    """Return handing a micro-batch over the slowest network between groups, one way [s]."""
    machines = [m for part in held for m in part]
    return case.model.law.send_s(machines, u * case.model.table.output_bytes)


def _memory(case: OnGroups, u: int) -> StageMemory:
    model = case.model
    return StageMemory(
        state_bytes=model.state_bytes, kept_bytes=model.kept_bytes(u),
        base_bytes=model.base_bytes(u),
    )  # fmt: skip


def _reduced(case: OnGroups, held: Sequence[Machines], cut: GroupedPipeline) -> ReducedStep:
    """Return the whole step: the pipeline, and the slowest stage's reduction behind it."""
    model = case.model
    edges = np.concatenate([[0], np.cumsum(cut.layers)])
    found = []
    for stage, place in enumerate(cut.order):
        inside = slice(int(edges[stage]), int(edges[stage + 1]))
        share = float(model.table.parameters[inside].sum()) / max(model.work.parameters, 1)
        slowest = max(
            (model.times(m) for m in held[place]), key=lambda t: float(t.forward_s[0].sum())
        )
        backward = float(slowest.at(float(cut.micro_batch))[1][inside].sum())
        found.append(
            model.law.reduced(
                held[place],
                Stage(
                    computed_s=cut.pipeline_s,
                    backward_s=min(backward, cut.pipeline_s),
                    optimizer_s=slowest.optimizer_s * share,
                    units=inside,
                ),
            )
        )
    return max(found, key=lambda r: r.step_s)


def _described(
    case: OnGroups, whole: ReducedStep, cut: GroupedPipeline, held: Sequence[Machines]
) -> Answer:
    ordered = [held[i] for i in cut.order]
    labels = [m.label for part in ordered for m in part]
    first = np.concatenate([[0], np.cumsum(cut.layers)[:-1]])
    sharers = min(sum(m.node.devices for m in part) for part in ordered)
    terms = [
        case.model.stage_ledger(slice(a, a + n), cut.micro_batch, flight, sharers)
        for a, n, flight in zip(first.tolist(), cut.layers, cut.in_flight, strict=True)
    ]
    used = [one for part, one in zip(ordered, terms, strict=True) for _ in part]
    commands = _commands(case, cut, ordered)
    return case.choice(
        NAME,
        whole.step_s,
        case.model.log_sd(case.groups, whole.log_sd, cut.micro_batch),
        samples={m.label: max(cut.counts[0]) * cut.micro_batch for m in ordered[0]},
        ledgers=fullest_ledgers(labels, used),
        parts_s={"network": whole.exposed_s + whole.straggler_s, "pipeline": cut.fill_s},
        details={
            "groups": [" + ".join(m.label for m in part) for part in ordered],
            "layers_by_stage": list(cut.layers),
            "first_layer_by_stage": [case.model.parts[int(e)].name for e in first],
            "micro_batch": cut.micro_batch,
            "micro_batches": [list(c) for c in cut.counts],
        },
        commands=commands,
        notes=(
            "machines are ranked in this order; micro-batches go round a stage's ranks as counted",
            *(() if commands else (_NOT_RELEASED,)),
        ),
    )


def _commands(
    case: OnGroups, cut: GroupedPipeline, ordered: Sequence[Machines]
) -> tuple[Command, ...]:
    """One device a stage runs with PyTorch's pipelines; unequal groups have no framework."""
    if _has_no_framework(case) or any(len(part) > 1 for part in ordered):
        return ()
    from advisor.estimate.launch.launcher import torchrun
    from advisor.estimate.launch.recorded_script import parallel_file, script_of

    count = sum(cut.counts[0])
    layout = Layout(pp=len(cut.layers), micro_batch=cut.micro_batch, accumulation_steps=count)
    file = parallel_file(case.model.parts, layout, cut.layers)
    return tuple(
        Command(
            group=part[0].label,
            text=f"{torchrun(len(ordered), 1)} --node-rank {rank} {script_of(case.command)}",
            files={"parallel.py": file} if rank == 0 else {},
        )
        for rank, part in enumerate(ordered)
    )


ASYMMETRIC_NAME: Final = "asymmetric pipeline"


def asymmetric_stages(case: OnGroups) -> Answer:
    """Plan ministages that go round groups of machines (Zorse): for models of repeated blocks.

    Raises PlanningError if the layers are unlike, no grouping fits, or degrees are asked for.
    """
    case.refuse(
        **(ALONE | {"pp": ()}), micro_batch=(), accumulation_steps=(), zero_stages=(3,),
        recomputes=("full",),
    )  # fmt: skip
    if case.model.blocks < 2:
        raise PlanningError("no block of layers is repeated: ministages need equal ones")
    best: AsymmetricPlan | None = None
    held: list[Machines] = []
    problem: PlanningError | None = None
    for parts in partitions(case):
        try:
            found, order = _of_groups(case, parts)
        except PlanningError as error:
            problem = error
            continue
        if best is None or found.step_s < best.step_s:
            best, held = found, [parts[i] for i in order]
    if best is None:
        raise problem or PlanningError("one machine makes no pipeline of groups")
    return _asymmetric(case, best, held)


def _of_groups(case: OnGroups, parts: Sequence[Machines]) -> tuple[AsymmetricPlan, list[int]]:
    """Return the best plan over given groups of machines, and their pipeline order.

    Offloading is looked at only where nothing fits without: its transfers are not counted.
    """
    groups = [_pipeline_group(case, part) for part in parts]
    rates = np.array([min(m.node.network.bytes_per_s for m in part) for part in parts])
    order = order_groups(groups, np.minimum(rates[:, None], rates[None, :]))
    ordered = [groups[i] for i in order]
    try:
        return _best_ministages(case, ordered, parts, may_offload=False), order
    except PlanningError:
        found = _best_ministages(case, ordered, parts, may_offload=True)
    room = sum(m.node.memory_bytes for part in parts for m in part)
    if found.host_bytes > room:
        raise PlanningError(
            f"offloading takes {found.host_bytes / GIB:.0f} GiB of host memory, the machines have "
            f"{room / GIB:.0f} GiB",
            hint="add machines or host memory",
            exit_code=3,
        )
    return found, order


def _pipeline_group(case: OnGroups, part: Machines) -> PipelineGroup:
    """Return machines as one group of an asymmetric pipeline."""
    model, blocks = case.model, case.model.blocks
    workers = [
        Worker(
            name=m.part.name,
            memory_bytes=model.room_bytes(m),
            latency=model.layer_latency(m, blocks),
        )
        for m in part
    ]
    gather = model.law.gather_s(part, model.weight_bytes * model.work.parameters / blocks)
    return PipelineGroup(
        workers=tuple(w for w, m in zip(workers, part, strict=True) for _ in range(m.devices)),
        all_gather_s=gather,
        reduce_scatter_s=gather,
    )


def _best_ministages(
    case: OnGroups, groups: Sequence[PipelineGroup], parts: Sequence[Machines], *,
    may_offload: bool,
) -> AsymmetricPlan:  # fmt: skip
    model = case.model
    table, blocks = model.table, model.blocks
    boundary = table.output_bytes[table.is_block].max()
    machines = [m for part in parts for m in part]
    # Of a parameter: as gathered, and all else that is sharded.
    each = float(without_terms(model.law.parameter(1))) / model.memory.slack
    return best_of_groups(
        groups,
        PipelineJob(
            global_batch=case.global_batch,
            layers=blocks,
            layer_parameters=model.work.parameters / blocks,
            sequence=1,
            hidden=max(1, round(float(boundary) / model.weight_bytes)),
        ),
        send_receive_s=lambda u: float(model.law.send_s(machines, u * boundary)),
        constants=ZorseConstants(
            parameter_bytes=model.weight_bytes,
            optimizer_bytes=max(each - model.weight_bytes, 0.0),
            reserve_bytes=model.memory.context_bytes,
        ),
        may_offload=may_offload,
    )


def _ministage_words(found: AsymmetricPlan, held: Sequence[Machines]) -> str:
    """Say the layers of the stages that each group has in turn, and how it shares samples."""
    said = []
    for place, (part, counts) in enumerate(zip(held, found.counts, strict=True)):
        layers = "+".join(map(str, found.layers[place :: len(held)]))
        shared = ", ".join(map(str, counts))
        said.append(
            f"{' + '.join(m.label for m in part)} with {layers} layers by stage, micro-batches of "
            f"{found.micro_batch} by device {shared}"
        )
    return "; ".join(said)


def _asymmetric(case: OnGroups, found: AsymmetricPlan, held: Sequence[Machines]) -> Answer:
    filling_s, computing_s, draining_s = found.without_network_s()
    pipeline_s = filling_s + draining_s
    offloaded = ("its transfers to host memory are not counted",) if found.is_offloaded else ()
    return case.choice(
        ASYMMETRIC_NAME,
        found.step_s + case.model.law.fixed_s,
        case.model.log_sd(case.groups),
        samples={m.label: max(found.counts[0]) * found.micro_batch for m in held[0]},
        ledgers=fullest_ledgers(
            [m.label for part in held for m in part],
            [one for part, one in zip(held, found.ledgers, strict=True) for _ in part],
        ),
        parts_s={"network": found.step_s - computing_s - pipeline_s, "pipeline": pipeline_s},
        details={
            "split": _ministage_words(found, held),
            "groups": [" + ".join(m.label for m in part) for part in held],
            "layers_by_stage": list(found.layers),
            "ministages_per_group": found.degree,
            "micro_batch": found.micro_batch,
            "micro_batches": [list(c) for c in found.counts],
            "is_offloaded": found.is_offloaded,
        },
        notes=(
            "needs a runtime with ministages over unequal groups (Zorse's); no released framework",
            *offloaded,
        ),
    )
