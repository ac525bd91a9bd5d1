"""The duration of a plan: what each run declares, at the pace of the runs that were made.

    t(run) = T / (c W)              a full run: T the whole job's time on the anchor, c the cores
                                    granted to each worker, W the workers that share its samples
    left   = sum over runs to make of t(run) x pace
    pace   = sum over runs made of seconds spent / sum of their t, for runs of one kind of layout

Start, exchange and contention are in the pace, which is 1 until a run of its kind was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advisor.collectors.minicloud.journal import Row
from advisor.collectors.minicloud.plan import MiniRun, wanted_s


def declared_s(run: MiniRun) -> float:
    """Return what a run takes where nothing is exchanged and nobody else is there [s]."""
    if run.kind == "partial":
        return run.scale.partial_cpu_s
    cores = min(run.instance.granted_cores, float(run.instance.threads))
    return wanted_s(run.job, run.scale) / (cores * run.layout.workers)


class Pace:
    """Seconds spent for each declared second, by the kind of layout; rows come one at a time."""

    def __init__(self, planned: Iterable[MiniRun]) -> None:
        self._planned = {run.key: run for run in planned}
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._declared_s: defaultdict[str, float] = defaultdict(float)

    def add(self, row: Row) -> None:
        """Take a run that was made into account."""
        run = self._planned.get(row["key"])
        nodes: Sequence[Mapping[str, Any]] = row.get("nodes") or ({},)
        if run is None or "wall_s" not in row:
            return
        kind = self._kind(run)
        self._spent_s[kind] += float(row["wall_s"]) + float(nodes[0].get("setup_s", 0.0))
        self._declared_s[kind] += declared_s(run)

    def left_s(self, runs: Iterable[MiniRun]) -> float:
        """Return how long runs that are still to be made will take [s]."""
        return sum(declared_s(run) * self._of(self._kind(run)) for run in runs)

    def _of(self, kind: str) -> float:
        declared = self._declared_s[kind]
        return self._spent_s[kind] / declared if declared else 1.0

    @staticmethod
    def _kind(run: MiniRun) -> str:
        return f"{run.kind} {run.layout.kind}"
