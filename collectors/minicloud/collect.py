"""Run after run, each written down before the next: can be stopped and taken up at any time.

One run at a time. The process is its own zygote: it loads torch and the data once, opening no
thread pool, and forks for each node of each run. What is done is decided by the journal alone: a
run is done when it has a record that is not noisy, or as many as were asked for.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from advisor.collectors import network
from advisor.collectors.errors import RecordingError
from advisor.collectors.minicloud import limits, sampling, summary
from advisor.collectors.minicloud.duration import Pace
from advisor.collectors.minicloud.execute import execute
from advisor.collectors.minicloud.instances import MiniPrices
from advisor.collectors.minicloud.journal import Journal, Row
from advisor.collectors.minicloud.plan import SECONDS, MiniJob, MiniRun, Scale, jobs, plan

ATTEMPTS: Final = 3
# Runs of the plan among which the moment chooses: a plan that is stopped early stays balanced.
_AHEAD: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionProgress:
    """What ``collect`` says before its first run (``run`` and ``row`` are None) and after each.

    ``left_s`` is how long the rest takes, but for noisy runs.
    """

    done: int
    planned: int
    left_s: float
    elapsed_s: float = 0.0
    run: MiniRun | None = None
    row: Row | None = None


def collect(
    journal: Journal,
    *,
    limit: int | None = None,
    hours: float | None = None,
    only: Sequence[str] = ("*",),
    cap_s: float | None = None,
    attempts: int = ATTEMPTS,
    scale: Scale = SECONDS,
    prices: MiniPrices | None = None,
    tell: Callable[[CollectionProgress], None] = lambda progress: None,
) -> int:
    """Make the plan's runs that the journal lacks, noisy ones again at the end.

    Parameters
    ----------
    only : sequence of str
        Patterns for run keys, as a shell matches file names; one must match.
    cap_s : float, optional
        A run that takes longer is cut short; the plan's own by default. [s]
    attempts : int
        How often a run is made at most where it stays noisy.
    tell : callable
        Is given what there is to do before the first run, and the progress after each.

    Raises
    ------
    RecordingError
        No planned run matches ``only``, the journal is of another plan, or this is not Linux.
    """
    if sys.platform != "linux":
        raise RecordingError("runs are limited by Linux's means", hint="collect on Linux")
    wanted = [run for run in plan(scale) if any(fnmatch.fnmatchcase(run.key, o) for o in only)]
    if not wanted:
        raise RecordingError(
            f"no planned run matches {' or '.join(map(repr, only))}", hint="try 'full/mlp-*'"
        )
    began, made = time.monotonic(), 0
    rows = list(journal.rows())
    if any(row.get("plan", SECONDS.name) != scale.name for row in rows):
        raise RecordingError(
            f"these runs are not of the plan {scale.name!r}", hint="name another folder with --out"
        )
    state, pace = State(rows, attempts), Pace(wanted)
    for row in rows:
        pace.add(row)
    _warm_up({run.job for run in wanted})
    with _machinery(scale) as (has_quota, nodes):
        possible = [run for run in wanted if _is_possible(run, has_quota, nodes)]
        tell(CollectionProgress(**_standing(possible, state, pace)))
        while (run := state.next_run(possible, is_calm=sampling.is_calm())) is not None:
            if limit is not None and made >= limit:
                break
            if hours is not None and time.monotonic() - began > hours * 3600:
                break
            row = execute(
                run, state.steps(run), has_quota=has_quota, nodes=nodes,
                cap_s=cap_s or scale.cap_s, prices=prices or MiniPrices(by_shape={}),
            )  # fmt: skip
            row["attempt"] = state.attempts[run.key]
            row["is_noisy"] = summary.is_noisy(row, state.anchor_cpu_s(run))
            journal.append(row)
            state.add(row)
            pace.add(row)
            made += 1
            tell(CollectionProgress(run=run, row=row, elapsed_s=time.monotonic() - began,
                                    **_standing(possible, state, pace)))  # fmt: skip
    return made


def _standing(possible: Sequence[MiniRun], state: State, pace: Pace) -> dict[str, Any]:
    """Return how many runs there are, how many are done, and how long the others will take."""
    left = [run for run in possible if not state.is_done(run)]
    done = len(possible) - len(left)
    return {"done": done, "planned": len(possible), "left_s": pace.left_s(left)}


class State:
    """What the journal says has been done."""

    def __init__(self, rows: Iterable[Row], most: int = ATTEMPTS) -> None:
        self._most = most
        self.attempts: Counter[str] = Counter()
        self._quiet: set[str] = set()
        self._anchors: dict[str, Row] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take a record into account."""
        self.attempts[row["key"]] += 1
        if not row["is_noisy"]:
            self._quiet.add(row["key"])
        summary.take_anchor(self._anchors, row)

    def is_done(self, run: MiniRun) -> bool:
        """Return whether the run needs no further attempt."""
        return run.key in self._quiet or self.attempts[run.key] >= self._most

    def next_run(self, runs: Iterable[MiniRun], *, is_calm: bool = True) -> MiniRun | None:
        """Return the run to make next: ready, not done, of the fewest attempts.

        Of the next in the plan the first that suits the moment: what others disturb most while it
        is calm, the rest while it is not.
        """
        left = (run for run in runs if not self.is_done(run))
        ready = [run for run in left if _is_anchor(run) or run.job.key in self._anchors]
        ready.sort(key=lambda run: self.attempts[run.key])
        return min(
            ready[:_AHEAD],
            key=lambda run: (self.attempts[run.key], is_sensitive(run) != is_calm),
            default=None,
        )

    def steps(self, run: MiniRun) -> int | None:
        """Return the steps that a run is to make; None for the anchor's partial run."""
        if _is_anchor(run):
            return None
        anchor = self._anchors[run.job.key]
        if run.kind == "partial":
            return max(16, min(200, round(2.0 / float(anchor["anchor_step_s"]))))
        return -(-int(anchor["total_steps"]) // run.layout.workers)

    def anchor_cpu_s(self, run: MiniRun) -> float | None:
        """Return the CPU time of a step in the job's quietest anchor run, where there is one."""
        anchor = self._anchors.get(run.job.key)
        return None if anchor is None else summary.cpu_step_s(anchor)


def is_sensitive(run: MiniRun) -> bool:
    """Return whether others disturb a run more than the corrected clock can mend.

    Threads and nodes wait for each other, so that one's wait for a core is everybody's; and the
    anchor's step stands in every feature.
    """
    return run.instance.threads > 1 or run.layout.nodes > 1 or _is_anchor(run)


def _is_anchor(run: MiniRun) -> bool:
    return run.kind == "partial" and run.layout.kind == "single"


@contextlib.contextmanager
def _machinery(scale: Scale) -> Iterator[tuple[bool, network.Nodes | None]]:
    """Make what the runs need and this machine allows: quotas, a small cluster."""
    has_quota = limits.can_limit_cpu()
    with contextlib.ExitStack() as stack:
        nodes = None
        with contextlib.suppress(RecordingError):
            nodes = stack.enter_context(network.cluster(scale.nodes))
        yield has_quota, nodes


def _is_possible(run: MiniRun, has_quota: bool, nodes: network.Nodes | None) -> bool:
    usable = len(os.sched_getaffinity(0))
    return (
        (has_quota or run.instance.quota is None)
        and (nodes is not None or run.layout.kind == "single")
        and run.instance.cores <= usable
    )


def _warm_up(wanted: set[MiniJob]) -> None:
    """Load everything a child needs, opening no thread pool: the children fork from here."""
    import gc

    import torch
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    from advisor.collectors.workloads import load

    torch.set_num_threads(1)
    for name in {job.workload for job in jobs() if job in wanted}:
        workload = load(name)
        samples = workload.samples()
        workload.optimizer(workload.build(workload.widths[0]).parameters())  # imports, late
        next(iter(torch.utils.data.DataLoader(samples, batch_size=2)))
    gc.freeze()


def describe(progress: CollectionProgress) -> str:
    """Return one line on a run, or on what there is to do, for people."""
    left = f"about {progress.left_s / 3600:.1f} h"
    run, row = progress.run, progress.row
    if run is None or row is None:
        return (
            f"{progress.planned} runs, {progress.done} of them made; the others take {left} "
            "where nothing else runs. Stop at any time: the same command goes on"
        )
    time_s = f"{row['time_s']:7.2f} s" if "time_s" in row else "      - "
    share = row.get("correction_fraction")
    noise = "" if share is None else f" corrected by {share:.0%}"
    noise += " NOISY" if row["is_noisy"] else ""
    return (
        f"[{progress.done}/{progress.planned} {progress.elapsed_s / 60:.1f} min, {left} left] "
        f"{row['status']:8} {time_s} {run.key}{noise} {row.get('error', '')}"
    )
