"""Our sampler and others on the same target: CPU share and memory.

Those of resource-tracker, psrecord and codecarbon that are installed are run too.
The target holds memory and burns half a core. Each sampler watches it for some seconds; what it
costs is read from its own process's CPU clock after its start is over, and from its memory.

python -m advisor.lab.speed.collector_side_by_side
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from advisor.lab import frame

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
try:
    from resource_tracker import ProcessTracker
except ImportError:  # before 0.4
    from resource_tracker.tracker import PidTracker as ProcessTracker
ProcessTracker(pid=int(sys.argv[1]), interval=float(sys.argv[2]), output_file=sys.argv[3])
"""


def advisor(pid: int, hz: float, folder: Path) -> list[str]:
    options = ["-q", "--runs", str(folder), "--interval", str(1 / hz), "--for", "10m"]
    return [*frame.ADVISOR, "profile", *options, "--pid", str(pid)]


def psrecord(pid: int, hz: float, folder: Path) -> list[str]:
    code = "from psrecord.main import main; main()"
    options = ["--interval", str(1 / hz), "--log", str(folder / "psrecord.txt")]
    return [sys.executable, "-c", code, str(pid), *options]


def resource_tracker(pid: int, hz: float, folder: Path) -> list[str]:
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
    return time.clock_gettime_ns((~pid << 3) | 2)


def tree_of(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a sampler took: share of a core [%], proportional and resident memory [MiB]."""

    core_percent: float
    pss_mib: float
    rss_mib: float


def cost(command: list[str], *, warm_s: float, seconds: float) -> Cost:
    """Run a sampler, and say what it cost once its start is over."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        time.sleep(warm_s)
        pids = tree_of(run.pid)
        before, begin = sum(map(cpu_ns, pids)), time.monotonic()
        time.sleep(seconds)
        share = (sum(map(cpu_ns, pids)) - before) / 1e7 / (time.monotonic() - begin)
        memory = {"Pss": 0, "Rss": 0}
        for pid in pids:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in memory:
                    memory[name] += int(value.split()[0])
        run.kill()
    return Cost(core_percent=share, pss_mib=memory["Pss"] / 1024, rss_mib=memory["Rss"] / 1024)


def watched(name: str, hz: float, target_mib: int, seconds: float) -> Cost:
    arguments = [sys.executable, "-c", TARGET, str(target_mib)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(arguments) as target:
        try:
            command = SAMPLERS[name][1](target.pid, hz, Path(folder))
            return cost(command, warm_s=4.0, seconds=seconds)
        finally:
            target.kill()


CASES = ((1.0, 50), (10.0, 50), (10.0, 2000))


def main() -> None:
    """Print a table: sampler, rate, target's memory; medians of all rounds and their spread."""
    words = {"--seconds": 15.0, "--rounds": 3, "--only": (str, "one sampler")}
    options = frame.options(__doc__, words)
    names = [
        name
        for name, (module, _) in SAMPLERS.items()
        if options.only in (None, name) and importlib.util.find_spec(module) is not None
    ]
    seen: dict[tuple[str, float, int], list[Cost]] = {}
    for _ in range(options.rounds):  # every sampler once a round: all meet the same machine
        for hz, target_mib in CASES:
            for name in names:
                one = watched(name, hz, target_mib, options.seconds)
                seen.setdefault((name, hz, target_mib), []).append(one)
    heads = f"{'sampler':18}{'Hz':>4}{'target MiB':>12}{'core %':>9}  {'(spread)':17}"
    print(f"{heads}{'PSS':>7}{'RSS':>7}")
    for (name, hz, target_mib), costs in sorted(seen.items()):
        shares = [one.core_percent for one in costs]
        spread = f"({min(shares):.3f} to {max(shares):.3f})"
        print(
            f"{name:18}{hz:4.0f}{target_mib:12}{median(shares):9.3f}  {spread:17}"
            f"{median([one.pss_mib for one in costs]):7.1f}"
            f"{median([one.rss_mib for one in costs]):7.1f}"
        )


if __name__ == "__main__":
    main()
