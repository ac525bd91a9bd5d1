"""Public collections of labelled runs: PROFET, cloud-hw-trainpred, scout, IBM's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.measurements.collection import Collection
from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import PublishedTable
from advisor.records import AnchorRun, RunRecord
from advisor.records.importers import ibm, profet, scout, trainpred

if TYPE_CHECKING:
    import pandas as pd


def mean_over_repeats(records: list[RunRecord]) -> list[RunRecord]:
    """Average the repeats of each job on each target: times, and the anchor's facts.

    Nine repeats differ by 1 % (median); what the protocols score are their means.
    """
    repeats: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        repeats.setdefault((record.job.job_id, record.instance_key), []).append(record)
    return [_mean(of_cell) for of_cell in repeats.values()]


def _mean(repeats: list[RunRecord]) -> RunRecord:
    first = repeats[0]
    anchors = [r.anchor for r in repeats if r.anchor is not None]
    times = [r.time_s for r in repeats if r.time_s is not None]
    names = [name for name, fact in anchors[0].facts.items() if isinstance(fact, float)]
    anchor = AnchorRun(
        machines=anchors[0].machines,
        time_s=float(np.mean([a.time_s for a in anchors])),
        facts={n: float(np.mean([float(a.facts[n]) for a in anchors])) for n in names},
    )
    return replace(
        first,
        record_id=first.record_id.rpartition("/")[0],
        replicate=0,
        time_s=float(np.mean(times)),
        anchor=anchor,
    )


def _profet(path: Path) -> list[RunRecord]:
    return mean_over_repeats(profet.read(path))


def _median_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: the median of its repeats."""
    pixels = rows["image_pixels"].str.removesuffix("dataset").astype(int)
    keys = ["instance_type", "model", "image_pixels", "batch"]
    cells = rows.assign(image_pixels=pixels).groupby(keys)["step_s"].median()
    return cells.reset_index()


PROFET: Final = Dataset(
    name="profet",
    title="PROFET's step times and operator profiles",
    upstream=(
        Upstream(repository="ddps-lab/profet", commit="e69477fe6ea4e9ff61a78fdbecebb8e9da50229a"),
    ),
    licence="MIT",
    ships=True,
    tables={
        "steps": PublishedTable(
            file="profet/steps.csv.gz",
            published="cloud_runs/profet/target_latency.csv",
            columns={
                "instance_type": "instance_name",
                "model": "model",
                "image_pixels": "dataset",
                "batch": "batchsize",
                "step_s": "batch_latency",
            },
            tidy=_median_steps,
        )
    },
    runs={
        "jobs": Collection(
            file="profet/jobs.jsonl.gz",
            published="cloud_runs/profet/anchor_g4.parquet",
            collect=_profet,
        )
    },
)
TRAINPRED: Final = Dataset(
    name="trainpred",
    title="cloud-hw-trainpred's epochs",
    upstream=(
        Upstream(
            repository="ddps-lab/cloud-hw-trainpred",
            commit="a43ddd943d7dd07f6042706fdd6aba0b71dde8c8",
        ),
    ),
    licence="Apache-2.0 and MIT",
    ships=True,
    runs={
        "epochs": Collection(
            file="trainpred/epochs.jsonl.gz",
            published="cloud_runs/cloud-hw-trainpred",
            collect=trainpred.read,
        )
    },
)
SCOUT: Final = Dataset(
    name="scout",
    title="scout's Spark and Hadoop jobs",
    upstream=(
        Upstream(repository="oxhead/scout", commit=""),
        Upstream(
            repository="marialcasimiro/Lynceus-ICDCS",
            commit="c5f83fc8d0a4fe57cc4724c1ebce725d605f0a0a",
        ),
    ),
    licence="MIT (oxhead/scout; reached through Lynceus-ICDCS)",
    ships=True,
    runs={
        "jobs": Collection(
            file="scout/jobs.jsonl.gz",
            published="cloud_runs/scout-multinode",
            collect=scout.read,
        )
    },
)
IBM: Final = Dataset(
    name="ibm",
    title="IBM's multi-cloud jobs",
    upstream=(
        Upstream(
            repository="IBM/multi-cloud-configuration-dataset",
            commit="9380be4a572de8b101ed1eea59279d2f2e567af0",
        ),
    ),
    licence="Apache-2.0",
    ships=True,
    runs={
        "jobs": Collection(
            file="ibm/jobs.jsonl.gz",
            published="cloud_runs/ibm-multi-cloud",
            collect=ibm.read,
        )
    },
)
