"""Protocol ``neusight``: training steps of NeuSight's suite, each device left out.

The models are described in a few numbers and put through the step-time equation, whose constants
are fitted (``advisor.train.efficiencies``) on layer profiles, Lambda's suite and NeuSight's rows
of the other devices. NeuSight's own predictions, its roofline and Habitat stand beside it on the
same rows; NeuSight had seen operators measured on most of these devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.errors import ModelError
from advisor.train.described_rows import (
    NEUSIGHT,
    NEUSIGHT_MODELS,
    Array,
    DescribedRows,
    read_described,
)
from advisor.train.efficiencies import StepModel
from advisor.validation.described import rules
from advisor.validation.scores import Group, Scores, Validation, score

# Name in the table -> name here.
OTHERS: Final = {"neusight": "NeuSight itself", "roofline": "NeuSight's roofline",
                 "habitat": "Habitat"}  # fmt: skip


def run(data: Path) -> Validation:
    """Score described models on NeuSight's training rows under ``data``.

    Raises
    ------
    ModelError
        If the table is not there or none of its rows can be described.
    """
    rows = read_described(data)
    ours = rows.suite == "neusight"
    if not ours.any():
        raise ModelError(
            f"no training row of {NEUSIGHT} can be described", hint="name its folder with --data"
        )
    known, zero, seen = _left_out(rows, ours)
    measured = np.exp(rows.log_s[ours])
    predicted = np.exp(known[ours])
    device = rows.device[ours]
    table = _table(data / NEUSIGHT)
    return Validation(
        protocol="neusight",
        description="training steps (fp32, forward and backward) of described models, device out",
        overall=score(predicted, measured),
        groups=[
            Group(group=str(d), scores=score(predicted[device == d], measured[device == d]))
            for d in np.unique(device)
        ],
        baselines=_baselines(table) | rules(rows, ours),
        figures={
            "nothing of NeuSight's suite known, MAPE": score(
                np.exp(zero[ours]), measured
            ).mape_fraction,
            "the device's other models known, MAPE": score(
                np.exp(seen[ours]), measured
            ).mape_fraction,
            "the device's other models known, median APE": score(
                np.exp(seen[ours]), measured
            ).median_ape_fraction,
        },
        notes=(
            "dense transformers on one device; the switch transformers (two towers) and the rows "
            "on four devices are not described, nor are those in the baselines",
            "MI250 is taken as PyTorch sees it: one of its two dies",
        ),
    )


def _left_out(rows: DescribedRows, ours: np.ndarray) -> tuple[Array, Array, Array]:
    """Return ln(seconds) in three ways of knowing.

    With the device left out; with the whole suite left out besides; and with only the model on
    this device left out, which is what a user has who measured another job there.
    """
    model = StepModel(rows)
    start = model.fit(np.ones(rows.log_s.size, bool)).parameters
    known, zero, seen = np.full((3, rows.log_s.size), np.nan)
    for device in np.unique(rows.device[ours]):
        out = rows.device == device
        known[out] = model.log_s(model.fit(~out, start))[out]
        zero[out] = model.log_s(model.fit(~out & ~ours, start))[out]
        for name in np.unique(rows.model[out & ours]):
            cell = out & ours & (rows.model == name)
            seen[cell] = model.log_s(model.fit(~cell, start))[cell]
    return known, zero, seen


def _table(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path)
    frame = frame[(frame["mode"] == "train") & frame["option"].isna()]
    return frame[frame["model_name"].isin(list(NEUSIGHT_MODELS))]


def _baselines(table: pd.DataFrame) -> dict[str, Scores]:
    found = {}
    for name, shown in OTHERS.items():
        rows = table[table[f"{name}_all_e2e_latency"] > 0]
        if len(rows):
            found[shown] = score(
                rows[f"{name}_all_e2e_latency"].to_numpy(float),
                rows["label_all_e2e_latency"].to_numpy(float),
            )
    return found
