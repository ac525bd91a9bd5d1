"""Equal shares on unlike machines: any layout of equal machines, as fast as the slowest rank.

What every framework does with machines that it takes to be alike. The search is that of equal
machines (``planners.layouts.problem``), so that machines that hardly differ are answered as equal
ones are; each part of a step is the slowest kind's, and a layout fits where it fits on all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from advisor.answer import Command
from advisor.estimate.knowledge.laws import LayoutLaw
from advisor.estimate.plan import Choice
from advisor.estimate.time_columns import shares_of
from advisor.estimate.unlike.groups import OnGroups
from advisor.estimate.ways.model_parallel import (
    layout_log_sd,
    search,
    space_on,
    stack_spaces,
    waits_of,
    within_links,
)
from advisor.planners.core import Layout, PlanningError
from advisor.planners.layouts import check, layout_columns, nothing_fits

NAME: Final = "equal shares"


def equal_shares(case: OnGroups) -> Choice:
    """Plan the fastest layout in which every device has the same share.

    Raises PlanningError if the layers are not timed by a transformer's shapes, a cut into unequal
    stages is asked for, or nothing divides or fits.
    """
    law, places = case.model.law, case.model.places
    if not isinstance(law, LayoutLaw):
        raise PlanningError("no transformer that is laid out by its shape")
    if case.space.stage_layers is not None:
        raise PlanningError("its stages hold as many layers as one another")
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
        memory_bytes={p.group.label: best.memory_bytes for p in places},
        layouts={p.group.label: best.layout for p in places},
        parts_s={name: float(part[0]) for name, part in parts.items() if name != "compute"},
        details={"considered": found.considered, "fitting": found.fitting},
        commands=_commands(case, best.layout),
    )


def words(choice: Choice, names: Mapping[str, str]) -> str:
    """Say how the job is split, the same on all groups."""
    from advisor.words import layout_words

    return f"{NAME}: {layout_words(choice.layout.to_record())}"


def _commands(case: OnGroups, layout: Layout) -> tuple[Command, ...]:
    """Return the line of every group: the same but for the devices of its machines."""
    from advisor.estimate.launch.commands import commands

    started = [
        commands(
            p.case, p.row, layout, group=p.group.label, nodes=case.nodes,
            space=p.case.space, script=case.command,
        )[0]
        for p in case.model.places
    ]  # fmt: skip
    return tuple(one for group in started for one in group)
