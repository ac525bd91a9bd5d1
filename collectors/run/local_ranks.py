"""Several ranks of one command on this machine: a small cluster that is recorded as one run."""

from __future__ import annotations

import errno
import functools
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

from advisor.collectors.errors import RecordingError
from advisor.collectors.hooks.format import WRAP_VARIABLE
from advisor.collectors.run.child import Child
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.run.signals import send_signal
from advisor.collectors.watch import INTERFACE, Nodes, can_make_nodes, cluster_of_namespaces

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
