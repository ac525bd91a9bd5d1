"""The machine: what it is, and what a process may use of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from advisor.collectors.format import Host, HostBenchmark, Sheet

# Larger than any file read here; the kernel makes the content up to this size at once.
_SIZE = 1 << 14


class KeptFile:
    """Reads a small file under ``/proc`` or ``/sys`` again and again, through one descriptor.

    A file that is not there reads as empty, always.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str | Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self) -> bytes:
        """Return the content now; empty if it cannot be read any more."""
        if self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, _SIZE, 0)
        except OSError:
            return b""

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# Version 1 writes "no limit" as the largest multiple of the page size below 2**63.
_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The control groups of one process: cores and memory they allow, the time they took away.

    Inside a container the machine's own figures are not what a process may use; every group from
    the process's own up to the root can limit it, the tightest counts.
    """

    # cpu, memory: folders from the process's own group up to the root of what is mounted; version
    # 1 has them in different hierarchies
    cpu: tuple[Path, ...] = ()
    memory: tuple[Path, ...] = ()
    version: int = 0  # 1 or 2; 0 where there are no control groups
    _stat: list[KeptFile] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, pid: int | str = "self", *, proc: Path = Path("/proc")) -> Groups:
        """Find the groups of a process through ``/proc/PID/cgroup`` and ``mountinfo``."""
        try:
            memberships = (proc / str(pid) / "cgroup").read_text().splitlines()
            mounts = list(_mounts((proc / str(pid) / "mountinfo").read_text()))
        except OSError:
            return cls()
        path_of = {}
        for line in memberships:
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            for controller in controllers.split(",") if controllers else [""]:
                path_of[controller] = path
        cpu = _folders(path_of.get("cpu"), "cpu", mounts)
        memory = _folders(path_of.get("memory"), "memory", mounts)
        unified = _folders(path_of.get(""), None, mounts)
        if cpu or memory:
            return cls(cpu=cpu, memory=memory, version=1)
        return cls(cpu=unified, memory=unified, version=2) if unified else cls()

    def cores(self) -> float | None:
        """Return the CPU quota, or None [cores]."""
        quotas = [_quota(folder, self.version) for folder in self.cpu]
        return min((quota for quota in quotas if quota is not None), default=None)

    def memory_bytes(self) -> int | None:
        """Return the memory limit, or None [bytes]."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        limits = [_integer(folder / name) for folder in self.memory]
        return min((one for one in limits if one and one < _NO_LIMIT_BYTES), default=None)

    def throttled_ns(self) -> int:
        """Return how long the groups with a quota were kept from running by it [ns]."""
        if not self._stat:
            limited = [one for one in self.cpu if _quota(one, self.version) is not None]
            for folder in limited or self.cpu[:1]:
                self._stat.append(KeptFile(folder / "cpu.stat"))
        return sum(throttled_ns(stat.read()) for stat in self._stat)


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, set[str] | None]]:
    """Yield (root in the hierarchy, mount point, controllers or None for version 2)."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if kind and kind[0] == "cgroup":
            yield fields[3], fields[4], set(kind[2].split(","))
        elif kind and kind[0] == "cgroup2":
            yield fields[3], fields[4], None


def _folders(
    path: str | None, controller: str | None, mounts: list[tuple[str, str, set[str] | None]]
) -> tuple[Path, ...]:
    """Return the group's folder and its parents, as far as they are mounted."""
    if path is None:
        return ()
    for root, point, controllers in mounts:
        if controller not in (controllers if controllers is not None else {None}):
            continue
        # A container sees its own group mounted as the root, or not at all below it.
        inner = os.path.relpath(path, root) if path.startswith(root) else "."
        folder = Path(os.path.normpath(os.path.join(point, inner)))
        if not folder.is_dir():
            folder = Path(point)
        found = [folder]
        while found[-1] != Path(point) and len(found) < 64:
            found.append(found[-1].parent)
        return tuple(found)
    return ()


def throttled_ns(stat: bytes) -> int:
    """Return the throttled time in a ``cpu.stat``; version 2 counts in us, version 1 in ns."""
    for line in stat.splitlines():
        name, _, value = line.partition(b" ")
        if name == b"throttled_usec":
            return int(value) * 1000
        if name == b"throttled_time":
            return int(value)
    return 0


def _quota(folder: Path, version: int) -> float | None:
    if version == 2:
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            return None
        return None if quota == "max" else int(quota) / int(period)
    quota_us = _integer(folder / "cpu.cfs_quota_us")
    period_us = _integer(folder / "cpu.cfs_period_us")
    if quota_us is None or quota_us <= 0 or not period_us:
        return None
    return quota_us / period_us


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def describe_host(
    *, benchmark: HostBenchmark | None = None, sheets: tuple[Sheet, ...] = ()
) -> Host:
    """Return this machine's description; a recording puts its script's versions in place."""
    groups = Groups.of()
    logical = os.cpu_count() or 1
    memory = memory_bytes()
    limit = groups.memory_bytes()
    return Host(
        cpu_model=cpu_model(),
        logical_cpus=logical,
        physical_cpus=_physical_cpus(),
        cpu_limit=min(float(usable_cpus()), groups.cores() or float(logical)),
        memory_bytes=memory,
        memory_limit_bytes=min(memory, limit) if limit else memory,
        gpus=(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python_version=platform.python_version(),
        torch_version=None,
        benchmark=benchmark,
        sheets=sheets,
    )


def usable_cpus() -> int:
    """Return the processors that this process may be scheduled on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def cpu_model() -> str:
    """Return the processor's name."""
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _physical_cpus() -> int | None:
    """Return the cores behind the logical processors, or None where the kernel does not say."""
    cores = set()
    package = ""
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "physical id":
            package = value.strip()
        elif name.strip() == "core id":
            cores.add((package, value.strip()))
    return len(cores) or None


def memory_bytes() -> int:
    """Return the machine's main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
