"""``advisor plan``: the ways of training a job on machines that are given, ranked.

Equal machines are asked of the same estimate as everything else (``Predictor.step_columns``): on
all of them, in every family of layouts that can be told apart, and on fewer. Machines of several
types are asked of the ways that join them (``ways.unlike``), and of each type alone.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

import numpy as np

from advisor.collectors.told import on_accelerators
from advisor.domain import Named
from advisor.jobs.script_notes import script_notes
from advisor.jobs.units import transformer_units
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.layouts.search import node_counts
from advisor.planners.step.model_units import TransformerBlocks
from advisor.predict import TimeColumns
from advisor.ranking.front import pareto_front
from advisor.ranking.on_group import DEGREES, OnGroup
from advisor.ranking.plan_question import PlanQuestion
from advisor.ranking.whole_job import with_whole_job
from advisor.ways.answer import Choice, GivenMachines, Plan, burden
from advisor.ways.columns import STATUSES
from advisor.ways.layer_swapping import NAME as SWAPPING
from advisor.ways.layer_swapping import is_compared, layer_swapping, or_swap
from advisor.ways.model_on import ModelOn
from advisor.ways.on_groups import OnGroups
from advisor.ways.unit_models import model_on
from advisor.ways.units import UnitModel
from advisor.ways.unlike import tried, unlike_choices

__all__ = ["FAMILIES", "PlanQuestion", "plan"]

# Families of layouts that a reader tells apart, and the degrees that make them.
_ALONE: Final = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
FAMILIES: Final[tuple[dict[str, Any], ...]] = (
    _ALONE,
    {**_ALONE, "tp": None, "min_tp": 2},
    {**_ALONE, "pp": None, "min_pp": 2},
    {"cp": 1, "ep": 1, "min_tp": 2, "min_pp": 2},
    {"min_cp": 2},
    {"min_ep": 2},
)


def plan(question: PlanQuestion) -> Plan:
    """Return the ways to train on the cluster, those that a released framework runs first.

    ``choices`` use all machines (or, of unlike ones, all of a type); ``front`` holds what equal
    machines do on fewer of them.

    Raises
    ------
    UsageError
        If constraints or objective make no sense for the cluster.
    PlanningError
        If no way fits; the message names the nearest miss.
    """
    left_out: dict[str, str] = {}
    front: tuple[Choice, ...] = ()
    # What is planned on is accelerators: parse_cluster takes nothing else.
    changed = on_accelerators(question.command, question.job.told)
    question = replace(question, command=changed)
    model = model_on(question.case, question.predictor.catalogue, question.cluster.groups)
    groups = [OnGroup(question, place) for place in model.places]
    swapped = _swapped(question, model, left_out)
    if question.cluster.is_mixed:
        choices = _unlike(question, model, groups, swapped, left_out)
    else:
        choices, front = _equal(groups[0], swapped, left_out)
    blocks = UnitModel(question.case).blocks
    if isinstance(blocks, str) and not question.is_by_shape:
        left_out["tensor parallel"] = blocks
    choices = [_with_units(question, model, choice) for choice in choices]
    choices.sort(key=lambda c: (not c.commands, burden(c, question.objective)))
    seen = [on.considered(on.group.count) for on in groups]
    return Plan(
        objective=question.objective,
        subject=_subject(question),
        model=_model(question, choices[0])
        | {"transformer": _transformer(question.case.work, blocks)},
        cluster=GivenMachines.of(question.cluster),
        global_batch=question.job.global_batch,
        plans=tuple(choices),
        front=tuple(_with_units(question, model, choice) for choice in front),
        considered=sum(considered for considered, _ in seen),
        fitting=sum(fitting for _, fitting in seen),
        left_out=left_out,
        predictor=Named(name=question.predictor.name, version=question.predictor.version),
    )


def _model(question: PlanQuestion, best: Choice) -> dict[str, Any]:
    """Return the facts of the job, with what its script needs on these machines."""
    facts = question.job.facts()
    needs = script_notes(question.job, [(True, best.devices)])
    return facts | {"notes": [*facts["notes"], *needs]}


def _with_units(question: PlanQuestion, model: ModelOn, choice: Choice) -> Choice:
    """Return the choice in users' units; of unlike devices there is no common peak."""
    used = [place for place in model.places if choice.machines.get(place.group.label)]
    fleet = used[0].case.fleet
    device = fleet.devices[fleet.device[used[0].row]] if len(used) == 1 else None
    hours = None if choice.training_time_h is None else choice.training_time_h.value
    step_s = choice.step_time_s.value
    units = transformer_units(question.job, step_s, choice.devices, device, hours=hours)
    return replace(choice, units=units)


def _swapped(question: PlanQuestion, model: ModelOn, left_out: dict[str, str]) -> list[Choice]:
    """Return layer swapping on all GPUs, where it is asked for or its kind of cards are."""
    if not is_compared(question.cluster, question.swap):
        return []
    on = OnGroups(
        model=model, cluster=question.cluster, global_batch=question.job.global_batch,
        coverage=question.coverage, command=question.command,
    )  # fmt: skip
    every = question.average_every
    found, reasons = tried({SWAPPING: lambda: layer_swapping(on, average_every=every)})
    left_out |= reasons
    return [with_whole_job(question, one, model.places) for one in found]


def _unlike(
    question: PlanQuestion, model: ModelOn, groups: list[OnGroup], swapped: list[Choice],
    left_out: dict[str, str],
) -> list[Choice]:  # fmt: skip
    """Return the ways over unlike machines, and each type alone."""
    joined, reasons = unlike_choices(
        model, question.cluster, global_batch=question.job.global_batch,
        coverage=question.coverage, command=question.command,
    )  # fmt: skip
    alone, more = tried({f"{on.group.label} alone": partial(_alone, on) for on in groups})
    left_out |= reasons | more
    choices = [with_whole_job(question, one, model.places) for one in joined]
    choices += [*alone, *swapped]
    if not any(c.commands for c in choices):
        raise PlanningError(
            "no way of training on this cluster fits: "
            + " | ".join(f"{name}: {why}" for name, why in left_out.items()),
            hint="add machines, use larger accelerators, or shorten the sequence or the batch",
            exit_code=3,
        )
    return choices


def _alone(on: OnGroup) -> Choice:
    columns = on.columns([on.group.count], on.question.space)
    if columns.status[0]:
        raise on.refusal(columns, on.group.count)
    choice = on.choice(columns, 0, on.question.space)
    return replace(choice, name=f"{on.group.label} alone")


def _equal(
    on: OnGroup, swapped: list[Choice], left_out: dict[str, str]
) -> tuple[list[Choice], tuple[Choice, ...]]:
    """Return the ways on all of equal machines, and the front over fewer of them."""
    question, group = on.question, on.group
    counts = node_counts(group.count)
    columns = on.columns(counts, question.space)
    place = len(counts) - 1
    choices = [] if columns.status[place] else _families(on, columns, place, left_out)
    possible = np.flatnonzero(columns.status == 0)
    is_last_resort = bool(question.swap and swapped)
    if not choices and not possible.size and not is_last_resort:
        raise or_swap(on.refusal(columns, group.count), swapped)
    if not choices:
        error = on.refusal(columns, group.count)
        left_out[f"all {group.count} machines"] = f"{error}; {error.hint}"
    rent = columns.step_s[possible] * columns.count[possible]
    fewer = possible[pareto_front(columns.step_s[possible], rent)]
    front = tuple(on.choice(columns, int(row), question.space) for row in fewer)
    found = choices or list(front[:1])
    if front and front[0].step_time_s.value < found[0].step_time_s.value:
        machines = sum(front[0].machines.values())
        note = f"{machines} of the {group.count} machines alone are faster: the network is slow"
        found = [replace(one, notes=(*one.notes, note)) for one in found]
    return [*found, *swapped], front


def _families(
    on: OnGroup, columns: TimeColumns, place: int, left_out: dict[str, str]
) -> list[Choice]:
    """Return the best of each family of layouts on all machines, each layout once."""
    space = on.question.space
    found = [on.choice(columns, place, space)]
    fixed = {n: v for n in DEGREES if (v := getattr(space, n)) is not None}
    for degrees in FAMILIES:
        if any(degrees.get(name, value) not in (value, None) for name, value in fixed.items()):
            continue
        among = replace(space, **{n: v for n, v in degrees.items() if n not in fixed})
        family = on.columns([on.group.count], among)
        if family.status[0]:
            if degrees is _ALONE:
                left_out["data parallel"] = _why_not_alone(on, STATUSES[int(family.status[0])])
            continue
        if family.step_s[0] < columns.step_s[place]:
            continue  # saves too little for its complexity (``ways.units``): not the estimate
        choice = on.choice(family, 0, among)
        if all(choice.layouts != one.layouts for one in found):
            found.append(choice)
    return found


def _why_not_alone(on: OnGroup, status: str) -> str:
    batch, devices = on.question.job.global_batch, on.group.devices
    if on.is_by_shape and batch % devices:
        return f"a batch of {batch} does not divide over {devices} devices"
    return status.replace("_", " ")


def _subject(question: PlanQuestion) -> str:
    work = question.case.work
    if work.transformer is not None:
        model = work.transformer
        return f"{model.layers} layers of {model.hidden}, {model.sequence} tokens"
    return f"{question.job.name}: {work.parameters:,} parameters, {work.precision}"


def _transformer(work: Work, blocks: TransformerBlocks | str) -> dict[str, Any] | None:
    """Return a transformer's dimensions, as far as they are known; None of another model."""
    if work.transformer is not None:
        return asdict(work.transformer)
    if isinstance(blocks, str):
        return None
    return {"blocks": blocks.blocks, "hidden": blocks.hidden, "tokens": blocks.tokens}
