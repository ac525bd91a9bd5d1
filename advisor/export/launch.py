"""The start of an exported job on every machine: the command that ``plan`` prints.

The layout's arguments come from ``advisor.estimate`` alone. A recorded script keeps its own
name and arguments; its path is said from the folder that the machines get a copy of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from advisor.collectors.errors import shell_line
from advisor.collectors.format import Recording, on_accelerators
from advisor.collectors.hooks.redaction import HIDDEN
from advisor.errors import AdvisorError
from advisor.estimate import SPACE, Predictor, commands, script_words, torchrun
from advisor.export.pick import HERE, Pick
from advisor.jobs import Job
from advisor.planners.core import Work
from advisor.planners.layouts import SearchSpace

PLACEHOLDER: Final = "train.py"


class NotRunnableError(AdvisorError):
    """No released framework runs the layout of the exported row."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a job is started on every machine of a pick."""

    # one shell command. With several machines it reads ``MASTER_ADDR``, the first machine's
    # address.
    text: str
    words: tuple[str, ...]  # the script and its arguments, as they stand in ``text``
    # the folder that ``words`` are said from, ``""`` where nobody recorded one: the machines need
    # a copy of it
    folder: str = ""
    # what the command needs beside the script, by name
    files: Mapping[str, str] = field(default_factory=dict)
    # nodes, per_node: machines, and processes on each
    nodes: int = 1
    per_node: int = 1
    is_placeholder: bool = False  # the script's name is made up: nothing was recorded
    notes: tuple[str, ...] = ()  # what is left to do by hand
    work: Work | None = None  # what a step computes; None where the job is not known
    # what pip installs where the folder has no requirements.txt, as the recording saw it; ``""``
    # for a program without one
    framework: str = "torch"

    @property
    def install(self) -> str:
        """What a bare machine runs first: the folder's own list, or the framework alone."""
        own = "if [ -f requirements.txt ]; then pip install -r requirements.txt"
        return f"{own}; else pip install {self.framework}; fi" if self.framework else f"{own}; fi"

    @property
    def by_hand(self) -> Mapping[str, str]:
        """Files that somebody reads, and no machine needs."""
        return {name: text for name, text in self.files.items() if name.endswith(".py")}

    def shell(self, master: str) -> str:
        """Return what every machine runs: its settings' files, the first machine, the command.

        ``master``: the first machine's address, as a word of a shell.
        """
        lines = ["set -e"]
        lines += [f"export MASTER_ADDR={master}"] if self.nodes > 1 else []
        return "\n".join([*lines, *self.settings(), self.text]) + "\n"

    def settings(self) -> list[str]:
        """Return the lines of a shell that write the command's files of settings."""
        lines = []
        for name, text in self.files.items():
            if name not in self.by_hand:
                lines += [f"cat > {name} <<'END_OF_FILE'", text.rstrip(), "END_OF_FILE"]
        return lines

    def started_by(self, launcher: str, *dropped: str) -> str:
        """Return the command with another launcher in place of torchrun, or of plain Python.

        ``dropped``: arguments that the launcher's own settings stand for.
        """
        own = torchrun(self.nodes, self.per_node)
        before, found, behind = self.text.partition(own)
        if not found:
            before, behind = "", " " + self.text.removeprefix("python ")
        for one in dropped:
            behind = behind.replace(f" {one}", "")
        return f"{before}{launcher}{behind}"


def launch_of(
    pick: Pick,
    job: Job | None = None,
    recording: Recording | None = None,
    *,
    predictor: Predictor | None = None,
    space: SearchSpace = SPACE,
) -> Launch:
    """Return how the job is started on the machines of a pick.

    ``job``: where None, the layout's own arguments are left out; ``recording``: of the job: its
    script, arguments and folder; ``space``: in which the pick's layout was found.

    Raises NotRunnableError if no released framework runs the layout.
    """
    words, folder, notes = _script(job, recording)
    is_placeholder = recording is None
    if is_placeholder:
        notes = (*notes, f"your script stands for {PLACEHOLDER}: nothing was recorded")
    per_node = max(pick.layout.devices // pick.nodes, 1)
    files: dict[str, str] = {}
    text = _line(words, pick.nodes, per_node)
    is_laid_out = job is not None and job.work is not None and pick.rented.provider != HERE
    if job is not None and is_laid_out and (is_placeholder or pick.layout.devices > 1):
        text, files = _laid_out(pick, job, words, predictor, space)
    elif job is None and pick.layout.devices > 1:
        notes = (*notes, "the layout's own arguments are left out: name the job to have them")
    if "parallel.py" in files:
        notes = (*notes, "put the lines of parallel.py into your script, after its model and "
                 "optimizer are made")  # fmt: skip
    return Launch(
        text=text, words=tuple(words), folder=folder, files=files, nodes=pick.nodes,
        per_node=per_node, is_placeholder=is_placeholder, notes=notes,
        framework=_framework(recording),
        work=None if job is None else job.work,
    )  # fmt: skip


def _laid_out(
    pick: Pick, job: Job, words: Sequence[str], predictor: Predictor | None, space: SearchSpace
) -> tuple[str, dict[str, str]]:
    """Return the command and its files, in the pick's layout."""
    known = predictor or Predictor()
    case = known.case(job, space=space)
    rented = pick.rented
    row = known.catalogue.instance_type(rented.instance_type, provider=rented.provider).index
    found, reasons = commands(
        case, row, pick.layout, group=rented.instance_type, nodes=pick.nodes, space=space,
        script=words,
    )  # fmt: skip
    if not found:
        raise NotRunnableError(
            f"row {pick.rank} has no command: {'; '.join(reasons)}",
            hint="export another row, or fix the layout: --tp 1 --pp 1",
        )
    return found[0].text, dict(found[0].files)


def _framework(recording: Recording | None) -> str:
    """Return the requirement of the torch that was recorded, without its build's name."""
    if recording is None:
        return "torch"
    version = (recording.host.torch_version or "").partition("+")[0]
    return f"torch=={version}" if version else ""


def _line(words: Sequence[str], nodes: int, per_node: int) -> str:
    """Return the command of a script that nothing was laid out for."""
    if nodes * per_node == 1:
        is_program = bool(words) and not words[0].endswith(".py") and words[0] != "-m"
        return shell_line(words) if is_program else f"python {shell_line(words)}"
    return f"{torchrun(nodes, per_node)} {shell_line(words)}"


def _script(
    job: Job | None, recording: Recording | None
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the script with its arguments, the folder they are said from, and what to mend."""
    if recording is None:
        return (PLACEHOLDER,), "", ()
    words = list(on_accelerators(recording.command, None if job is None else job.told))
    words = script_words(words)
    if not words:
        return (PLACEHOLDER,), recording.folder, ()
    notes = []
    if any(HIDDEN in word for word in words):
        notes.append(f"an argument was hidden when it was recorded: replace {HIDDEN}")
    words[0], folder = _relative(words[0], recording.folder)
    if folder != recording.folder:
        notes.append(f"the script was started in {recording.folder}, outside its own folder")
    return tuple(words), folder, tuple(notes)


def _relative(script: str, folder: str) -> tuple[str, str]:
    """Return a script's path from the folder to copy, and that folder.

    >>> _relative("/home/me/job/src/train.py", "/home/me/job")
    ('src/train.py', '/home/me/job')
    >>> _relative("/opt/examples/train.py", "/home/me")
    ('train.py', '/opt/examples')
    """
    if not folder or not script.endswith(".py"):
        return script, folder
    whole = Path(os.path.normpath(os.path.join(folder, script)))
    if whole.is_relative_to(folder):
        return str(whole.relative_to(folder)), folder
    return whole.name, str(whole.parent)
