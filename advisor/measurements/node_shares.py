"""What was free of nodes whose use was published, as a record of node shares."""

from __future__ import annotations

from pathlib import Path

from advisor import data
from advisor.measurements.queueing import HELIOS
from advisor.records.node_shares import SLOT_S, NodeShares


def published_node_shares(root: Path | None = None) -> NodeShares:
    """Return the twelve virtual clusters of Helios' Earth, May 2020.

    Raises
    ------
    AbsentDataError
        If the table is not under the root.
    """
    table = HELIOS.read("shares", data.measurements(None) if root is None else root)
    wide = table.pivot(index="time", columns="node", values="free_fraction")
    return NodeShares(
        source="Helios' virtual clusters, May 2020",
        names=tuple(map(str, wide.columns)),
        slot_s=SLOT_S,
        shares=wide.to_numpy(float),
    )
