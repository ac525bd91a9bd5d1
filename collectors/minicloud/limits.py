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
from pathlib import Path
from typing import Final

from advisor.collectors.cgroups import throttled_ns
from advisor.collectors.errors import RecordingError
from advisor.collectors.minicloud.instances import MiniInstance

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
        """Move the calling process into the group."""
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

    Raises
    ------
    RecordingError
        There is no CPU controller here.
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
