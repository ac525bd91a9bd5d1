"""torchrun: a shell script that is started on every machine.

Read against torch 2.13. Of several machines each is told the first one's address, as the
script's argument or in ``MASTER_ADDR``; they meet there (``--rdzv-backend c10d``).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported, Target
from advisor.export.texts import answer_lines, commented

MASTER: Final = '"${1:-${MASTER_ADDR:?say the address of the first machine}}"'
# The folder of the exported files, whatever folder the job runs in.
HERE: Final = "$here"
_FILE: Final = "run.sh"


def write(pick: Pick, launch: Launch, _: Mapping[str, str]) -> Exported:
    """Return the script, and how it is started on every machine."""
    text = shell_script(pick, launch, launch.shell(MASTER))
    return Exported(target="torchrun", files={_FILE: text}, run=on_every(launch, f"bash {_FILE}"))


def shell_script(pick: Pick, launch: Launch, body: str) -> str:
    """Return a shell script under what was answered, which runs in the job's own folder."""
    lines = "" if body.startswith("set -e") else "set -e\n"
    if HERE in body:
        lines += 'here="$(cd "$(dirname "$0")" && pwd)"\n'
    if launch.folder:
        lines += f"cd {shlex.quote(launch.folder)}\n"
    answer = commented(list(answer_lines(pick)))
    return f"#!/bin/bash\n{answer}{lines}{body}"


def on_every(launch: Launch, command: str) -> str:
    """Return a command with the first machine's address behind it, where there are several."""
    return command if launch.nodes == 1 else f"{command} FIRST_MACHINE  # on every machine"


TARGET: Final = Target(name="torchrun", write=write, runs_here=True)
