"""Protocols of jobs that were never run: ``described``, ``layers``, ``neusight``, ``instance``.

Jobs are described in a few numbers (transformer layers, NeuSight's models, Lambda's ResNet-50 and
BERT, PROFET's networks) and asked as a user asks: a transformer by the layout problem that every
verb searches, in the layout that was measured; any other model by ``Predictor.step_columns`` at
the measured batch, which is accumulated where the product says that it does not fit at once. Where
a suite leaves the update out, the answer's part for it is left out too. The device model's
constants are fitted on the other devices' rows, and of a device that is left out only its
specifications are known, no sustained rate. The law of the transformer shapes was fitted on none
of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.catalogue import Accelerator, Catalogue
from advisor.errors import ModelError
from advisor.estimate.case import constants
from advisor.estimate.predictor import Predictor
from advisor.estimate.ways.model_parallel import on_machine
from advisor.jobs.describe import described_job
from advisor.jobs.runs import Actual
from advisor.lab.data import LAYERS, NEUSIGHT, PROFET
from advisor.lab.fit.described import (
    NEUSIGHT_MODELS,
    WAYS,
    Folds,
    fitted_spreads,
    known_steps,
    layer_frame,
    layer_steps,
    left_out_fits,
    profet_rows,
    residuals_of,
)
from advisor.lab.fit.described_columns import Array, DescribedRows, MeasuredStep, chip_of, columns
from advisor.lab.fit.device import equation_s, fit_residual, parameters_of, seen_steps, without
from advisor.lab.fit.efficiencies import Fitted, StepModel
from advisor.lab.fit.without import Hidden, Known, in_parts, of_devices
from advisor.lab.score import baselines
from advisor.lab.score.asked import step_on
from advisor.lab.score.blind import BY_HAND, Refit, Rows, predictor_with, spread
from advisor.lab.score.cells import chip_family
from advisor.lab.score.devices import sibling_figures
from advisor.lab.score.harness import Answers, Bools, Protocol, Questions, Rule, by
from advisor.lab.score.raw import RawColumns
from advisor.lab.score.scores import Scores, score
from advisor.machines.devices import suite_device
from advisor.machines.fleet import lone_fleet
from advisor.planners.core.nouns import Layout
from advisor.planners.step.device_rates import unmeasured

SHAPES: Final = "transformer shapes"
OPERATORS: Final = "operators"
WIDTHS: Final = (
    "the widths of intervals: read off left-out errors of other devices, whose fits had the "
    "scored one"
)
_START: Final = "where every fit starts: a fit that has every row"
_RATES: Final = (
    "what large products reach of a peak that nobody measured: by family, off cards scored here"
)
SEEN: Final = (
    "the equation and its classes of operators: chosen with these rows in sight",
    "medians and widths of the constants' priors, and the noise of a row",
)
_EQUATION: Final = (
    "the equation, its priors and the shapes of the process: chosen with these rows in sight"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswer:
    """What the product says of one measured step; nan where it does not fit.

    ``law`` times the operators (``estimate.knowledge``); ``operators_s`` is what the law of the
    operators says, whichever answers [s].
    """

    step_s: float
    log_sd: float
    law: str
    operators_s: float


NOTHING: Final = StepAnswer(step_s=np.nan, log_sd=np.nan, law="", operators_s=np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSteps:
    """Measured steps: those that are asked, as columns, and all that may be known."""

    steps: list[MeasuredStep]
    columns: DescribedRows
    known: list[MeasuredStep]


def answer(asking: Predictor, step: MeasuredStep, *, is_left_out: bool) -> StepAnswer:
    """Return the product's answer for one measured step, its device perhaps left out."""
    device = unmeasured(step.device) if is_left_out else step.device
    job = described_job(step.work, name=step.model)
    operators_s = equation_s(step, device, asking.constants.device)
    if step.work.transformer is None:
        step_s, log_sd = step_on(asking, job, device)
        return StepAnswer(step_s=step_s, log_sd=log_sd, law=OPERATORS, operators_s=operators_s)
    known = asking.catalogue.accelerators
    case = asking.case(job, fleet=lone_fleet(device, 1, known.get(device.name)))
    if is_left_out:
        case = replace(case, accelerators=_unmeasured_rows(known))
    on = on_machine(case, 0)
    planned = on.problem.evaluate(Layout(micro_batch=step.work.micro_batch))
    untimed_s = 0.0 if step.has_update else planned.parts_s["optimizer_s"]
    return StepAnswer(
        step_s=planned.step_s - untimed_s,
        log_sd=on.law.log_sd,
        law=SHAPES if on.problem.block_table is None else OPERATORS,
        operators_s=operators_s,
    )


def _unmeasured_rows(rows: Mapping[str, Accelerator]) -> dict[str, Accelerator]:
    """Return accelerators whose rates are what their family's measured cards let expect."""
    return {
        name: replace(row, sustained_bf16_flop_per_s=row.inferred_flop_per_s)
        for name, row in rows.items()
    }


def asking_with(
    fitted: Fitted, spreads: dict[str, float], steps: list[MeasuredStep], rows: DescribedRows,
    is_known: np.ndarray,
) -> Predictor:  # fmt: skip
    """Return the product with a fit on the known rows as its device model, errors included."""
    parameters = parameters_of(fitted.constants, spreads, rows.take(is_known))
    known = [step for step, kept in zip(steps, is_known, strict=True) if kept]
    return Predictor(
        Catalogue.load(with_overrides=False),
        constants=replace(
            constants(), device=parameters, residual=fit_residual(known, parameters)
        ),
        learned=None,
    )


def _fit_of_all(rows: DescribedRows) -> tuple[StepModel, Array]:
    """Return the model, and where every further fit starts."""
    model = StepModel(rows)
    return model, model.fit(np.ones(rows.log_s.size, bool)).parameters


def _rows(
    steps: list[MeasuredStep], known: list[MeasuredStep], groups: Mapping[str, Bools] | None = None
) -> Questions:
    found = columns(steps)
    return Questions(
        questions=[
            f"seconds of a step of {s.model}, batch {s.work.micro_batch:g}, "
            f"{'fp16' if half else 'fp32'}, on one {s.device.name}"
            for s, half in zip(steps, found.is_half, strict=True)
        ],
        truth=np.exp(found.log_s),
        unseen=[f"steps on, and rates of, {s.device.name}" for s in steps],
        groups=by(found.device) if groups is None else groups,
        facts=KnownSteps(steps=steps, columns=found, known=known),
        raw=baselines.described_columns(found, found.device),
    )


def answers_of(found: Sequence[StepAnswer]) -> Answers:
    """Return the product's answers in the form of the harness."""
    return spread([(a.step_s, a.log_sd) for a in found])


def _devices(rows: Questions) -> list[Hidden]:
    return [of_devices(step.device) for step in rows.facts.steps]


def _ask_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    """Answer steps with what is known without their devices."""
    by_others = predictor_with(known)
    return answers_of([answer(by_others, rows.facts.steps[i], is_left_out=True) for i in here])


_BLIND: Final = Refit(hidden=_devices, ask=_ask_blind, still_seen=(BY_HAND, _RATES))


# described


def read_described(data: Path) -> Questions:
    """Return every described step, grouped by family and precision."""
    known = known_steps(data)
    steps = [step for step in known if not step.host]
    rows = columns(steps)
    precision = np.where(rows.is_half, "fp16", "fp32")
    labels = np.char.add(np.char.add(rows.family, " "), precision)
    return _rows(steps, known, by(labels))


def left_out_answers(
    rows: Questions, folds: Folds, residuals: dict[str, Array] | None
) -> list[StepAnswer]:
    """Return the product's answer for every step, nothing of its device known.

    Without residuals the spreads of intervals stay as packaged.
    """
    steps, known = rows.facts.steps, rows.facts.known
    told, found = columns(known), [NOTHING] * len(steps)
    for out, fitted in folds["device"]:
        if not out[: len(steps)].any():
            continue
        kept = {way: r[~out] for way, r in (residuals or {}).items()}
        spreads = fitted_spreads(told.take(~out), kept) if kept else {}
        asking = asking_with(fitted, spreads, known, told, ~out)
        for i in np.flatnonzero(out[: len(steps)]):
            found[i] = answer(asking, steps[i], is_left_out=True)
    return found


def _described_answers(rows: Questions) -> Answers:
    told: DescribedRows = rows.facts.columns
    known = columns(rows.facts.known)
    fitted = StepModel(known).fit(np.ones(known.log_s.size, bool))
    folds = left_out_fits(known, fitted, known.host == "")
    residuals = {way: r[: told.log_s.size] for way, r in residuals_of(known, folds).items()}
    plain = residuals_of(known, folds, has_deviations=False)
    found = left_out_answers(rows, folds, plain)
    answers = answers_of(found)
    everything = np.isfinite(answers.value)
    devices = {
        d: answers.scores(rows.truth, mask)
        for d, mask in by(told.device).items()
        if (mask & everything).any()
    }
    return replace(
        answers,
        others={"the fit": np.exp(told.log_s + residuals["device"])},
        figures={"rows without an answer": float(np.count_nonzero(~everything))}
        | _law_figures(told, found, everything)
        | _fit_figures(told, residuals)
        | _interval_figures(devices, answers.scores(rows.truth))
        | {
            f"{name}: {what}": value
            for name, s in devices.items()  # ``rank.changes`` reads them
            for what, value in (("rows", float(s.rows)), ("median APE", s.median_ape_fraction))
        }
        | sibling_figures("devices", _is_alone(told), rows.truth, answers),
    )


def _law_figures(
    rows: DescribedRows, found: list[StepAnswer], everything: np.ndarray
) -> dict[str, float]:
    """Compare the two laws by suite and precision where that of the shapes answers."""
    values = {
        SHAPES: np.array([a.step_s for a in found]),
        OPERATORS: np.array([a.operators_s for a in found]),
    }
    by_shapes = everything & np.array([a.law == SHAPES for a in found])
    figures: dict[str, float] = {}
    for suite in np.unique(rows.suite):
        for is_half, kind in ((True, "fp16"), (False, "fp32")):
            mask = by_shapes & (rows.suite == suite) & (rows.is_half == is_half)
            if mask.any():
                where = f"{suite} {kind}, answered by {SHAPES}"
                figures[f"{where}: rows"] = float(mask.sum())
                for name, value in values.items():
                    scores = score(value[mask], np.exp(rows.log_s[mask]))
                    figures |= scores.named(f"{where}: {name}, ", "MAPE", "bias")
    return figures


def _is_alone(rows: DescribedRows) -> Bools:
    """Return the rows of devices that have no other of their chip among those fitted."""
    known = {name: suite_device(name) for name in map(str, np.unique(rows.device))}
    chips = {name: name if d is None else chip_family(d) for name, d in known.items()}
    alone = {d for d, chip in chips.items() if list(chips.values()).count(chip) == 1}
    return np.isin(rows.device, list(alone))


def _interval_figures(devices: dict[str, Scores], overall: Scores) -> dict[str, float]:
    figures = {"mean half-width of 90 % intervals": overall.width or 0.0}
    enough = {d: s for d, s in devices.items() if s.rows >= 4}
    if enough:
        worst = min(enough, key=lambda d: enough[d].coverage or 0.0)
        figures[f"worst device's coverage ({worst})"] = enough[worst].coverage or 0.0
    return figures


def _fit_figures(rows: DescribedRows, residuals: dict[str, Array]) -> dict[str, float]:
    """Return the fit's median error by way of leaving out, suite and precision."""
    found = {}
    precision = np.where(rows.is_half, "fp16", "fp32")
    for way in WAYS:
        for suite in np.unique(rows.suite):
            for kind in ("fp16", "fp32"):
                mask = (rows.suite == suite) & (precision == kind) & np.isfinite(residuals[way])
                if mask.any():
                    median = float(np.median(np.abs(np.expm1(residuals[way][mask]))))
                    found[f"the fit, {suite} {kind}, {way} left out, median APE"] = median
    return found


DESCRIBED: Final = Protocol(
    name="described",
    description="steps of described jobs, each device left out",
    senses={"worst device*": "neutral"},
    rows=read_described,
    answer=_described_answers,
    seen=SEEN,
    baselines=baselines.DESCRIBED,
    fitted_on=(_START, WIDTHS),
    blind=_BLIND,
    notes=(
        "layers are without optimizer and loss, NeuSight's rows without optimizer",
        "'the fit': its own equation, with deviations of families of models and of chips "
        "that the product does not have",
        "convolutions' figures of the fit: all ResNets left out ('kind')",
        "of a card's measured rates nothing is known; its family's share of the peak is",
    ),
)


# layers: one layer's forward and backward, GPU and model left out

_FUSED: Final = "whether a model's attention is asked as fused"


def read_layers(path: Path, data: Path | None = None) -> Questions:
    """Return the profiles of a folder or of a table, known the suites under ``data`` besides.

    Raises ModelError if the table cannot be read or a row is implausible.
    """
    scored = list(layer_steps(layer_frame(path)))
    if path.is_dir():
        return _rows(scored, known_steps(path))
    has_suite = data is not None and LAYERS.is_in(data)
    return _rows(scored, [*known_steps(data), *scored] if data and has_suite else scored)


def _layer_answers(rows: Questions) -> Answers:
    """Answer with the GPU and the model left out; the figures also with the GPU alone."""
    scored, known = rows.facts.steps, rows.facts.known
    told = columns(known)
    model, start = _fit_of_all(told)
    seen, unseen, log_sd = np.full((3, len(scored)), np.nan)
    device = np.array([step.device.name for step in scored])
    names = np.array([step.model for step in scored])
    for gpu in np.unique(device):
        out = told.device == gpu
        if out.all():
            continue
        asking = asking_with(model.fit(~out, start), {}, known, told, ~out)
        kept = seen_steps([s for s, is_out in zip(known, out, strict=True) if not is_out])
        for name in np.unique(names[device == gpu]):
            is_own = np.array([step.model == name for step in kept])
            residual = without(asking.constants.residual, is_own)
            blind = Predictor(
                asking.catalogue,
                constants=replace(asking.constants, residual=residual),
                learned=None,
            )
            for i in map(int, np.flatnonzero((device == gpu) & (names == name))):
                seen[i] = answer(asking, scored[i], is_left_out=True).step_s
                found = answer(blind, scored[i], is_left_out=True)
                unseen[i], log_sd[i] = found.step_s, found.log_sd
    answers = Answers.spread(unseen, log_sd)
    figures: dict[str, float] = {}
    for precision, is_half in (("fp16", True), ("fp32", False)):
        mask = np.isfinite(unseen) & (rows.facts.columns.is_half == is_half)
        if mask.any():
            both = answers.scores(rows.truth, mask)
            gpu_alone = Answers(value=seen).scores(rows.truth, mask)
            figures |= gpu_alone.named(f"{precision} GPU unseen, ", "median APE")
            figures |= both.named(f"{precision} GPU and model unseen, ", "median APE", "MAPE")
    return replace(answers, figures=figures)


def _devices_and_models(rows: Questions) -> list[Hidden]:
    """Hide a step's device and its model, each with a few others: in parts of whole ones."""
    steps = rows.facts.steps
    devices, models = in_parts([s.device.name for s in steps]), in_parts([s.model for s in steps])
    return [Hidden(devices=devices[s.device.name], models=models[s.model]) for s in steps]


LAYER: Final = Protocol(
    name="layers",
    description="a layer's forward and backward, GPU type and model left out",
    rows=read_layers,
    answer=_layer_answers,
    seen=(_EQUATION, _FUSED),
    fitted_on=(_START, WIDTHS),
    blind=replace(_BLIND, hidden=_devices_and_models, still_seen=(BY_HAND, _FUSED, _RATES)),
    baselines={
        **baselines.DESCRIBED,
        "mean of the other GPUs": baselines.same_row_elsewhere("nothing"),
        "ratio of peak FLOP/s": baselines.same_row_elsewhere("peak"),
        "ratio of bandwidth": baselines.same_row_elsewhere("bandwidth"),
    },
    notes=(
        "a layer alone: no embedding, head, loss or update",
        "blind: GPUs and models are left out in four parts each, of whole GPUs and models",
    ),
)


# neusight: its predictions, roofline and Habitat on the same rows. NeuSight had seen operators
# measured on most of these devices.

# Name in the table -> name here.
OTHERS: Final = {"neusight": "NeuSight itself", "roofline": "NeuSight's roofline",
                 "habitat": "Habitat"}  # fmt: skip
# Of two models of one family, the correlation of their errors on a device that was left out (273
# pairs of layers and Lambda's BERT, 22 November 2026); of two families nil (371 pairs: -0.04).
SHARED_ON_A_DEVICE: Final = 0.63


@dataclass(frozen=True, slots=True, kw_only=True)
class _SuiteFacts(KnownSteps):
    """Also the suite's table, whose rows are the steps asked."""

    table: pd.DataFrame


def read_neusight(data: Path) -> Questions:
    """Return NeuSight's training rows that can be described.

    Raises ModelError if the table is not there or none of its rows can be described.
    """
    known = known_steps(data)
    ours = columns(known).suite == "neusight"
    if not ours.any():
        raise ModelError(
            f"no training row of {NEUSIGHT.title} can be described",
            hint="name its folder with --data",
        )
    rows = _rows([s for s, own in zip(known, ours, strict=True) if own], known)
    frame = NEUSIGHT.read("latencies", data)
    frame = frame[(frame["mode"] == "train") & frame["layout"].isna()]
    frame = frame[frame["model"].isin(list(NEUSIGHT_MODELS))]
    frame = frame[[suite_device(name) is not None for name in frame["accelerator"]]]
    facts = _SuiteFacts(
        steps=rows.facts.steps, columns=rows.facts.columns, known=known, table=frame
    )
    return replace(rows, facts=facts)


def _neusight_answers(rows: Questions) -> Answers:
    """Answer, and say what the fit's own equation does, whose deviations no question reaches."""
    known = rows.facts.known
    told = columns(known)
    ours = told.suite == "neusight"
    model, start = _fit_of_all(told)
    zero, equation = np.full((2, told.log_s.size), np.nan)
    found: dict[int, StepAnswer] = {}
    for device in np.unique(told.device[ours]):
        out = told.device == device
        fitted = model.fit(~out, start)
        equation[out] = np.exp(model.log_s(fitted)[out])
        # The spreads of the intervals stay as packaged.
        asking = asking_with(fitted, {}, known, told, ~out)
        nothing = asking_with(model.fit(~out & ~ours, start), {}, known, told, ~out & ~ours)
        for i in map(int, np.flatnonzero(out & ours)):
            found[i] = answer(asking, known[i], is_left_out=True)
            zero[i] = answer(nothing, known[i], is_left_out=True).step_s
    answers, table = answers_of([found[i] for i in sorted(found)]), rows.facts.table
    of_others = {shown: table[f"{name}_s"] for name, shown in OTHERS.items()}
    return replace(
        answers,
        others={n: c.where(c > 0).to_numpy(float) for n, c in of_others.items()}
        | {"the fit": equation[ours]},
        figures={
            "nothing of NeuSight's suite known, MAPE": score(zero[ours], rows.truth).mape_fraction
        }
        | _plausible(rows, answers)
        | _one_row(rows, answers.value),
    )


def _plausible(rows: Questions, answers: Answers) -> dict[str, float]:
    """Score the rows whose forward pass takes no more than two thirds of the backward pass."""
    table = rows.facts.table
    good = (table["forward_s"] <= table["backward_s"] * 2 / 3).to_numpy()
    if not good.any():
        return {}
    scores = answers.scores(rows.truth, good)
    figures = {"plausible rows": float(good.sum())}
    return figures | scores.named("plausible rows, ", "MAPE", "median APE")


def _one_row(rows: Questions, predicted: Array) -> dict[str, float]:
    """Score each model's rows corrected by one row of another model on the same device.

    Every other row is tried; the correction is the share of its error that two models of a family
    have in common on a device, over all suites but this one.
    """
    told = rows.facts.columns
    error = np.log(rows.truth / predicted)
    i, k = np.nonzero((told.device[:, None] == told.device) & (told.model[:, None] != told.model))
    if not i.size:
        return {}
    scores = score(predicted[i] * np.exp(SHARED_ON_A_DEVICE * error[k]), rows.truth[i])
    return scores.named("one row of another model on the device, ", "MAPE", "median APE")


NEUSIGHT_STEPS: Final = Protocol(
    name="neusight",
    description="training steps (fp32, forward and backward) of described models, device out",
    rows=read_neusight,
    answer=_neusight_answers,
    seen=SEEN,
    baselines=baselines.DESCRIBED,
    fitted_on=(_START, WIDTHS),
    blind=_BLIND,
    notes=(
        "dense transformers on one device; the switch transformers (two towers) and the rows "
        "on four devices are not described, nor are those in the baselines",
        "'the fit': its own equation, with deviations that the product does not have",
        "the widths of the intervals are the packaged ones, which saw these rows",
        "MI250 is taken as PyTorch sees it: one of its two dies",
        "forward passes that take more than two thirds of the backward pass, which has twice "
        "the products, are the suite's slips: scored, and left out once ('plausible')",
        "one row: another model's step on the same device, in the share that models there "
        "have in common over all suites",
    ),
)


# instance: a network described and run once on a T4 (--cnn, --runs), asked on a GPU never seen

ANCHOR: Final = "T4"


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnchoredFacts:
    """Steps that are asked, and the run of each on the anchor."""

    steps: list[MeasuredStep]
    anchors: list[MeasuredStep]
    known: list[MeasuredStep]


def read_instance(data: Path) -> Questions:
    """Return PROFET's described networks on GPUs other than the T4.

    Raises ModelError if the table cannot be read, or no network was run on a T4 and on another
    GPU.
    """
    steps = list(profet_rows(data, is_whole=True))
    anchors = {_job(s): s for s in steps if s.device.name == ANCHOR}
    scored = [s for s in steps if s.device.name != ANCHOR and _job(s) in anchors]
    if not scored:
        raise ModelError(
            f"no network of {PROFET.title} was run on a {ANCHOR} and on another GPU",
            hint="name the measurements with --data",
        )
    known = [anchors[_job(s)] for s in scored]
    return Questions(
        questions=[
            f"seconds of a step of {s.model}, batch {s.work.micro_batch:g}, on one "
            f"{s.device.name}, known {k.seconds:.4g} s on a {ANCHOR}"
            for s, k in zip(scored, known, strict=True)
        ],
        truth=np.array([s.seconds for s in scored]),
        unseen=[f"steps on {s.device.name} and its chip" for s in scored],
        groups=by(s.device.name for s in scored),
        facts=_AnchoredFacts(steps=scored, anchors=known, known=known_steps(data)),
        raw=_anchored_columns(scored, known),
    )


def _anchored_columns(steps: list[MeasuredStep], anchors: list[MeasuredStep]) -> RawColumns:
    told = columns(steps)
    return RawColumns.of(
        {"flop": np.bincount(told.row, told.flop), "bytes": np.bincount(told.row, told.bytes),
         "peak": told.peak, "bandwidth": told.bandwidth, "anchor": [a.seconds for a in anchors]},
        told.device,
    )  # fmt: skip


def _job(step: MeasuredStep) -> tuple[str, int, float]:
    """Return what tells a network, its images and its batch."""
    return step.model, step.work.micro_batch, float(step.operators.flop.sum())


def _instance_answers(rows: Questions) -> Answers:
    steps, anchors, known = rows.facts.steps, rows.facts.anchors, rows.facts.known
    told = columns(known)
    model, start = _fit_of_all(told)
    found = np.full((3, len(steps)), np.nan)
    for name in {s.device.name for s in steps}:
        out = told.chip == chip_of(name)
        asking = asking_with(model.fit(~out, start), {}, known, told, ~out)
        for i, step in enumerate(steps):
            if step.device.name == name:
                found[:2, i] = _ask_instance(asking, step, anchors[i])
                found[2, i] = _ask_instance(asking, step, None)[0]
    return Answers.spread(found[0], found[1], others={"no run": found[2]})


def _ask_instance(
    asking: Predictor, step: MeasuredStep, run: MeasuredStep | None
) -> tuple[float, float]:
    job = described_job(step.work, name=step.model)
    if run is not None:
        noted = Actual(run=step.model, provider="", instance_type=run.device.name, count=1,
                       step_s=run.seconds)  # fmt: skip
        job = replace(job, actuals=(noted,))
    return step_on(asking, job, unmeasured(step.device))


def _chips(rows: Questions) -> list[Hidden]:
    return [Hidden(chips=frozenset([chip_of(s.device.name)])) for s in rows.facts.steps]


def _ask_instance_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    steps, anchors, by_others = rows.facts.steps, rows.facts.anchors, predictor_with(known)
    return spread([_ask_instance(by_others, steps[i], anchors[i]) for i in here])


def _anchor_by(rate: str) -> Rule:
    """Return the run on the anchor times the ratio of datasheets' rates."""

    def rule(rows: Questions, _answered: Bools) -> Array:
        def rates(steps: Sequence[MeasuredStep]) -> Array:
            return np.array([float(getattr(s.device, rate) or 1.0) for s in steps])

        seconds = np.array([s.seconds for s in rows.facts.anchors])
        return seconds * rates(rows.facts.anchors) / rates(rows.facts.steps)

    return rule


INSTANCE: Final = Protocol(
    name="instance",
    description="step of a described network, known one run on a T4, on a GPU left out",
    rows=read_instance,
    answer=_instance_answers,
    seen=(_EQUATION,),
    fitted_on=(_START, WIDTHS),
    blind=Refit(hidden=_chips, ask=_ask_instance_blind, still_seen=(BY_HAND,)),
    baselines={
        "anchor x ratio of peak FLOP/s": _anchor_by("fp32_flop_per_s"),
        "anchor x ratio of bandwidth": _anchor_by("memory_bytes_per_s"),
    },
    notes=(
        "ResNets and VGGs on images of 128 pixels and more: PROFET's others are not described",
        "'no run': the product's answer without the run on the T4",
    ),
)
