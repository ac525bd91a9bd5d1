"""Pairs of a short recorded run and whole runs of the same program, for the right-sizing room.

Two collections: ``datasets/runs`` (a job's partial run, and its runs to the end on one machine
under limits; groups are workloads) and ``datasets/usage`` (the zoo, see ``usage_series.py``;
groups are scripts).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from advisor import data
from advisor.planners.core.errors import MIB
from advisor.planners.rightsizing.replay import RecordedUsage

RUNS = data.root("datasets") / "runs" / "runs.jsonl.gz"
ZOO = data.root("datasets") / "usage" / "zoo.jsonl.gz"
FEWEST = 8  # readings of a run that says anything


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """One program: what was recorded, and runs that were not."""

    group: str
    recorded: RecordedUsage
    others: tuple[RecordedUsage, ...]


def pairs() -> list[Pair]:
    return [*_of_runs(), *(_of_zoo() if ZOO.exists() else ())]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _of_runs() -> Iterator[Pair]:
    recorded: dict[str, RecordedUsage] = {}
    others: dict[str, list[RecordedUsage]] = {}
    group = {}
    for row in _lines(RUNS):
        series = row["nodes"][0].get("series") or {}
        times = series.get("t_s", ())
        # Some series begin when the run has ended already: all their times are one.
        if row["layout"]["kind"] != "single" or len(set(times)) < FEWEST:
            continue
        job = row["job"]["key"]
        group[job] = row["job"]["workload"]
        usage = _usage(series, row["nodes"][0]["peak_memory_mib"])
        if row["kind"] == "partial":
            recorded.setdefault(job, usage)
        elif row["status"] == "ok":
            others.setdefault(job, []).append(usage)
    for job, one in recorded.items():
        if others.get(job):
            yield Pair(group=group[job], recorded=one, others=tuple(others[job]))


def _usage(series: dict[str, list[float]], peak_mib: float) -> RecordedUsage:
    t = np.array(series["t_s"])
    spent = np.cumsum(np.array(series["cpu_cores"]) * np.diff(t, prepend=0.0))
    memory = np.array(series["memory_mib"])
    memory[-1] = max(memory[-1], peak_mib)  # as the kernel's own mark has it
    return RecordedUsage.of_counters(
        t_s=np.append(0.0, t),
        cpu_s=np.append(0.0, spent),
        memory_bytes=MIB * np.append(memory[0], memory),
        step_s=float(np.median(np.diff(np.unique(t)))),
    )


def _of_zoo() -> Iterator[Pair]:
    for row in _lines(ZOO):
        short, whole = (
            RecordedUsage.of_counters(
                t_s=one["t_s"],
                cpu_s=one["cpu_s"],
                memory_bytes=MIB * np.array(one["memory_mib"]),
                step_s=0.2,
            )
            for one in (row["short"], row["whole"])
        )
        yield Pair(group=row["script"], recorded=short, others=(whole,))
