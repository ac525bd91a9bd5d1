"""Read what was free of each node of a shared cluster over time: one table, form by its columns.

=====================================================  ========================================
columns                                                form
=====================================================  ========================================
t | time | timestamp, node, free_fraction              a row a node and time
those of ``traces`` (several traces or pools)          counts: a pool is a node, free as a share
                                                       of the most that it ever had free
=====================================================  ========================================

A value holds until the node's next one. Slots have one length for all nodes, over the time in
which all of them are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.errors import AbsentDataError
from advisor.planners.core import HOUR_S
from advisor.records.traces import (
    TIME_COLUMNS,
    Row,
    TraceError,
    number_at,
    read_spot_traces,
    time_at,
    trace_rows,
)

if TYPE_CHECKING:
    import pandas as pd

SLOT_S: Final = 1800.0
_FREE: Final = "free_fraction"
_MOST_SLOTS: Final = 200_000
Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # times [s], free shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeShares:
    """Free shares of nodes."""

    source: str
    names: tuple[str, ...]
    slot_s: float  # length of a slot [s]
    shares: NDArray[np.float64]  # (slots, nodes); [fraction]

    @property
    def days(self) -> float:
        """How long the record is [days]."""
        return len(self.shares) * self.slot_s / (24 * HOUR_S)


def read_node_shares(path: Path, *, slot_s: float = SLOT_S) -> NodeShares:
    """Read the free shares of a cluster's nodes.

    ``slot_s``: length of the slots [s].

    Raises TraceError if the file cannot be read, has no such form, or its nodes are known at no
    common time.
    """
    rows = list(trace_rows(path))
    if not rows:
        raise TraceError(f"{path} holds no rows", hint="give a CSV table: time,node,free_fraction")
    columns = {name.lower(): name for name in rows[0][1]}
    time = next((columns[name] for name in TIME_COLUMNS if name in columns), None)
    if time is not None and {"node", _FREE} <= set(columns):
        series = _by_node(rows, time, columns[_FREE])
    else:
        traces = read_spot_traces(path)
        series = {
            one.name: (one.start_s, np.asarray(one.available / one.nodes, np.float64))
            for one in traces
        }
    return _in_slots(path, series, slot_s)


def _by_node(rows: Sequence[Row], time: str, free: str) -> dict[str, Series]:
    """Return the series of each node, in the order of the file."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for line, row in rows:
        times, shares = found.setdefault(row["node"].strip(), ([], []))
        share = number_at(line, row, free)
        if not 0.0 <= share <= 1.0:
            raise TraceError(
                f"line {line}: a free share of {share:g}",
                hint="divide what is free of the node by what it has",
            )
        at = time_at(line, row, time, 1.0)
        if times and at < times[-1]:
            raise TraceError(
                f"line {line}: time of node {row['node']!r} goes back by {times[-1] - at:g} s",
                hint="order the rows of each node by time",
            )
        times.append(at)
        shares.append(share)
    return {name: (np.array(times), np.array(shares)) for name, (times, shares) in found.items()}


def _in_slots(path: Path, series: Mapping[str, Series], slot_s: float) -> NodeShares:
    if len(series) < 2:
        raise TraceError(
            f"{path.name} has one node: there is nothing to choose",
            hint="give a table with the columns time, node, free_fraction",
        )
    begin = max(float(times[0]) for times, _ in series.values())
    end = min(float(times[-1]) for times, _ in series.values())
    count = int(max(end - begin, 0.0) / slot_s + 1e-9) + 1
    if count < 2 or count > _MOST_SLOTS:
        raise TraceError(
            f"{path.name}: the nodes have {max(end - begin, 0.0):g} s in common, {count} slots",
            hint="record all nodes over the same days, or choose another --slot",
        )
    grid = begin + slot_s * np.arange(count)
    columns = [
        shares[np.searchsorted(times, grid * (1 + 1e-15), side="right") - 1]
        for times, shares in series.values()
    ]
    return NodeShares(
        source=path.name, names=tuple(series), slot_s=slot_s, shares=np.stack(columns, axis=1)
    )


def published_node_shares() -> NodeShares:
    """Return the packaged record: Helios' virtual clusters of Earth, May 2020.

    Raises AbsentDataError if it does not come with this installation.
    """
    import pandas as pd

    path = data.root("datasets") / "measurements" / "helios" / "shares.csv.gz"
    if not path.is_file():
        raise AbsentDataError(f"{path} is not here", hint="name a record with --trace FILE")
    return helios_shares(pd.read_csv(path, float_precision="round_trip"))


def helios_shares(table: pd.DataFrame) -> NodeShares:
    """Return a table of time, node and free_fraction as a record."""
    wide = table.pivot(index="time", columns="node", values="free_fraction")
    return NodeShares(
        source="Helios' virtual clusters, May 2020",
        names=tuple(map(str, wide.columns)),
        slot_s=SLOT_S,
        shares=wide.to_numpy(float),
    )
