"""The same script recorded as the machine is, and beside two processes that burn.

What a step takes on an idle machine should come out both times; the wall time does not. With
``--cores 1`` the script, the burners and the profiler share one core.

python benchmarks/collector_contention.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from advisor.collectors.recording import StepTime
from advisor.collectors.runner import profile

SCRIPT = Path(__file__).parents[1] / "examples" / "digits_cnn.py"


def step_time(folder: Path, limit_s: float) -> StepTime:
    """Record the example for a while and return its step time."""
    command = [sys.executable, str(SCRIPT), "--epochs", "100000"]
    seen = profile(command, run_root=folder, limit_s=limit_s, measure_host=False, is_precise=True)
    assert seen.step_time is not None
    return seen.step_time


def main() -> None:
    """Alternate between the two and print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--burners", type=int, default=2)
    parser.add_argument("--cores", type=int, default=0, help="use only so many; 0 for all")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    os.environ["OMP_NUM_THREADS"] = "1"
    devnull = os.open(os.devnull, os.O_WRONLY)
    shown = os.dup(1)
    os.dup2(devnull, 1)  # the example's own lines
    raw, corrected = [], []
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            alone = step_time(Path(name), options.seconds)
            burn = [sys.executable, "-c", "while True: pass"]
            burners = [subprocess.Popen(burn) for _ in range(options.burners)]
            try:
                beside = step_time(Path(name), options.seconds)
            finally:
                for burner in burners:
                    burner.kill()
                    burner.wait()
            raw.append(beside.raw_s / alone.raw_s)
            corrected.append(beside.corrected_s / alone.corrected_s)
            text = (
                f"round {number + 1}: raw {1e3 * alone.raw_s:.2f} -> {1e3 * beside.raw_s:.2f} ms, "
                f"corrected {1e3 * alone.corrected_s:.2f} -> {1e3 * beside.corrected_s:.2f} ms "
                f"(waiting {alone.delay_fraction:.0%} -> {beside.delay_fraction:.0%})\n"
            )
            os.write(shown, text.encode())
    for name, ratios in (("raw", raw), ("corrected", corrected)):
        text = f"{name}: median ratio {statistics.median(ratios):.2f}"
        os.write(shown, f"{text} ({min(ratios):.2f} to {max(ratios):.2f})\n".encode())


if __name__ == "__main__":
    main()
