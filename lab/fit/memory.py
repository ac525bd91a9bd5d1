"""Fit the memory model's constants on readings of transformers' memory, and how far they err.

Two kinds of rows: published layouts that print memory (``lab.data.LAYOUTS``), told what their
framework keeps (``layout_rows``), and readings asked as a user types them (``memory_asked``).
Tensors are counted, not fitted. Fitted are the context of a device in a group and of one alone,
and slack, which multiplies what the allocator loses of; each source counts the same. A reading is
compared by its own definition: what the allocator handed out knows neither, what it reserved no
context. How far the sum errs (``*_log_sd``) is scaled so that the errors of whole sources left out
lie within the 90 % interval.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.errors import ModelError
from advisor.estimate import case
from advisor.lab.data import LAYOUTS
from advisor.lab.fit import asked
from advisor.lab.fit.layout_rows import STATED, LayoutRows, from_frame
from advisor.lab.fit.memory_asked import asked_memory
from advisor.lab.fit.verbs import FittedFolder, constants_text, log_errors
from advisor.planners.core.arrays import FUSIONS
from advisor.planners.core.errors import GIB
from advisor.planners.memory.recorded_steps import MemoryParameters
from advisor.planners.memory.transformers import (
    UNSEEN,
    WIDTHS,
    Ledger,
    MemoryConstants,
    deviation_bytes,
    ledger,
    spread,
    without_terms,
)
from advisor.quantities import REACH_90

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Prior of (log context in GiB, log context of a device alone, log slack) and its width: an idle
# process of a group takes 2.8 GiB with its communicators, one alone 1.5 (BigScience, A100), and a
# tenth of what PyTorch allocates is lost.
PRIOR: Final = np.log([2.8, 1.54, 1.1])
PRIOR_SD: Final = np.array([0.1, 0.05, 0.08])
NOISE: Final = 0.1  # of one source in log memory
_ROWS_OF_A_SOURCE: Final = 10.0  # what one source counts as
# torchtitan logs the largest reservation of PyTorch's allocator (``max_reserved_gib`` in its
# metrics), SimuMax its largest allocation; the other tables are readings of the device.
_DEFINITIONS: Final = {"torchtitan": "reserved", asked.TABLE: "allocated"}
_ON_FIRST_NODE: Final = "bigscience_v100"
PRE_TRAINING: Final = "pre-training"
# Factors of ``planners.memory.spread``.
SPREADS: Final = ("loose_spread", "unnamed_spread", "quantised_spread")
_COVERED: Final = 0.9


_OF_TRAINER: Final = ("trainer", "trl", "unsloth", "axolotl")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Runs with a memory reading, or that ran out of it, as columns.

    ``rows.table`` is the source.
    """

    rows: LayoutRows
    measured_bytes: Array  # nan where no reading was printed
    capacity_bytes: Array
    is_out_of_memory: Bools
    is_of_first_stage: Bools  # the reading is of the first stage, not of the fullest one
    definition: NDArray[np.str_]  # of ``UNSEEN``
    technique: NDArray[np.str_]  # what is trained: pre-training, full, lora, qlora or adapter
    tells_failures: Bools  # the source says what failed: only there is a success a success
    is_named: Bools  # the software is one that a user can name, not the nearest to it

    @property
    def is_reading(self) -> Bools:
        """Successful runs with a reading."""
        return np.asarray(~self.is_out_of_memory & np.isfinite(self.measured_bytes))

    @property
    def is_tuning(self) -> Bools:
        return np.asarray(self.technique != PRE_TRAINING)

    def terms(self, constants: MemoryConstants) -> Ledger:
        """Return the memory of what was read: of the fullest device, or of the first stage's."""
        parts = self.rows.shapes, self.rows.layouts, self.rows.software, constants
        fullest, first = ledger(*parts), ledger(*parts, stage="first")
        return {name: np.where(self.is_of_first_stage, first[name], fullest[name])
                for name in fullest}  # fmt: skip

    def read(self, terms: Ledger) -> Array:
        """Return the sum of what each reading saw [bytes]."""
        found = np.full(len(self.rows), np.nan)
        for definition in np.unique(self.definition):
            here = self.definition == definition
            found[here] = without_terms(terms, UNSEEN[definition])[here]
        return found

    def deviation(self, terms: Ledger, constants: MemoryConstants) -> Array:
        """Return one standard deviation of the same [bytes]."""
        found = np.full(len(self.rows), np.nan)
        for definition in np.unique(self.definition):
            here = self.definition == definition
            of_read = deviation_bytes(terms, constants, UNSEEN[definition])
            found[here] = np.broadcast_to(of_read, here.size)[here]
        return found * self.spread(constants)

    def spread(self, constants: MemoryConstants) -> Array:
        """Return how many times as wide the deviations of each row's software are."""
        return spread(
            constants, is_loose=self.is_loose, is_named=self.is_named,
            is_quantised=self.is_quantised,
        )  # fmt: skip

    @property
    def is_quantised(self) -> Bools:
        """Whether frozen weights have fewer than 16 bits."""
        decoded = np.asarray(self.rows.software.dequantised_bytes, float)
        return np.broadcast_to(decoded > 0, len(self.rows))

    @property
    def is_loose(self) -> Bools:
        """Whether every operator is a kernel of its own, or adapters are trained."""
        fusion, trained = self.rows.software.fusion, self.rows.shapes.trained_share
        loose = (np.asarray(fusion) == FUSIONS.index("eager")) | (np.asarray(trained) < 1)
        return np.broadcast_to(loose, len(self.rows))


def fitted(given: Path | None, day: str) -> FittedFolder:
    known = read_memory(packaged.measurements(given))
    parameters = fit_rows(known, known.is_reading)
    return FittedFolder(
        files={"parameters.json": constants_text(parameters)},
        metrics={"in_sample": _errors(known, parameters)},
    )


def fit(data: Path) -> MemoryParameters:
    """Fit context, slack and widths on the rows under ``data``; the rest stays as packaged."""
    known = read_memory(data)
    return fit_rows(known, known.is_reading)


def fit_rows(known: MemoryRows, rows: Bools) -> MemoryParameters:
    """Fit the same to the readings among some rows, widths to each source left out."""
    constants = fit_constants(known, rows)
    error = np.abs(_log_errors(known, constants))[rows[known.is_reading]]
    wide: dict[str, Any] = widths(known, rows)
    return replace(
        case.memory(),
        context_bytes=constants.context_bytes,
        alone_context_bytes=constants.alone_context_bytes,
        slack=max(1.0, constants.slack),
        log_sd=float(np.sqrt(np.mean(np.square(error)))),
        **wide,
    )


def widths(known: MemoryRows, rows: Bools) -> dict[str, float]:
    """Return deviations by kind of term for which left-out sources' errors lie within 90 %.

    Their ratios stay. One factor for stacks whose kernels are fused or compiled, one for eager
    ones and adapters, and what a name that nobody gave and a quantised base take besides
    (``planners.memory.spread``): shares of 90 % of |ln(read / told)| over the relative deviation,
    every source counting the same. All but the first, of few sources, are drawn towards what eager
    ones and adapters need together, as by one source more.
    """
    # Those of the class: what was fitted before would leave its rounding.
    bare = {name: float(getattr(MemoryConstants(), name)) for name in WIDTHS}
    even: dict[str, Any] = {**bare, **dict.fromkeys(SPREADS, 1.0)}
    sources, reach = known.rows.table, np.full(len(known.rows), np.nan)
    for source in np.unique(sources[rows & known.is_reading]):
        out = sources == source
        told = replace(fit_constants(known, rows & ~out), **even)
        terms = known.terms(told)
        value = known.read(terms)
        error = np.abs(np.log(known.measured_bytes / value))
        reach[out] = (error * value / known.deviation(terms, told))[out]
    kept = rows & known.is_reading & np.isfinite(reach)

    def of(among: Bools) -> float:
        here = kept & among
        if not here.any():
            return math.nan
        return _weighted_quantile(reach[here], _source_weights(sources[here])) / REACH_90

    def drawn(among: Bools) -> float:
        count = np.unique(sources[kept & among]).size
        return pooled if count == 0 else (of(among) ** count * pooled) ** (1 / (count + 1))

    loose, named, quantised = known.is_loose, known.is_named, known.is_quantised
    fused, pooled = (1.0 if math.isnan(one) else one for one in (of(~loose), of(loose)))
    plain = drawn(loose & named & ~quantised)
    return {
        **{name: sd * fused for name, sd in bare.items()},
        "loose_spread": max(plain / fused, 1.0),
        "unnamed_spread": max(drawn(loose & ~named & ~quantised) / plain, 1.0),
        "quantised_spread": max(drawn(loose & named & quantised) / plain, 1.0),
    }


def _weighted_quantile(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    place = min(int(np.searchsorted(share, _COVERED)), values.size - 1)
    return float(values[order][place])


def _source_weights(sources: NDArray[np.str_]) -> Array:
    """Return the weight of each row where every source weighs 1."""
    _, index, counts = np.unique(sources, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[index])


def _log_errors(known: MemoryRows, constants: MemoryConstants) -> Array:
    """Return ln(predicted / measured) of the readings."""
    ratio = known.read(known.terms(constants)) / known.measured_bytes
    return np.asarray(np.log(ratio[known.is_reading]))


def _errors(known: MemoryRows, constants: MemoryConstants) -> dict[str, dict[str, float]]:
    """Return |ln(predicted / measured)| of the readings by source: rows, mean, median."""
    error = np.abs(_log_errors(known, constants))
    table = known.rows.table[known.is_reading]
    return {str(name): log_errors(error[table == name]) for name in np.unique(table)}


def read_memory(data: Path) -> MemoryRows:
    """Read what printed memory or failed: published layouts, readings, and SimuMax's B200s.

    Left out: readings summed over GPUs, and rows whose stages have fewer layers than the model.
    Raises ModelError if a table cannot be read or none has such a row.
    """
    return _joined([_of_layouts(data), _of_readings(data), _of_simumax(data)])


def _joined(parts: list[MemoryRows]) -> MemoryRows:
    first, *others = parts
    for other in others:
        columns: dict[str, Any] = {
            f.name: np.concatenate([getattr(first, f.name), getattr(other, f.name)])
            for f in fields(MemoryRows)
            if f.name != "rows"
        }
        first = MemoryRows(rows=asked.joined(first.rows, other.rows), **columns)
    return first


def _of_readings(data: Path) -> MemoryRows:
    runs = asked_memory(data)
    rows = asked.columns_of([one.run for one in runs])
    rows = _as_released(rows)
    failed = np.array([one.is_failure for one in runs])
    return MemoryRows(
        rows=rows,
        measured_bytes=np.array([one.measured_bytes for one in runs]),
        capacity_bytes=np.asarray(rows.machines.memory_bytes, float),
        is_out_of_memory=failed,
        is_of_first_stage=np.zeros(failed.size, bool),
        definition=_seen([one.definition for one in runs], rows),
        technique=np.array([one.technique for one in runs]),
        tells_failures=np.ones(failed.size, bool),
        is_named=np.array([one.is_named for one in runs]),
    )


def _seen(definition: list[str], rows: LayoutRows) -> NDArray[np.str_]:
    """Return what readings see: peft's benchmark empties the cache every few steps.

    So what it reads as reserved is what was allocated (``method_comparison/MetaMathQA/run.py``).
    """
    is_emptied = (rows.table == "huggingface/peft") & (np.array(definition) == "reserved")
    return np.where(is_emptied, "allocated", definition)


def _as_released(rows: LayoutRows) -> LayoutRows:
    """Return readings as software of their day had it, where that has no name to ask by.

    Before transformers 5 and torch 2.8 the Trainer's AdamW was not fused. litgpt's layers of 2023
    kept what they would were all of them trained: inputs of products without adapters, and of
    norms' weights. Qwen's own model casts no logits (its published code): where DeepSpeed turns
    all of it to 16 bits, five copies of two bytes.
    """
    software, of = rows.software, rows.table
    in_groups = np.isin(rows.stack, _OF_TRAINER) & (of != "huggingface/peft")  # of 2026
    is_half = (of == "QwenLM/Qwen") & (np.asarray(software.gradient_shard_bytes) > 0)
    frozen = np.asarray(software.spared_input_bytes, float)
    of_norms = -4.0 * np.asarray(rows.shapes.hidden, float)
    changed = replace(
        software,
        update_share=np.where(in_groups, 0.5, np.asarray(software.update_share, float)),
        spared_input_bytes=np.where(of == "Lightning-AI/litgpt", of_norms, frozen),
        logit_scale=np.where(is_half, 10 / 8, np.asarray(software.logit_scale, float)),
    )
    return replace(rows, software=changed)


def _of_simumax(data: Path) -> MemoryRows:
    runs, allocated, _ = asked.read(data)
    rows = asked.columns_of(runs)
    none = np.zeros(len(rows), bool)
    return MemoryRows(
        rows=rows, measured_bytes=allocated,
        capacity_bytes=np.asarray(rows.machines.memory_bytes, float), is_out_of_memory=none,
        is_of_first_stage=none, definition=_definitions(rows), technique=_pre_training(rows),
        tells_failures=none, is_named=~none,
    )  # fmt: skip


def _of_layouts(data: Path) -> MemoryRows:
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
    # Sailor's stages tie no tables.
    sailor = frame.framework.fillna("").astype(str).str.contains("Sailor").to_numpy(bool)
    shapes = replace(rows.shapes, tables=np.where(sailor, 2, rows.shapes.tables))
    out = frame.status.isin(["oom", "failed_or_oom"]).to_numpy(bool)
    return MemoryRows(
        rows=replace(rows, shapes=shapes),
        measured_bytes=frame.memory_gib.to_numpy(float) * GIB,
        capacity_bytes=np.asarray(rows.machines.memory_bytes, float),
        is_out_of_memory=out,
        is_of_first_stage=is_of_first_stage(rows),
        definition=_definitions(rows),
        technique=_pre_training(rows),
        tells_failures=np.isin(rows.table, np.unique(rows.table[out])),
        is_named=np.ones(len(rows), bool),
    )


def _definitions(rows: LayoutRows) -> NDArray[np.str_]:
    return np.array([_DEFINITIONS.get(str(table), "monitor") for table in rows.table])


def _pre_training(rows: LayoutRows) -> NDArray[np.str_]:
    return np.full(len(rows), PRE_TRAINING)


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
    """Fit contexts and slack to the readings among ``rows``, every source counting the same.

    Of software that is only the nearest to a name, what it keeps besides would pass for slack.
    """
    from scipy.optimize import least_squares

    rows = rows & known.is_reading & known.is_named
    packed = _constants(np.exp(PRIOR))
    if not rows.any():
        return packed
    weight = np.sqrt(_source_weights(known.rows.table[rows]) * _ROWS_OF_A_SOURCE) / NOISE
    target = np.log(known.measured_bytes[rows])
    # What slack adds to, and what is kept whatever the slack.
    bare, twice = (known.terms(_constants(np.array([1.0, 1.0, slack]))) for slack in (1.0, 2.0))
    tensors, cached = without_terms(bare, UNSEEN["allocated"])[rows], bare["fragmentation"][rows]
    lost = twice["fragmentation"][rows] - cached
    is_alone = _is_alone(known)[rows]
    sees_context = np.isin(known.definition, ["monitor"])[rows]
    sees_lost = np.isin(known.definition, ["monitor", "reserved"])[rows]

    def residual(theta: Array) -> Array:
        context, alone, slack = np.exp(theta)
        fixed = np.where(is_alone, min(alone, context), context) * GIB * sees_context
        told = np.log(tensors + fixed + (cached + (slack - 1) * lost) * sees_lost)
        return np.concatenate([(told - target) * weight, (theta - PRIOR) / PRIOR_SD])

    tight = {"xtol": 1e-13, "ftol": 1e-13, "gtol": 1e-13}
    found = least_squares(residual, PRIOR, loss="cauchy", max_nfev=1000, **tight)
    return _constants(np.exp(found.x))


def _is_alone(known: MemoryRows) -> Bools:
    layouts = known.rows.layouts
    return np.asarray(np.asarray(layouts.tp, float) * layouts.pp * layouts.cp * layouts.dp == 1)


def _constants(values: Array) -> MemoryConstants:
    """Return contexts [GiB] and slack as constants, the rest as packaged."""
    shipped, (context, alone, slack) = case.memory(), (float(one) for one in values)
    kept: Mapping[str, Any] = {f.name: getattr(shipped, f.name) for f in fields(MemoryConstants)}
    return MemoryConstants(**{
        **kept, "context_bytes": context * GIB, "alone_context_bytes": alone * GIB, "slack": slack,
    })  # fmt: skip


def _stage_sum(text: Any) -> float:
    """Layers of all stages together; infinite where not stated."""
    try:
        stages = json.loads(text)
    except (TypeError, ValueError):
        return float("inf")
    is_flat = isinstance(stages, list) and all(isinstance(s, int | float) for s in stages)
    return float(sum(stages)) if is_flat else float("inf")
