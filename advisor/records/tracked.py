"""A tracked run of equal machines with its readings, for the importers of experiment trackers.

``resource_series`` brings readings at any times to a fixed interval.

A tracker is read by its own library, which need not be installed here: what is missing is said
with the command that installs it.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.collectors import bounded
from advisor.errors import RunError, pip_hint
from advisor.records.files import unpacked
from advisor.records.nouns import (
    Fact,
    Instances,
    JobFacts,
    ResourceSeries,
    Role,
    RunRecord,
    Status,
    TimeKind,
)

Floats = NDArray[np.float64]


def gauge(t_s: ArrayLike, values: ArrayLike, grid_s: Floats) -> Floats:
    """Return a gauge on a grid, linear between readings and constant outside.

    ``t_s``, ``values``: (n,); readings in any order; those that are not finite are dropped;
    ``grid_s``: shape (m,).
    """
    t, v = _ordered(t_s, values)
    return np.asarray(np.interp(grid_s, t, v) if t.size else np.zeros_like(grid_s), float)


def rate(t_s: ArrayLike, counter: ArrayLike, grid_s: Floats) -> Floats:
    """Return the mean rate of a counter over the interval that ends at each point of a grid.

    A counter that falls was reset: the fall is not counted.
    """
    t, v = _ordered(t_s, counter)
    if t.size < 2 or grid_s.size == 0:
        return np.zeros_like(grid_s)
    total = np.concatenate(([0.0], np.cumsum(np.maximum(np.diff(v), 0.0))))
    step_s = grid_s[1] - grid_s[0] if grid_s.size > 1 else max(float(t[-1] - t[0]), 1e-9)
    gained = np.interp(grid_s, t, total) - np.interp(grid_s - step_s, t, total)
    return np.asarray(gained / step_s, float)


def grid(duration_s: float, interval_s: float) -> Floats:
    """Return the ends of the whole intervals that fit in ``duration_s``."""
    return np.asarray(np.arange(1, int(duration_s / interval_s + 1e-9) + 1) * interval_s, float)


def resource_series(
    channels: Mapping[str, Floats], interval_s: float, role: Role = "all"
) -> ResourceSeries:
    """Return the series of some channels, rounded to six figures to keep files small."""
    return ResourceSeries(
        role=role,
        interval_s=interval_s,
        channels={
            name: tuple(float(f"{max(v, 0.0):.6g}") for v in values)
            for name, values in channels.items()
        },
    )


def _ordered(t_s: ArrayLike, values: ArrayLike) -> tuple[Floats, Floats]:
    t, v = np.asarray(t_s, float), np.asarray(values, float)
    usable = np.isfinite(t) & np.isfinite(v)
    order = np.argsort(t[usable], kind="stable")
    return t[usable][order], v[usable][order]


# The type of a machine that nobody names.
UNKNOWN: Final = "unknown"
# Settings of a job that mean the same to every tracker -> our fact.
SETTINGS: Final = {
    "batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "train_batch_size": "batch",
    "learning_rate": "learning_rate",
    "lr": "learning_rate",
    "epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "parameters": "parameters",
}


def library(name: str) -> Any:
    """Return a module of a tracker's library.

    Raises RunError if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise RunError(
            f"these runs are read with {package}, which is not installed here ({error})",
            hint=pip_hint(package),
        ) from error


def opened(path: Path) -> str:
    """Return the text of a file, unpacked where it is packed, within ``bounded``'s size.

    Raises RunError if it cannot be read, or is larger.
    """
    try:
        with unpacked(path) as file:
            return bounded.read_bytes(file).decode("utf-8-sig", "replace")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RunError(
            f"cannot read {path}: {error}", hint="name a file of fewer steps"
        ) from error


def positive(value: object, path: Path, column: str) -> float:
    """Return a positive finite number.

    Raises RunError naming file and column.
    """
    number = real(value)
    if number is None or number <= 0:
        raise RunError(f"{path}: {column}: {value!r} is not a positive number", hint="see docs")
    return number


def real(value: object) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def job_facts(settings: Mapping[str, object]) -> dict[str, Fact]:
    """Return the settings that the models know, under our names."""
    facts: dict[str, Fact] = {}
    for theirs, ours in SETTINGS.items():
        number = real(settings.get(theirs))
        if number is not None and number > 0:
            facts.setdefault(ours, number)
    return facts


def known_machines(seen: Instances, said: Instances | None) -> Instances:
    """Return what a run ran on: as the user says, and what the tracker saw where nobody does.

    A price alone (of an unknown machine) is put on the machine that was seen.
    """
    if said is None:
        return seen
    if said.instance_type == UNKNOWN:
        return replace(seen, price_usd_per_h=said.price_usd_per_h)
    return said


def readings_series(
    readings: Mapping[str, tuple[Floats, Floats]],
    gauges: Mapping[str, tuple[str, float]],
    counters: Mapping[str, tuple[str, float]],
) -> ResourceSeries | None:
    """Return the series of readings, at the median of the interval of the longest of them.

    ``readings``: by their name, times since the start [s] and values; ``gauges``, ``counters``:
    by our channel, their name and the factor to our unit.
    """
    channels = {**gauges, **counters}
    found = {
        name: readings[theirs] for name, (theirs, _) in channels.items() if theirs in readings
    }
    longest = max((t for t, _ in found.values()), key=len, default=np.empty(0))
    if longest.size < 2:
        return None
    interval_s = max(float(np.median(np.diff(longest))), 0.1)
    ticks = grid(float(longest[-1]), interval_s)
    return resource_series(
        {
            name: channels[name][1] * (rate if name in counters else gauge)(t_s, values, ticks)
            for name, (t_s, values) in found.items()
        },
        interval_s,
    )


def run_record(
    *, source: str, run_id: str, family: str, settings: Mapping[str, object], machines: Instances,
    time_s: float | None, status: Status, series: ResourceSeries | None = None,
    facts: Mapping[str, Fact] | None = None, cost_usd: float | None = None,
    time_kind: TimeKind = "job",
) -> RunRecord:  # fmt: skip
    """Return the record of a tracked run: its job goes by program and settings.

    Where the price of its machines is known and its cost is not, it cost its time.
    """
    known = job_facts(settings)
    name = "-".join([family, *(f"{k}{v:g}" for k, v in sorted(known.items()) if k != "steps")])
    price = machines.price_usd_per_h
    if time_kind == "job" and cost_usd is None and price is not None and time_s is not None:
        cost_usd = price * machines.count * time_s / 3600.0
    return RunRecord(
        record_id=f"{source}/{run_id}",
        source=source,
        job=JobFacts(job_id=name, family=family, facts=known),
        configuration=(machines,),
        time_s=time_s,
        time_kind=time_kind,
        cost_usd=cost_usd,
        status=status,
        series=(series,) if series is not None and series.readings else (),
        facts=facts or {},
    )
