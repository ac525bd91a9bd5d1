"""Fit the limits of large products and the traffic of transformer layers on layer profiles.

    t = (F + F_a) / R + (k_A A + k_T T) m_f / W + k_W P / W + c
    R = ((e peak)^-n + (kappa tdp)^-n)^(-1/n) x (deviations of chip and board)

| here          | meaning, unit                                                          |
|---------------|------------------------------------------------------------------------|
| ``flop``      | F + F_a: forward and backward of products and attention [flop]         |
| ``scores``    | A: attention scores of the micro-batch [bytes]                         |
| ``tokens``    | T: one hidden state of the micro-batch [bytes]                         |
| ``weights``   | P: parameters of the layer [bytes]                                     |
| ``m_f``       | traffic of a model family beyond the shared coefficients               |
| ``e, kappa``  | see ``planners.step.device.sustained_flop_per_s``                           |

Maximum a posteriori by robust least squares; the priors are wide (15 % on e, 30 % on kappa), but
their means and the form of R were written after seeing each GPU's rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.machines.devices import suite_device
from advisor.measurements import LAYERS
from advisor.planners.step.device_rates import vector_units

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
SHARPNESS: Final = 4.0
# Attention heads by model: the families' published configurations; hidden / 128 for others.
HEADS: Final = {
    "bert_large": 16, "bert_xlarge": 24, "gpt_1.3b": 32, "gpt_2.7b": 32, "gpt_6.7b": 32,
    "gpt_test": 8, "gpt_175b": 96, "llama_13b": 40, "llama_33b": 52, "llama_3b": 32,
    "llama_65b": 64, "llama_7b": 32, "llama_tiny": 32, "vit_e": 16, "vit_g": 16,
}  # fmt: skip
UNITS: Final = ("tensor", "single", "shared", "separate")
_PRIOR_E: Final = (0.78, 0.70, 0.55, 0.88)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRows:
    """Layer profiles as columns of shape (n,); codes number the distinct labels."""

    log_s: Array
    flop: Array
    scores: Array
    tokens: Array
    weights: Array
    is_half: Mask
    peak: Array
    bandwidth: Array
    tdp: Array
    years: Array
    unit: NDArray[np.int64]
    gpu: NDArray[np.str_]
    chip: NDArray[np.str_]
    model: NDArray[np.str_]
    family: NDArray[np.str_]
    micro_batch: NDArray[np.int64]


def read_layers(data: Path) -> LayerRows:
    """Read the profiles whose sizes are stated, on GPUs of the device sheet.

    Raises
    ------
    ModelError
        If the table cannot be read, or a time is not positive or implausible.
    """
    return layer_rows(layer_frame(data))


def layer_frame(data: Path) -> pd.DataFrame:
    """Read the layer profiles whose sizes are stated, on GPUs of the device sheet.

    Parameters
    ----------
    data : Path
        Measurements, or one table of layer profiles.

    Raises
    ------
    ModelError
        If the table cannot be read or has other columns.
    """
    rows = LAYERS.read("profiles", data)
    is_known = [suite_device(name) is not None for name in rows["accelerator"]]
    return rows[is_known].reset_index(drop=True)


def layer_rows(rows: pd.DataFrame) -> LayerRows:
    """Join layer profiles with the specifications of their GPUs.

    Raises
    ------
    ModelError
        If no row is left, or a time is not positive or implausible; the error shows the row.
    """
    if rows.empty:
        raise ModelError(
            "no layer has stated sizes and a GPU of the device sheet",
            hint="hidden and accelerator",
        )
    devices = [d for d in map(suite_device, rows["accelerator"]) if d is not None]
    seconds = (rows["forward_s"] + rows["backward_s"]).to_numpy(float)
    model = rows["model"].str.replace("deepspeed", "").str.replace("llamav2", "llama")
    hidden, seq = rows["hidden"].to_numpy(float), rows["sequence"].to_numpy(float)
    micro, parameters = (rows[c].to_numpy(float) for c in ("micro_batch", "parameters_per_layer"))
    heads = np.array([HEADS.get(m, h / 128) for m, h in zip(model, hidden, strict=True)])
    is_half = (rows["precision"] == "float16").to_numpy()
    size = np.where(is_half, 2.0, 4.0)
    tokens = micro * seq
    flop = 3 * (2 * parameters * tokens + 4 * micro * seq**2 * hidden)
    units = np.array([vector_units(d) for d in devices])
    single = np.array([d.fp32_flop_per_s or 0.0 for d in devices])
    half = np.array([d.fp16_flop_per_s or d.bf16_flop_per_s or 0.0 for d in devices])
    is_tensor = is_half & (units != "single")
    gpu = rows["accelerator"].to_numpy(dtype=str)
    peak = np.where(is_tensor, half, single)
    implausible = ~(seconds > 0) | (flop / seconds > 2 * np.maximum(peak, 1.0))
    if implausible.any():
        bad = rows.iloc[int(np.argmax(implausible))].to_dict()
        raise ModelError(
            f"twice the device's peak or no time at all: {bad}", hint="are the units ms?"
        )
    return LayerRows(
        log_s=np.log(seconds),
        flop=flop,
        scores=micro * heads * seq**2 * size,
        tokens=tokens * hidden * size,
        weights=parameters * size,
        is_half=is_half,
        peak=peak,
        bandwidth=np.array([d.memory_bytes_per_s for d in devices]),
        tdp=np.array([d.tdp_w or np.inf for d in devices]),
        years=np.array([(d.release_year or 2023.0) - 2023.0 for d in devices]),
        unit=np.where(is_tensor, 0, [UNITS.index(u) for u in units]),
        gpu=gpu,
        chip=np.array([re.sub(r"[xX-].*", "", name) for name in gpu]),
        model=model.to_numpy(dtype=str),
        family=np.array([m.split("_")[0] for m in model]),
        micro_batch=micro.astype(np.int64),
    )


class LayerModel:
    """The equation above with its parameters, fitted on some rows and evaluated on all.

    Attributes
    ----------
    parameters_ : ndarray
        ln e (4), ln kappa, ln(tensor / vector kappa), ln doubling years, two times
        ln (k_A, k_T, k_W, c in us), then deviations of families, chips and boards by precision.
    """

    def __init__(self, rows: LayerRows) -> None:
        self.rows = rows
        self._labels = [np.unique(v, return_inverse=True)[1] for v in self._groups()]
        self._sizes = [int(labels.max()) + 1 for labels in self._labels]
        base = np.log([*_PRIOR_E, 9e11, 7.5, 3.0, 8.0, 30.0, 3.0, 200.0, 8.0, 30.0, 3.0, 400.0])
        wide = [0.15, 0.2, 0.2, 0.15, 0.3, 0.25, 0.25, *[1.0] * 8]
        deviations = np.repeat([0.4, 0.12, 0.12], [2 * n for n in self._sizes])
        self._mean = np.r_[base, np.zeros(deviations.size)]
        self._sd = np.r_[wide, deviations]
        self.parameters_ = self._mean

    def _groups(self) -> tuple[NDArray[np.str_], ...]:
        return self.rows.family, self.rows.chip, self.rows.gpu

    def fit(self, known: Mask, start: Array | None = None) -> LayerModel:
        """Fit on the known rows; a board's sweep counts as sixty rows at most."""
        from scipy.optimize import least_squares

        labels = np.char.add(self.rows.gpu, self.rows.is_half.astype(str))
        codes = np.unique(labels, return_inverse=True)[1]
        count = np.bincount(codes[known], minlength=int(codes.max()) + 1)
        weight = np.sqrt(np.minimum(1.0, 60.0 / np.maximum(count[codes], 1)))[known]
        target = self.rows.log_s[known]

        def residuals(p: Array) -> Array:
            r = (self.log_s(p)[known] - target) / 0.12 * weight
            robust = np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r**2) - 1))
            # Rows of a sweep are not independent: nine count as one.
            return np.asarray(np.r_[robust / 3.0, (p - self._mean) / self._sd], float)

        begin = self._mean if start is None else start
        found = least_squares(residuals, begin, max_nfev=25, x_scale=self._sd)
        self.parameters_ = np.asarray(found.x, float)
        return self

    def log_s(self, p: Array | None = None) -> Array:
        """Return ln(seconds) of every row."""
        p = self.parameters_ if p is None else p
        rows, half = self.rows, self.rows.is_half
        family, chip, board = self._deviations(p[15:])
        is_tensor = rows.unit == 0
        kappa = p[4] + np.log(2) * rows.years / np.exp(p[6]) - np.where(is_tensor, 0.0, p[5])
        arithmetic, power = p[rows.unit] + np.log(rows.peak), kappa + np.log(rows.tdp)
        rate = -np.logaddexp(-SHARPNESS * arithmetic, -SHARPNESS * power) / SHARPNESS
        k = np.exp(np.where(half[:, None], p[7:11], p[11:15]))
        traffic = (k[:, 0] * rows.scores + k[:, 1] * rows.tokens) * np.exp(family)
        memory = (traffic + k[:, 2] * rows.weights) / rows.bandwidth
        compute = rows.flop / np.exp(rate + chip + board)
        return np.asarray(np.log(compute + memory + k[:, 3] * 1e-6), float)

    def _deviations(self, p: Array) -> list[Array]:
        found, at = [], 0
        for labels, size in zip(self._labels, self._sizes, strict=True):
            half, single = p[at : at + size], p[at + size : at + 2 * size]
            found.append(np.where(self.rows.is_half, half[labels], single[labels]))
            at += 2 * size
        return found
