"""Protocol ``pipeline``: runs on up to 16 GPUs are a user's own; the model's larger are asked.

Parcae's runs of transformers in dp x pp on V100s at 10 Gb/s. Those on few GPUs are noted as
``advisor runs actual --model ... --cluster ...`` notes them; the layout problem that every verb
searches (``ways.model_parallel.on_machine``), with constants after those runs
(``ways.own_layouts``), answers for the others in the layout that was measured. Where the model
fits no GPU otherwise, it recomputes: nobody says so, the product decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.jobs.described import described_job
from advisor.jobs.layout_runs import LayoutRun
from advisor.lab.data import PARCAE
from advisor.machines.cluster_text import one_group
from advisor.machines.own_nodes import own_fleet
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.nouns import Layout, Precision, TrainingSetup, Transformer
from advisor.planners.layouts.runnable import layout_columns
from advisor.planners.step.describe import transformer_work
from advisor.validation.asked_layouts import predictor
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, compare, score
from advisor.ways.model_parallel import OnMachine, on_machine

if TYPE_CHECKING:
    import pandas as pd

    from advisor.ways.case import StepCase

MOST_GPUS: Final = 16
LEAST_RUNS: Final = 3  # of a model, on few GPUs
MACHINE: Final = "1xV100-SXM2-16GB@10Gbps"  # p3.2xlarge
# Dimensions by the parameters of their layers, which Parcae states: BERT-large's embedding has 512
# positions. Its ResNet-152 and VGG-19 have none that anybody could describe.
MODELS: Final = {
    "bert": Transformer(layers=24, hidden=1024, heads=16, sequence=512, vocabulary=30_522),
    "gpt-1.5b": Transformer(layers=48, hidden=1600, heads=25, sequence=1024, vocabulary=50_257),
}
PRECISION: Final[Precision] = "fp16"
SETUP: Final = TrainingSetup(attention="unfused")  # no fused attention runs on a V100
_COLUMNS: Final = ("dp", "pp", "micro_batch", "global_batch")
NOTES: Final = (
    f"runs on at most {MOST_GPUS} GPUs are known, the rest is scored; in the layout that ran",
    "bert on 18 and 20 GPUs took up to twice as long as its neighbours: no function of the layout",
    "left out: resnet152, whose dimensions no flag says",
)
SEEN: Final = (
    "how far a user's network may be from the published ones (ways.own_layouts): the prior's "
    "width of its efficiency, looked at on these rows",
    "the sequence of bert, by the size of its embedding",
)


def run(data: Path) -> Validation:
    """Ask for Parcae's larger runs under ``data``.

    Raises
    ------
    ModelError
        If they are not there, or no model has small and large runs.
    """
    answers, rules, measured, model = [], [], [], []
    for name, (few, many) in halves(PARCAE.read("steps", data)).items():
        answers.append(asked(name, few, many))
        rules.append(_rules(few, many) | {"no runs": asked(name, few.iloc[:0], many)[:, 0]})
        measured.append(many.step_s.to_numpy(float))
        model += [name] * len(many)
    value, log_sd = np.concatenate(answers).T
    truth, names, width = np.concatenate(measured), np.array(model), np.exp(REACH_90 * log_sd)
    simple, beside = compare(
        {rule: np.concatenate([r[rule] for r in rules]) for rule in rules[0]}, value, truth
    )

    def scores(rows: NDArray[np.bool_]) -> Scores:
        return score(
            value[rows],
            truth[rows],
            low=(value / width)[rows],
            high=(value * width)[rows],
        )

    return Validation(
        protocol="pipeline",
        description=f"step of a transformer on more than {MOST_GPUS} GPUs, known runs on fewer",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=scores(np.ones(truth.size, bool)),
        groups=[Group(group=str(m), scores=scores(names == m)) for m in np.unique(names)],
        baselines=simple,
        beside=beside,
        notes=NOTES,
    )


def halves(frame: pd.DataFrame) -> Mapping[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the runs on at most ``MOST_GPUS`` and on more of each model that can be described.

    Raises
    ------
    ModelError
        If none has both.
    """
    found = {}
    for name, rows in frame.groupby("model"):
        few, many = rows[rows.accelerators <= MOST_GPUS], rows[rows.accelerators > MOST_GPUS]
        if name in MODELS and len(few) >= LEAST_RUNS and len(many):
            found[str(name)] = (few, many)
    if not found:
        raise ModelError(
            f"no described model of {PARCAE.title} has runs on both sides of {MOST_GPUS} GPUs",
            hint=f"described are: {', '.join(MODELS)}",
        )
    return found


def asked(name: str, known: pd.DataFrame, wanted: pd.DataFrame) -> Floats:
    """Return the product's step [s] and its deviation of logarithms, shape (n, 2).

    Parameters
    ----------
    name : str
        Of ``MODELS``.
    known, wanted : DataFrame
        What the user measured, and what is asked.
    """
    work = transformer_work(MODELS[name], micro_batch=1, precision=PRECISION, setup=SETUP)
    asking = predictor()
    group = one_group(f"2x{MACHINE}", asking.catalogue)
    fleet, row = own_fleet(group, asking.catalogue, asking.fleet, per_node=1)
    job = described_job(work, name=name)
    bare = asking.case(job, fleet=fleet)
    on = on_machine(bare, row)
    runs = tuple(_noted(name, run, on) for run in known.itertuples())
    case = asking.case(replace(job, layout_runs=runs), fleet=fleet) if runs else bare
    on = on_machine(case, row)
    return np.array([_answer(case, on, layout_of(one, on)) for one in wanted.itertuples()])


def layout_of(run: object, on: OnMachine) -> Layout:
    """Return the layout of a run; recomputed where nothing fits otherwise."""
    dp, pp, micro, batch = (int(getattr(run, name)) for name in _COLUMNS)
    steps = math.ceil(batch / micro / dp - 1e-9)
    plain = Layout(dp=dp, pp=pp, micro_batch=micro, accumulation_steps=steps)
    used = float(on.problem.used_bytes(layout_columns(plain)))
    return plain if used <= on.problem.capacity_bytes else replace(plain, recompute="full")


def _noted(name: str, run: object, on: OnMachine) -> LayoutRun:
    layout = layout_of(run, on)
    return LayoutRun(
        name=name,
        transformer=MODELS[name],
        setup=SETUP,
        precision=PRECISION,
        machines=f"{layout.devices}x{MACHINE}",
        layout=layout,
        step_s=float(getattr(run, "step_s")),  # noqa: B009
    )


def _answer(case: StepCase, on: OnMachine, layout: Layout) -> tuple[float, float]:
    columns = layout_columns(layout)
    step_s = float(on.problem.times(columns).step_s)
    if case.own is None:
        return step_s, on.log_sd
    device = case.fleet.devices[int(case.fleet.device[0])]
    return step_s, case.own.log_sd(on.problem, columns, device, on.log_sd)


def _rules(few: pd.DataFrame, many: pd.DataFrame) -> dict[str, Floats]:
    """Return what simpler rules make of the larger runs [s]."""
    from scipy.spatial.distance import cdist

    known, wanted = (np.log(rows[["dp", "pp"]].to_numpy(float)) for rows in (few, many))
    seconds = few.step_s.to_numpy(float)
    design = [np.c_[np.ones(len(rows)), rows] for rows in (known, wanted)]
    slopes, *_ = np.linalg.lstsq(design[0], np.log(seconds), rcond=None)
    return {
        "linear scaling from the largest small run": _linear(few, many),
        "log-linear in dp and pp, small runs": np.exp(design[1] @ slopes),
        "nearest small run": seconds[np.argmin(cdist(wanted, known), axis=1)],
    }


def _linear(few: pd.DataFrame, many: pd.DataFrame) -> Floats:
    """Predict by perfect scaling of the largest small run of the same depth, else of any."""
    values = []
    for row in many.itertuples():
        same = few[few.pp == row.pp]
        known = (same if len(same) else few).sort_values("accelerators").iloc[-1]
        values.append(known.step_s * known.accelerators / row.accelerators)
    return np.array(values)
