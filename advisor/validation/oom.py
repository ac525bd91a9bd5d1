"""Protocol ``oom``: memory of measured transformer runs, and which of them ran out of it.

Every run is asked as a user asks (``asked_layouts``): what the product's layout problem says of
the fullest device. One source table left out at a time; context and slack are fitted on the
others. A run is called infeasible where the prediction exceeds a share of the device's memory, or
all of it but a reserve; the figures are these two curves, with the product's own rule on them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.planners.core.units import GIB
from advisor.train.memory_model import MemoryRows, fit_constants, read_memory
from advisor.validation.asked_layouts import memory_bytes
from advisor.validation.scores import Group, Scores, Validation, score
from advisor.ways.constants import constants
from advisor.ways.fitting import kept_free_bytes

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
POOLED = ("bigscience_a100", "sailor_validation", "torchtitan")
CURVE = ("amp_trials", "bigscience_a100")
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
# Memory that is kept free instead of a share: communication buffers, workspaces and what the
# allocator cannot hand out do not grow with the device.
RESERVES_GIB = (1, 2, 3, 4, 5, 6, 8)
COVERAGE = 0.9


def run(data: Path) -> Validation:
    """Score memory and failures on the runs by layout under ``data``.

    Raises
    ------
    ModelError
        If the table is missing or prints no memory.
    """
    known = read_memory(data)
    if not known.is_reading.any():
        raise ModelError("no row prints memory", hint="see shared/reference/protocols.md, oom")
    predicted, half, bare = _left_out(known)
    low, high = predicted * np.exp(-half), predicted * np.exp(half)

    def scored(rows: Bools, values: Array = predicted) -> Scores:
        bounds = {} if values is not predicted else {"low": low[rows], "high": high[rows]}
        return score(values[rows], known.measured_bytes[rows], **bounds)

    tables = [t for t in dict.fromkeys(known.rows.table) if _of(known, (t,)).any()]
    pooled = _of(known, POOLED) if _of(known, POOLED).any() else known.is_reading
    return Validation(
        protocol="oom",
        description="memory of transformer runs, one source table left out; failures as a curve",
        overall=scored(pooled),
        groups=[Group(group=table, scores=scored(_of(known, (table,)))) for table in tables],
        baselines={
            "by flags alone: no framework's buffers": scored(pooled, bare),
            "Megatron's formula": scored(pooled, _megatron_bytes(known)),
        },
        figures=_curve(known, predicted),
        notes=[
            f"ALL pools {', '.join(POOLED)}" if _of(known, POOLED).any() else "ALL pools readings",
            "what DeepSpeed keeps besides was read off these rows (not blind); no flag says it",
            "a reserve in GiB was tried after seeing the curve by share: not blind",
            "false alarms: successful runs called infeasible, of amp_trials and bigscience_a100",
        ],
    )


def _of(known: MemoryRows, tables: tuple[str, ...]) -> Bools:
    return np.asarray(known.is_reading & np.isin(known.rows.table, tables))


def _left_out(known: MemoryRows) -> tuple[Array, Array, Array]:
    """Predict each table by the others; half-widths from the others' own errors.

    The third is what the product says where nothing is known of the framework.
    """
    predicted, half, bare = np.zeros((3, len(known.rows)))
    unknown = known.rows.without_framework_buffers()
    logit_bytes = constants().memory.logit_bytes
    for table in np.unique(known.rows.table):
        out = known.rows.table == table
        others = known.is_reading & ~out
        fitted = fit_constants(known, ~out)
        asked = replace(fitted, logit_bytes=logit_bytes)
        values, bare[out] = memory_bytes(known.rows, asked), memory_bytes(unknown, asked)[out]
        predicted[out] = values[out]
        if others.any():
            error = np.abs(np.log(values[others] / known.measured_bytes[others]))
            half[out] = np.quantile(error, COVERAGE)
    return predicted, half, bare


def _megatron_bytes(known: MemoryRows) -> Array:
    """18 bytes a parameter and 34 s b h a layer, over tp (and pp): no context, no slack."""
    shapes, layouts = known.rows.shapes, known.rows.layouts
    hidden, layers = np.asarray(shapes.hidden, float), np.asarray(shapes.layers, float)
    total = 12.0 * layers * hidden**2 + np.asarray(shapes.vocabulary, float) * hidden
    tokens = np.asarray(shapes.sequence, float) * layouts.micro_batch
    ways = np.asarray(layouts.tp, float)
    return np.asarray(18.0 * total / (ways * layouts.pp) + 34.0 * tokens * hidden * layers / ways)


def _curve(known: MemoryRows, predicted: Array) -> dict[str, float]:
    """Failures found and false alarms at each share of the memory, and at each reserve."""
    rows = np.isin(known.rows.table, CURVE)
    failed, fine = rows & known.is_out_of_memory, rows & ~known.is_out_of_memory
    figures = {"failures": float(failed.sum()), "successful runs": float(fine.sum())}
    # A reading above the sheet's capacity would be a contradiction: printed GiB round up.
    share = predicted / np.maximum(known.capacity_bytes, GIB)
    rules = {f"at {threshold:.0%}": share > threshold for threshold in THRESHOLDS} | {
        f"{reserve} GiB kept free": predicted + reserve * GIB > known.capacity_bytes
        for reserve in RESERVES_GIB
    }
    free = kept_free_bytes(known.capacity_bytes, np.ones(len(known.rows), bool))
    rules["the product's rule"] = predicted + free > known.capacity_bytes
    for rule, called in rules.items():
        figures[f"{rule}: failures found"] = float((called & failed).sum())
        if fine.any():
            figures[f"{rule}: false alarms"] = round(float(called[fine].mean()), 4)
    return figures
