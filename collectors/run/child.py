"""The recorded command as a child process: started, signalled, reaped, its end explained."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

from advisor.collectors.hooks import lineage
from advisor.collectors.hooks.format import REHEARSAL
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.run.signals import send_signal

_INJECT: Final = Path(lineage.__file__).parents[1] / "inject"
# Python ignores these in itself; a child is to find them as the shell would leave them.
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_RU_MAXRSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
_PR_SET_CHILD_SUBREAPER: Final = 36
# OpenMP's threads (GNU's, which torch comes with) burn a core while they wait for each other at
# the end of a parallel region. Beside two burning processes a step then took up to 60 times as
# long, and no correction finds out how much of that was waiting. Threads that sleep at once are
# seen to be blocked, and idle ones wait for no core. A quiet machine is left as it is.
_SPINS: Final = "GOMP_SPINCOUNT"
_SHORT_SPIN: Final = "0"
_SPINNING: Final = frozenset({_SPINS, "OMP_WAIT_POLICY"})  # the user's own choice stands
NOT_STARTED: Final = 126  # a shell's exit code for a command that is there and cannot run


class Child:
    """The command of a plan, or an attached process that belongs to somebody else.

    ``is_beside_others``: others compute on this machine already: threads are told to sleep sooner;
    False by default.

    Attributes
    ----------
    code : int or None
        Exit code, or the negative number of the signal that killed it; None while it runs.
    cpu_ns : int
        CPU time of all processes reaped, and of those that they reaped.
    """

    def __init__(self, plan: RecordingPlan, *, is_beside_others: bool = False) -> None:
        self._plan = plan
        self.pid = plan.attached or 0
        self.is_beside_others = is_beside_others
        self.code: int | None = None
        self.max_rss_bytes = 0
        self.cpu_ns = 0

    def spawn(self) -> None:
        """Start the command with the hooks' folder first on ``PYTHONPATH``."""
        self.pid = self.start(self.environment())

    def environment(self) -> dict[str, str]:
        """Return the environment in which the hooks come up."""
        environment = dict(os.environ)
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        others = [path for path in paths if path and path != str(_INJECT)]
        environment["PYTHONPATH"] = os.pathsep.join([str(_INJECT), *others])
        environment.pop(lineage.TRAINER, None)  # of a recording in which this one is made
        if self.is_beside_others and not _SPINNING & environment.keys():
            environment[_SPINS] = _SHORT_SPIN
        environment.pop(REHEARSAL, None)
        if self._plan.rehearsal and self._plan.workers == 1:
            environment[REHEARSAL] = json.dumps(self._plan.rehearsal)
        environment[lineage.RUN] = self._plan.run
        environment[lineage.PROFILER] = lineage.this_profiler()
        return environment

    def start(self, environment: dict[str, str], **options: Any) -> int:
        """Start the command as a shell would, and return its process's id."""
        command = list(self._plan.command)
        return os.posix_spawnp(
            command[0], command, environment, setsigmask=(), setsigdef=_RESTORED, **options
        )

    def reap(self) -> None:
        """Collect every descendant that has ended; orphans too, whom a subreaper inherits."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.max_rss_bytes = max(self.max_rss_bytes, usage.ru_maxrss * _RU_MAXRSS_BYTES)
            self.cpu_ns += int((usage.ru_utime + usage.ru_stime) * 1e9)
            self.ended(pid, os.waitstatus_to_exitcode(status))

    def ended(self, pid: int, code: int) -> None:
        """Take note of a descendant that has ended."""
        if pid == self.pid:
            self.code = code

    @property
    def networks(self) -> list[Callable[[], AbstractContextManager[None]]]:
        """How to enter the network namespaces that the command runs in, beside our own."""
        return []

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        send_signal(self.pid, number)

    def close(self) -> None:
        """Let go of what was made for the command."""

    @property
    def shell_code(self) -> int | None:
        """Exit code as shells give it: 128 + N for a signal N."""
        return self.code if self.code is None or self.code >= 0 else 128 - self.code

    @property
    def ending(self) -> tuple[str, str]:
        """Status and reason of an end that nobody asked for."""
        if self.code is None:
            return "finished", "the process ended"
        if self.code < 0:
            return "killed", f"killed by {signal.Signals(-self.code).name}"
        if self.code > 0:
            return "failed", f"the command ended with exit code {self.code}"
        return "finished", "the command ended"


def accepts_hooks(pid: int) -> bool:
    """Whether a Python process was started such that the hooks can come up in it.

    That is told by its environment and the interpreter's options, however long its start takes;
    True where they cannot be read.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:]
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return True
    if not words:  # ending
        return True
    paths = [entry for entry in environment if entry.startswith(b"PYTHONPATH=")]
    if not any(os.fsencode(_INJECT) in path for path in paths):
        return False
    for word in words:
        if not word.startswith(b"-") or word.startswith((b"--", b"-c", b"-m")):
            return True
        if not word.startswith((b"-W", b"-X")) and set(word) & set(b"IES"):
            return False
    return True


def allow_more_files() -> None:
    """Raise the limit on open files as far as it goes: a watched process takes four."""
    import resource

    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process instead of init's."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
