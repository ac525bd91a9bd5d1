"""What this machine is, and its abilities to record, tried rather than assumed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from advisor.collectors.errors import bytes_text
from advisor.collectors.format import Host
from advisor.collectors.watch.host import Groups


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
        f"integers: {figures.scalar_score:,.0f} CoreMark-like iterations/s on one core",
        "disk: unknown" if disk is None else f"disk: {disk / 1e6:,.0f} MB/s read",
        f"measured on {figures.measured_at[:10]}",
    ]


def host_abilities() -> list[dict[str, Any]]:
    """Return what can be recorded here, or not, as tried, each with what that means."""
    from advisor.collectors.watch.network import can_make_nodes  # brings what starts programs
    from advisor.collectors.watch.nvml import Gpus
    from advisor.collectors.watch.tcp import TcpCounters

    groups, gpus = Groups.of(), Gpus().names
    found = (
        ("process tree", Path("/proc/self/task").is_dir(),
         "/proc; without it nothing is sampled"),
        ("network by process", TcpCounters().is_there, "TCP bytes by sock_diag; else none"),
        ("CPU time in ns", _has_cpu_clock(), "process CPU clocks; else ticks of 10 ms"),
        ("contention", Path("/proc/self/schedstat").is_file(),
         "run-queue delay; without it step times are wall times"),
        ("pressure", Path("/proc/pressure/cpu").is_file(),
         "the machine's noise next to a figure"),
        ("control groups", groups.version > 0,
         f"version {groups.version}: limits and throttling of a container"),
        ("GPU", bool(gpus), ", ".join(gpus) or "no NVML library, or no device behind it"),
        ("limited links", can_make_nodes(),
         "profile --workers N --bandwidth RATE: root, ip and tc"),
        ("hooks", not (sys.flags.isolated or sys.flags.ignore_environment),
         "steps, operators and total work of Python scripts"),
    )  # fmt: skip
    return [{"what": what, "is_there": there, "remark": remark} for what, there, remark in found]


def _has_cpu_clock() -> bool:
    try:
        return time.clock_gettime_ns((~os.getpid() << 3) | 2) > 0
    except (OSError, AttributeError):
        return False
