"""Weights & Biases runs: summary, metadata and, where exported, the system metrics.

A run's folder (``files/`` of a local run, or the files downloaded through its API) with
``wandb-summary.json``; ``wandb-metadata.json`` tells the machine, ``config.json`` the settings,
and ``wandb-events.jsonl`` or ``system_metrics.csv`` (``run.history(stream="events").to_csv()``)
the readings. Network counters are cumulative since the start, CPU is percent of all cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records import Instances, ResourceSeries, RunRecord
from advisor.records.importers.series import gauge, grid, rate, resource_series
from advisor.records.importers.tracked import positive, read_object, real, run_record
from advisor.records.nouns import Status

SUMMARY: Final = "wandb-summary.json"
EVENTS: Final = ("wandb-events.jsonl", "system_metrics.csv")
_MB: Final = 1e6
_GIB: Final = 2**30
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


def read(path: Path) -> list[RunRecord]:
    """Read every run under a folder.

    Raises
    ------
    RunError
        Naming the file, row and column of a bad value.
    """
    summaries = [path] if path.is_file() else sorted(path.rglob(SUMMARY))
    if not summaries:
        raise RunError(f"no {SUMMARY} in {path}", hint="download the run's files")
    return [_record(file.parent, file) for file in summaries]


def _record(folder: Path, file: Path) -> RunRecord:
    summary = read_object(file)
    metadata = _optional(folder / "wandb-metadata.json")
    config = _optional(folder / "config.json")
    settings = {k: v["value"] if isinstance(v, dict) and "value" in v else v
                for k, v in config.items()}  # fmt: skip
    state = str(metadata.get("state", summary.get("state", "finished"))).lower()
    run_id = folder.parent.name if folder.name == "files" else folder.name
    program = Path(str(metadata.get("program", "") or run_id)).stem
    machines = _machines(metadata)
    return run_record(
        source="wandb",
        run_id=run_id,
        family=program,
        settings=settings,
        machines=machines,
        time_s=positive(summary.get("_runtime"), file, "_runtime"),
        status=_STATES.get(state, "failed"),
        series=_series(folder, machines.vcpus),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _machines(metadata: dict[str, Any]) -> Instances:
    memory = metadata.get("memory")
    total = real(memory.get("total")) if isinstance(memory, dict) else None
    # Older clients wrote GiB, newer ones bytes.
    gib = total / _GIB if total is not None and total > _GIB / 1024 else total
    gpus = int(real(metadata.get("gpu_count")) or 0)
    gpu = str(metadata.get("gpu") or "") if gpus else ""
    return Instances(
        provider="",
        instance_type=str(metadata.get("host") or "unknown"),
        vcpus=real(metadata.get("cpu_count_logical")) or real(metadata.get("cpu_count")),
        memory_gib=gib,
        accelerator=gpu,
        accelerators=gpus if gpu else 0,
    )


def _series(folder: Path, vcpus: float | None) -> ResourceSeries | None:
    file = next((folder / name for name in EVENTS if (folder / name).is_file()), None)
    if file is None:
        return None
    rows = _rows(file)
    t_s = [_cell(row, "_runtime", file, n) for n, row in enumerate(rows, start=1)]
    if len(t_s) < 2:
        return None
    interval_s = max(float(np.median(np.diff(t_s))), 0.1)
    ticks = grid(t_s[-1], interval_s)
    columns = {name for row in rows for name in row}
    channels = {}
    for name, (theirs, factor) in (_GAUGES | _COUNTERS).items():
        if theirs in columns:
            fill = rate if name in _COUNTERS else gauge
            channels[name] = factor * fill(t_s, [_value(row, theirs) for row in rows], ticks)
    if "system.cpu" in columns and vcpus:
        percent = [_value(row, "system.cpu") for row in rows]
        channels["cpu_cores"] = vcpus * gauge(t_s, percent, ticks) / 100.0
    return resource_series(channels, interval_s)


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
