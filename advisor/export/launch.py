"""The start of an exported job on every machine: packages, settings' files, and the command.

The launcher's arguments and the lines that spread a model come from ``advisor.estimate`` alone. A
recorded script keeps its own name and arguments; its path is said from the folder that the
machines get a copy of. A script that is only named gets no arguments but its own.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from advisor.collectors.errors import shell_line
from advisor.collectors.format import Recording, on_accelerators, on_processors
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import (
    SPACE,
    Predictor,
    commands,
    script_words,
    torchrun,
    variables_of,
    with_variables,
)
from advisor.export.pick import HERE, Pick
from advisor.jobs import Job
from advisor.planners.core import Work
from advisor.planners.layouts import SearchSpace
from advisor.words import layout_words

PLACEHOLDER: Final = "train.py"
# What ``--set framework=`` takes: the described job's script is one of Hugging Face's Trainer.
TRAINER: Final = "trainer"
DEEPSPEED_FILE: Final = "ds_config.json"
LINES_FILE: Final = "parallel.py"
# A shell's line before settings are written into the job's folder: the user's own are kept.
KEPT: Final = "[ ! -e {0} ] || cp -n {0} {0}.before || true"
# Megatron-LM's scripts are no part of a package: the release that the arguments were read in.
_MEGATRON_CORE: Final = "0.16.1"
_MEGATRON: Final = (
    "if [ ! -f pretrain_gpt.py ]; then\n"
    "  [ -d Megatron-LM ] || git clone --depth 1 --branch "
    f"core_v{_MEGATRON_CORE} "
    "https://github.com/NVIDIA/Megatron-LM\n"
    "  cd Megatron-LM\n"
    "fi"
)


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
    is_trainer: bool = False  # a described job's script takes the arguments of the Trainer
    notes: tuple[str, ...] = ()  # what is left to do by hand
    work: Work | None = None  # what a step computes; None where the job is not known
    # what pip installs where the folder has no requirements.txt, as the recording saw it; ``""``
    # for a program without one
    framework: str = "torch"
    launcher: str = ""  # the package of the launcher, where it is not torch's own

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages that the command needs, beside torch and what the script imports itself."""
        found = [self.launcher] if self.launcher else []
        found += ["transformers", "accelerate"] if self.is_trainer else []
        found += ["deepspeed"] if DEEPSPEED_FILE in self.files else []
        found += [f"megatron-core=={_MEGATRON_CORE}"] if self.is_megatron else []
        return tuple(dict.fromkeys(found))

    @property
    def is_megatron(self) -> bool:
        """Whether a script of Megatron-LM is started in place of the user's."""
        return " pretrain_gpt.py " in self.text or " pretrain_bert.py " in self.text

    @property
    def install(self) -> str:
        """What a bare machine runs first: the folder's own list, and the framework."""
        own = "if [ -f requirements.txt ]; then python -m pip install -r requirements.txt; fi"
        return "\n".join([own, *([_installed(self.framework)] if self.framework else [])])

    @property
    def by_hand(self) -> Mapping[str, str]:
        """Files that somebody reads, and no machine needs."""
        return {name: text for name, text in self.files.items() if name.endswith(".py")}

    def shell(self, master: str = "", *, folder: str = "") -> str:
        """Return what every machine runs: what is missing installed, settings, the command.

        ``master``: the first machine's address, as a word of a shell; ``folder``: to run in.
        """
        lines = ["set -e", *([f"cd {shlex.quote(folder)}"] if folder else [])]
        lines += [f"export MASTER_ADDR={master}"] if self.nodes > 1 and master else []
        return "\n".join([*lines, *self.preparation(), self.text]) + "\n"

    def preparation(self) -> list[str]:
        """Return the lines of a shell before the command: packages, and files of settings."""
        lines = [_installed(one) for one in self.needs]
        lines += [_MEGATRON] if self.is_megatron else []
        for name, text in self.files.items():
            if name not in self.by_hand:
                lines += [
                    KEPT.format(name),
                    f"cat > {name} <<'END_OF_FILE'",
                    text.rstrip(),
                    "END_OF_FILE",
                ]
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


def _installed(requirement: str) -> str:
    """Return a shell's line that installs a package where it is missing.

    >>> _installed("torch==2.13.0")
    'python -m pip show -q torch > /dev/null 2>&1 || python -m pip install torch==2.13.0'
    """
    name = requirement.partition("=")[0]
    return f"python -m pip show -q {name} > /dev/null 2>&1 || python -m pip install {requirement}"


def launch_of(
    pick: Pick, job: Job | None = None, recording: Recording | None = None, *,
    predictor: Predictor | None = None, space: SearchSpace = SPACE, script: str = "",
    framework: str = "",
) -> Launch:  # fmt: skip
    """Return how the job is started on the machines of a pick.

    Raises NotRunnableError if no released framework runs the layout.

    Parameters
    ----------
    job : Job, optional
        Where None, the layout's own arguments are left out.
    recording : Recording, optional
        Of the job: its script, arguments and folder.
    space : SearchSpace
        In which the pick's layout was found.
    script : str
        The command line of the script, as in a shell, in place of the recorded one.
    framework : str
        ``"trainer"`` where a described job's script takes the arguments of the Trainer.
    """
    words, folder, notes = _script(pick, job, recording, script)
    is_placeholder = recording is None
    is_described = is_placeholder and job is not None and job.work is not None
    is_trainer = framework == TRAINER and is_described
    per_node = max(pick.layout.devices // pick.nodes, 1)
    files: dict[str, str] = {}
    text = _line(words, pick.nodes, per_node)
    is_laid_out = job is not None and job.work is not None and pick.rented.provider != HERE
    if job is not None and is_laid_out and (is_placeholder or pick.layout.devices > 1):
        text, files = _laid_out(pick, job, words, predictor, space, is_own=not is_trainer)
    elif job is None and pick.layout.devices > 1:
        notes = (*notes, "the layout's own arguments are left out: name the job to have them")
    if is_described and not is_trainer:
        notes = (
            *notes,
            f"your script has to train in this layout: {layout_words(pick.layout.to_record())}; "
            f"--set framework={TRAINER} adds the arguments for a script of Hugging Face's Trainer",
        )
    text = with_variables(text, words)
    return Launch(
        text=text, words=tuple(words), folder=folder, files=files, nodes=pick.nodes,
        per_node=per_node, is_placeholder=is_placeholder, is_trainer=is_trainer, notes=notes,
        framework=_framework(recording, text), work=None if job is None else job.work,
    )  # fmt: skip


def _laid_out(
    pick: Pick, job: Job, words: Sequence[str], predictor: Predictor | None, space: SearchSpace,
    *, is_own: bool,
) -> tuple[str, dict[str, str]]:  # fmt: skip
    """Return the command and its files, in the pick's layout."""
    known = predictor or Predictor()
    case = known.case(job, space=space)
    rented = pick.rented
    row = known.catalogue.instance_type(rented.instance_type, provider=rented.provider).index
    found, reasons = commands(
        case, row, pick.layout, group=rented.instance_type, nodes=pick.nodes, space=space,
        script=words, is_own_script=is_own,
    )  # fmt: skip
    if not found:
        raise NotRunnableError(
            f"row {pick.rank} has no command: {'; '.join(reasons)}",
            hint="export another row, or fix the layout: --tp 1 --pp 1",
        )
    text = found[0].text
    if not is_own:  # the Trainer's command is said of any script
        text = text.replace(f" {PLACEHOLDER} ", f" {shell_line(words)} ", 1)
    return text, dict(found[0].files)


def _framework(recording: Recording | None, text: str) -> str:
    """Return the requirement of the torch that was recorded, without its build's name.

    A program without one needs it where torchrun starts its ranks.
    """
    if recording is None:
        return "torch"
    version = (recording.host.torch_version or "").partition("+")[0]
    if version:
        return f"torch=={version}"
    return "torch" if "torchrun " in text else ""


def _line(words: Sequence[str], nodes: int, per_node: int) -> str:
    """Return the command of a script that nothing was laid out for."""
    if nodes * per_node == 1:
        is_program = bool(words) and not words[0].endswith(".py") and words[0] != "-m"
        return shell_line(words) if is_program else f"python {shell_line(words)}"
    return f"{torchrun(nodes, per_node)} {shell_line(words)}"


def _script(
    pick: Pick, job: Job | None, recording: Recording | None, given: str
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the script with its arguments, the folder they are said from, and what to mend."""
    folder = "" if recording is None else recording.folder
    if given:
        try:
            words = script_words(shlex.split(given))
        except ValueError as error:
            raise UsageError(
                f"cannot read --set script={given!r}: {error}", hint="quote it as in a shell"
            ) from error
        return tuple(words) or (PLACEHOLDER,), folder, ()
    if recording is None:
        note = f"{PLACEHOLDER} stands for your script: --set script='NAME.py --its arguments'"
        return (PLACEHOLDER,), "", (note,)
    if pick.rented.accelerators:
        told = None if job is None else job.told
        words = script_words(on_accelerators(recording.command, told))
    else:
        words = script_words(on_processors(recording.command))
    if not words:
        return (PLACEHOLDER,), folder, ()
    notes = []
    variables = variables_of(words)
    if variables:
        names = ", ".join(variables.values())
        notes.append(
            f"the recording does not keep every value: set {names} where the job runs, or give "
            "--set script='NAME.py --its arguments'"
        )
    notebooks = [word for word in recording.command if word.endswith(".ipynb")]
    if notebooks:
        notes.append(
            f"write its script: jupyter nbconvert --to script {shell_line(notebooks[:1])}"
        )
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
