"""A real resize under torchrun, 1 -> 2 workers over a checkpoint, predicted and measured.

    python -m advisor.lab.experiments.resize

Short runs on one and on two workers give step times, start-up and save. From them the total of a
schedule in two phases is predicted as ``planners.systems.hydrozoa`` adds it up: phases plus one
resize (save, stop, start on the other count). The schedule is run for real in between.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.lab import frame
from advisor.lab.experiments.kill_and_resume import JOB, events_of

BATCH = 128


@dataclass(frozen=True)
class Seen:
    """What one launch's log says [s]."""

    startup_s: float
    steps_s: list[float]
    save_s: float
    wall_s: float


def launched(folder: Path, workers: int, steps: int, pace: float) -> Seen:
    log = folder / "log"
    log.unlink(missing_ok=True)
    begin = time.monotonic()
    command = frame.torchrun(
        workers, JOB, "--steps", steps, "--every", steps, "--pace", pace / workers,
        "--batch", BATCH, "--checkpoint", folder / "job.pt", "--events", log,
    )  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    wall = time.monotonic() - begin
    events, gaps = events_of(log)
    return Seen(
        startup_s=events[0][0] - begin,
        steps_s=gaps["step"],
        save_s=statistics.fmean(gaps["saved"]),
        wall_s=wall,
    )


def measured(workers: int, steps: int, pace: float) -> tuple[float, float]:
    """Return a step's time and what a launch takes besides its steps, from a short run [s]."""
    with tempfile.TemporaryDirectory() as name:
        seen = launched(Path(name), workers, steps, pace)
    return statistics.fmean(seen.steps_s), seen.wall_s - sum(seen.steps_s)


def main() -> None:
    """Print prediction and measurement, each run calibrated just before and after it."""
    asked = frame.options(__doc__, {
        "--calibration": (60, "steps of the short runs"), "--steps": [300, 300],
        "--pace": (0.05, "least step on one worker [s]"), "--runs": 2,
    })  # fmt: skip
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
