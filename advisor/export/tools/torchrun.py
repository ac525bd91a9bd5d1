"""torchrun: a shell script that is started on every machine.

Read against torch 2.13. Of several machines each is told the first one's address, as the
script's argument or in ``MASTER_ADDR``; they meet there (``--rdzv-backend c10d``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from advisor.export.launch import Launch
from advisor.export.pick import Pick
from advisor.export.target import Exported
from advisor.export.texts import answer_lines, commented

MASTER: Final = '"${1:-${MASTER_ADDR:?say the address of the first machine}}"'
# The folder of the exported files, whatever folder the job runs in.
HERE: Final = "$here"
_FILE: Final = "run.sh"


def write(pick: Pick, launch: Launch, _: Mapping[str, str]) -> Exported:
    """Return the script, and how it is started on every machine."""
    text = shell_script(pick, launch)
    return Exported(target="torchrun", files={_FILE: text}, run=on_every(launch, f"bash {_FILE}"))


def shell_script(pick: Pick, launch: Launch, *, before: str = "", master: str = MASTER) -> str:
    """Return a shell script under what was answered, which runs in the job's own folder.

    ``before``: lines between the change of the folder and the command.
    """
    body = launch.shell(master, folder=launch.folder)
    start, _, rest = body.partition("\n")
    if HERE in body + before:
        start += '\nhere="$(cd "$(dirname "$0")" && pwd)"'
    if launch.folder:
        folder, _, rest = rest.partition("\n")
        start += f"\n{folder}"
    return f"#!/bin/bash\n{commented(list(answer_lines(pick)))}{start}\n{before}{rest}"


def on_every(launch: Launch, command: str) -> str:
    """Return a command with the first machine's address behind it, where there are several."""
    return command if launch.nodes == 1 else f"{command} FIRST_MACHINE  # on every machine"
