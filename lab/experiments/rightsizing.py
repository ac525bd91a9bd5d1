"""What the right-sizing room says, beside what is true: published, left out, and real.

    python -m advisor.lab.experiments.rightsizing published
    python -m advisor.lab.experiments.rightsizing memory
    python -m advisor.lab.experiments.rightsizing slack
    python -m advisor.lab.experiments.rightsizing pool
    python -m advisor.lab.experiments.rightsizing quota    # root: a CFS quota on its own child

``published``: signs of Escra's gains over the authors' load tests, losing cells by name.
``memory``: limits after one recorded run, judged on runs of groups that had no say in the
headroom. ``slack``: every policy on the runs that were left out. ``pool``: several of these runs
as containers of one pool, beside each with its part of the same cores for itself. ``quota``: a
bursty child under a real quota.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from advisor import data
from advisor.lab import data as measurements
from advisor.lab import frame
from advisor.lab.minicloud.limits import CpuGroup, cpu_group
from advisor.planners.core.errors import GIB, MIB
from advisor.planners.rightsizing.autoscalers import (
    AUTOPILOT,
    VPA,
    Autoscaler,
    Oracle,
    krr_limits,
    peak_limits,
)
from advisor.planners.rightsizing.escra import controllers
from advisor.planners.rightsizing.limits import Headroom, memory_limit_bytes, right_size
from advisor.planners.rightsizing.replay import (
    Controller,
    Period,
    RecordedUsage,
    ResourceLimits,
    replay,
    replay_together,
)

# Pairs of a short recorded run and whole runs of the same program: ``datasets/runs`` (a job's
# partial run, and its runs to the end on one machine under limits; groups are workloads) and
# ``datasets/usage`` (the zoo, see ``usage_series.py``; groups are scripts).
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


# A bursty child of this process under a real CFS quota, and what it used every 100 ms.
#
# The child computes 0.6 s of CPU time and sleeps 0.6 s, eight times. Its group outranks others, so
# that neighbours take little from it. The Escra arm is the room's own controller, asked every
# 100 ms from here: slower than in the kernel, where the authors have it.
PERIOD_S = 0.1
BURSTS = 8
BURST_S = WAIT_S = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    wall_s: float
    # quota less usage over the run: the kernel lets nobody have more in the end [core-s]
    slack_core_s: float
    # t_s, cpu_s: readings of its CPU time [s]
    t_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    def usage(self) -> RecordedUsage:
        """Return the run as the room takes it."""
        return RecordedUsage.of_counters(
            t_s=self.t_s, cpu_s=self.cpu_s, memory_bytes=[1.0] * len(self.t_s), step_s=PERIOD_S
        )


def measured(rounds: int) -> dict[str, Arm]:
    """Run every arm in turns and return the one of median wall time of each."""
    ways: dict[str, ResourceLimits | str | None] = {
        "free": None,
        "0.55 core": ResourceLimits(cores=0.55, memory_bytes=GIB),
        "static peak": ResourceLimits(cores=1.0, memory_bytes=GIB),
        "Escra": "escra",
    }
    found: dict[str, list[Arm]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(_run(way))
    middle = {}
    for name, arms in found.items():
        wall = statistics.median_low(arm.wall_s for arm in arms)
        middle[name] = next(arm for arm in arms if arm.wall_s == wall)
    return middle


def _run(way: ResourceLimits | str | None) -> Arm:
    controller: Controller | None = None
    if way is not None:
        controller = (
            Controller(way)
            if isinstance(way, ResourceLimits)
            else controllers(ResourceLimits(cores=1.0, memory_bytes=GIB))[0]
        )
    with cpu_group("bursty", quota=None) as group:
        group.outrank_others()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(writing)
                os.read(reading, 1)
                group.join()
                _bursts()
            finally:
                os._exit(0)
        os.write(writing, b"x")
        try:
            return _watch(pid, group, controller)
        finally:
            os.close(reading)
            os.close(writing)


def _bursts() -> None:
    for _ in range(BURSTS):
        begun = time.process_time()
        while time.process_time() - begun < BURST_S:
            pass
        time.sleep(WAIT_S)


def _watch(pid: int, group: CpuGroup, controller: Controller | None) -> Arm:
    limits = controller.limits if controller else None
    if limits is not None:
        group.set_quota(limits.cores, period_s=PERIOD_S)
    begin = last = time.monotonic()
    t, cpu, slack, throttled, quota = [0.0], [0.0], 0.0, 0, limits.cores if limits else 0.0
    while True:
        time.sleep(max(0.0, begin + PERIOD_S * len(t) - time.monotonic()))
        done, _, used = os.wait4(pid, os.WNOHANG)
        now = time.monotonic()
        cpu.append(used.ru_utime + used.ru_stime if done else _cpu_s(pid))
        t.append(now - begin)
        rate = (cpu[-1] - cpu[-2]) / (now - last)
        slack += quota * (now - last) - (cpu[-1] - cpu[-2]) if limits else 0.0
        if done:
            return Arm(wall_s=now - begin, slack_core_s=slack, t_s=tuple(t), cpu_s=tuple(cpu))
        if controller is not None:
            count = group.throttled_periods()
            controller.after(
                Period(
                    end_s=now - begin, length_s=now - last, used_cores=rate,
                    is_throttled=count > throttled, memory_bytes=1.0,
                )
            )  # fmt: skip
            throttled = count
            if controller.limits.cores != quota:
                quota = controller.limits.cores
                group.set_quota(quota, period_s=PERIOD_S)
        last = now


def _cpu_s(pid: int) -> float:
    """Return the child's CPU time: the scheduler's, to the nanosecond [s]."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


# What is said and what is true.
ASKED = ResourceLimits(cores=2.0, memory_bytes=16 * GIB)
MOST_UNDER = 0.029  # of the goal
CANDIDATES = tuple(
    Headroom(fraction=fraction, least_bytes=least * MIB)
    for fraction in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
    for least in (0, 8, 16, 32)
)
PAIRED = (("dc-1x", "static-1x"), ("dc-15x", "static-15x"), ("dc-15x", "ap"))

Outcome = tuple[float, float]  # memory slack, share of runs that went over


def published() -> None:
    """Print how often Escra gained in the authors' load tests, and where it lost."""
    table = measurements.ESCRA.read("load_tests", data.root("datasets"))
    cells: dict[tuple[str, str, str], Any] = {
        (str(r.application), str(r.load), str(r.policy)): r for r in table.itertuples()
    }
    print(f"{len(cells)} cells")
    for ours, theirs in PAIRED:
        found = [
            (app, load, cells[app, load, ours], cells[app, load, theirs])
            for app, load, policy in cells
            if policy == ours and (app, load, theirs) in cells
        ]
        more = [a.requests_per_s / b.requests_per_s - 1 for _, _, a, b in found]
        later = [a.p999_s / b.p999_s - 1 for _, _, a, b in found]
        lost = [
            f"{app}/{load} ({t:+.0%}, {p:+.0%})"
            for (app, load, _, _), t, p in zip(found, more, later, strict=True)
            if t < 0 or p > 0
        ]
        print(
            f"{ours} to {theirs}: n={len(found)}, throughput median "
            f"{statistics.median(more):+.0%}, p99.9 median {statistics.median(later):+.0%}, "
            f"best {min(later):+.0%}; "
            f"lost {len(lost)}: {', '.join(lost)}"
        )


def judged(
    found: Sequence[Pair], policy: Callable[[RecordedUsage, RecordedUsage], Controller]
) -> list[Outcome]:
    """Return slack and under-allocation of every left-out run of some programs."""
    replays = [replay(o, policy(p.recorded, o)) for p in found for o in p.others]
    return [(one.memory_slack_fraction, float(one.oom > 0)) for one in replays]


def ours(headroom: Headroom) -> Callable[[RecordedUsage, RecordedUsage], Controller]:
    """Return the room's rule: the length of the whole run is known, as to a user."""

    def policy(recorded: RecordedUsage, other: RecordedUsage) -> Controller:
        rest_s = max(0.0, other.length_s - recorded.length_s)
        memory = memory_limit_bytes(recorded, rest_s=rest_s, headroom=headroom)
        return Controller(ResourceLimits(cores=ASKED.cores, memory_bytes=memory))

    return policy


def left_out(found: Sequence[Pair]) -> tuple[list[Outcome], Headroom]:
    """Return the outcomes with each group left out of the choice of the headroom, and that of all.

    Chosen is the headroom of least slack whose under-allocation is within the goal.
    """
    groups = sorted({p.group for p in found})
    by_group = {
        (one, group): judged([p for p in found if p.group == group], ours(one))
        for one in CANDIDATES
        for group in groups
    }

    def chosen(without: str | None) -> Headroom:
        def score(one: Headroom) -> tuple[bool, float]:
            rows = [row for g in groups if g != without for row in by_group[one, g]]
            slack, under = mean(rows)
            return under > MOST_UNDER, slack

        return min(CANDIDATES, key=score)

    rows = [row for group in groups for row in by_group[chosen(group), group]]
    return rows, chosen(None)


def mean(rows: Sequence[Outcome]) -> Outcome:
    return statistics.mean(r[0] for r in rows), statistics.mean(r[1] for r in rows)


def memory() -> None:
    """Print slack and under-allocation: ours with each group left out of its fit, and rivals."""
    found = pairs()
    for title, part in (
        ("datasets/runs", [p for p in found if not p.group.endswith((".py", ".sh"))]),
        ("zoo", [p for p in found if p.group.endswith((".py", ".sh"))]),
        ("both", found),
    ):
        rows, fit = left_out(part)
        groups = len({p.group for p in part})
        print(f"{title}: {groups} groups, {len(part)} programs, {len(rows)} runs left out")
        _line("ours, group left out", rows)
        for name, policy in RIVALS.items():
            _line(name, judged(part, policy))
        print(f"  fitted on all of them: {fit}")


def _line(name: str, rows: Sequence[Outcome]) -> None:
    slack, under = mean(rows)
    print(f"  {name:20}  slack {slack:6.1%}  under {under:6.1%}", flush=True)


RIVALS: dict[str, Callable[[RecordedUsage, RecordedUsage], Controller]] = {
    "ours, as shipped": ours(Headroom()),
    "peak": lambda u, _: Controller(peak_limits(u)),
    "1.5 x peak": lambda u, _: Controller(peak_limits(u, 1.5)),
    "KRR": lambda u, _: Controller(krr_limits(u)),
    "VPA": lambda u, _: Autoscaler(rule=VPA, asked=ASKED, history=u),
    "Autopilot's rule": lambda u, _: Autoscaler(rule=AUTOPILOT, asked=ASKED, history=u),
    "Escra": lambda u, _: controllers(ASKED)[0],
    "oracle": lambda _, run: Oracle(run),
}


def slack() -> None:
    """Print CPU slack, throttling and slowdown of every policy over the left-out runs."""
    runs = [(p.recorded, o) for p in pairs() for o in p.others]
    print(f"{len(runs)} runs left out")
    static = [replay(o, Controller(peak_limits(u))) for u, o in runs]
    for name, policy in (RIVALS | {"ours, as shipped": _limited}).items():
        found = [replay(o, policy(u, o)) for u, o in runs]
        less = statistics.mean(
            float(a.slack_core_h < b.slack_core_h) for a, b in zip(found, static, strict=True)
        )
        cores = sum(one.slack_core_h for one in found) / sum(one.slack_core_h for one in static)
        slowdown = np.percentile([one.slowdown for one in found], [50, 90])
        print(
            f"  {name:20}  slack to static peak's {cores:5.2f} (less in {less:4.0%})  throttled "
            f"{statistics.mean(one.throttled_fraction for one in found):6.1%}  slowdown median "
            f"{slowdown[0]:.3f}, p90 {slowdown[1]:.3f}"
        )


def _limited(recorded: RecordedUsage, other: RecordedUsage) -> Controller:
    del other
    return Controller(right_size(recorded).limits)


def pool(draws: int = 100, containers: int = 3) -> None:
    """Print slack and slowdown of runs that share a pool, and of the same with fixed parts of it.

    Each run brings a share of the peak of its program's recorded run to the budget.
    """
    found = [(p.recorded, o) for p in pairs() for o in p.others]
    draw = np.random.default_rng(0)
    picks = [draw.choice(len(found), containers, replace=False) for _ in range(draws)]
    print(f"{draws} draws of {containers} of {len(found)} runs")
    for share in (1.0, 0.75, 0.5):
        rows: dict[str, list[float]] = {"slack": [], "shared": [], "parts": []}
        for pick in picks:
            recorded, runs = zip(*(found[k] for k in pick), strict=True)
            peaks = [share * peak_limits(one).cores for one in recorded]
            memory = sum(2 * one.peak_bytes for one in runs)
            budget = ResourceLimits(cores=sum(peaks), memory_bytes=memory)
            shared = replay_together(runs, controllers(budget, len(runs)))
            parts = [
                replay(one, Controller(ResourceLimits(cores=peak, memory_bytes=memory)))
                for one, peak in zip(runs, peaks, strict=True)
            ]
            slack_h = [sum(one.slack_core_h for one in ways) for ways in (shared, parts)]
            rows["slack"].append(slack_h[0] / max(slack_h[1], 1e-9))
            rows["shared"] += [one.slowdown for one in shared]
            rows["parts"] += [one.slowdown for one in parts]
        slow = {name: np.percentile(rows[name], [50, 90]) for name in ("shared", "parts")}
        print(
            f"  {share:4.0%} of the peaks  slack over fixed parts' {np.median(rows['slack']):.2f}"
            f"  slowdown median, p90: pool {slow['shared'][0]:.3f}, {slow['shared'][1]:.2f}; "
            f"fixed parts {slow['parts'][0]:.3f}, {slow['parts'][1]:.2f}",
            flush=True,
        )


def quota(rounds: int) -> None:
    """Print predicted and measured slack and slowdown of a bursty child, medians of rounds."""
    arms = measured(rounds)
    free = arms["free"]
    usage = free.usage()
    peak = peak_limits(usage)
    print(
        f"load {os.getloadavg()[0]:.1f}, {usage.length_s:.1f} s, mean {np.mean(usage.cores):.2f}"
    )
    policies: dict[str, Controller] = {
        "0.55 core": Controller(ResourceLimits(cores=0.55, memory_bytes=peak.memory_bytes)),
        "static peak": Controller(ResourceLimits(cores=1.0, memory_bytes=peak.memory_bytes)),
        "Escra": controllers(ResourceLimits(cores=1.0, memory_bytes=ASKED.memory_bytes))[0],
    }
    for name, policy in policies.items():
        said, seen = replay(usage, policy), arms[name]
        _compare(name, "slowdown", said.slowdown, seen.wall_s / free.wall_s)
        _compare(name, "slack core-s", 3600 * said.slack_core_h, seen.slack_core_s)


def _compare(name: str, what: str, said: float, seen: float) -> None:
    words = f"predicted {said:6.3f}  measured {seen:6.3f}  {said / seen - 1:+.1%}"
    print(f"  {name:12} {what:13} {words}")


def main() -> None:
    ways: dict[str, Any] = {
        "published": published,
        "memory": memory,
        "slack": slack,
        "pool": pool,
        "quota": quota,
    }
    asked = frame.options(__doc__, {"what": {"choices": list(ways)}, "--rounds": 3})
    ways[asked.what](*([asked.rounds] if asked.what == "quota" else []))


if __name__ == "__main__":
    main()
