"""Protocol ``layers``: forward and backward of a transformer layer on an unseen GPU.

Only specifications are known of the left-out GPU (the device sheet's sustained rates, which come
from this table, are not used). ``GPU and model`` leaves out the model's rows on the other GPUs
too; ``one row`` adds a single measured row of another model on the GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from advisor.train.device_model import Array, LayerModel, LayerRows, Mask, read_layers
from advisor.validation.scores import Group, Scores, Validation, score

# How much of one row's error is taken to be the GPU's: the rest is that model's and batch's.
ROW_SHARE: Final = 0.6
ROWS_DRAWN: Final = 8  # calibration rows tried for each model


def run(data: Path) -> Validation:
    """Score the layer model on the profiles under ``data``.

    Raises
    ------
    ModelError
        If the table cannot be read or a row is implausible.
    """
    rows = read_layers(data)
    seen, unseen = np.full(rows.log_s.size, np.nan), np.full(rows.log_s.size, np.nan)
    for gpu in np.unique(rows.gpu):
        is_gpu = rows.gpu == gpu
        model = LayerModel(rows).fit(~is_gpu)
        start = model.parameters_
        seen[is_gpu] = model.log_s()[is_gpu]
        for name in np.unique(rows.model[is_gpu]):
            is_model = rows.model == name
            out = is_gpu & is_model
            unseen[out] = model.fit(~is_gpu & ~is_model, start).log_s()[out]
    figures: dict[str, float] = {}
    for precision, mask in (("fp16", rows.is_half), ("fp32", ~rows.is_half)):
        figures[f"{precision} GPU unseen, median APE"] = _scores(
            rows, seen, mask
        ).median_ape_fraction
        both = _scores(rows, unseen, mask)
        figures[f"{precision} GPU and model unseen, median APE"] = both.median_ape_fraction
        figures[f"{precision} GPU and model unseen, MAPE"] = both.mape_fraction
        one = _one_row(rows, unseen, mask)
        figures[f"{precision} and one row of another model, median APE"] = one.median_ape_fraction
    groups = [
        Group(group=str(g), scores=_scores(rows, unseen, rows.gpu == g))
        for g in np.unique(rows.gpu)
    ]
    return Validation(
        protocol="layers",
        description="a layer's forward and backward, GPU type and model left out",
        overall=_scores(rows, unseen, np.ones(unseen.size, bool)),
        groups=groups,
        baselines={"ratio of peak FLOP/s, model known on others": _ratio(rows)},
        figures=figures,
        notes=("the form of the rate and the priors' means were written after seeing this table",),
    )


def _scores(rows: LayerRows, log_s: Array, mask: Mask) -> Scores:
    return score(np.exp(log_s[mask]), np.exp(rows.log_s[mask]))


def _one_row(rows: LayerRows, log_s: Array, mask: Mask) -> Scores:
    """Correct each model's rows by one row of another model on the same GPU, several draws."""
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
    return score(np.exp(np.concatenate(predicted)), np.exp(np.concatenate(measured)))


def _ratio(rows: LayerRows) -> Scores:
    """Scale each other GPU's time of the same row by the ratio of peaks, as a mean over GPUs."""
    keys: dict[tuple[object, ...], list[int]] = {}
    sizes = zip(rows.model, rows.is_half, rows.flop, strict=True)
    for i, key in enumerate(sizes):
        keys.setdefault(key, []).append(i)
    predicted, measured = [], []
    for same in keys.values():
        for i in same:
            others = [k for k in same if rows.gpu[k] != rows.gpu[i]]
            if others:
                scaled = rows.log_s[others] + np.log(rows.peak[others] / rows.peak[i])
                predicted.append(float(np.mean(scaled)))
                measured.append(rows.log_s[i])
    return score(np.exp(predicted), np.exp(measured))
