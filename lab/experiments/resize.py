"""A real resize under torchrun, 1 -> 2 workers over a checkpoint, predicted and measured.

    python -m advisor.lab.experiments.resize

Short runs on one and on two workers give step times, start-up and save. From them the total of a
schedule in two phases is predicted as ``planners.systems.hydrozoa`` adds it up: phases plus one
resize (save, stop, start on the other count). The schedule is run for real in between.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

JOB = Path(__file__).with_name("checkpointed_job.py")
BATCH = 128


@dataclass(frozen=True)
class Seen:
    """What one launch's log says [s]."""

    startup_s: float
    steps_s: list[float]
    save_s: float
    wall_s: float


def launched(folder: Path, workers: int, steps: int, pace: float) -> Seen:
    """Run up to a step under torchrun and read the log."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(workers), str(JOB), "--steps", str(steps), "--every", str(steps), "--pace",
         str(pace / workers), "--batch", str(BATCH), "--checkpoint", str(folder / "job.pt"),
         "--events", str(log)],
        check=True, capture_output=True,
    )  # fmt: skip
    wall = time.monotonic() - begin
    lines = [line.split(",") for line in log.read_text().splitlines()]
    events = [(float(at), event) for at, event, _ in lines]
    gaps = [(event, at - before) for (before, _), (at, event) in pairwise(events)]
    return Seen(
        startup_s=events[0][0] - begin,
        steps_s=[gap for event, gap in gaps if event == "step"],
        save_s=statistics.fmean(gap for event, gap in gaps if event == "saved"),
        wall_s=wall,
    )


def measured(workers: int, steps: int, pace: float) -> tuple[float, float]:
    """Return a step's time and what a launch takes besides its steps, from a short run [s]."""
    with tempfile.TemporaryDirectory() as name:
        seen = launched(Path(name), workers, steps, pace)
    return statistics.fmean(seen.steps_s), seen.wall_s - sum(seen.steps_s)


def main() -> None:
    """Print prediction and measurement, each run calibrated just before and after it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibration", type=int, default=60, help="steps of the short runs")
    parser.add_argument("--steps", type=int, nargs=2, default=[300, 300])
    parser.add_argument("--pace", type=float, default=0.05, help="least step on one worker [s]")
    parser.add_argument("--runs", type=int, default=2)
    asked = parser.parse_args()
    first, second = asked.steps
    for run in range(asked.runs):
        around = [[measured(w, asked.calibration, asked.pace) for w in (1, 2)]]
        with tempfile.TemporaryDirectory() as name:
            begin = time.monotonic()
            one = launched(Path(name), 1, first, asked.pace)
            two = launched(Path(name), 2, first + second, asked.pace)
            total = time.monotonic() - begin
        around.append([measured(w, asked.calibration, asked.pace) for w in (1, 2)])
        (step_1, launch_1), (step_2, launch_2) = np.mean(around, axis=0)
        predicted = launch_1 + first * step_1 + launch_2 + second * step_2
        print(
            f"run {run} (load {os.getloadavg()[0]:.1f}): predicted {predicted:.1f} s, measured "
            f"{total:.1f} s ({predicted / total - 1:+.1%}); resize predicted {launch_2:.1f} s, "
            f"measured {two.wall_s - sum(two.steps_s):.1f} s; steps "
            f"{1e3 * step_1:.0f} and {1e3 * step_2:.0f} ms, measured "
            f"{1e3 * statistics.fmean(one.steps_s):.0f} and "
            f"{1e3 * statistics.fmean(two.steps_s):.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
