"""``advisor plan``: the ways of training a job on machines that are given, ranked.

Equal machines are asked of the same estimate as everything else (``Predictor.step_columns``): on
all of them, in every family of layouts that can be told apart, and on fewer. Machines of several
types are asked of the ways that join them (``estimate.best``), and of each type alone. The whole
job's time, cost and goodput stand beside the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from advisor.answer import Answer, Estimate, Named
from advisor.ask import LayoutRequest
from advisor.catalogue import TypeColumns
from advisor.collectors.format import on_accelerators
from advisor.errors import RunError, UsageError
from advisor.estimate import (
    BESIDE_WAYS,
    SPACE,
    STATUSES,
    BesideWay,
    GivenMachines,
    ModelOn,
    Objective,
    OnGroups,
    Place,
    Plan,
    Predictor,
    Rent,
    StepCase,
    TimeColumns,
    UnitModel,
    beside_pipelines,
    burden,
    commands,
    group_columns,
    handicap,
    is_laid_out_by_shape,
    layouts_alone,
    memory_terms,
    model_on,
    network_words,
    notes_of,
    on_demand,
    on_machine,
    outside_words,
    refusal,
    rented_or_possible,
    search,
    steps_within,
    tried,
    unlike_choices,
    way_on,
)
from advisor.jobs import NO_LENGTH, Job, script_notes, stack_notes, transformer_units
from advisor.machines import Cluster
from advisor.planners.core import GIB, Layout, PlanningError, Work, select
from advisor.planners.layouts import SearchSpace, node_counts
from advisor.planners.step import TransformerBlocks
from advisor.quantities import QUANTILES
from advisor.rank.front import pareto_front
from advisor.words import input_words

Beside = list[tuple[BesideWay, Answer]]


@dataclass(frozen=True, kw_only=True)
class PlanQuestion:
    """What ``advisor plan`` is asked."""

    job: Job
    cluster: Cluster
    objective: Objective = "time"
    space: SearchSpace = SPACE
    coverage: float = 0.9  # probability that an interval holds the true value
    # what was said of the layout, for the ways beside the layouts
    asked: LayoutRequest = field(default_factory=LayoutRequest)
    command: tuple[str, ...] = ()
    predictor: Predictor = field(default_factory=Predictor)
    # how long the machines train; None where the job's length is what is known [h]
    within_h: float | None = None

    def __post_init__(self) -> None:
        if self.job.work is None:
            raise RunError(
                f"run {self.job.name} has no training steps to lay out",
                hint="plan a run that trains with PyTorch, or rank machines: advisor recommend",
            )
        if not 1 <= self.job.global_batch <= 10**7:
            raise UsageError(
                f"a global batch of {self.job.global_batch} is out of range",
                hint="give --batch with the samples of a step over all workers",
            )
        if self.coverage not in QUANTILES:
            known = ", ".join(str(one) for one in QUANTILES)
            raise UsageError(
                f"--coverage {self.coverage} is not available", hint=f"one of: {known}"
            )
        if self.space.stage_layers is not None and len(self.cluster) == 1:
            raise UsageError(
                "layers by stage are planned over unlike machines",
                hint="equal machines share them evenly: leave --stage-layers out",
            )
        unpriced = [g.label for g in self.cluster if g.price_usd_per_h is None]
        if self.objective == "cost" and len(self.cluster) > 1 and unpriced:
            raise UsageError(
                f"machines without a price have no cheapest layout: {', '.join(unpriced)}",
                hint="name instance types that one region sells, or ask for --objective time",
            )

    @cached_property
    def case(self) -> StepCase:
        """The job over the catalogue's machines, as the ways of training see it."""
        return self.predictor.case(self.job, space=self.space)

    @property
    def is_by_shape(self) -> bool:
        """Whether the job is a transformer of known dimensions."""
        work = self.case.work
        return work.transformer is not None and not work.layers


def whole_job(
    question: PlanQuestion, columns: TimeColumns, row: int, price_usd_per_h: float | None,
    machines: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """Return the fields of a ``Answer`` about the whole job; nothing where its length is unknown.

    ``price_usd_per_h``: of all machines [USD/h]; ``machines``: how many of each group, by its
    label.
    """
    job, coverage, found = question.job, question.coverage, select(columns, np.array([row]))
    within: dict[str, Any] = {}
    if question.within_h is not None:
        within["steps_within"] = steps_within(job, found, question.within_h, coverage)
    if job.total_source == NO_LENGTH:
        return within
    done = on_demand(job, found, coverage)
    rent = _rent(question, math.nan if price_usd_per_h is None else price_usd_per_h, machines)
    return within | {
        "training_time_h": done.time_h(0, coverage),
        "cost_usd": None if price_usd_per_h is None else done.cost_usd(0, rent, coverage),
        "breakdown": done.breakdown(0, rent),
        "goodput_fraction": 1.0 / (1.0 + float(done.overhead_fraction[0])),
    }


def _rent(question: PlanQuestion, price_usd_per_h: float, machines: Mapping[str, int]) -> Rent:
    """Return what is paid for given machines and besides, as by ``recommend``.

    Results leave from one place only; what has no price in the catalogue costs nothing here.
    """
    rent = Rent(price_usd_per_h=price_usd_per_h, billing=(0.0, 0.0))
    for group in question.cluster:
        if math.isnan(price_usd_per_h) or group.type_index is None or group.label not in machines:
            continue
        row = question.predictor.catalogue.instance_type(group.label)
        offers, place = question.predictor.cheapest(row, region=group.region)
        if place is not None:
            side = question.predictor.side_costs(question.job, offers)
            own = side.rent(price_usd_per_h, (place, machines[group.label]))
            storage, once = np.nan_to_num([own.storage_usd_per_h, own.egress_usd]).tolist()
            rent = replace(
                rent, storage_usd_per_h=rent.storage_usd_per_h + storage,
                surplus_usd_per_h=rent.surplus_usd_per_h + own.surplus_usd_per_h,
                egress_usd=max(rent.egress_usd, once),
            )  # fmt: skip
    return rent


def with_whole_job(question: PlanQuestion, choice: Answer, places: Sequence[Place]) -> Answer:
    """Return a way over several groups with the whole job's time and cost."""
    columns = group_columns(choice, places)
    price = choice.configuration.price_usd_per_h
    found = whole_job(question, columns, 0, None if math.isnan(price) else price, choice.machines)
    return replace(choice, **found)


DEGREES: Final = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


class OnGroup:
    """A question about the machines of one group, as the predictor is asked it."""

    def __init__(self, question: PlanQuestion, place: Place) -> None:
        self.question, self.group = question, place.group
        self.case, self.row = place.case, place.row
        is_catalogue = place.case.fleet is question.predictor.fleet
        self.fleet: TypeColumns | None = None if is_catalogue else place.case.fleet

    @property
    def is_by_shape(self) -> bool:
        """Whether the job is laid out by its dimensions here."""
        return bool(is_laid_out_by_shape(self.case, np.array([self.row])).all())

    def columns(self, counts: Sequence[int], space: SearchSpace) -> TimeColumns:
        """Return the job on these numbers of machines, in the best of the layouts admitted."""
        return self.question.predictor.step_columns(
            self.question.job,
            np.full(len(counts), self.row),
            np.array(counts),
            fleet=self.fleet,
            space=layouts_alone(space),  # the others stand beside them: ``_ways_beside``
        )

    def refusal(self, columns: TimeColumns) -> PlanningError:
        """Return why nothing runs on the machines of the last row, which has no estimate."""
        return refusal(self.case, columns, -1)

    def considered(self, count: int) -> tuple[int, int]:
        """Return how many layouts were looked at on so many machines, and how many fit."""
        if not self.is_by_shape:
            return 0, 0
        problem = on_machine(self.case, self.row).problem
        found = search(self.case, problem, count * self.group.node.devices)
        return found.considered, found.fitting

    def choice(self, columns: TimeColumns, row: int, space: SearchSpace) -> Answer:
        """Return one row as a choice.

        ``space``: in which the row's layout was found.
        """
        question, group = self.question, self.group
        layout, nodes = columns.layout(row), int(columns.count[row])
        step_s = float(columns.step_s[row])
        shares = columns.shares.items()
        parts = {name: float(share[row]) * step_s for name, share in shares if share[row] > 0}
        price = None if group.price_usd_per_h is None else group.price_usd_per_h * nodes
        started, why_not = commands(
            self.case, self.row, layout, group=group.label, nodes=nodes, space=space,
            script=question.command,
        )  # fmt: skip
        notes = [*why_not, *(notes_of([group]) if question.is_by_shape else ())]
        notes += network_words(columns, row)
        notes += outside_words(self.case, self.row, layout)
        return way_on(
            question.cluster, {group.label: nodes}, name=family(layout),
            step_time_s=Estimate.lognormal(step_s, float(columns.log_sd[row]), question.coverage),
            global_batch=question.job.global_batch, devices=layout.devices,
            memory_bytes={group.label: float(columns.memory_bytes[row])},
            layouts={group.label: layout}, bottleneck=max(parts, key=lambda name: parts[name]),
            memory=memory_terms(self.case, columns, row, layout, group.node.device),
            details={"parts_s": parts, "host_memory_gib": float(columns.host_bytes[row]) / GIB},
            commands=started, notes=tuple(notes),
            **whole_job(question, columns, row, price, {group.label: nodes}),
        )  # fmt: skip


def family(layout: Layout) -> str:
    """Return what a layout is called by its degrees.

    >>> family(Layout(dp=8)), family(Layout(tp=2, pp=4))
    ('data parallel', 'tensor and pipeline parallel')
    """
    said = [word for name, word in DEGREES.items() if getattr(layout, name) > 1]
    return f"{' and '.join(said)} parallel" if said else "data parallel"


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

    ``choices`` use all machines (or, of unlike ones, those of a type); ``front`` holds what equal
    machines do on fewer of them. Machines that are there already are answered as ``predict`` does:
    where nothing fits as surely as what is rented must, by what is as likely to fit as not.

    Raises UsageError if constraints or objective make no sense for the cluster. Raises
    PlanningError if no way fits; the message names the nearest miss.
    """
    return rented_or_possible(partial(_planned, question), question.space)


def _planned(question: PlanQuestion, space: SearchSpace | None) -> Plan:
    question = replace(question, space=space or question.space)
    left_out: dict[str, str] = {}
    front: tuple[Answer, ...] = ()
    # What is planned on is accelerators: parse_cluster takes nothing else.
    changed = on_accelerators(question.command, question.job.told)
    question = replace(question, command=changed)
    model = model_on(question.case, question.cluster)
    groups = [OnGroup(question, place) for place in model.places]
    beside = _ways_beside(question, model, left_out)
    if len(question.cluster) > 1:
        choices = _unlike(question, model, groups, beside, left_out)
    else:
        choices, front = _equal(groups[0], beside, left_out)
    blocks = UnitModel(question.case).blocks
    if isinstance(blocks, str) and not question.is_by_shape:
        left_out["tensor parallel"] = blocks
    choices = [
        _with_units(question, model, beside_pipelines(choice, choices)) for choice in choices
    ]
    choices.sort(key=lambda c: (not c.commands, burden(c, question.objective) * handicap(c)))
    seen = [on.considered(on.group.count) for on in groups]
    seen += [
        (c.details["considered"], c.details["fitting"]) for c in choices if "fitting" in c.details
    ]
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


def _model(question: PlanQuestion, best: Answer) -> dict[str, Any]:
    """Return the facts of the job, with what its script needs on these machines."""
    facts = question.job.facts()
    job = question.job
    fed = input_words(job.feed.unseen, job.global_batch / best.step_time_s.value)
    unseen = [one for one in (job.fallback, fed) if one]
    needs = (*script_notes(job, [(True, best.devices)]), *stack_notes(question.case.work))
    return facts | {"notes": [*unseen, *facts["notes"], *needs]}


def _with_units(question: PlanQuestion, model: ModelOn, choice: Answer) -> Answer:
    """Return the choice in users' units; of unlike devices there is no common peak."""
    used = [place for place in model.places if choice.machines.get(place.group.label)]
    fleet = used[0].case.fleet
    device = fleet.devices[fleet.device[used[0].row]] if len(used) == 1 else None
    hours = None if choice.training_time_h is None else choice.training_time_h.value
    step_s = choice.step_time_s.value
    units = transformer_units(question.job, step_s, choice.devices, device, hours=hours)
    return replace(choice, units=units)


def _ways_beside(question: PlanQuestion, model: ModelOn, left_out: dict[str, str]) -> Beside:
    """Return the ways beside the layouts on all devices, where they are to be shown."""
    on = OnGroups(
        model=model, cluster=question.cluster, global_batch=question.job.global_batch,
        coverage=question.coverage, command=question.command,
    )  # fmt: skip
    shown = []
    for way in BESIDE_WAYS:
        if way.stands_beside(question.cluster, question.asked):
            found, reasons = tried({way.name: partial(way.choice, on, question.asked)})
            left_out |= reasons
            shown += [(way, with_whole_job(question, one, model.places)) for one in found]
    return shown


def _unlike(
    question: PlanQuestion, model: ModelOn, groups: list[OnGroup], beside: Beside,
    left_out: dict[str, str],
) -> list[Answer]:  # fmt: skip
    """Return the ways over unlike machines, and each type alone."""
    joined, reasons = unlike_choices(
        model, question.cluster, global_batch=question.job.global_batch,
        coverage=question.coverage, command=question.command,
    )  # fmt: skip
    alone, more = tried({f"{on.group.label} alone": partial(_alone, on) for on in groups})
    left_out |= reasons | more
    choices = [with_whole_job(question, one, model.places) for one in joined]
    choices += [*alone, *(one for _, one in beside)]
    if not any(c.commands for c in choices):
        raise PlanningError(
            "no way of training on this cluster fits: "
            + " | ".join(f"{name}: {why}" for name, why in left_out.items()),
            hint="add machines, use larger accelerators, or shorten the sequence or the batch",
            exit_code=3,
        )
    return choices


def _alone(on: OnGroup) -> Answer:
    """Return the best of a group alone: on all of its machines, or on fewer."""
    columns = on.columns(node_counts(on.group.count), on.question.space)
    possible = np.flatnonzero(columns.status == 0)
    if not possible.size:
        raise on.refusal(columns)
    paid = columns.count[possible] if on.question.objective == "cost" else 1
    best = possible[np.argmin(columns.step_s[possible] * paid)]
    choice = on.choice(columns, int(best), on.question.space)
    return replace(choice, name=f"{on.group.label} alone")


def _equal(
    on: OnGroup, beside: Beside, left_out: dict[str, str]
) -> tuple[list[Answer], tuple[Answer, ...]]:
    """Return the ways on all of equal machines, and the front over fewer of them."""
    question, group = on.question, on.group
    counts = node_counts(group.count)
    columns = on.columns(counts, question.space)
    place = len(counts) - 1
    choices = [] if columns.status[place] else _families(on, columns, place, left_out)
    possible = np.flatnonzero(columns.status == 0)
    is_last_resort = any(way.is_asked(question.asked) for way, _ in beside)
    if not choices and not possible.size and not is_last_resort:
        problem = on.refusal(columns)
        for way, one in beside:
            problem = way.instead(problem, one)
        raise problem
    if not choices:
        error = on.refusal(columns)
        left_out[f"all {group.count} machines"] = f"{error}; {error.hint}"
    rent = columns.step_s[possible] * columns.count[possible]
    fewer = possible[pareto_front(columns.step_s[possible], rent)]
    front = tuple(on.choice(columns, int(row), question.space) for row in fewer)
    found = choices or list(front[:1])
    if front and front[0].step_time_s.value < found[0].step_time_s.value:
        machines = sum(front[0].machines.values())
        note = f"{machines} of the {group.count} machines alone are faster: the network is slow"
        found = [replace(one, notes=(*one.notes, note)) for one in found]
    return [*found, *(one for _, one in beside)], front


def _families(
    on: OnGroup, columns: TimeColumns, place: int, left_out: dict[str, str]
) -> list[Answer]:
    """Return the best of each family of layouts on all machines, each layout once."""
    space = on.question.space
    found = [on.choice(columns, place, space)]
    fixed = {n: v for n in DEGREES if (v := getattr(space, n)) is not None}
    for degrees in FAMILIES:
        if any(degrees.get(name, value) not in (value, None) for name, value in fixed.items()):
            continue
        parted: dict[str, Any] = {n: v for n, v in degrees.items() if n not in fixed}
        among = replace(space, is_part=not {"tp", "pp", "cp"} <= fixed.keys(), **parted)
        family = on.columns([on.group.count], among)
        if family.status[0]:
            if degrees is _ALONE:
                left_out["data parallel"] = _why_not_alone(on, STATUSES[int(family.status[0])])
            continue
        if family.step_s[0] < columns.step_s[place]:
            continue  # saves too little for its complexity (``recorded_units``): not the estimate
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
