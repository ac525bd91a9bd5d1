"""Protocol ``layers``: forward and backward of a transformer layer, GPU and model left out.

Every profile is asked of the product as a described model of one layer (``asked_steps``): the
device model is fitted without the GPU's rows, its process of errors knows neither the GPU nor the
model, and no sustained rate of the GPU is known. ``GPU unseen`` lets the process know the model's
layers on the other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.domain import REACH_90
from advisor.lab.data import LAYERS
from advisor.predict import Predictor
from advisor.train.described_columns import DescribedRows, columns
from advisor.train.described_rows import read_steps
from advisor.train.efficiencies import StepModel
from advisor.train.layer_steps import layer_frame, layer_steps
from advisor.train.measured_step import MeasuredStep
from advisor.train.residual_fit import seen_steps, without
from advisor.validation.asked_steps import answer
from advisor.validation.described import asking_with, rules
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, compare, score

Array = np.ndarray
SEEN: Final = (
    "the equation, its priors and the shapes of the process: chosen with these rows in sight",
    "whether a model's attention is asked as fused",
)


def run(data: Path) -> Validation:
    """Ask the product for the profiles under ``data``.

    Raises
    ------
    ModelError
        If the table cannot be read or a row is implausible.
    """
    return _validation(list(layer_steps(layer_frame(data))), read_steps(data))


def run_table(path: Path, data: Path | None) -> Validation:
    """Ask the product for a table's layers, known the published suites on other GPUs.

    Raises
    ------
    ModelError
        If the table cannot be read or a row is implausible.
    """
    scored = list(layer_steps(layer_frame(path)))
    known = scored if data is None or not LAYERS.is_in(data) else [*read_steps(data), *scored]
    return _validation(scored, known)


def _validation(scored: list[MeasuredStep], known: list[MeasuredStep]) -> Validation:
    seen, unseen, log_sd = _left_out(scored, known)
    rows = columns(scored)
    measured = np.exp(rows.log_s)

    def scores(log_s: Array, mask: Array, *, has_interval: bool = True) -> Scores:
        good = mask & np.isfinite(log_s)
        value, half = np.exp(log_s[good]), np.exp(REACH_90 * log_sd[good])
        if not has_interval:
            return score(value, measured[good])
        return score(value, measured[good], low=value / half, high=value * half)

    everything = np.isfinite(unseen)
    figures: dict[str, float] = {}
    for precision, is_half in (("fp16", True), ("fp32", False)):
        mask = everything & (rows.is_half == is_half)
        if mask.any():
            both = scores(unseen, mask)
            figures |= {
                f"{precision} GPU unseen, median APE": scores(
                    seen, mask, has_interval=False
                ).median_ape_fraction,
                f"{precision} GPU and model unseen, median APE": both.median_ape_fraction,
                f"{precision} GPU and model unseen, MAPE": both.mape_fraction,
            }
    simple, beside = compare(
        rules(rows, everything) | _ratios(rows, everything), np.exp(unseen), measured
    )
    return Validation(
        protocol="layers",
        description="a layer's forward and backward, GPU type and model left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=scores(unseen, everything),
        groups=[
            Group(group=str(g), scores=scores(unseen, everything & (rows.device == g)))
            for g in np.unique(rows.device[everything])
        ],
        baselines=simple,
        beside=beside,
        figures=figures,
        notes=("a layer alone: no embedding, head, loss or update",),
    )


def _left_out(
    scored: Sequence[MeasuredStep], known: list[MeasuredStep]
) -> tuple[Array, Array, Array]:
    """Return ln(seconds) with the GPU left out, with GPU and model, and the latter's deviation."""
    rows = columns(known)
    model = StepModel(rows)
    start = model.fit(np.ones(rows.log_s.size, bool)).parameters
    seen, unseen, log_sd = np.full((3, len(scored)), np.nan)
    device = np.array([step.device.name for step in scored])
    names = np.array([step.model for step in scored])
    for gpu in np.unique(device):
        out = rows.device == gpu
        if out.all():
            continue
        asking = asking_with(model.fit(~out, start), {}, known, rows, ~out)
        kept = seen_steps([s for s, is_out in zip(known, out, strict=True) if not is_out])
        for name in np.unique(names[device == gpu]):
            blind = _without_model(asking, kept, str(name))
            for i in map(int, np.flatnonzero((device == gpu) & (names == name))):
                seen[i] = np.log(answer(asking, scored[i], is_left_out=True).step_s)
                found = answer(blind, scored[i], is_left_out=True)
                unseen[i], log_sd[i] = np.log(found.step_s), found.log_sd
    return seen, unseen, log_sd


def _without_model(asking: Predictor, kept: Sequence[MeasuredStep], name: str) -> Predictor:
    """Return the product whose process of errors has not seen a model."""
    is_out = np.array([step.model == name for step in kept])
    residual = without(asking.constants.residual, is_out)
    return Predictor(
        asking.catalogue, constants=replace(asking.constants, residual=residual), learned=None
    )


def _ratios(rows: DescribedRows, wanted: Array) -> dict[str, Array]:
    """Carry the same row over from the other GPUs by the ratio of peaks and of bandwidths."""
    flop = np.bincount(rows.row, rows.flop, rows.log_s.size).round(-3)
    keys = pd.DataFrame({"model": rows.model, "is_half": rows.is_half, "flop": flop})
    rates = {
        "mean of the other GPUs": np.zeros(rows.log_s.size),
        "ratio of peak FLOP/s": np.log(rows.peak),
        "ratio of bandwidth": np.log(rows.bandwidth),
    }
    found = {name: np.full(rows.log_s.size, np.nan) for name in rates}
    for alike in keys.groupby(["model", "is_half", "flop"]).indices.values():
        same = np.asarray(alike, dtype=np.intp)
        for i in same[wanted[same]]:
            others = same[rows.device[same] != rows.device[i]]
            if others.size:
                for name, rate in rates.items():
                    found[name][i] = np.exp(np.mean((rows.log_s + rate)[others]) - rate[i])
    return found
