"""Protocols of transformers on given machines: ``finetune``, ``blackwell``, ``pipeline``.

- ``finetune``: IBM's fine-tuning runs, asked by model, batch, GPUs and what is trained
  (``--finetune``, ``--lora``); beside it, told the layout that ran. Constants are fitted on
  published layouts and on the runs of the other models (or accelerators), and intervals are those
  of the other tables.
- ``blackwell``: Megatron on eight B200s, by constants fitted without this table; after three rows
  (smallest, middle and largest by step) as after a user's own runs (``advisor runs actual``).
- ``pipeline``: Parcae's dp x pp on V100s at 10 Gb/s. Runs on few GPUs are noted as ``advisor runs
  actual --model ... --cluster ...`` notes them; the larger are asked in the layout that ran. Where
  the model fits no GPU otherwise, it recomputes: nobody says so, the product decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.estimate.knowledge.layout_model import load
from advisor.estimate.predictor import Predictor
from advisor.estimate.ways.model_parallel import OnMachine, on_machine
from advisor.jobs.describe import described_job
from advisor.jobs.runs import LayoutRun
from advisor.lab.data import PARCAE
from advisor.lab.fit import asked as blackwell_rows
from advisor.lab.fit import asked as finetune_rows
from advisor.lab.fit.asked import AskedRun, columns_of
from advisor.lab.fit.without import Hidden, Known
from advisor.lab.score import baselines
from advisor.lab.score.asked import RunAnswers, ask, ask_plainly, own_runs, predictor, predictor_by
from advisor.lab.score.blind import Refit, Rows, predictor_with
from advisor.lab.score.harness import Answers, Floats, Protocol, Questions, by
from advisor.lab.score.layouts import asked_after, calibrated, errors_by_size
from advisor.lab.score.raw import RawColumns
from advisor.lab.score.scores import Group, Scores, score
from advisor.machines.cluster import one_group
from advisor.machines.fleet import own_fleet
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Precision, TrainingSetup, Transformer
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.step.describe import transformer_work

if TYPE_CHECKING:
    import pandas as pd

    from advisor.estimate.case import StepCase

_PRIORS: Final = "the centres and widths of the layout model's priors: chosen on other tables"


def _asked_rows(runs: list[AskedRun], unseen: list[str], **more: Any) -> Questions:
    return Questions(
        questions=[
            f"seconds of a step of {r.row_id} on {r.layout.devices} x {r.gpu}, by flags"
            for r in runs
        ],
        truth=np.array([r.measured_s for r in runs]),
        unseen=unseen,
        **more,
    )


# finetune


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    runs: list[AskedRun]
    left_out: int


def read_finetune(data: Path) -> Questions:
    """Return the fine-tuning runs, grouped by the model that is left out."""
    runs, left_out = finetune_rows.finetune_rows_read(data)
    return _asked_rows(
        runs,
        [finetune_rows.fold("model", r.model) for r in runs],
        groups=by((r.model for r in runs), prefix="model ", is_sorted=False),
        facts=_Runs(runs=runs, left_out=left_out),
        raw=baselines.layout_columns(columns_of(runs), [r.model for r in runs]),
    )


Asking = Callable[[Predictor, Sequence[AskedRun]], RunAnswers]


def _without(runs: list[AskedRun], kind: str, asking: Asking) -> Answers:
    """Ask every run with constants that never saw its model or accelerator."""
    names, model = [getattr(r, kind) for r in runs], load()
    found = np.full((3, len(runs)), np.nan)
    for name, mask in by(names, is_sorted=False).items():
        here = np.flatnonzero(mask)
        known = model.left_out(finetune_rows.fold(kind, name), finetune_rows.FINETUNE_ROWS_TABLE)
        said = asking(predictor_by(known), [runs[i] for i in here])
        found[:, here] = said.step_s, said.low_s, said.high_s
    return Answers(value=found[0], low=found[1], high=found[2])


def _finetune_answers(rows: Questions) -> Answers:
    runs = rows.facts.runs
    by_model, by_gpu = (_without(runs, kind, ask_plainly) for kind in ("model", "gpu"))
    told = _without(runs, "model", ask)
    whole = np.array([not r.setup.has_adapters for r in runs])
    # The accelerators come after the models: groups of other answers to the same questions.
    groups = [
        Group(group=f"accelerator {name}", scores=by_gpu.scores(rows.truth, mask))
        for name, mask in by((r.gpu for r in runs), is_sorted=False).items()
        if (mask & np.isfinite(by_gpu.value)).any()
    ]
    return replace(
        by_model,
        groups=groups,
        others={"told the layout": told},
        figures=_of("model left out, full fine-tuning", by_model.scores(rows.truth, whole))
        | _of("accelerator left out, all", by_gpu.scores(rows.truth))
        | _of("told the layout, model left out", told.scores(rows.truth))
        | errors_by_size(columns_of(runs), by_model, rows.truth, np.ones(len(runs), bool))
        | {
            "refused as not fitting although they ran": float(np.isnan(by_model.value).sum()),
            "told the layout: refused": float(np.isnan(told.value).sum()),
            "runs left out": float(rows.facts.left_out),
        },
    )


def _models(rows: Questions) -> list[Hidden]:
    return [Hidden(models=frozenset([run.model])) for run in rows.facts.runs]


def _ask_finetune_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    """Ask plainly; widths are of the other tables' errors alone, as in the figures."""
    layout = known.constants.layout.left_out("", finetune_rows.FINETUNE_ROWS_TABLE)
    without = replace(known, constants=replace(known.constants, layout=layout))
    return _said_by(without, [rows.facts.runs[i] for i in here], ask_plainly)


def _said_by(known: Known, runs: Sequence[AskedRun], asking: Asking) -> Answers:
    said = asking(predictor_with(known), runs)
    return Answers(value=said.step_s, low=said.low_s, high=said.high_s)


def _of(name: str, scores: Scores) -> dict[str, float]:
    return {
        f"{name}: MAPE": scores.mape_fraction,
        f"{name}: median error": scores.median_ape_fraction,
        f"{name}: coverage of 90 %": scores.coverage or 0.0,
    }


_EAGER: Final = "the form of the eager stack's terms, and what its defaults are taken to be"
FINETUNE: Final = Protocol(
    name="finetune",
    description="steps of fine-tuning runs on Hugging Face's trainer, the model left out",
    senses={"*refused*": "fewer", "runs left out": "fewer"},
    rows=read_finetune,
    answer=_finetune_answers,
    seen=(_EAGER, _PRIORS),
    blind=Refit(hidden=_models, ask=_ask_finetune_blind, still_seen=(_EAGER, _PRIORS)),
    baselines={
        "constant efficiency of the other models": lambda rows, _: (
            baselines.efficiency_of_other_models(columns_of(rows.facts.runs))
        )
    },
    notes=(
        "asked by model, batch, GPUs, and that the whole model or adapters are fine-tuned: the "
        "layout is what the Trainer does by default. Told the layout: micro-batch, sharding and "
        "recomputation of the run, read off the stack's defaults (lab/fit/asked.py)",
        "the form of the eager stack's terms was chosen with these rows in sight",
        "a run that does not fit by the product's memory rule has no answer: counted, not scored",
    ),
)


# blackwell


def read_blackwell(data: Path) -> Questions:
    """Return SimuMax's steps on eight B200s; what each allocated is protocol ``memory``'s."""
    runs, _, left_out = blackwell_rows.read(data)
    facts = _Runs(runs=runs, left_out=left_out)
    return _asked_rows(runs, [f"layouts/{blackwell_rows.TABLE}"] * len(runs), facts=facts)


def _blackwell_answers(rows: Questions) -> Answers:
    facts: _Runs = rows.facts
    model, table = load(), columns_of(facts.runs)
    blind = model.left_out(blackwell_rows.TABLE, blackwell_rows.TABLE)
    said = ask(predictor_by(blind), facts.runs)
    order = np.argsort(rows.truth, kind="stable")
    known = order[[0, order.size // 2, -1]]
    rest = np.setdiff1d(np.arange(order.size), known)
    asked = own_runs(facts.runs, blind)
    own = calibrated([asked[i] for i in known], model)
    after = np.array([asked_after(asked[i], own)[0] for i in rest])
    bound = baselines.bound_s(table)
    efficiency = np.exp(np.mean(np.log(rows.truth[known] / bound[known])))
    return Answers(
        value=said.step_s,
        low=said.low_s,
        high=said.high_s,
        groups=[Group(group="step after three rows", scores=score(after, rows.truth[rest]))],
        others={
            "one efficiency from three rows": Answers(
                value=efficiency * bound[rest], rows=rest, ours=after
            )
        },
        figures={"rows with latent attention, not asked": float(facts.left_out)},
    )


_BLACKWELL_SEEN: Final = (
    "how Megatron keeps rotated queries and logits: counted from its source with these readings "
    "in sight",
    "what power leaves of 16-bit products: operators 16,384 wide, timed on that machine",
    _PRIORS,
)


def _ask_blackwell_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    return _said_by(known, [rows.facts.runs[i] for i in here], ask)


BLACKWELL: Final = Protocol(
    name="blackwell",
    description="Megatron steps on eight B200s, the table left out",
    senses={"rows with latent*": "neutral"},
    rows=read_blackwell,
    answer=_blackwell_answers,
    seen=_BLACKWELL_SEEN,
    blind=Refit(
        hidden=lambda rows: [Hidden(tables=frozenset([blackwell_rows.TABLE]))] * rows.truth.size,
        ask=_ask_blackwell_blind,
        still_seen=_BLACKWELL_SEEN,
    ),
    notes=(
        "constants are fitted without this table; how Megatron keeps rotated queries and "
        "logits was counted from its source with these readings in sight",
        "three rows: the shortest, the middle and the longest step are a user's own runs "
        "(advisor runs actual), the others are scored",
        "SimuMax measured this machine's operators first; its figures are its own",
    ),
)


# pipeline

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
Halves = Mapping[str, tuple["pd.DataFrame", "pd.DataFrame"]]


def halves(frame: pd.DataFrame) -> Halves:
    """Return the runs on at most ``MOST_GPUS`` and on more of each model that can be described.

    Raises ModelError if none has both.
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


def read_pipeline(data: Path) -> Questions:
    """Return Parcae's runs on more GPUs, those on fewer known."""
    cut = halves(PARCAE.read("steps", data))
    names = [name for name, (_, many) in cut.items() for _ in range(len(many))]
    larger = [row for _, many in cut.values() for row in many.itertuples()]
    return Questions(
        questions=[
            f"seconds of a step of {name} on {row.accelerators} x {MACHINE}, dp {row.dp}, "
            f"pp {row.pp}, known its runs on at most {MOST_GPUS}"
            for name, row in zip(names, larger, strict=True)
        ],
        truth=np.concatenate([many.step_s.to_numpy(float) for _, many in cut.values()]),
        unseen=[f"{name} on more than {MOST_GPUS} GPUs" for name in names],
        groups=by(names),
        facts=cut,
        raw=_pipeline_columns(cut),
    )


def _pipeline_columns(cut: Halves) -> RawColumns:
    """Return layouts of the larger runs, and behind them of the smaller, which are known."""
    import pandas as pd

    many, few = (
        pd.concat([halves[k].assign(of=name) for name, halves in cut.items()]) for k in (1, 0)
    )
    every = pd.concat([many, few])
    amounts = {name: every[name] for name in ("accelerators", *_COLUMNS)}
    return RawColumns.of(
        amounts, ["larger"] * len(every), {"model": every["of"]}, few.step_s.to_numpy(float)
    )


def asked(name: str, known: pd.DataFrame, wanted: pd.DataFrame) -> Floats:
    """Return the product's step [s] and its deviation of logarithms, shape (n, 2).

    ``known`` is what the user measured of the model of ``MODELS``, ``wanted`` what is asked.
    """
    work = transformer_work(MODELS[name], micro_batch=1, precision=PRECISION, setup=SETUP)
    asking = predictor()
    group = one_group(f"2x{MACHINE}", asking.catalogue)
    fleet, row = own_fleet(group, asking.fleet, per_node=1)
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
    used = float(on.problem.needed_bytes(layout_columns(plain)))
    return plain if used <= on.problem.capacity_bytes else replace(plain, recompute="full")


def _noted(name: str, run: object, on: OnMachine) -> LayoutRun:
    layout = layout_of(run, on)
    return LayoutRun(
        name=name, transformer=MODELS[name], setup=SETUP, precision=PRECISION,
        machines=f"{layout.devices}x{MACHINE}", layout=layout,
        step_s=float(getattr(run, "step_s")),  # noqa: B009
    )  # fmt: skip


def _answer(case: StepCase, on: OnMachine, layout: Layout) -> tuple[float, float]:
    columns = layout_columns(layout)
    step_s = float(on.problem.times(columns).step_s)
    if case.own is None:
        return step_s, on.law.log_sd
    device = case.fleet.devices[int(case.fleet.device[0])]
    return step_s, case.own.log_sd(on.problem, columns, device, on.law.log_sd)


def _pipeline_answers(rows: Questions) -> Answers:
    cut: Halves = rows.facts
    said = np.concatenate([asked(name, *both) for name, both in cut.items()])
    bare = [asked(name, few.iloc[:0], many)[:, 0] for name, (few, many) in cut.items()]
    return Answers.spread(said[:, 0], said[:, 1], others={"no runs": np.concatenate(bare)})


PIPELINE: Final = Protocol(
    name="pipeline",
    description=f"step of a transformer on more than {MOST_GPUS} GPUs, known runs on fewer",
    rows=read_pipeline,
    answer=_pipeline_answers,
    seen=(
        "how far a user's network may be from the published ones (ways.own_layouts): the prior's "
        "width of its efficiency, looked at on these rows",
        "the sequence of bert, by the size of its embedding",
    ),
    baselines={
        "linear scaling from the largest small run": baselines.from_small_runs("linear"),
        "log-linear in dp and pp, small runs": baselines.from_small_runs("log-linear"),
        "nearest small run": baselines.from_small_runs("nearest"),
    },
    notes=(
        f"runs on at most {MOST_GPUS} GPUs are known, the rest is scored; in the layout that ran",
        "six runs of bert on 18 and 20 GPUs, next to one another in the table, took up to twice "
        "as long as their neighbours: no function of the layout",
        "left out: resnet152, whose dimensions no flag says",
    ),
)
