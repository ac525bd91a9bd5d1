"""Pipelines over unlike groups whose stages are equally wide, as Megatron-LM runs them."""

from __future__ import annotations

from dataclasses import replace

from advisor.planners.core.errors import PlanningError
from advisor.planners.layouts.mixed_search import MachineGroup, MixedPlan, search_mixed
from advisor.ways.answer import Choice, Command
from advisor.ways.launch.megatron import command_line
from advisor.ways.layout_law import LayoutLaw
from advisor.ways.on_groups import OnGroups


def stages_of_one_width(case: OnGroups) -> Choice:
    """Plan a pipeline whose groups hold as many layers as they are fast; Megatron-LM runs it.

    Raises
    ------
    PlanningError
        If the layers are not timed by a transformer's shapes, or nothing divides or fits.
    """
    law = case.model.law
    if not isinstance(law, LayoutLaw):
        raise PlanningError("no transformer that is laid out by its shape")
    groups = [
        MachineGroup(problem=law.machines[g.label].problem, nodes=g.count) for g in case.groups
    ]
    found = search_mixed(groups, case.global_batch, same_tp=True, space=case.space)
    ordered = [case.groups[i] for i in found.order]
    return case.choice(
        "pipeline over groups",
        found.step_s,
        case.model.log_sd(case.groups),
        memory_bytes={g.label: b for g, b in zip(ordered, found.memory_bytes, strict=True)},
        layouts={g.label: layout for g, layout in zip(ordered, found.layouts, strict=True)},
        parts_s=_waits(found),
        details={
            "order": [g.label for g in ordered],
            "layers_by_stage": list(found.layers),
            "stage_s": list(found.stage_s),
            "micro_batch": found.layouts[0].micro_batch,
            "considered": found.considered,
        },
        commands=_commands(case, law, found),
        notes=("machines are ranked in this order, so that each group holds consecutive stages",),
    )


def _waits(found: MixedPlan) -> dict[str, float]:
    """Return what a stage waits for: others' filling and draining, and links (with the update)."""
    many = found.layouts[0].accumulation_steps
    line_s = sum(found.stage_s) + (many - 1) * max(found.stage_s)
    computing_s = many * sum(found.stage_s) / len(found.stage_s)
    return {"network": found.step_s - line_s, "pipeline": line_s - computing_s}


def _commands(case: OnGroups, law: LayoutLaw, found: MixedPlan) -> tuple[Command, ...]:
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
            + f"  # NODE_RANK {first} to {first + g.count - 1}",
        )
        for g, first in zip(ordered, firsts, strict=True)
    )
