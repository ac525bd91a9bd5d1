"""Collectives measured by size: inside a node (vTrain), and between nodes (SimAI)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import US_PER_S, PublishedTable

if TYPE_CHECKING:
    import pandas as pd

# What the fit of the links reads: whole nodes, and the table of all-reduce through the interfaces.
_NODE_DEVICES: Final = 8
_BY_INTERFACE: Final = "nic"


def _tidy_all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep whole nodes of eight."""
    return rows[rows["accelerators"] == _NODE_DEVICES]


def _tidy_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep all-reduce between nodes; the number of nodes stands in the published label."""
    rows = rows[rows["collective"] == _BY_INTERFACE]
    return rows.assign(nodes=rows["scope"].str.extract(r"^(\d+)Node-")[0].astype(float))


COLLECTIVES: Final = Dataset(
    name="collectives",
    title="collectives of vTrain and SimAI",
    upstream=(
        Upstream(
            repository="VIA-Research/vTrain", commit="f8dda8473a48b373b1d25f51f52d685bff5150c5"
        ),
        Upstream(repository="aliyun/SimAI", commit="26b4574b4aa28cd6d8b77068093c89fdf9909f25"),
    ),
    licence="MIT-style (vTrain's LICENSE); MIT (SimAI's astra-sim-alibabacloud/LICENSE)",
    ships=True,
    tables={
        "all_reduce": PublishedTable(
            file="collectives/all_reduce.csv.gz",
            published="planners/nccl_allreduce_intranode.csv",
            columns={
                "accelerator": "gpu",
                "accelerators": "n_gpus",
                "message_bytes": "bytes",
                "all_reduce_s": "out_of_place_us",
            },
            divisors={"all_reduce_s": US_PER_S},
            tidy=_tidy_all_reduce,
        ),
        "between_nodes": PublishedTable(
            file="collectives/between_nodes.csv",
            published="planners/collective_busbw_ratio.csv",
            columns={
                "collective": "table",
                "scope": "scope",
                "message_bytes": "message_bytes",
                "share_of_nominal": "achieved_over_nominal",
            },
            form=("nodes", "message_bytes", "share_of_nominal"),
            tidy=_tidy_ratios,
        ),
    },
)
