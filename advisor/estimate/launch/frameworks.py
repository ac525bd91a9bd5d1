"""Layouts as what people run: the framework that accepts one, and the command that starts it.

``framework_of`` chooses by the rules of ``planners.layouts.frameworks``; ``command`` prints what
that framework accepts; ``runnable`` says why a layout has no command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from advisor.answer import Command
from advisor.estimate.launch.megatron import command_line
from advisor.estimate.launch.torchtitan import torchtitan_line
from advisor.estimate.launch.trainer import deepspeed_command, trainer_command
from advisor.planners.core import (
    DEFAULT_SETUP,
    Layout,
    PlanningError,
    Precision,
    TrainingSetup,
    Transformer,
    shapes_of,
)
from advisor.planners.layouts import Framework, broken_rule, frameworks_of

NAMES: Final[dict[Framework, str]] = {
    "trainer": "PyTorch (Hugging Face Trainer)",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "torch": "PyTorch",
}
DATA_PARALLEL: Final[dict[Framework, Callable[..., Command]]] = {
    "trainer": trainer_command,
    "deepspeed": deepspeed_command,
}
_LINES: Final[dict[Framework, Callable[..., str]]] = {
    "megatron": command_line,
    "torchtitan": torchtitan_line,
}


def framework_of(
    layout: Layout,
    transformer: Transformer,
    *,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> Framework | None:
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
    layout: Layout,
    transformer: Transformer,
    *,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> str | None:
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
    layout: Layout,
    transformer: Transformer,
    *,
    group: str,
    nodes: int,
    per_node: int,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> Command:
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
