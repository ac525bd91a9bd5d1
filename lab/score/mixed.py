"""The protocol ``mixed``: published steps over unlike machines, typed as a user types them.

A row is ``advisor plan --cluster 3xp3.8xlarge,1xg4dn.12xlarge`` with the model's dimensions, batch
and precision, and what Megatron's launch takes: ``--tp``, ``--pp``, ``--micro-batch``,
``--stage-layers``. What is scored is the way that shares micro-batches evenly over stages of one
width, some of which may span kinds of machine ("pipeline over groups"): the only one that such a
launch runs. The layout model never saw the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor import data as packaged
from advisor.errors import AbsentDataError, AdvisorError
from advisor.estimate.case import SPACE
from advisor.estimate.knowledge.layout_model import load
from advisor.estimate.ways.stages import NAME as ONE_WIDTH
from advisor.jobs.describe import described_job
from advisor.jobs.model_facts import restacked
from advisor.lab.data import LAYOUTS
from advisor.lab.score.asked import predictor, predictor_by
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, by
from advisor.lab.score.raw import RawColumns
from advisor.machines.cluster import Cluster, read_cluster
from advisor.planners.core.setup import DEFAULT_SETUP, Precision, Transformer
from advisor.planners.step.describe import transformer_work
from advisor.rank.given import PlanQuestion, plan

if TYPE_CHECKING:
    from advisor.estimate.predictor import Predictor

# What a table's accelerators are rented as, where its notes say so; by accelerator elsewhere.
_MACHINES: Final = {"amp_trials": {"V100": "p3.8xlarge", "T4": "g4dn.12xlarge"}}
_NAMES: Final = {"Titan-RTX": "TITAN-RTX"}
# Who trained them names it: AMP's trials, and Sailor's, are Megatron-DeepSpeed's.
_STACK: Final = {"stack": "megatron-deepspeed"}
TOLD: Final = "told the stack"
# Sailor's RTX machines: 0.71 GB in 7.2 s and 2.1 GB in 21.6 s (the table's reduce times) are
# gigabit Ethernet, which their users know.
_NETWORKS: Final = {"sailor_validation": "1Gbps"}
_LEAST_TO_RANK: Final = 3  # layouts of one job on one cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRun:
    """One published run over unlike machines."""

    table: str
    cluster: str
    transformer: Transformer
    precision: Precision
    batch: int
    tp: int
    pp: int
    micro_batch: int | None
    cut: tuple[int, ...] | None  # layers by stage; None where the table does not state them
    step_s: float
    theirs_s: float  # what the planner that made the table predicted; nan where it is not printed

    @property
    def question(self) -> str:
        """The words of ``advisor plan``, without the model's dimensions."""
        micro = "" if self.micro_batch is None else f" --micro-batch {self.micro_batch}"
        layers = "" if self.cut is None else f" --stage-layers {','.join(map(str, self.cut))}"
        return (
            f"--cluster {self.cluster} --batch {self.batch} --precision {self.precision} "
            f"--tp {self.tp} --pp {self.pp}{micro}{layers}"
        )

    @property
    def job(self) -> str:
        """What layouts are compared for: one model and batch on one cluster."""
        t = self.transformer
        return f"{self.table} {t.layers}x{t.hidden} {self.cluster} {self.batch}"


def read_mixed(data: Path) -> Questions:
    """Return the transformer runs over unlike machines: of the mirror, where none ship.

    Raises AbsentDataError if there is none.
    """
    frame = LAYOUTS.read("runs", data)
    mirror = packaged.shared()
    if not (frame.is_mixed == 1).any() and mirror is not None:
        frame = LAYOUTS.read("runs", mirror / "data")
    stated = frame[["layers", "hidden", "heads", "tp", "pp", "sequence", "global_batch"]]
    usable = (frame.is_mixed == 1) & (frame.status == "ok") & frame.step_s.notna()
    usable &= frame.arch.isin(["gpt", "llama"]) & stated.notna().all(axis=1)
    runs = [_run({str(k): v for k, v in row.items()}) for row in frame[usable].to_dict("records")]
    if not runs:
        raise AbsentDataError(
            f"no run over unlike machines in {LAYOUTS.title}",
            hint="Sailor's repository states no licence: advisor validate mixed --data COPY, "
            "laid out like shared/data",
        )
    return Questions(
        questions=[f"seconds of a step of {r.transformer.layers} layers: {r.question}"
                   for r in runs],
        truth=np.array([r.step_s for r in runs]),
        unseen=[f"layouts/{r.table}" for r in runs],
        groups=by(f"{r.table} {r.cluster}" for r in runs),
        facts=runs,
        raw=RawColumns.of(
            {"tp": [r.tp for r in runs], "pp": [r.pp for r in runs],
             "micro-batch": [r.micro_batch or 1 for r in runs], "batch": [r.batch for r in runs]},
            range(len(runs)), {"job": [r.job for r in runs]},
        ),
        notes=(f"{int((frame.is_mixed == 1).sum()) - len(runs)} rows failed or are no "
               "transformer",),
    )  # fmt: skip


def _run(row: dict[str, Any]) -> MixedRun:
    micro = row["micro_batch"]
    return MixedRun(
        table=str(row["table"]),
        cluster=_cluster(row),
        transformer=_transformer(row),
        precision="fp32" if row["precision"] == "fp32" else "fp16",
        batch=int(row["global_batch"]),
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        micro_batch=None if np.isnan(micro) else int(micro),
        cut=_cut(row),
        step_s=float(row["step_s"]),
        theirs_s=_published(str(row["notes"])),
    )


def _cluster(row: dict[str, Any]) -> str:
    """Return the machines as ``--cluster`` takes them, from ``RTX-2080:16;RTX-3090:8``."""
    named = _MACHINES.get(str(row["table"]), {})
    per_node, rate = float(row["accelerators_per_node"]), row.get(_RATE, np.nan)
    found = []
    for item in str(row["accelerator_mix"]).split(";"):
        name, _, digits = item.partition(":")
        count = int(digits)
        each = int(min(per_node, count)) if per_node > 0 else count
        if name in named:
            found.append(f"{count // each}x{named[name]}")
        else:
            told = _NETWORKS.get(str(row["table"]))
            network = f"@{told}" if told else "" if np.isnan(rate) else f"@{rate * each:g}Gbps"
            found.append(f"{count // each}x{each}x{_NAMES.get(name, name)}{network}")
    return ",".join(found)


_RATE: Final = "network_gbit_per_s_per_accelerator"


def _cut(row: dict[str, Any]) -> tuple[int, ...] | None:
    """Return a model's layers by stage, without the units that a framework counts besides."""
    if not isinstance(row["stage_layers"], str):
        return None
    counts = [int(one) for one in json.loads(row["stage_layers"])]
    besides = sum(counts) - int(row["layers"])
    before = _BEFORE.get(str(row["table"]), 0)
    if besides:
        counts[0] -= before
        counts[-1] -= besides - before
    return tuple(counts) if min(counts) > 0 else None


# Units in front of the first layer: Megatron-DeepSpeed's embedding and reordering; Sailor's.
_BEFORE: Final = {"amp_trials": 2, "sailor_validation": 1}


def _transformer(row: dict[str, Any]) -> Transformer:
    def whole(name: str) -> int | None:
        return None if np.isnan(row[name]) else int(row[name])

    names = ("kv_heads", "ffn", "vocabulary")
    more: dict[str, Any] = {name: whole(name) for name in names}
    return Transformer(
        layers=int(row["layers"]), hidden=int(row["hidden"]), heads=int(row["heads"]),
        sequence=int(row["sequence"]), is_gated=row["arch"] == "llama",
        **{name: value for name, value in more.items() if value is not None},
    )  # fmt: skip


def _published(notes: str) -> float:
    """Return AMP's own prediction, which its trials print as ``p_cost=1.2443``."""
    _, _, said = notes.partition("p_cost=")
    return float(said.split(";")[0].split()[0]) if said else np.nan


def ask_run(
    run: MixedRun, asking: Predictor, said: Mapping[str, Any] | None = None
) -> tuple[float, ...]:
    """Return the step of the way that such a launch runs, and its interval [s].

    nan where the product has no such way. ``said`` is of the training software: its flags.
    """
    setup = restacked(DEFAULT_SETUP, said or {})
    work = transformer_work(run.transformer, micro_batch=1, precision=run.precision, setup=setup)
    question = PlanQuestion(
        job=described_job(work, name=run.job, global_batch=run.batch),
        cluster=_named(run.cluster),
        space=replace(
            SPACE, tp=run.tp, pp=run.pp, micro_batch=run.micro_batch, stage_layers=run.cut
        ),
        predictor=asking,
    )
    try:
        ways = [way for way in plan(question).plans if way.name == ONE_WIDTH and way.commands]
    except AdvisorError:
        ways = []
    if not ways:
        return (np.nan,) * 3
    step = ways[0].step_time_s
    return step.value, step.low, step.high


def _named(cluster: str) -> Cluster:
    return read_cluster(cluster, predictor().catalogue)


def _mixed_answers(rows: Questions) -> Answers:
    plain, told = _asked(rows, {}), _asked(rows, _STACK)
    figures = told.scores(rows.truth).named(f"{TOLD}, ", "MAPE", "median APE", "coverage")
    return replace(plain, others={TOLD: told}, figures=figures | _ranks(rows, told, f"{TOLD}, "))


def _asked(rows: Questions, said: Mapping[str, Any]) -> Answers:
    model = load()
    found = np.full((3, len(rows.facts)), np.nan)
    for table in dict.fromkeys(run.table for run in rows.facts):
        asking = predictor_by(model.left_out(table, table))
        for i, run in enumerate(rows.facts):
            if run.table == table:
                found[:, i] = ask_run(run, asking, said)
    return Answers(value=found[0], low=found[1], high=found[2])


def _mixed_figures(rows: Questions, answers: Answers) -> dict[str, float]:
    unanswered = float(np.isnan(answers.value).sum())
    return {"rows without an answer": unanswered, **_ranks(rows, answers)}


def _ranks(rows: Questions, answers: Answers, of: str = "") -> dict[str, float]:
    """Return rank correlation and regret where several layouts of one job were measured."""
    from scipy.stats import spearmanr

    figures: dict[str, float] = {}
    ranks, regrets = [], []
    for mask in by(run.job for run in rows.facts).values():
        here = mask & np.isfinite(answers.value)
        if here.sum() < _LEAST_TO_RANK:
            continue
        said, truth = answers.value[here], rows.truth[here]
        ranks.append(float(spearmanr(said, truth).statistic))
        regrets.append(float(truth[np.argmin(said)] / truth.min() - 1.0))
    if ranks:
        figures[f"{of}rank correlation of a job's layouts, mean"] = float(np.mean(ranks))
        figures[f"{of}regret of the layout chosen, mean"] = float(np.mean(regrets))
    return figures


def _amp_itself(rows: Questions, _answered: Bools) -> Floats:
    return np.array([run.theirs_s for run in rows.facts])


MIXED: Final = Protocol(
    name="mixed",
    description="steps over unlike machines, tp, pp and micro-batch told, the table left out",
    senses={"*rank correlation*": "higher"},
    rows=read_mixed,
    answer=_mixed_answers,
    scores="the way of `advisor plan` that shares micro-batches evenly over stages of one width",
    seen=("what a T4's host passes between two cards: read off the catalogue's machines",),
    baselines={"AMP itself": _amp_itself},
    figures=_mixed_figures,
    notes=(
        "a cluster whose network nobody states is asked so",
        "AMP's mixed trials and most of Sailor's were taken out of the measurements at hand: five "
        "rows of one source are left, and a figure on five rows says little",
    ),
)
