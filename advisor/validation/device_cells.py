"""Tables of (device, job) throughputs with the devices' specifications, and their baselines."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.errors import ModelError
from advisor.machines.devices import suite_device
from advisor.planners.core.nouns import Device
from advisor.validation.scores import Scores, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Measured (device, job, precision) cells as columns of shape (n,), in SI units."""

    log_throughput: np.ndarray
    device: np.ndarray
    job: np.ndarray
    precision: np.ndarray
    peak: np.ndarray
    bandwidth: np.ndarray

    @property
    def output(self) -> np.ndarray:
        """A number for each (job, precision)."""
        return np.asarray(self.job * (int(self.precision.max()) + 1) + self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """The cells as columns, the frame they came from, and what was left out of it."""

    cells: Cells
    frame: pd.DataFrame
    notes: tuple[str, ...]


def cell_table(frame: pd.DataFrame) -> CellTable:
    """Join measured cells with the specifications of their devices.

    Parameters
    ----------
    frame : DataFrame
        Columns gpu, precision, model, throughput, batch, count.

    Raises
    ------
    ModelError
        If no row has a known device, or a throughput is not positive.
    """
    bad = frame[~(frame["throughput"] > 0)]
    if len(bad):
        raise ModelError(
            f"throughput is not positive in {bad.iloc[0].to_dict()}",
            hint="correct the row or remove it",
        )
    known = frame["gpu"].map(lambda name: suite_device(name) is not None)
    unknown = sorted(frame.loc[~known, "gpu"].unique())
    frame = frame[known].reset_index(drop=True)
    if frame.empty:
        raise ModelError("no device of the table is in the device sheet", hint="add its row")
    devices = [suite_device(name) for name in frame["gpu"]]
    frame["device"] = frame["gpu"]
    frame["chip"] = [chip_family(d) for d in devices if d is not None]
    notes = (f"not in the device sheet, left out: {', '.join(unknown)}",) if unknown else ()
    return CellTable(cells=_columns(frame), frame=frame, notes=notes)


def _columns(frame: pd.DataFrame) -> Cells:
    found = [d for d in (suite_device(name) for name in frame["gpu"]) if d is not None]
    precision = (frame["precision"] == "fp16").to_numpy().astype(np.int64)
    peaks = np.array([_peak(d, int(p)) for d, p in zip(found, precision, strict=True)])
    return Cells(
        log_throughput=np.log(frame["throughput"].to_numpy(float)),
        device=_codes(frame["gpu"]),
        job=_codes(frame["model"]),
        precision=precision,
        peak=peaks,
        bandwidth=np.array([d.memory_bytes_per_s for d in found]),
    )


def _codes(labels: pd.Series) -> np.ndarray:
    return np.unique(labels.to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)


def _peak(device: Device, is_half_precision: int) -> float:
    """Return the peak of a framework's defaults: tensor cores for fp32 where there is TF32."""
    half = device.fp16_flop_per_s or device.bf16_flop_per_s
    single = device.tf32_flop_per_s or device.fp32_flop_per_s
    peak = (half or single) if is_half_precision else (single or half)
    if peak is None:
        raise ModelError(f"{device.name} has no peak in the device sheet", hint="add it")
    return peak


# Chip families by a board's name, the first that matches; a board of no pattern is its own.
CHIPS = (
    ("GA100", r"^A100|^A800|^A30$"), ("GH100", r"^H100|^H200|^GH200"),
    ("GB100", r"^B200|^B300|^GB200|^GB300"), ("GV100", r"^V100|TITAN-V"),
    ("TU102", r"RTX-2080-Ti|TITAN-RTX|RTX-[68]000-Turing"),
    ("TU104", r"^T4|RTX-5000-Turing|RTX-2080|RTX-2070-SUPER"),
    ("TU106", r"RTX-2070|RTX-2060"),
    ("GA104", r"RTX-3070|RTX-A4000|RTX-3060-Ti|RTX-3080-(MaxQ|Laptop|Ti-Laptop)"),
    ("GA102", r"RTX-30[89]0|RTX-A[456]\d00|^A40$|^A10G?$"),
    ("AD102", r"RTX-4090|RTX-6000-Ada|^L40"),
)  # fmt: skip


def chip_family(device: Device) -> str:
    """Return the chip on a board, the board's own name where no other carries it."""
    for chip, pattern in CHIPS:
        if re.search(pattern, device.name):
            return chip
    return device.name


def ratio_baselines(
    table: CellTable, mean: np.ndarray
) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """Return the protocol's baselines, over all precisions, and ours on the same rows.

    Pairwise ratios take each other device's throughput of the job times the ratio of peaks,
    bandwidths or their geometric mean (a row counts once for each other device, ours too); the
    log-linear fits leave the device out.

    Parameters
    ----------
    table : CellTable
    mean : array of shape (n,)
        Our ln(throughput); nan where we have no answer, and no baseline is asked for one.
    """
    cells = table.cells
    rates = {
        "ratio of peak FLOP/s": np.log(cells.peak),
        "ratio of bandwidth": np.log(cells.bandwidth),
        "ratio of their geometric mean": 0.5 * np.log(cells.peak * cells.bandwidth),
    }
    pairs = {name: _pairwise(cells, rate, mean) for name, rate in rates.items()}
    found = {name: theirs for name, (theirs, _) in pairs.items()}
    ours = {name: own for name, (_, own) in pairs.items()}
    for name, is_per_job in (("shared exponents", False), ("exponents per job", True)):
        theirs = _log_linear(cells, is_per_job=is_per_job)
        rows = np.isfinite(theirs) & np.isfinite(mean)
        measured = np.exp(cells.log_throughput[rows])
        found[f"log-linear, {name}"] = score(np.exp(theirs[rows]), measured)
        ours[f"log-linear, {name}"] = score(np.exp(mean[rows]), measured)
    return found, ours


def _pairwise(cells: Cells, rate: np.ndarray, mean: np.ndarray) -> tuple[Scores, Scores]:
    """Return the scores of every pair's ratio, and ours with every row once a pair."""
    predicted, ours, measured = [], [], []
    for output in np.unique(cells.output):
        rows = np.flatnonzero((cells.output == output) & np.isfinite(mean))
        y, r, device = cells.log_throughput[rows], rate[rows], cells.device[rows]
        a, b = np.nonzero(device[:, None] != device)
        predicted.append(y[a] + r[b] - r[a])
        ours.append(mean[rows][b])
        measured.append(y[b])
    theirs, own, truth = (np.exp(np.concatenate(c)) for c in (predicted, ours, measured))
    return score(theirs, truth), score(own, truth)


def _log_linear(cells: Cells, *, is_per_job: bool) -> np.ndarray:
    """Return ln(throughput) of every row by a fit without its device; nan where none."""
    features = np.log(np.stack([cells.peak, cells.bandwidth], axis=1))
    features = features - features.mean(axis=0)
    outputs = np.unique(cells.output)
    offsets = (cells.output[:, None] == outputs).astype(float)
    slopes = (
        (offsets[:, :, None] * features[:, None]).reshape(len(features), -1)
        if is_per_job
        else features
    )
    design = np.c_[offsets, slopes]
    mean = np.full(len(features), np.nan)
    for device in np.unique(cells.device):
        out = cells.device == device
        known = ~out & np.isin(cells.output, outputs)
        gram = design[known].T @ design[known] + 1e-3 * np.eye(design.shape[1])
        found = np.linalg.solve(gram, design[known].T @ cells.log_throughput[known])
        seen = np.isin(cells.output, cells.output[known])
        mean[out & seen] = (design @ found)[out & seen]
    return mean
