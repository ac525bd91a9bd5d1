"""One run: its nodes are forked, watched from outside, and what was seen is written down."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from advisor.collectors import network
from advisor.collectors.minicloud import limits, sampling, summary
from advisor.collectors.minicloud.instances import MiniPrices
from advisor.collectors.minicloud.journal import Row
from advisor.collectors.minicloud.node import Seat, fork, read_report
from advisor.collectors.minicloud.plan import SECONDS, MiniRun, total_steps
from advisor.collectors.minicloud.tape import Tape

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

    Parameters
    ----------
    steps : int or None
        Steps of the loop on each worker; None for the anchor's partial run.
    nodes : Nodes or None
        The small cluster; without it a single process runs in the machine's own network.
    """
    if nodes is not None:
        nodes.shape(run.layout.rate_bit_per_s)
    cores = _cores(run)
    before, started = sampling.MachineClock.now(), datetime.now(UTC)
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
            sampling.ProcessSampler(pid, has_network=nodes is not None) for pid, _ in started_nodes
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
    samplers: list[sampling.ProcessSampler], tapes: list[Tape], *, interval_s: float, cap_s: float
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
    before: sampling.MachineClock,
    started: datetime,
    cores: tuple[int, ...],
) -> Row:
    after = sampling.MachineClock.now()
    passed_s = after.at_s - before.at_s
    own_s = sum(node.report.cpu_s for node in seen if node.report is not None)
    out = summary.label(run, seen, steps, cut_s)
    row: Row = {
        "schema": summary.SCHEMA,
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
        "pressure_fraction": sampling.pressure(),
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
