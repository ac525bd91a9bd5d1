"""The abilities of this machine to record, tried rather than assumed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from advisor.collectors.watch.host import Groups


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
