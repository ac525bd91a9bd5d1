"""Protocol ``described``: steps of jobs that were never run, each device left out.

The jobs are described (transformer layers, NeuSight's models, Lambda's ResNet-50 and BERT) and
asked as a user asks (``asked_steps``): the product answers, with the device model's constants and
intervals fitted on the other devices' rows, and no sustained rate of the device known. The law of
the transformer shapes was fitted on none of these rows. The fit's own equation, which knows how
much each family of models deviates and which no question reaches, is a baseline; its figures leave
out more: the model, the chip family, and for the ResNets everything that has convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.catalogue import Catalogue
from advisor.domain import REACH_90
from advisor.machines.devices import suite_device
from advisor.predict import Predictor
from advisor.train.described_columns import Array, DescribedRows, columns
from advisor.train.described_residuals import (
    WAYS,
    Folds,
    fitted_spreads,
    left_out_fits,
    residuals_of,
)
from advisor.train.described_rows import read_steps
from advisor.train.device_fit import parameters_of
from advisor.train.efficiencies import Fitted, StepModel
from advisor.train.measured_step import MeasuredStep
from advisor.train.residual_fit import fit_residual
from advisor.validation.asked_steps import OPERATORS, SHAPES, Answer, answer
from advisor.validation.device_cells import chip_family
from advisor.validation.scores import THE_PRODUCT, Blind, Group, Scores, Validation, compare, score
from advisor.ways.constants import constants

# What --blind cannot fit again: each width needs every way of leaving out again, device by device.
WIDTHS: Final = (
    "the widths of intervals: read off left-out errors of other devices, whose fits had the "
    "scored one; a fit for every pair of devices would take hours"
)
SEEN: Final = (
    "the equation and its classes of operators: chosen with these rows in sight",
    "medians and widths of the constants' priors, and the noise of a row",
)


def run(data: Path) -> Validation:
    """Score described jobs on the suites under ``data``.

    Raises
    ------
    ModelError
        If no suite is there.
    """
    steps = read_steps(data)
    rows = columns(steps)
    folds = left_out_fits(rows, StepModel(rows).fit(np.ones(rows.log_s.size, bool)))
    residuals = residuals_of(rows, folds)
    plain = residuals_of(rows, folds, has_deviations=False)
    found = left_out_answers(steps, rows, folds, plain)
    value, log_sd = (np.array([getattr(a, n) for a in found]) for n in ("step_s", "log_sd"))
    law = np.array([a.law for a in found])
    everything = np.isfinite(value)

    def scored(mask: np.ndarray) -> Scores:
        good = mask & everything
        half = np.exp(REACH_90 * log_sd[good])
        return score(
            value[good], np.exp(rows.log_s[good]), low=value[good] / half, high=value[good] * half
        )

    labels = _labels(rows)
    overall = scored(everything)
    simple, beside = compare(
        _equation(rows, residuals) | rules(rows, everything), value, np.exp(rows.log_s)
    )
    devices = {d: scored(rows.device == d) for d in np.unique(rows.device[everything])}
    return Validation(
        protocol="described",
        description="steps of described jobs, each device left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=overall,
        groups=[
            Group(group=str(label), scores=scored(everything & (labels == label)))
            for label in np.unique(labels[everything])
        ],
        baselines=simple,
        beside=beside,
        figures={"rows without an answer": float(np.count_nonzero(~everything))}
        | _law_figures(rows, found, law, everything)
        | _figures(rows, residuals)
        | _interval_figures(devices, overall)
        | _device_figures(devices)
        | _sibling_figures(scored, rows, everything),
        notes=(
            "layers are without optimizer and loss, NeuSight's rows without optimizer",
            "'the fit': its own equation, with deviations of families of models and of chips "
            "that the product does not have",
            "convolutions' figures of the fit: all ResNets left out ('kind')",
            "of a card's measured rates nothing is known; its family's share of the peak is",
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
    model = StepModel(rows)
    left_out = [rows.device == device for device in np.unique(rows.device)]
    folds = {"device": [(out, model.fit(~out)) for out in left_out if not out.all()]}
    found = left_out_answers(steps, rows, folds, None)
    value, truth = np.array([a.step_s for a in found]), np.exp(rows.log_s)
    labels = _labels(rows)

    def scored(mask: np.ndarray) -> Scores:
        good = mask & np.isfinite(value)
        return score(value[good], truth[good])

    everything = np.isfinite(value)
    return Blind(
        overall=scored(everything),
        groups=[
            Group(group=str(label), scores=scored(labels == label))
            for label in np.unique(labels[everything])
        ],
        changed=("every fit starts from the priors; as shipped from a fit that has every row",),
        still_seen=shipped.seen,
        kept=(WIDTHS,),
    )


def _labels(rows: DescribedRows) -> np.ndarray:
    precision = np.where(rows.is_half, "fp16", "fp32")
    return np.char.add(np.char.add(rows.family, " "), precision)


def left_out_answers(
    steps: list[MeasuredStep], rows: DescribedRows, folds: Folds,
    residuals: dict[str, Array] | None,
) -> list[Answer]:  # fmt: skip
    """Return the product's answer for every step, nothing of its device known.

    Without residuals the spreads of intervals stay as packaged.
    """
    nothing = Answer(step_s=np.nan, log_sd=np.nan, law="", operators_s=np.nan)
    found = [nothing] * len(steps)
    for out, fitted in folds["device"]:
        others = rows.take(~out)
        kept = {way: r[~out] for way, r in (residuals or {}).items()}
        spreads = fitted_spreads(others, kept) if kept else {}
        asking = asking_with(fitted, spreads, steps, rows, ~out)
        for i in np.flatnonzero(out):
            found[i] = answer(asking, steps[i], is_left_out=True)
    return found


def asking_with(
    fitted: Fitted,
    spreads: dict[str, float],
    steps: list[MeasuredStep],
    rows: DescribedRows,
    is_known: np.ndarray,
) -> Predictor:
    """Return the product with a fit on the known rows as its device model, errors included."""
    parameters = parameters_of(fitted.constants, spreads, rows.take(is_known))
    known = [step for step, kept in zip(steps, is_known, strict=True) if kept]
    return Predictor(
        Catalogue.load(with_overrides=False),
        constants=replace(
            constants(), device=parameters, residual=fit_residual(known, parameters)
        ),
        learned=None,
    )


def _equation(rows: DescribedRows, residuals: dict[str, Array]) -> dict[str, Array]:
    """Return the seconds of the fit's own equation, device left out."""
    return {"the fit": np.exp(rows.log_s + residuals["device"])}


def _law_figures(
    rows: DescribedRows, found: list[Answer], law: np.ndarray, everything: np.ndarray
) -> dict[str, float]:
    """Compare the two laws by suite and precision where that of the shapes answers."""
    value, operators = (
        np.array([getattr(a, n) for a in found]) for n in ("step_s", "operators_s")
    )
    measured = np.exp(rows.log_s)
    figures: dict[str, float] = {}
    for suite in np.unique(rows.suite):
        for is_half, kind in ((True, "fp16"), (False, "fp32")):
            mask = everything & (rows.suite == suite) & (rows.is_half == is_half)
            mask = mask & (law == SHAPES)
            if mask.any():
                where = f"{suite} {kind}, answered by {SHAPES}"
                figures[f"{where}: rows"] = float(mask.sum())
                for name, values in ((SHAPES, value), (OPERATORS, operators)):
                    scores = score(values[mask], measured[mask])
                    figures[f"{where}: {name}, MAPE"] = scores.mape_fraction
                    figures[f"{where}: {name}, bias"] = scores.bias
    return figures


def _sibling_figures(
    scored: Callable[[np.ndarray], Scores], rows: DescribedRows, everything: np.ndarray
) -> dict[str, float]:
    """Score the devices that have no other of their chip among those fitted, and the others."""
    known = {name: suite_device(name) for name in map(str, np.unique(rows.device))}
    chips = {name: name if d is None else chip_family(d) for name, d in known.items()}
    alone = {d for d, chip in chips.items() if list(chips.values()).count(chip) == 1}
    is_alone = np.isin(rows.device, list(alone))
    figures: dict[str, float] = {}
    for name, mask in (("without a sibling", is_alone), ("with a sibling", ~is_alone)):
        if (mask & everything).any():
            scores = scored(mask & everything)
            figures |= {
                f"devices {name}: rows": float(scores.rows),
                f"devices {name}: median APE": scores.median_ape_fraction,
                f"devices {name}: MAPE": scores.mape_fraction,
                f"devices {name}: coverage": scores.coverage or 0.0,
            }
    return figures


def _device_figures(devices: dict[str, Scores]) -> dict[str, float]:
    """Return the error of every device that was left out: ``ranking.known_error`` reads them."""
    figures: dict[str, float] = {}
    for name, scores in devices.items():
        figures[f"{name}: rows"] = float(scores.rows)
        figures[f"{name}: median APE"] = scores.median_ape_fraction
    return figures


def _interval_figures(devices: dict[str, Scores], overall: Scores) -> dict[str, float]:
    figures = {"mean half-width of 90 % intervals": overall.width or 0.0}
    enough = {d: s for d, s in devices.items() if s.rows >= 4}
    if enough:
        worst = min(enough, key=lambda d: enough[d].coverage or 0.0)
        figures[f"worst device's coverage ({worst})"] = enough[worst].coverage or 0.0
    return figures


def _figures(rows: DescribedRows, residuals: dict[str, Array]) -> dict[str, float]:
    """Return the fit's median error by way of leaving out, suite and precision."""
    found = {}
    precision = np.where(rows.is_half, "fp16", "fp32")
    for way in WAYS:
        for suite in np.unique(rows.suite):
            for kind in ("fp16", "fp32"):
                mask = (rows.suite == suite) & (precision == kind) & np.isfinite(residuals[way])
                if mask.any():
                    median = float(np.median(np.abs(np.expm1(residuals[way][mask]))))
                    found[f"the fit, {suite} {kind}, {way} left out, median APE"] = median
    return found


def rules(rows: DescribedRows, wanted: np.ndarray) -> dict[str, Array]:
    """Return what simple rules make of the wanted rows: seconds, nan where they have no answer.

    Constant MFU and a constant share of the bandwidth are medians over the suite's rows on other
    devices; a plain roofline takes the larger of arithmetic and traffic of each operator.
    """
    size = rows.log_s.size
    ideal = {
        "constant MFU": np.log(np.bincount(rows.row, rows.flop, size) / rows.peak),
        "constant share of bandwidth": np.log(
            np.bincount(rows.row, rows.bytes, size) / rows.bandwidth
        ),
    }
    found = {}
    for name, log_s in ideal.items():
        predicted = np.full(size, np.nan)
        for device in np.unique(rows.device[wanted]):
            for suite in np.unique(rows.suite[wanted & (rows.device == device)]):
                of_suite = wanted & (rows.suite == suite)
                others, here = (
                    of_suite & (rows.device != device),
                    of_suite & (rows.device == device),
                )
                if others.any():
                    predicted[here] = log_s[here] + np.median((rows.log_s - log_s)[others])
        found[name] = np.exp(predicted)
    larger = np.maximum(rows.flop / rows.peak[rows.row], rows.bytes / rows.bandwidth[rows.row])
    plain = np.bincount(rows.row, larger, size)
    return found | {"plain roofline": np.where(wanted, plain, np.nan)}
