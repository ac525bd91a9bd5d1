"""Record a command: prepare the run, hand over to the agent's process, read the recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from advisor.collectors import (
    benchmark,
    device_sheet,
    host,
    local_ranks,
    remote,
    store,
    upkeep,
)
from advisor.collectors.errors import RecordingError
from advisor.collectors.interpreter import Interpreter
from advisor.collectors.plan import RecordingPlan
from advisor.collectors.recording import Recording
from advisor.collectors.store import Root, new_run, read_recording
from advisor.collectors.work import GivenWork

DEFAULT_LIMIT_S = 120.0
DEFAULT_INTERVAL_S = 0.2
PRECISE_FRACTION = 0.02
_IS_POSIX = os.name == "posix"


def plan(
    command: Sequence[str],
    *,
    interpreter: Interpreter | None = None,
    run_root: Root | None = None,
    name: str = "",
    attached: int | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    limit_steps: int | None = None,
    interval_s: float = DEFAULT_INTERVAL_S,
    continue_run: bool = False,
    is_precise: bool = False,
    given: GivenWork | None = None,
    measure_host: bool = True,
    progress_s: float = 0.0,
    patience_s: float = 5.0,
    summary: Literal["none", "text", "json"] = "none",
    workers: int = 1,
    bandwidth_bit_per_s: float | None = None,
    reader: Literal["proc", "psutil"] | None = None,
    working_set: bool = False,
) -> RecordingPlan:
    """Make a run's folder and say what is to be recorded in it.

    Parameters
    ----------
    interpreter : Interpreter, optional
        The Python that was chosen for a script, which is the command's second word.
    run_root : Path or str, optional
        Folder or URL of runs; see ``store.run_root``.
    name : str
        Part of the run's id; by default the script's name.
    attached : int, optional
        Watch this process instead of starting ``command``.
    limit_s : float
        Longest recording after the first step. [s]
    limit_steps : int, optional
        Record exactly so many steps.
    continue_run : bool
        Let the script go on without hooks instead of stopping it.
    is_precise : bool
        Go on until the step time's interval is within 2 %.
    measure_host : bool
        Run the host's micro-benchmarks first, unless they are in the cache.
    progress_s : float
        Between progress lines on stderr; 0 for none. [s]
    patience_s : float
        Between asking the script to stop, SIGTERM and SIGKILL. [s]
    summary : {"none", "text", "json"}
        What the agent prints at the end: text on stderr, or JSON on stdout.
    workers : int
        Run the command as so many ranks on this machine; see ``local_ranks``.
    bandwidth_bit_per_s : float, optional
        Limit each rank's link, each way; needs root. [bit/s]
    reader : {"proc", "psutil"}, optional
        How processes are read; by default through ``/proc`` where this is Linux.
    working_set : bool
        Record how much memory is touched, too; see ``touched``.

    Raises
    ------
    RecordingError
        If this is Windows, the run's folder cannot be made, or a link cannot be limited.
    """
    if not _IS_POSIX:
        raise RecordingError(
            "recording needs Linux or macOS: signals and files work differently here",
            hint="record in the Windows Subsystem for Linux; everything else works here",
        )
    if working_set and sys.platform != "linux":
        raise RecordingError(
            "only Linux says which memory is touched", hint="leave --working-set out"
        )
    local_ranks.check(command, workers, bandwidth_bit_per_s)
    upkeep.clean(run_root)
    folder = new_run(name or _name_of(command) or f"pid-{attached}", run_root)
    measured = benchmark.cached_or_measured() if measure_host else benchmark.cached()
    options: dict[str, Any] = {
        "given": {k: v for k, v in asdict(given or GivenWork()).items() if v is not None}
    }
    if interpreter is not None:
        options["interpreter"] = asdict(interpreter)
    if workers > 1:
        options.update(workers=workers, bandwidth_bit_per_s=bandwidth_bit_per_s)
    if is_precise:
        options["half_width_fraction"] = PRECISE_FRACTION
    return RecordingPlan(
        run=str(folder),
        command=tuple(command),
        attached=attached,
        limit_s=limit_s,
        limit_steps=limit_steps,
        interval_s=interval_s,
        continues=continue_run,
        options=options,
        host=asdict(host.describe(benchmark=measured, sheets=device_sheet.cached())),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        progress_s=progress_s,
        patience_s=patience_s,
        summary=summary,
        workers=workers,
        bandwidth_bit_per_s=bandwidth_bit_per_s,
        reader=reader or ("proc" if sys.platform == "linux" else "psutil"),
        working_set=working_set,
    )


def profile(
    command: Sequence[str],
    *,
    on_progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Recording:
    """Record a command and return the recording.

    Parameters
    ----------
    on_progress : callable, optional
        Called with a line of text every few seconds.
    **settings
        As for ``plan``.
    """
    wanted = plan(command, **settings)
    run(wanted, on_progress=on_progress)
    share(Path(wanted.run), settings.get("run_root"))
    return read_recording(Path(wanted.run))


def share(run: Path, run_root: Root | None = None) -> None:
    """Copy a run to where the team's runs are, if that is a URL."""
    place = store.run_root() if run_root is None else run_root
    if remote.is_url(place):
        remote.push(run, str(place))


def run(wanted: RecordingPlan, *, on_progress: Callable[[str], None] | None = None) -> int:
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
