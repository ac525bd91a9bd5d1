"""Megatron-LM: a shell script with the arguments of a layout, started on every machine.

Read against megatron-core 0.16.1. Any layout that Megatron's rules admit is written for it, also
where ``plan`` prints a simpler framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from advisor.estimate import command_line
from advisor.export.launch import Launch, NotRunnableError
from advisor.export.pick import Pick
from advisor.export.target import Exported, NotExportableError
from advisor.export.tools.torchrun import on_every, shell_script
from advisor.planners.core import shapes_of
from advisor.planners.layouts import broken_rule

_FILE: Final = "megatron.sh"


def write(pick: Pick, launch: Launch, _: Mapping[str, str]) -> Exported:
    """Return the script."""
    work = launch.work
    if work is None or work.transformer is None:
        raise NotExportableError(
            "Megatron-LM builds its own transformers, and no dimensions of one are known",
            hint="describe the model: --model config.json, or --layers --hidden --heads",
        )
    if not pick.rented.accelerators:
        raise NotExportableError(
            f"Megatron-LM trains on GPUs, and {pick.rented.instance_type} has none",
            hint="export another row, or export to torchrun",
        )
    rule = broken_rule(
        pick.layout, "megatron", shapes_of(work.transformer), setup=work.setup,
        precision=work.precision,
    )  # fmt: skip
    if rule is not None:
        raise NotRunnableError(
            f"Megatron-LM does not run the layout of row {pick.rank}: {rule.reason}",
            hint="fix another layout (--zero 1, --recompute none), or export to torchrun",
        )
    command = command_line(
        pick.layout, work.transformer, nodes=launch.nodes, per_node=launch.per_node,
        setup=work.setup, precision=work.precision,
    )  # fmt: skip
    started = replace(launch, text=command, files={}, is_trainer=False)
    return Exported(
        target="megatron",
        files={_FILE: shell_script(pick, started)},
        run=on_every(launch, f"bash {_FILE}"),
        notes=(
            "data, tokenizer and schedule are yours: put them into TRAINING_ARGS; without it "
            "20 steps on made-up tokens are run",
        ),
    )
