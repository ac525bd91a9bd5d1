"""Commands that start a job in a layout on equal machines, the same for plans and exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.answer import Command
from advisor.collectors.format import Told
from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.launch import frameworks, recorded_script
from advisor.estimate.ways.recorded_units import UnitModel
from advisor.planners.core import Layout
from advisor.planners.layouts import SearchSpace


def commands(
    case: StepCase, row: int, layout: Layout, *, group: str, nodes: int, space: SearchSpace,
    script: Sequence[str] = (), is_own_script: bool = False,
) -> tuple[tuple[Command, ...], tuple[str, ...]]:  # fmt: skip
    """Return how to run a layout, or why no released framework does.

    Parameters
    ----------
    row : int
        The machines' type, in the case's fleet.
    group : str
        What the machines are called.
    nodes : int
        How many of them.
    space : SearchSpace
        In which the layout was found.
    script : sequence of str
        The command line that a recorded job was started with, or that of the user's script.
    is_own_script : bool
        A described job's script takes no arguments but those in ``script``: none of the Trainer.

    Returns
    -------
    commands : tuple of Command
        Empty where nothing runs the layout.
    reasons : tuple of str
        Why, where nothing does.
    """
    work, per_node = case.work, int(case.fleet.per_node[row])
    if work.transformer is not None and bool(is_laid_out_by_shape(case, np.array([row])).all()):
        settings: dict[str, Any] = {"setup": work.setup, "precision": work.precision}
        reason = frameworks.runnable(layout, work.transformer, **settings)
        if reason is not None:
            return (), (reason,)
        shape = work.transformer
        is_megatron = frameworks.framework_of(layout, shape, **settings) == "megatron"
        if is_own_script and not is_megatron and recorded_script.runnable(layout) is None:
            own = recorded_script.Script(tuple(script), (), work.precision)
            return (
                recorded_script.command(
                    own, layout, (), group=group, nodes=nodes, per_node=per_node
                ),
            ), ()  # fmt: skip
        return (
            frameworks.command(
                layout, shape, group=group, nodes=nodes, per_node=per_node, **settings
            ),
        ), ()  # fmt: skip
    reason = recorded_script.runnable(layout)
    if reason is not None:
        return (), (reason,)
    units = UnitModel(replace(case, space=space))
    found = units.best(row, nodes) if layout.pp > 1 else None
    started = recorded_script.Script(
        tuple(script), units.parts, work.precision, case.job.told or Told()
    )
    stages = found.stages if found else (len(units.parts),)
    return (
        recorded_script.command(
            started, layout, stages, group=group, nodes=nodes, per_node=per_node
        ),
    ), ()
