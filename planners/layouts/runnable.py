"""Layouts that a released framework runs, as columns and one by one.

A layout can run if one framework accepts all of it (``planners.layouts.framework_rules``); a
search that leaves the others out proposes nothing that cannot be started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from advisor.planners.core.columns import OFFLOADS, RECOMPUTES, Layouts, Shapes
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import DEFAULT_SETUP, Precision, TrainingSetup
from advisor.planners.layouts.framework_rules import Bools, Case, Framework, FrameworkRule
from advisor.planners.layouts.megatron_rules import MEGATRON
from advisor.planners.layouts.pytorch_rules import DEEPSPEED, TORCH, TRAINER

RULES: Final[dict[Framework, tuple[FrameworkRule, ...]]] = {
    "trainer": TRAINER,
    "deepspeed": DEEPSPEED,
    "megatron": MEGATRON,
    "torch": TORCH,
}

# What runs a described transformer, by preference: the first that accepts a layout is printed.
DESCRIBED: Final[tuple[Framework, ...]] = ("trainer", "deepspeed", "megatron")
# What runs a recorded script.
RECORDED: Final[tuple[Framework, ...]] = ("torch", "deepspeed")


def is_runnable(
    layouts: Layouts,
    shapes: Shapes | None = None,
    *,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
    frameworks: Sequence[Framework] = DESCRIBED,
) -> Bools:
    """Return which layouts at least one framework accepts.

    Parameters
    ----------
    layouts : Layouts
        Columns that broadcast.
    shapes : Shapes, optional
        Without them, rules about dimensions (heads over tp, ...) are taken as kept.

    Returns
    -------
    ndarray of bool
        Of the columns' common shape, or of one that broadcasts to it.
    """
    case = Case(layouts, shapes, setup, precision)
    found: Bools = np.asarray(False)
    for framework in frameworks:
        found = found | _accepted(case, framework)
    return found


def _accepted(case: Case, framework: Framework) -> Bools:
    """Return what a framework accepts: rules over the same axes first, so that few are dense."""
    by_axes: dict[tuple[int, ...], Bools] = {}
    for rule in RULES[framework]:
        if case.shapes is not None or not rule.of_shapes:
            allowed = np.asarray(rule.allows(case), bool)
            before = by_axes.get(allowed.shape)
            by_axes[allowed.shape] = allowed if before is None else before & allowed
    accepted: Bools = np.asarray(True)
    for allowed in sorted(by_axes.values(), key=lambda x: x.size):
        accepted = accepted & allowed
    return accepted


def broken_rule(
    layout: Layout,
    framework: Framework,
    shapes: Shapes | None = None,
    *,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> FrameworkRule | None:
    """Return the first rule of a framework that a layout breaks; None where it runs."""
    case = Case(layout_columns(layout), shapes, setup, precision)
    for rule in RULES[framework]:
        if (case.shapes is not None or not rule.of_shapes) and not np.all(rule.allows(case)):
            return rule
    return None


def layout_columns(layout: Layout) -> Layouts:
    """Return one layout as scalar columns."""
    same = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "accumulation_steps", "virtual_stages",
            "zero_stage", "average_every")  # fmt: skip
    return Layouts(
        **{name: getattr(layout, name) for name in same},
        recompute=RECOMPUTES.index(layout.recompute),
        is_sequence_parallel=int(layout.is_sequence_parallel),
        shard_group=layout.shard_group or layout.dp * layout.cp,
        holds_all=int(layout.schedule == "gpipe" and layout.pp > 1),
        **{f"offloads_{what}": int(what in layout.offload) for what in OFFLOADS},
    )
