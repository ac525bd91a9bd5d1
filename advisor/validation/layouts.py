"""Protocol ``layouts``: step times of published transformer runs, one source table left out.

Every run is asked as a user asks: this transformer, on these machines, in this layout
(``asked_layouts``); the figures "by flags alone" put in nothing that no flag says
(``flag_layouts``). Constants were fitted without the run's table (``advisor train layout-model``;
of a table it never saw, all), and intervals come from the other tables' left-out errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.machines import devices
from advisor.planners.core.columns import layer_parameters
from advisor.planners.core.layer_latency import Floats
from advisor.train.layout_model import is_dense_training
from advisor.train.layout_rows import LayoutRows, read
from advisor.validation import flag_layouts
from advisor.validation.asked_layouts import step_s
from advisor.validation.own_layouts import after_runs
from advisor.validation.scores import Group, Scores, Validation, compare, score
from advisor.validation.two_laws import by_operators
from advisor.ways.layout_model import LayoutModel, load

Bools = NDArray[np.bool_]
COVERAGE: Final = 0.9
NOTES: Final = (
    "constants are global; each table is scored with the fit that left it out. The priors' "
    "centres were inherited from, and set while looking at, rows of these tables: not blind",
    "three rows: drawn by nine seeds and noted as a user's own runs (advisor runs actual), the "
    "others are scored; medians over seeds. Grid and belief of the calibration were chosen on "
    "these tables, the spread of the constants is that of the fits without one table each",
    "regret: measured time of the layout predicted fastest over the fastest measured, same model, "
    "GPUs and batch",
    "Calculon's errors are as published for its unmodified curves, which were tuned on "
    "megatron_seqsel; its rows of a table need not be ours",
)
# Source table -> MAPE of Calculon's unmodified curves (shared/reference/planners.md).
CALCULON: Final = {
    "megatron_seqsel": 0.037, "megatron_sc21": 0.095, "vtrain_multi": 0.196,
    "vtrain_single": 0.389, "bigscience_a100": 0.288, "dlperf_gpt": 0.328,
}  # fmt: skip
SEEN: Final = (
    "the centres and widths of the constants' priors: inherited from a model tuned on rows of "
    "these tables",
    "which software, overlap and schedule a table's rows had (advisor.train.layout_rows)",
    "the noise of a row and the offset of a table in the fit",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPredictions:
    """Rows with what is predicted of them: value and interval [s]."""

    rows: LayoutRows
    value: Floats
    low: Floats
    high: Floats
    family: NDArray[np.str_]
    is_dense: Bools


def run(data: Path) -> Validation:
    """Score the layout model on the runs by layout under ``data``."""
    rows = read(data)
    model = load()
    found = predict(rows, model)
    dense = found.is_dense
    rules, measured = _rules(found, model), rows.measured_s[dense]
    simple, beside = compare(rules, found.value[dense], measured)
    return Validation(
        protocol="layouts",
        description="step time of published transformer runs, one source table left out",
        form="chosen with these rows in sight",
        scores="the product, with what a table says and no flag can; 'by flags alone' without",
        seen=SEEN,
        overall=_scores(found, dense),
        groups=[Group(group=name, scores=_scores(found, k)) for name, k in _groups(found)],
        baselines=simple,
        beside=beside,
        figures={
            **_family_figures(found, rules["constant hardware-FLOP efficiency"]),
            **_calculon_figures(found),
            **_calibrated_figures(found, model),
            **_regrets(found),
            **_flag_figures(rows, model),
        },
        notes=(*NOTES, f"{rows.left_out} successful runs are not transformers with a layout"),
    )


def predict(rows: LayoutRows, model: LayoutModel) -> LayoutPredictions:
    """Predict every row with constants and errors that never saw its table."""
    value, width = np.zeros(len(rows)), np.zeros(len(rows))
    generation = np.asarray(rows.machines.generation)
    for table in dict.fromkeys(rows.table):
        of_table = rows.table == table
        value[of_table] = step_s(rows.take(of_table), model.without(table))
        for g in np.unique(generation[of_table]):
            width[of_table & (generation == g)] = model.log_half_width(
                int(g), COVERAGE, without=table
            )
    return LayoutPredictions(
        rows=rows,
        value=value,
        low=value * np.exp(-width),
        high=value * np.exp(width),
        family=np.array([_family(g) for g in rows.gpu]),
        is_dense=is_dense_training(rows),
    )


def _family(gpu: str) -> str:
    for name, starts in {
        "A100": ("A100", "A800"),
        "H100": ("H100", "H200", "NVIDIA H100"),
        "V100": ("V100",),
    }.items():
        if gpu.startswith(starts):
            return name
    return gpu


def _scores(found: LayoutPredictions, rows: Bools) -> Scores:
    return score(
        found.value[rows],
        found.rows.measured_s[rows],
        low=found.low[rows],
        high=found.high[rows],
    )


def _groups(found: LayoutPredictions) -> Iterator[tuple[str, Bools]]:
    """Yield (family, table) of dense rows, then the rows that train in another way."""
    for family, table in sorted(set(zip(found.family, found.rows.table, strict=True))):
        here = (found.family == family) & (found.rows.table == table)
        if (here & found.is_dense).any():
            yield f"{family} {table}", here & found.is_dense
        if (here & ~found.is_dense).any():
            yield f"{family} {table} (adapter or offload)", here & ~found.is_dense


def _tables(found: LayoutPredictions, family: str) -> list[tuple[str, Bools]]:
    here = (found.family == family) & found.is_dense
    return [(t, here & (found.rows.table == t)) for t in dict.fromkeys(found.rows.table[here])]


def _family_figures(found: LayoutPredictions, constant_s: Floats) -> dict[str, float]:
    """Compare like with like: the mean of tables beside the mean of tables, pooled beside pooled.

    ``constant_s`` is what a constant efficiency makes of the dense rows.
    """
    figures: dict[str, float] = {}
    constant = np.full(len(found.rows), np.nan)
    constant[found.is_dense] = constant_s
    measured = found.rows.measured_s
    for family in ("A100", "H100", "V100", "GB200", "GB300"):
        tables = _tables(found, family)
        if not tables:
            continue
        scores = [_scores(found, k) for _, k in tables]
        of_family = np.logical_or.reduce([k for _, k in tables])
        pooled = _scores(found, of_family)
        simple = [score(constant[k], measured[k]) for _, k in tables]
        figures |= {
            f"{family} constant efficiency, mean of tables, MAPE": _mean(
                [s.mape_fraction for s in simple]
            ),
            f"{family} constant efficiency, pooled, MAPE": score(
                constant[of_family], measured[of_family]
            ).mape_fraction,
            f"{family} {COVERAGE:.0%} interval, pooled coverage": pooled.coverage or 0.0,
            f"{family} mean of tables, MAPE": _mean([s.mape_fraction for s in scores]),
            f"{family} pooled, MAPE": pooled.mape_fraction,
            f"{family} {COVERAGE:.0%} interval, mean coverage of tables": _mean(
                [s.coverage for s in scores if s.coverage is not None]
            ),
            f"{family} {COVERAGE:.0%} interval, half-width": pooled.width or 0.0,
        }
    return figures


def _calculon_figures(found: LayoutPredictions) -> dict[str, float]:
    """Return Calculon's published error by table beside ours, and both means of these tables."""
    figures, ours, theirs = {}, [], []
    for table, error in CALCULON.items():
        here = found.is_dense & (found.rows.table == table)
        if here.any():
            ours.append(_scores(found, here).mape_fraction)
            theirs.append(error)
            figures[f"{table}: ours, MAPE"] = ours[-1]
            figures[f"{table}: Calculon as published, MAPE"] = error
    if ours:
        figures["tables that Calculon has, mean of tables, ours"] = _mean(ours)
        figures["tables that Calculon has, mean of tables, Calculon"] = _mean(theirs)
    return figures


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 6)


def _calibrated_figures(found: LayoutPredictions, model: LayoutModel) -> dict[str, float]:
    """Score what the product makes of a table after three of its rows are a user's own runs."""
    tables = after_runs(found.rows, model)
    figures: dict[str, float] = {}
    for family in ("A100", "H100", "V100"):
        own = [t for t in tables if _family(t.gpu) == family]
        if own:
            figures |= {
                f"{family} mean of tables before three rows, MAPE": _mean(
                    [float(np.median(t.before)) for t in own]
                ),
                f"{family} mean of tables after three rows, MAPE": _mean(
                    [float(np.median(t.after)) for t in own]
                ),
            }
    if tables:
        coverage = [t.scores.coverage for t in tables if t.scores.coverage is not None]
        figures |= {
            "after three rows: mean gain of tables": _mean([t.gain for t in tables]),
            "after three rows: least gain of a table": min(t.gain for t in tables),
            f"after three rows: {COVERAGE:.0%} interval, mean coverage of tables": _mean(coverage),
        }
    return figures


def _flag_figures(rows: LayoutRows, model: LayoutModel) -> dict[str, float]:
    """Score ``Predictor.step_columns`` as flags alone can ask it, and count what it refuses."""
    answers, status = np.full(len(rows), np.nan), np.full(len(rows), "", dtype="U32")
    for table in dict.fromkeys(rows.table):
        here = np.flatnonzero(rows.table == table)
        answers[here], status[here] = flag_layouts.step_s(rows.take(here), model.without(table))
    dense = is_dense_training(rows)
    figures = {}
    for name, wanted in (
        ("", dense),
        (" without vtrain_single", dense & (rows.table != "vtrain_single")),
    ):
        good = wanted & np.isfinite(answers)
        if good.any():
            found = score(answers[good], rows.measured_s[good])
            figures[f"by flags alone{name}, MAPE"] = found.mape_fraction
            figures[f"by flags alone{name}, median ratio"] = found.median_ratio or 0.0
    for why in np.unique(status[dense]):
        figures[f"by flags alone, {str(why).replace('_', ' ')}: rows"] = float(
            np.count_nonzero(status[dense] == why)
        )
    return figures


def _regrets(found: LayoutPredictions) -> dict[str, float]:
    figures = {}
    for table in ("vtrain_multi", "bigscience_a100", "vtrain_single"):
        here = found.is_dense & (found.rows.table == table)
        if regret := regrets(found.rows.take(here), found.value[here]):
            figures[f"{table} top-1 regret, mean"] = _mean(regret)
            figures[f"{table} top-1 regret, largest"] = round(max(regret), 6)
    return figures


def regrets(rows: LayoutRows, predicted: Floats) -> list[float]:
    """Return the regret of each group of two or more layouts of the same job on as many GPUs."""
    shapes = rows.shapes
    same: dict[tuple[Any, ...], list[int]] = {}
    for i in range(len(rows)):
        key = (
            str(rows.table[i]),
            *(float(np.asarray(c)[i]) for c in (shapes.layers, shapes.hidden, shapes.heads)),
            float(np.asarray(shapes.sequence)[i]),
            int(rows.devices[i]),
            int(rows.global_batch[i]),
        )
        same.setdefault(key, []).append(i)
    found = []
    for group in same.values():
        measured = rows.measured_s[group]
        if len(group) > 1:
            chosen = int(np.argmin(predicted[group]))
            found.append(float(measured[chosen] / measured.min() - 1))
    return found


def hardware_flop(rows: LayoutRows) -> Floats:
    """Return floating-point operations of a step on one device, recomputation included."""
    shapes, layouts = rows.shapes, rows.layouts
    attention, ffn = layer_parameters(shapes)
    tokens = rows.global_batch * np.asarray(shapes.sequence, float)
    passes = 3 + (np.asarray(layouts.recompute) == 2)
    causal = np.where(np.asarray(rows.software.attention) > 0, 0.5, 1.0)
    layer = 2 * tokens * (attention + ffn)
    layer = layer + 4 * tokens * causal * shapes.sequence * np.asarray(shapes.hidden)
    head = 6 * tokens * np.asarray(shapes.hidden) * shapes.vocabulary
    return np.asarray((passes * layer * shapes.layers + head) / rows.devices)


def _rules(found: LayoutPredictions, model: LayoutModel) -> dict[str, Floats]:
    """Return what simpler rules make of the dense rows; nan where they have no answer [s]."""
    return {
        "constant hardware-FLOP efficiency": _constant_efficiency(found),
        "operators' law in the same layout": by_operators(
            found.rows.take(found.is_dense), model, devices.device_parameters()
        ),
    }


def _constant_efficiency(found: LayoutPredictions) -> Floats:
    """Return one efficiency a family: the geometric mean of the other tables' means [s]."""
    rows = found.rows.take(found.is_dense)
    family = found.family[found.is_dense]
    bound = hardware_flop(rows) / np.asarray(rows.machines.flop_per_s)
    log_ratio = np.log(rows.measured_s / bound)
    predicted: Floats = bound.copy()
    for f, table in set(zip(family, rows.table, strict=True)):
        others = (
            [
                float(log_ratio[(family == f) & (rows.table == t)].mean())
                for t in dict.fromkeys(rows.table[family == f])
                if t != table
            ]
            or [float(log_ratio[rows.table != table].mean())]
            if (rows.table != table).any()
            else [0.0]
        )
        here = (family == f) & (rows.table == table)
        predicted[here] = bound[here] * np.exp(np.mean(others))
    return predicted
