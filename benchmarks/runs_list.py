"""CPU time of ``advisor runs list`` over many runs: the command as a user starts it.

    python benchmarks/runs_list.py [RUNS]

The runs are copies of the recording that the tests keep. Nothing is known of them the first time
(every run is derived from its files), all of it the second time. What the command takes without
any run is the interpreter's and the command line's start.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRIES = 5


def command_s(runs: Path) -> float:
    """Return the CPU time of one listing. [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "advisor.cli", "runs", "list"], check=True, capture_output=True,
        env={**os.environ, "ADVISOR_RUNS": str(runs), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(count: int) -> None:
    """Print the least of some tries, with and without runs."""
    golden = ROOT / "tests" / "golden" / "run-schema-1"
    with tempfile.TemporaryDirectory() as folder:
        none, runs = Path(folder) / "none", Path(folder) / "runs"
        none.mkdir()
        for number in range(count):
            shutil.copytree(golden, runs / f"20261122-{number:06}-train-0000")
        start_s = min(command_s(none) for _ in range(TRIES))
        first_s = command_s(runs)
        again_s = min(command_s(runs) for _ in range(TRIES))
    print(f"no run:                     {start_s:.3f} CPU-s")
    print(f"{count} runs, the first time: {first_s:.3f} CPU-s")
    print(
        f"{count} runs, from then on:   {again_s:.3f} CPU-s ({first_s / again_s:.1f} times less)"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
