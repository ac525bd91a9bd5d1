"""How fast the command line answers: start-up, a recommendation, and the first answer of all.

    python -m advisor.lab.speed.speed [--skip-first-answer]

Prints medians over repeated runs: seconds of wall time and peak resident memory of the whole
command (``wait4``), and ``recommend`` in-process over the whole catalogue. The first answer is a
fresh script profiled and ranked in an empty folder.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from advisor.lab import frame

EXAMPLE = frame.ROOT / "examples" / "digits_cnn.py"


def command(arguments: list[str], *, cwd: Path) -> tuple[float, float]:
    """Run one command; return its wall time [s] and its peak resident memory [MB]."""
    started = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [*frame.ADVISOR, *arguments],
        {**os.environ, "PYTHONPATH": str(frame.ROOT)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )
    _, status, usage = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):
        raise SystemExit(f"failed in {cwd}: advisor {' '.join(arguments)}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024 / 1e6


def repeated(arguments: list[str], *, cwd: Path) -> tuple[float, float]:
    """Return the medians of ``command`` after one run that warms the caches."""
    command(arguments, cwd=cwd)
    runs = [command(arguments, cwd=cwd) for _ in range(7)]
    return statistics.median(r[0] for r in runs), max(r[1] for r in runs)


def in_process(run: Path) -> float:
    """Return the median time of ``recommend`` over the whole catalogue after loading it."""
    from advisor.api import recommend
    from advisor.estimate.predictor import Predictor
    from advisor.jobs.load import load_job

    job, predictor = load_job(run), Predictor()
    recommend(job, predictor=predictor)
    durations = []
    for _ in range(7):
        started = time.perf_counter()
        recommend(job, budget=50, predictor=predictor)
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def main() -> None:
    options = frame.options(__doc__, {"--skip-first-answer": False})
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        os.chdir(cwd)
        os.environ["ADVISOR_RUNS"] = str(cwd / "runs")
        seconds, megabytes = repeated(["--help"], cwd=cwd)
        print(f"advisor --help            {seconds:6.2f} s  {megabytes:5.0f} MB")
        profile, _ = command(["profile", str(EXAMPLE), "--epochs", "40"], cwd=cwd)
        first, _ = command(["recommend", "--budget", "50"], cwd=cwd)
        if not options.skip_first_answer:
            print(f"first answer              {profile + first:6.2f} s  (profile {profile:.1f} s)")
        seconds, megabytes = repeated(["recommend", "--budget", "50"], cwd=cwd)
        print(f"advisor recommend         {seconds:6.2f} s  {megabytes:5.0f} MB")
        run = next((cwd / "runs").iterdir())
        print(f"recommend in-process      {in_process(run):6.2f} s  (catalogue loaded)")
    print(frame.load())


if __name__ == "__main__":
    main()
