"""A newcomer's path, timed: from a fresh clone to a job that another tool runs.

``python -m advisor.lab.speed.newcomer`` clones this commit into a new folder (the network's part
of a clone is not measured) and runs what the README says: the environment of ``make demo``, a
recorded example, the recommendation, its export to SkyPilot and to torchrun. Each stage is a
process of its own, its output kept in ``stages.log``. Printed are the seconds of a stage by the
clock and of its processor time, the load and the day. The goal is 300 s from the first to the
last; a busy machine shows in the two columns.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_S = 300.0
# What SkyPilot and torchrun are given: a rented row, on a cloud that both know.
STAGES = {
    "clone": ["git", "clone", "--quiet", str(ROOT), "job"],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: its seconds by the clock and of its processors, and its exit code."""

    name: str
    clock_s: float
    processor_s: float
    code: int


def run(name: str, command: list[str], folder: Path, log: Path) -> Stage:
    """Run one stage in a folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR")}
    environ["ADVISOR_RUNS"] = str(folder.parent / "runs")
    before, begin = _processor_s(), time.perf_counter()
    with log.open("a") as out:
        code = subprocess.run(
            command, cwd=folder, env=environ, stdout=out, stderr=out, check=False
        ).returncode
    return Stage(
        name=name, clock_s=time.perf_counter() - begin, processor_s=_processor_s() - before,
        code=code,
    )  # fmt: skip


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Run the path in a new folder; the exit code is 1 where a stage fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="folder", type=Path, help="folder to use and to keep")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "stages.log"
        stages = []
        for name, command in STAGES.items():
            place = folder if name == "clone" else folder / "job"
            stages.append(run(name, command, place, log))
            show(stages[-1])
            if stages[-1].code:
                print(log.read_text()[-3000:], file=sys.stderr)
                return 1
        missing = [name for name in MADE if not (folder / "job" / name).stat().st_size]
    total = Stage(
        name="together", code=len(missing), clock_s=sum(one.clock_s for one in stages),
        processor_s=sum(one.processor_s for one in stages),
    )  # fmt: skip
    show(total)
    is_within = "within" if total.clock_s <= MOST_S else "over"
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    day = datetime.now(UTC).date().isoformat()
    print(
        f"{is_within} the {MOST_S:.0f} s of the goal; {day}, {os.cpu_count()} cores, load {load}"
    )
    return total.code


def show(stage: Stage) -> None:
    """Print one line of the table."""
    print(f"{stage.name:36} {stage.clock_s:7.1f} s  {stage.processor_s:7.1f} s of processors",
          flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
