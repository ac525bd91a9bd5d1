"""Protocols of whole runs: ``own``, ``thesis``, ``ranking``, ``campaigns``.

- ``own``: our own runs of seconds; every program in turn, every instance type, and both at once
  are left out; the job is known by its partial run on the anchor. The predictor is of the kind
  that ships (``advisor train models``): physics, a learned correction, physics alone outside what
  was seen. Runs that the collector calls noisy are neither fitted nor scored.
- ``thesis``: time and cost on a random fifth, as the Nazari thesis judged them: siblings of the
  scored runs are fitted, which flatters. Its estimators are the baselines. The thesis's losses are
  in its own units, hours and dollars with means of about 2.5 and 5.5; ours are given in units of
  the same means.
- ``ranking``: of each job one run is known (on the configuration that is best on average over the
  other families; trainpred: on g5); what ``advisor runs choose`` says is tried in its order until
  a run completes. Failures are paid for, by every rule, that of the known run too.
- ``campaigns``: device-hours of published training runs, each described, on the machines that it
  had, in the best layout that the search finds there; what a whole run adds, and its spread, come
  from the law fitted on the other families, form and spread included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from advisor import data as packaged
from advisor.collectors import bounded
from advisor.errors import ModelError
from advisor.estimate.predictor import Predictor
from advisor.lab.data import CAMPAIGNS, IBM, SCOUT, TRAINPRED
from advisor.lab.data.campaigns import read_campaigns, read_packaged
from advisor.lab.fit.campaigns import (
    COVERAGE,
    CampaignAnswer,
    CampaignColumns,
    answers,
    beyond_rate,
    columns,
    fit,
)
from advisor.lab.fit.without import Hidden, Known
from advisor.lab.learned.sequence import SequenceNetwork
from advisor.lab.score.blind import BY_HAND, Refit, Rows, predictor_with
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, by
from advisor.lab.score.raw import RawColumns
from advisor.learned import features
from advisor.learned.base import RunRegressor
from advisor.learned.choose import (
    Runs,
    anchor_of,
    chosen_ratio,
    in_order,
    matrices,
    penalty_for,
    scores,
    too_small,
)
from advisor.learned.evaluation import Metrics, SplitScores, evaluate, metrics
from advisor.learned.features import SEQUENCE_CHANNELS, SEQUENCE_READINGS
from advisor.learned.guarded import Guarded
from advisor.learned.linear import Poisson, Ridge
from advisor.learned.problem import Problem, problem_of
from advisor.learned.regrets import cell, constant_answer
from advisor.learned.splits import SplitName, left_out
from advisor.learned.stack import Stack
from advisor.learned.trees import Boosting, Forest
from advisor.quantities import QUANTILES
from advisor.records import RunRecord
from advisor.train.labelled import read_runs
from advisor.train.models import predictor

_SPLITS: Final[tuple[SplitName, ...]] = ("job", "instance", "both")
_MOST_FOLDS: Final = 24  # of pairs of program and instance type: each fold fits everything anew


# own


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedRuns:
    """Labelled runs as a problem, and which of them are scored."""

    asked: Problem
    tested: Bools
    # job -> share of it -> mean step on the anchor [s], where longer shares were recorded
    steps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def own_folder(data: Path, name: str = "runs") -> Path:
    """Return the folder of our runs of seconds or ``minutes``: under ``data``, else packaged."""
    there = data / name
    return there if there.is_dir() else packaged.root("datasets") / name


def read_own(data: Path, name: str = "runs") -> list[RunRecord]:
    """Return the runs of that folder."""
    return read_runs([own_folder(data, name)])


def rows_of_runs(asked: Problem, tested: Bools) -> Questions:
    records = asked.records
    families = [r.job.family if is_tested else "" for r, is_tested in
                zip(records, tested, strict=True)]  # fmt: skip
    truth = np.where(tested & ~asked.is_censored, asked.truth, np.nan)
    return Questions(
        questions=[f"{r.job.job_id} on {r.instance_key}, after its partial run" for r in records],
        truth=truth,
        unseen=[f"runs of {r.job.family}" for r in records],
        groups={name: mask for name, mask in by(families).items() if name},
        facts=TestedRuns(asked=asked, tested=tested),
        raw=RawColumns(x=np.nan_to_num(asked.X), fold=asked.groups.tolist()),
    )


def _read_seconds(data: Path) -> Questions:
    asked = problem_of(read_own(data))
    return rows_of_runs(asked, np.ones(len(asked.records), bool))


def by_configuration(rows: Questions, answered: Bools) -> Floats:
    """Return physics times the median ratio of other programs' runs on the same configuration."""
    asked: Problem = rows.facts.asked
    cells = np.array([cell(record) for record in asked.records])
    ratio = np.log(asked.truth) - asked.offset
    found = np.full(rows.truth.size, np.nan)
    for i in np.flatnonzero(answered):
        others = (asked.groups != asked.groups[i]) & ~asked.is_censored
        here = others & (cells == cells[i])
        found[i] = asked.offset[i] + np.median(ratio[here if here.any() else others])
    return np.asarray(np.exp(found), float)


CONFIGURATION: Final = {"physics x the configuration's median ratio": by_configuration}


def shipped_choice() -> str:
    """Return the estimator that answers in the product: the stack, or one of its members."""
    metrics_file = packaged.root("trained_models") / "runs" / "metrics.json"
    return str(bounded.read_json(metrics_file)["chosen"])


def as_shipped(chosen: str) -> Guarded:
    """Return an unfitted predictor of the kind that ships, with that estimator."""
    guarded: Guarded = predictor(chosen, channels=0, folds=5)
    return guarded


def placed(split: SplitScores, rows: Questions, values: Floats) -> Floats:
    """Return a split's values in the order of the rows, nan where it has none."""
    found = np.full(rows.truth.size, np.nan)
    found[split.rows] = values
    return found


def split_answers(split: SplitScores, rows: Questions, **more: Any) -> Answers:
    """Return a split's values, and its bounds where it has some, as answers to the rows."""
    value, low, high = placed(split, rows, split.predicted), None, None
    if split.bounds is not None:
        low, high = (placed(split, rows, split.bounds[:, k]) for k in (0, 1))
    return Answers(value=value, low=low, high=high, **more)


def _beside(split: SplitScores, rows: Questions) -> dict[str, Floats | Answers]:
    """Return what simpler models say, and the thesis's kind of network."""
    simple = {name: placed(split, rows, values) for name, values in split.simple.items()}
    return {**simple, "sequence network": _network(rows)}


def _network(rows: Questions) -> Floats:
    """Return what the thesis's kind of network says, the series among its inputs."""
    asked = rows.facts.asked
    seen = problem_of(asked.records, asked.target, has_series=True)

    found = evaluate(
        seen, partial(network_of, seen), "job", has_intervals=False, tested=rows.facts.tested
    )
    return placed(found, rows, found.predicted)


def network_of(seen: Problem) -> SequenceNetwork:
    """Return an unfitted network for a problem with series."""
    return SequenceNetwork(channels=seen.channels, readings=SEQUENCE_READINGS, calibration_folds=0)


def _own_answers(rows: Questions) -> Answers:
    asked = rows.facts.asked
    build = partial(as_shipped, shipped_choice())
    splits = [evaluate(asked, build, name, most_folds=_MOST_FOLDS) for name in _SPLITS]
    figures = {key: value for split in splits for key, value in _split_figures(split).items()}
    job = splits[0]
    return split_answers(
        job, rows, others=_beside(job, rows),
        figures=figures | _steady(asked, job) | costs(asked, job, build),
    )  # fmt: skip


def _split_figures(split: SplitScores) -> dict[str, float]:
    found = {
        "mape_fraction": split.overall.mape_fraction,
        "median_ape_fraction": split.overall.median_ape_fraction,
        "coverage": split.overall.coverage or 0.0,
        "width": split.overall.width or 0.0,
    }
    if (regret := split.top1_regret) is not None:
        found |= {
            "top1_regret": regret.top1,
            "constant_regret": regret.constant,
            "random_regret": regret.random,
        }
    return {f"{split.name}_{name}": value for name, value in found.items()}


def costs(
    asked: Problem, split: SplitScores, build: Callable[[], Guarded], tested: Bools | None = None
) -> dict[str, float]:
    """Return the errors of the cost, billed for the predicted time and predicted directly."""
    of_cost = problem_of(asked.records, "cost_over_anchor")
    if tested is not None:
        scored = {record.record_id for record, is_one in zip(asked.records, tested, strict=True)
                  if is_one}  # fmt: skip
        tested = np.array([r.record_id in scored for r in of_cost.records])
    direct = evaluate(of_cost, build, "job", tested=tested).overall
    records = [asked.records[i] for i in split.rows]
    priced = np.array([bool(r.cost_usd) and r.status == "ok" for r in records])
    hourly = np.array([(r.price_usd_per_h or 0.0) / 3600.0 for r in records])
    truth = np.array([r.cost_usd or 0.0 for r in records])
    billed = metrics((split.predicted * hourly)[priced], truth[priced])
    return {
        f"cost_{how}_{name}": float(getattr(found, name))
        for how, found in (("billed", billed), ("direct", direct))
        for name in ("rows", "mape_fraction", "median_ape_fraction", "rmse", "r2")
    } | {"cost_direct_coverage": direct.coverage or 0.0}


def _steady(asked: Problem, split: SplitScores) -> dict[str, float]:
    """Return the error of runs of one thread, and what it would be on a machine without moods."""
    ratio = np.array([asked.records[i].facts.get("cpu_ratio", np.nan) for i in split.rows], float)
    known = np.isfinite(ratio) & ~asked.is_censored[split.rows]
    if not known.any():
        return {}
    predicted, truth = split.predicted[known], asked.truth[split.rows][known]
    return {
        "one_thread_mape_fraction": metrics(predicted, truth).mape_fraction,
        "one_thread_steady_mape_fraction": metrics(predicted * ratio[known], truth).mape_fraction,
        "one_thread_drift_mape_fraction": metrics(
            np.ones(int(known.sum())), ratio[known]
        ).mape_fraction,
    }


OWN: Final = Protocol(
    name="own",
    description="Time of our own runs, each program left out in turn.",
    senses={"*_constant_regret": "neutral", "*_random_regret": "neutral"},
    rows=_read_seconds,
    answer=_own_answers,
    baselines=CONFIGURATION,
    scores=lambda _: (
        f"what recommend asks where it covers a job: physics corrected by guarded "
        f"{shipped_choice()} (trained_models/runs), fitted anew for each split"
    ),
    seen=(
        "features, members and sizes of the estimators: chosen on these runs; the weights of "
        "members are fitted without the left-out group",
    ),
    notes=(
        "the machine is not equally fast all the time: 'steady' is what the error of runs of "
        "one thread would be had a step taken the CPU time that it took in the partial run",
        "the sequence network does not ship: in 94 % of the partial runs, of 0.8 s of CPU "
        "time, nothing was sent, and what their series say is in the trees' features",
        "cost: as billed for the predicted time, and as a model of the cost itself has it "
        "(trained_models/runs_cost), on the same rows",
    ),
)


# thesis

Kind = Literal["time", "cost"]
_MEANS: Final[dict[Kind, float]] = {"time": 2.5, "cost": 5.5}  # h and USD, implied by the thesis
# The thesis's own validation R2 (systems.md 1.1): best of its table.
_THESIS_R2: Final[dict[Kind, float]] = {"time": 0.9961, "cost": 0.9904}
_COURSE: Final[dict[str, Any]] = {
    "channels": len(SEQUENCE_CHANNELS), "readings": SEQUENCE_READINGS,
}  # fmt: skip


def _read_thesis(data: Path) -> Questions:
    """Return the first random split of ``advisor evaluate``.

    One run has no cost: every estimator is scored on the others, whatever it predicts.
    """
    asked = problem_of([r for r in read_own(data) if r.cost_usd])
    _, _, test = next(left_out(asked.records, "random"))
    tested = np.zeros(len(asked.records), bool)
    tested[test] = True
    rows = rows_of_runs(asked, tested)
    # This protocol scores runs that were cut short, too.
    return replace(rows, truth=np.where(tested, asked.truth, np.nan), groups={}, raw=None)


def _estimators(kind: Kind) -> dict[str, Callable[[], RunRegressor]]:
    quiet: dict[str, Any] = {"calibration_folds": 0}
    return {
        "linear": lambda: Ridge(**quiet) if kind == "cost" else Poisson(**quiet),
        "forest": lambda: Forest(trees=200, **quiet),
        "boosting": lambda: Boosting(**quiet),
        "network": lambda: SequenceNetwork.thesis(kind, **_COURSE, **quiet),
        "our network": lambda: SequenceNetwork(**_COURSE, **quiet),
        "stack": lambda: Stack(
            (
                ("ridge", Ridge()),
                ("forest", Forest(trees=100)),
                ("boosting", Boosting(rounds=300)),
            ),
            folds=5,
            static_columns=len(features.FEATURES),
            **quiet,
        ),
    }


def _thesis_answers(rows: Questions) -> Answers:
    """Answer as what ships does: physics with a learned correction, cost as time by price."""
    asked = rows.facts.asked
    figures: dict[str, float] = {}
    others: dict[str, Floats] = {}
    test = np.flatnonzero(rows.facts.tested)
    kinds: tuple[Kind, ...] = ("time", "cost")
    for kind in kinds:
        target = problem_of(asked.records, kind, has_series=True)
        for name, build in _estimators(kind).items():
            said = _estimated(target, build(), name, kind, rows.facts.tested)
            figures |= _judged(kind, name, metrics(said, target.truth[test]))
            if kind == "time":
                others[name] = np.full(rows.truth.size, np.nan)
                others[name][test] = said
    found = best_of_all(rows)
    cost = np.array([r.cost_usd or np.nan for r in asked.records])[found.rows]
    truth, name = asked.truth[found.rows], "physics + correction"
    priced = found.predicted * cost / truth  # the price per second is known
    figures |= _judged("time", name, metrics(found.predicted, truth))
    figures |= _judged("cost", name, metrics(priced, cost))
    figures |= {f"thesis_{k}_r2": r2 for k, r2 in _THESIS_R2.items()}
    return split_answers(found, rows, others=others, figures=figures)


def best_of_all(rows: Questions) -> SplitScores:
    """Return what the best estimator says of the random split, chosen inside the fit."""
    return evaluate(
        rows.facts.asked, lambda: predictor("auto", channels=0, folds=5), "random",
        has_intervals=False, most_folds=1,
    )  # fmt: skip


def _judged(kind: str, name: str, found: Metrics) -> dict[str, float]:
    unit = "s" if kind == "time" else "usd"
    r2 = float("nan") if found.r2 is None else found.r2
    return {f"{name}_{kind}_r2": round(r2, 4), f"{name}_{kind}_rmse_{unit}": found.rmse}


def _estimated(
    asked: Problem, model: RunRegressor, name: str, kind: Kind, tested: Bools
) -> Floats:
    """Fit on the target itself in the thesis's unit, and answer in ours."""
    train, test = np.flatnonzero(~tested), np.flatnonzero(tested)
    unit = float(np.mean(asked.truth[train])) / _MEANS[kind]
    has_series = "network" in name or name == "stack"
    told = asked.X if has_series else asked.X[:, : len(features.FEATURES)]
    groups = asked.groups[train] if name != "our network" else np.arange(len(train))
    model.fit(told[train], asked.truth[train] / unit, groups=groups)
    said = unit * model.predict(told[test])
    return np.maximum(said, 1e-3 * float(np.min(asked.truth[train])))


THESIS: Final = Protocol(
    name="thesis",
    description="Time of a random fifth of our runs; R2 and RMSE of time and cost.",
    senses={
        "physics + correction_*_r2": "higher",
        "physics + correction_*_rmse*": "lower",
        "*": "neutral",
    },
    rows=_read_thesis,
    answer=_thesis_answers,
    fitted_on=(
        "siblings of every scored run: the split is random; with programs left out it is `own`",
    ),
    seen=(
        "a random split: siblings of every scored run are fitted",
        "sizes of our own estimators: chosen on these runs",
    ),
    notes=(
        "a random split leaves siblings in training: see protocol own for unseen jobs",
        "no interval: the thesis's estimators have none",
    ),
)


# ranking

# Table, and the instance of the one run that is known where it is not the best on average.
_COLLECTIONS: Final = (
    (SCOUT, "jobs", None), (IBM, "jobs", None), (TRAINPRED, "epochs", "g5.xlarge"),
)  # fmt: skip
_LEAST_CHOICES: Final = 2
OURS: Final = "ours"
CONSTANT: Final = "always the same"
RULE: Final = "always the same, at least twice as large after a failure"
RANDOM: Final = "at random"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A job of a collection: what is known of it, and of those of other families."""

    collection: str
    name: str
    matrices: Any  # of ``learned.choose``
    job: int
    others: Any
    first: int
    is_told: bool  # which run is known, by the collection and not by what is best on average
    penalty: float | None

    def paid(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return cost over the least cost by rule: as paid, and had failures been known."""
        runs, spent, _, cells = self.matrices
        known = runs.seen_by(self.job, np.arange(len(cells)) == self.first)
        answer = scores(known, self.job, self.others, self.penalty)
        usual = constant_answer(runs.ratios[self.others])
        if not self.is_told and not np.isfinite(runs.prices[self.job, self.first]):
            answer[self.first] = -np.inf  # the known run has failed: everybody has paid for it
        return {
            OURS: walked_ratio(runs, self.job, answer, spent, has_growth=True),
            CONSTANT: walked_ratio(runs, self.job, usual, spent),
            RULE: walked_ratio(runs, self.job, usual, spent, has_growth=True),
            RANDOM: random_ratio(runs, self.job, spent),
        }, {
            OURS: chosen_ratio(runs, self.job, answer),
            CONSTANT: chosen_ratio(runs, self.job, usual),
            RULE: chosen_ratio(runs, self.job, usual),
            RANDOM: float(np.nanmean(runs.ratios[self.job])),
        }


def read_ranking(data: Path) -> Questions:
    """Return every choice of the collections that are there; the truth is the best cost, 1."""
    found: list[KnownJob] = []
    for collection, table, anchor in _COLLECTIONS:
        if collection.is_in(data):
            found += choices(collection.name, collection.read_runs(table, data), anchor)
    if not found:
        raise ModelError(f"none of the collections is in {data}", hint="see shared/data")
    names = [f"{c.collection} {c.name}" for c in found]
    return Questions(
        questions=[f"the cheapest configuration of {name}, known one run" for name in names],
        truth=np.ones(len(found)),
        unseen=[f"other runs of {c.name}, and runs of its family" for c in found],
        groups={name: np.arange(len(names)) == i for i, name in enumerate(names)},
        facts=found,
    )


def choices(name: str, records: Sequence[RunRecord], anchor: str | None = None) -> list[KnownJob]:
    """Return a choice for every job, its family left out; ``anchor`` has its one run."""
    runs, spent, jobs, cells = matrices(records)
    found = []
    penalties: dict[str, float | None] = {}
    for job in range(len(jobs)):
        others = np.flatnonzero(runs.families != runs.families[job])
        family = str(runs.families[job])
        if family not in penalties:
            penalties[family] = penalty_for(runs, others)
        first = anchor_of(runs, job, others) if anchor is None else _place(cells, anchor)
        if np.isfinite(runs.prices[job]).sum() >= _LEAST_CHOICES and runs.has_run[job, first]:
            found.append(
                KnownJob(
                    collection=name, name=str(jobs[job]), matrices=(runs, spent, jobs, cells),
                    job=job, others=others, first=first, is_told=anchor is not None,
                    penalty=penalties[family],
                )
            )  # fmt: skip
    return found


def _place(cells: Sequence[str], instance: str) -> int:
    return next(i for i, name in enumerate(cells) if f"/{instance}x" in name)


def _ranking_answers(rows: Questions) -> Answers:
    both = [choice.paid() for choice in rows.facts]
    figures: dict[str, list[float]] = {}
    for choice, (paid, free) in zip(rows.facts, both, strict=True):
        for rule in paid:
            label = f"{choice.collection}, {rule}: cost over best"
            figures.setdefault(label, []).append(paid[rule])
            figures.setdefault(f"{label}, had failures been known", []).append(free[rule])
    ratios = {
        rule: np.round([p[rule] for p, _ in both], 6) for rule in (OURS, CONSTANT, RULE, RANDOM)
    }
    return Answers(
        value=ratios.pop(OURS),
        others=ratios,
        figures={label: float(np.mean(found)) for label, found in figures.items()},
    )


RANKING: Final = Protocol(
    name="ranking",
    description="Cost of the choice over the best cost; MAPE is regret - 1.",
    senses={"*, ours: cost over best*": "lower", "*": "neutral"},
    rows=read_ranking,
    answer=_ranking_answers,
    seen=(
        "the form of the regression, and the gain below which the constant answer stays",
        "candidates of its penalty; which of them is chosen on the other jobs",
        "that the next try after a failure costs more than twice as much: doubling, of 1.5 to 4 "
        "times",
    ),
    by_group=True,
    notes=(
        f"{CONSTANT}: the configuration that is best on average over the other families",
        f"{RANDOM}: the mean over all orders of trying",
        "failed runs that a rule chooses are paid for; trainpred has none; 'had failures been "
        "known' chooses among completed runs, which nobody can who has not tried",
        "no interval: a choice has none",
    ),
)


# campaigns

_Z: Final = QUANTILES[COVERAGE]
# Families whose organisation's own steps are among those that the layout model is fitted on.
_NVIDIA: Final = (
    "megatron_sc21", "megatron_jan2021", "megatron_seqsel", "nemo_2407", "nemo_bridge",
    "dgxc_bench",
)  # fmt: skip
OWN_TABLES: Final = {
    "Megatron": _NVIDIA, "NVIDIA examples": _NVIDIA, "MosaicML": ("llm_foundry_mpt",),
    "Llama 3": ("torchtitan",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaigns:
    """Published runs with the estimate of each, and the runs that the law is fitted on."""

    found: Sequence[CampaignAnswer]
    rows: CampaignColumns
    known: CampaignColumns

    @property
    def families(self) -> Any:
        return np.unique(self.rows.family)


def read_published(path: Path, *, is_own: bool = True) -> Questions:
    """Return published runs; a table of one's own is predicted from the packaged ones.

    Raises UsageError if the table is not there. Raises ModelError if a number in it is none, or no
    run can be asked about.
    """
    asking = Predictor()
    families = {c.campaign: c.family for c in read_packaged()}
    found, left_out = answers(read_campaigns(path, families), asking)
    rows = columns(found)
    known = rows if is_own else columns(answers(read_packaged(), asking)[0])
    runs = [a.question.campaign for a in found]
    kinds = ["whole runs" if c.is_whole_run else "steps alone" for c in runs]
    labels = ([c.family for c in runs], [f"on {c.accelerator}" for c in runs], kinds)
    return Questions(
        questions=[f"device-hours of {c.campaign} on {c.accelerator}" for c in runs],
        truth=rows.published_h,
        unseen=[f"campaigns of {c.family}" for c in runs],
        groups={n: m for some in labels for n, m in by(some, is_sorted=False).items()},
        facts=Campaigns(found=found, rows=rows, known=known),
        raw=RawColumns.of(
            {
                "parameters": [c.parameters or np.nan for c in runs],
                "tokens": [c.tokens or np.nan for c in runs],
                "accelerators": [c.accelerators or np.nan for c in runs],
            },
            [c.family for c in runs],
            {"accelerator": [c.accelerator for c in runs], "year": [c.year for c in runs]},
        ),
        notes=_campaign_notes(found, left_out),
    )


def predict(rows: CampaignColumns, known: CampaignColumns) -> tuple[Floats, Floats]:
    """Return ln(device-hours) and their deviation, each family by laws that never saw it."""
    value, log_sd = np.log(rows.estimated_h), np.zeros(len(rows))
    for family in np.unique(rows.family):
        own = rows.family == family
        law = fit(known.select(known.family != family))
        left_out = rows.select(own)
        value[own] += left_out.log_factor(law)
        log_sd[own] = left_out.log_sd(law)
    return value, log_sd


def band(value: Floats, log_sd: Floats, **more: Any) -> Answers:
    low, high = np.exp(value - _Z * log_sd), np.exp(value + _Z * log_sd)
    return Answers(value=np.exp(value), low=low, high=high, **more)


def _campaign_answers(rows: Questions) -> Answers:
    facts: Campaigns = rows.facts
    value, log_sd = predict(facts.rows, facts.known)
    return band(value, log_sd, figures=_campaign_figures(facts, value, log_sd))


def _own_tables(rows: Questions) -> list[Hidden]:
    """Hide the steps that the same organisation published."""
    families = rows.facts.rows.family
    return [Hidden(tables=frozenset(OWN_TABLES.get(str(family), ()))) for family in families]


def _ask_blind(rows: Questions, here: Rows, known: Known) -> Answers:
    """Answer some campaigns; the laws of the others are fitted on answers of the same constants.

    A family's law sees the published hours of no other run of it, as in the figures.
    """
    facts: Campaigns = rows.facts
    found, _ = answers([a.question.campaign for a in facts.found], predictor_with(known))
    again = columns(found)
    return band(*predict(again, again)).take(here)


def _by_other_families(target: Callable[[Campaigns, Bools], Floats | None]) -> Any:
    """Return a rule that is told, family by family, what to say of that family's rows."""

    def rule(rows: Questions, _answered: Bools) -> Floats | None:
        found = np.full(rows.truth.size, np.nan)
        for family in rows.facts.families:
            own = rows.facts.rows.family == family
            said = target(rows.facts, own)
            if said is not None:
                found[own] = said
        return found

    return rule


def _same_factor(facts: Campaigns, own: Bools) -> Floats:
    family = facts.rows.family[own][0]
    factor = np.exp(np.median(facts.known.target[facts.known.family != family]))
    return np.asarray(facts.rows.estimated_h[own] * factor)


def _constant_mfu(facts: Campaigns, own: Bools) -> Floats | None:
    if own.all():
        return None
    ideal_h = np.array([a.ideal_device_h for a in facts.found])
    others = np.exp(np.median(np.log(facts.rows.published_h / ideal_h)[~own]))
    return np.asarray(ideal_h[own] * others)


def _steps_alone(rows: Questions, _answered: Bools) -> Answers:
    told = rows.facts.rows
    return band(np.log(told.estimated_h), told.step_log_sd)


def _campaign_figures(facts: Campaigns, value: Floats, log_sd: Floats) -> dict[str, float]:
    rows = facts.rows
    ratio = np.exp(value) / rows.published_h
    is_stated = np.array(["accelerators" not in a.question.assumed for a in facts.found])
    law = fit(facts.known)
    figures = {
        "mean ratio": float(np.mean(ratio)),
        "standard deviation of ln ratio": float(np.std(np.log(ratio))),
        "median half-width of 90 % intervals, log": float(np.median(_Z * log_sd)),
        "median half-width of the step's alone, log": float(np.median(_Z * rows.step_log_sd)),
        "law: growth an e-fold of device-hours": law.growth,
        "law: growth a year of older software": law.per_year,
        "law: share of the chip's history": law.history,
        "law: log-sd": law.sd,
        "law: log-sd, step measured": law.sd_measured,
    }
    size, beyond = beyond_rate(rows)
    if size.size:
        figures["hours / hours at the published rate of steps, geometric mean"] = float(
            np.exp(np.mean(beyond))
        )
        figures["the same by the law"] = float(np.exp(np.mean(law.growth * size)))
    if is_stated.any():
        figures["median ratio where the accelerators are stated"] = float(
            np.median(ratio[is_stated])
        )
    return figures


def _campaign_notes(
    found: Sequence[CampaignAnswer], left_out: Mapping[str, int]
) -> tuple[str, ...]:
    assumed = Counter(what for a in found for what in a.question.assumed)
    words = {
        "accelerators": "number of accelerators guessed (as many as end within a month)",
        "batch": "batch guessed from the model's size",
        "rounded batch": "batch rounded to one that the accelerators share",
        "sequence": "sequence cut at 8,192",
        "network": "network not stated: that of the accelerator's usual machine",
    }
    notes = [f"{count} rows: {words[what]}" for what, count in assumed.items()]
    return (*notes, *(f"{count} rows left out: {why}" for why, count in left_out.items()))


_CAMPAIGN_SEEN: Final = (
    "the law's two ideas (size, age of software) and the root law of its spread; which of them "
    "are used is nested",
    "the year that software counts from, the noise of a row and the priors' width",
)
CAMPAIGN: Final = Protocol(
    name="campaigns",
    description="device-hours of published training runs, each family left out",
    senses={
        "standard deviation of ln ratio": "lower",
        "*ratio*": "neutral",
        "law: *": "neutral",
        "hours / hours*": "neutral",
        "the same by the law": "neutral",
    },
    rows=lambda data: read_published(CAMPAIGNS.path("runs", data)),
    answer=_campaign_answers,
    seen=(
        *_CAMPAIGN_SEEN,
        "the layout model behind a step: fitted on steps measured by some of the same "
        "organisations (Megatron)",
    ),
    baselines={
        "steps and goodput, no whole-run term": _steps_alone,
        "the same factor for every run": _by_other_families(_same_factor),
        "6 N D at the others' MFU": _by_other_families(_constant_mfu),
    },
    blind=Refit(hidden=_own_tables, ask=_ask_blind, still_seen=(*_CAMPAIGN_SEEN, BY_HAND)),
    notes=(
        "median ratio: ours / published; layouts are the best that the search finds, not the "
        "published ones; software of 2022 and before is taken without flash attention",
        "steps alone: hours published as step time x steps, or without downtime; they get no "
        "whole-run term, only that of their software's age",
    ),
)


def walked_ratio(
    runs: Runs, job: int, answer: Floats, spent: Floats, *, has_growth: bool = False
) -> float:
    """Return the same where failures can be chosen: they are paid, and the next is tried.

    ``spent``: (jobs, configurations); what a run cost up to its end or failure.
    """
    paid, failed = 0.0, np.zeros(answer.shape, bool)
    absent = ~runs.has_run[job]
    while not np.all(failed | absent):
        is_small = too_small(runs.price_usd_per_h, failed) & has_growth
        choice = int(in_order(answer, is_small, failed | absent)[0])
        if np.isfinite(runs.prices[job, choice]):
            best = float(np.nanmin(runs.prices[job]))
            return (paid + float(runs.prices[job, choice])) / best
        paid += float(np.nan_to_num(spent[job, choice]))
        failed[choice] = True
    return np.nan


def random_ratio(runs: Runs, job: int, spent: Floats) -> float:
    """Return the mean of ``walked_ratio`` over every order of trying.

    With s configurations that complete, each one that fails comes before all of them, and is paid,
    in one order of s + 1; the one that ends the search is any of the s.
    """
    completes = np.isfinite(runs.prices[job])
    fails = runs.has_run[job] & ~completes
    paid = float(np.nansum(np.where(fails, spent[job], 0.0))) / (int(completes.sum()) + 1)
    prices = runs.prices[job][completes]
    return float((paid + prices.mean()) / prices.min())
