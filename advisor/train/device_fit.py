"""``advisor train device-model``: fit the constants of ``planners.step.device`` and write them.

The step-time equation is fitted on described jobs (``described_rows``: transformer layers,
NeuSight's and Lambda's suites); its intervals come from what was left out
(``described_residuals``). ``parameters.json`` keeps the constants, ``residuals.csv`` the errors by
group. How far a job's factor carries from GPU to GPU is read off the same residuals, the width on
processors off MLPerf's Xeon systems (``processor_rows``). What no public measurement tells (TPUs,
compiled steps) stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from advisor import data as folders
from advisor.collectors import bounded
from advisor.machines import devices, residuals
from advisor.planners.step.device_parameters import DeviceParameters
from advisor.planners.step.residual import ResidualParameters
from advisor.train.described_columns import Array, DescribedRows, columns
from advisor.train.described_residuals import (
    fitted_correlations,
    fitted_spreads,
    left_out_fits,
    residuals_of,
)
from advisor.train.described_rows import read_steps
from advisor.train.efficiencies import StepModel
from advisor.train.fits import FittedFolder
from advisor.train.measured_step import MeasuredStep
from advisor.train.processor_rows import processor_log_sd, processor_residuals, processor_rows
from advisor.train.residual_fit import fit_residual, left_out, seen_steps

# Classes that stream over memory alone and share one efficiency; the fit cannot tell them apart.
STREAMS: Final = ("normalisation", "elementwise", "reduction", "optimizer", "copy")
FITTED_KINDS: Final = (
    "matmul", "convolution", "winograd", "normalisation", "elementwise", "reduction", "optimizer",
)  # fmt: skip


def fitted(given: Path | None, day: str) -> FittedFolder:
    """Fit the device model on published measurements."""
    measurements = folders.measurements(given)
    steps = read_steps(measurements)
    processors = processor_rows(measurements)
    rows = columns(steps)
    whole = StepModel(rows).fit(np.ones(rows.log_s.size, bool))
    folds = left_out_fits(rows, whole)
    errors = residuals_of(rows, folds)
    plain = residuals_of(rows, folds, has_deviations=False)
    record = bounded.read_json(_packaged())
    update(record, whole.constants, fitted_spreads(rows, plain), rows)
    _update_uncertainty(record, rows, plain["device"], processors)
    record["as_of"] = day
    process = fit_residual(steps, devices.parameters_of(record))
    return FittedFolder(
        files={
            "parameters.json": json.dumps(record, indent=1) + "\n",
            residuals.FILE: json.dumps(residuals.to_record(process)) + "\n",
            "residuals.csv": residual_table(rows, errors).to_csv(index=False, lineterminator="\n"),
        },
        metrics={
            "rows": int(rows.log_s.size),
            "left_out": _by_suite(rows, errors),
            "corrected": _corrected(process, seen_steps(steps)),
        },
    )


def _update_uncertainty(
    record: dict[str, Any], rows: DescribedRows, residual: Array, processors: pd.DataFrame
) -> None:
    """Put how far a job's factor carries, and the width on processors, into the record."""
    found = fitted_correlations(rows, residual)
    record["calibration"] |= {name: round(value, 3) for name, value in found.items()}
    values = record["parameters"]
    errors = processor_residuals(processors, devices.parameters_of(record))
    known = math.hypot(values["log_sd"], values["unmeasured_rate_log_sd"])
    spread = processor_log_sd(errors, known)
    if spread is not None:
        values["unfitted_device_log_sd"] = round(spread, 4)


def _by_suite(rows: DescribedRows, residuals: dict[str, Array]) -> list[dict[str, Any]]:
    """Return the errors by what was left out and suite, devices and precisions pooled."""
    found = []
    for way, residual in residuals.items():
        for suite in np.unique(rows.suite):
            error = residual[(rows.suite == suite) & np.isfinite(residual)]
            if error.size:
                ape = np.abs(np.expm1(error))
                found.append({
                    "left_out": way, "suite": str(suite), "rows": int(error.size),
                    "mape": round(float(ape.mean()), 4),
                    "median_ape": round(float(np.median(ape)), 4),
                })  # fmt: skip
    return found


def _corrected(process: ResidualParameters, steps: list[MeasuredStep]) -> list[dict[str, Any]]:
    """Return the errors of the equation alone and with its process, by what was left out."""
    ways: dict[str, Callable[[MeasuredStep], str]] = {
        "device": lambda s: s.device.name, "model": lambda s: s.model,
        "family": lambda s: s.family, "suite": lambda s: s.suite,
    }  # fmt: skip
    labels = {way: np.array([of(step) for step in steps]) for way, of in ways.items()}
    alone = process.seen.of_peaks
    found = []
    for way, groups in labels.items():
        corrected = alone - left_out(process, groups)[0]
        found.append({
            "left_out": way, "rows": len(steps),
            "median_ape_of_the_equation": round(float(np.median(np.abs(np.expm1(-alone)))), 4),
            "median_ape_corrected": round(float(np.median(np.abs(np.expm1(-corrected)))), 4),
            "mape_of_the_equation": round(float(np.mean(np.abs(np.expm1(-alone)))), 4),
            "mape_corrected": round(float(np.mean(np.abs(np.expm1(-corrected)))), 4),
        })  # fmt: skip
    return found


def parameters_of(
    constants: dict[str, float], spreads: dict[str, float], rows: DescribedRows
) -> DeviceParameters:
    """Return a fit on ``rows`` as the device model takes it; what was not fitted as packaged."""
    record: dict[str, Any] = bounded.read_json(_packaged())
    update(record, constants, spreads, rows)
    return devices.parameters_of(record)


def _packaged() -> Path:
    return folders.root("trained_models") / "device_model" / "parameters.json"


def update(
    record: dict[str, Any], constants: dict[str, float], spreads: dict[str, float],
    rows: DescribedRows,
) -> None:  # fmt: skip
    """Put the fitted constants and spreads into the record of ``parameters.json``."""
    values, c = record["parameters"], constants
    gpu = values["efficiencies"]["gpu"]
    for kind in ("matmul", "recurrent", "attention"):
        gpu[kind]["memory"] = round(c["product_memory"], 4)
    gpu["convolution"] = {
        "compute": round(c["convolution"], 4), "memory": round(c["convolution_memory"], 4)
    }  # fmt: skip
    gpu["winograd"] = {
        "compute": round(c["winograd"], 4), "memory": round(c["convolution_memory"], 4)
    }  # fmt: skip
    gpu["depthwise"]["memory"] = round(c["stream"], 4)
    for kind in STREAMS:
        gpu[kind]["memory"] = round(c["stream"], 4)
    values["vector_fraction"] = {
        name: round(c[name], 4) for name in ("single", "shared", "separate")
    }
    for precision in ("tf32", "bf16", "fp16"):
        values["sustained_fraction"]["gpu"][precision] = round(c["tensor"], 4)
    values["tensor_flop_per_j"] = float(f"{c['kappa']:.4g}")
    values["vector_flop_per_j"] = float(f"{c['kappa'] / c['kappa_ratio']:.4g}")
    values["flop_per_j_doubling_years"] = round(c["doubling"], 3)
    values["kepler_fraction"] = round(c["kepler"], 4)
    values["unhidden_fraction"] = round(c["unhidden"], 4)
    values["latency_s"]["gpu"] = float(f"{c['latency']:.3g}")
    values["dispatch_s"]["gpu"] = float(f"{c['dispatch']:.3g}")
    values["fitted_kinds"] = list(FITTED_KINDS)
    values["fitted_rates"] = [
        [round(float(value), 3) for value in one]
        for one in np.unique(rows.log_rates, axis=0).tolist()
    ]
    values["fitted_architectures"] = sorted(set(rows.architecture.tolist()))
    values |= {name: round(value, 4) for name, value in spreads.items()}


def residual_table(rows: DescribedRows, residuals: dict[str, Array]) -> pd.DataFrame:
    """Return errors by way of leaving out, suite, precision and device.

    Columns: left_out, suite, precision, device, rows, median_ape, mape, bias (geometric mean of
    predicted / measured).
    """
    found = []
    precision = np.where(rows.is_half, "fp16", "fp32")
    for way, residual in residuals.items():
        frame = pd.DataFrame(
            {"suite": rows.suite, "precision": precision, "device": rows.device, "r": residual}
        ).dropna()
        for (suite, kind, device), group in frame.groupby(["suite", "precision", "device"]):
            r = group["r"].to_numpy(float)
            ape = np.abs(np.expm1(r))
            found.append(
                {"left_out": way, "suite": suite, "precision": kind, "device": device,
                 "rows": r.size, "median_ape": round(float(np.median(ape)), 4),
                 "mape": round(float(ape.mean()), 4),
                 "bias": round(float(np.exp(r.mean())), 4)}
            )  # fmt: skip
    return pd.DataFrame(found)
