"""Parcae: what restarts of its pipelines cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import PublishedTable

if TYPE_CHECKING:
    import pandas as pd

_PREFIX: Final = "restart_cost_"


def _tidy_restarts(rows: pd.DataFrame) -> pd.DataFrame:
    """Name the kinds without their common beginning."""
    return rows.assign(kind=rows["kind"].str.removeprefix(_PREFIX))


PARCAE: Final = Dataset(
    name="parcae",
    title="Parcae's restarts",
    upstream=(Upstream(repository="JF-D/Parcae", commit="efedee7"),),
    licence="MIT",
    ships=True,
    tables={
        "restarts": PublishedTable(
            file="parcae/restarts.csv",
            published="measurements/parcae/parcae_restart_cost.csv",
            columns={"kind": "kind", "nodes": "nodes", "restart_s": "seconds"},
            tidy=_tidy_restarts,
        ),
    },
)
