"""Collections too large to ship, or without a licence: spot traces and hivemind's recordings."""

from __future__ import annotations

from typing import Final

from advisor.measurements.dataset import Dataset, PublishedFile, Upstream

SPOT: Final = Dataset(
    name="spot",
    title="SkyPilot's spot traces",
    upstream=(Upstream(repository="skypilot-org/spot-traces", commit="221da1ab"),),
    licence="none stated",
    ships=False,
    files={
        "intervals": PublishedFile(
            file="spot/intervals.csv",
            published="measurements/spot/skypilot_spot_intervals.csv",
        )
    },
)
_HIVEMIND: Final = "cloud_runs/hivemind-multi-cloud"
HIVEMIND: Final = Dataset(
    name="hivemind",
    title="hivemind's multi-cloud recordings",
    upstream=(
        Upstream(
            repository="cirquit/hivemind-multi-cloud",
            commit="654cc023d1ee5e049d8ed72ed66194e137fcc114",
        ),
    ),
    licence="MIT; 18 MB",
    ships=False,
    files={
        name: PublishedFile(file=f"hivemind/{name}", published=f"{_HIVEMIND}/{name}")
        for name in (
            "experiments.csv",
            "nodes.csv",
            "system_series.parquet",
            "train_steps.parquet",
        )
    },
)
