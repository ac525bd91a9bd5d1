"""Layer profiles: forward and backward of one transformer layer, by accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import MS_PER_S, PublishedTable

if TYPE_CHECKING:
    import pandas as pd


def _tidy_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out layers whose sizes are not stated."""
    return rows[rows["hidden"].notna() & rows["parameters_per_layer"].notna()]


LAYERS: Final = Dataset(
    name="layers",
    title="the layer profiles of Cephalo and Zorse",
    upstream=(
        Upstream(repository="benson-guo/cephalo", commit="a8c75d3"),
        Upstream(repository="benson-guo/zorse", commit="2fd6330"),
    ),
    licence="MIT",
    ships=True,
    tables={
        "profiles": PublishedTable(
            file="layers/profiles.csv.gz",
            published="planners/layer_latency_profiles.csv",
            columns={
                "source": "source",
                "model": "model",
                "accelerator": "gpu",
                "sequence": "seq",
                "precision": "dtype",
                "hidden": "hidden",
                "parameters_per_layer": "params_per_layer",
                "micro_batch": "micro_batch",
                "forward_s": "fwd_ms",
                "backward_s": "bwd_ms",
            },
            divisors={"forward_s": MS_PER_S, "backward_s": MS_PER_S},
            optional=frozenset({"source"}),
            tidy=_tidy_layers,
            tell=frozenset({"gpu", "fwd_ms", "bwd_ms", "params_per_layer", "hidden", "dtype"}),
        )
    },
)
