"""What watched a machine while a job ran on it: ``nvidia-smi`` and ``pidstat``.

``nvidia-smi dmon`` writes a line a device and interval (``-o DT`` adds day and time; without them
an interval is a second, its default). ``nvidia-smi --query-gpu=... --format=csv -l 1`` writes a
table whose names hold the units; its time is ``timestamp``. ``pidstat`` (sysstat) writes a line a
process and interval; ``%CPU`` is of one core. None of them says how long the job takes, nor what
a step takes: what was watched is the least that it took (``censored``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records.nouns import Instances, RunRecord
from advisor.records.tracked import (
    UNKNOWN,
    known_machines,
    opened,
    readings_series,
    real,
    run_record,
)

# Channel -> the columns that may hold it, and the factor to its unit.
_CHANNELS: Final = {
    "gpu_fraction": (("sm", "utilization.gpu"), 0.01),
    "gpu_memory_bytes": (("fb", "memory.used"), 2.0**20),
    "gpu_power_w": (("pwr", "power.draw"), 1.0),
    "cpu_cores": (("%CPU",), 0.01),
    "memory_bytes": (("RSS",), 2.0**10),
    "disk_read_bytes_per_s": (("kB_rd/s",), 2.0**10),
    "disk_write_bytes_per_s": (("kB_wr/s",), 2.0**10),
}
_CLOCKS: Final = ("%Y/%m/%d %H:%M:%S.%f", "%Y%m%d %H:%M:%S", "%H:%M:%S", "%I:%M:%S %p")
_DAY_S: Final = 86_400.0
_DEVICE: Final = ("gpu", "index", "pci.bus_id", "uuid")


def read_nvidia_smi(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read what ``nvidia-smi`` logged of one machine's devices: the mean over them.

    Raises RunError if nothing was logged.
    """
    rows = list(_rows(path, opened(path)))
    devices = {row[name] for row in rows for name in _DEVICE if name in row} or {""}
    name = next((row["name"] for row in rows if row.get("name")), "")
    seen = Instances(
        provider="", instance_type=UNKNOWN, accelerator=name,
        accelerators=len(devices) if name else 0,
    )  # fmt: skip
    return [_record("nvidia-smi", path, rows, known_machines(seen, machines), len(devices))]


def read_pidstat(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read what ``pidstat`` logged: the sum over the processes.

    Raises RunError if nothing was logged.
    """
    text = opened(path)
    cores = re.search(r"\((\d+) CPU\)", text[:1000])
    seen = Instances(provider="", instance_type=UNKNOWN, vcpus=float(cores[1]) if cores else None)
    return [_record("pidstat", path, list(_rows(path, text)), known_machines(seen, machines), 1)]


def _record(
    source: str, path: Path, rows: list[dict[str, str]], machines: Instances, devices: int
) -> RunRecord:
    """Return the record of what was watched; gauges of ``devices`` are their mean."""
    sums: dict[float, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for t_s, row in _timed(rows, devices):
        for name, (columns, factor) in _CHANNELS.items():
            cell = next((row[one] for one in columns if one in row), "")
            if (value := real(cell.partition(" ")[0])) is not None:
                sums[t_s][name] += factor * value / devices
    ticks = np.array(sorted(sums))
    if ticks.size < 2:
        raise RunError(
            f"{path}: fewer than two readings of {source}",
            hint="log for longer, with the line of names: nvidia-smi dmon -o DT; pidstat -h -r -u",
        )
    names = {name for found in sums.values() for name in found}
    readings = {
        name: (ticks - ticks[0], np.array([sums[t].get(name, np.nan) for t in ticks]))
        for name in names
    }
    return run_record(
        source=source,
        run_id=path.stem,
        family=path.stem,
        settings={},
        machines=machines,
        time_s=float(ticks[-1] - ticks[0] + np.median(np.diff(ticks))),
        status="censored",
        series=readings_series(readings, {name: (name, 1.0) for name in names}, {}),
    )


def _rows(path: Path, text: str) -> Iterator[dict[str, str]]:
    """Yield the readings by the names of their columns, their time under ``Time``."""
    try:
        yield from _cells(text.splitlines())
    except ValueError as error:
        raise RunError(
            f"cannot read {path}: {error}", hint="log again, and leave it be"
        ) from error


def _cells(lines: list[str]) -> Iterator[dict[str, str]]:
    names: list[str] = []
    if lines and "," in lines[0]:
        cells = bounded.csv_rows(lines, skipinitialspace=True)
        names = [name.partition(" [")[0].strip() for name in next(iter(cells), [])]
        renamed = ["Time" if name == "timestamp" else name for name in names]
        yield from (dict(zip(renamed, row, strict=False)) for row in cells)
        return
    for line in lines:
        cells_ = line.lstrip("# ").split()
        if cells_[1:2] in (["AM"], ["PM"]):
            cells_[:2] = [" ".join(cells_[:2])]
        if {"PID", "gpu"} & set(cells_):
            names = ["Time", *cells_[1:]] if cells_[0][0].isdigit() else cells_
        elif names and len(cells_) >= len(names) and not line.startswith(("#", "Average")):
            yield dict(zip(names, cells_, strict=False))


def _timed(rows: list[dict[str, str]], devices: int) -> Iterator[tuple[float, dict[str, str]]]:
    """Yield the readings with their time [s]; clocks without a day go on over midnight."""
    before_s, days = 0.0, 0
    for number, row in enumerate(rows):
        clock = f"{row.get('Date', '')} {row.get('Time', '')}".strip()
        t_s = float(number // devices) if not clock else _seconds(clock)
        if t_s is None:
            continue
        days += t_s + _DAY_S * days < before_s - _DAY_S / 2
        before_s = t_s + _DAY_S * days
        yield before_s, row


def _seconds(clock: str) -> float | None:
    if clock.isdigit():
        return float(clock)  # since the epoch, as pidstat -h has it
    for form in _CLOCKS:
        try:
            return (datetime.strptime(clock, form) - datetime(1900, 1, 1)).total_seconds()
        except ValueError:
            continue
    return None
