"""Errors of an estimator on each split, beside those of the baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Recorded
from advisor.errors import ModelError
from advisor.learned.base import RunRegressor
from advisor.learned.problem import COSTS, Problem
from advisor.learned.regrets import Regret, cell, regret
from advisor.learned.splits import SplitName, left_out
from advisor.learned.tasks import run

Floats = NDArray[np.float64]
Build = Callable[[], RunRegressor]
_DIGITS: Final = 6  # that errors are written with


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of predictions of positive quantities; fractions, never percent.

    ``bias`` is the geometric mean of predicted over true, ``median_ratio`` their median (None
    where only summaries are known); ``coverage`` and ``width`` (mean half-width of the interval
    over the prediction) are None without intervals.
    """

    rows: int
    mape_fraction: float
    median_ape_fraction: float
    p90_ape_fraction: float
    bias: float
    median_ratio: float | None = None
    spearman: float | None
    coverage: float | None = None
    width: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Errors, Recorded):
    """Errors with those in the unit of the truth."""

    digits: ClassVar[int] = _DIGITS

    rmse: float
    r2: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitScores(Recorded):
    """One split of one estimator."""

    digits: ClassVar[int] = _DIGITS
    said: ClassVar[Mapping[str, str]] = {
        "rows": "scored", "overall": "overall", "groups": "grouped",
        "baselines": "baselines", "coverage": "overall.coverage", "width": "overall.width",
        "top1_regret": "top1_regret",
    }  # fmt: skip

    name: SplitName
    overall: Metrics
    groups: tuple[tuple[str, Metrics], ...]  # by what was left out
    baselines: Mapping[str, Metrics]
    top1_regret: Regret | None  # None where no job ran on two configurations
    rows: NDArray[np.intp]  # which runs were predicted (under ``both`` not all can be)
    predicted: Floats  # (rows,)
    bounds: Floats | None  # (rows, 2)
    simple: Mapping[str, Floats]  # what each baseline predicts, (rows,)

    @property
    def scored(self) -> int:
        """How many predictions were scored."""
        return int(self.overall.rows)

    @property
    def grouped(self) -> list[dict[str, Any]]:
        """The errors of each group, with its name."""
        return [{"group": name, **m.to_record()} for name, m in self.groups]


def evaluate(
    problem: Problem, build: Build, split: SplitName, *, coverage: float = 0.9, seed: int = 0,
    n_jobs: int | None = None, has_intervals: bool = True, most_folds: int | None = None,
    tested: NDArray[np.bool_] | None = None, fitted: NDArray[np.bool_] | None = None,
) -> SplitScores:  # fmt: skip
    """Score an estimator on one split; each fold is fitted from scratch.

    Raises ModelError if there is nothing that can be left out, or nothing to fit on then.

    ``n_jobs``: folds at once, through joblib: a Dask or Ray backend runs them on its cluster;
    ``has_intervals``: calibrate intervals in every fold (slower); ``most_folds``: of more folds as
    many are scored, evenly spread: ``both`` has one a pair; ``tested``, ``fitted``: (n,); the runs
    that may be scored, and those that may be fitted; all by default.
    """
    every = np.ones(len(problem.records), bool)
    may_fit, may_test = (every if one is None else one for one in (fitted, tested))
    folds = [
        (name, train[may_fit[train]], test[may_test[test]])
        for name, train, test in left_out(problem.records, split, seed)
    ]
    folds = [f for f in folds if len(f[1]) >= _LEAST_ROWS and len(f[2])]
    if not folds:
        raise ModelError(
            f"{len(problem.records)} runs leave fewer than {_LEAST_ROWS} to fit on",
            hint="add runs of other jobs and instance types",
        )
    if most_folds is not None and len(folds) > most_folds:
        folds = [folds[i] for i in np.linspace(0, len(folds) - 1, most_folds).astype(int)]
    tasks = [(problem, build(), train, test, coverage, has_intervals) for _, train, test in folds]
    bands = np.vstack(run(f"split {split}", _fold, tasks, n_jobs))
    answers = [_baselines(problem, train, test) for _, train, test in folds]
    simple = {name: np.concatenate([one[name] for one in answers]) for name in answers[0]}
    rows = np.concatenate([test for _, _, test in folds])
    predicted = bands[:, 1]
    bounds = bands[:, [0, 2]] if has_intervals else None
    seen = ~problem.is_censored[rows]  # how wrong a prediction of a cut run is nobody knows

    def scored(some: Floats, keep: NDArray[np.bool_], lines: Floats | None = None) -> Metrics:
        inside = None if lines is None else lines[keep]
        return metrics(some[keep], problem.truth[rows][keep], inside)

    names = np.concatenate([np.full(len(test), name) for name, _, test in folds])
    grouped = [(n, seen & (names == n)) for n in dict.fromkeys(names.tolist())]
    return SplitScores(
        name=split,
        overall=scored(predicted, seen, bounds),
        groups=tuple((n, scored(predicted, k, bounds)) for n, k in grouped if k.any()),
        baselines={name: scored(values, seen) for name, values in simple.items()},
        top1_regret=regret(
            [problem.records[i] for i in rows], predicted, is_cost=problem.target in COSTS
        ),
        rows=rows,
        predicted=predicted,
        bounds=bounds,
        simple=simple,
    )


def _fold(
    problem: Problem, model: RunRegressor, train: NDArray[np.intp], test: NDArray[np.intp],
    coverage: float, has_intervals: bool,
) -> Floats:  # fmt: skip
    """Return low, prediction and high of each test row."""
    fitted = problem.fit(model if has_intervals else model._bare(), train)
    if not has_intervals or fitted.calibration_ is None:
        middle = problem.predict(fitted, test)
        return np.column_stack([np.zeros(len(test)), middle, np.full(len(test), np.inf)])
    return problem.predict_band(fitted, test, coverage)


def _baselines(
    problem: Problem, train: NDArray[np.intp], test: NDArray[np.intp]
) -> dict[str, Floats]:
    """Return what the three answers without learning say of the test rows.

    ``mean``: geometric mean of the training runs on the same configuration, else of all.
    ``anchor x ratio``: the partial run's time by the mean ratio on the same configuration.
    ``roofline``: physics alone (the offset); for costs times the price.
    """
    cells = np.array([cell(r) for r in problem.records])
    anchors = np.array([np.nan if r.anchor is None else r.anchor.time_s for r in problem.records])
    logs = np.log(problem.truth)
    relative = logs - np.log(anchors)
    mean, ratio = np.empty(len(test)), np.empty(len(test))
    for place, row in enumerate(test):
        same = train[cells[train] == cells[row]]
        known = same if same.size else train
        mean[place] = np.mean(logs[known])
        ratios = relative[known][np.isfinite(relative[known])]
        if ratios.size == 0:
            ratios = relative[train][np.isfinite(relative[train])]
        ratio[place] = np.mean(ratios) + np.log(anchors[row]) if ratios.size else np.nan
    physics = problem.offset[test]
    if problem.target in ("time", "cost"):
        physics = physics + np.mean(logs[train])
    answers = {"mean": np.exp(mean), "roofline": np.exp(physics)}
    if np.isfinite(ratio).all():
        answers["anchor x ratio"] = np.exp(ratio)
    return answers


def metrics(predicted: Floats, truth: Floats, bounds: Floats | None = None) -> Metrics:
    """Return the errors of some predictions of positive quantities."""
    ape = np.abs(predicted / truth - 1.0)
    spread = float(np.sum((truth - truth.mean()) ** 2))
    squares = float(np.sum((predicted - truth) ** 2))
    coverage = width = None
    if bounds is not None:
        coverage = float(np.mean((bounds[:, 0] <= truth) & (truth <= bounds[:, 1])))
        width = float(np.mean((bounds[:, 1] - bounds[:, 0]) / (2.0 * predicted)))
    return Metrics(
        rows=len(truth),
        mape_fraction=float(np.mean(ape)),
        median_ape_fraction=float(np.median(ape)),
        p90_ape_fraction=float(np.quantile(ape, 0.9)),
        bias=float(np.exp(np.mean(np.log(predicted / truth)))),
        median_ratio=float(np.median(predicted / truth)),
        rmse=float(np.sqrt(squares / len(truth))),
        r2=1.0 - squares / spread if spread > 0 else None,
        spearman=_rank_correlation(predicted, truth),
        coverage=coverage,
        width=width,
    )


def _rank_correlation(a: Floats, b: Floats) -> float | None:
    from scipy.stats import spearmanr

    if a.size < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(spearmanr(a, b).statistic)


_LEAST_ROWS: Final = 2  # that an estimator can be fitted on
