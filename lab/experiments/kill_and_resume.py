"""Kill a real training job again and again, and compare its wall time with the prediction.

    python -m advisor.lab.experiments.kill_and_resume

The job is killed (SIGKILL) at random times and started again from its last checkpoint, at several
checkpoint intervals. Start-ups, step and save are read from each run's own log, since a shared
machine changes speed from run to run; what is predicted is what the kills add. Two predictions are
printed: the replay of the kills that really came (``planners.spot.availability``), run by run,
and the exact
expectation for the rate of kills (``planners.goodput``), to be compared with the mean
over runs.
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from advisor.lab import frame
from advisor.planners.goodput import expected_completion, optimal_interval_s
from advisor.planners.spot.availability import Spells, SpotJob, replay

JOB = Path(__file__).with_name("checkpointed_job.py")
Gaps = dict[str, list[float]]


@dataclass(frozen=True)
class Run:
    """One job run to its end through kills, and what its log says of its costs [s]."""

    wall_s: float
    kills: int
    up_s: list[tuple[float, float]]  # from the first step possible to the kill
    startup_s: float
    step_s: float
    save_s: float


def started(folder: Path, steps: int, every: int, pace: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(JOB), "--steps", str(steps), "--every", str(every), "--pace",
         str(pace), "--checkpoint", str(folder / "job.pt"), "--events", str(folder / "log")]
    )  # fmt: skip


def disturbed(steps: int, every: int, pace: float, mean_s: float, rng: random.Random) -> Run:
    """Run to the end through kills, exponentially distributed lives."""
    births, deaths = [], []
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        while True:
            births.append(time.monotonic())
            process = started(Path(name), steps, every, pace)
            try:
                process.wait(timeout=rng.expovariate(1 / mean_s))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                deaths.append(time.monotonic())
        events, gaps = events_of(Path(name) / "log")
    ready = [at for at, event in events if event == "ready"]
    ends = [min((d for d in deaths if d > at), default=1e9) for at in ready]
    return Run(
        wall_s=events[-1][0] - begin,  # the last save, not the interpreter's farewell
        kills=len(deaths),
        up_s=[(at - begin, end - begin) for at, end in zip(ready, ends, strict=True)],
        startup_s=statistics.fmean(at - max(b for b in births if b < at) for at in ready),
        step_s=statistics.fmean(gaps["step"]),
        save_s=statistics.fmean(gaps["saved"]),
    )


def events_of(log: Path) -> tuple[list[tuple[float, str]], Gaps]:
    """Return the events of a job's log (time [s], name), and what each took after the one before.

    The time of the second is of the last event before it, whichever that was [s].
    """
    lines = [line.split(",") for line in log.read_text().splitlines()]
    events = [(float(at), event) for at, event, _ in lines]
    gaps: Gaps = {}
    for (before, _), (at, event) in pairwise(events):
        gaps.setdefault(event, []).append(at - before)
    return events, gaps


def replayed(steps: int, every: int, run: Run) -> float:
    """Predict the wall time from when the job could really compute [s]."""
    up = np.array(run.up_s)
    spells = Spells(up_start_s=up[:, 0], up_length_s=up[:, 1] - up[:, 0], end_s=float(up[-1, 1]))
    job = SpotJob(
        work_s=steps * run.step_s,
        restart_s=0.0,  # each start-up as it was lies between the spells
        checkpoint_interval_s=every * run.step_s,
        checkpoint_s=run.save_s,
    )
    return float(replay(spells, job, [0.0]).finish_s[0])


def expected(steps: int, every: int, mean_s: float, runs: list[Run]) -> float:
    """Predict the mean wall time from the rate of kills [s]."""
    startup, step, save = (
        statistics.fmean(getattr(run, name) for run in runs)
        for name in ("startup_s", "step_s", "save_s")
    )
    answer = expected_completion(
        steps * step,
        devices=1,
        failures_per_device_h=3600 / mean_s,
        checkpoint_s=save,
        restart_s=startup,
        detection_s=0.0,
        checkpoint_interval_s=every * step,
    )
    # The first start can be killed too and belongs to the wall time.
    return float(answer.expected_s[0]) + float(np.expm1(startup / mean_s)) * mean_s


def main() -> None:
    asked = frame.options(__doc__, {
        "--steps": 800, "--every": [40, 200, 400], "--pace": (0.025, "least seconds of a step"),
        "--mean": (20.0, "seconds between kills"), "--runs": 4, "--seed": 1,
    })  # fmt: skip
    rng = random.Random(asked.seed)
    for every in asked.every:
        runs = [
            disturbed(asked.steps, every, asked.pace, asked.mean, rng) for _ in range(asked.runs)
        ]
        errors = [replayed(asked.steps, every, run) / run.wall_s - 1 for run in runs]
        mean = statistics.fmean(run.wall_s for run in runs)
        ahead = expected(asked.steps, every, asked.mean, runs)
        best = float(optimal_interval_s(runs[0].save_s, 1 / asked.mean)) / runs[0].step_s
        print(
            f"every {every:4d} steps (best {best:.0f}): kills {[r.kills for r in runs]}, "
            f"start {statistics.fmean(r.startup_s for r in runs):.1f} s, wall "
            f"{[round(r.wall_s, 1) for r in runs]} s; replay {[f'{e:+.1%}' for e in errors]}; "
            f"mean {mean:.1f} s, expected {ahead:.1f} s ({ahead / mean - 1:+.0%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
