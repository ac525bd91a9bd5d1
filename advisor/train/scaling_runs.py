"""Read the measured step times by placement of Pollux and Sia: one record a cluster.

Of Sia's tables where they are there, else of the part that ships (Pollux's, AWS). Scalability rows
that repeat a placement row are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.lab.data import POLLUX, SIA
from advisor.planners.links.scaling_fit import MeasuredPlacements
from advisor.planners.links.scaling_law import Placements

if TYPE_CHECKING:
    import pandas as pd

PLACEMENTS: Final = "placements"
TABLES: Final = (PLACEMENTS, "scalability")
# Trainable parameters of the public models x 4 bytes (gradients are fp32 in these runs): BERT-base
# 109.5 M, ResNet-18 11.2 M, ResNet-50 25.6 M, YOLOv3 61.9 M. The recording of a job has its own.
GRADIENT_BYTES: Final[Mapping[str, float]] = {
    "bert": 438e6,
    "cifar10": 44.7e6,
    "imagenet": 102e6,
    "yolov3": 248e6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRuns:
    """All measured runs of one cluster."""

    applications: tuple[str, ...]  # names, in the order of the placements' indices
    measured: MeasuredPlacements
    is_placement: NDArray[np.bool_]  # from the placement table

    def take(self, rows: NDArray[np.bool_]) -> MeasuredPlacements:
        """Return the chosen rows; the applications keep their indices."""
        return MeasuredPlacements(
            placements=self.measured.placements.take(rows), step_s=self.measured.step_s[rows]
        )

    @property
    def gradient_bytes(self) -> list[float | None]:
        """Gradients of each application where publicly known."""
        return [GRADIENT_BYTES.get(name) for name in self.applications]


def read_clusters(data: Path) -> dict[str, ClusterRuns]:
    """Read both tables under ``data``; returns cluster name -> runs.

    Raises ModelError if neither table is there, a column is missing, or no row is usable.
    """
    import pandas as pd

    source = SIA if any(SIA.has(name, data) for name in TABLES) else POLLUX
    tables = [
        source.read(name, data).assign(is_placement=name == PLACEMENTS)
        for name in TABLES
        if source.has(name, data)
    ]
    if not tables:
        raise source.absent(data)
    runs = pd.concat(tables, ignore_index=True)
    runs = runs[(runs.step_s > 0) & (runs.local_batch > 0) & (runs.workers >= 1)]
    runs["rounded"] = runs.step_s.round(7)
    key = ["cluster", "application", "nodes", "workers", "local_batch", "rounded"]
    runs = runs[runs.is_placement | ~runs.duplicated(key)]
    if runs.empty:
        raise ModelError(f"no measured run in the tables of {source.title} under {data}")
    return {str(name): _columns(own) for name, own in runs.groupby("cluster")}


def _columns(own: pd.DataFrame) -> ClusterRuns:
    names = tuple(sorted(own.application.astype(str).unique()))
    index = {name: i for i, name in enumerate(names)}

    def column(name: str) -> NDArray[np.float64]:
        return own[name].to_numpy(float)

    return ClusterRuns(
        applications=names,
        measured=MeasuredPlacements(
            placements=Placements(
                application=own.application.astype(str).map(index).to_numpy(int),
                nodes=column("nodes"),
                per_node=column("per_node"),
                workers=column("workers"),
                batch=column("local_batch"),
            ),
            step_s=column("step_s"),
        ),
        is_placement=own.is_placement.to_numpy(bool),
    )
