"""Score one table of (device, job) throughputs, what else is known of the jobs beside it.

Rows of the table are predicted from the table's other devices and from a reference table of the
same suite; whatever either says of the device itself is left out.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pandas as pd

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.machines.devices import suite_device
from advisor.validation.device_cells import CellTable, cell_table
from advisor.validation.known_jobs import left_out
from advisor.validation.scores import (
    THE_PRODUCT,
    Group,
    Scores,
    Validation,
    compare,
    score,
)

# Beyond this ratio to what other devices measured, no device is that fast: the units are wrong.
# (The worst known slip of a published table is a factor of 14.)
IMPLAUSIBLE: Final = 50.0
SEEN: Final = (
    "nothing of the table, if it was never looked at; what is usual of jobs is Lambda's",
)


def score_cells(protocol: str, table: pd.DataFrame, reference: pd.DataFrame | None) -> Validation:
    """Score a table of cells.

    Parameters
    ----------
    protocol : str
        The suite's name.
    table, reference : DataFrame
        Columns gpu, precision, model, throughput, batch, count; see ``cell_table``.

    Raises
    ------
    ModelError
        If nothing can be predicted, or a throughput is impossible; the error shows the row.
    """
    joined = cell_table(_joined(table, reference))
    is_scored = joined.frame["is_scored"].to_numpy(bool)
    device = joined.frame["device"].to_numpy()
    mean, sd = left_out(joined, device, is_scored)
    rows = is_scored & np.isfinite(mean)
    if not rows.any():
        raise ModelError(
            "no job of the table was measured on another device",
            hint="add rows of the same jobs on other devices, or give --data",
        )
    _refuse_implausible(joined, rows, mean)
    unknown = int((is_scored & ~rows).sum())
    notes = (f"{unknown} rows of jobs known on no other device are not scored",) if unknown else ()
    simple, beside = compare(
        baselines(joined, rows),
        np.where(rows, np.exp(mean), np.nan),
        np.exp(joined.cells.log_throughput),
    )
    return Validation(
        protocol=protocol,
        description="throughput of known jobs, each device of the table left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=_scores(joined, mean, sd, rows),
        groups=[
            Group(group=str(g), scores=_scores(joined, mean, sd, rows & (device == g)))
            for g in np.unique(device[rows])
        ],
        baselines=simple,
        beside=beside,
        notes=(*notes, *joined.notes),
    )


def _joined(table: pd.DataFrame, reference: pd.DataFrame | None) -> pd.DataFrame:
    """Return the rows with devices under one name each, the reference's without the table's."""
    frame = table.assign(is_scored=True, gpu=_canonical(table["gpu"]))
    if reference is None:
        return frame
    others = reference.assign(is_scored=False, gpu=_canonical(reference["gpu"]))
    others = others[~others["gpu"].isin(frame["gpu"])]
    return pd.concat([others, frame], ignore_index=True)


def _canonical(names: pd.Series) -> list[str]:
    """Return one name a device: the same card in two makers' machines is left out of both."""
    devices = map(suite_device, names)
    return [n if d is None else d.name for n, d in zip(names, devices, strict=True)]


def _refuse_implausible(table: CellTable, rows: np.ndarray, mean: np.ndarray) -> None:
    ratio = np.where(rows, np.abs(table.cells.log_throughput - mean), 0.0)
    worst = int(np.argmax(ratio))
    if ratio[worst] > math.log(IMPLAUSIBLE):
        row = table.frame.iloc[worst][["gpu", "precision", "model", "throughput"]].to_dict()
        times = math.exp(table.cells.log_throughput[worst] - mean[worst])
        raise ModelError(
            f"implausible: {row} is {times:.3g} times what other devices measured",
            hint="are the units samples/s of one device? correct the row or remove it",
        )


def _scores(table: CellTable, mean: np.ndarray, sd: np.ndarray, rows: np.ndarray) -> Scores:
    measured = np.exp(table.cells.log_throughput[rows])
    low, high = (np.exp(mean[rows] + sign * REACH_90 * sd[rows]) for sign in (-1, 1))
    return score(np.exp(mean[rows]), measured, low=low, high=high)


def baselines(table: CellTable, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return what simple rules make of the rows, their device left out; nan elsewhere.

    ``mean``: the other devices' mean; ratios: the mean of ln(throughput / rate) over the other
    devices, times the device's rate (by peak FLOP/s that is a constant share of the peak, MFU);
    ``plain roofline``: a non-negative a / peak + b / bandwidth per job.
    """
    cells = table.cells
    peak, bandwidth = np.log(cells.peak), np.log(cells.bandwidth)
    rates = {
        "mean of the other devices": np.zeros_like(peak),
        "peak FLOP/s ratio (const. MFU)": peak,
        "bandwidth ratio": bandwidth,
        "geometric mean of both ratios": (peak + bandwidth) / 2,
    }
    found = {name: np.full(len(peak), np.nan) for name in (*rates, "plain roofline")}
    for i in np.flatnonzero(rows):
        known = (cells.output == cells.output[i]) & (cells.device != cells.device[i])
        y = cells.log_throughput[known]
        for name, rate in rates.items():
            found[name][i] = rate[i] + np.mean(y - rate[known])
        found["plain roofline"][i] = _roofline(peak[known], bandwidth[known], y, peak[i],
                                               bandwidth[i])  # fmt: skip
    return {name: np.exp(value) for name, value in found.items()}


def _roofline(
    peak: np.ndarray, bandwidth: np.ndarray, y: np.ndarray, peak_there: float, there: float
) -> float:
    """Return ln(throughput) of a / peak + b / bandwidth, fitted to relative errors."""
    from scipy.optimize import nnls

    design = np.exp(np.stack([y - peak, y - bandwidth], axis=1))
    scale = design.mean(axis=0)
    (a, b), _ = nnls(design / scale, np.ones(len(y)))
    return float(-np.log(a / scale[0] * np.exp(-peak_there) + b / scale[1] * np.exp(-there)))
