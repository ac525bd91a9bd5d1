"""Protocol ``finetune``: steps of IBM's fine-tuning runs, one model or one accelerator left out.

Every run is asked as a user asks (``asked_runs``): this model, bf16 weights, eager kernels, full
recomputation, FSDP over these GPUs. Constants are fitted on published layouts and on the runs of
the other models (or accelerators).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.train import finetune_rows
from advisor.train.asked_rows import AskedRun, columns_of
from advisor.validation.asked_runs import Answers, ask, scored
from advisor.validation.layouts import hardware_flop
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score
from advisor.ways.layout_model import LayoutModel, load

Bools = NDArray[np.bool_]
NOTES: Final = (
    "what the table does not state (recomputation, adapters, the network between machines) is "
    "read off the stack's defaults (train/finetune_rows.py); it and the form of the eager stack's "
    "terms were chosen with these rows in sight",
    "a run that does not fit by the product's memory rule has no answer: counted, not scored",
)
SEEN: Final = (
    "the form of the eager stack's terms, and what its defaults are taken to be",
    "the centres and widths of the layout model's priors: chosen on other tables",
)


def run(data: Path) -> Validation:
    """Score the layout model on ``measurements/finetune`` under ``data``."""
    runs, left_out = finetune_rows.read(data)
    model = load()
    by_model = _left_out(runs, model, "model", lambda r: r.model)
    by_gpu = _left_out(runs, model, "gpu", lambda r: r.gpu)
    every = np.ones(len(runs), dtype=bool)
    full = np.array([not r.setup.has_adapters for r in runs])
    answered = by_model.is_answered
    groups = [
        *_groups("model", runs, by_model, [r.model for r in runs]),
        *_groups("accelerator", runs, by_gpu, [r.gpu for r in runs]),
    ]
    return Validation(
        protocol="finetune",
        description="steps of fine-tuning runs on Hugging Face's trainer, the model left out",
        overall=scored(by_model, runs, every),
        groups=groups,
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        baselines={"constant efficiency of the other models": _constant(runs, answered)},
        figures={
            **_figures("model left out", scored(by_model, runs, full), "full fine-tuning"),
            **_figures("accelerator left out", scored(by_gpu, runs, every), "all"),
            "runs that do not fit by the memory rule": float(np.count_nonzero(~answered)),
            "runs left out": float(left_out),
        },
        notes=NOTES,
    )


def _left_out(
    runs: list[AskedRun], model: LayoutModel, kind: str, name_of: Callable[[AskedRun], str]
) -> Answers:
    """Ask every run with constants that never saw its model or accelerator."""
    names = np.array([name_of(r) for r in runs])
    parts: dict[str, list[Any]] = {}
    order: list[int] = []
    for name in dict.fromkeys(names):
        here = np.flatnonzero(names == name)
        found = ask([runs[i] for i in here], model.without(finetune_rows.fold(kind, str(name))))
        order += list(here)
        for field in Answers.__slots__:
            parts.setdefault(field, []).append(getattr(found, field))
    back = np.argsort(order)
    return Answers(**{field: np.concatenate(part)[back] for field, part in parts.items()})


def _groups(kind: str, runs: list[AskedRun], answers: Answers, names: list[str]) -> list[Group]:
    found = []
    for name in dict.fromkeys(names):
        here = np.array([n == name for n in names]) & answers.is_answered
        if here.any():
            found.append(Group(group=f"{kind} {name}", scores=scored(answers, runs, here)))
    return found


def _figures(left_out: str, scores: Scores, rows: str) -> dict[str, float]:
    return {
        f"{left_out}, {rows}: MAPE": scores.mape_fraction,
        f"{left_out}, {rows}: median error": scores.median_ape_fraction,
        f"{left_out}, {rows}: coverage of 90 %": scores.coverage or 0.0,
    }


def _constant(runs: list[AskedRun], answered: Bools) -> Scores:
    """Score one efficiency: the geometric mean of the other models'."""
    rows = columns_of(runs)
    ratio = np.log(rows.measured_s * np.asarray(rows.machines.flop_per_s) / hardware_flop(rows))
    predicted = np.zeros(len(rows))
    for name in dict.fromkeys(rows.model):
        here = rows.model == name
        rest = ratio[~here] if (~here).any() else np.zeros(1)
        predicted[here] = rows.measured_s[here] * np.exp(rest.mean() - ratio[here])
    return score(predicted[answered], rows.measured_s[answered])
