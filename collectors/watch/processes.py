"""The recorded processes as the kernel shows them: who belongs, and what each has used.

Every process is read through descriptors that are opened once: they stay bound to the process,
so a reused pid reads as an error, never as somebody else's figures. CPU time comes from the
process's own clock in ns (``/proc/PID/stat`` counts ticks of 10 ms).
"""

from __future__ import annotations

import mmap
import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from advisor.collectors.hooks.format import start_ticks
from advisor.collectors.hooks.lineage import stat_of
from advisor.collectors.watch.host import KeptFile

_PAGE_BYTES = mmap.PAGESIZE


@dataclass(slots=True)
class Usage:
    """What processes have used; counters since each began, resident memory now.

    ``slowest_ns`` is the waiting for a core of whoever waited most between two readings, summed.
    """

    processes: int = 0
    cpu_ns: int = 0
    run_delay_ns: int = 0
    rss_bytes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    major_faults: int = 0
    slowest_ns: int = 0
    minor_faults: int = 0

    def add(self, other: Usage) -> None:
        """Add another's figures to these; spelt out, for there is one a process and reading."""
        self.processes += other.processes
        self.cpu_ns += other.cpu_ns
        self.run_delay_ns += other.run_delay_ns
        self.rss_bytes += other.rss_bytes
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes
        self.major_faults += other.major_faults
        self.minor_faults += other.minor_faults


class OneProcess(ABC):
    """One living process, however it is read.

    Attributes
    ----------
    pid, start_ticks : int
        Together the identity: pids are used again.
    shared_bytes : int
        The part of the resident memory that is known to be shared (pages of files, shared
        memory), as last read; 0 where nobody tells.
    """

    __slots__ = ("pid", "shared_bytes", "start_ticks", "usage")

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.pid, self.start_ticks = pid, start_ticks
        self.shared_bytes = 0
        self.usage = Usage(processes=1)

    @property
    def rss_bytes(self) -> int:
        """Resident memory, as last read. [bytes]."""
        return self.usage.rss_bytes

    @abstractmethod
    def pss_bytes(self) -> int | None:
        """Return proportional memory; None where it is not known. [bytes]."""

    @abstractmethod
    def read(self, *, is_full: bool) -> bool:
        """Read what the process has used; False once it is gone.

        Disk and page faults, which take longer, only in a full reading. Figures that are somebody
        else's to read stay zero.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class Process(OneProcess):
    """One living process, by ``/proc``."""

    __slots__ = ("_clock", "_io", "_rollup", "_schedstat", "_stat", "_statm")

    def __init__(self, pid: int, proc: Path) -> None:
        super().__init__(pid, start_ticks(pid))
        folder = f"{proc}/{pid}"
        # Process CPU clocks are numbered by the complement of the pid, see clock_getcpuclockid(3).
        self._clock = (~pid << 3) | 2
        self._statm = os.open(f"{folder}/statm", os.O_RDONLY | os.O_CLOEXEC)
        # The others may be missing, or somebody else's: then their figures stay zero.
        self._stat = _open(f"{folder}/stat")
        self._io = _open(f"{folder}/io")
        self._schedstat = _open(f"{folder}/schedstat")
        self._rollup = f"{folder}/smaps_rollup"

    def pss_bytes(self) -> int | None:
        """Return proportional memory; walks the page tables. None if it may not. [bytes]."""
        fd = _open(self._rollup)
        if fd < 0:
            return None
        try:
            return int(os.read(fd, 4096).partition(b"\nPss:")[2].split(None, 1)[0]) * 1024
        except (OSError, IndexError, ValueError):
            return None
        finally:
            os.close(fd)

    def read(self, *, is_full: bool) -> bool:
        """Read what the process has used; see ``OneProcess``."""
        usage = self.usage
        try:
            _, pages, shared, _ = os.pread(self._statm, 64, 0).split(None, 3)
            resident = int(pages)
            if resident == 0:  # a zombie
                return False
            self.shared_bytes = int(shared) * _PAGE_BYTES
            usage.cpu_ns = time.clock_gettime_ns(self._clock)
            usage.rss_bytes = resident * _PAGE_BYTES
            if self._schedstat >= 0:
                usage.run_delay_ns = int(os.pread(self._schedstat, 64, 0).split(None, 2)[1])
            if is_full and self._stat >= 0:
                fields = os.pread(self._stat, 512, 0).rpartition(b")")[2].split(None, 11)
                usage.minor_faults, usage.major_faults = int(fields[7]), int(fields[9])
            if is_full and self._io >= 0:
                lines = os.pread(self._io, 512, 0).split(b"\n")
                usage.read_bytes = int(lines[4].partition(b" ")[2])
                usage.write_bytes = int(lines[5].partition(b" ")[2])
        except (OSError, IndexError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Let go of the descriptors."""
        for fd in (self._statm, self._stat, self._io, self._schedstat):
            if fd >= 0:
                os.close(fd)


class Processes(ABC):
    """Processes that are followed together."""

    def __init__(self) -> None:
        self.processes: dict[int, OneProcess] = {}
        self._gone = Usage()
        self._slowest_ns = 0

    @abstractmethod
    def refresh(self) -> bool:
        """Look for new processes; returns whether there was reason to."""

    def read(self, *, is_full: bool = True) -> Usage:
        """Return the figures of all processes, those that are gone included."""
        total = Usage()
        slowest = 0
        for pid, process in list(self.processes.items()):
            before = process.usage.run_delay_ns
            if process.read(is_full=is_full):
                total.add(process.usage)
                slowest = max(slowest, process.usage.run_delay_ns - before)
            else:
                self._bury(pid)
        total.add(self._gone)
        self._slowest_ns += slowest
        total.slowest_ns = self._slowest_ns
        return total

    def is_alive(self, pid: int) -> bool:
        """Whether a known process still runs."""
        return pid in self.processes and self.processes[pid].read(is_full=False)

    def _bury(self, pid: int) -> None:
        process = self.processes.pop(pid)
        process.close()
        process.usage.processes = process.usage.rss_bytes = 0
        self._gone.add(process.usage)

    def close(self) -> None:
        """Let go of all processes."""
        for process in self.processes.values():
            process.close()


class ProcessTree(Processes):
    """All descendants of this process, or an attached process and its descendants.

    ``attached``: the pid to attach to; None follows this process's own children, among them every
    orphan if this process is a subreaper.
    """

    def __init__(self, attached: int | None = None, *, proc: Path = Path("/proc")) -> None:
        super().__init__()
        self._attached = attached
        self._proc = proc
        # Some kernels are built without these files (CONFIG_PROC_CHILDREN).
        self._lists_children = os.path.exists(f"{proc}/{os.getpid()}/task/{os.getpid()}/children")
        self._last_pid = b""
        self._loadavg = KeptFile(proc / "loadavg")

    def refresh(self) -> bool:
        """Look for new processes; returns whether there was reason to.

        The last field of ``loadavg`` is the pid given out last: while it stands still, nobody
        was born, which one small read tells instead of a walk.
        """
        last_pid = self._loadavg.read().rpartition(b" ")[2]
        if last_pid and last_pid == self._last_pid:
            return False
        self._last_pid = last_pid
        known = {} if self._lists_children else self._families()
        pending = list(self.processes)
        if self._attached is not None:
            pending.append(self._attached)
        else:
            pending += known.get(os.getpid(), []) or self._children(os.getpid())
        visited: set[int] = set()
        while pending:
            pid = pending.pop()
            if pid in visited:
                continue
            visited.add(pid)
            if pid not in self.processes:
                try:
                    self.processes[pid] = Process(pid, self._proc)
                except OSError:
                    continue
            pending += known.get(pid, []) or self._children(pid)
        return True

    def _families(self) -> dict[int, list[int]]:
        """Return all children by parent, from every process's own word: dear, but everywhere."""
        found: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if name.isdigit():
                found.setdefault(stat_of(int(name), 1, str(self._proc)), []).append(int(name))
        return found

    def _children(self, pid: int) -> list[int]:
        """Return the children of all threads: those of other threads than the first count too."""
        found: list[int] = []
        try:
            threads = os.listdir(f"{self._proc}/{pid}/task")
        except OSError:
            return found
        for thread in threads:
            try:
                fd = os.open(f"{self._proc}/{pid}/task/{thread}/children", os.O_RDONLY)
            except OSError:
                continue
            try:
                found += [int(child) for child in os.read(fd, 1 << 16).split()]
            except OSError:
                continue
            finally:
                os.close(fd)
        return found

    def close(self) -> None:
        """Let go of all descriptors."""
        super().close()
        self._loadavg.close()


def is_python(pid: int) -> bool:
    """Whether a process runs a Python interpreter, by the name of its executable."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
