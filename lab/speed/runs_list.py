"""CPU time of ``advisor runs list`` over many runs: the command as a user starts it.

    python -m advisor.lab.speed.runs_list [RUNS]

The runs are copies of the recording that the tests keep: as today's profiler would have ended it,
with its line in the last record, and as it is, from an earlier version. What the command takes
without any run is the start of the interpreter and of the command line.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from advisor.collectors.derive.run_list import INDEX_FILE, closing_fact
from advisor.collectors.derive.store import read_recording
from advisor.collectors.format.record_files import PROFILER_FILE, Appender
from advisor.collectors.hooks import format as fmt
from advisor.lab import frame

GOLDEN = frame.ROOT / "tests" / "golden" / "run-schema-1"
TRIES = 5


def command_s(runs: Path, *, forgets: bool = False) -> float:
    """Return the least CPU time of some listings; ``forgets`` begins each without index. [s]."""
    times = []
    for _ in range(TRIES):
        if forgets:
            (runs / INDEX_FILE).unlink(missing_ok=True)
        times.append(frame.run_s([*frame.ADVISOR, "runs", "list"], ADVISOR_RUNS=str(runs)).cpu_s)
    return min(times)


def copies(of: Path, into: Path, count: int) -> Path:
    for number in range(count):
        shutil.copytree(of, into / f"20261122-{number:06}-train-0000")
    return into


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        none, ended = Path(folder) / "none", Path(folder) / "ended"
        none.mkdir()
        shutil.copytree(GOLDEN, ended)
        log = Appender(ended / PROFILER_FILE)
        log.write_json(fmt.FACT, closing_fact(read_recording(ended)))
        log.close()
        now = copies(ended, Path(folder) / "now", count)
        before = copies(GOLDEN, Path(folder) / "before", count)
        print(f"no run:                              {command_s(none):.3f} CPU-s")
        print(f"{count} runs, without the index:       {command_s(now, forgets=True):.3f} CPU-s")
        print(f"{count} runs, from then on:            {command_s(now):.3f} CPU-s")
        print(f"{count} old runs, read as a whole: {command_s(before, forgets=True):.3f} CPU-s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
