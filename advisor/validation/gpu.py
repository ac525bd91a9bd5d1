"""Protocol ``gpu``: known jobs on an unseen GPU type (Lambda's suite), whole types left out.

Labels are taken as the table has them. Known faults stay in the score and are counted apart as
``cleaned``: the system ``V100`` copies ``V100 32GB``, ``Ada A6000`` is an RTX 6000 Ada under
another name, and RTX A4000's fp16 waveglow is a slip (3,029 where its neighbours have 50,000).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.learned.device_gp import DeviceProcess
from advisor.measurements import LAMBDA
from advisor.validation.device_cells import (
    CellTable,
    Variant,
    cell_table,
    left_out,
    nested_choice,
    ratio_baselines,
)
from advisor.validation.scores import Blind, Group, Scores, Validation, score

Z90 = 1.6449  # half of a 90 % interval of a normal distribution
COPIED_SYSTEM = "V100"
MISLABELLED_SYSTEM = "Ada A6000"
SLIP = ("RTX-A4000", "fp16", "waveglow")
SEEN: Final = (
    "lengths, members and shrinkage: chosen on this table by left-out GPUs",
    "scales of the amplitudes' priors",
)


def run(data: Path) -> Validation:
    """Score the device process on the suite under ``data``.

    Raises
    ------
    ModelError
        If the table is not there or has other columns.
    """
    rows = LAMBDA.read("throughputs", data)
    rows = rows[rows["accelerators"] == 1]
    table = cell_table(one_device_cells(rows))
    process = DeviceProcess()
    mean, sd = left_out(process, table, table.frame["device"].to_numpy())
    family, _ = left_out(DeviceProcess(), table, table.frame["chip"].to_numpy())
    clean = cell_table(one_device_cells(_cleaned(rows)))
    clean_mean, _ = left_out(DeviceProcess(), clean, clean.frame["device"].to_numpy())
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
    figures["worst GPU's coverage"] = min(g.scores.coverage or 0.0 for g in groups)
    everything = np.ones(len(table.frame), bool)
    simple, beside = ratio_baselines(table, mean)
    return Validation(
        protocol="gpu",
        description="throughput of known jobs, each GPU type left out (both precisions at once)",
        form="chosen with these rows in sight",
        scores="DeviceProcess (advisor.learned.device_gp), which no verb asks",
        seen=SEEN,
        overall=_scores(table, mean, sd, everything),
        groups=groups,
        baselines=simple,
        beside=beside,
        figures=figures,
        notes=(
            "labels as in the table; 'cleaned' drops a copied V100 and a slip, renames a board",
            "lengths, members and shrinkage were chosen on this table by left-out GPUs",
            *table.notes,
        ),
    )


# What was chosen on this table by left-out GPUs, and neighbours of it.
VARIANTS: Final = (
    Variant(name="as shipped", build=DeviceProcess),
    Variant(name="rooflines alone", build=lambda: DeviceProcess(has_process=False)),
    Variant(name="half the shrinkage", build=lambda: DeviceProcess(shrinkage=0.3)),
    Variant(name="twice the shrinkage", build=lambda: DeviceProcess(shrinkage=1.2)),
    Variant(name="twice the lengths", build=lambda: DeviceProcess(lengths=(0.72, 3.0))),
)


def blind(data: Path, shipped: Validation) -> Blind:
    """Score the process with its hyper-parameters chosen on other generations of chips.

    Raises
    ------
    ModelError
        As ``run``.
    """
    rows = LAMBDA.read("throughputs", data)
    table = cell_table(one_device_cells(rows[rows["accelerators"] == 1]))
    mean, sd, chosen = nested_choice(VARIANTS, table)
    everything = np.ones(len(table.frame), bool)
    return Blind(
        overall=_scores(table, mean, sd, everything),
        groups=[
            Group(
                group=str(g), scores=_scores(table, mean, sd, (table.frame["gpu"] == g).to_numpy())
            )
            for g in sorted(table.frame["gpu"].unique())
        ],
        changed=(
            "members, shrinkage and lengths, chosen on the other generations: "
            + ", ".join(f"{name} for {generation}" for generation, name in chosen.items()),
        ),
        still_seen=("the form: rooflines and a Gaussian process of their errors", SEEN[1]),
    )


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
        low, high = (np.exp(mean[rows] + sign * Z90 * sd[rows]) for sign in (-1, 1))
    return score(np.exp(mean[rows]), measured, low=low, high=high)


def _figures(precision: str, scores: Scores) -> dict[str, float]:
    return {
        f"{precision} median APE": scores.median_ape_fraction,
        f"{precision} MAPE": scores.mape_fraction,
        f"{precision} coverage of 90 % intervals": scores.coverage or 0.0,
        f"{precision} mean half-width": scores.width or 0.0,
    }
