"""Weights & Biases runs: offline runs as they are on disk, or the files that its API exports.

An offline run is a folder with ``run-<id>.wandb`` (``wandb_log`` reads it). An exported one is a
folder with ``wandb-summary.json``; ``wandb-metadata.json`` tells the machine, ``config.json`` the
settings, and ``wandb-events.jsonl`` or ``system_metrics.csv``
(``run.history(stream="events").to_csv()``) the readings. Network counters are cumulative since the
start, CPU is percent of all cores. A run without an end was killed, or still runs: its time so far
is a lower bound (``censored``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.planners.core.units import GIB
from advisor.records import Instances, ResourceSeries, RunRecord
from advisor.records.importers.tracked import (
    UNKNOWN,
    known_machines,
    positive,
    read_object,
    readings_series,
    real,
    run_record,
)
from advisor.records.importers.wandb_log import LoggedRun, read_log
from advisor.records.nouns import Status

LOG: Final = ".wandb"
SUMMARY: Final = "wandb-summary.json"
EVENTS: Final = ("wandb-events.jsonl", "system_metrics.csv")
_MB: Final = 1e6
# Channel -> (their name, factor to ours)
_GAUGES: Final = {
    "memory_bytes": ("system.proc.memory.rssMB", 2.0**20),
    "gpu_fraction": ("system.gpu.0.gpu", 0.01),
    "gpu_memory_bytes": ("system.gpu.0.memoryAllocatedBytes", 1.0),
    "gpu_power_w": ("system.gpu.0.powerWatts", 1.0),
}
_COUNTERS: Final = {
    "network_received_bytes_per_s": ("system.network.recv", 1.0),
    "network_sent_bytes_per_s": ("system.network.sent", 1.0),
    "disk_read_bytes_per_s": ("system.disk.in", _MB),
    "disk_write_bytes_per_s": ("system.disk.out", _MB),
}
_STATES: Final[dict[str, Status]] = {
    "finished": "ok", "failed": "failed", "crashed": "failed", "killed": "censored",
}  # fmt: skip


def read(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every run under a folder, or one file of a run; ``machines`` made them.

    Raises RunError naming the file, row and column of a bad value.
    """
    logs, summaries = _found(path, f"*{LOG}"), _found(path, SUMMARY)
    logged = {log.parent for log in logs}
    summaries = [one for one in summaries if one.parent.parent not in logged]
    if not logs and not summaries:
        raise RunError(
            f"no *{LOG} and no {SUMMARY} in {path}",
            hint="name the folder wandb/ of the script, or download the run's files",
        )
    records = [_record(log.stem.removeprefix("run-"), log, read_log(log), machines)
               for log in logs]  # fmt: skip
    return records + [
        _record(_run_id(file.parent), file, _exported(file.parent), machines) for file in summaries
    ]


def _found(path: Path, pattern: str) -> list[Path]:
    """Return the files of a kind; the link to the latest run leads to one that is there."""
    if path.is_file():
        return [path] if path.match(pattern) else []
    return sorted({file.resolve() for file in path.rglob(pattern)})


def _run_id(folder: Path) -> str:
    return folder.parent.name if folder.name == "files" else folder.name


def _exported(folder: Path) -> LoggedRun:
    metadata = _optional(folder / "wandb-metadata.json")
    summary = read_object(folder / SUMMARY)
    metadata.setdefault("state", summary.get("state", "finished"))
    config = {k: v["value"] if isinstance(v, dict) and "value" in v else v
              for k, v in _optional(folder / "config.json").items()}  # fmt: skip
    file = next((folder / name for name in EVENTS if (folder / name).is_file()), None)
    return LoggedRun(
        summary=summary,
        metadata=metadata,
        config=config,
        events=[] if file is None else _rows(file),
    )


def _record(run_id: str, file: Path, run: LoggedRun, said: Instances | None) -> RunRecord:
    state = str(run.metadata.get("state", "killed")).lower()
    machines = known_machines(_machines(run.metadata), said)
    return run_record(
        source="wandb",
        run_id=run_id,
        family=Path(str(run.metadata.get("program", "") or run_id)).stem,
        settings=run.config,
        machines=machines,
        time_s=positive(run.summary.get("_runtime"), file, "_runtime"),
        status=_STATES.get(state, "failed"),
        series=_series(file, run.events, real(_cores(run.metadata)) or machines.vcpus),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _cores(metadata: dict[str, Any]) -> Any:
    return metadata.get("cpu_count_logical") or metadata.get("cpu_count")


def _machines(metadata: dict[str, Any]) -> Instances:
    memory = metadata.get("memory")
    total = real(memory.get("total")) if isinstance(memory, dict) else None
    # Older clients wrote GiB, newer ones bytes.
    gib = total / GIB if total is not None and total > GIB / 1024 else total
    gpus = int(real(metadata.get("gpu_count")) or 0)
    gpu = str(metadata.get("gpu") or "") if gpus else ""
    return Instances(
        provider="",
        instance_type=str(metadata.get("host") or UNKNOWN),
        vcpus=real(_cores(metadata)),
        memory_gib=gib,
        accelerator=gpu,
        accelerators=gpus if gpu else 0,
    )


def _series(file: Path, rows: list[dict[str, Any]], vcpus: float | None) -> ResourceSeries | None:
    t_s = np.array([_cell(row, "_runtime", file, n) for n, row in enumerate(rows, start=1)])
    columns = {name for row in rows for name in row}
    readings = {name: (t_s, np.array([_value(row, name) for row in rows])) for name in columns}
    cores = {"cpu_cores": ("system.cpu", vcpus / 100.0)} if vcpus else {}
    return readings_series(readings, _GAUGES | cores, _COUNTERS)


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            if file.suffix == ".csv":
                return list(bounded.csv_tables(lines))
            return [bounded.parse_json(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file}: {error}", hint="export the events again") from error


def _cell(row: dict[str, Any], name: str, file: Path, number: int) -> float:
    value = real(row.get(name))
    if value is None:
        raise RunError(
            f"{file}: row {number}: {name}: {row.get(name)!r} is not a number",
            hint="export the events again",
        )
    return value


def _value(row: dict[str, Any], name: str) -> float:
    value = real(row.get(name))
    return float("nan") if value is None else value
