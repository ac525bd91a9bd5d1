"""Protocol ``described``: steps of jobs that were never run, each device left out.

The jobs are described (transformer layers, NeuSight's models, Lambda's ResNet-50 and BERT) and put
through the step-time equation, fitted on the other devices' rows. The intervals of a device come
from the left-out errors of the other devices. The figures leave out more: the model, the chip
family, and for the ResNets everything that has convolutions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from advisor.train.described_residuals import WAYS, fitted_spreads, left_out_residuals
from advisor.train.described_rows import Array, DescribedRows, read_described
from advisor.train.efficiencies import StepModel
from advisor.validation.scores import Group, Scores, Validation, score

Z90: Final = 1.6449  # half of a 90 % interval of a normal distribution


def run(data: Path) -> Validation:
    """Score described jobs on the suites under ``data``.

    Raises
    ------
    ModelError
        If no suite is there.
    """
    rows = read_described(data)
    residuals = left_out_residuals(rows, StepModel(rows).fit(np.ones(rows.log_s.size, bool)))
    half = np.exp(Z90 * _deviations(rows, residuals))
    everything = np.isfinite(residuals["device"])

    def scored(mask: np.ndarray) -> Scores:
        good = mask & everything
        measured = np.exp(rows.log_s[good])
        value = measured * np.exp(residuals["device"][good])
        return score(value, measured, low=value / half[good], high=value * half[good])

    precision = np.where(rows.is_half, "fp16", "fp32")
    labels = np.char.add(np.char.add(rows.family, " "), precision)
    figures = _figures(rows, residuals)
    devices = {d: scored(rows.device == d) for d in np.unique(rows.device[everything])}
    enough = {d: s for d, s in devices.items() if s.rows >= 4}
    worst = min(enough, key=lambda d: enough[d].coverage or 0.0) if enough else ""
    if worst:
        figures[f"worst device's coverage ({worst})"] = enough[worst].coverage or 0.0
    overall = scored(everything)
    figures["mean half-width of 90 % intervals"] = overall.width or 0.0
    return Validation(
        protocol="described",
        description="steps of described jobs, each device left out",
        overall=overall,
        groups=[
            Group(group=str(label), scores=scored(everything & (labels == label)))
            for label in np.unique(labels[everything])
        ],
        baselines=rules(rows, everything),
        figures=figures,
        notes=(
            "layers are without optimizer and loss, NeuSight's rows without optimizer",
            "convolutions' figures: all ResNets left out ('kind')",
        ),
    )


def _figures(rows: DescribedRows, residuals: dict[str, Array]) -> dict[str, float]:
    """Return the median error by way of leaving out, suite and precision."""
    found = {}
    precision = np.where(rows.is_half, "fp16", "fp32")
    for way in WAYS:
        for suite in np.unique(rows.suite):
            for kind in ("fp16", "fp32"):
                mask = (rows.suite == suite) & (precision == kind) & np.isfinite(residuals[way])
                if mask.any():
                    median = float(np.median(np.abs(np.expm1(residuals[way][mask]))))
                    found[f"{suite} {kind}, {way} left out, median APE"] = median
    return found


def _deviations(rows: DescribedRows, residuals: dict[str, Array]) -> Array:
    """Return each row's deviation of ln(error), from the errors of the other devices."""
    found = np.full(rows.log_s.size, np.nan)
    for device in np.unique(rows.device):
        others = rows.device != device
        if not others.any():
            continue
        spreads = fitted_spreads(
            rows.take(others), {way: residual[others] for way, residual in residuals.items()}
        )
        found[~others] = np.hypot(spreads["log_sd"], spreads["unmeasured_rate_log_sd"])
    return found


def rules(rows: DescribedRows, wanted: np.ndarray) -> dict[str, Scores]:
    """Return what simple rules make of the wanted rows.

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
        good = wanted & np.isfinite(predicted)
        if good.any():
            found[name] = score(np.exp(predicted[good]), np.exp(rows.log_s[good]))
    larger = np.maximum(rows.flop / rows.peak[rows.row], rows.bytes / rows.bandwidth[rows.row])
    plain = np.bincount(rows.row, larger, size)
    return found | {"plain roofline": score(plain[wanted], np.exp(rows.log_s[wanted]))}
