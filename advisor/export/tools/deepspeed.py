"""DeepSpeed: ``ds_config.json``, a hostfile, and the command of its own launcher.

Read against deepspeed 0.19. Any layout of data parallelism with ZeRO that DeepSpeed's rules admit
is written for it, also where ``plan`` prints PyTorch's own way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from advisor.estimate import DEEPSPEED_LINES, deepspeed_config
from advisor.export.launch import DEEPSPEED_FILE, KEPT, LINES_FILE, Launch, NotRunnableError
from advisor.export.pick import HERE as MACHINE_AT_HAND
from advisor.export.pick import Pick
from advisor.export.target import Exported, NotExportableError
from advisor.export.texts import marked
from advisor.export.tools.ddp import on_framework
from advisor.export.tools.torchrun import HERE, shell_script
from advisor.planners.layouts import broken_rule

_FILE: Final = DEEPSPEED_FILE
_SCRIPT: Final = "run.sh"
_HOSTS: Final = "hostfile"
_LINES: Final = LINES_FILE


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return configuration, script and the list of machines; started on the first of them."""
    _check(pick, launch)
    launch = on_framework(pick, launch, "deepspeed")
    layout, work = pick.layout, launch.work
    assert work is not None  # checked
    config = deepspeed_config(
        layout, setup=work.setup, precision=work.precision, is_script=not launch.is_trainer
    )
    files = {_FILE: json.dumps(config, indent=2) + "\n"}
    launcher = f"deepspeed --num_gpus {launch.per_node}"
    notes = []
    if launch.nodes > 1:
        names = [name for name in values["hosts"].split(",") if name]
        if len(names) != launch.nodes:
            notes.append(f"{_HOSTS} has made-up names: --set hosts=a,b names your {launch.nodes}")
        notes.append("DeepSpeed starts the other machines through pdsh and ssh: both must work")
        launcher = f'deepspeed --hostfile "{HERE}/{_HOSTS}"'
        made_up = [f"machine-{number}" for number in range(1, launch.nodes + 1)]
        lines = "".join(f"{name} slots={launch.per_node}\n" for name in names or made_up)
        files[_HOSTS] = marked(lines, pick)
    if not launch.is_trainer:
        files[_LINES] = launch.files[_LINES] if _FILE in launch.files else DEEPSPEED_LINES
    kept = f'{{ {KEPT.format(_FILE)}; cp "{HERE}/{_FILE}" .; }}'
    copy = f'[ "{HERE}" -ef . ] || {kept}\n'
    started = replace(launch, text=launch.started_by(launcher), files={}, launcher="deepspeed")
    text = shell_script(pick, started, before=copy, master="")
    return Exported(
        target="deepspeed", files={_SCRIPT: text, **files}, run=f"bash {_SCRIPT}",
        notes=tuple(notes),
    )  # fmt: skip


def _check(pick: Pick, launch: Launch) -> None:
    """Refuse a row that DeepSpeed does not run."""
    work, layout = launch.work, pick.layout
    if work is None:
        raise NotExportableError(
            "a DeepSpeed configuration needs the job's precision and optimizer",
            hint="name the job: --run NAME, or --model",
        )
    if not pick.rented.accelerators and pick.rented.provider != MACHINE_AT_HAND:
        raise NotExportableError(
            f"DeepSpeed's launcher counts accelerators, and {pick.rented.instance_type} has none",
            hint="export another row, or export to torchrun",
        )
    if not launch.is_placeholder and layout.recompute == "full" and _FILE not in launch.files:
        raise NotRunnableError(
            "which blocks of a recorded script are recomputed is said to PyTorch only",
            hint="fix another layout, --recompute none, or export to torchrun",
        )
    rule = broken_rule(layout, "deepspeed", setup=work.setup, precision=work.precision)
    if rule is not None:
        raise NotRunnableError(
            f"DeepSpeed does not run the layout of row {pick.rank}: {rule.reason}",
            hint="export another row, fix another layout (--tp 1 --pp 1), or export to torchrun",
        )
