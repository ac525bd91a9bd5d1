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

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from advisor import data
from advisor.lab import data as measurements
from advisor.lab import frame
from advisor.lab.experiments.recorded_usage import Pair, pairs
from advisor.lab.experiments.under_quota import measured
from advisor.planners.core.errors import GIB, MIB
from advisor.planners.rightsizing.autoscalers import AUTOPILOT, VPA, Autoscaler, Fixed, Oracle
from advisor.planners.rightsizing.escra import Escra
from advisor.planners.rightsizing.limits import Headroom, memory_limit_bytes, right_size
from advisor.planners.rightsizing.replay import (
    Policy,
    RecordedUsage,
    ResourceLimits,
    replay,
    replay_together,
)

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
    found: Sequence[Pair], policy: Callable[[RecordedUsage, RecordedUsage], Policy]
) -> list[Outcome]:
    """Return slack and under-allocation of every left-out run of some programs."""
    replays = [replay(o, policy(p.recorded, o)) for p in found for o in p.others]
    return [(one.memory_slack_fraction, float(one.oom > 0)) for one in replays]


def ours(headroom: Headroom) -> Callable[[RecordedUsage, RecordedUsage], Policy]:
    """Return the room's rule: the length of the whole run is known, as to a user."""

    def policy(recorded: RecordedUsage, other: RecordedUsage) -> Policy:
        rest_s = max(0.0, other.length_s - recorded.length_s)
        memory = memory_limit_bytes(recorded, rest_s=rest_s, headroom=headroom)
        return Fixed(limits=ResourceLimits(cores=ASKED.cores, memory_bytes=memory))

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


RIVALS: dict[str, Callable[[RecordedUsage, RecordedUsage], Policy]] = {
    "ours, as shipped": ours(Headroom()),
    "peak": lambda u, _: Fixed.peak_of(u),
    "1.5 x peak": lambda u, _: Fixed.peak_of(u, 1.5),
    "KRR": lambda u, _: Fixed.krr_of(u),
    "VPA": lambda u, _: Autoscaler(rule=VPA, asked=ASKED, history=u),
    "Autopilot's rule": lambda u, _: Autoscaler(rule=AUTOPILOT, asked=ASKED, history=u),
    "Escra": lambda u, _: Escra(budget=ASKED),
    "oracle": lambda _, __: Oracle(),
}


def slack() -> None:
    """Print CPU slack, throttling and slowdown of every policy over the left-out runs."""
    runs = [(p.recorded, o) for p in pairs() for o in p.others]
    print(f"{len(runs)} runs left out")
    static = [replay(o, Fixed.peak_of(u)) for u, o in runs]
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


def _limited(recorded: RecordedUsage, other: RecordedUsage) -> Policy:
    del other
    return Fixed(limits=right_size(recorded).limits)


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
            peaks = [share * Fixed.peak_of(one).limits.cores for one in recorded]
            memory = sum(2 * one.peak_bytes for one in runs)
            budget = ResourceLimits(cores=sum(peaks), memory_bytes=memory)
            shared = replay_together(runs, Escra(budget=budget))
            parts = [
                replay(one, Fixed(limits=ResourceLimits(cores=peak, memory_bytes=memory)))
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
    peak = Fixed.peak_of(usage).limits
    print(
        f"load {os.getloadavg()[0]:.1f}, {usage.length_s:.1f} s, mean {np.mean(usage.cores):.2f}"
    )
    policies: dict[str, Policy] = {
        "0.55 core": Fixed(limits=ResourceLimits(cores=0.55, memory_bytes=peak.memory_bytes)),
        "static peak": Fixed(limits=ResourceLimits(cores=1.0, memory_bytes=peak.memory_bytes)),
        "Escra": Escra(budget=ResourceLimits(cores=1.0, memory_bytes=ASKED.memory_bytes)),
    }
    for name, policy in policies.items():
        said, seen = replay(usage, policy), arms[name]
        _compare(name, "slowdown", said.slowdown, seen.wall_s / free.wall_s)
        _compare(name, "slack core-s", 3600 * said.slack_core_h, seen.slack_core_s)


def _compare(name: str, what: str, said: float, seen: float) -> None:
    words = f"predicted {said:6.3f}  measured {seen:6.3f}  {said / seen - 1:+.1%}"
    print(f"  {name:12} {what:13} {words}")


def main() -> None:
    ways = {"published": published, "memory": memory, "slack": slack, "pool": pool, "quota": quota}
    asked = frame.options(__doc__, {"what": {"choices": list(ways)}, "--rounds": 3})
    ways[asked.what](*([asked.rounds] if asked.what == "quota" else []))


if __name__ == "__main__":
    main()
