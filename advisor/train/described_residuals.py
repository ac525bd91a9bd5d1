"""Errors of the fitted step-time equation on what was left out: the source of its intervals.

Four ways of leaving out, each a fit of its own:

- ``model``: the device is known by other models' rows,
- ``device``: nothing of the device is known but its specifications,
- ``architecture``: nothing of its whole chip family,
- ``kind``: nothing of the class of operators that rules the job (convolutions: ResNets, VGGs).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.planners.step.device import KINDS
from advisor.train.described_columns import Array, DescribedRows
from advisor.train.efficiencies import CONVOLUTIONS, Fitted, StepModel

WAYS: Final = ("model", "device", "architecture", "kind")


Folds = dict[str, list[tuple[NDArray[np.bool_], Fitted]]]


def left_out_fits(rows: DescribedRows, fitted: Fitted) -> Folds:
    """Return, by way of leaving out, which rows were left out and the fit on the others."""
    model, is_convolutional = StepModel(rows), has_convolutions(rows)
    everything = np.ones(rows.log_s.size, bool)
    groups: dict[str, tuple[NDArray[np.str_], NDArray[np.bool_]]] = {
        "model": (rows.model, everything),
        "device": (rows.device, everything),
        "architecture": (rows.architecture, everything),
        "kind": (np.where(is_convolutional, "convolutional", "other"), is_convolutional),
    }
    found: Folds = {}
    for way, (labels, wanted) in groups.items():
        left_out = [labels == label for label in np.unique(labels[wanted])]
        found[way] = [
            (out, model.fit(~out, fitted.parameters)) for out in left_out if not out.all()
        ]
    return found


def has_convolutions(rows: DescribedRows) -> NDArray[np.bool_]:
    """Return which rows are of models whose products are convolutions."""
    codes = [KINDS.index(kind) for kind in CONVOLUTIONS]
    return np.bincount(rows.row, np.isin(rows.kind, codes), rows.log_s.size) > 0


def residuals_of(
    rows: DescribedRows, folds: Folds, *, has_deviations: bool = True
) -> dict[str, Array]:
    """Return ln(predicted / measured) of every row by each way of leaving out, nan where none.

    With the deviations of families, chips and boards, or as the planner predicts, without.
    """
    model, found = StepModel(rows), {}
    for way, fits in folds.items():
        predicted = np.full(rows.log_s.size, np.nan)
        for out, fitted in fits:
            predicted[out] = model.log_s(fitted, has_deviations=has_deviations)[out]
        found[way] = predicted - rows.log_s
    return found


def fitted_spreads(rows: DescribedRows, residuals: dict[str, Array]) -> dict[str, float]:
    """Return the standard deviations that the estimates' intervals are made of.

    ``log_sd`` is the error on a known device; each of the others is what one more unknown adds to
    it, in squares. A spread is read off the 90 % quantile of the absolute error, so that 90 %
    intervals of a normal distribution cover what was seen; suites count alike, whatever their
    number of rows.
    """
    spread = {way: _spreads(rows.suite, values) for way, values in residuals.items()}
    resnets = has_convolutions(rows)
    # Where every row is of one model, what is known of a device by other models is not known.
    known = spread["model"] or spread["device"]
    slope, mean_square = _of_distance(rows, residuals["device"])
    others = {way: _spreads(rows.suite[resnets], r[resnets]) for way, r in residuals.items()}
    return {
        "log_sd": float(np.sqrt(np.mean(np.square(list(known.values()))))),
        "distance_log_sd": slope,
        "unmeasured_rate_log_sd": math.sqrt(
            max(_added(spread["device"], known) ** 2 - slope**2 * mean_square, 0.0)
        ),
        "unseen_architecture_log_sd": _added(spread["architecture"], spread["device"]),
        "unseen_kind_log_sd": _added(others["kind"], others["device"]),
    }


def _of_distance(rows: DescribedRows, residual: Array) -> tuple[float, float]:
    """Return the deviation that a unit of distance adds, and the mean square distance.

    Of every device its rates' distance from the nearest other one, and the mean square error with
    it left out, suites and precisions alike; in squares a constant and a slope, neither negative.
    """
    from scipy.optimize import nnls

    distance, square = [], []
    for device in np.unique(rows.device[np.isfinite(residual)]):
        here = rows.device == device
        others = rows.log_rates[~here]
        if not others.size:
            continue
        apart = np.linalg.norm(others - rows.log_rates[here][0], axis=1)
        kinds = np.char.add(rows.suite, rows.is_half.astype(str))
        good = here & np.isfinite(residual)
        square.append(
            np.mean([np.mean(residual[good & (kinds == k)] ** 2) for k in np.unique(kinds[good])])
        )
        distance.append(float(apart.min()))
    if len(distance) < 3:
        return 0.0, 0.0
    found, _ = nnls(np.c_[np.ones(len(distance)), np.square(distance)], np.array(square))
    return float(np.sqrt(found[1])), float(np.mean(np.square(distance)))


# Two runs of one job on one type of device under different software: 8.2 % in the median of
# pairs, so 0.083 of one value (Lambda's suite, 88 pairs; shared/reference, findings_device 1).
_SOFTWARE_LOG_SD: Final = 0.083


def fitted_correlations(rows: DescribedRows, residual: Array) -> dict[str, float]:
    """Return how alike a job's errors are on two devices: what a measured factor carries over.

    Parameters
    ----------
    residual : ndarray of shape (n,)
        As the planner predicts, each device left out. A job is a model in a precision; of its
        batches the mean counts.

    Returns
    -------
    dict of str to float
        ``same_architecture``, ``same_kind`` (another chip family), as mean products of two errors
        over the mean square; ``same_device``: all but the software's own scatter. What was on no
        two such devices is left out.
    """
    frame = pd.DataFrame(
        {"suite": rows.suite, "model": rows.model, "is_half": rows.is_half, "error": residual,
         "device": rows.device, "family": rows.architecture}
    ).dropna()  # fmt: skip
    job = ["suite", "model", "is_half"]
    cells = frame.groupby([*job, "device", "family"])["error"].mean().reset_index()
    pairs = cells.merge(cells, on=job)
    pairs = pairs[pairs["device_x"] < pairs["device_y"]]
    found = {}
    for name, is_same in (("same_architecture", True), ("same_kind", False)):
        these = pairs[(pairs["family_x"] == pairs["family_y"]) == is_same]
        if len(these):
            a, b = these["error_x"], these["error_y"]
            found[name] = float(np.mean(a * b) / np.sqrt(np.mean(a**2) * np.mean(b**2)))
    found["same_device"] = float(1.0 - _SOFTWARE_LOG_SD**2 / np.mean(frame["error"] ** 2))
    return found


def _spreads(suite: NDArray[np.str_], residual: Array) -> dict[str, float]:
    """Return, by suite, the deviation that the 90 % quantile of the absolute error stands for."""
    good = np.isfinite(residual)
    return {
        str(name): float(np.quantile(np.abs(residual[good & (suite == name)]), 0.9) / REACH_90)
        for name in np.unique(suite[good])
    }


def _added(larger: dict[str, float], smaller: dict[str, float]) -> float:
    """Return what ignorance adds in squares, the mean over suites; in none of them it helps."""
    more = [max(larger[name] ** 2 - smaller[name] ** 2, 0.0) for name in larger if name in smaller]
    return float(np.sqrt(np.mean(more))) if more else 0.0
