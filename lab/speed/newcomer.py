"""A newcomer's path, timed: from a fresh clone to a job that another tool runs.

``python -m advisor.lab.speed.newcomer`` clones this commit into a new folder (the network's part
of a clone is not measured) and runs what the README says: the environment of ``make demo``, a
recorded example, the recommendation, its export to SkyPilot and to torchrun. Each stage is a
process of its own, its output kept in ``stages.log``. Printed are the seconds of a stage by the
clock and of its processor time, the load and the day. The goal is 300 s from the first to the
last; a busy machine shows in the two columns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from advisor.lab import frame

MOST_S = 300.0
# What SkyPilot and torchrun are given: a rented row, on a cloud that both know.
STAGES = {
    "clone": ["git", "clone", "--quiet", str(frame.ROOT), "job"],
    "install (make demo's environment)": ["make", ".venv/.installed", f"PYTHON={sys.executable}"],
    "profile an example": [".venv/bin/advisor", "profile", "examples/digits_cnn.py", "--epochs",
                           "40"],
    "recommend": [".venv/bin/advisor", "recommend", "--budget", "50"],
    "export to skypilot": [".venv/bin/advisor", "export", "1", "--to", "skypilot", "--cloud",
                           "aws", "-o", "task.yaml"],
    "export to torchrun": [".venv/bin/advisor", "export", "1", "--to", "torchrun", "--cloud",
                           "aws", "-o", "run.sh"],
}  # fmt: skip
MADE = ("task.yaml", "run.sh")


def run(command: list[str], folder: Path, log: Path) -> tuple[frame.Spent, int]:
    """Run one stage in a folder; return what it took and its exit code."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR")}
    environ["ADVISOR_RUNS"] = str(folder.parent / "runs")
    codes: list[int] = []
    with log.open("a") as out:
        took = frame.spent(lambda: codes.append(subprocess.run(
            command, cwd=folder, env=environ, stdout=out, stderr=out, check=False
        ).returncode))  # fmt: skip
    return took, codes[0]


def main() -> int:
    words = {"--in": {"dest": "folder", "type": Path, "help": "folder to use and to keep"}}
    asked, total = frame.options(__doc__, words), frame.Spent()
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "stages.log"
        for name, command in STAGES.items():
            took, code = run(command, folder if name == "clone" else folder / "job", log)
            show(name, took)
            total += took
            if code:
                print(log.read_text()[-3000:], file=sys.stderr)
                return 1
        missing = [name for name in MADE if not (folder / "job" / name).stat().st_size]
    show("together", total)
    is_within = "within" if total.wall_s <= MOST_S else "over"
    print(f"{is_within} the {MOST_S:.0f} s of the goal; {frame.load()}")
    return len(missing)


def show(name: str, took: frame.Spent) -> None:
    print(f"{name:36} {took.wall_s:7.1f} s  {took.cpu_s:7.1f} s of processors", flush=True)


if __name__ == "__main__":
    sys.exit(main())
