"""Runs of a Hugging Face ``Trainer``: ``trainer_state.json``, with its metrics if they lie beside.

A folder with ``trainer_state.json`` (also in a ``checkpoint-*`` folder), or folders of such
folders. The time is ``train_runtime`` of the closing entry of ``log_history``; a state without
one did not end: where its metrics do not tell either, the run is refused. ``all_results.json``
adds the memory that ``skip_memory_metrics=False`` records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from advisor.errors import RunError
from advisor.records import Fact, Instances, RunRecord
from advisor.records.importers.tracked import (
    UNKNOWN,
    known_machines,
    positive,
    read_object,
    real,
    run_record,
)

STATE: Final = "trainer_state.json"
_OBSERVED: Final = {
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
    "total_flos": "flop",
    "train_mem_cpu_peaked_delta": "memory_peak_bytes",
    "train_mem_gpu_peaked_delta": "gpu_memory_peak_bytes",
}


def read(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every run under a folder, or one ``trainer_state.json``; ``machines`` made them.

    Raises RunError naming the file, and the column that is missing or makes no sense.
    """
    files = [path] if path.is_file() else sorted(path.rglob(STATE))
    if not files:
        raise RunError(f"no {STATE} in {path}", hint="name the Trainer's output folder")
    newest: dict[Path, Path] = {}  # a run's checkpoints hold earlier states of the same run
    for file in files:
        folder = file.parent
        run = folder.parent if folder.name.startswith("checkpoint-") else folder
        if run not in newest or _step(file) >= _step(newest[run]):
            newest[run] = file
    return [_record(run, file, machines) for run, file in newest.items()]


def _step(file: Path) -> float:
    return real(read_object(file).get("global_step")) or 0.0


def _record(run: Path, file: Path, machines: Instances | None) -> RunRecord:
    state = read_object(file)
    closing = _closing(state)
    for name in ("all_results.json", "train_results.json"):
        if (run / name).is_file():
            closing = {**closing, **read_object(run / name)}
    if "train_runtime" not in closing:
        raise RunError(
            f"{file}: train_runtime: missing", hint="the run has not ended; import it when it has"
        )
    facts: dict[str, Fact] = {
        ours: value
        for theirs, ours in _OBSERVED.items()
        if (value := real(closing.get(theirs))) is not None and value >= 0
    }
    return run_record(
        source="huggingface",
        run_id=run.resolve().name,
        family=run.resolve().name,
        settings=state,
        machines=known_machines(Instances(provider="", instance_type=UNKNOWN), machines),
        time_s=positive(closing["train_runtime"], file, "train_runtime"),
        status="ok",
        facts=facts,
    )


def _closing(state: dict[str, Any]) -> dict[str, Any]:
    entries = state.get("log_history") or []
    return next((e for e in reversed(entries) if "train_runtime" in e), {})
