"""Protocol ``layouts``: steps of published transformer runs, one source table left out.

Every run is asked as a user types it (``asked.ask_rows``), and scored is what ``advisor plan``
prints, interval included; beside it the same with the stack's name, and with all that its table
knows. Constants were fitted without the run's table (``advisor train layout-model``; of a table it
never saw, all), and intervals come from the other tables' left-out errors. Besides: the same after
three rows of a table on one GPU are a user's own runs (``after_runs``: drawn by several seeds,
told their stack as ``advisor runs actual`` notes them, calibrated by
``estimate.knowledge.own_runs``), and by the law of the operators, whose difference is that of the
two laws (``by_operators``: links, pipelines and reductions are the same).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.knowledge.layout_model import (
    Asked,
    LayoutModel,
    Outside,
    chip_of,
    load,
    operator_table,
)
from advisor.estimate.knowledge.own_runs import MeasuredLayout, OwnLayouts, own_layouts
from advisor.lab.fit.layout_rows import LayoutRows, known_part, read
from advisor.lab.fit.layouts import is_dense_training
from advisor.lab.fit.without import Hidden, Known
from advisor.lab.score import baselines
from advisor.lab.score.asked import (
    PUTS_IN,
    TOLD,
    RunAnswers,
    ask_rows,
    ask_some,
    own_rows,
    predictor,
    step_s,
)
from advisor.lab.score.blind import BY_HAND, Refit, Rows, predictor_with
from advisor.lab.score.harness import Answers, Bools, Protocol, Questions
from advisor.lab.score.scores import Scores, score
from advisor.machines import devices
from advisor.planners.core.arrays import FUSIONS, Floats
from advisor.planners.core.layout_case import LayoutCase, UnitTimes
from advisor.planners.core.nouns import Device
from advisor.planners.core.setup import Precision, TrainingSetup, Transformer
from advisor.planners.layouts.problem import LayoutProblem
from advisor.planners.layouts.time import step_times
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import DeviceParameters
from advisor.quantities import REACH_90
from advisor.rank.changes import device_band

KNOWN: Final = 3
SEEDS: Final = 9
# A table of less is not split; of more than the second number so many are drawn for scoring.
_ENOUGH_ROWS: Final = 6
_MOST_ROWS: Final = 40
_MOST_ASKED: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRuns:
    """One table before and after: the mean error by seed, shape (seeds,), and all rows after.

    ``before``, ``after`` and ``by_factor``, what one factor from the same rows leaves, are of the
    rows that were not drawn; ``gpu`` is the first row's.
    """

    table: str
    gpu: str
    before: Floats
    after: Floats
    by_factor: Floats
    scores: Scores

    @property
    def gain(self) -> float:
        """What the runs take off the error: the median over seeds."""
        return float(np.median(self.before - self.after))


def after_runs(rows: LayoutRows, model: LayoutModel, *, seeds: int = SEEDS) -> list[AfterRuns]:
    """Score every table of enough dense rows on a GPU before and after three of them are known."""
    return list(_by_table(rows, model, seeds))


def calibrated(runs: Sequence[MeasuredLayout], model: LayoutModel) -> OwnLayouts:
    """Calibrate as the product does for a user's runs."""
    return own_layouts(runs, model.log_spread(), predictor().constants.calibration)


def calibrated_problem(problem: LayoutProblem, own: OwnLayouts, device: Device) -> LayoutProblem:
    """Return the problem after the user's runs."""
    factor = problem.device_factor * math.exp(own.log_device(device))
    return replace(problem, parameters=own.parameters, device_factor=factor)


def asked_after(run: MeasuredLayout, own: OwnLayouts, log_sd: float = 0.0) -> tuple[float, float]:
    """Return the step of a run after others are known [s], and the deviation of its logarithm."""
    problem = calibrated_problem(run.problem, own, run.device)
    step_s = float(problem.times(run.layout).step_s)
    return step_s, own.log_sd(problem, run.layout, run.device, log_sd)


def _by_table(rows: LayoutRows, model: LayoutModel, seeds: int) -> Iterator[AfterRuns]:
    dense = is_dense_training(rows)
    for table, gpu in dict.fromkeys(zip(rows.table[dense], rows.gpu[dense], strict=True)):
        here = dense & (rows.table == table) & (rows.gpu == gpu)
        if np.count_nonzero(here) < _ENOUGH_ROWS:
            continue
        # More than are drawn are thinned before they are asked.
        some = np.flatnonzero(here)[:: max(np.count_nonzero(here) // _MOST_ASKED, 1)]
        runs = own_rows(rows.take(some), model.left_out(str(table), str(table)))
        if len(runs) < _ENOUGH_ROWS:
            continue
        drawn = [np.random.default_rng(seed).permutation(len(runs)) for seed in range(seeds)]
        drawn = [order[: KNOWN + _MOST_ROWS] for order in drawn]
        yield _scored(str(table), str(gpu), runs, drawn, model)


def _scored(
    table: str, gpu: str, runs: list[MeasuredLayout], drawn: list[np.ndarray], model: LayoutModel
) -> AfterRuns:
    measured = np.array([run.step_s for run in runs])
    bare = np.array([float(run.problem.times(run.layout).step_s) for run in runs])
    generation = int(runs[0].problem.machines.generation)
    published = model.log_half_width(generation, 0.9, without=table, asked=TOLD) / REACH_90
    before, after, by_factor, found, told = [], [], [], [], []
    for order in drawn:
        known, rest = order[:KNOWN], order[KNOWN:]
        own = calibrated([runs[i] for i in known], model)
        factor = np.exp(np.mean(np.log(measured[known] / bare[known])))
        by_factor.append(score(factor * bare[rest], measured[rest]).mape_fraction)
        answers = np.array([asked_after(runs[i], own, published) for i in rest])
        before.append(score(bare[rest], measured[rest]).mape_fraction)
        after.append(score(answers[:, 0], measured[rest]).mape_fraction)
        found.append(answers)
        told.append(measured[rest])
    value, log_sd = np.concatenate(found).T
    width = np.exp(REACH_90 * log_sd)
    return AfterRuns(
        table=table,
        gpu=gpu,
        before=np.array(before),
        after=np.array(after),
        by_factor=np.array(by_factor),
        scores=score(value, np.concatenate(told), low=value / width, high=value * width),
    )


# Micro-batches at which the law of the operators is tabulated.
_TABULATED: Final = tuple(float(2**k) for k in range(8))
# Code of the layout model's precision -> that of the operators. Lower ones have no fitted rates.
_PRECISIONS: Final[dict[int, Precision]] = {0: "bf16", 1: "fp8"}


def by_operators(rows: LayoutRows, model: LayoutModel, device: DeviceParameters) -> Floats:
    """Return the step time of every row by the operators' law; nan where it has no device [s].

    The model's constants without a row's table hold for what is around the layers; those of the
    operators were fitted on other measurements than these.
    """
    tables: dict[tuple[Any, ...], UnitTimes] = {}
    found = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        target = _device(str(rows.gpu[i]))
        precision = _PRECISIONS.get(int(_at(rows.machines.precision, i)))
        if target is None or precision is None:
            continue
        key = (target.name, precision, *_dimensions(rows, i), *_software(rows, i))
        if key not in tables:
            tables[key] = _table(rows, i, target, precision, device)
        found[i] = _step_s(rows, i, model, tables[key])
    return found


def _at(column: Any, row: int) -> float:
    values = np.asarray(column)
    return float(values if values.ndim == 0 else values[row])


def _device(gpu: str) -> Device | None:
    """Return the device of a part, under its limit of power; None of unknown ones."""
    known = known_part(gpu)
    return None if known is None else known.device


def _dimensions(rows: LayoutRows, row: int) -> tuple[int, ...]:
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "matrices", "sequence", "vocabulary")
    return tuple(int(_at(getattr(rows.shapes, name), row)) for name in names)


def _software(rows: LayoutRows, row: int) -> tuple[int, int]:
    return int(_at(rows.software.fusion, row)), int(_at(rows.software.attention, row))


def _table(
    rows: LayoutRows, row: int, target: Device, precision: Precision, device: DeviceParameters
) -> UnitTimes:
    layers, hidden, heads, kv_heads, ffn, matrices, sequence, vocabulary = _dimensions(rows, row)
    fusion, attention = _software(rows, row)
    model = Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn,
        is_gated=matrices == 3, sequence=sequence, vocabulary=vocabulary,
    )  # fmt: skip
    kernels = FUSIONS[fusion]
    setup = TrainingSetup(
        kernels=kernels if kernels in ("eager", "fused", "compiled") else "compiled",  # type: ignore[arg-type]
        attention="flash" if attention else "unfused",
    )
    work = transformer_work(model, micro_batch=1, precision=precision, setup=setup)
    return operator_table(work, step_time(work, [target], _TABULATED, device))


def _step_s(rows: LayoutRows, row: int, model: LayoutModel, table: UnitTimes) -> float:
    one = rows.take(np.array([row]))
    case = LayoutCase(
        shapes=one.shapes,
        layouts=one.layouts,
        machines=one.machines,
        software=one.software,
        parameters=model.without(str(rows.table[row])),
        block_table=table,
    )
    return float(np.ravel(step_times(case).step_s)[0])


# layouts: published runs, one source table left out

COVERAGE: Final = 0.9
WAYS: Final[tuple[Asked, ...]] = ("plain", TOLD)
ALL_TOLD: Final = "told all that its table knows"
NO_NETWORK: Final = "without the network"
# Source table -> MAPE of Calculon's unmodified curves (shared/reference/planners.md).
CALCULON: Final = {
    "megatron_seqsel": 0.037, "megatron_sc21": 0.095, "vtrain_multi": 0.196,
    "vtrain_single": 0.389, "bigscience_a100": 0.288, "dlperf_gpt": 0.328,
}  # fmt: skip
_FAMILIES: Final = {
    "A100": ("A100", "A800"), "H100": ("H100", "H200", "NVIDIA H100"), "V100": ("V100",),
}  # fmt: skip


# Chips whose tables are averaged after three rows.
_AFTER: Final = {
    "A100": ("A100",), "H100": ("H100",), "A100 and H100": ("A100", "H100"), "V100": ("V100",),
    "Blackwell": ("GB200", "GB300"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFacts:
    """All rows of the tables, those among them that are scored, and the layout model."""

    rows: LayoutRows
    is_dense: Bools
    family: NDArray[np.str_]
    model: LayoutModel


def read_layouts(data: Path) -> Questions:
    """Return the published runs by layout; those that train only a part are not in the mean."""
    rows = read(data)
    family = np.array([_family(g) for g in rows.gpu])
    dense = is_dense_training(rows)
    groups = {}
    for of, table in sorted(set(zip(family, rows.table, strict=True))):
        here = (family == of) & (rows.table == table)
        groups[f"{of} {table}"] = here & dense
        groups[f"{of} {table} (adapter or offload)"] = here & ~dense
    told = zip(rows.row_id, rows.gpu, rows.devices, strict=True)
    return Questions(
        questions=[f"seconds of a step of {r} on {n:g} x {g}" for r, g, n in told],
        truth=rows.measured_s,
        unseen=[f"layouts/{table}" for table in rows.table],
        groups=groups,
        counted=dense,
        facts=LayoutFacts(rows=rows, is_dense=dense, family=family, model=load()),
        raw=baselines.layout_columns(rows, rows.table),
        notes=(f"{rows.left_out} successful runs are not transformers with a layout",),
    )


def _family(gpu: str) -> str:
    return next((name for name, starts in _FAMILIES.items() if gpu.startswith(starts)), gpu)


def predict(rows: LayoutRows, model: LayoutModel) -> Answers:
    """Predict every row, told all that its table knows, by constants that never saw the table."""
    value, width = np.zeros(len(rows)), np.zeros(len(rows))
    generation = np.asarray(rows.machines.generation)
    for table in dict.fromkeys(rows.table):
        of_table = rows.table == table
        value[of_table] = step_s(rows.take(of_table), model.without(table))
        for g in np.unique(generation[of_table]):
            width[of_table & (generation == g)] = model.log_half_width(
                int(g), COVERAGE, without=table
            )
    return Answers(value=value, low=value * np.exp(-width), high=value * np.exp(width))


def _layout_answers(rows: Questions) -> Answers:
    facts: LayoutFacts = rows.facts
    said = {how: ask_rows(facts.rows, facts.model, how=how) for how in WAYS}
    plain, told = (
        Answers(value=one.step_s, low=one.low_s, high=one.high_s) for one in said.values()
    )
    all_told = predict(facts.rows, facts.model)
    figures = _family_figures(rows, {"plain": plain, TOLD: told, ALL_TOLD: all_told})
    figures |= _calculon_figures(rows, all_told)
    figures |= _calibrated_figures(facts) | _regret_figures(facts, all_told.value)
    for how, one in said.items():
        figures |= _asked_figures(rows, how, one)
    figures |= _box_figures(facts, told, rows.truth)
    figures |= errors_by_size(facts.rows, plain, rows.truth, facts.is_dense)
    bare = ask_rows(facts.rows, facts.model, how="plain", states_network=False)
    bare_answers = Answers(value=bare.step_s, low=bare.low_s, high=bare.high_s)
    several = facts.rows.devices > np.asarray(facts.rows.machines.devices_per_node)
    for name, column in (("plain", plain), (NO_NETWORK, bare_answers)):
        good = several & facts.is_dense & np.isfinite(column.value)
        if good.any():
            figures |= _of_asked(f"several machines, {name}", column.scores(rows.truth, good))
    others = {NO_NETWORK: bare_answers, TOLD: told, ALL_TOLD: all_told}
    return replace(plain, others=others, figures=figures)


def _tables(rows: Questions) -> list[Hidden]:
    return [Hidden(tables=frozenset([str(table)])) for table in rows.facts.rows.table]


def _ask_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    said = ask_some(predictor_with(known), rows.facts.rows, here, how="plain")
    return Answers(value=said.step_s, low=said.low_s, high=said.high_s)


def _constant_efficiency(rows: Questions, _answered: Bools) -> Floats:
    facts: LayoutFacts = rows.facts
    found = np.full(len(facts.rows), np.nan)
    dense = facts.is_dense
    found[dense] = baselines.efficiency_of_other_tables(
        facts.rows.take(dense), facts.family[dense]
    )
    return found


def _operators_law(rows: Questions, _answered: Bools) -> Floats:
    facts: LayoutFacts = rows.facts
    found = np.full(len(facts.rows), np.nan)
    found[facts.is_dense] = by_operators(
        facts.rows.take(facts.is_dense), facts.model, devices.device_parameters()
    )
    return found


def _family_figures(rows: Questions, columns: dict[str, Answers]) -> dict[str, float]:
    """Compare like with like: mean of tables with mean of tables, pooled with pooled."""
    facts: LayoutFacts = rows.facts
    constant = Answers(value=_constant_efficiency(rows, facts.is_dense))
    figures: dict[str, float] = {}
    for family in ("A100", "H100", "V100", "GB200", "GB300"):
        here = (facts.family == family) & facts.is_dense
        tables = [here & (facts.rows.table == t) for t in dict.fromkeys(facts.rows.table[here])]
        if not tables:
            continue
        simple = [constant.scores(rows.truth, k) for k in tables]
        figures |= {
            f"{family} constant efficiency, mean of tables, MAPE": _mean_error(simple),
            f"{family} constant efficiency, pooled, MAPE": constant.scores(
                rows.truth, here
            ).mape_fraction,
        }
        for how, answers in columns.items():
            figures |= _family_of(f"{family} {how}", answers, rows.truth, here, tables)
    return figures


def _family_of(
    name: str, answers: Answers, truth: Floats, here: Bools, tables: list[Bools]
) -> dict[str, float]:
    answered = [k & np.isfinite(answers.value) for k in tables]
    scores = [answers.scores(truth, k) for k in answered if k.any()]
    pooled = answers.scores(truth, here & np.isfinite(answers.value))
    coverage = [s.coverage for s in scores if s.coverage is not None]
    return {
        f"{name}, mean of tables, MAPE": _mean_error(scores),
        f"{name}, pooled, MAPE": pooled.mape_fraction,
        f"{name}, {COVERAGE:.0%} interval, pooled coverage": pooled.coverage or 0.0,
        f"{name}, {COVERAGE:.0%} interval, mean coverage of tables": _mean(coverage),
        f"{name}, {COVERAGE:.0%} interval, half-width": pooled.width or 0.0,
    }


def _asked_figures(rows: Questions, how: str, said: RunAnswers) -> dict[str, float]:
    """Return errors of one way to ask, and how many runs it refuses though they ran."""
    facts: LayoutFacts = rows.facts
    dense = facts.is_dense
    answers = Answers(value=said.step_s, low=said.low_s, high=said.high_s)
    figures: dict[str, float] = {}
    others = dense & (facts.rows.table != "vtrain_single")
    for name, wanted in (("", dense), (" without vtrain_single", others)):
        good = wanted & said.is_answered
        if good.any():
            found = answers.scores(rows.truth, good)
            figures |= _of_asked(f"{how}{name}", found)
    refused = said.status == "does_not_fit_in_memory"
    figures[f"{how}: refused as not fitting although it ran"] = float(refused[dense].mean())
    for why in np.unique(said.status[dense]):
        figures[f"{how}, {str(why).replace('_', ' ')}: rows"] = float(
            np.count_nonzero(said.status[dense] == why)
        )
    return figures


def _box_figures(facts: LayoutFacts, told: Answers, truth: Floats) -> dict[str, float]:
    """Return errors and coverage inside and outside of what the other tables measured."""
    rows, figures = facts.rows, dict[str, float]()
    is_outside = np.array([bool(_outside(rows, i, facts.model)) for i in range(len(rows))])
    answered = facts.is_dense & np.isfinite(told.value)
    for name, here in (("inside", ~is_outside), ("outside", is_outside)):
        if (good := answered & here).any():
            figures |= _of_asked(f"{TOLD}, {name} the box", told.scores(truth, good))
            figures[f"{TOLD}, {name} the box: rows"] = float(np.count_nonzero(good))
    return figures


def _outside(rows: LayoutRows, row: int, model: LayoutModel) -> dict[Outside, float]:
    table, part = str(rows.table[row]), known_part(str(rows.gpu[row]))
    if part is None:
        return {}
    return model.left_out(table, table).outside(
        part.kernels, chip=chip_of(part.name), precision=int(_at(rows.machines.precision, row)),
        stack=str(rows.stack[row]), hidden=_at(rows.shapes.hidden, row),
        devices=int(rows.devices[row]), has_experts=_at(rows.shapes.experts, row) > 1,
    )  # fmt: skip


def errors_by_size(
    rows: LayoutRows, answers: Answers, truth: Floats, counted: Bools
) -> dict[str, float]:
    """Return median error and rows by chip family and number of devices: what is told of both."""
    known = [known_part(str(gpu)) for gpu in rows.gpu]
    family = np.array(["" if k is None else _architecture(k.name) for k in known])
    band = np.array([device_band(n) for n in rows.devices])
    figures = {}
    for one in sorted(set(zip(family, band, strict=True))):
        here = counted & (family == one[0]) & (band == one[1]) & np.isfinite(answers.value)
        if here.any():
            found = answers.scores(truth, here)
            figures[f"{one[0]}, {one[1]}: median APE"] = found.median_ape_fraction
            figures[f"{one[0]}, {one[1]}: rows"] = float(np.count_nonzero(here))
    return figures


def _architecture(name: str) -> str:
    return str(predictor().catalogue.accelerators[name].architecture)


def _of_asked(name: str, found: Scores) -> dict[str, float]:
    return {
        f"{name}, MAPE": found.mape_fraction,
        f"{name}, median error": found.median_ape_fraction,
        f"{name}, median ratio": found.median_ratio or 0.0,
        f"{name}, {COVERAGE:.0%} interval, coverage": found.coverage or 0.0,
        f"{name}, {COVERAGE:.0%} interval, half-width": found.width or 0.0,
    }


def _calculon_figures(rows: Questions, answers: Answers) -> dict[str, float]:
    """Return Calculon's published error by table beside ours, and both means of these tables."""
    figures, ours, theirs = {}, [], []
    for table, error in CALCULON.items():
        here = rows.facts.is_dense & (rows.facts.rows.table == table)
        if here.any():
            ours.append(answers.scores(rows.truth, here).mape_fraction)
            theirs.append(error)
            figures[f"{table}: ours, MAPE"] = ours[-1]
            figures[f"{table}: Calculon as published, MAPE"] = error
    if ours:
        figures["tables that Calculon has, mean of tables, ours"] = _mean(ours)
        figures["tables that Calculon has, mean of tables, Calculon"] = _mean(theirs)
    return figures


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 6)


def _mean_error(scores: list[Scores]) -> float:
    return _mean([s.mape_fraction for s in scores])


def _calibrated_figures(facts: LayoutFacts) -> dict[str, float]:
    """Score what the product makes of a table after three of its rows are a user's own runs."""
    tables = after_runs(facts.rows, facts.model)
    figures: dict[str, float] = {}
    for family, chips in _AFTER.items():
        own = [t for t in tables if _family(t.gpu) in chips]
        for word in ("before", "after") if own else ():
            errors = [float(np.median(getattr(t, word))) for t in own]
            figures[f"{family} mean of tables {word} three rows, MAPE"] = _mean(errors)
            figures[f"{family} worst table {word} three rows, MAPE"] = round(max(errors), 6)
    if tables:
        factors = [float(np.median(t.by_factor)) for t in tables]
        after = [float(np.median(t.after)) for t in tables]
        figures |= {
            "after three rows: mean of tables, MAPE": _mean(after),
            "after three rows: mean of tables by one factor, MAPE": _mean(factors),
            "after three rows: tables where one factor errs less": float(
                np.count_nonzero(np.less(factors, after))
            ),
        }
        coverage = [t.scores.coverage for t in tables if t.scores.coverage is not None]
        figures |= {
            "after three rows: mean gain of tables": _mean([t.gain for t in tables]),
            "after three rows: least gain of a table": min(t.gain for t in tables),
            f"after three rows: {COVERAGE:.0%} interval, mean coverage of tables": _mean(coverage),
        }
    return figures


def _regret_figures(facts: LayoutFacts, value: Floats) -> dict[str, float]:
    figures = {}
    for table in ("vtrain_multi", "bigscience_a100", "vtrain_single"):
        here = facts.is_dense & (facts.rows.table == table)
        if regret := regrets(facts.rows.take(here), value[here]):
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
            float(np.asarray(shapes.sequence)[i]), int(rows.devices[i]), int(rows.global_batch[i]),
        )  # fmt: skip
        same.setdefault(key, []).append(i)
    found = []
    for group in same.values():
        measured = rows.measured_s[group]
        if len(group) > 1:
            chosen = int(np.argmin(predicted[group]))
            found.append(float(measured[chosen] / measured.min() - 1))
    return found


_PRIORS: Final = "centres and widths of the priors: of a model tuned on rows of these tables"
LAYOUT_STEPS: Final = Protocol(
    name="layouts",
    description="step time of published transformer runs, one source table left out",
    senses={
        "*constant efficiency*": "neutral",
        "*Calculon as published*": "neutral",
        "*, Calculon": "neutral",
        "*, mean of tables, ours": "lower",
        "*gain of*": "higher",
        "*errs less": "fewer",
        "*refused as not fitting*": "lower",
        "*, ok: rows": "more",
        "*, ok in host memory: rows": "fewer",
        "*, does not fit in memory: rows": "fewer",
        "*, excluded by layout: rows": "neutral",
        "*the box: rows": "neutral",
    },
    rows=read_layouts,
    answer=_layout_answers,
    scores="the answer of `advisor plan` to what a user types: model, batch, precision, GPUs, "
    "degrees and micro-batch; beside it, told the stack by name, and all that the table knows",
    seen=(
        "the centres and widths of the constants' priors: inherited from a model tuned on rows of "
        "these tables",
        "which software, overlap and schedule a table's rows had (advisor.lab.fit.layout_rows)",
        "the noise of a row and the offset of a table in the fit",
    ),
    fitted_on=(_PRIORS,),
    blind=Refit(hidden=_tables, ask=_ask_blind, still_seen=(BY_HAND, _PRIORS)),
    baselines={
        "constant hardware-FLOP efficiency": _constant_efficiency,
        "operators' law in the same layout": _operators_law,
    },
    notes=(
        "plain: model, batch, precision, machines; the degrees where any splits the model, the "
        "micro-batch, and that a model is fine-tuned. Without the network: the same, but for the "
        "rate between machines, which most people do not type. Told the stack: its name, and of "
        "ZeRO and "
        "recomputation what is stated. What a table knows beyond goes into the third column: "
        + PUTS_IN,
        "constants are global; each table is scored with the fit that left it out. The priors' "
        "centres were inherited from, and set while looking at, rows of these tables: no command "
        "sets them again",
        "three rows: drawn by nine seeds and noted as a user's own runs (advisor runs actual), "
        "the others are scored; medians over seeds. Grid and belief of the calibration were "
        "chosen on "
        "these tables, the spread of the constants is that of the fits without one table each",
        "regret: measured time of the layout predicted fastest over the fastest measured, same "
        "model, GPUs and batch",
        "Calculon's errors are as published for its unmodified curves, which were tuned on "
        "megatron_seqsel; its rows of a table need not be ours",
    ),
)
