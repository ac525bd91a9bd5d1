"""``advisor profile``: run a training script for a short while and record what it does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import typer
from typer.core import TyperCommand

from advisor.ask import OUTPUT, RATE, SECONDS_WITH_UNIT, argument, option
from advisor.cli.terminal import NOTEBOOK, SCRIPTS, TYPED
from advisor.collectors.errors import shell_line
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.collectors.run import Interpreter, RecordingPlan


class ProfileCommand(TyperCommand):
    """Options before the script are ours; everything from it, or from ``-m``, on is its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``-m MODULE`` for the begin of the command."""
        for place, word in enumerate(args):
            if word == "--":
                break
            if word == "-m":
                if self._is_begun_by(args[:place], ctx):
                    args = [*args[:place], "--", *args[place:]]
                break
        return super().parse_args(ctx, args)

    def _is_begun_by(self, before: list[str], ctx: Any) -> bool:
        """Whether nothing but whole options of ours stands before ``-m``."""
        try:
            return not self.make_parser(ctx).parse_args(list(before))[0].get("script")
        except Exception:  # half an option: the whole command line says so
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileScript:
    """Record a training script for a short while.

    A script runs in the activated virtual or conda environment, otherwise in the interpreter that
    its first line names, otherwise in the advisor's own. After --, name any interpreter yourself.
    The script's output is unchanged; progress and the summary go to stderr. The script's exit code
    is passed on (0 if the recording ended it).
    """

    settings: ClassVar[dict[str, Any]] = {
        "cls": ProfileCommand,
        "context_settings": {"allow_interspersed_args": False, "ignore_unknown_options": False},
    }
    # fmt: off
    script: list[str] | None = argument("A Python script, a module or a notebook with its "
        "arguments, or after -- any command: torchrun, accelerate launch, uv run, make.",
        metavar="SCRIPT [ARGS]... | -m MODULE [ARGS]... | -- COMMAND [ARGS]...")
    limit: float = option("Maximum recording time, counted from the first step: 60s, 2m or 1h.",
        SECONDS_WITH_UNIT, "120s", flags="--for")
    steps: int | None = option("Record exactly this many steps, then stop.", min=1)
    precise: bool = option("Record until the step time is known to 2 %, not 5 %.", default=False)
    go_on: bool = option("Let the training continue after the recording, without hooks.",
        default=False, flags="--continue")
    pid: int | None = option("Watch a running process from outside: resources only.", min=1)
    epochs: float | None = option("Epochs the full training run will take (default: as found in "
        "the script).", min=0)
    total_steps: int | None = option("Optimizer steps the full training run will take (default: "
        "as found).", min=1)
    total_samples: int | None = option("Samples the full training run will see (default: as "
        "found).", min=1)
    name: str = option("Word to include in the run's name.", default="")
    runs: str | None = option("Folder or URL to keep runs in (default: advisor/runs in your data "
        "folder).", envvar="ADVISOR_RUNS")
    workers: int = option("Run the script as this many ranks that train together on this machine.",
        default=1, min=1, max=64)
    bandwidth: float | None = option("Limit the link of each rank, each way, e.g. 1Gbit/s (needs "
        "root).", RATE)
    interval: float = option("Seconds between readings.", default=0.2, min=0.02, max=60)
    working_set: bool = option("Also record how much of its memory the script touches (Linux).",
        default=False)
    rehearse: bool | None = option("Run the script as if on a GPU, with tensors that have shapes "
        "but no memory (default: if it wants a GPU that is not there).",
        flags="--rehearse/--no-rehearse")
    rehearse_as: str = option("Devices that a rehearsed script finds.",
        default="1xH100", flags="--as", metavar="8xH100")
    ranks: int = option("Number of processes that train together in a rehearsal.",
        default=1, min=1)
    rank: int = option("Rank of the process to rehearse.", default=0, min=0)
    network: bool = option("Let a rehearsed script open connections.", default=False)
    quiet: bool = option("Show neither progress nor summary.",
        default=False, flags="--quiet -q", panel=OUTPUT)
    as_json: bool = option("Print the summary as JSON on stdout at the end.",
        default=False, flags="--json", panel=OUTPUT)
    # fmt: on

    def __call__(self) -> None:
        from advisor.collectors.derive import GivenWork, is_url
        from advisor.collectors.run import become_agent, plan_recording, run_plan, share_run

        if self.limit <= 0:
            raise UsageError("--for 0 records nothing", hint="use 60s, 2m or 1h")
        words = _command(self.script or [], self.pid)
        interpreter = _interpreter(words)
        is_notebook = bool(words) and words[0].endswith(NOTEBOOK)
        wanted = plan_recording(
            words if interpreter is None else [interpreter.path, *words],
            interpreter=interpreter,
            run_root=self.runs,
            name=self.name or _name_of(words),
            attached=self.pid,
            limit_s=self.limit,
            limit_steps=self.steps,
            interval_s=self.interval,
            continues=self.go_on,
            is_precise=self.precise,
            given=GivenWork(
                epochs=self.epochs, total_steps=self.total_steps, total_samples=self.total_samples
            ),
            progress_s=0.0 if self.quiet else 5.0,
            summary="json" if self.as_json else "none" if self.quiet else "text",
            workers=self.workers,
            bandwidth_bit_per_s=None if self.bandwidth is None else 8 * self.bandwidth,
            working_set=self.working_set,
            rehearsal=self._rehearsal(),
        )
        if is_notebook:
            wanted = _as_script(wanted)
        if self.runs is None or not is_url(self.runs):
            become_agent(wanted)
        code = run_plan(wanted)
        share_run(Path(wanted.run), self.runs)
        raise typer.Exit(code)

    def _rehearsal(self) -> dict[str, Any]:
        """Return whether and as what the script is rehearsed."""
        from advisor.collectors.run import rehearsed

        devices = self.rehearse_as
        count, _, name = (
            devices.strip().rpartition("x") if devices[:1].isdigit() else ("1", "", devices)
        )
        if not count.isdigit() or not name:
            raise UsageError(f"--as {devices!r} names no devices", hint="use H100, 8xH100 or 4xL4")
        always = "always" if self.rehearse or self.ranks > 1 else "wanted"
        return rehearsed(
            when="never" if self.rehearse is False and self.ranks == 1 else always,
            device=None if name.upper() == "H100" else _device(name),
            devices=int(count), ranks=self.ranks, rank=self.rank, network=self.network,
        )  # fmt: skip


def _device(name: str) -> dict[str, Any]:
    """Return what a script finds of an accelerator of the catalogue."""
    from advisor.catalogue import Catalogue
    from advisor.machines import one_gpu

    catalogue = Catalogue.load()
    row = catalogue.accelerators[one_gpu(name, catalogue)]
    capability = row.compute_capability
    if row.vendor != "NVIDIA" or capability is None:
        raise UsageError(
            f"{row.name} runs no CUDA: a script cannot be rehearsed as one",
            hint="rehearse as a GPU of NVIDIA's; recommend asks about all of them",
        )
    return {
        "name": f"NVIDIA {row.name}",
        "memory_bytes": int(row.memory_bytes),
        "capability": divmod(round(10 * capability), 10),
    }


def run_of(script: str) -> str:
    """Return the newest run of a script as it stands now; without one, record the script first.

    Raises UsageError if there is no such script, or it cannot be recorded.
    """
    _command([script], None)
    if (found := _recorded(script)) is None:
        typer.echo(f"note: recording the script first: advisor profile {script}", err=True)
        # What the script prints is no part of the answer.
        verb = [sys.executable, "-P", "-m", "advisor", "profile", script]
        with subprocess.Popen(verb, stdout=2) as profile:
            code = profile.wait()
        found = _recorded(script)
        if found is None:
            raise UsageError(
                f"no step of {script} was recorded (exit code {code})",
                hint=f"see above; with arguments: advisor profile {script} ARGUMENTS",
            )
    typer.echo(f"note: {script} as recorded in {found}", err=True)
    TYPED.set(tuple(found if word == script else word for word in TYPED.get()))
    return found


def _recorded(script: str) -> str | None:
    """Return the newest run with a step of a script that was not changed since."""
    from advisor.collectors import derive

    changed = datetime.fromtimestamp(int(os.path.getmtime(script)), UTC)
    for line in reversed(derive.run_lines(derive.list_runs())):
        if line.started_at is None or datetime.fromisoformat(line.started_at) < changed:
            continue
        if not any(word.endswith(Path(script).name) for word in line.command):
            continue
        seen = derive.read_recording(derive.find_run(line.run))
        places = {os.path.realpath(os.path.join(seen.folder, one)) for one in seen.command}
        if os.path.realpath(script) in places and (seen.step_time or seen.deep_step):
            return line.run
    return None


# What starts a script in an environment of its own making, and does not come with Python.
_RUNNERS: Final = ("uv", "poetry", "conda", "mamba", "micromamba", "pipenv", "pdm", "hatch", "rye")
# Launchers that a package brings: the package, and the module that is the same.
_LAUNCHERS: Final = {
    "torchrun": ("torch", "torch.distributed.run"),
    "accelerate": ("accelerate", "accelerate.commands.accelerate_cli"),
    "deepspeed": ("deepspeed", "deepspeed.launcher.runner"),
}


def _command(words: list[str], pid: int | None) -> list[str]:
    """Return the script or command that the words mean; empty for a process to watch."""
    if pid is not None:
        if words:
            raise UsageError("--pid cannot be combined with a command", hint="give one of them")
        if not Path(f"/proc/{pid}").exists():
            raise UsageError(f"no process {pid}", hint="`ps -ef` shows what runs")
        return []
    if not words:
        raise UsageError("nothing to profile", hint="advisor profile train.py, or -- COMMAND")
    first = words[0]
    if first == "-m":
        if len(words) < 2:
            raise UsageError("-m names no module", hint="advisor profile -m package.train")
        return words
    if first.endswith(SCRIPTS):
        if not Path(first).is_file():
            if " " in first:
                raise _no_command(words)
            raise UsageError(f"no script at {first}", hint="check the path")
        return words
    if shutil.which(first) is None:
        raise _no_command(words)
    return words


def _no_command(words: list[str]) -> UsageError:
    """Return the error of words that nothing can be started by, and the command that works."""
    first = words[0]
    if Path(first).is_file():
        hint = "a script's name ends in .py; put a command after --"
        if not os.access(first, os.X_OK):
            hint = f"chmod +x {first}, or name its interpreter: -- sh {first}"
            return UsageError(f"{first!r} is not executable", hint=hint)
        return UsageError(f"{first!r} is not a command", hint=hint)
    script = _script_in(words)
    alone = f"advisor profile {shell_line(script)}" if script else "advisor profile SCRIPT"
    hint = "a script's name ends in .py; put a command after --"
    if first in _LAUNCHERS:
        package, module = _LAUNCHERS[first]
        hint = (
            f"activate the environment that has {package}, or name its Python: "
            f"advisor profile -- /path/to/python -m {module} {shell_line(words[1:])}"
        )
    elif first in _RUNNERS:
        hint = f"install {first}, or activate the environment that it runs in, then: {alone}"
    elif " " in first:
        hint = f"write it without quotes: advisor profile {first}"
    elif _is_target(first):
        hint = f"it is a target of the Makefile here: advisor profile -- make {first}"
    elif Path(*first.split(".")).with_suffix(".py").is_file():
        hint = f"it is a module here: advisor profile -m {shell_line(words)}"
    return UsageError(f"{first!r} is not a command", hint=hint)


def _script_in(words: list[str]) -> list[str]:
    """Return a launcher's command from the script, or the module, on; empty where it has none."""
    for place, word in enumerate(words):
        if word == "-m" or word.endswith(SCRIPTS):
            return words[place:]
    return []


def _is_target(word: str) -> bool:
    """Whether the Makefile of the working folder has such a target."""
    for name in ("GNUmakefile", "makefile", "Makefile"):
        try:
            lines = Path(name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        return any(line.split(":")[0].strip() == word for line in lines if ":" in line)
    return False


def _interpreter(words: list[str]) -> Interpreter | None:
    """Return the Python that a script runs in; None for a command or a process to watch."""
    from advisor.collectors.run import interpreter_for

    if not words or not (words[0] == "-m" or words[0].endswith(SCRIPTS)):
        return None
    return interpreter_for(Path(words[0]), os.environ)


def _name_of(words: list[str]) -> str:
    """Return what a module's or notebook's run is called; empty where the script says it."""
    if words[:1] == ["-m"]:
        return words[1].rpartition(".")[2]
    return Path(words[0]).stem if words and words[0].endswith(NOTEBOOK) else ""


def _as_script(wanted: RecordingPlan) -> RecordingPlan:
    """Return the plan for a notebook's code, which lies in a private folder until the end.

    It finds the modules beside the notebook, and its charts open no windows, as in Jupyter.
    """
    from advisor.collectors.run import private_code

    python, notebook, *rest = wanted.command
    script = private_code(Path(notebook))
    paths = (str(Path(notebook).resolve().parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.setdefault("MPLBACKEND", "Agg")
    return replace(wanted, command=(python, str(script), *rest), notebook=notebook)
