"""Fit the global constants of the layout model on published runs, one source table left out.

The fit minimises, over the constants' logarithms x and one offset d_t a table,

    sum over rows  n_t^-1/2 rho((log predicted + d_t - log measured) / 0.08)
    + sum over constants ((x - prior) / tau)^2 / 2  +  sum over tables (d_t / 0.03)^2 / 2

with rho the soft absolute value. The offsets keep one source's habit (a slow cluster, an unstated
flag) from bending constants that other sources share; a new table's offset is unknown and is 0.

How the priors were chosen: most centres were inherited from a trial model that had been tuned
while looking at these rows, others were set from counts and datasheets while looking at
residuals (``planners/core/layout_case.py``). Leaving a table out therefore takes its rows
out of the fit and not out of the priors: the figures are not blind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import typer

from advisor import data
from advisor.answer import to_record
from advisor.estimate.knowledge.layout_model import (
    SCHEMA_VERSION,
    Asked,
    LayoutModel,
    TableErrors,
    path,
)
from advisor.lab.data import BLACKWELL, FINETUNE, MIXTURES, STACKS
from advisor.lab.fit import asked as blackwell_rows
from advisor.lab.fit import asked as finetune_rows
from advisor.lab.fit import mixtures
from advisor.lab.fit.asked import AskedRun, columns_of, joined
from advisor.lab.fit.box import explained, measured, outside_log_sds, with_outside
from advisor.lab.fit.layout_rows import LayoutRows, read
from advisor.lab.fit.stacks import LIMITED, stacks_read
from advisor.lab.fit.verbs import FittedFolder, rounded
from advisor.lab.score.asked import (
    IN_HOST_MEMORY,
    MIXTURE,
    OPEN,
    TOLD,
    ask_mixtures,
    ask_rows,
    predictor_by,
)
from advisor.planners.core.arrays import GENERATIONS, Floats
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.layouts.own_runs import NAMES, from_logarithms, logarithms
from advisor.planners.layouts.time import step_times

# All tables that the layout model is fitted on, and what its folds are without.


def read_all(folder: Path) -> LayoutRows:
    """Read the published layouts, and fine-tuning runs, Blackwell and stacks where they are."""
    rows = read(folder)
    asked: list[AskedRun] = []
    if FINETUNE.has("runs", folder):
        asked += finetune_rows.finetune_rows_read(folder)[0]
    if BLACKWELL.has("steps", folder):
        asked += blackwell_rows.read(folder)[0]
    if STACKS.has("steps", folder):
        asked += stacks_read(folder)[0]
    return joined(rows, columns_of(asked)) if asked else rows


def read_experts(folder: Path) -> list[AskedRun]:
    """Read the steps of mixtures of experts, where they are."""
    found = mixtures.read_deepseek(folder) if BLACKWELL.has("steps", folder) else []
    return found + (mixtures.read_mixtures(folder)[0] if MIXTURES.has("steps", folder) else [])


def parts_left_out(rows: LayoutRows) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return which rows each fold of a model or an accelerator of the fine-tuning runs is without.

    A model is left out with its name; an accelerator with all fine-tuning runs on it.
    """
    tuned = rows.table == finetune_rows.FINETUNE_ROWS_TABLE
    found = {}
    for kind, column in (("model", rows.model), ("gpu", rows.gpu)):
        for name in sorted(set(column[tuned])):
            found[finetune_rows.fold(kind, name)] = np.asarray(tuned & (column == name))
    return found


# Read for scoring, never for fitting: clusters whose network, precision or power is not what the
# table says (AMP's AWS instances over TCP, Sailor's "fp32").
NOT_FITTED: Final = ("amp_trials", "sailor_validation", "mlperf_v4_llm", LIMITED)
# Row noise, in log: below it residuals count squared, above it absolutely.
_NOISE: Final = 0.08
_TABLE_OFFSET: Final = 0.03
# How sure each prior is, as a standard deviation in log; 0.25 where not named. Rates of well-known
# kernels and links are tight, what depends on how a framework overlaps is loose.
_DEFAULT_SD: Final = 0.25
PRIOR_SD: Final[dict[str, float]] = {
    "gemm_efficiency": 0.1,
    "gemm_volta": 0.2,
    "gemm_hopper": 0.1,
    "gemm_blackwell": 0.05,
    "gemm_untuned": 0.1,
    "gemm_cdna": 0.15,
    "flash_cdna": 0.3,
    "flash_cdna_tuned": 0.2,
    "fp8_gain": 0.15,
    "fp4_gain": 0.2,
    "tf32_gain": 0.2,
    "low_blackwell": 0.15,
    "low_width": 0.7,
    "cast_apart": 0.3,
    "low_wide": 0.5,
    "blackwell_power": 0.3,
    "misaligned_gemm": 0.15,
    # Three models tell these apart by little: one left out errs by two thirds more where they are
    # twice as loose.
    "grouped_efficiency": 0.06,
    "expert_width": 0.2,
    "permuted": 0.12,
    "launch_expert_s": 0.16,
    "ep_efficiency": 0.08,
    "wave_exponent": 0.5,
    "eager_bytes": 0.25,
    "lean_bytes": 0.4,
    "launch_heavy_s": 0.3,
    "launch_tp_s": 0.5,
    "launch_light_s": 0.5,
    "launch_eager_s": 0.5,
    "launch_send_s": 0.7,
    "head_share": 0.3,
    "tp_efficiency": 0.15,
    "tp_latency_s": 0.5,
    "tp_exposed": 0.5,
    "host_message_s": 0.5,
    "pp_efficiency": 0.2,
    "dp_intra_efficiency": 0.15,
    "dp_network_efficiency": 0.15,
    "dp_latency_s": 0.3,
    "fsdp_exposed": 1.0,
    "latency_exposed": 0.7,
    "fsdp_exposed_core": 0.5,
    "flash_blackwell": 0.1,
    "ultra_attention": 0.15,
    "cp_exposed": 1.0,
    "straggler": 0.5,
    "step_s": 0.5,
    "step_eager_s": 0.6,
}


def predicted_s(rows: LayoutRows, parameters: LayoutParameters) -> Floats:
    case = LayoutCase(
        shapes=rows.shapes,
        layouts=rows.layouts,
        machines=rows.machines,
        software=rows.software,
        parameters=parameters,
    )
    return step_times(case).step_s


def is_dense_training(rows: LayoutRows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows train all parameters of a dense model in device memory."""
    offloads = np.asarray(rows.layouts.offloads_optimizer, bool)
    offloads |= np.asarray(rows.layouts.offloads_parameters, bool)
    plain = (np.asarray(rows.shapes.trained_share) > 0) & ~offloads
    return np.broadcast_to(plain, (len(rows),))


def usable(rows: LayoutRows) -> LayoutRows:
    """Return the rows that the constants are fitted on."""
    return rows.take(is_dense_training(rows) & ~np.isin(rows.table, NOT_FITTED))


def _soft(z: Floats) -> Floats:
    """Return residuals whose squares sum to 2 rho(z), rho(z) = sqrt(1 + z^2) - 1."""
    return np.asarray(np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z * z) - 1)))


# Constants of experts: fitted on mixtures alone, all others on dense models, whose tables say more
# of what ran.
EXPERTS: Final = (
    "grouped_efficiency", "expert_width", "permuted", "launch_expert_s", "ep_efficiency"
)  # fmt: skip


def fit(rows: LayoutRows, prior: LayoutParameters | None = None) -> LayoutParameters:
    """Fit the constants but those of experts; always starts from the prior, not another fit."""
    names = [name for name in NAMES if name not in EXPERTS]
    is_dense = np.broadcast_to(np.asarray(rows.shapes.experts) == 1, (len(rows),))
    return _fitted(rows.take(is_dense), prior or LayoutParameters(), names)


def fit_experts(rows: LayoutRows, known: LayoutParameters) -> LayoutParameters:
    """Fit the constants of experts on mixtures, the others as they are known."""
    prior = LayoutParameters()
    return _fitted(rows, replace(known, **{n: getattr(prior, n) for n in EXPERTS}), EXPERTS)


def _fitted(rows: LayoutRows, prior: LayoutParameters, names: Sequence[str]) -> LayoutParameters:
    """Fit some of the constants, the others as in the prior."""
    from scipy.optimize import least_squares

    fixed, open_ = logarithms(prior), np.isin(NAMES, names)
    centre = fixed[open_]
    sd = np.array([PRIOR_SD.get(name, _DEFAULT_SD) for name in np.array(NAMES)[open_]])
    tables, place, count = np.unique(rows.table, return_inverse=True, return_counts=True)
    weight = np.sqrt(count[place] ** -0.5)
    measured = np.log(rows.measured_s)

    def parameters(x: Floats) -> LayoutParameters:
        whole = fixed.copy()
        whole[open_] = x
        return from_logarithms(whole)

    def residuals(y: Floats) -> Floats:
        x, offset = y[: centre.size], y[centre.size :]
        error = np.log(predicted_s(rows, parameters(x))) + offset[place] - measured
        return np.concatenate(
            [weight * _soft(error / _NOISE), (x - centre) / sd, offset / _TABLE_OFFSET]
        )

    found = least_squares(
        residuals,
        np.concatenate([centre, np.zeros(tables.size)]),
        x_scale=np.concatenate([sd, np.full(tables.size, _TABLE_OFFSET)]),
        diff_step=1e-4,
        max_nfev=30,
    )
    return parameters(found.x[: centre.size])


def train(
    rows: LayoutRows, *, version: str, note: Any = None, parts: int | None = None,
    most: int | None = None, experts: Sequence[AskedRun] = (),
) -> LayoutModel:  # fmt: skip
    """Fit on all tables and without each; keep each left-out table's errors.

    ``experts``: mixtures of experts; their own constants are fitted on them, whichever table is
    left out, and they are asked with each model left out: how they err says nothing of dense ones.

    Where nobody will ask for a fold again, ``parts`` leaves tables out together, in so many parts,
    and ``most`` rows of a table are asked, evenly from first to last; the folds of parts of the
    fine-tuning runs are not fitted then.
    """
    rows = usable(rows)
    tables = list(dict.fromkeys(rows.table))
    folds: dict[str, LayoutParameters] = {}
    errors: list[TableErrors] = []
    for names in _together(tables, parts):
        folds |= dict.fromkeys(names, fit(rows.take(~np.isin(rows.table, names))))
        for table in names:
            left_out = rows.take(rows.table == table)
            log_error = np.abs(np.log(predicted_s(left_out, folds[table]) / left_out.measured_s))
            if note:
                note(f"without {table}: median error {100 * float(np.median(log_error)):.1f} %")
            errors += _by_generation(left_out, log_error)
    for name, here in parts_left_out(rows).items() if parts is None else ():
        folds[name] = fit(rows.take(~here))
        if note:
            note(f"without {name}")
    parameters = fit(rows)
    if experts:
        parameters = fit_experts(columns_of(experts), parameters)
        own = {name: getattr(parameters, name) for name in EXPERTS}
        folds = {name: replace(one, **own) for name, one in folds.items()}
    model = LayoutModel(version=version, parameters=parameters, folds=folds, errors=tuple(errors))
    if parts is None:
        model = with_outside(
            model, outside_log_sds(rows, model, lambda out: _errors_without(rows, out))
        )
    asked = asked_errors(_thinned(rows, most), model) | mixture_errors(experts, model)
    return replace(model, asked={how: explained(model, errors) for how, errors in asked.items()})


def _errors_without(rows: LayoutRows, out: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Return ln(predicted / measured) of rows by a fit without them."""
    left_out = rows.take(out)
    return np.log(predicted_s(left_out, fit(rows.take(~out))) / left_out.measured_s)


def _together(tables: list[str], parts: int | None) -> list[list[str]]:
    """Return each table alone, or all in so many parts."""
    count = min(parts or len(tables), len(tables))
    return [tables[i::count] for i in range(count)]


def _thinned(rows: LayoutRows, most: int | None) -> LayoutRows:
    """Return at most so many rows of each table."""
    kept = [
        here if most is None else here[np.unique(np.linspace(0, here.size - 1, most).astype(int))]
        for here in (np.flatnonzero(rows.table == table) for table in dict.fromkeys(rows.table))
    ]
    return rows.take(np.sort(np.concatenate(kept)))


def asked_errors(rows: LayoutRows, model: LayoutModel) -> dict[Asked, tuple[TableErrors, ...]]:
    """Return each table's errors where it was left out, asked as users ask.

    Rows without an answer (no framework runs the layout) are left out, and those whose answer
    moves state to host memory that none of these runs moved: an error of the memory law.
    """
    found: dict[Asked, tuple[TableErrors, ...]] = {}
    ways: tuple[Asked, ...] = get_args(Asked)
    for how in (one for one in ways if not one.endswith(MIXTURE)):
        # Whoever fine-tunes says so (``--finetune``), and so names a stack.
        here = rows if how.startswith(TOLD) else rows.take(~rows.is_tuned)
        if how.endswith(OPEN):
            here = fastest_layouts(here)
        said = ask_rows(here, model, how=how)
        log_error = np.abs(np.log(said.step_s / here.measured_s))
        errors: list[TableErrors] = []
        for table in dict.fromkeys(here.table):
            answered = (here.table == table) & np.isfinite(log_error)
            answered &= said.status != IN_HOST_MEMORY
            errors += _by_generation(here.take(answered), log_error[answered])
        found[how] = tuple(errors)
    return found


def mixture_errors(
    runs: Sequence[AskedRun], model: LayoutModel
) -> dict[Asked, tuple[TableErrors, ...]]:
    """Return the errors of mixtures of experts asked as users ask, each model left out."""
    if not runs:
        return {}
    rows = columns_of(runs)
    names = list(dict.fromkeys(rows.model))
    found: dict[Asked, list[TableErrors]] = {"told the stack, mixture": [], "plain, mixture": []}
    for name in names:
        known = without_model(str(name), rows, model)
        here = np.flatnonzero(rows.model == name)
        for how, errors in found.items():
            said = ask_mixtures(
                predictor_by(known),
                [runs[i] for i in here.tolist()],
                is_told=how != "plain, mixture",
            )
            log_error = np.abs(np.log(said.step_s / rows.measured_s[here]))[said.is_answered]
            # Of all generations: they share what they are told by (``log_half_width``).
            generation = int(np.asarray(rows.machines.generation)[here[0]])
            one = _errors(rows.take(here[said.is_answered]), generation, log_error)
            errors.append(replace(one, table=mixtures.fold(str(name))))
    return {how: tuple(errors) for how, errors in found.items()}


def without_model(name: str, rows: LayoutRows, model: LayoutModel) -> LayoutModel:
    """Return what never saw a mixture of experts: its rows, and how they err."""
    known = model.left_out("", mixtures.fold(name))
    kept = rows.take(rows.model != name)
    return replace(known, parameters=fit_experts(kept, known.parameters))


def fastest_layouts(rows: LayoutRows) -> LayoutRows:
    """Return of each question over several devices the run that was fastest.

    Who leaves the layout open is told the fastest, and does not say that another is meant.
    """
    names = ("layers", "hidden", "heads", "ffn", "sequence", "vocabulary", "experts")
    shapes = [np.broadcast_to(getattr(rows.shapes, name), len(rows)) for name in names]
    fastest: dict[tuple[Any, ...], int] = {}
    for row in np.argsort(rows.measured_s, kind="stable").tolist():
        asked = (
            str(rows.table[row]), str(rows.gpu[row]), str(rows.stack[row]),
            str(rows.precision[row]), int(rows.devices[row]), int(rows.global_batch[row]),
            *(float(column[row]) for column in shapes),
        )  # fmt: skip
        if rows.devices[row] > 1:
            fastest.setdefault(asked, row)
    return rows.take(np.array(sorted(fastest.values()), dtype=np.int64))


def _by_generation(rows: LayoutRows, log_error: Floats) -> list[TableErrors]:
    generation = np.asarray(rows.machines.generation)
    return [
        _errors(rows.take(generation == g), int(g), log_error[generation == g])
        for g in np.unique(generation)
    ]


def _errors(rows: LayoutRows, generation: int, log_errors: Floats) -> TableErrors:
    # At most 50 quantiles: what an interval needs of a table with a thousand rows.
    kept = np.quantile(log_errors, (np.arange(n := min(log_errors.size, 50)) + 0.5) / n)
    return TableErrors(
        table=str(rows.table[0]),
        generation=GENERATIONS[generation],
        log_errors=tuple(round(float(e), 5) for e in kept),
        **measured(rows),
    )


def text(model: LayoutModel) -> str:
    """Return a model in the form that ``advisor.estimate.knowledge.layout_model.load`` reads."""
    record = {
        "schema_version": SCHEMA_VERSION,
        "version": model.version,
        "fitted_on": sorted(model.folds),
        "parameters": _rounded(model.parameters),
        "folds": {t: _rounded(p) for t, p in model.folds.items()},
        "errors": to_record(model.errors),
        "asked": to_record(model.asked),
        "outside_log_sd": to_record(model.outside_log_sd),
    }
    return json.dumps(record, indent=1) + "\n"


def metrics(model: LayoutModel) -> dict[str, Any]:
    return {
        "left_out": [
            {
                "table": e.table,
                "generation": e.generation,
                "mean_log_error": round(float(np.mean(e.log_errors)), 4),
                "median_log_error": round(float(np.median(e.log_errors)), 4),
                "p90_log_error": round(float(np.quantile(e.log_errors, 0.9)), 4),
            }
            for e in model.errors
        ]
    }


def _rounded(parameters: LayoutParameters) -> dict[str, float]:
    found: dict[str, float] = rounded(asdict(parameters))
    return found


def fitted(given: Path | None, day: str) -> FittedFolder:
    folder, note = data.measurements(given), partial(typer.echo, err=True)
    model = train(read_all(folder), version=day, note=note, experts=read_experts(folder))
    return FittedFolder(
        files={path().name: text(model)},
        metrics=metrics(model),
        told=f"{len(NAMES)} constants, {len(model.folds)} tables",
    )
