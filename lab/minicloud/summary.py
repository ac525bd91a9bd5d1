"""The record of a run, from what was seen of it: the label, its noise, the series.

here          meaning
wall_s        the loop, as it was [s]
delay_s       the nodes' wait for a core, throttling included [s]
contention_s  of that, what other programs caused: delay_s - throttled_s, the largest node's
time_s        the loop as it would be on a machine of its own:
              wall_s - contention_s, but not less than the quota takes to grant the CPU time
              that was used, and not more than wall_s. Both are lower bounds of the free
              time: while a process waits for others its quota lasts longer, so that the first
              alone would make a contended quota look like a faster machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.lab.minicloud import limits
from advisor.lab.minicloud.limits import ReadingSeries
from advisor.lab.minicloud.node import NodeReport
from advisor.lab.minicloud.plan import MINUTES, MiniInstance, MiniRun
from advisor.records.collected import Row, is_anchor, least_disturbed, machine_of, named_on

BLOCKS: Final = 48  # points of a run's step series
NOISY_FRACTION: Final = 0.3  # a run whose wall time needed a larger correction is repeated
NOISY_CPU_RATIO: Final = 1.35  # and one whose step took more CPU time than this x the anchor's
# Runs of minutes want a machine of their own: cores that others kept busy. What watches the runs
# and the kernel's own work for the links take up to 0.1.
MOST_OTHERS_CORES: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One node as its run left it.

    ``report`` is None where the process died; ``elapsed`` and ``delay`` are its tape's, (steps,).
    """

    rank: int
    report: NodeReport | None
    elapsed: NDArray[np.float64]
    delay: NDArray[np.float64]
    steps: int
    series: ReadingSeries
    peak_memory_mib: float
    wait_status: int


def contention_s(report: NodeReport, instance: MiniInstance) -> float:
    """Return how long a node waited for a core that other programs held [s].

    The throttled time is summed over cores and the delay is one thread's: hence the division.
    """
    spread = min(instance.threads, instance.cores)
    return min(max(0.0, report.delay_s - report.throttled_s / spread), report.wall_s)


def free_time_s(reports: Sequence[NodeReport], instance: MiniInstance, wall_s: float) -> float:
    """Return what the loop would have taken on machines of its own [s]."""
    contended = max(contention_s(report, instance) for report in reports)
    granted = max(limits.quota_s(report.cpu_s, instance.granted_cores) for report in reports)
    return min(wall_s, max(wall_s - contended, granted))


def is_noisy(row: Mapping[str, Any], anchor_cpu_s: float | None) -> bool:
    """Return whether other programs spoilt a run: repeat it when the machine is quieter.

    Parameters
    ----------
    anchor_cpu_s : float or None
        CPU time of a step in the anchor's partial run. One thread of the same program takes the
        same CPU time under any quota, unless somebody else empties its caches. [s]
    """
    if row["status"] == "censored":
        return (row["delay_fraction"] or 0.0) > NOISY_FRACTION
    if row["status"] != "ok":
        return False
    if row["correction_fraction"] > NOISY_FRACTION:
        return True
    if row.get("plan") == MINUTES.name and row["others_cores"] > MOST_OTHERS_CORES:
        return True
    is_comparable = row["layout"]["kind"] == "single" and row["instance"]["threads"] == 1
    if anchor_cpu_s is None or not is_comparable:
        return False
    return bool(cpu_step_s(row) > NOISY_CPU_RATIO * anchor_cpu_s)


def take_anchor(anchors: dict[str, dict[str, Any]], row: dict[str, Any]) -> None:
    """Keep a job's anchor: of its partial runs on one machine that of least CPU time a step.

    ``total_steps`` is that of the first, which declared it for all.
    """
    if not is_anchor(row):
        return
    job = named_on(row["job"]["key"], machine_of(row))
    known = anchors.get(job)
    if known is None:
        anchors[job] = row
    elif cpu_step_s(row) < cpu_step_s(known):
        anchors[job] = row | {"total_steps": known["total_steps"]}


def cpu_step_s(row: Mapping[str, Any]) -> float:
    """Return the CPU time of a step on the first node of a run that ended well [s]."""
    return float(row["nodes"][0]["cpu_s"]) / int(row["steps_done"])


def blocks(ends: NDArray[np.float64], count: int = BLOCKS) -> list[float]:
    """Return the mean step time of up to ``count`` equal blocks [ms].

    ``ends``: end of each step since the loop began [s].
    """
    if not len(ends):
        return []
    edges = np.unique(np.linspace(0, len(ends), min(count, len(ends)) + 1).astype(int))
    times = np.concatenate(([0.0], ends))[edges]
    return [round(float(v), 4) for v in 1e3 * np.diff(times) / np.diff(edges)]


def label(
    run: MiniRun, seen: Sequence[Seen], steps: int | None, cut_s: float | None
) -> dict[str, Any]:
    """Return status, times and noise of a run.

    ``seen``: rank 0 first: its loop is the run's; ``steps``: what was declared; None for a partial
    run; ``cut_s``: when it was cut short; None where it ended by itself [s].
    """
    reports = [node.report for node in seen if node.report is not None]
    bad = next((r for r in reports if r.status != "ok"), None)
    done = seen[0].steps
    out: dict[str, Any] = {"steps_done": done, "steps": steps}
    if bad is None and len(reports) == len(seen) and steps in (None, done):
        wall_s = reports[0].wall_s
        time_s = free_time_s(reports, run.instance, wall_s)
        contended_s = max(contention_s(report, run.instance) for report in reports)
        return out | {
            "status": "ok",
            "wall_s": round(wall_s, 5),
            "time_s": round(time_s, 5),
            "delay_fraction": round(contended_s / wall_s, 4),
            "correction_fraction": round(1.0 - time_s / wall_s, 4),
        }
    if bad is not None:
        return out | {"status": bad.status, "error": bad.error}
    if cut_s is not None:
        delay = float(seen[0].delay[-1]) if len(seen[0].delay) else 0.0
        return out | {
            "status": "censored",
            "wall_s": round(cut_s, 5),
            "time_s": round(cut_s, 5),
            "delay_fraction": None if run.instance.quota else round(min(1.0, delay / cut_s), 4),
        }
    signals = sorted({node.wait_status & 0x7F for node in seen} - {0})
    is_memory = run.instance.memory_headroom_bytes is not None
    return out | {
        "status": "oom" if is_memory else "failed",
        "error": f"died of signals {signals} without a report",
    }


def node_row(run: MiniRun, node: Seen) -> dict[str, Any]:
    """Return one node's part of the record: role, report, series."""
    is_server = run.layout.kind == "parameter-server" and node.rank == 0
    row: dict[str, Any] = {
        "rank": node.rank,
        "role": "master" if is_server else "worker",
        "peak_memory_mib": round(node.peak_memory_mib, 1),
        "series": {name: values for name, values in asdict(node.series).items() if values},
    }
    if node.report is not None and node.report.status == "ok":
        kept = asdict(node.report)
        for name in ("status", "error", "counts"):
            del kept[name]
        row |= {k: round(v, 5) if isinstance(v, float) else v for k, v in kept.items()}
    if node.rank == 0:
        row["step_ms"] = blocks(node.elapsed)
        row["step_delay_ms"] = blocks(node.delay)
    return row


# The card of a dataset of runs: its tables in numbers, from its rows alone.
#
# here         meaning
# label        a full run that took all its steps; of several attempts the least disturbed
# noise        relative standard deviation of repeats of one cell: the floor under any predictor
# correction   share of the wall time taken out as waiting for other programs' sake
# cpu ratio    CPU time of a step over that of the job's anchor run, one-thread runs only
# share law    anchor's mean step x steps / granted cores, nothing fitted: what a reader would
#              multiply by hand


_QUANTILES: Final = (10, 50, 90)


def describe(rows: Iterable[Row]) -> str:
    """Return the card's tables as Markdown."""
    rows = list(rows)
    full = least_disturbed(rows, "full")
    anchors = anchor_rows(rows)
    parts = [_counts(rows, full), _by_configuration(full), _by_workload(full)]
    parts += [_noise(rows, full), _sanity(full, anchors)]
    return "\n\n".join(parts)


def anchor_rows(rows: Iterable[Row]) -> dict[str, Row]:
    """Return each job's anchor, by its name on its machine; see ``summary.take_anchor``."""
    chosen: dict[str, Row] = {}
    for row in rows:
        take_anchor(chosen, row)
    return chosen


def repeat_noise(full: Iterable[Row]) -> list[tuple[str, int, float]]:
    """Return cell, repeats and relative standard deviation of the time, three repeats or more."""
    cells: dict[str, list[float]] = defaultdict(list)
    for row in full:
        if row["status"] == "ok":
            cells[row["key"].rsplit("/", 1)[0]].append(row["time_s"])
    return [
        (cell, len(times), float(np.std(times, ddof=1) / np.mean(times)))
        for cell, times in sorted(cells.items())
        if len(times) >= 3
    ]


def share_law_s(row: Row, anchor: Row) -> float:
    """Return what a single-process run should take by its share of a core alone [s]."""
    return float(anchor["anchor_mean_step_s"] * row["steps"] / row["instance"]["granted_cores"])


def _counts(rows: Sequence[Row], full: Sequence[Row]) -> str:
    statuses = Counter(row["status"] for row in full)
    clusters = [row for row in full if row["layout"]["nodes"] == 3]
    days = sorted(row["started_at"] for row in rows)
    lines = [
        ("records, every attempt", len(rows)),
        ("labelled (full) runs", len(full)),
        *((f"  of them {status}", count) for status, count in sorted(statuses.items())),
        ("  of them on 3 machines", len(clusters)),
        ("  of them noisy in every attempt", sum(row["is_noisy"] for row in full)),
        ("partial runs, one machine", sum(_is_partial(row, "single") for row in rows)),
        ("partial runs, 1 master + 2 workers",
         sum(_is_partial(row, "parameter-server") for row in rows)),
        ("jobs", len({row["job"]["key"] for row in full})),
        ("workloads (groups to leave out)", len({row["job"]["workload"] for row in full})),
        *_hours(full),
        ("first and last run", f"{days[0]} to {days[-1]}" if days else "-"),
    ]  # fmt: skip
    return _table(("what", "count"), lines)


def _hours(full: Sequence[Row]) -> list[tuple[str, str]]:
    hours: dict[str, float] = defaultdict(float)
    for row in full:
        hours[machine_of(row)] += row.get("time_s", 0.0) / 3600
    lines = [("hours of the labelled runs", f"{sum(hours.values()):.2f}")]
    if len(hours) > 1:
        lines += [(f"  of them on {name or 'the first machine'}", f"{value:.2f}")
                  for name, value in sorted(hours.items())]  # fmt: skip
    noisy = sum(row.get("time_s", 0.0) for row in full if row["is_noisy"]) / 3600
    clock = sum(row["wall_s"] for row in full if row["status"] == "ok" and not row["is_noisy"])
    return [
        *lines,
        ("  of them noisy in every attempt", f"{noisy:.2f}"),
        ("hours of ok runs that are not noisy, waiting included", f"{clock / 3600:.2f}"),
    ]


def _is_partial(row: Row, layout: str) -> bool:
    return (row["kind"], row["layout"]["kind"], row["status"]) == ("partial", layout, "ok")


def _by_configuration(full: Sequence[Row]) -> str:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in full:
        groups[row["instance"]["name"], row["layout"]["name"]].append(row)
    lines = []
    for (instance, layout), members in sorted(groups.items()):
        times = [row["time_s"] for row in members if row["status"] == "ok"]
        price = members[0]["instance"]["nominal_price_usd_per_h"]
        lines.append((
            instance, layout, members[0]["layout"]["nodes"], f"{price:.4f}", len(members),
            len(times), sum(row["is_noisy"] for row in members), _quantiles(times, "{:.2f}"),
        ))  # fmt: skip
    head = ("instance type", "layout", "machines", "nominal USD/h each", "runs", "ok", "noisy",
            "time p10/p50/p90 (s)")  # fmt: skip
    return _table(head, lines)


def _by_workload(full: Sequence[Row]) -> str:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in full:
        groups[row["job"]["workload"]].append(row)
    lines = [
        (name, len({row["job"]["key"] for row in members}), len(members),
         sum(row["layout"]["kind"] != "single" for row in members))
        for name, members in sorted(groups.items())
    ]  # fmt: skip
    return _table(("workload", "jobs", "runs", "of them distributed"), lines)


def _noise(rows: Sequence[Row], full: Sequence[Row]) -> str:
    lines: list[tuple[Any, ...]] = []
    repeats = repeat_noise(full)
    for kind in sorted({cell.split("/")[2] for cell, _, _ in repeats}):
        spreads = [spread for cell, _, spread in repeats if cell.split("/")[2] == kind]
        lines.append((f"repeats of one cell on {kind}: relative standard deviation",
                      len(spreads), _quantiles(spreads, "{:.1%}")))  # fmt: skip
    attempts: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "full" and row["status"] == "ok":
            attempts[row["key"]].append(row["time_s"])
    pairs = [abs(times[0] / times[-1] - 1) for times in attempts.values() if len(times) > 1]
    ok = [row for row in full if row["status"] == "ok"]
    lines += [
        ("first and last attempt of a disturbed run differ by", len(pairs),
         _quantiles(pairs, "{:.1%}")),
        ("correction of the labels", len(ok),
         _quantiles([row["correction_fraction"] for row in ok], "{:.1%}")),
        ("cores that other programs kept busy meanwhile", len(ok),
         _quantiles([row["others_cores"] for row in ok], "{:.2f}")),
        ("steal by the hypervisor, cores", len(ok),
         _quantiles([row["steal_fraction"] for row in ok], "{:.3f}")),
    ]  # fmt: skip
    return _table(("noise", "n", "p10/p50/p90"), lines)


def _sanity(full: Sequence[Row], anchors: dict[str, Row]) -> str:
    errors: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in full:
        if row["status"] != "ok" or row["layout"]["kind"] != "single":
            continue
        name, job = row["instance"]["name"], named_on(row["job"]["key"], machine_of(row))
        anchor = anchors[job]
        errors[name].append(abs(share_law_s(row, anchor) / row["time_s"] - 1))
        if row["instance"]["threads"] == 1:
            ratios[name].append(cpu_step_s(row) / cpu_step_s(anchor))
    lines = [
        (name, len(values), f"{np.mean(values):.1%}", _quantiles(values, "{:.1%}"),
         _quantiles(ratios.get(name, []), "{:.2f}"))
        for name, values in sorted(errors.items())
    ]  # fmt: skip
    head = (
        "single process on",
        "n",
        "share law, MAPE",
        "APE p10/p50/p90",
        "cpu ratio p10/p50/p90",
    )
    return _table(head, lines)


def _quantiles(values: Sequence[float], form: str) -> str:
    if not len(values):
        return "-"
    return " / ".join(form.format(v) for v in np.percentile(values, _QUANTILES))


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
