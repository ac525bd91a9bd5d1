"""The four series of a run, seen from outside: CPU, memory, network in, network out.

CPU is the process's own clock (nanoseconds, all threads), memory its resident set, network the
counters of its own namespace. Rates are differences over the time that really passed.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from advisor.collectors import network
from advisor.collectors.procfs import KeptFile
from advisor.collectors.sampler import busy_ns, pressure_fraction, stolen_ns

MIB: Final = 2**20
_PAGE: Final = resource.getpagesize()


def cpu_clock_s(pid: int) -> float:
    """Return the CPU time of all threads of a live process [s].

    The clock's number is the kernel's own coding of a process: see ``clock_getcpuclockid(3)``.
    """
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


@dataclass(slots=True, kw_only=True)
class ReadingSeries:
    """Readings of one process; equal lengths, rates since the reading before.

    ``received`` and ``sent`` stay empty where the process has no namespace of its own.
    """

    t_s: list[float] = field(default_factory=list)
    cpu_cores: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    received_bytes_per_s: list[float] = field(default_factory=list)
    sent_bytes_per_s: list[float] = field(default_factory=list)


class ProcessSampler:
    """Readings of one process of a run.

    Parameters
    ----------
    has_network : bool
        The process has a network namespace of its own to read.
    """

    def __init__(self, pid: int, *, has_network: bool) -> None:
        self.pid = pid
        self.has_network = has_network
        self.series = ReadingSeries()
        self.peak_memory_mib = 0.0
        self._began: float | None = None
        self._last: tuple[float, float, int, int] | None = None

    def read(self) -> None:
        """Take a reading; a process that is gone gives none."""
        try:
            now = time.monotonic()
            cpu_s = cpu_clock_s(self.pid)
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            received, sent = network.counters(self.pid) if self.has_network else (0, 0)
        except (OSError, IndexError):
            return
        if pages == 0:
            return  # it is exiting: its memory is gone already, its clock not yet
        memory_mib = pages * _PAGE / MIB
        self.peak_memory_mib = max(self.peak_memory_mib, memory_mib)
        if self._last is not None and self._began is not None and now > self._last[0]:
            before, cpu_before_s, received_before, sent_before = self._last
            passed_s = now - before
            self.series.t_s.append(round(now - self._began, 3))
            self.series.cpu_cores.append(round((cpu_s - cpu_before_s) / passed_s, 3))
            self.series.memory_mib.append(round(memory_mib, 1))
            if self.has_network:
                inward, outward = received - received_before, sent - sent_before
                self.series.received_bytes_per_s.append(round(inward / passed_s))
                self.series.sent_bytes_per_s.append(round(outward / passed_s))
        self._began = now if self._began is None else self._began
        self._last = (now, cpu_s, received, sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineClock:
    """The whole machine's CPU counters at one moment [s, summed over cores]."""

    at_s: float
    busy_s: float
    steal_s: float

    @classmethod
    def now(cls) -> MachineClock:
        """Read ``/proc/stat``."""
        stat = Path("/proc/stat").read_bytes()
        busy_s, steal_s = busy_ns(stat) / 1e9, stolen_ns(stat) / 1e9
        return cls(at_s=time.monotonic(), busy_s=busy_s, steal_s=steal_s)


def is_calm(looks: int = 5, pause_s: float = 0.01) -> bool:
    """Return whether at most one other process wants a core: the median of a few looks."""
    wanting = []
    for _ in range(looks):
        time.sleep(pause_s)
        lines = Path("/proc/stat").read_text().splitlines()
        wanting.append(next(int(v.split()[1]) for v in lines if v.startswith("procs_running")))
    return sorted(wanting)[looks // 2] <= 2  # this process is one of them


def pressure() -> float | None:
    """Return the share of the last 10 s in which somebody waited for a core, where known."""
    share = pressure_fraction(KeptFile("/proc/pressure/cpu").read())
    return None if share < 0 else share
