"""The card of a dataset of runs: its tables in numbers, from its rows alone.

here         meaning
label        a full run that took all its steps; of several attempts the least disturbed
noise        relative standard deviation of repeats of one cell: the floor under any predictor
correction   share of the wall time taken out as waiting for other programs' sake
cpu ratio    CPU time of a step over that of the job's anchor run, one-thread runs only
share law    anchor's mean step x steps / granted cores, nothing fitted: what a reader would
             multiply by hand
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from advisor.collectors.minicloud.journal import Row
from advisor.collectors.minicloud.summary import cpu_step_s, least_disturbed, take_anchor

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
    """Return each job's anchor; see ``summary.take_anchor``."""
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
        ("first and last run", f"{days[0]} to {days[-1]}" if days else "-"),
    ]  # fmt: skip
    return _table(("what", "count"), lines)


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
        name, anchor = row["instance"]["name"], anchors[row["job"]["key"]]
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
