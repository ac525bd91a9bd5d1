"""Many at once: a tree of a thousand processes, a hundred profiles in one store, two trainings.

    python -m advisor.lab.speed.crowds [--processes 1000] [--profiles 100] [--at-once 10]

Printed are the processor time that watching the tree takes, and the profiles that the store lists
whole; the exit code is 1 where one is missing, or where two ``advisor train`` that
write to one folder at the same time leave a model that cannot be read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from advisor.collectors.derive.store import list_runs, read_recording
from advisor.lab import frame
from advisor.learned import TrainedModel

STEPS = 5
SCRIPT = f"""
import time
from advisor.collectors.marker import step
for number in range({STEPS}):
    time.sleep(0.01)
    step(samples=4)
"""
# One process in ten has nine others below it, all of which stand still.
TREE = "for n in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the advisor with a user's folders in ``folder``."""
    places = {"XDG_DATA_HOME": str(folder / "data"), "PYTHONPATH": str(frame.ROOT)}
    return subprocess.run(
        [*frame.ADVISOR, *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, **places},
    )  # fmt: skip


def beside_a_tree(folder: Path, processes: int, seconds: int = 20) -> str:
    """Return what watching so many processes takes."""
    shell = f"for m in $(seq {processes // 10}); do ({TREE}) & done; wait"
    tree = subprocess.Popen(["sh", "-c", shell], start_new_session=True)
    try:
        time.sleep(5.0)  # until all are there
        watch = [*frame.ADVISOR, "profile", "-q", "--pid", str(tree.pid), "--for", f"{seconds}s"]
        took = frame.run_s(watch, XDG_DATA_HOME=str(folder / "data"))
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        tree.wait()
    seen = read_recording(list_runs(folder / "data" / "advisor" / "runs")[-1])
    most = max(reading.processes for reading in seen.readings)
    return f"{most} processes watched for {seconds} s: {took.cpu_s:.1f} CPU-s"


def profiles(folder: Path, count: int, at_once: int) -> tuple[str, bool]:
    """Return how many profiles the store has whole, and whether that is all."""
    (folder / "train.py").write_text(SCRIPT)
    begin = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(lambda _: run(folder, "profile", "-q", "train.py"), range(count)))
    seen = [read_recording(one) for one in list_runs(folder / "data" / "advisor" / "runs")]
    whole = sum(one.status == "finished" and one.step_time is not None for one in seen)
    failed = sum(one.returncode != 0 for one in done)
    text = f"{count} profiles, {at_once} at once: {whole} whole, {failed} failed"
    return f"{text}, {time.monotonic() - begin:.0f} s", (whole, failed) == (count, 0)


def trainings(folder: Path) -> tuple[str, bool]:
    """Return how two trainings into one folder end, and whether the model is whole."""
    out = folder / "model"
    words = ("train", "models", "--model", "ridge", "--out", str(out))
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run(folder, *words), range(2)))
    codes: list[Any] = [one.returncode for one in done]
    TrainedModel.load(out)
    return f"two trainings into one folder: exit codes {codes}, a whole model", 0 in codes


def main() -> int:
    given = frame.options(__doc__, {"--processes": 1000, "--profiles": 100, "--at-once": 10})
    with tempfile.TemporaryDirectory() as place:
        told, has_all = profiles(Path(place), given.profiles, given.at_once)
        print(told)
        ended, is_whole = trainings(Path(place))
        print(ended)
        print(beside_a_tree(Path(place), given.processes), frame.load(), sep="\n")
    return 0 if has_all and is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
