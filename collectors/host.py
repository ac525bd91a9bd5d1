"""The machine: what it is, and what a process may use of it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from advisor.collectors.cgroups import Groups
from advisor.collectors.recording import DeviceSheet, Host, HostBenchmark


def describe(
    *,
    python_version: str = "",
    torch_version: str | None = None,
    gpus: tuple[str, ...] = (),
    benchmark: HostBenchmark | None = None,
    sheets: tuple[DeviceSheet, ...] = (),
) -> Host:
    """Return this machine's description.

    Parameters
    ----------
    python_version, torch_version
        The recorded script's; by default this interpreter's, and unknown.
    """
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
        gpus=gpus,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python_version=python_version or platform.python_version(),
        torch_version=torch_version,
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
