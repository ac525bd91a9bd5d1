"""The recorded command as a child process, or as ranks: planned, started, reaped, explained."""

from __future__ import annotations

import errno
import functools
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from advisor.collectors.errors import RecordingError
from advisor.collectors.format import noun
from advisor.collectors.hooks import lineage
from advisor.collectors.hooks.format import REHEARSAL, WRAP_VARIABLE
from advisor.collectors.watch import INTERFACE, Nodes, can_make_nodes, cluster_of_namespaces

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


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone or somebody else's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """One recording to make; the fields are the settings of ``plan_recording``.

    It travels from the caller to the profiler's own process as JSON, through a file in memory that
    has no name: an argument could be read by every user of the machine, and is limited to 128 KiB.
    """

    run: str
    command: tuple[str, ...]
    attached: int | None = None  # a process that is watched: no command is started
    limit_s: float = 120.0  # from the first step; from the start where no step can come
    limit_steps: int | None = None  # exactly so many
    interval_s: float = 0.2
    continues: bool = False  # the script goes on without hooks, instead of being stopped
    # options, host: kept in the recording: what was asked for, and the machine
    options: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    progress_s: float = 0.0  # between progress lines on stderr; 0 for none
    progress_fd: int = -1  # where progress goes as JSON lines, -1 for nowhere
    patience_s: float = 5.0  # between asking the script to stop, SIGTERM and SIGKILL
    summary: Literal["none", "text", "json"] = "none"  # text on stderr, JSON on stdout
    # workers, bandwidth_bit_per_s: as how many ranks the command is run on this machine, and what
    # each one's link is limited to, each way, which needs root
    workers: int = 1
    bandwidth_bit_per_s: float | None = None
    reader: Literal["proc", "psutil"] = "proc"  # how processes are read
    working_set: bool = False  # how much memory is touched, too; see ``TouchedMemory``
    rehearsal: dict[str, Any] = field(default_factory=dict)  # see ``REHEARSAL``
    # the notebook whose code is the command's second word, in a folder that goes at the end; or ""
    notebook: str = ""

    def open_copy(self) -> int:
        """Return a descriptor, inherited by whoever is executed, that ``from_file`` reads.

        Raises OSError if there is no memory for it.
        """
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("advisor-plan", 0)
        else:  # not on macOS
            import tempfile

            fd, path = tempfile.mkstemp(prefix="advisor-plan")
            os.unlink(path)
            os.set_inheritable(fd, True)
        try:
            rest = json.dumps(asdict(self)).encode()
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.lseek(fd, 0, os.SEEK_SET)
        except OSError:
            os.close(fd)
            raise
        return fd

    @classmethod
    def from_file(cls, fd: int) -> RecordingPlan:
        """Return the plan that ``open_copy`` left, and close it: the command does not get it."""
        with open(fd, encoding="utf-8") as file:
            return noun(cls, json.load(file))


MOST_RANKS: Final = 64
_PORTS_APART: Final = 29500, 29501  # torchrun's default; nobody else is in a new namespace
_LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun")
_LAUNCHER_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")


def check(plan: RecordingPlan) -> None:
    """Refuse what cannot be run as ranks on this machine.

    Raises RecordingError if the command starts ranks itself, or a link cannot be limited here.
    """
    command, workers = plan.command, plan.workers
    if workers < 2:
        if plan.bandwidth_bit_per_s is not None:
            raise RecordingError(
                "--bandwidth limits the links between ranks, and there is one process",
                hint="add --workers 2",
            )
        return
    if workers > MOST_RANKS:
        raise RecordingError(
            f"{workers:,} ranks on one machine are more than can be told apart",
            hint=f"--workers {MOST_RANKS} at most",
        )
    if not command:
        raise RecordingError(
            "--workers starts the ranks, --pid watches what runs already",
            hint="leave out one of them",
        )
    names = {Path(word).name for word in command[:1]} | set(command[1:3])
    for launcher in (*_LAUNCHERS, *_LAUNCHER_MODULES):
        if launcher in names:
            raise RecordingError(
                f"{launcher} starts its own ranks, --workers would start each of them "
                f"{workers} times",
                hint="leave out --workers, or profile the script itself: "
                f"advisor profile --workers {workers} train.py",
            )
    if plan.bandwidth_bit_per_s is not None and not can_make_nodes():
        raise RecordingError(
            "a link cannot be limited here: that takes root, network namespaces and "
            "the tools ip and tc (iproute2)",
            hint="leave out --bandwidth: the ranks then talk over loopback",
        )


def cores_of(workers: int, allowed: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the cores of each rank: equal shares, or all for all where there are too few.

    >>> cores_of(2, [0, 1, 2, 3, 4])
    [(0, 1), (2, 3)]
    >>> cores_of(3, [0, 1])
    [(0, 1), (0, 1), (0, 1)]
    """
    share = len(allowed) // workers
    if share == 0:
        return [tuple(allowed)] * workers
    return [tuple(allowed[share * rank : share * (rank + 1)]) for rank in range(workers)]


def rank_environment(
    rank: int, workers: int, *, address: str, ports: tuple[int, int], interface: str, threads: int
) -> dict[str, str]:
    """Return what ``torchrun`` sets for a rank, and the interface that gloo is to use.

    ``ports`` are the script's and the hooks' at rank 0; ``threads`` is how many a rank computes
    with where the user does not say.
    """
    found = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers,
        "GROUP_RANK": 0, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": workers, "NODE_RANK": 0,
        "MASTER_ADDR": address, "MASTER_PORT": ports[0],
        WRAP_VARIABLE: f"{workers} {ports[1]}",
    }  # fmt: skip
    kept = {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": interface}
    return {name: str(value) for name, value in found.items()} | {
        name: os.environ.get(name, str(value)) for name, value in kept.items()
    }


class Ranks(Child):
    """All ranks of one command, taken for one child: it ends with the last of them.

    Every rank is the command itself, with the environment that ``torchrun`` would give it. Without
    a bandwidth they talk over loopback; with one each has a network namespace of its own, joined
    by a bridge, and a link limited each way (``network``). Where there are enough cores each rank
    is pinned to its share of them; where there are not, they contend, and their steps are
    corrected for that (``derive.ranks``). A script that opens no process group of its own is
    wrapped: see ``hooks.wrapping``.

    Where a rank fails the others are ended, for they would wait for it. ``code`` is that of the
    first rank that failed, 0 where none did.
    """

    def __init__(self, plan: RecordingPlan, *, is_beside_others: bool = False) -> None:
        super().__init__(plan, is_beside_others=is_beside_others)
        self._running: dict[int, int] = {}  # pid -> rank
        self._failed: tuple[int, int] | None = None  # rank, code
        self._cleanup = ExitStack()
        self._nodes: Nodes | None = None

    def spawn(self) -> None:
        """Start every rank, each on its cores and in its network."""
        workers = self._plan.workers
        if self._plan.bandwidth_bit_per_s is not None:
            try:
                self._nodes = self._cleanup.enter_context(cluster_of_namespaces(workers))
                self._nodes.shape(self._plan.bandwidth_bit_per_s)
            except RecordingError as error:
                raise OSError(errno.EPERM, str(error)) from error
        allowed = sorted(os.sched_getaffinity(0))
        cores = cores_of(workers, allowed)
        address, ports, interface = _meeting_place(self._nodes)
        environment = self.environment()
        try:
            for rank in range(workers):
                mine = rank_environment(
                    rank, workers, address=address, ports=ports, interface=interface,
                    threads=max(1, len(allowed) // workers),
                )  # fmt: skip
                os.sched_setaffinity(0, cores[rank])  # what a child begins with
                pid = self._start_rank(rank, environment | mine)
                self._running[pid] = rank
                self.pid = self.pid or pid
        except OSError:
            self.signal(signal.SIGKILL)
            raise
        finally:
            os.sched_setaffinity(0, allowed)

    def _start_rank(self, rank: int, environment: dict[str, str]) -> int:
        # The first has the terminal's input, as under torchrun; the others read nothing.
        silent = [] if rank == 0 else [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        with ExitStack() as stack:
            if self._nodes is not None:
                stack.enter_context(self._nodes.inside(rank))
            return self.start(environment, file_actions=silent)

    @property
    def networks(self) -> list[Callable[[], AbstractContextManager[None]]]:
        """How to enter each rank's network namespace."""
        nodes = self._nodes
        if nodes is None:
            return []
        return [functools.partial(nodes.inside, rank) for rank in range(self._plan.workers)]

    def ended(self, pid: int, code: int) -> None:
        """Take note of a rank that has ended; with one that failed the others end."""
        rank = self._running.pop(pid, None)
        if rank is None:
            return
        if code != 0 and self._failed is None:
            self._failed = rank, code
            self.signal(signal.SIGTERM)
        if not self._running:
            self.code = 0 if self._failed is None else self._failed[1]

    def signal(self, number: int) -> None:
        """Pass a signal on to every rank that runs."""
        for pid in self._running:
            send_signal(pid, number)

    @property
    def ending(self) -> tuple[str, str]:
        """Status and reason of an end that nobody asked for."""
        status, reason = super().ending
        if self._failed is not None:
            reason = f"rank {self._failed[0]}: {reason}"
        return status, reason

    def close(self) -> None:
        """Remove the namespaces."""
        self._cleanup.close()


def _meeting_place(nodes: Nodes | None) -> tuple[str, tuple[int, int], str]:
    """Return where rank 0 listens, on which ports, and the interface that ranks talk over."""
    if nodes is not None:
        return nodes.address(0), _PORTS_APART, INTERFACE
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        return "127.0.0.1", (one.getsockname()[1], other.getsockname()[1]), "lo"


_WATCHED: Final = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SI_KERNEL: Final = 0x80  # a signal from the terminal: the whole foreground group has it already


class SignalWait:
    """The signals that end a recording, and that of a child that ended; one for the process.

    No signal interrupts anything but the sleep in ``wait``. Where the system has ``sigtimedwait``
    signals are blocked and waited for. macOS has not: there handlers that do nothing have a pipe
    written to, which is what is waited for.
    """

    def __init__(self) -> None:
        self._pipe = -1
        if hasattr(signal, "sigtimedwait"):
            signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
            return
        self._pipe, write = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_blocking(write, False)
        for number in _WATCHED:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait(self, pause_s: float) -> tuple[int, bool] | None:
        """Return the next signal, and whether the whole foreground group has it: a terminal's.

        None if none comes.
        """
        if self._pipe < 0:
            info = signal.sigtimedwait(_WATCHED, pause_s)
            # A debugger that attaches ends the wait with no signal.
            if info is None or not info.si_signo:
                return None
            return info.si_signo, info.si_code == _SI_KERNEL
        if not select.select([self._pipe], [], [], pause_s)[0]:
            return None
        (number,) = os.read(self._pipe, 1)
        # Who sent it is not told: an interrupt at a terminal is taken for the terminal's.
        return number, number == signal.SIGINT and os.isatty(0)
