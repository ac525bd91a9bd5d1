"""Fit the memory model's constants on printed readings of measured transformer runs.

Context and slack are fitted over the tables that print memory (``lab.data.LAYOUTS``);
what a framework keeps per parameter is a fact of its release (``layout_rows``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.estimate import case
from advisor.lab.data import LAYOUTS
from advisor.lab.fit.layout_rows import STATED, LayoutRows, from_frame
from advisor.lab.fit.verbs import FittedFolder, constants_text, log_errors
from advisor.planners.core.errors import GIB
from advisor.planners.memory.recorded_steps import MemoryParameters
from advisor.planners.memory.transformers import MemoryConstants, memory_bytes

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Prior of (log context in GiB, log slack) and its width; findings of the first trial: 3 GB, 1.11.
PRIOR, PRIOR_SD = np.log([2.8, 1.1]), np.array([0.4, 0.08])
NOISE = 0.1  # of one row in log memory
# torchtitan logs the largest reservation of PyTorch's allocator, which knows no context
# (``max_reserved_gib`` in its metrics); the other tables are readings of the device.
_OF_PYTORCH: Final = "torchtitan"
_ON_FIRST_NODE: Final = "bigscience_v100"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Runs with a memory reading, or that ran out of it, as columns."""

    rows: LayoutRows
    measured_bytes: Array  # nan where no reading was printed
    capacity_bytes: Array
    is_out_of_memory: Bools
    is_of_first_stage: Bools  # the reading is of the first stage, not of the fullest one
    has_context: Bools  # the reading is of the device; else of what PyTorch reserved there
    tensor_bytes: Array  # what the equations say of what was read, without context and slack

    @property
    def is_reading(self) -> Bools:
        """Successful runs with a reading."""
        return np.asarray(~self.is_out_of_memory & np.isfinite(self.measured_bytes))


def fitted(given: Path | None, day: str) -> FittedFolder:
    known = read_memory(packaged.measurements(given))
    constants = fit_constants(known, known.is_reading)
    parameters = _parameters(known, constants, known.is_reading)
    return FittedFolder(
        files={"parameters.json": constants_text(parameters)},
        metrics={"in_sample": _errors(known, constants)},
    )


def fit(data: Path) -> MemoryParameters:
    """Fit context, slack and scatter on the tables under ``data``; the rest stays as packaged."""
    known = read_memory(data)
    return fit_rows(known, known.is_reading)


def fit_rows(known: MemoryRows, rows: Bools) -> MemoryParameters:
    """Fit the same to the readings among some rows."""
    return _parameters(known, fit_constants(known, rows), rows)


def _parameters(known: MemoryRows, constants: MemoryConstants, rows: Bools) -> MemoryParameters:
    error = _log_errors(known, constants)[rows[known.is_reading]]
    return replace(
        case.memory(),
        context_bytes=constants.context_bytes,
        slack=max(1.0, constants.slack),
        log_sd=float(np.sqrt(np.mean(np.square(error)))),
    )


def _log_errors(known: MemoryRows, constants: MemoryConstants) -> Array:
    """Return ln(predicted / measured) of the readings."""
    ratio = predicted_bytes(known, constants) / known.measured_bytes
    return np.asarray(np.log(ratio[known.is_reading]))


def _errors(known: MemoryRows, constants: MemoryConstants) -> dict[str, dict[str, float]]:
    """Return |ln(predicted / measured)| of the fitted readings by table: rows, mean, median."""
    error = np.abs(_log_errors(known, constants))
    table = known.rows.table[known.is_reading]
    return {str(name): log_errors(error[table == name]) for name in np.unique(table)}


def read_memory(data: Path) -> MemoryRows:
    """Read the homogeneous transformer runs with a memory reading or a failure.

    Left out: readings summed over GPUs, and rows whose stages have fewer layers than the model.
    Raises ModelError if the file cannot be read or has no such row.
    """
    frame = LAYOUTS.read("runs", data)
    stated = frame[list(STATED)].notna().all(axis=1)
    failed = frame.status.isin(["oom", "failed_or_oom"])
    usable = (
        stated
        & (frame.is_mixed == 0)
        & (frame.memory_gib.notna() | failed | is_trial(frame.table))
    )
    usable &= ~frame.memory_kind.fillna("").str.contains("summed")
    short = [
        _stage_sum(text) < layers
        for text, layers in zip(frame.stage_layers, frame.layers, strict=True)
    ]
    usable &= ~np.array(short, bool)
    frame, rows = from_frame(frame[usable])
    if frame.empty:
        raise ModelError(f"{data} holds no transformer run with a memory reading")
    return MemoryRows(
        rows=rows,
        measured_bytes=frame.memory_gib.to_numpy(float) * GIB,
        capacity_bytes=np.asarray(rows.machines.memory_bytes, float),
        is_out_of_memory=frame.status.isin(["oom", "failed_or_oom"]).to_numpy(bool),
        is_of_first_stage=is_of_first_stage(rows),
        has_context=rows.table != _OF_PYTORCH,
        tensor_bytes=_tensor_bytes(rows, frame),
    )


def is_of_first_stage(rows: LayoutRows) -> Bools:
    """Return whose readings are not of the fullest device.

    BigScience looked at one of two nodes: pipelines that are read as 13 of 16 GB run out of memory
    on 16 GB, and readings grow with the micro-batch by less than the last stage's logits do.
    """
    return np.asarray((rows.table == _ON_FIRST_NODE) & (np.asarray(rows.layouts.pp) > 1))


def is_trial(table: Any) -> Any:
    """Return the tables whose successful runs tell what fits, though no reading was printed."""
    return table == "amp_trials"


def fit_constants(known: MemoryRows, rows: Bools) -> MemoryConstants:
    """Fit context and slack to the readings among ``rows``, every table counting the same."""
    from scipy.optimize import least_squares

    rows = rows & known.is_reading
    if not rows.any():
        return MemoryConstants(context_bytes=float(np.exp(PRIOR[0])) * GIB, slack=1.1)
    _, index = np.unique(known.rows.table[rows], return_inverse=True)
    counts = np.bincount(index)
    # A table of many like rows counts as the root of their number.
    weight = (counts[index] ** -0.25) / NOISE
    target, tensors = np.log(known.measured_bytes[rows]), known.tensor_bytes[rows]
    of_device = known.has_context[rows]

    def residual(theta: Array) -> Array:
        context, slack = np.exp(theta)
        data = (np.log(context * GIB * of_device + slack * tensors) - target) * weight
        return np.concatenate([data, (theta - PRIOR) / PRIOR_SD])

    tight = {"xtol": 1e-13, "ftol": 1e-13, "gtol": 1e-13}
    found = least_squares(residual, PRIOR, loss="cauchy", max_nfev=1000, **tight)
    context, slack = np.exp(found.x)
    return MemoryConstants(context_bytes=float(context) * GIB, slack=float(slack))


def predicted_bytes(known: MemoryRows, constants: MemoryConstants) -> Array:
    context = constants.context_bytes * known.has_context
    return np.asarray(context + constants.slack * known.tensor_bytes)


def _tensor_bytes(rows: LayoutRows, frame: Any) -> Array:
    """States, activations, logits and buckets of what was read [bytes]."""
    # Sailor's stages tie no tables.
    sailor = frame.framework.fillna("").astype(str).str.contains("Sailor").to_numpy(bool)
    shapes = replace(rows.shapes, tables=np.where(sailor, 2, rows.shapes.tables))
    bare = MemoryConstants(context_bytes=0.0, slack=1.0)
    fullest = memory_bytes(shapes, rows.layouts, rows.software, bare)
    first = memory_bytes(shapes, rows.layouts, rows.software, bare, stage="first")
    return np.where(is_of_first_stage(rows), first, fullest)


def _stage_sum(text: Any) -> float:
    """Layers of all stages together; infinite where not stated."""
    try:
        stages = json.loads(text)
    except (TypeError, ValueError):
        return float("inf")
    is_flat = isinstance(stages, list) and all(isinstance(s, int | float) for s in stages)
    return float(sum(stages)) if is_flat else float("inf")
