"""Protocol ``gpu``: known jobs on an unseen GPU type (Lambda's suite), whole types left out.

Labels are taken as the table has them. Known faults stay in the score and are counted apart as
``cleaned``: the system ``V100`` copies ``V100 32GB``, ``Ada A6000`` is an RTX 6000 Ada under
another name, and RTX A4000's fp16 waveglow is a slip (3,029 where its neighbours have 50,000).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from advisor.domain import REACH_90
from advisor.lab.data import LAMBDA
from advisor.validation.device_cells import CellTable, cell_table, ratio_baselines
from advisor.validation.known_jobs import SEEN, left_out
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score

COPIED_SYSTEM = "V100"
MISLABELLED_SYSTEM = "Ada A6000"
SLIP = ("RTX-A4000", "fp16", "waveglow")


def run(data: Path) -> Validation:
    """Ask the product for every cell of the suite under ``data``, its GPU left out.

    Raises
    ------
    ModelError
        If the table is not there or has other columns.
    """
    rows = LAMBDA.read("throughputs", data)
    rows = rows[rows["accelerators"] == 1]
    table = cell_table(one_device_cells(rows))
    mean, sd = left_out(table, table.frame["device"].to_numpy())
    family, _ = left_out(table, table.frame["chip"].to_numpy())
    clean = cell_table(one_device_cells(_cleaned(rows)))
    clean_mean, _ = left_out(clean, clean.frame["device"].to_numpy())
    figures: dict[str, float] = {}
    for precision in ("fp16", "fp32"):
        mask = (table.frame["precision"] == precision).to_numpy()
        figures |= _figures(precision, _scores(table, mean, sd, mask))
        unseen = _scores(table, family, None, mask)
        figures[f"{precision} chip family left out, median APE"] = unseen.median_ape_fraction
        kept = (clean.frame["precision"] == precision).to_numpy()
        cleaned = _scores(clean, clean_mean, None, kept)
        figures[f"{precision} cleaned labels, median APE"] = cleaned.median_ape_fraction
        figures[f"{precision} cleaned labels, MAPE"] = cleaned.mape_fraction
    groups = [
        Group(group=str(g), scores=_scores(table, mean, sd, (table.frame["gpu"] == g).to_numpy()))
        for g in sorted(table.frame["gpu"].unique())
    ]
    figures |= _by_sibling(table, mean, sd)
    figures["worst GPU's coverage"] = min(g.scores.coverage or 0.0 for g in groups)
    everything = np.ones(len(table.frame), bool)
    simple, beside = ratio_baselines(table, mean)
    return Validation(
        protocol="gpu",
        description="throughput of known jobs, each GPU type left out (both precisions at once)",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=_scores(table, mean, sd, everything),
        groups=groups,
        baselines=simple,
        beside=beside,
        figures=figures,
        notes=(
            "labels as in the table; 'cleaned' drops a copied V100 and a slip, renames a board",
            "asked as `--runs`: the same job's steps on the other GPUs, at the batch run there",
            *table.notes,
        ),
    )


def _by_sibling(table: CellTable, mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    """Score apart the GPUs whose chip no other card of the table has."""
    cards = table.frame.groupby("chip")["device"].nunique()
    is_alone = (table.frame["chip"].map(cards) == 1).to_numpy()
    figures: dict[str, float] = {}
    for name, mask in (("without a sibling", is_alone), ("with a sibling", ~is_alone)):
        if mask.any():
            scores = _scores(table, mean, sd, mask)
            figures |= {
                f"GPUs {name}: rows": float(scores.rows),
                f"GPUs {name}: median APE": scores.median_ape_fraction,
                f"GPUs {name}: MAPE": scores.mape_fraction,
                f"GPUs {name}: coverage": scores.coverage or 0.0,
            }
    return figures


def _cleaned(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["system"] != COPIED_SYSTEM].copy()
    rows.loc[rows["system"] == MISLABELLED_SYSTEM, "accelerator"] = "RTX-6000-Ada"
    gpu, precision, model = SLIP
    is_job = (rows["precision"] == precision) & (rows["model"] == model)
    return rows[~((rows["accelerator"] == gpu) & is_job)]


def one_device_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median throughput of one device by (gpu, precision, model).

    Parameters
    ----------
    rows : DataFrame
        ``measurements.LAMBDA``'s throughputs of one device.
    """
    grouped = rows.groupby(["accelerator", "precision", "model"])
    cells = grouped.agg(
        throughput=("units_per_s", "median"),
        batch=("batch_per_accelerator", "median"),
        count=("units_per_s", "size"),
    )
    return cells.reset_index().rename(columns={"accelerator": "gpu"})


def _scores(table: CellTable, mean: np.ndarray, sd: np.ndarray | None, mask: np.ndarray) -> Scores:
    rows = mask & np.isfinite(mean)
    measured = np.exp(table.cells.log_throughput[rows])
    low = high = None
    if sd is not None:
        low, high = (np.exp(mean[rows] + sign * REACH_90 * sd[rows]) for sign in (-1, 1))
    return score(np.exp(mean[rows]), measured, low=low, high=high)


def _figures(precision: str, scores: Scores) -> dict[str, float]:
    return {
        f"{precision} median APE": scores.median_ape_fraction,
        f"{precision} MAPE": scores.mape_fraction,
        f"{precision} coverage of 90 % intervals": scores.coverage or 0.0,
        f"{precision} mean half-width": scores.width or 0.0,
    }
