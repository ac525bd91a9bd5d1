"""Protocol ``oom``: memory of measured transformer runs, and which of them ran out of it.

Every run is asked as a user asks (``asked_layouts``): what the product's layout problem says of
the fullest device. One source table left out at a time; context and slack are fitted on the
others. A run is called infeasible where the prediction exceeds a share of the device's memory, or
all of it but a reserve; the figures are these two curves, with the product's own rule on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.planners.core.units import GIB
from advisor.planners.memory.equations import MemoryConstants
from advisor.train.layout_rows import LayoutRows
from advisor.train.memory_model import MemoryRows, fit_constants, read_memory
from advisor.validation.asked_layouts import memory_bytes
from advisor.validation.scores import THE_PRODUCT, Blind, Group, Scores, Validation, compare, score
from advisor.ways.constants import constants
from advisor.ways.fitting import kept_free_bytes

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
NO_BUFFERS = "by flags alone: no framework's buffers"
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
# Memory that is kept free instead of a share: communication buffers, workspaces and what the
# allocator cannot hand out do not grow with the device.
RESERVES_GIB = (1, 2, 3, 4, 5, 6, 8)
COVERAGE = 0.9
SEEN: Final = (
    "what DeepSpeed keeps besides: read off these rows, and no flag says it",
    "the memory that the product keeps free: tried on the curve over these rows",
)


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
    predicted, half, bare, fullest, _ = _left_out(known)
    low, high = predicted * np.exp(-half), predicted * np.exp(half)
    reading = known.is_reading
    simple, beside = compare(
        {NO_BUFFERS: bare[reading], "Megatron's formula": _megatron_bytes(known)[reading]},
        predicted[reading],
        known.measured_bytes[reading],
    )
    return Validation(
        protocol="oom",
        description="memory of transformer runs, one source table left out; failures as a curve",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=_scores(known, predicted, reading, low, high),
        groups=[
            Group(group=table, scores=_scores(known, predicted, _of(known, table), low, high))
            for table in _tables(known)
        ],
        baselines=simple,
        beside=beside,
        figures=_table_means(known, {"ours": predicted, NO_BUFFERS: bare})
        | _of_zero3(known, predicted)
        | _curve(known, predicted, fullest),
        notes=[
            "readings are of what was looked at: BigScience's V100 pipelines on the first stage, "
            "torchtitan's without the device's context; failures are of the fullest device",
            "failures and false alarms are of every run whose table says what failed: "
            + ", ".join(_with_failures(known)),
            "false alarms: successful runs called infeasible, of the same tables",
        ],
    )


def blind(data: Path, shipped: Validation) -> Blind:
    """Score what is asked where nothing is known of the framework, and a nested memory rule.

    What the frameworks keep was read off these rows, so that without it nothing of a table is
    known but what its flags say. The rule of what is kept free is chosen for each table on the
    other tables with failures.

    Raises
    ------
    ModelError
        As ``run``.
    """
    known = read_memory(data)
    _, _, bare, _, fullest = _left_out(known)
    found, alarms = _nested_rule(known, fullest)
    return Blind(
        overall=_scores(known, bare, known.is_reading),
        groups=[
            Group(group=table, scores=_scores(known, bare, _of(known, table)))
            for table in _tables(known)
        ],
        changed=(
            "nothing of a framework's buffers is known",
            "the memory kept free: for each table the rule that the other tables choose finds "
            f"{found} failures at {alarms:.1%} false alarms",
        ),
        still_seen=("the form of the memory model, and the priors of context and slack",),
    )


def _nested_rule(known: MemoryRows, predicted: Array) -> tuple[str, float]:
    """Return failures found, as "k of n", and the share of false alarms, by nested tables.

    The best rule calls the most runs right, a failure counting as much as a successful run of the
    same number of rows: found share less false alarms.
    """
    rules = _rules(known, predicted)
    rows = np.isin(known.rows.table, _with_failures(known))
    failed, fine = rows & known.is_out_of_memory, rows & ~known.is_out_of_memory
    called = np.zeros(len(known.rows), bool)
    for table in _with_failures(known):
        out = known.rows.table == table

        def merit(rule: str, out: Bools = out) -> float:
            alarms = rules[rule][fine & ~out]
            found = rules[rule][failed & ~out]
            return float(found.mean() if found.size else 0.0) - float(
                alarms.mean() if alarms.size else 0.0
            )

        called[out] = rules[max(rules, key=merit)][out]
    alarms = float(called[fine].mean()) if fine.any() else 0.0
    return f"{int((called & failed).sum())} of {int(failed.sum())}", alarms


def _scores(
    known: MemoryRows, predicted: Array, rows: Bools, low: Array | None = None,
    high: Array | None = None,
) -> Scores:  # fmt: skip
    bounds = {} if low is None or high is None else {"low": low[rows], "high": high[rows]}
    return score(predicted[rows], known.measured_bytes[rows], **bounds)


def _tables(known: MemoryRows) -> list[str]:
    return [t for t in dict.fromkeys(map(str, known.rows.table)) if _of(known, t).any()]


def _with_failures(known: MemoryRows) -> list[str]:
    """Return the tables that say which runs failed: only there is a success a success."""
    return [
        t
        for t in dict.fromkeys(map(str, known.rows.table))
        if known.is_out_of_memory[known.rows.table == t].any()
    ]


def _table_means(known: MemoryRows, answers: Mapping[str, Array]) -> dict[str, float]:
    """Return the mean over tables beside the pooled figure: tables differ in rows."""
    return {
        f"{name}, mean of tables, MAPE": round(
            float(np.mean([_scores(known, a, _of(known, t)).mape_fraction
                           for t in _tables(known)])), 6)
        for name, a in answers.items()
    }  # fmt: skip


def _of(known: MemoryRows, table: str) -> Bools:
    return np.asarray(known.is_reading & (known.rows.table == table))


def _left_out(known: MemoryRows) -> tuple[Array, Array, Array, Array, Array]:
    """Predict each table's readings by the others; half-widths from the others' own errors.

    The third is what the product says where nothing is known of the framework; the last two are
    what it says of the fullest device with and without.
    """
    predicted, half, bare, fullest, bare_fullest = np.zeros((5, len(known.rows)))
    unknown = known.rows.without_framework_buffers()
    logit_bytes = constants().memory.logit_bytes
    for table in np.unique(known.rows.table):
        out = known.rows.table == table
        others = known.is_reading & ~out
        asked = replace(fit_constants(known, ~out), logit_bytes=logit_bytes)
        values = _read_bytes(known, known.rows, asked)
        bare[out] = _read_bytes(known, unknown, asked)[out]
        fullest[out] = memory_bytes(known.rows, asked)[out]
        bare_fullest[out] = memory_bytes(unknown, asked)[out]
        predicted[out] = values[out]
        if others.any():
            error = np.abs(np.log(values[others] / known.measured_bytes[others]))
            half[out] = np.quantile(error, COVERAGE)
    return predicted, half, bare, fullest, bare_fullest


def _read_bytes(known: MemoryRows, rows: LayoutRows, asked: MemoryConstants) -> Array:
    """Return what the product says of what was read."""
    first, fullest = memory_bytes(rows, asked, "first"), memory_bytes(rows, asked)
    stage = np.where(known.is_of_first_stage, first, fullest)
    return np.asarray(stage - asked.context_bytes * ~known.has_context)


def _of_zero3(known: MemoryRows, predicted: Array) -> dict[str, float]:
    """Return the least of predicted over measured among rows whose weights are sharded."""
    rows = known.is_reading & (np.asarray(known.rows.layouts.zero_stage) == 3)
    if not rows.any():
        return {}
    least = float(np.min(predicted[rows] / known.measured_bytes[rows]))
    return {"ZeRO-3, least of predicted over measured": round(least, 4)}


def _megatron_bytes(known: MemoryRows) -> Array:
    """18 bytes a parameter and 34 s b h a layer, over tp (and pp): no context, no slack."""
    shapes, layouts = known.rows.shapes, known.rows.layouts
    hidden, layers = np.asarray(shapes.hidden, float), np.asarray(shapes.layers, float)
    total = 12.0 * layers * hidden**2 + np.asarray(shapes.vocabulary, float) * hidden
    tokens = np.asarray(shapes.sequence, float) * layouts.micro_batch
    ways = np.asarray(layouts.tp, float)
    return np.asarray(18.0 * total / (ways * layouts.pp) + 34.0 * tokens * hidden * layers / ways)


def _curve(known: MemoryRows, predicted: Array, fullest: Array) -> dict[str, float]:
    """Failures found and false alarms at each share of the memory, and at each reserve."""
    rows = np.isin(known.rows.table, _with_failures(known))
    failed, fine = rows & known.is_out_of_memory, rows & ~known.is_out_of_memory
    figures = {"failures": float(failed.sum()), "successful runs": float(fine.sum())}
    if (printed := rows & known.is_reading).any():
        figures["readings of these tables"] = float(printed.sum())
        figures["readings of these tables, MAPE"] = _scores(
            known, predicted, printed
        ).mape_fraction
    rules = _rules(known, fullest)
    free = kept_free_bytes(known.capacity_bytes, np.ones(len(known.rows), bool))
    rules["the product's rule"] = fullest + free > known.capacity_bytes
    for rule, called in rules.items():
        figures[f"{rule}: failures found"] = float((called & failed).sum())
        if fine.any():
            figures[f"{rule}: false alarms"] = round(float(called[fine].mean()), 4)
    return figures


def _rules(known: MemoryRows, predicted: Array) -> dict[str, Bools]:
    """Return which rows each rule calls infeasible."""
    # A reading above the sheet's capacity would be a contradiction: printed GiB round up.
    share = predicted / np.maximum(known.capacity_bytes, GIB)
    return {f"at {threshold:.0%}": share > threshold for threshold in THRESHOLDS} | {
        f"{reserve} GiB kept free": predicted + reserve * GIB > known.capacity_bytes
        for reserve in RESERVES_GIB
    }
