"""Equal shares on unlike machines: any layout of equal machines, as fast as the slowest rank.

What every framework does with machines that it takes to be alike. The search is that of equal
machines (``planners.layouts.problem``; of units ``ways.data_parallel`` and ``recorded_units``), so
that machines that hardly differ are answered as equal ones are; a step is the slowest kind's, over
the slowest links, and a layout fits where it fits on all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from advisor.answer import Answer, Command
from advisor.estimate.answer import row_ledger
from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.knowledge.laws import LayoutLaw
from advisor.estimate.time_columns import TimeColumns, shares_of
from advisor.estimate.unlike.groups import OnGroups
from advisor.estimate.unlike.places import Place
from advisor.estimate.ways.data_parallel import data_parallel
from advisor.estimate.ways.model_parallel import (
    layout_log_sd,
    search,
    space_on,
    stack_spaces,
    waits_of,
    within_links,
)
from advisor.estimate.ways.recorded_units import improved, unit_model
from advisor.planners.core import Floats, Layout, Offload, PlanningError, Recompute
from advisor.planners.layouts import check, layout_columns, nothing_fits

NAME: Final = "equal shares"


def equal_shares(case: OnGroups) -> Answer:
    """Plan the fastest layout in which every device has the same share.

    Raises PlanningError if a cut into unequal stages is asked for, or nothing divides or fits.
    """
    law = case.model.law
    if case.space.stage_layers is not None:
        raise PlanningError("its stages hold as many layers as one another")
    return _by_shape(case, law) if isinstance(law, LayoutLaw) else _by_units(case)


def _by_shape(case: OnGroups, law: LayoutLaw) -> Answer:
    """Return the choice for a transformer whose layers are timed by their shapes."""
    places = case.model.places
    first, devices, batch = places[0].case, case.devices, case.global_batch
    machines = [law.machines[p.group.label] for p in places]
    one, *others = (on.problem for on in machines)
    problem = replace(one, beside=tuple(others))
    check(problem, devices, batch, space_on(first, problem))
    found = search(first, problem, devices)
    if (best := found.best) is None:
        space = within_links(stack_spaces(first.space, first.work.setup)[-1], problem)
        raise nothing_fits(problem, found, devices, batch, space, first.space)
    columns = layout_columns(best.layout)
    apart = (replace(kind, beside=()) for kind in problem.kinds)
    slowest = max(apart, key=lambda kind: float(kind.times(columns).step_s))
    parts = waits_of(slowest, best)
    samples = case.even_samples()
    _, shares = shares_of(
        parts | {"input": np.array([case.model.loading_s(samples, best.step_s)])}
    )
    return case.choice(
        NAME,
        best.step_s,
        max(
            layout_log_sd(p.case, on, p.row, best.layout, shares)
            for p, on in zip(places, machines, strict=True)
        ),
        samples=samples,
        ledgers=dict.fromkeys((p.group.label for p in places), problem.ledger(columns)),
        layouts={p.group.label: best.layout for p in places},
        parts_s={name: float(part[0]) for name, part in parts.items() if name != "compute"},
        details={"considered": found.considered, "fitting": found.fitting},
        commands=_commands(case, dict.fromkeys(law.machines, best.layout), places),
    )


def _by_units(case: OnGroups) -> Answer:
    """Return the choice for a model whose layers are timed unit by unit."""
    if any(is_laid_out_by_shape(p.case, np.array([p.row])).any() for p in case.model.places):
        raise PlanningError("only some of its machines lay the model out by its shape")
    if len({g.node.devices for g in case.groups}) > 1:
        raise PlanningError("its machines hold unlike numbers of devices")
    places = over_slowest_links(case)

    def best(place: Place) -> TimeColumns:
        return improved(place.case, plainly(place, case.nodes))

    found = [best(p) for p in places]
    forms = dict.fromkeys(_form(one) for one in found if not one.status[0])
    if len(forms) > 1 or (forms and any(one.status[0] for one in found)):
        # Each kind would have another layout: the one whose slowest kind is fastest.
        held = [[best(_held_to(p, form)) for p in places] for form in forms]
        found = min(held, key=lambda kinds: max(
            np.inf if one.status[0] else float(one.step_s[0]) for one in kinds
        ))  # fmt: skip
    for place, one in zip(places, found, strict=True):
        if one.status[0]:
            why = unit_model(place.case).refusal(place.row, case.nodes)
            raise why or PlanningError(f"it does not run on {place.group.part.name}", exit_code=3)
    labels = [p.group.label for p in places]
    slow = max(found, key=lambda one: float(one.step_s[0]))
    step_s = float(slow.step_s[0])
    laid_out = {label: one.layout(0) for label, one in zip(labels, found, strict=True)}
    return case.choice(
        NAME,
        step_s,
        max(float(one.log_sd[0]) for one in found),
        ledgers={
            p.group.label: row_ledger(p.case, one, 0, p.group.node.device)
            for p, one in zip(places, found, strict=True)
        },
        layouts=laid_out,
        parts_s={
            name: float(share[0]) * step_s
            for name, share in slow.shares.items()
            if name != "compute"
        },
        details={},
        commands=_commands(case, laid_out, [_held_to(p, _form(slow)) for p in places]),
    )


Form = tuple[int, int, int, Recompute, frozenset[Offload]]


def _form(columns: TimeColumns) -> Form:
    """Return what every rank has to do alike: all but the size of its micro-batches."""
    layout = columns.layout(0)
    return layout.tp, layout.pp, layout.zero_stage, layout.recompute, layout.offload


def _held_to(place: Place, form: Form) -> Place:
    tp, pp, zero_stage, recompute, offload = form
    space = replace(
        place.case.space, tp=tp, pp=pp, zero_stages=(zero_stage,), recomputes=(recompute,),
        offloads=tuple(offload),
    )  # fmt: skip
    return replace(place, case=_asked_anew(place.case, space=space))


def plainly(place: Place, nodes: int) -> TimeColumns:
    """Return plain data parallelism on so many machines like those of a place, as one row."""
    return data_parallel(place.case, np.array([place.row]), np.array([nodes]))


# By what is worst of several machines' links.
_LINKS: Final[Mapping[str, Callable[[Floats], Any]]] = {
    "intra_bytes_per_s": np.min, "intra_latency_s": np.max, "network_bytes_per_s": np.min,
    "network_latency_s": np.max, "rdma_share": np.min, "domain_machines": np.min,
}  # fmt: skip


def over_slowest_links(case: OnGroups) -> tuple[Place, ...]:
    """Return the groups' machines with the links that rule a ring through all of them."""
    places = case.model.places
    slowest = {
        name: worst(np.array([getattr(p.case.fleet, name)[p.row] for p in places]))
        for name, worst in _LINKS.items()
    }
    return tuple(_over(place, slowest) for place in places)


def _over(place: Place, links: Mapping[str, Any]) -> Place:
    key, fleet = ("over links", *links.values()), place.case.fleet
    ruled = {name: np.full_like(getattr(fleet, name), value) for name, value in links.items()}
    made = partial(_asked_anew, place.case, fleet=replace(fleet, **ruled))
    return replace(place, case=place.case.once(key, made))


# What was found of the devices alone.
_OF_DEVICES: Final = ("calibrated", "starved", "units and their table")


def _asked_anew(case: StepCase, **changed: Any) -> StepCase:
    kept = {key: found for key, found in case.seen.items() if key[0] in _OF_DEVICES}
    return replace(case, **changed, seen=kept)


def words(choice: Answer, names: Mapping[str, str]) -> str:
    """Say how the job is split, the same on all groups."""
    from advisor.words import layout_words

    return f"{NAME}: {layout_words(choice.layout.to_record())}"


def _commands(
    case: OnGroups, layouts: Mapping[str, Layout], places: Sequence[Place]
) -> tuple[Command, ...]:
    """Return the line of every group: the same but for the devices of its machines."""
    from advisor.estimate.launch.frameworks import commands

    started = [
        commands(
            p.case, p.row, layouts[p.group.label], group=p.group.label, nodes=case.nodes,
            space=p.case.space, script=case.command,
        )[0]
        for p in places
    ]  # fmt: skip
    return tuple(one for group in started for one in group)
