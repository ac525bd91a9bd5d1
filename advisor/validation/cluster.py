"""Protocol ``cluster``: samples/s of several nodes from runs of the same model on single nodes.

Known are the single-node runs of every model (the left-out one's too) and the multi-node runs of
the other models. The best of repeated single-node runs counts: low ones were bound by loading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.learned.boosting import Boosting
from advisor.learned.conformal import calibrate
from advisor.learned.epoch_rate import ClusterRate
from advisor.learned.splits import group_folds
from advisor.validation.hivemind_rows import Floats, HivemindRun, by_group, read_runs, ring_gb
from advisor.validation.scores import Group, Validation, score

_SLOW_LINK: Final = "8xV100"  # the on-premises machine: its way to the clouds is slow
_NOMINAL_BYTES_PER_S: Final = 1.25e9  # 10 Gbit/s: what the baseline believes of every link
_LEARNED: Final = (2, 4, 5, 6, 7, 8, 9)  # all but absolute rates, which would name the model
_FOLDS: Final = 8
SEEN: Final = (
    "the floor on the epoch: found by looking at these runs",
    "that the link of 8xV100 is slow; the trees' sizes",
)


def run(data: Path) -> Validation:
    """Score every multi-node run, its model left out."""
    every = read_runs(data)
    alone = _single_rates(every)
    runs = [r for r in every if _is_cluster(r, alone)]
    if not runs:
        raise ModelError("no run on several nodes has its single nodes", hint="see SOURCE.md")
    X = np.array([_row(r, alone) for r in runs])
    rate = np.array([r.samples_per_s for r in runs])
    models = np.array([r.record.job.family for r in runs])

    def fit_predict(train: Any, test: Any) -> tuple[Floats, Floats]:
        answer = _answer(X, rate, models, train, test)
        errors = np.empty(len(train))
        for inner, left in group_folds(models[train], _FOLDS):
            inside = _answer(X, rate, models, train[inner], train[left])
            errors[left] = np.log(inside / rate[train[left]])
        half = calibrate(X[train], errors, models[train]).half_width(X[test], 0.9)
        return answer, np.column_stack([answer * np.exp(-half), answer * np.exp(half)])

    predicted, bounds, rows = by_group(models, fit_predict, len(runs))
    return Validation(
        protocol="cluster",
        description="Samples/s of several nodes from single-node runs, each model left out.",
        form="chosen with these rows in sight",
        scores="ClusterRate (advisor.learned.epoch_rate), which no verb asks",
        seen=SEEN,
        overall=score(predicted, rate, low=bounds[:, 0], high=bounds[:, 1]),
        groups=[
            Group(
                group=name,
                scores=score(predicted[i], rate[i], low=bounds[i, 0], high=bounds[i, 1]),
            )
            for name, i in rows.items()
        ],
        baselines={
            "linear scaling": score(X[:, 1], rate),
            "alpha-beta, nominal": score(_nominal(X), rate),
            "formula alone": score(_formula_alone(X, rate, models), rate),
        },
        figures={"repeat_scatter_fraction": _repeat_scatter(runs, rate)},
        notes=["the floor on the epoch was found by looking at these runs"],
    )


def _single_rates(runs: list[HivemindRun]) -> dict[tuple[str, str], float]:
    """(model, node type) -> best rate of one node alone [samples/s]."""
    best: dict[tuple[str, str], float] = {}
    for r in runs:
        if r.record.instances == 1:
            key = r.record.job.family, r.record.configuration[0].instance_type
            best[key] = max(best.get(key, 0.0), r.samples_per_s)
    return best


def _is_cluster(run: HivemindRun, alone: dict[tuple[str, str], float]) -> bool:
    return run.record.instances > 1 and all(
        (run.record.job.family, m.instance_type) in alone for m in run.record.configuration
    )


def _row(run: HivemindRun, alone: dict[tuple[str, str], float]) -> list[float]:
    record = run.record
    rates = [m.count * alone[record.job.family, m.instance_type] for m in record.configuration]
    regions = record.layout.get("regions", 1.0)
    slow = any(m.instance_type == _SLOW_LINK for m in record.configuration)
    t4 = any("t4" in m.instance_type for m in record.configuration)
    return [
        run.target_batch, sum(rates), ring_gb(run), np.log2(record.instances / 2),
        float(regions) - 1.0 if isinstance(regions, float) else 0.0, float(slow),
        np.log(run.target_batch / sum(rates)), np.log(run.parameters_gb), float(t4),
        float(record.instances),
    ]  # fmt: skip


def _answer(X: Floats, rate: Floats, groups: Any, train: Any, test: Any) -> Floats:
    trees = Boosting(
        rounds=100, depth=3, feature_fraction=1.0, objective="reg:absoluteerror",
        calibration_folds=0,
    )  # fmt: skip
    model = ClusterRate(residual=trees, residual_columns=_LEARNED, calibration_folds=0)
    model.fit(X[train], np.log(rate[train]), groups=groups[train])
    return np.asarray(np.exp(model.predict(X[test])))


def _formula_alone(X: Floats, rate: Floats, groups: Any) -> Floats:
    def fit_predict(train: Any, test: Any) -> tuple[Floats, Floats]:
        model = ClusterRate(calibration_folds=0).fit(X[train], np.log(rate[train]))
        answer = np.exp(model.predict(X[test]))
        return answer, np.column_stack([answer, answer])

    return by_group(groups, fit_predict, len(rate))[0]


def _nominal(X: Floats) -> Floats:
    """Alpha-beta with the bandwidth as sold: 2 bytes a parameter through every link."""
    stall_s = np.nan_to_num(X[:, 2]) * 1e9 * 2.0 / _NOMINAL_BYTES_PER_S
    return np.asarray(X[:, 0] / (X[:, 0] / X[:, 1] + stall_s))


def _repeat_scatter(runs: list[HivemindRun], rate: Floats) -> float:
    """Return the mean error of a repeat against its cell's mean: what cannot be beaten."""
    cells: dict[str, list[float]] = {}
    for r, value in zip(runs, rate, strict=True):
        machines = [(m.instance_type, m.count) for m in r.record.configuration]
        key = f"{r.record.job.job_id} {machines} {r.record.layout.get('regions')}"
        cells.setdefault(key, []).append(value)
    errors = [np.abs(np.array(v) / np.mean(v) - 1) for v in cells.values() if len(v) > 1]
    return float(np.mean(np.concatenate(errors))) if errors else 0.0
