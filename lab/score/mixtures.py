"""Protocol ``mixtures``: published steps of mixtures of experts, each model left out.

Every run is asked by model, batch, precision, machines, degrees and micro-batch; told the stack,
its name and the chunks of a stage too. Constants of experts were fitted without the model, and
intervals are those of the other models; beside it, each release left out by constants that never
saw its table. Recomputation, sharding and what routers do are the product's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.estimate.knowledge.layout_model import load
from advisor.lab.fit.asked import AskedRun, columns_of
from advisor.lab.fit.layout_rows import LayoutRows
from advisor.lab.fit.layouts import fit_experts, predicted_s, without_model
from advisor.lab.fit.mixtures import fold, read_deepseek, read_mixtures
from advisor.lab.score import baselines
from advisor.lab.score.asked import ask_mixtures, predictor_by
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, by
from advisor.planners.step.transformer import model_flop_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixtures:
    runs: list[AskedRun]
    rows: LayoutRows


def read(data: Path) -> Questions:
    """Return the steps of mixtures of experts, grouped by model, release and GPU."""
    kept, left_out = read_mixtures(data)
    runs = kept + read_deepseek(data)
    rows = columns_of(runs)
    return Questions(
        questions=[
            f"seconds of a step of {r.row_id} on {r.layout.devices} x {r.gpu}" for r in runs
        ],
        truth=rows.measured_s,
        unseen=[fold(r.model) for r in runs],
        groups=by((r.model for r in runs), prefix="model ", is_sorted=False)
        | by((r.table for r in runs), prefix="release ", is_sorted=False)
        | by((r.gpu for r in runs), prefix="GPU ", is_sorted=False),
        facts=_Mixtures(runs=runs, rows=rows),
        raw=baselines.layout_columns(rows, [r.model for r in runs]),
        notes=(f"{left_out} steps drop tokens, which no question says",),
    )


def _without(facts: _Mixtures, of: Sequence[str], *, is_told: bool, is_model: bool) -> Answers:
    """Ask every run with constants of experts that never saw its model, or its release.

    Intervals are the other models' in both.
    """
    shipped, found = load(), np.full((3, len(facts.runs)), np.nan)
    for name in dict.fromkeys(of):
        out = np.array([one == name for one in of])
        known = shipped
        if is_model:
            known = without_model(name, facts.rows, shipped)
        else:
            kept = fit_experts(facts.rows.take(~out), shipped.parameters)
            known = replace(shipped, parameters=kept)
        here = np.flatnonzero(out)
        said = ask_mixtures(
            predictor_by(known), [facts.runs[i] for i in here.tolist()], is_told=is_told
        )
        found[:, here] = said.step_s, said.low_s, said.high_s
    return Answers(value=found[0], low=found[1], high=found[2])


def _answers(rows: Questions) -> Answers:
    facts: _Mixtures = rows.facts
    models, releases = ([getattr(r, name) for r in facts.runs] for name in ("model", "table"))
    plain, told = (
        _without(facts, models, is_told=is_told, is_model=True) for is_told in (False, True)
    )
    released = _without(facts, releases, is_told=True, is_model=False)
    figures = {"refused as not fitting although they ran": float(np.isnan(plain.value).sum())}
    for name, one in (("told the stack", told), ("release left out, told the stack", released)):
        figures |= _figures(name, one, rows)
    figures |= _figures("plain", plain, rows)
    return replace(plain, others={"told the stack": told}, figures=figures)


def _figures(name: str, said: Answers, rows: Questions) -> dict[str, float]:
    """Return errors over rows, and the mean over models, which weigh the same."""
    scores = said.scores(rows.truth)
    models = by(run.model for run in rows.facts.runs)
    each = [said.scores(rows.truth, mask).mape_fraction for mask in models.values()]
    return {
        f"{name}: MAPE": scores.mape_fraction,
        f"{name}: median error": scores.median_ape_fraction,
        f"{name}: mean over models": float(np.mean(each)),
        f"{name}: coverage of 90 %": scores.coverage or 0.0,
    }


def rate_of_the_chip(rows: Questions, _answered: Bools) -> Floats:
    """Take the rate of active parameters' products that other models reach on the chip.

    The median over rows in the same precision, else over all on the chip.
    """
    facts: _Mixtures = rows.facts
    flop = np.array([
        model_flop_per_token(r.transformer, r.setup) * r.transformer.sequence
        * r.layout.global_batch / r.layout.devices
        for r in facts.runs
    ])  # fmt: skip
    rate, chip, model = flop / rows.truth, facts.rows.gpu, facts.rows.model
    found = np.full(rate.size, np.nan)
    for i in range(rate.size):
        others = (chip == chip[i]) & (model != model[i])
        alike = others & (facts.rows.precision == facts.rows.precision[i])
        if others.any():
            found[i] = flop[i] / np.median(rate[alike if alike.any() else others])
    return found


def dense_law(rows: Questions, _answered: Bools) -> Floats:
    """Take a dense model with the blocks that a token meets: what the law knew before."""
    seen = rows.facts.rows
    shapes = seen.shapes
    dense = replace(
        shapes, experts=1, experts_per_token=1, routed_share=1.0,
        ffn=np.asarray(shapes.ffn) * shapes.experts_per_token * shapes.routed_share
        + shapes.dense_ffn, dense_ffn=0.0,
    )  # fmt: skip
    layouts = replace(seen.layouts, ep=1, etp=0)
    return predicted_s(replace(seen, shapes=dense, layouts=layouts), load().parameters)


_SEEN: Final = (
    "the form of the law of experts and the centres of its priors: set with these rows in sight",
    "all other constants: fitted on dense models, other rows of the same tables among them",
)
MIXTURE_STEPS: Final = Protocol(
    name="mixtures",
    description="steps of mixtures of experts, the model left out",
    senses={"*refused*": "fewer", "*: mean over models": "lower"},
    rows=read,
    answer=_answers,
    seen=_SEEN,
    baselines={"rate of the chip": rate_of_the_chip, "our dense law": dense_law},
    by_group=True,
    notes=(
        "asked by model, batch, precision, machines, degrees and micro-batch. Networks are 400 "
        "Gb/s a GPU, which no source states; Megatron-Bridge forces tokens even over experts, as "
        "its recipes do",
    ),
)
