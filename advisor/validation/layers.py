"""Protocol ``layers``: forward and backward of a transformer layer on an unseen GPU.

Only specifications are known of the left-out GPU (the device sheet's sustained rates, which come
from this table, are not used). ``GPU and model`` leaves out the model's rows on the other GPUs
too; ``one row`` adds a single measured row of another model on the GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.machines.devices import suite_device
from advisor.measurements import LAYERS
from advisor.train.device_model import (
    Array,
    LayerModel,
    LayerRows,
    Mask,
    layer_frame,
    layer_rows,
    read_layers,
)
from advisor.validation.scores import Group, Scores, Validation, compare, score

# How much of one row's error is taken to be the GPU's: the rest is that model's and batch's.
ROW_SHARE: Final = 0.6
ROWS_DRAWN: Final = 8  # calibration rows tried for each model
SEEN: Final = (
    "the form of the rate, and the priors' means: written after seeing this table",
    "how much of one row's error is taken to be the GPU's",
)


def run(data: Path) -> Validation:
    """Score the layer model on the profiles under ``data``.

    Raises
    ------
    ModelError
        If the table cannot be read or a row is implausible.
    """
    rows = read_layers(data)
    return _validation(rows, np.ones(rows.log_s.size, bool))


def run_table(path: Path, data: Path | None) -> Validation:
    """Score the layer model on a table's GPUs, known the published rows on other GPUs.

    Raises
    ------
    ModelError
        If the table cannot be read or a row is implausible.
    """
    frame = layer_frame(path)
    own = len(frame)
    if data is not None and LAYERS.is_in(data):
        others = layer_frame(data)
        named = {d.name for d in map(suite_device, frame["accelerator"]) if d is not None}
        devices = map(suite_device, others["accelerator"])
        is_other = [d is None or d.name not in named for d in devices]
        frame = pd.concat([frame, others[is_other]], ignore_index=True)
    return _validation(layer_rows(frame), np.arange(len(frame)) < own)


def _validation(rows: LayerRows, is_scored: Mask) -> Validation:
    seen, unseen = _left_out(rows, is_scored)
    figures: dict[str, float] = {}
    for precision, is_half in (("fp16", True), ("fp32", False)):
        mask = (rows.is_half == is_half) & is_scored
        if mask.any():
            figures |= _figures(precision, rows, seen, unseen, mask)
    simple, beside = compare(
        {name: np.exp(log_s) for name, log_s in _rules(rows, is_scored).items()},
        np.where(is_scored, np.exp(unseen), np.nan),
        np.exp(rows.log_s),
    )
    return Validation(
        protocol="layers",
        description="a layer's forward and backward, GPU type and model left out",
        form="chosen with these rows in sight",
        scores="LayerModel (advisor.train.device_model), which no verb asks",
        seen=SEEN,
        overall=_scores(rows, unseen, is_scored),
        groups=[
            Group(group=str(g), scores=_scores(rows, unseen, is_scored & (rows.gpu == g)))
            for g in np.unique(rows.gpu[is_scored])
        ],
        baselines=simple,
        beside=beside,
        figures=figures,
        notes=("no interval: the layer model has none",),
    )


def _left_out(rows: LayerRows, is_scored: Mask) -> tuple[Array, Array]:
    """Return ln(seconds) with the GPU left out, and with GPU and model left out."""
    seen, unseen = np.full(rows.log_s.size, np.nan), np.full(rows.log_s.size, np.nan)
    for gpu in np.unique(rows.gpu[is_scored]):
        is_gpu = rows.gpu == gpu
        model = LayerModel(rows).fit(~is_gpu)
        seen[is_gpu] = model.log_s()[is_gpu]
        for name in np.unique(rows.model[is_gpu]):
            is_model = rows.model == name
            out = is_gpu & is_model
            unseen[out] = model.fit(~is_gpu & ~is_model).log_s()[out]
    return seen, unseen


def _figures(
    precision: str, rows: LayerRows, seen: Array, unseen: Array, mask: Mask
) -> dict[str, float]:
    both = _scores(rows, unseen, mask)
    found = {
        "GPU unseen, median APE": _scores(rows, seen, mask).median_ape_fraction,
        "GPU and model unseen, median APE": both.median_ape_fraction,
        "GPU and model unseen, MAPE": both.mape_fraction,
    }
    one = _one_row(rows, unseen, mask)
    if one is not None:
        found["and one row of another model, median APE"] = one.median_ape_fraction
    return {f"{precision} {name}": value for name, value in found.items()}


def _scores(rows: LayerRows, log_s: Array, mask: Mask) -> Scores:
    return score(np.exp(log_s[mask]), np.exp(rows.log_s[mask]))


def _one_row(rows: LayerRows, log_s: Array, mask: Mask) -> Scores | None:
    """Correct each model's rows by one row of another model on the same GPU, several draws.

    None where no GPU has rows of two models.
    """
    rng = np.random.default_rng(0)
    error = rows.log_s - log_s
    predicted, measured = [], []
    for gpu in np.unique(rows.gpu[mask]):
        on_gpu = mask & (rows.gpu == gpu)
        for name in np.unique(rows.model[on_gpu]):
            mine = on_gpu & (rows.model == name)
            others = np.flatnonzero(on_gpu & (rows.model != name))
            for row in rng.permutation(others)[:ROWS_DRAWN]:
                predicted.append(log_s[mine] + ROW_SHARE * error[row])
                measured.append(rows.log_s[mine])
    if not predicted:
        return None
    return score(np.exp(np.concatenate(predicted)), np.exp(np.concatenate(measured)))


def _rules(rows: LayerRows, is_scored: Mask) -> dict[str, Array]:
    """Return what simple rules make of the rows: ln(seconds), nan where they have no answer.

    Ratios take the same row on the other GPUs, as a mean of logarithms; a plain roofline the
    larger of arithmetic at the peak and traffic at the bandwidth; constant MFU the median share of
    the peak on the other GPUs.
    """
    ratios = _ratios(rows, is_scored)
    compute = np.log(rows.flop / rows.peak)
    traffic = np.log(3 * (rows.scores + rows.weights + 8 * rows.tokens) / rows.bandwidth)
    share = np.full(rows.log_s.size, np.nan)
    for gpu in np.unique(rows.gpu[is_scored]):
        others = rows.gpu != gpu
        if others.any():
            share[rows.gpu == gpu] = np.median((rows.log_s - compute)[others])
    return ratios | {
        "plain roofline": np.maximum(compute, traffic),
        "constant MFU": compute + share,
    }


def _ratios(rows: LayerRows, is_scored: Mask) -> dict[str, Array]:
    """Carry the same row over from the other GPUs by the ratio of peaks and of bandwidths."""
    keys: dict[tuple[object, ...], list[int]] = {}
    sizes = zip(rows.model, rows.is_half, rows.flop, strict=True)
    for i, key in enumerate(sizes):
        keys.setdefault(key, []).append(i)
    rates = {
        "mean of the other GPUs": np.zeros(rows.log_s.size),
        "ratio of peak FLOP/s": np.log(rows.peak),
        "ratio of bandwidth": np.log(rows.bandwidth),
    }
    found = {name: np.full(rows.log_s.size, np.nan) for name in rates}
    for same in keys.values():
        for i in same:
            others = [k for k in same if rows.gpu[k] != rows.gpu[i]]
            if others and is_scored[i]:
                for name, rate in rates.items():
                    found[name][i] = np.mean(rows.log_s[others] + rate[others]) - rate[i]
    return found
