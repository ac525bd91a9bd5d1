"""Parcae: pipelines of V100s at 10 Gb/s, and what its restarts cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import MS_PER_S, PublishedTable

if TYPE_CHECKING:
    import pandas as pd

_PREFIX: Final = "restart_cost_"


def _tidy_restarts(rows: pd.DataFrame) -> pd.DataFrame:
    """Name the kinds without their common beginning."""
    return rows.assign(kind=rows["kind"].str.removeprefix(_PREFIX))


PARCAE: Final = Dataset(
    name="parcae",
    title="Parcae's pipelines and restarts",
    upstream=(Upstream(repository="JF-D/Parcae", commit="efedee7"),),
    licence="MIT",
    ships=True,
    tables={
        "steps": PublishedTable(
            file="parcae/steps.csv",
            published="measurements/parcae/parcae_dp_pp_throughput.csv",
            columns={
                "model": "model",
                "micro_batch": "micro_batch_size",
                "global_batch": "global_batch",
                "dp": "dp",
                "pp": "pp",
                "accelerators": "n_gpus",
                "step_s": "step_ms",
            },
            divisors={"step_s": MS_PER_S},
            tell=frozenset({"dp", "pp", "n_gpus", "step_ms", "model"}),
        ),
        "restarts": PublishedTable(
            file="parcae/restarts.csv",
            published="measurements/parcae/parcae_restart_cost.csv",
            columns={"kind": "kind", "nodes": "nodes", "restart_s": "seconds"},
            tidy=_tidy_restarts,
        ),
    },
)
