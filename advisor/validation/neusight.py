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

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.lab.data import NEUSIGHT
from advisor.machines.devices import suite_device
from advisor.train.described_columns import Array, DescribedRows, columns
from advisor.train.described_rows import NEUSIGHT_MODELS, read_steps
from advisor.train.efficiencies import StepModel
from advisor.train.measured_step import MeasuredStep
from advisor.validation.asked_steps import Answer, answer
from advisor.validation.described import SEEN, WIDTHS, asking_with, rules
from advisor.validation.scores import THE_PRODUCT, Blind, Group, Scores, Validation, compare, score

# Name in the table -> name here.
OTHERS: Final = {"neusight": "NeuSight itself", "roofline": "NeuSight's roofline",
                 "habitat": "Habitat"}  # fmt: skip
# Of two models of one family, the correlation of their errors on a device that was left out (273
# pairs of layers and Lambda's BERT, 22 November 2026); of two families nil (371 pairs: -0.04).
SHARED_ON_A_DEVICE: Final = 0.63


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
    answers, zero, equation = _left_out(steps, rows, ours)
    measured, device = np.exp(rows.log_s[ours]), rows.device[ours]
    predicted, log_sd = (np.array([getattr(a, n) for a in answers]) for n in ("step_s", "log_sd"))
    half = np.exp(REACH_90 * log_sd)

    def scored(mask: np.ndarray) -> Scores:
        value = predicted[mask]
        return score(value, measured[mask], low=value / half[mask], high=value * half[mask])

    table = _table(data)
    simple, beside = compare(
        _others(table)
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
        overall=scored(np.ones(measured.size, bool)),
        groups=[Group(group=str(d), scores=scored(device == d)) for d in np.unique(device)],
        baselines=simple,
        beside=beside,
        figures={
            "nothing of NeuSight's suite known, MAPE": score(zero[ours], measured).mape_fraction,
        }
        | _plausible(table, predicted, measured)
        | _one_row(rows, predicted, ours),
        notes=(
            "dense transformers on one device; the switch transformers (two towers) and the rows "
            "on four devices are not described, nor are those in the baselines",
            "'the fit': its own equation, with deviations that the product does not have",
            "the widths of the intervals are the packaged ones, which saw these rows",
            "MI250 is taken as PyTorch sees it: one of its two dies",
            "forward passes that take more than two thirds of the backward pass, which has twice "
            "the products, are the suite's slips: scored, and left out once ('plausible')",
            "one row: another model's step on the same device, in the share that models there "
            "have in common over all suites",
        ),
    )


def blind(data: Path, shipped: Validation) -> Blind:
    """Score fits that start from their priors, not from a fit on all rows.

    Raises
    ------
    ModelError
        As ``run``.
    """
    steps = read_steps(data)
    rows = columns(steps)
    ours = rows.suite == "neusight"
    model, value = StepModel(rows), np.full(rows.log_s.size, np.nan)
    for device in np.unique(rows.device[ours]):
        out = rows.device == device
        asking = asking_with(model.fit(~out), {}, steps, rows, ~out)
        for i in np.flatnonzero(out & ours):
            value[i] = answer(asking, steps[i], is_left_out=True).step_s

    def scored(rows_of: np.ndarray) -> Scores:
        return score(value[rows_of], np.exp(rows.log_s[rows_of]))

    return Blind(
        overall=scored(ours),
        groups=[
            Group(group=str(d), scores=scored(ours & (rows.device == d)))
            for d in np.unique(rows.device[ours])
        ],
        changed=("every fit starts from the priors; as shipped from a fit that has every row",),
        still_seen=shipped.seen,
        kept=(WIDTHS,),
    )


def _plausible(table: pd.DataFrame, predicted: Array, measured: Array) -> dict[str, float]:
    """Score the rows whose forward pass takes no more than two thirds of the backward pass."""
    good = (table["forward_s"] <= table["backward_s"] * 2 / 3).to_numpy()
    if not good.any():
        return {}
    scores = score(predicted[good], measured[good])
    return {
        "plausible rows": float(good.sum()),
        "plausible rows, MAPE": scores.mape_fraction,
        "plausible rows, median APE": scores.median_ape_fraction,
    }


def _one_row(rows: DescribedRows, predicted: Array, ours: np.ndarray) -> dict[str, float]:
    """Score each model's rows corrected by one row of another model on the same device.

    Every other row is tried; the correction is the share of its error that two models of a family
    have in common on a device, over all suites but this one.
    """
    device, model = rows.device[ours], rows.model[ours]
    error = rows.log_s[ours] - np.log(predicted)
    corrected, measured = [], []
    for i in range(error.size):
        for k in np.flatnonzero((device == device[i]) & (model != model[i])):
            corrected.append(predicted[i] * np.exp(SHARED_ON_A_DEVICE * error[k]))
            measured.append(np.exp(rows.log_s[ours][i]))
    if not corrected:
        return {}
    scores = score(np.array(corrected), np.array(measured))
    return {
        "one row of another model on the device, MAPE": scores.mape_fraction,
        "one row of another model on the device, median APE": scores.median_ape_fraction,
    }


def _left_out(
    steps: list[MeasuredStep], rows: DescribedRows, ours: np.ndarray
) -> tuple[list[Answer], Array, Array]:
    """Return the product's answers for the suite, device out, and seconds in two other ways.

    Of every row: the product's with the whole suite left out besides, and the fit's own equation
    with the device left out, whose deviations of families and chips no question reaches.
    """
    model = StepModel(rows)
    start = model.fit(np.ones(rows.log_s.size, bool)).parameters
    zero, equation = np.full((2, rows.log_s.size), np.nan)
    known: dict[int, Answer] = {}
    for device in np.unique(rows.device[ours]):
        out = rows.device == device
        fitted = model.fit(~out, start)
        equation[out] = np.exp(model.log_s(fitted)[out])
        # The spreads of the intervals stay as packaged.
        asking = asking_with(fitted, {}, steps, rows, ~out)
        nothing = model.fit(~out & ~ours, start)
        without = asking_with(nothing, {}, steps, rows, ~out & ~ours)
        for i in np.flatnonzero(out & ours):
            known[int(i)] = answer(asking, steps[i], is_left_out=True)
            zero[i] = answer(without, steps[i], is_left_out=True).step_s
    return [known[i] for i in sorted(known)], zero, equation


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
