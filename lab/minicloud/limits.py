"""Limits that make a process an "instance": pinned cores, a CPU quota, a limit on its memory.

The quota is the kernel's CFS bandwidth control. Its period here is 50 ms, not the usual 100, so
that a step of some milliseconds rather sees a slower machine than a stopped one; shorter periods
cost the small jobs their caches (at 20 ms an MLP's step took 1.2 times the CPU time of 100 ms).
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from advisor.collectors.errors import RecordingError
from advisor.collectors.watch import network
from advisor.collectors.watch.host import KeptFile, throttled_ns
from advisor.collectors.watch.sampler import busy_ns, pressure_fraction, stolen_ns
from advisor.lab.minicloud.plan import MiniInstance

PERIOD_S: Final = 0.05
_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")


class CpuGroup:
    """A cgroup with a CPU quota; version 1 or 2 by the files it has."""

    def __init__(self, path: Path, quota: float | None) -> None:
        self.path = path
        if quota is not None:
            self.set_quota(quota)

    def set_quota(self, cores: float, *, period_s: float = PERIOD_S) -> None:
        """Grant so many cores from the next period on."""
        period_us = round(period_s * 1e6)
        quota_us = max(1000, round(cores * period_us))  # the kernel's least
        if (self.path / "cpu.cfs_quota_us").exists():
            (self.path / "cpu.cfs_period_us").write_text(str(period_us))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.path / "cpu.max").write_text(f"{quota_us} {period_us}")

    def join(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def outrank_others(self) -> None:
        """Let it run before other groups: for measurements beside neighbours."""
        is_v1 = (self.path / "cpu.shares").exists()
        (self.path / ("cpu.shares" if is_v1 else "cpu.weight")).write_text(
            "262144" if is_v1 else "10000"
        )

    def throttled_periods(self) -> int:
        """Return in how many periods the quota was used up so far."""
        lines = (self.path / "cpu.stat").read_text().splitlines()
        return int(dict(line.split() for line in lines).get("nr_throttled", 0))

    def throttled_s(self) -> float:
        """Return how long the quota has held it back so far, summed over cores [s]."""
        return throttled_ns((self.path / "cpu.stat").read_bytes()) / 1e9


def can_limit_cpu() -> bool:
    """Return whether this process may make cgroups with a CPU quota."""
    try:
        with cpu_group("probe", quota=0.5):
            return True
    except (OSError, RecordingError):
        return False


@contextlib.contextmanager
def cpu_group(name: str, *, quota: float | None) -> Iterator[CpuGroup]:
    """Make a CPU cgroup for the length of a block.

    Raises RecordingError: there is no CPU controller here.
    """
    home = _home()
    for stale in home.glob("advisor-*-*"):  # of a collector that was killed
        if not Path(f"/proc/{stale.name.split('-')[1]}").exists():
            with contextlib.suppress(OSError):
                stale.rmdir()
    path = home / f"advisor-{os.getpid()}-{name}"
    path.mkdir()
    try:
        yield CpuGroup(path, quota)
    finally:
        _remove(path)


def _home() -> Path:
    if (_V1 / "cpu.cfs_quota_us").exists() or (_V1 / "cpu.shares").exists():
        return _V1
    controllers = _V2 / "cgroup.controllers"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        with contextlib.suppress(OSError):  # on already, or refused: mkdir will tell
            (_V2 / "cgroup.subtree_control").write_text("+cpu")
        return _V2
    raise RecordingError("no CPU cgroup controller is mounted", hint="run as root on Linux")


def _remove(path: Path, patience_s: float = 2.0) -> None:
    """Remove the group, waiting for the kernel to bury what died in it."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def apply(instance: MiniInstance, cores: tuple[int, ...]) -> None:
    """Pin the calling process and limit its memory as the instance type says."""
    os.sched_setaffinity(0, cores)
    if instance.memory_headroom_bytes is not None:
        limit = data_bytes() + instance.memory_headroom_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def data_bytes() -> int:
    """Return the calling process's private writable memory, what RLIMIT_DATA counts [bytes]."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RecordingError("/proc/self/status has no VmData", hint="this needs Linux")


def quota_s(cpu_s: float, granted_cores: float) -> float:
    """Return the least wall time in which a quota grants so much CPU time [s].

    Every period grants ``granted_cores x PERIOD_S``, usable at once, at one core for
    each granted core begun; a process with all its CPU time at the front of each period waits
    out the rest of it, except in the last.
    """
    grant_s = granted_cores * PERIOD_S
    whole = max(0, math.ceil(cpu_s / grant_s - 1e-9) - 1)  # the last grant is used at once
    rest_s = cpu_s - whole * grant_s
    return whole * PERIOD_S + rest_s / max(1, math.ceil(granted_cores))


# The four series of a run, seen from outside: CPU, memory, network in, network out.
#
# CPU is the process's own clock (nanoseconds, all threads), memory its resident set, network the
# counters of its own namespace. Rates are differences over the time that really passed.


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

    ``has_network``: the process has a network namespace of its own to read.
    """

    def __init__(self, pid: int, *, has_network: bool) -> None:
        self.pid = pid
        self.has_network = has_network
        self.series = ReadingSeries()
        self.peak_memory_mib = 0.0
        self._began: float | None = None
        self._last: tuple[float, float, int, int] | None = None

    def read(self) -> None:
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
