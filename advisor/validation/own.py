"""Protocol ``own``: our own runs, the left-out job known by its partial run on the anchor.

Every program in turn, every instance type in turn, and both at once; the predictor is of the kind
that ships (``advisor train models``), the member that was chosen there: physics, a learned
correction, physics alone outside what was seen. Runs that the collector calls noisy are neither
fitted nor scored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.collectors import bounded
from advisor.learned.course import SEQUENCE_READINGS
from advisor.learned.evaluation import Metrics, SplitScores, evaluate, metrics
from advisor.learned.guarded import Guarded
from advisor.learned.problem import Problem, problem
from advisor.learned.sequence import SequenceNetwork
from advisor.learned.splits import SplitName
from advisor.train.models import predictor
from advisor.validation.scores import Group, Scores, Validation
from advisor.validation.thesis import read_own

_SPLITS: Final[tuple[SplitName, ...]] = ("job", "instance", "both")
_MOST_FOLDS: Final = (
    24  # of the pairs of program and instance type: each fold fits everything anew
)
SEEN: Final = (
    "features, members and sizes of the estimators: chosen on these runs; the weights of members "
    "are fitted without the left-out group",
)


def run(data: Path) -> Validation:
    """Score the shipped predictor on the three honest splits of our runs."""
    asked = problem(read_own(data))
    chosen = shipped_choice()
    build = partial(as_shipped, chosen)
    splits = [evaluate(asked, build, name, most_folds=_MOST_FOLDS) for name in _SPLITS]
    job = splits[0]
    network = sequence_network(asked)
    return Validation(
        protocol="own",
        description="Time of our own runs, each program left out in turn.",
        form="chosen with these rows in sight",
        scores=f"what recommend asks where it covers a job: physics corrected by guarded {chosen} "
        "(trained_models/runs), fitted anew for each split",
        seen=SEEN,
        overall=as_scores(job.overall),
        groups=[Group(group=name, scores=as_scores(m)) for name, m in job.groups],
        baselines={name: as_scores(m) for name, m in job.baselines.items()}
        | {"sequence network": as_scores(network)},
        figures={key: value for split in splits for key, value in _figures(split).items()}
        | _steady(asked, job)
        | _costs(asked, job, build),
        notes=[
            "the machine is not equally fast all the time: 'steady' is what the error of runs of "
            "one thread would be had a step taken the CPU time that it took in the partial run",
            "the sequence network does not ship: in 94 % of the partial runs, of 0.8 s of CPU "
            "time, nothing was sent, and what their series say is in the trees' features",
            "cost: as billed for the predicted time, and as a model of the cost itself has it "
            "(trained_models/runs_cost), on the same rows",
        ],
    )


def shipped_choice() -> str:
    """Return the estimator that answers in the product: the stack, or one of its members."""
    metrics_file = packaged.root("trained_models") / "runs" / "metrics.json"
    return str(bounded.read_json(metrics_file)["chosen"])


def as_shipped(chosen: str) -> Guarded:
    """Return an unfitted predictor of the kind that ships, with that estimator."""
    guarded: Guarded = predictor(chosen, channels=0, folds=5)
    return guarded


def sequence_network(asked: Problem, tested: NDArray[np.bool_] | None = None) -> Metrics:
    """Score the thesis's kind of network on the same rows, the series among its inputs."""
    seen = problem(asked.records, asked.target, has_series=True)

    def build() -> SequenceNetwork:
        return SequenceNetwork(
            channels=seen.channels, readings=SEQUENCE_READINGS,
            calibration_folds=0,
        )  # fmt: skip

    return evaluate(seen, build, "job", has_intervals=False, tested=tested).overall


def _costs(asked: Problem, split: SplitScores, build: Callable[[], Guarded]) -> dict[str, float]:
    """Return the errors of the cost, billed for the predicted time and predicted directly."""
    costs = problem(asked.records, "cost_over_anchor")
    direct = evaluate(costs, build, "job")
    records = [asked.records[i] for i in split.rows]
    priced = np.array([bool(r.cost_usd) and r.status == "ok" for r in records])
    hourly = np.array([(r.price_usd_per_h or 0.0) / 3600.0 for r in records])
    truth = np.array([r.cost_usd or 0.0 for r in records])
    billed = metrics((split.predicted * hourly)[priced], truth[priced])
    return {
        f"cost_{how}_{name}": value
        for how, found in (("billed", billed), ("direct", direct.overall))
        for name, value in (
            ("rows", float(found.rows)), ("mape_fraction", found.mape_fraction),
            ("median_ape_fraction", found.median_ape_fraction),
        )
    } | {"cost_direct_coverage": direct.overall.coverage or 0.0}  # fmt: skip


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


def as_scores(m: Metrics) -> Scores:
    """Return the metrics of a split as a protocol's scores."""
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
