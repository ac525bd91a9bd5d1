"""Protocol ``own``: our own runs, the left-out job known by its partial run on the anchor.

Every program in turn, every instance type in turn, and both at once; the predictor is the one
that ships (``advisor train models``): physics, a learned correction, physics alone outside what
was seen. Runs that the collector calls noisy are neither fitted nor scored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from advisor.learned.evaluation import Metrics, SplitScores, evaluate, metrics
from advisor.learned.guarded import Guarded
from advisor.learned.problem import Problem, problem
from advisor.learned.splits import SplitName
from advisor.train.models import predictor
from advisor.validation.scores import Group, Scores, Validation
from advisor.validation.thesis import read_own

_SPLITS: Final[tuple[SplitName, ...]] = ("job", "instance", "both")
_MOST_FOLDS: Final = (
    24  # of the pairs of program and instance type: each fold fits everything anew
)
SCORED: Final = (
    "the product's kind of predictor: physics corrected by a guarded stack of four members, "
    "fitted anew for each split; what ships was fitted on all runs (trained_models/runs)"
)
SEEN: Final = ("features and sizes of the estimators: chosen on these runs",)


def run(data: Path) -> Validation:
    """Score the shipped predictor on the three honest splits of our runs."""
    asked = problem(read_own(data))

    def build() -> Guarded:
        guarded: Guarded = predictor("stack", has_series=False, folds=5)
        return guarded

    splits = [evaluate(asked, build, name, most_folds=_MOST_FOLDS) for name in _SPLITS]
    job = splits[0]
    return Validation(
        protocol="own",
        description="Time of our own runs, each program left out in turn.",
        form="chosen with these rows in sight",
        scores=SCORED,
        seen=SEEN,
        overall=_scores(job.overall),
        groups=[Group(group=name, scores=_scores(m)) for name, m in job.groups],
        baselines={name: _scores(m) for name, m in job.baselines.items()},
        figures={key: value for split in splits for key, value in _figures(split).items()}
        | _steady(asked, job),
        notes=[
            "the machine is not equally fast all the time: 'steady' is what the error of runs of "
            "one thread would be had a step taken the CPU time that it took in the partial run",
        ],
    )


def _steady(asked: Problem, split: SplitScores) -> dict[str, float]:
    """Return the error of runs of one thread, and what it would be on a machine without moods."""
    ratio = np.array([asked.records[i].facts.get("cpu_ratio", np.nan) for i in split.rows], float)
    known = np.isfinite(ratio) & ~asked.is_censored[split.rows]
    if not known.any():
        return {}
    predicted, truth = split.predicted[known], asked.truth[split.rows][known]
    as_is, steady = metrics(predicted, truth), metrics(predicted * ratio[known], truth)
    drift = metrics(np.ones(int(known.sum())), ratio[known])
    return {
        "one_thread_mape_fraction": as_is.mape_fraction,
        "one_thread_steady_mape_fraction": steady.mape_fraction,
        "one_thread_drift_mape_fraction": drift.mape_fraction,
    }


def _figures(split: SplitScores) -> dict[str, float]:
    found = {
        f"{split.name}_mape_fraction": split.overall.mape_fraction,
        f"{split.name}_median_ape_fraction": split.overall.median_ape_fraction,
        f"{split.name}_coverage": split.overall.coverage or 0.0,
        f"{split.name}_width": split.overall.width or 0.0,
    }
    if (regret := split.top1_regret) is not None:
        found |= {
            f"{split.name}_top1_regret": regret.top1,
            f"{split.name}_constant_regret": regret.constant,
            f"{split.name}_random_regret": regret.random,
        }
    return found


def _scores(m: Metrics) -> Scores:
    return Scores(
        rows=m.rows,
        mape_fraction=m.mape_fraction,
        median_ape_fraction=m.median_ape_fraction,
        p90_ape_fraction=m.p90_ape_fraction,
        bias=m.bias,
        median_ratio=m.median_ratio,
        spearman=m.spearman,
        coverage=m.coverage,
        width=m.width,
    )
