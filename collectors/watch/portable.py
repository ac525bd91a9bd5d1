"""The recorded processes as psutil shows them: where there is no ``/proc`` (macOS, Windows).

Portable and dear: on Linux ``processes`` reads the same figures with a fraction of the time (see
``lab/notes/collectors.md``), so this is not used there. What other systems do not tell
stays zero or unknown: the wait for a core, throttling, pressure, proportional memory; disk bytes
and page faults where psutil has them; descendants that have left the tree are lost.
"""

from __future__ import annotations

import os

import psutil

from advisor.collectors.watch.processes import OneProcess, Processes

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


class PortableProcess(OneProcess):
    """One living process, by psutil; ticks are hundredths of a second.

    Raises psutil.Error if there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        super().__init__(pid, int(self._process.create_time() * 100))

    def pss_bytes(self) -> int | None:
        """Return proportional memory; None where the system does not tell. [bytes]."""
        try:
            pss: int | None = getattr(self._process.memory_full_info(), "pss", None)
        except psutil.Error:
            return None
        return pss

    def read(self, *, is_full: bool) -> bool:
        """Read what the process has used; see ``OneProcess``."""
        process, usage = self._process, self.usage
        try:
            with process.oneshot():
                # A used-again number is another process; psutil compares the times of creation.
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    return False
                memory, times = process.memory_info(), process.cpu_times()
                usage.cpu_ns = int((times.user + times.system) * 1e9)
                usage.rss_bytes = memory.rss
                self.shared_bytes = getattr(memory, "shared", 0)
                if is_full:
                    self._read_seldom(memory)
        except _GONE:
            return False
        except psutil.AccessDenied:
            pass
        return True

    def _read_seldom(self, memory: object) -> None:
        usage = self.usage
        # macOS: all faults, and those that read a page; Windows: all faults.
        usage.major_faults = getattr(memory, "pageins", 0)
        faults = getattr(memory, "pfaults", getattr(memory, "num_page_faults", 0))
        usage.minor_faults = max(0, faults - usage.major_faults)
        if hasattr(self._process, "io_counters"):  # not on macOS
            counters = self._process.io_counters()
            usage.read_bytes, usage.write_bytes = counters.read_bytes, counters.write_bytes

    def close(self) -> None:
        """Let go of the process: nothing is held of it."""


class PortableTree(Processes):
    """All descendants of this process, or an attached process and its descendants.

    ``attached``: the pid to attach to; None follows this process's own children.
    """

    def __init__(self, attached: int | None = None) -> None:
        super().__init__()
        self._attached = attached
        self._root = os.getpid() if attached is None else attached

    def refresh(self) -> bool:
        """Look for new processes; returns whether there were any."""
        pids = set() if self._attached is None else {self._attached}
        # Whoever is known keeps his descendants in the tree when those above him are gone.
        for root in (self._root, *self.processes):
            if root not in pids or root == self._root:
                pids |= _descendants(root)
        found = False
        for pid in pids - self.processes.keys():
            try:
                self.processes[pid] = PortableProcess(pid)
            except psutil.Error:
                continue
            found = True
        return found


def _descendants(pid: int) -> set[int]:
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()
