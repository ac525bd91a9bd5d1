"""Layouts as what people run: the framework that accepts one, and the command that starts it.

``framework_of`` chooses by the rules of ``planners.layouts.frameworks``; ``command`` prints what
that framework accepts; ``runnable`` says why a layout has no command; ``commands`` start a job on
equal machines, the same for plans and exports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from advisor.answer import Command
from advisor.collectors.format import Told
from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.launch import recorded_script
from advisor.estimate.launch.megatron import command_line
from advisor.estimate.launch.torchtitan import torchtitan_line
from advisor.estimate.launch.torchtune import torchtune_line
from advisor.estimate.launch.trainer import deepspeed_command, trainer_command
from advisor.estimate.ways.recorded_units import UnitModel
from advisor.planners.core import (
    DEFAULT_SETUP,
    Layout,
    PlanningError,
    Precision,
    TrainingSetup,
    Transformer,
    shapes_of,
)
from advisor.planners.layouts import Framework, SearchSpace, broken_rule, frameworks_of

NAMES: Final[dict[Framework, str]] = {
    "trainer": "PyTorch (Hugging Face Trainer)",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "torch": "PyTorch",
}
DATA_PARALLEL: Final[dict[Framework, Callable[..., Command]]] = {
    "trainer": trainer_command,
    "deepspeed": deepspeed_command,
}
_LINES: Final[dict[Framework, Callable[..., str]]] = {
    "megatron": command_line,
    "torchtitan": torchtitan_line,
    "torchtune": torchtune_line,
}


def framework_of(
    layout: Layout, transformer: Transformer, *, setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> Framework | None:  # fmt: skip
    """Return the first framework that accepts a layout, the simplest first; None if none does.

    A stack that its user named goes before all.
    """
    shapes = shapes_of(transformer)
    for framework in frameworks_of(setup):
        rule = broken_rule(layout, framework, shapes, setup=setup, precision=precision)
        if rule is None:
            return framework
    return None


def runnable(
    layout: Layout, transformer: Transformer, *, setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> str | None:  # fmt: skip
    """Return why no framework runs a layout; None where one does."""
    if framework_of(layout, transformer, setup=setup, precision=precision):
        return None
    shapes = shapes_of(transformer)
    is_split = layout.tp * layout.pp * layout.cp * layout.ep > 1
    frameworks = frameworks_of(setup)
    if is_split:
        frameworks = tuple(one for one in frameworks if one in ("megatron", "torchtitan"))
    reasons = []
    for framework in frameworks:
        rule = broken_rule(layout, framework, shapes, setup=setup, precision=precision)
        if rule is not None:
            reasons.append(f"{NAMES[framework]}: {rule.reason}")
    return "no released framework runs this layout; " + "; ".join(reasons)


def command(
    layout: Layout, transformer: Transformer, *, group: str, nodes: int, per_node: int,
    setup: TrainingSetup = DEFAULT_SETUP, precision: Precision = "bf16",
) -> Command:  # fmt: skip
    """Return how to run one layout on equal machines.

    Data parallelism alone runs on PyTorch (ZeRO 0 and 3) or DeepSpeed (ZeRO 1 and 2, offload);
    anything else on Megatron-LM; all on the framework of the stack that its user named.

    Raises PlanningError if no released framework accepts the layout; ``runnable`` says so
    beforehand.
    """
    framework = framework_of(layout, transformer, setup=setup, precision=precision)
    if framework in DATA_PARALLEL:
        return DATA_PARALLEL[framework](
            layout, group=group, nodes=nodes, per_node=per_node, setup=setup, precision=precision
        )
    if framework in _LINES:
        text = _LINES[framework](
            layout, transformer, nodes=nodes, per_node=per_node, setup=setup, precision=precision
        )
        return Command(group=group, text=text)
    raise PlanningError(
        runnable(layout, transformer, setup=setup, precision=precision)
        or "no released framework runs this layout",
        hint="choose another way of sharding, recomputation or offload",
        exit_code=3,
    )


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
        reason = runnable(layout, work.transformer, **settings)
        if reason is not None:
            return (), (reason,)
        shape = work.transformer
        is_megatron = framework_of(layout, shape, **settings) == "megatron"
        if is_own_script and not is_megatron and recorded_script.runnable(layout) is None:
            own = recorded_script.Script(tuple(script), (), work.precision)
            return (
                recorded_script.command(
                    own, layout, (), group=group, nodes=nodes, per_node=per_node
                ),
            ), ()  # fmt: skip
        return (
            command(
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
