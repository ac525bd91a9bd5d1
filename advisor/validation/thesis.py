"""Protocol ``thesis``: cost and time as the Nazari thesis judged them, on our own runs.

Inputs are the partial run's series, the job and the target configuration; 20 % of the runs, drawn
at random, are left out: siblings of them stay in training, which flatters (see protocol ``own``).
What is scored is the first fold of ``advisor evaluate --split random``; the thesis's estimators
are its baselines.
Targets are time and cost themselves. The thesis's losses are in its own units, hours and dollars
with means of about 2.5 and 5.5; ours are given in units of the same means.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor import data as packaged
from advisor.learned import features
from advisor.learned.base import RunRegressor
from advisor.learned.boosting import Boosting
from advisor.learned.course import SEQUENCE_CHANNELS, SEQUENCE_READINGS
from advisor.learned.evaluation import Metrics, evaluate, metrics
from advisor.learned.forest import Forest
from advisor.learned.linear import Poisson, Ridge
from advisor.learned.problem import Problem, problem
from advisor.learned.sequence import SequenceNetwork
from advisor.learned.splits import left_out
from advisor.learned.stack import Stack
from advisor.records import RunRecord
from advisor.train.labelled import read_runs
from advisor.train.models import predictor
from advisor.validation.scores import THE_PRODUCT, Scores, Validation, score

Floats = NDArray[np.float64]
Kind = Literal["time", "cost"]

_MEANS: Final[dict[Kind, float]] = {"time": 2.5, "cost": 5.5}  # h and USD, implied by the thesis
# The thesis's own validation R2 (systems.md 1.1): best of its table.
_THESIS_R2: Final[dict[Kind, float]] = {"time": 0.9961, "cost": 0.9904}
_SERIES: Final[dict[str, Any]] = {
    "channels": len(SEQUENCE_CHANNELS), "readings": SEQUENCE_READINGS,
}  # fmt: skip
SEEN: Final = (
    "a random split: siblings of every scored run are fitted",
    "sizes of our own estimators: chosen on these runs",
)


def run(data: Path) -> Validation:
    """Score every estimator of the thesis on a random fifth of our runs."""
    # One run has no cost: every estimator is scored on the others, whatever it predicts.
    records = [r for r in read_own(data) if r.cost_usd]
    figures: dict[str, float] = {}
    baselines: dict[str, Scores] = {}
    kinds: tuple[Kind, ...] = ("time", "cost")
    for kind in kinds:
        asked = problem(records, kind, has_series=True)
        train, test = _split(asked)
        for name, build in _estimators(kind).items():
            answer = _answer(asked, build(), name, kind, train, test)
            figures |= _figures(kind, name, metrics(answer, asked.truth[test]))
            if kind == "time":
                baselines[name] = score(answer, asked.truth[test])
    own, found = _shipped(records)
    return Validation(
        protocol="thesis",
        description="Time of a random fifth of our runs; R2 and RMSE of time and cost.",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=own,
        baselines=baselines,
        figures=figures | found | {f"thesis_{k}_r2": r2 for k, r2 in _THESIS_R2.items()},
        notes=[
            "a random split leaves siblings in training: see protocol own for unseen jobs",
            "no interval: the thesis's estimators have none",
        ],
    )


def _split(asked: Problem) -> tuple[Any, Any]:
    """Return the first random split of ``advisor evaluate``."""
    _, train, test = next(left_out(asked.records, "random"))
    return train, test


def _shipped(records: list[RunRecord]) -> tuple[Scores, dict[str, float]]:
    """Score what ships: physics with a learned correction, cost as time by price."""
    asked = problem(records)
    found = evaluate(
        asked, lambda: predictor("auto", channels=0, folds=5), "random",
        has_intervals=False, most_folds=1,
    )  # fmt: skip
    cost = np.array([r.cost_usd or np.nan for r in asked.records])[found.rows]
    truth = asked.truth[found.rows]
    priced = found.predicted * cost / truth  # the price per second is known
    name = "physics + correction"
    figures = _figures("time", name, metrics(found.predicted, truth))
    return score(found.predicted, truth), figures | _figures("cost", name, metrics(priced, cost))


def read_own(data: Path, name: str = "runs") -> list[RunRecord]:
    """Return our own runs, of seconds or of ``minutes``: those under ``data``, else packaged."""
    there = data / name
    return read_runs([there if there.is_dir() else packaged.root("datasets") / name])


def _figures(kind: str, name: str, found: Metrics) -> dict[str, float]:
    unit = "s" if kind == "time" else "usd"
    r2 = float("nan") if found.r2 is None else found.r2
    return {f"{name}_{kind}_r2": round(r2, 4), f"{name}_{kind}_rmse_{unit}": found.rmse}


def _estimators(kind: Kind) -> dict[str, Callable[[], RunRegressor]]:
    quiet: dict[str, Any] = {"calibration_folds": 0}
    plain = len(features.FEATURES)
    return {
        "linear": lambda: Ridge(**quiet) if kind == "cost" else Poisson(**quiet),
        "forest": lambda: Forest(trees=200, **quiet),
        "boosting": lambda: Boosting(**quiet),
        "network": lambda: SequenceNetwork.thesis(kind, **_SERIES, **quiet),
        "our network": lambda: SequenceNetwork(**_SERIES, **quiet),
        "stack": lambda: Stack(
            (
                ("ridge", Ridge()),
                ("forest", Forest(trees=100)),
                ("boosting", Boosting(rounds=300)),
            ),
            folds=5,
            static_columns=plain,
            **quiet,
        ),
    }


def _answer(
    asked: Problem, model: RunRegressor, name: str, kind: Kind, train: Any, test: Any
) -> Floats:
    """Fit on the target itself in the thesis's unit, and answer in ours."""
    unit = float(np.mean(asked.truth[train])) / _MEANS[kind]
    rows = (
        asked.X if "network" in name or name == "stack" else asked.X[:, : len(features.FEATURES)]
    )
    groups = asked.groups[train] if name != "our network" else np.arange(len(train))
    model.fit(rows[train], asked.truth[train] / unit, groups=groups)
    answer = unit * model.predict(rows[test])
    return np.maximum(answer, 1e-3 * float(np.min(asked.truth[train])))
