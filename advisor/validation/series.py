"""Protocol ``series``: seconds per million samples from the first minute of the run itself.

Known are the first 60 s of psutil and step records after each node's first step, and the job's
settings; each model is left out in turn. The formula of ``epoch_rate`` (what the minute says of
rate and synchronisation) and trees on top of it and of the plain rate are stacked with equal
weights: with nine models there is too little to learn weights from.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.learned.base import RunRegressor
from advisor.learned.boosting import Boosting
from advisor.learned.conformal import calibrate
from advisor.learned.epoch_rate import FirstMinute
from advisor.learned.forest import Forest
from advisor.learned.splits import group_folds
from advisor.validation.hivemind_rows import (
    Floats,
    HivemindRun,
    Minute,
    by_group,
    first_minute,
    read_runs,
    ring_gb,
)
from advisor.validation.scores import Group, Validation, score

_MINUTE: Final = tuple(f.name for f in fields(Minute))
_NAMES: Final = (
    "target_batch", "running", "ring_gb", "seen_stall_s", "synchronisations", "is_stalled",
    "stalled_s", "sent_mb_s", "between", "window", "ln_running_over_window", "ln_epoch_over_60",
    "ln_between_over_window", "has_between", "nodes", "ln_parameters", "is_mixed", "scatter",
    "ln_late_over_window", "fastest_share", "has_ended",
)  # fmt: skip
_FORMULA: Final = tuple(range(10))
# All but absolute rates, which would name the model.
_LEARNED: Final = (2, 3, 4, 5, 6, 7, *range(10, 21))
_FOLDS: Final = 8
SEEN: Final = (
    "what a stalled node sends, and what ends a run: found by looking at these runs",
    "the trees' sizes and the equal weights of the members",
)


def run(data: Path) -> Validation:
    """Score the first minute of every run, its model left out."""
    runs = read_runs(data)
    X = np.array([row(r) for r in runs])
    window = X[:, _NAMES.index("window")]
    rate = np.array([r.samples_per_s for r in runs])
    models = np.array([r.record.job.family for r in runs])

    def fit_predict(train: Any, test: Any) -> tuple[Floats, Floats]:
        answer = _answer(X, rate, window, models, train, test)
        half = _half_width(X, rate, window, models, train, test)
        return answer, np.column_stack([answer * np.exp(-half), answer * np.exp(half)])

    predicted, bounds, rows = by_group(models, fit_predict, len(runs))
    truth, time = 1e6 / rate, 1e6 / predicted
    plain = _plain(runs, rate, models)
    return Validation(
        protocol="series",
        description="Seconds per million samples from the first minute, each model left out.",
        form="chosen with these rows in sight",
        scores="FirstMinute and trees (advisor.learned), which no verb asks",
        seen=SEEN,
        overall=score(time, truth, low=1e6 / bounds[:, 1], high=1e6 / bounds[:, 0]),
        groups=[
            Group(
                group=name,
                scores=score(time[i], truth[i], low=1e6 / bounds[i, 1], high=1e6 / bounds[i, 0]),
            )
            for name, i in rows.items()
        ],
        baselines={
            "extrapolate the minute": score(1e6 / window, truth),
            "formula alone": score(1e6 / _formula_alone(X, rate, models), truth),
            "trees on configuration": score(1e6 / plain, truth),
        },
        notes=[
            "the label of most models was inferred from step times (SOURCE.md)",
            "what a stalled node sends, and what ends a run, were found by looking at these runs",
        ],
    )


def row(run: HivemindRun) -> list[float]:
    """Return the columns ``_NAMES`` of a run."""
    minutes = [first_minute(node) for node in run.nodes]
    table = np.array([astuple(m) for m in minutes], float)

    def column(name: str) -> Floats:
        return np.asarray(table[:, _MINUTE.index(name)], float)

    count = len(minutes)
    window, running = float(column("window").sum()), float(column("running").sum())
    synchronisations = float(column("synchronisations").mean())
    seen = float(column("seen_stall_s").mean()) / max(synchronisations, 1.0)
    between = column("between")
    known = np.isfinite(between)
    rate_between = float(between[known].mean()) * count if known.any() else np.nan
    sent = column("sent_mb_s")
    samples = [node.step_samples for node in run.nodes]
    return [
        run.target_batch, running, ring_gb(run), seen, synchronisations,
        float(column("is_stalled").mean()), float(column("stalled_s").mean()),
        float(sent[np.isfinite(sent)].mean()) if np.isfinite(sent).any() else np.nan,
        rate_between, window, np.log(running / window),
        np.log(run.target_batch / running / 60.0),
        np.log(rate_between / window) if known.any() else 0.0, float(known.any()),
        float(count), np.log(run.parameters_gb), float(max(samples) > min(samples)),
        float(column("scatter").mean()),
        np.log(max(float(column("late").sum()) / window, 0.05)),
        float(column("running").max()) / running, float(column("has_ended").mean()),
    ]  # fmt: skip


def _members() -> list[tuple[bool, RunRegressor]]:
    """Return (does it start from the plain rate, unfitted estimator) of what is averaged."""
    quiet: dict[str, Any] = {"calibration_folds": 0}
    forest = Forest(trees=200, least_leaf=2, **quiet)
    boosting = Boosting(rounds=200, depth=3, **quiet)
    return [
        (
            False,
            FirstMinute(columns=_FORMULA, residual=forest, residual_columns=_LEARNED, **quiet),
        ),
        (
            False,
            FirstMinute(columns=_FORMULA, residual=boosting, residual_columns=_LEARNED, **quiet),
        ),
        (True, forest),
        (True, boosting),
    ]


def _answer(X: Floats, rate: Floats, window: Floats, groups: Any, train: Any, test: Any) -> Floats:
    """Return the geometric mean of the members' rates."""
    formula = FirstMinute(columns=_FORMULA, calibration_folds=0)
    formula.fit(X[train], np.log(rate[train]))
    beside = np.column_stack([X, formula.predict(X) - np.log(window)])
    logs = []
    for is_plain, member in _members():
        rows = beside[:, (*_LEARNED, -1)] if is_plain else X
        offset = np.log(window) if is_plain else np.zeros(len(window))
        member.fit(rows[train], np.log(rate[train]), groups=groups[train], offset=offset[train])
        logs.append(member.predict(rows[test], offset=offset[test]))
    return np.asarray(np.exp(np.mean(logs, axis=0)))


def _half_width(
    X: Floats, rate: Floats, window: Floats, groups: Any, train: Any, test: Any
) -> Floats:
    """Return the half-width of ln(rate) at 90 %, from errors on models left out of ``train``."""
    errors = np.empty(len(train))
    for inner, left in group_folds(groups[train], _FOLDS):
        answer = _answer(X, rate, window, groups, train[inner], train[left])
        errors[left] = np.log(answer / rate[train[left]])
    return calibrate(X[train], errors, groups[train]).half_width(X[test], 0.9)


def _formula_alone(X: Floats, rate: Floats, groups: Any) -> Floats:
    def fit_predict(train: Any, test: Any) -> tuple[Floats, Floats]:
        formula = FirstMinute(columns=_FORMULA, calibration_folds=0)
        formula.fit(X[train], np.log(rate[train]))
        answer = np.exp(formula.predict(X[test]))
        return answer, np.column_stack([answer, answer])

    return by_group(groups, fit_predict, len(rate))[0]


def _plain(runs: list[HivemindRun], rate: Floats, groups: Any) -> Floats:
    """Trees on what is known before the run starts: model size, nodes, machines."""
    kinds = sorted({m.instance_type for r in runs for m in r.record.configuration})
    X = np.array([
        [r.parameters_gb, r.target_batch, r.record.instances,
         *(sum(m.count for m in r.record.configuration if m.instance_type == k) for k in kinds)]
        for r in runs
    ])  # fmt: skip

    def fit_predict(train: Any, test: Any) -> tuple[Floats, Floats]:
        model = Boosting(rounds=200, depth=4, calibration_folds=0)
        answer = np.exp(model.fit(X[train], np.log(rate[train])).predict(X[test]))
        return answer, np.column_stack([answer, answer])

    return by_group(groups, fit_predict, len(rate))[0]
