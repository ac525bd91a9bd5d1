"""Read what others recorded of spot nodes: one table, its form told by its columns.

=====================================================  ========================================
columns                                                form
=====================================================  ========================================
requested_nodes, trace, ..., start_s, duration_s,      constant intervals, several traces
available                                              (SkyPilot, tidied)
[trace,] t_ms | t | time, event, node                  nodes that come and go (Bamboo, Parcae)
[trace,] t | time, available                           counts from one time to the next
timestamp, one column a pool                           counts of several pools (Sailor)
=====================================================  ========================================

Without a header, three columns are events and two are counts. Numbers are seconds unless the
caller says otherwise; dates are read as such. Everything is checked here, once: gaps, overlaps,
times out of order and traces without a node are one ``TraceError`` that names the line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np

from advisor import data
from advisor.collectors import bounded
from advisor.errors import AdvisorError
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.spot import Column, Spells, SpotHistory, SpotTrace


class TraceError(AdvisorError):
    """A trace cannot be read or makes no sense; the message names the line."""

    exit_code = 2


Row = tuple[int, dict[str, str]]  # line number, values by column

TRACE_KEY = ("kind", "requested_nodes", "cloud", "trace", "zone", "instance")
INTERVAL_COLUMNS = ("requested_nodes", "trace", "start_s", "duration_s", "available")
TIME_COLUMNS = ("t_ms", "t_s", "t", "time", "timestamp")


def read_spot_traces(
    path: Path, *, unit_s: float = 1.0, left_out: list[str] | None = None
) -> list[SpotTrace]:
    """Read every trace of a file, whatever its form.

    ``unit_s``: what one unit of a numeric time is; a column ``t_ms`` is milliseconds anyway [s];
    ``left_out``: where given, traces without sense are left out and the reason is appended; by
    default the first of them is raised.

    Raises TraceError if the file cannot be read, has no such form, or a trace makes no sense.
    """
    rows = list(trace_rows(path))
    if not rows:
        raise TraceError(f"{path} holds no rows", hint="give a CSV table of availability")
    traces = []
    for read in _readers(path, rows, unit_s):
        try:
            traces.append(read())
        except (PlanningError, TraceError) as error:
            if left_out is None:
                raise TraceError(f"{path.name}: {error}", hint=error.hint) from None
            left_out.append(str(error))
    return traces


def _readers(path: Path, rows: Sequence[Row], unit_s: float) -> Iterator[Callable[[], SpotTrace]]:
    """Yield what reads each trace of the file."""
    columns = [name.lower() for name in rows[0][1]]
    time = next((name for name in TIME_COLUMNS if name in columns), None)
    if all(name in columns for name in INTERVAL_COLUMNS):
        for key, part in _grouped(rows, TRACE_KEY).items():
            yield partial(_interval_trace, key, part)
    elif time is not None and ({"event", "node"} <= set(columns) or "available" in columns):
        read = _events if "event" in columns else _counts
        for (name,), part in _grouped(rows, ("trace",)).items():
            yield partial(read, name or path.stem, part, time, unit_s)
    elif time is not None:
        for pool in rows[0][1]:
            if pool.strip() and pool.lower() != time:
                yield partial(_counts, pool, rows, time, unit_s, column=pool)
    else:
        raise TraceError(
            f"{path.name} has the columns {', '.join(columns)}: no known form of availability",
            hint="name the columns 't, available' (seconds, nodes up)",
        )


def _grouped(rows: Sequence[Row], keys: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows of each trace, in the order of the file."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for line, row in rows:
        found.setdefault(tuple(row.get(key, "") for key in keys), []).append((line, row))
    return found


@cache
def packaged_spot_history() -> SpotHistory:
    """Return what spot was like in the recorded traces of GPUs of ``datasets/availability``.

    Spells are drawn from each trace's own quantiles in a fixed shuffle: lengths are true, their
    order is not.
    """
    path = data.root("datasets") / "availability" / "spell_quantiles.csv"
    traces: dict[str, dict[str, Mapping[str, str]]] = {}
    for _, row in trace_rows(path):
        if row["is_gpu"] == "1":
            traces.setdefault(row["trace"], {})[row["spell"]] = row
    spells = tuple(_drawn(t["up"], t["down"], seed) for seed, t in enumerate(traces.values()))
    nodes = tuple(int(t["up"]["nodes"]) for t in traces.values())
    return SpotHistory(spells=spells, nodes=nodes, source=f"{len(traces)} recorded traces")


def _interval_trace(key: tuple[str, ...], rows: Sequence[Row]) -> SpotTrace:
    """Check that the intervals of one trace join, and return it with its clock set to 0."""
    _, nodes, provider, name, zone, instance = key
    numbers = INTERVAL_COLUMNS[2:]
    table = np.array([[number_at(line, row, c) for c in numbers] for line, row in rows])
    seam = table[1:, 0] - (table[:-1, 0] + table[:-1, 1])
    # Times are whole seconds: a second is rounding, more is a gap.
    if np.any(np.abs(seam) > 1.0):
        at = int(np.flatnonzero(np.abs(seam) > 1.0)[0])
        kind = "gap" if seam[at] > 0 else "overlap or step back"
        raise TraceError(
            f"line {rows[at + 1][0]}: {kind} of {abs(seam[at]):g} s",
            hint="order the rows by time and fill what is missing, or cut the trace in two there",
        )
    begin = table[0, 0]
    return SpotTrace(
        name="/".join(part for part in (name, zone, instance, nodes) if part),
        provider=provider,
        instance=instance,
        nodes=int(number_at(*rows[0], "requested_nodes")),
        start_s=table[:, 0] - begin,
        available=table[:, 2].astype(np.int64),
        end_s=float(table[-1, 0] + table[-1, 1] - begin),
    )


def _events(name: str, rows: Sequence[Row], time: str, unit_s: float) -> SpotTrace:
    """Count the nodes that are there after each event."""
    live: set[str] = set()
    times, counts = [], []
    for line, row in rows:
        kind, node = row["event"].strip(), row["node"].strip()
        if kind not in ("add", "remove") or (kind == "remove") != (node in live):
            raise TraceError(
                f"line {line}: {kind!r} of node {node!r}, which is "
                f"{'there' if node in live else 'not there'}",
                hint="events are 'add' of a node that is not there or 'remove' of one that is",
            )
        (live.add if kind == "add" else live.remove)(node)
        times.append(time_at(line, row, time, unit_s))
        counts.append(len(live))
    return _stepwise(name, rows, times, counts)


def _counts(
    name: str, rows: Sequence[Row], time: str, unit_s: float, *, column: str = "available"
) -> SpotTrace:
    times = [time_at(line, row, time, unit_s) for line, row in rows]
    counts = [int(number_at(line, row, column)) for line, row in rows]
    return _stepwise(name, rows, times, counts)


def _stepwise(
    name: str, rows: Sequence[Row], times: Sequence[float], counts: Sequence[int]
) -> SpotTrace:
    """Return counts that hold from one time to the next; of equal times the last one counts.

    How long the last count held is not in the file: the median step is taken.
    """
    back = [k for k in range(1, len(times)) if times[k] < times[k - 1]]
    if back:
        raise TraceError(
            f"line {rows[back[0]][0]} of trace {name!r}: time goes back by "
            f"{times[back[0] - 1] - times[back[0]]:g} s",
            hint="order the rows by time",
        )
    clock = np.asarray(times) - times[0]
    last = np.append(np.diff(clock) > 0, True)
    start, available = clock[last], np.asarray(counts, np.int64)[last]
    start = start - start[0]
    step = float(np.median(np.diff(start))) if start.size > 1 else 0.0
    if step <= 0:
        raise TraceError(
            f"trace {name!r} has a single time, {len(times)} rows",
            hint="leave it out: it holds nothing to learn from",
        )
    return SpotTrace(
        name=name,
        nodes=max(int(available.max()), 1),
        start_s=start,
        available=available,
        end_s=float(start[-1] + step),
    )


def time_at(line: int, row: Mapping[str, str], column: str, unit_s: float) -> float:
    """Return the time in a row, a number or a date [s]."""
    value = row[column].strip()
    with contextlib.suppress(ValueError):
        return in_range(f"line {line}", float(value)) * (1e-3 if column == "t_ms" else unit_s)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        raise TraceError(
            f"line {line}: {value!r} is neither a number nor a date",
            hint="write seconds, or dates like 2026-11-21 09:30:00",
        ) from None


def number_at(line: int, row: Mapping[str, str], column: str) -> float:
    """Return the finite number in a row."""
    try:
        value = float(row[column])
    except (ValueError, KeyError, TypeError):
        raise TraceError(
            f"line {line}: no number in column {column!r}", hint="give one number a row"
        ) from None
    return in_range(f"line {line}", value)


# Seconds, nodes and devices beyond this are mistakes: sums of them would not be numbers.
_MOST: Final = 1e15


def in_range(where: str, value: float) -> float:
    """Return a number of a trace.

    Raises TraceError, which begins with ``where``, if it is beyond all that can be.
    """
    if not abs(value) <= _MOST:
        raise TraceError(f"{where}: {value:g} is out of range", hint="give finite numbers")
    return value


def trace_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table, which is CSV within bounds."""
    try:
        yield from _table_rows(path)
    except (ValueError, OverflowError) as error:
        raise TraceError(f"{path.name}: {error}", hint="name a CSV file of a trace") from None


def _table_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table; one without a header gets one by its number of columns."""
    try:
        lines = bounded.read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot read {path}: {error}", hint="name a readable CSV file") from None
    first = next(bounded.csv_rows(lines[:1]), [])
    if first and first[0].replace(".", "", 1).isdigit():
        names = {2: ["t", "available"], 3: ["t_ms", "event", "node"]}.get(len(first))
        if names is None:
            raise TraceError(
                f"{path.name} has no header and {len(first)} columns",
                hint="name the columns, e.g. 't, available'",
            )
        reader = bounded.csv_tables(lines, fieldnames=names)
    else:
        reader = bounded.csv_tables(lines, fieldnames=[name.strip() for name in first])
        next(reader, None)
    for row in reader:
        if None in row.values():
            raise TraceError(
                f"{path.name}, line {reader.line_num}: not {len(first)} columns",
                hint="every row needs a value for every column",
            )
        yield reader.line_num, {name.lower() if name.lower() in KNOWN else name: value
                                for name, value in row.items()}  # fmt: skip


KNOWN = frozenset((*INTERVAL_COLUMNS, *TIME_COLUMNS, "event", "node"))


def _drawn(up: Mapping[str, str], down: Mapping[str, str], seed: int) -> Spells:
    """Alternate shuffled up and down spells with the quantiles of one trace."""
    rng = np.random.default_rng(seed)
    count = max(int(up["count"]), 100)
    lengths = np.empty(2 * count)
    lengths[0::2] = rng.permutation(_from_quantiles(down, count))
    lengths[1::2] = rng.permutation(_from_quantiles(up, count))
    edges = np.cumsum(lengths)
    return Spells(up_start_s=edges[0::2], up_length_s=lengths[1::2], end_s=float(edges[-1]))


def _from_quantiles(row: Mapping[str, str], count: int) -> Column:
    """Return ``count`` lengths at evenly spread levels, scaled to the recorded mean [s]."""
    names = [name for name in row if name.startswith("q")]
    levels = np.array([float(name[1:-2]) for name in names]) / 100.0
    values = np.log([max(float(row[name]), 1e-4) for name in names])
    lengths = np.exp(np.interp((np.arange(count) + 0.5) / count, levels, values))
    return np.asarray(lengths * float(row["mean_h"]) / lengths.mean() * HOUR_S)
