"""What a recorded script allocates, as the advisor has it, beside what PyTorch allocated.

Every script of ``tests/zoo`` that trains with PyTorch in one process is profiled for a
few seconds (``advisor profile``), and its recording is asked for the memory of a step
(``planners.memory.recorded_steps``, without context and slack). The same script then runs under
PyTorch's own profiler (``allocated.py``). The baseline is what the advisor said before it
replayed allocations: weights, gradients, optimizer state and saved activations.

python -m advisor.lab.experiments.allocations [--json allocations.json] [NAME ...]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from advisor.collectors.derive import store
from advisor.collectors.errors import RecordingError
from advisor.jobs.recorded_work import recorded_work
from advisor.lab import frame
from advisor.lab.experiments.zoo import Script, advisor, environment_of, scripts
from advisor.planners.core.nouns import Work
from advisor.planners.memory.recorded_steps import MemoryParameters, training_memory_bytes

_TRUTH: Final = Path(__file__).with_name("allocated.py")
_TIMEOUT_S: Final = 300.0
# Tensors alone: nothing of the process, of the runtime or of an allocator.
_TENSORS: Final = MemoryParameters(
    context_bytes=0.0, alone_context_bytes=0.0, process_bytes=0.0, slack=1.0, cpu_slack=1.0,
    logit_bytes=8.0, bucket_fraction=1.0, log_sd=0.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A script: the peak of a step's allocations as said and as measured [bytes]."""

    name: str
    said_bytes: float | None = None
    without_replay_bytes: float | None = None
    measured_bytes: float | None = None
    why: str = ""  # what is missing, where something is

    @property
    def error(self) -> float | None:
        """Said over measured, less 1."""
        return _error(self.said_bytes, self.measured_bytes)

    @property
    def error_without_replay(self) -> float | None:
        return _error(self.without_replay_bytes, self.measured_bytes)


def _error(said: float | None, measured: float | None) -> float | None:
    return said / measured - 1.0 if said is not None and measured else None


def tensor_bytes(work: Work, *, accumulates: bool) -> float:
    """Return the tensors of a step on the machine that it was recorded on [bytes]."""
    return float(
        training_memory_bytes(
            work, work.micro_batch, is_cpu=True, accumulates=accumulates, parameters=_TENSORS
        )
    )


def said(script: Script, folder: Path, seconds: float) -> Row:
    row = Row(name=script.path.name)
    done = advisor(folder, "profile", "--quiet", "--for", f"{seconds:g}s", *script.words)
    try:
        recording = store.read_recording(store.latest_run(folder / "runs"))
    except RecordingError as error:
        return replace(row, why=f"{error} (profile: exit {done.returncode})")
    # How long a step takes may be unknown, beside others; what it allocates is not.
    deep = recording.deep_step
    work = None if deep is None else recorded_work(deep, recording.loading)
    if deep is None or work is None or not work.moments:
        return replace(row, why="no step was traced")
    accumulates = deep.micro_batches > 1
    bare = replace(work, moments=())
    return replace(
        row, said_bytes=tensor_bytes(work, accumulates=accumulates),
        without_replay_bytes=tensor_bytes(bare, accumulates=accumulates),
    )  # fmt: skip


def measured(script: Script, folder: Path) -> float:
    """Return what PyTorch allocated in a step of the script [bytes].

    Raises RuntimeError if the script fails or trains too few steps.
    """
    done = subprocess.run(
        [sys.executable, str(_TRUTH), str(script.path), *script.args], cwd=folder,
        env={**os.environ, **environment_of(folder / "runs")}, capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-200:]}")
    return float(json.loads(lines[-1])["peak_bytes"])


def is_asked(script: Script, names: Sequence[str]) -> bool:
    """Whether a script trains with PyTorch in one process, and is among those named."""
    alone = script.is_of_torch and "--num-processes" not in script.args
    return alone and script.is_named(names)


def measure(script: Script, seconds: float) -> Row:
    """Return the row of one script, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="allocations-") as folder:
        row = said(script, Path(folder), seconds)
        try:
            return replace(row, measured_bytes=measured(script, Path(folder)))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return replace(row, why=row.why or str(error))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures: errors of the scripts that have both, and of the baseline."""
    known = [row for row in rows if row.error is not None]
    off = [abs(row.error or 0.0) for row in known]
    before = [abs(row.error_without_replay or 0.0) for row in known]
    if not known:
        return {"scripts": 0}
    return {
        "scripts": len(known),
        "median_ape": statistics.median(off),
        "mape": statistics.fmean(off),
        "below_measured_by_over_5_percent": sum((row.error or 0.0) < -0.05 for row in known),
        "without_replay": {"median_ape": statistics.median(before),
                           "mape": statistics.fmean(before)},
    }  # fmt: skip


def line(row: Row) -> str:
    if row.error is None or row.said_bytes is None or row.measured_bytes is None:
        return f"{row.name:24} {row.why[:90]}"
    return (
        f"{row.name:24} {row.said_bytes / 2**20:10.2f} {row.measured_bytes / 2**20:10.2f} "
        f"{row.error:+8.1%} {row.error_without_replay or 0.0:+10.1%}"
    )


def main() -> None:
    options = frame.options(__doc__, {
        "names": {"nargs": "*", "help": "parts of scripts' names; all by default"},
        "--seconds": (8.0, "to profile each for"), "--json": (Path, "write the record here"),
    })  # fmt: skip
    print(f"{'script':24} {'said MiB':>10} {'measured':>10} {'error':>8} {'no replay':>10}")
    rows = []
    for script in scripts():
        if is_asked(script, options.names):
            rows.append(measure(script, options.seconds))
            print(line(rows[-1]), flush=True)
    figures = summary(rows)
    print(json.dumps(figures, indent=1))
    record = {"schema_version": 1, "summary": figures, "scripts": [asdict(r) for r in rows]}
    frame.write_json(options.json, record)


if __name__ == "__main__":
    main()
