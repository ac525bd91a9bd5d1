"""Record a command: prepare the run, hand over to the agent's process, read the recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from advisor.collectors.derive import (
    GivenWork,
    Root,
    clean_runs,
    default_run_root,
    is_url,
    new_run,
    push_run,
    read_recording,
)
from advisor.collectors.errors import RecordingError
from advisor.collectors.format import Recording
from advisor.collectors.run import local_ranks
from advisor.collectors.run.interpreter import Interpreter
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.watch import (
    cached_benchmark,
    cached_or_measured,
    cached_sheets,
    describe_host,
)

_PRECISE_FRACTION: Final = 0.02
_IS_POSIX = os.name == "posix"


def plan_recording(
    command: Sequence[str], *, interpreter: Interpreter | None = None,
    run_root: Root | None = None, name: str = "", is_precise: bool = False,
    given: GivenWork | None = None, measure_host: bool = True, **settings: Any,
) -> RecordingPlan:  # fmt: skip
    """Make a run's folder and say what is to be recorded in it.

    Raises RecordingError if this is Windows, the run's folder cannot be made, or a link cannot be
    limited.

    Parameters
    ----------
    interpreter : Interpreter, optional
        The Python that was chosen for a script, which is the command's second word.
    run_root : Path or str, optional
        Folder or URL of runs; see ``default_run_root``.
    name : str
        Part of the run's id; by default the script's name.
    is_precise : bool
        Go on until the step time's interval is within 2 %.
    measure_host : bool
        Run the host's micro-benchmarks first, unless they are in the cache.
    settings
        Fields of the plan; it says what each is.
    """
    if not _IS_POSIX:
        raise RecordingError(
            "recording needs Linux or macOS: signals and files work differently here",
            hint="record in the Windows Subsystem for Linux; everything else works here",
        )
    settings.setdefault("reader", "proc" if sys.platform == "linux" else "psutil")
    plan = RecordingPlan(run="", command=tuple(command), **settings)
    if plan.working_set and sys.platform != "linux":
        raise RecordingError(
            "only Linux says which memory is touched", hint="leave --working-set out"
        )
    local_ranks.check(plan)
    clean_runs(run_root)
    folder = new_run(name or _name_of(command) or f"pid-{plan.attached}", run_root)
    measured = cached_or_measured() if measure_host else cached_benchmark()
    options: dict[str, Any] = {
        "given": {k: v for k, v in asdict(given or GivenWork()).items() if v is not None}
    }
    if interpreter is not None:
        options["interpreter"] = asdict(interpreter)
    if plan.workers > 1:
        options.update(workers=plan.workers, bandwidth_bit_per_s=plan.bandwidth_bit_per_s)
    if is_precise:
        options["half_width_fraction"] = _PRECISE_FRACTION
    rehearsal = plan.rehearsal or rehearsed()
    rate = measured and measured.matmul_flop_per_s
    rehearsal = {"limit_s": plan.limit_s, "flop_per_s": rate, **rehearsal}
    return replace(
        plan,
        run=str(folder),
        options=options,
        host=asdict(describe_host(benchmark=measured, sheets=cached_sheets())),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        rehearsal={} if plan.attached is not None else rehearsal,
    )


# What a script finds that is rehearsed, unless somebody says otherwise: scripts branch on it.
_H100: Final[Mapping[str, Any]] = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 85_017_493_504,
    "capability": (9, 0),
}


_REHEARSED: Final[Mapping[str, Any]] = {
    "when": "wanted", "device": _H100, "devices": 1, "ranks": 1, "rank": 0, "network": False,
}  # fmt: skip


def rehearsed(**asked: Any) -> dict[str, Any]:
    """Return whether and as what a script is rehearsed.

    Raises RecordingError if there is no such rank.

    Parameters
    ----------
    asked
        ``when``: ``"wanted"``, where the script asks for an accelerator that is not there and ends
        for that (the default), ``"always"`` or ``"never"``. ``device``: name, memory_bytes and
        capability (a pair) of each device, an H100 by default. ``devices``: those of the machine.
        ``ranks``, ``rank``: processes that train together, and the one that is run. ``network``:
        let connections beyond this machine through.
    """
    found = {**_REHEARSED, **{name: one for name, one in asked.items() if one is not None}}
    if not 0 <= found["rank"] < found["ranks"]:
        raise RecordingError(
            f"there is no rank {found['rank']} among {found['ranks']}",
            hint=f"--rank is from 0 to {found['ranks'] - 1}",
        )
    return found


def profile(
    command: Sequence[str], *, on_progress: Callable[[str], None] | None = None, **settings: Any
) -> Recording:
    """Record a command and return the recording.

    ``on_progress``: called with a line of text every few seconds.
    """
    wanted = plan_recording(command, **settings)
    run_plan(wanted, on_progress=on_progress)
    share_run(Path(wanted.run), settings.get("run_root"))
    return read_recording(Path(wanted.run))


def share_run(run: Path, run_root: Root | None = None) -> None:
    """Copy a run to where the team's runs are, if that is a URL."""
    place = default_run_root() if run_root is None else run_root
    if is_url(place):
        push_run(run, str(place))


def run_plan(wanted: RecordingPlan, *, on_progress: Callable[[str], None] | None = None) -> int:
    """Record according to a plan in a process of its own, and return its exit code."""
    read_fd, write_fd = os.pipe() if on_progress else (-1, -1)
    plan_fd = replace(wanted, progress_fd=write_fd).open_copy()
    try:
        agent = subprocess.Popen(
            _agent_command(plan_fd, wanted.reader),
            pass_fds=[plan_fd, *[write_fd] * (write_fd >= 0)],
        )
    finally:
        os.close(plan_fd)
    if on_progress:
        os.close(write_fd)
        try:
            with open(read_fd, encoding="utf-8") as lines:
                for line in lines:
                    on_progress(json.loads(line)["text"])
        except KeyboardInterrupt:
            agent.send_signal(signal.SIGINT)
    return _await(agent)


def _await(agent: subprocess.Popen[bytes]) -> int:
    """Wait for the agent, also if it is this process that is interrupted: nothing is lost."""
    while True:
        try:
            return agent.wait()
        except KeyboardInterrupt:
            agent.send_signal(signal.SIGINT)


def become_agent(wanted: RecordingPlan) -> NoReturn:
    """Turn this process into the agent, so that nothing but the agent runs beside the script."""
    command = _agent_command(wanted.open_copy(), wanted.reader)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


def _agent_command(plan_fd: int, reader: str) -> list[str]:
    # Isolated and without site: starts in 20 ms, and no user setting can reach it. The agent
    # needs the standard library and this package, whose place is passed on.
    root = str(Path(sys.modules["advisor"].__path__[0]).parent)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path += sys.argv[3:]; "
        f"from {__package__}.agent import main; sys.exit(main(int(sys.argv[2])))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, root, str(plan_fd)]
    if reader == "psutil":
        import psutil

        command.append(str(Path(psutil.__file__).parents[1]))
    return command


def _name_of(command: Sequence[str]) -> str:
    scripts = [part for part in command if part.endswith((".py", ".sh"))]
    return Path(scripts[0] if scripts else command[0]).stem if command else ""
