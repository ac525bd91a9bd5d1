"""Protocol ``neusight``: training steps of NeuSight's suite, each device left out.

The models are described in a few numbers and asked as a user asks (``asked_steps``), the constants
of the device model fitted (``advisor.train.efficiencies``) on layer profiles, Lambda's suite and
NeuSight's rows of the other devices. NeuSight's own predictions, its roofline and Habitat stand
beside it on the same rows; NeuSight had seen operators measured on most of these devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.errors import ModelError
from advisor.machines.devices import suite_device
from advisor.measurements import NEUSIGHT
from advisor.train.described_rows import (
    NEUSIGHT_MODELS,
    Array,
    DescribedRows,
    MeasuredStep,
    columns,
    read_steps,
)
from advisor.train.efficiencies import StepModel
from advisor.validation.asked_steps import answer
from advisor.validation.described import asking_with, rules
from advisor.validation.scores import THE_PRODUCT, Group, Validation, compare, score

# Name in the table -> name here.
OTHERS: Final = {"neusight": "NeuSight itself", "roofline": "NeuSight's roofline",
                 "habitat": "Habitat"}  # fmt: skip
SEEN: Final = (
    "the equation and its classes of operators: chosen with these rows in sight",
    "medians and widths of the constants' priors, and the noise of a row",
)


def run(data: Path) -> Validation:
    """Score described models on NeuSight's training rows under ``data``.

    Raises
    ------
    ModelError
        If the table is not there or none of its rows can be described.
    """
    steps = read_steps(data)
    rows = columns(steps)
    ours = rows.suite == "neusight"
    if not ours.any():
        raise ModelError(
            f"no training row of {NEUSIGHT.title} can be described",
            hint="name its folder with --data",
        )
    known, zero, equation = _left_out(steps, rows, ours)
    measured, predicted = np.exp(rows.log_s[ours]), known[ours]
    device = rows.device[ours]
    simple, beside = compare(
        _others(_table(data))
        | {"the fit": equation[ours]}
        | {name: seconds[ours] for name, seconds in rules(rows, ours).items()},
        predicted,
        measured,
    )
    return Validation(
        protocol="neusight",
        description="training steps (fp32, forward and backward) of described models, device out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=score(predicted, measured),
        groups=[
            Group(group=str(d), scores=score(predicted[device == d], measured[device == d]))
            for d in np.unique(device)
        ],
        baselines=simple,
        beside=beside,
        figures={
            "nothing of NeuSight's suite known, MAPE": score(zero[ours], measured).mape_fraction,
        },
        notes=(
            "dense transformers on one device; the switch transformers (two towers) and the rows "
            "on four devices are not described, nor are those in the baselines",
            "'the fit': its own equation, with deviations that the product does not have",
            "MI250 is taken as PyTorch sees it: one of its two dies",
        ),
    )


def _left_out(
    steps: list[MeasuredStep], rows: DescribedRows, ours: np.ndarray
) -> tuple[Array, Array, Array]:
    """Return seconds of every row: the product's in two ways of knowing, and the fit's own.

    With the device left out; with the whole suite left out besides; and by the fit's equation with
    the device left out, whose deviations of families and chips no question reaches.
    """
    model = StepModel(rows)
    start = model.fit(np.ones(rows.log_s.size, bool)).parameters
    known, zero, equation = np.full((3, rows.log_s.size), np.nan)
    for device in np.unique(rows.device[ours]):
        out = rows.device == device
        fitted = model.fit(~out, start)
        equation[out] = np.exp(model.log_s(fitted)[out])
        for mask, fit, values in (
            (~out, fitted, known), (~out & ~ours, model.fit(~out & ~ours, start), zero)
        ):  # fmt: skip
            # Without intervals: the spreads stay as packaged.
            asking = asking_with(fit, {}, rows.take(mask))
            for i in np.flatnonzero(out & ours):
                values[i] = answer(asking, steps[i], is_left_out=True).step_s
    return known, zero, equation


def _table(data: Path) -> pd.DataFrame:
    """Return the table's rows that are described, in the order of the steps."""
    frame = NEUSIGHT.read("latencies", data)
    frame = frame[(frame["mode"] == "train") & frame["layout"].isna()]
    frame = frame[frame["model"].isin(list(NEUSIGHT_MODELS))]
    return frame[[suite_device(name) is not None for name in frame["accelerator"]]]


def _others(table: pd.DataFrame) -> dict[str, Array]:
    """Return what others predict of the described rows; nan where they have no answer [s]."""
    columns_of = {shown: table[f"{name}_s"] for name, shown in OTHERS.items()}
    return {
        shown: column.where(column > 0).to_numpy(float) for shown, column in columns_of.items()
    }
