"""What can be recorded on this machine, tried rather than assumed."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from advisor.collectors.cgroups import Groups
from advisor.collectors.gpu import Gpus
from advisor.collectors.network import can_make_nodes
from advisor.collectors.recording import Host
from advisor.collectors.sockets import TcpCounters
from advisor.collectors.units import bytes_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing that can be recorded here, or not, and what that means."""

    what: str
    is_there: bool
    remark: str


def abilities() -> tuple[Ability, ...]:
    """Return what can be recorded here."""
    groups, gpus = Groups.of(), Gpus().names
    return (
        Ability(
            what="process tree",
            is_there=Path("/proc/self/task").is_dir(),
            remark="/proc; without it nothing is sampled",
        ),
        Ability(
            what="network by process",
            is_there=TcpCounters().is_there,
            remark="TCP bytes by sock_diag; else none",
        ),
        Ability(
            what="CPU time in ns",
            is_there=_has_cpu_clock(),
            remark="process CPU clocks; else ticks of 10 ms",
        ),
        Ability(
            what="contention",
            is_there=Path("/proc/self/schedstat").is_file(),
            remark="run-queue delay; without it step times are wall times",
        ),
        Ability(
            what="pressure",
            is_there=Path("/proc/pressure/cpu").is_file(),
            remark="the machine's noise next to a figure",
        ),
        Ability(
            what="control groups",
            is_there=groups.version > 0,
            remark=f"version {groups.version}: limits and throttling of a container",
        ),
        Ability(
            what="GPU",
            is_there=bool(gpus),
            remark=", ".join(gpus) or "no NVML library, or no device behind it",
        ),
        Ability(
            what="limited links",
            is_there=can_make_nodes(),
            remark="profile --workers N --bandwidth RATE: root, ip and tc",
        ),
        Ability(
            what="hooks",
            is_there=not (sys.flags.isolated or sys.flags.ignore_environment),
            remark="steps, operators and total work of Python scripts",
        ),
    )


def _has_cpu_clock() -> bool:
    try:
        return time.clock_gettime_ns((~os.getpid() << 3) | 2) > 0
    except (OSError, AttributeError):
        return False


def host_lines(host: Host) -> list[str]:
    """Return the machine in words, a line each."""
    limit = f"{host.cpu_limit:g} of {host.logical_cpus} CPUs"
    memory = bytes_text(host.memory_limit_bytes)
    lines = [f"{host.cpu_model}, {limit}, {memory}, {host.system}"]
    if host.gpus:
        lines.append(", ".join(host.gpus))
    figures = host.benchmark
    if figures is None:
        return [*lines, "not measured"]
    disk = figures.disk_read_bytes_per_s
    return [
        *lines,
        f"products (fp32): {figures.matmul_flop_per_s / 1e9:.0f} Gflop/s, one core "
        f"{figures.matmul_one_core_flop_per_s / 1e9:.0f}",
        f"memory copy: {figures.copy_bytes_per_s / 1e9:.1f} GB/s, one core "
        f"{figures.copy_one_core_bytes_per_s / 1e9:.1f}",
        f"integers: {figures.scalar_score:.0f} CoreMark-like iterations/s on one core",
        "disk: unknown" if disk is None else f"disk: {disk / 1e6:.0f} MB/s read",
        f"measured {figures.measured_at}",
    ]
