"""Layer profiles: forward and backward of one transformer layer, by accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.layouts import LAYOUTS
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


def _of_sailor(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep Sailor's runs of the collected table."""
    return rows[rows["table"] == "sailor_validation"]


def _as_they_are(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


AMP: Final = Dataset(
    name="amp",
    title="AMP's layer profiles",
    upstream=(Upstream(repository="DachengLi1/AMP", commit="72eeea4"),),
    licence="Apache-2.0",
    ships=True,
    tables={
        "layers": PublishedTable(
            file="amp/layers.csv",
            published="planners/amp_layer_fwd_times.csv",
            columns={
                "model": "model",
                "accelerator": "gpu",
                "tp": "tp",
                "layer": "layer_index",
                "forward_s": "fwd_s_mbs1",
            },
        )
    },
)

SAILOR: Final = Dataset(
    name="sailor",
    title="Sailor's runs over unlike GPUs and its layer profiles",
    upstream=(Upstream(repository="eth-easl/sailor", commit="cf2c8e3"),),
    licence="none stated",
    ships=False,
    tables={
        "runs": replace(
            LAYOUTS.tables["runs"],
            file="sailor/runs.csv",
            tidy=_of_sailor,
            selection=_as_they_are,
            tell=frozenset(),
        ),
        "layers": PublishedTable(
            file="sailor/layers.csv.gz",
            published="planners/sailor_layer_profiles.csv",
            columns={
                "model": "model",
                "accelerator": "gpu",
                "micro_batch": "micro_batch",
                "tp": "tp",
                "layer": "layer",
                "forward_s": "fwd_s",
                "backward_s": "bwd_s",
            },
        ),
    },
)
