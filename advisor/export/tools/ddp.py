"""A described transformer's layout on a data-parallel framework that a target asks for."""

from __future__ import annotations

import json
from dataclasses import replace

from advisor.collectors.errors import shell_line
from advisor.estimate import DATA_PARALLEL, DEEPSPEED_LINES, NAMES, deepspeed_config, torchrun
from advisor.export.launch import DEEPSPEED_FILE, LINES_FILE, PLACEHOLDER, Launch, NotRunnableError
from advisor.export.pick import Pick
from advisor.planners.core import Work, shapes_of
from advisor.planners.layouts import Framework, broken_rule


def on_framework(pick: Pick, launch: Launch, *wanted: Framework) -> Launch:
    """Return how a described transformer is started with the first framework that accepts it.

    ``plan`` prints the simplest framework of all; a target may know only some. A recorded script,
    or a job of which no dimensions are known, is started as it was; a described job's script gets
    arguments of the framework only where it is one of the Trainer's.

    ``wanted``: in the order of preference.

    Raises NotRunnableError if none of them runs the layout.
    """
    work = launch.work
    if not launch.is_placeholder or work is None or work.transformer is None:
        return launch
    shapes = shapes_of(work.transformer)
    reasons: list[str] = []
    for framework in wanted:
        rule = broken_rule(
            pick.layout, framework, shapes, setup=work.setup, precision=work.precision
        )
        if rule is None and not launch.is_trainer:
            text = f"{torchrun(launch.nodes, launch.per_node)} {shell_line(launch.words)}"
            return replace(launch, text=text, files=_own_files(pick, work, framework))
        if rule is None:
            made = DATA_PARALLEL[framework](
                pick.layout, group=pick.rented.instance_type, nodes=launch.nodes,
                per_node=launch.per_node, setup=work.setup, precision=work.precision,
            )  # fmt: skip
            text = made.text.replace(f" {PLACEHOLDER} ", f" {shell_line(launch.words)} ", 1)
            return replace(launch, text=text, files=dict(made.files))
        reasons.append(f"{NAMES[framework]}: {rule.reason}")
    raise NotRunnableError(
        f"nothing asked for runs the layout of row {pick.rank}: {'; '.join(reasons)}",
        hint="ask for plain data parallelism (--tp 1 --pp 1 --cp 1 --ep 1), or --to megatron",
    )


def _own_files(pick: Pick, work: Work, framework: Framework) -> dict[str, str]:
    """Return what DeepSpeed reads, and the lines by which a script of one's own hands it over."""
    if framework != "deepspeed":
        return {}
    config = deepspeed_config(
        pick.layout, setup=work.setup, precision=work.precision, is_script=True
    )
    return {DEEPSPEED_FILE: json.dumps(config, indent=2), LINES_FILE: DEEPSPEED_LINES}
