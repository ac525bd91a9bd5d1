"""Slurm: a batch script, one task a machine, torchrun's rendezvous on the first.

Read against Slurm 22.05. The devices are asked for by number: what a cluster calls their type is
its own (``--set gres=gpu:a100:8``).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from advisor.collectors.errors import printable
from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported
from advisor.export.texts import answer_lines, commented, job_name

_FILE: Final = "job.sbatch"
_MASTER: Final = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)"'


def write(pick: Pick, launch: Launch, values: Mapping[str, str]) -> Exported:
    """Return the script; spot machines' jobs are queued again where they are taken away."""
    cards = math.floor(pick.rented.accelerators)
    gres = shlex.quote(values["gres"]) if values["gres"] else (f"gpu:{cards}" if cards else "")
    options = {
        "job-name": job_name(pick.run),
        "nodes": str(pick.nodes),
        "ntasks-per-node": "1",
        "gres": gres,
        "exclusive": "exclusive",
        "time": time_text(pick.longest_s),
        "requeue": "requeue" if pick.is_spot else "",
        "partition": shlex.quote(values["partition"]) if values["partition"] else "",
        "output": "%x-%j.out",
    }
    lines = [
        f"#SBATCH --{name}" if name == value else f"#SBATCH --{name}={value}"
        for name, value in options.items()
        if value
    ]
    if not launch.is_placeholder:
        lines.append(
            f"#ADVISOR run={shlex.quote(printable(pick.run))}"
        )  # what `advisor gate` judges
    text = "\n".join(["#!/bin/bash", *lines, ""]) + commented(list(answer_lines(pick)))
    notes = ["Slurm has no price: the answer's is a comment"]
    if pick.is_spot:
        notes.append("the script has to continue from its checkpoint when it is queued again")
    return Exported(
        target="slurm", files={_FILE: text + _body(launch)}, run=f"sbatch {_FILE}",
        notes=tuple(notes),
    )  # fmt: skip


def _body(launch: Launch) -> str:
    if launch.nodes == 1:
        return launch.shell(folder=launch.folder)
    everywhere = f"srun --ntasks-per-node=1 bash -c {shlex.quote(launch.text)}"
    return replace(launch, text=everywhere).shell(_MASTER, folder=launch.folder)


def time_text(seconds: int) -> str:
    """Return a time limit as Slurm writes it, in whole minutes, at least one.

    >>> time_text(59), time_text(5400), time_text(2 * 86400 + 60)
    ('0-00:01:00', '0-01:30:00', '2-00:01:00')
    """
    minutes = max(-(-seconds // 60), 1)
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"
