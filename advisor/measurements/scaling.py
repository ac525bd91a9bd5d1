"""Step times by placement: Sia's clusters, of which Pollux's (AWS) may be passed on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import PublishedTable

if TYPE_CHECKING:
    import pandas as pd

_FORM: Final = (
    "application", "cluster", "nodes", "workers", "per_node", "local_batch", "step_s",
)  # fmt: skip
_SHARED: Final = {
    "application": "app", "cluster": "cluster", "local_batch": "local_bsz", "step_s": "step_time",
    "is_measured": "measured",
}  # fmt: skip


def _measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out what the authors made up (``measured`` 0); a table without the column has none."""
    return rows[rows["is_measured"].fillna(1) != 0]


def _tidy_placements(rows: pd.DataFrame) -> pd.DataFrame:
    """Read a placement, one digit a node: the accelerators on it."""
    rows = _measured(rows)
    digits = rows["placement"].astype(str).map(lambda text: [int(digit) for digit in text])
    return rows.assign(nodes=digits.map(len), workers=digits.map(sum), per_node=digits.map(max))


def _tidy_scalability(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the fullest node to have its share of the accelerators, rounded up."""
    rows = _measured(rows)
    return rows.assign(per_node=(rows["workers"] / rows["nodes"]).map(math.ceil))


def _on_aws(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["cluster"] == "aws"]


_PLACEMENTS: Final = PublishedTable(
    file="pollux/placements.csv.gz",
    published="measurements/pollux_sia/sia_placements.csv",
    columns=_SHARED | {"placement": "placement"},
    form=_FORM,
    optional=frozenset({"measured"}),
    tidy=_tidy_placements,
    selection=_on_aws,
)
_SCALABILITY: Final = PublishedTable(
    file="pollux/scalability.csv.gz",
    published="measurements/pollux_sia/sia_scalability.csv",
    columns=_SHARED | {"nodes": "num_nodes", "workers": "num_replicas"},
    form=_FORM,
    optional=frozenset({"measured"}),
    tidy=_tidy_scalability,
    selection=_on_aws,
)
POLLUX: Final = Dataset(
    name="pollux",
    title="Pollux's step times by placement",
    upstream=(Upstream(repository="petuum/adaptdl", commit="c793c708"),),
    licence="Apache-2.0",
    ships=True,
    tables={"placements": _PLACEMENTS, "scalability": _SCALABILITY},
)
SIA: Final = Dataset(
    name="sia",
    title="Sia's step times by placement",
    upstream=(Upstream(repository="siasosp23/artifacts", commit="aaf7a0de"),),
    licence="none stated",
    ships=False,
    tables={
        "placements": replace(
            _PLACEMENTS,
            file="sia/placements.csv.gz",
            selection=lambda rows: rows,
            tell=frozenset({"app", "cluster", "placement", "step_time", "sync_time"}),
        ),
        "scalability": replace(
            _SCALABILITY, file="sia/scalability.csv.gz", selection=lambda rows: rows
        ),
    },
)
