"""Our sampler and others on the same target: CPU share and memory.

Those of resource-tracker, psrecord and codecarbon that are installed are run too.
The target holds memory and burns half a core. Each sampler watches it for some seconds; what it
costs is read from its own process's CPU clock after its start is over, and from its memory.

python benchmarks/collector_side_by_side.py
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TARGET = """
import sys, time
block = bytearray(b"x") * (int(sys.argv[1]) * 2**20)
while True:
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end: pass
    time.sleep(0.05)
"""
TRACKER = """
import sys, time
from resource_tracker.tracker import PidTracker
PidTracker(pid=int(sys.argv[1]), interval=float(sys.argv[2]), output_file=sys.argv[3])
"""


def advisor(pid: int, hz: float, folder: Path) -> list[str]:
    """Return our own command."""
    options = ["-q", "--runs", str(folder), "--interval", str(1 / hz), "--for", "10m"]
    return [sys.executable, "-m", "advisor.cli", "profile", *options, "--pid", str(pid)]


def psrecord(pid: int, hz: float, folder: Path) -> list[str]:
    """Return psrecord's command."""
    code = "from psrecord.main import main; main()"
    options = ["--interval", str(1 / hz), "--log", str(folder / "psrecord.txt")]
    return [sys.executable, "-c", code, str(pid), *options]


def resource_tracker(pid: int, hz: float, folder: Path) -> list[str]:
    """Return a process that runs resource-tracker's tracker of one process."""
    return [sys.executable, "-c", TRACKER, str(pid), str(1 / hz), str(folder / "tracker.csv")]


def codecarbon(pid: int, hz: float, folder: Path) -> list[str]:
    """Return a process that runs codecarbon's tracker (of the machine: it has no pid)."""
    code = (
        "import sys, time; from codecarbon import OfflineEmissionsTracker as T; "
        "t = T(country_iso_code='FRA', measure_power_secs=float(sys.argv[1]), "
        "output_dir=sys.argv[2], log_level='error'); t.start(); time.sleep(600)"
    )
    return [sys.executable, "-c", code, str(1 / hz), str(folder)]


SAMPLERS: dict[str, tuple[str, Callable[[int, float, Path], list[str]]]] = {
    "advisor": ("advisor", advisor),
    "resource-tracker": ("resource_tracker", resource_tracker),
    "psrecord": ("psrecord", psrecord),
    "codecarbon": ("codecarbon", codecarbon),
}


def cpu_ns(pid: int) -> int:
    """Return a process's CPU time. [ns]."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def tree_of(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cost(command: list[str], *, warm_s: float, seconds: float) -> tuple[float, float]:
    """Run a sampler and return its share of a core [%] and its proportional memory [MiB]."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        time.sleep(warm_s)
        pids = tree_of(run.pid)
        before, begin = sum(map(cpu_ns, pids)), time.monotonic()
        time.sleep(seconds)
        share = (sum(map(cpu_ns, pids)) - before) / 1e7 / (time.monotonic() - begin)
        memory = 0
        for pid in pids:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    memory += int(line.split()[1])
        run.kill()
    return share, memory / 1024


def main() -> None:
    """Print a table: sampler, rate, target's memory, CPU share, memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--only", help="one sampler")
    options = parser.parse_args()
    print(f"{'sampler':18}{'Hz':>4}{'target MiB':>12}{'CPU %':>8}{'MiB':>7}")
    for name, (module, command) in SAMPLERS.items():
        if (options.only and name != options.only) or importlib.util.find_spec(module) is None:
            continue
        for hz, target_mib in ((1.0, 50), (10.0, 50), (10.0, 2000)):
            arguments = [sys.executable, "-c", TARGET, str(target_mib)]
            with tempfile.TemporaryDirectory() as folder, subprocess.Popen(arguments) as target:
                try:
                    share, memory = cost(
                        command(target.pid, hz, Path(folder)), warm_s=4.0, seconds=options.seconds
                    )
                finally:
                    target.kill()
            print(f"{name:18}{hz:4.0f}{target_mib:12}{share:8.3f}{memory:7.1f}", flush=True)


if __name__ == "__main__":
    main()
