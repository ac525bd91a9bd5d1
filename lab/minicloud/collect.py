"""Run after run, each written down before the next: can be stopped and taken up at any time.

One run at a time. The process is its own zygote: it loads torch and the data once, opening no
thread pool, and forks for each node of each run. What is done is decided by the journal alone: a
run is done when it has a record that is not noisy, or as many as were asked for.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors.errors import RecordingError
from advisor.collectors.watch import network
from advisor.collectors.watch.host import cpu_model
from advisor.lab.minicloud import limits, summary
from advisor.lab.minicloud.node import Seat, fork, read_report
from advisor.lab.minicloud.plan import (
    ANCHOR,
    SECONDS,
    SINGLE,
    MiniJob,
    MiniPrices,
    MiniRun,
    Pace,
    Scale,
    jobs,
    plan,
    total_steps,
)
from advisor.lab.minicloud.tape import Tape
from advisor.records import collected
from advisor.records.collected import Journal, Row

# One run: its nodes are forked, watched from outside, and what was seen is written down.


_TAPE_STEPS: Final = 20_000
_PORTS: Final = itertools.cycle(range(29_000, 31_000))  # never the one of the run before


def execute(
    run: MiniRun,
    steps: int | None,
    *,
    has_quota: bool,
    nodes: network.Nodes | None,
    cap_s: float,
    prices: MiniPrices,
) -> Row:
    """Make one run and return its record.

    ``steps``: steps of the loop on each worker; None for the anchor's partial run; ``nodes``: the
    small cluster; without it a single process runs in the machine's own network.
    """
    if nodes is not None:
        nodes.shape(run.layout.rate_bit_per_s)
    cores = _cores(run)
    before, started = limits.MachineClock.now(), datetime.now(UTC)
    tapes = [Tape(max(_TAPE_STEPS, steps or 0)) for _ in range(run.layout.nodes)]
    port = next(_PORTS)
    scale = run.scale
    interval_s = scale.partial_interval_s if run.kind == "partial" else scale.full_interval_s
    with contextlib.ExitStack() as stack:
        started_nodes = []
        for rank, tape in enumerate(tapes):
            group = None
            if has_quota:
                named = limits.cpu_group(f"n{rank}", quota=run.instance.quota)
                group = stack.enter_context(named)
            seat = Seat(rank=rank, cores=cores, group=group, network=nodes, port=port, tape=tape)
            started_nodes.append(fork(run, seat, steps))
        samplers = [
            limits.ProcessSampler(pid, has_network=nodes is not None) for pid, _ in started_nodes
        ]
        statuses, cut_s = _watch(samplers, tapes, interval_s=interval_s, cap_s=cap_s)
        seen = [
            summary.Seen(
                rank=rank, report=read_report(pipe), elapsed=tape.read()[0],
                delay=tape.read()[1], steps=tape.steps, series=sampler.series,
                peak_memory_mib=sampler.peak_memory_mib, wait_status=status,
            )
            for rank, ((_, pipe), tape, sampler, status) in enumerate(
                zip(started_nodes, tapes, samplers, statuses, strict=True)
            )
        ]  # fmt: skip
    for tape in tapes:
        tape.close()
    return priced(_row(run, seen, steps, cut_s, before, started, cores), run, prices)


def priced(row: Row, run: MiniRun, prices: MiniPrices) -> Row:
    """Return the row with what a machine like that costs, and its plan where it is another."""
    price, source = prices.of(run.instance, run.layout)
    if run.scale != SECONDS:
        row["plan"] = run.scale.name
    row["instance"] |= {"nominal_price_usd_per_h": round(price, 6), "priced_as": source}
    if row["status"] == "ok":
        row["cost_usd"] = run.layout.nodes * price * row["time_s"] / 3600.0
    return row


def _watch(
    samplers: list[limits.ProcessSampler], tapes: list[Tape], *, interval_s: float, cap_s: float
) -> tuple[list[int], float | None]:
    """Sample the nodes until all have ended; end them when it takes too long or one fails."""
    statuses = [0] * len(samplers)
    running, cut_s = dict(enumerate(samplers)), None
    began = tick = time.monotonic()
    try:
        while running:
            for rank, sampler in list(running.items()):
                if tapes[rank].began_s is not None:
                    sampler.read()
                ended, statuses[rank] = os.waitpid(sampler.pid, os.WNOHANG)
                if ended:
                    del running[rank]
            now, start = time.monotonic(), tapes[0].began_s
            is_late = now - (start or began + cap_s) > cap_s  # twice the cap to come up
            if is_late and start and running:
                cut_s = now - start
            if is_late or any(statuses):
                break
            tick = max(tick + interval_s, now - interval_s)
            _sleep_or_end([sampler.pid for sampler in running.values()], tick)
    finally:
        for sampler in running.values():  # all at once: who is left alone ends with an error
            os.kill(sampler.pid, signal.SIGKILL)
        for rank, sampler in running.items():
            statuses[rank] = os.waitpid(sampler.pid, 0)[1]
    return statuses, cut_s


def _sleep_or_end(pids: list[int], deadline: float) -> None:
    """Sleep until the next reading is due, less where the last process ends before."""
    while pids and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if len(pids) == 1 and os.waitid(os.P_PID, pids[0], options):
            return


def _row(
    run: MiniRun,
    seen: list[summary.Seen],
    steps: int | None,
    cut_s: float | None,
    before: limits.MachineClock,
    started: datetime,
    cores: tuple[int, ...],
) -> Row:
    after = limits.MachineClock.now()
    passed_s = after.at_s - before.at_s
    own_s = sum(node.report.cpu_s for node in seen if node.report is not None)
    out = summary.label(run, seen, steps, cut_s)
    row: Row = {
        "schema": collected.SCHEMA,
        "key": run.key,
        "kind": run.kind,
        "job": {
            "key": run.job.key, "workload": run.job.workload,
            "width": run.job.width, "batch": run.job.batch,
        },
        "instance": {
            "name": run.instance.name, "cores": run.instance.cores,
            "quota_cores": run.instance.quota, "granted_cores": run.instance.granted_cores,
            "threads": run.instance.threads,
            "memory_headroom_bytes": run.instance.memory_headroom_bytes,
        },
        "layout": {
            "name": run.layout.name, "kind": run.layout.kind, "nodes": run.layout.nodes,
            "workers": run.layout.workers, "rate_bit_per_s": run.layout.rate_bit_per_s,
        },
        "replicate": run.replicate,
        **out,
        "nodes": [summary.node_row(run, node) for node in seen],
        "pinned_to": list(cores),
        "load_1min": round(os.getloadavg()[0], 2),
        "others_cores": round(max(0.0, after.busy_s - before.busy_s - own_s) / passed_s, 3),
        "steal_fraction": round((after.steal_s - before.steal_s) / passed_s, 4),
        "pressure_fraction": limits.pressure(),
        "started_at": started.isoformat(timespec="seconds"),
        "host": platform.node(),
    }  # fmt: skip
    if run.kind == "partial" and out["status"] == "ok":
        row |= _anchor_facts(run, seen)
    return row


def _anchor_facts(run: MiniRun, seen: list[summary.Seen]) -> Row:
    """Return what only a partial run tells: counts, the settled step, the job's declared total."""
    chief = seen[-1]  # of a parameter server's nodes the last is a worker
    counts = chief.report.counts if chief.report else None
    ends, delays = seen[0].elapsed, seen[0].delay
    wall = np.diff(np.concatenate(([0.0], ends)))
    waits = np.diff(np.concatenate(([0.0], delays)))
    facts: Row = {
        "counts": counts,
        "first_steps_ms": [round(1e3 * float(v), 4) for v in wall[:120]],
        "first_steps_delay_ms": [round(1e3 * float(v), 4) for v in waits[:120]],
    }
    if run.layout.kind == "single":
        settled = np.maximum(wall - waits, 0.0)[3:]
        step_s = float(np.median(settled))
        facts["anchor_step_s"] = round(step_s, 7)
        facts["anchor_mean_step_s"] = round(float(np.mean(settled)), 7)
        facts["total_steps"] = total_steps(
            run.job, anchor_step_s=step_s, partial_steps=seen[0].steps, scale=run.scale
        )
    return facts


def this_machine() -> str:
    """Return what tells this machine's processor from others: its name, its model, its cores."""
    told: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    model = "/".join(told[name] for name in ("cpu family", "model") if name in told)
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return ", ".join(part for part in (cpu_model(), model, cores) if part)


def _cores(run: MiniRun) -> tuple[int, ...]:
    usable = sorted(os.sched_getaffinity(0))
    wanted = run.instance.cores if run.layout.kind == "single" else len(usable)
    if wanted >= len(usable):
        return tuple(usable)
    first = _idle_ticks()
    time.sleep(0.05)
    gained = {core: ticks - first[core] for core, ticks in _idle_ticks().items()}
    return tuple(sorted(usable, key=lambda core: -gained.get(core, 0))[:wanted])


def _idle_ticks() -> dict[int, int]:
    lines = Path("/proc/stat").read_text().splitlines()[1:]
    return {
        int(line.split()[0][3:]): int(line.split()[4]) for line in lines if line.startswith("cpu")
    }


ATTEMPTS: Final = 3
# Runs of the plan among which the moment chooses: a plan that is stopped early stays balanced.
_AHEAD: Final = 24
# After so long a job is profiled again before its next full run: a machine with neighbours is not
# equally fast all day, and who rents profiles shortly before [s].
_STALE_S: Final = 1800.0


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

    ``only``: patterns for run keys, as a shell matches file names; one must match; ``cap_s``: a
    run that takes longer is cut short; the plan's own by default [s]; ``attempts``: how often a
    run is made at most where it stays noisy; ``tell``: is given what there is to do before the
    first run, and the progress after each.

    Raises RecordingError: no planned run matches ``only``, the journal is of another plan, or this
    is not Linux.
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
    machine = this_machine()
    state, pace = State(rows, attempts, machine), Pace(wanted)
    for row in rows:
        pace.add(row)
    _warm_up({run.job for run in wanted})
    with _machinery(scale) as (has_quota, nodes):
        possible = [run for run in wanted if _is_possible(run, has_quota, nodes)]
        tell(CollectionProgress(**_standing(possible, state, pace)))
        while (run := state.next_run(possible, is_calm=limits.is_calm())) is not None:
            if limit is not None and made >= limit:
                break
            if hours is not None and time.monotonic() - began > hours * 3600:
                break
            if state.is_stale(run, datetime.now(UTC)):
                run = replace(run, kind="partial", instance=ANCHOR, layout=SINGLE, replicate=0)
            row = execute(
                run, state.steps(run), has_quota=has_quota, nodes=nodes,
                cap_s=cap_s or scale.cap_s, prices=prices or MiniPrices(by_shape={}),
            )  # fmt: skip
            row |= {"attempt": state.attempts[run.key], "machine": machine}
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
    """What the journal says has been done: here, and on the other machines that it was taken to.

    What a full run took on another machine stays done. Its partial run does not: it tells of that
    machine, and declares how long the job is there.
    """

    def __init__(self, rows: Iterable[Row], most: int = ATTEMPTS, machine: str = "") -> None:
        self._most, self._machine = most, machine
        self.attempts: Counter[str] = Counter()
        self._quiet: set[str] = set()
        self._anchors: dict[str, Row] = {}
        self._latest: dict[str, Row] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take a record into account."""
        is_here = collected.machine_of(row) == self._machine
        if not row["is_noisy"] and (is_here or row["kind"] == "full"):
            self._quiet.add(row["key"])
        if is_here:
            self.attempts[row["key"]] += 1
            summary.take_anchor(self._anchors, row)
            if collected.is_anchor(row):
                self._latest[row["job"]["key"]] = row

    def is_stale(self, run: MiniRun, now: datetime) -> bool:
        """Return whether a full run's job was last profiled here so long ago that it is again."""
        latest = self._latest.get(run.job.key)
        if latest is None or run.kind != "full":
            return False
        at = datetime.fromisoformat(latest["started_at"])
        return (now - at).total_seconds() > _STALE_S

    def is_done(self, run: MiniRun) -> bool:
        return run.key in self._quiet or self.attempts[run.key] >= self._most

    def next_run(self, runs: Iterable[MiniRun], *, is_calm: bool = True) -> MiniRun | None:
        """Return the run to make next: ready, not done, of the fewest attempts.

        Of the next in the plan the first that suits the moment: what others disturb most while it
        is calm, the rest while it is not.
        """
        left = (run for run in runs if not self.is_done(run))
        ready = [run for run in left if _is_anchor(run) or self._anchor(run) is not None]
        ready.sort(key=lambda run: self.attempts[run.key])
        return min(
            ready[:_AHEAD],
            key=lambda run: (self.attempts[run.key], is_sensitive(run) != is_calm),
            default=None,
        )

    def steps(self, run: MiniRun) -> int | None:
        if _is_anchor(run):
            return None
        anchor = self._anchor(run)
        assert anchor is not None  # else it is not ready
        if run.kind == "partial":
            return max(16, min(200, round(2.0 / float(anchor["anchor_step_s"]))))
        return -(-int(anchor["total_steps"]) // run.layout.workers)

    def anchor_cpu_s(self, run: MiniRun) -> float | None:
        """Return the CPU time of a step in the job's latest anchor run here, if any [s].

        What a full run is told from is the nearest in time, so the mood of a day is no noise.
        """
        latest = self._latest.get(run.job.key) if run.kind == "full" else None
        return None if latest is None else summary.cpu_step_s(latest)

    def _anchor(self, run: MiniRun) -> Row | None:
        return self._anchors.get(collected.named_on(run.job.key, self._machine))


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
            nodes = stack.enter_context(network.cluster_of_namespaces(scale.nodes))
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

    from advisor.lab.workloads import load

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
