"""Boosted trees on a Dask cluster, for more runs than one machine's memory holds.

Every file of runs is read by a worker, and its rows stay there: XGBoost exchanges histograms, not
rows. A fifth of the programs, told by a hash of their names so that all workers agree, is left out
of the fit: the intervals, and what is said of the errors, are made of them (split-conformal
prediction, one fit in place of one a fold). What comes to this machine is those programs' rows
and a few numbers a file. Runs that were cut short are left aside.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.estimate import OWN_RUNS
from advisor.learned import (
    FEATURES,
    LEAST_ROWS,
    NAMES,
    Boosting,
    Guarded,
    Hull,
    Problem,
    Target,
    TrainedModel,
    calibrate,
    data_hash,
    describe_features,
    hull_parts,
    is_watched,
    metrics,
    problem_of,
)
from advisor.train.effect import beside_shipped
from advisor.train.labelled import is_own, read_runs

Floats = NDArray[np.float64]

_LEFT_OUT_OF: Final = 5  # one program in five
_COLUMNS: Final = ("X", "truth", "offset", "groups", "is_censored")
_PARTED: Final = tuple(NAMES.index(n) for n in ("instances", "accelerators"))


@dataclass(frozen=True, slots=True)
class _Part:
    """The runs of one file as a worker holds them: what is learned from stays there."""

    X: Floats
    r: Floats
    told: _Told


@dataclass(frozen=True, slots=True)
class _Told:
    """What comes to the machine that asked, one a file."""

    rows: int
    left_out: Problem | None
    median: float
    rows_by_kind: NDArray[np.intp]
    bounds: Floats  # rows with the least and the greatest value of every feature, by kind
    accelerators: Mapping[str, int]
    sha256: str


def train_on_dask(
    paths: Sequence[Path], *, fmt: str = "auto", target: str = "over_analytic", rounds: int = 300,
    seed: int = 0,
) -> tuple[TrainedModel, dict[str, Any]]:  # fmt: skip
    """Fit boosted trees on runs that lie in many files, with the Dask client that is open.

    Raises ModelError if no program is left to judge the model by, or none to learn from.

    ``paths``: files that every worker can read, each of a size that one worker can hold.
    """
    array: Any = importlib.import_module("dask.array")
    dask: Any = importlib.import_module("dask")
    dask_xgboost: Any = importlib.import_module("xgboost.dask")
    client: Any = importlib.import_module("distributed").get_client()
    parts = client.map(_read, list(paths), fmt=fmt, target=target, pure=False)
    told: list[_Told] = client.gather(client.map(attrgetter("told"), parts, pure=False))
    asked = _joined([t.left_out for t in told if t.left_out is not None])
    if asked is None or not any(t.rows for t in told):
        raise ModelError(
            "too few programs: one in five is left out, and none was left to "
            + ("judge the model by" if asked is None else "learn from"),
            hint="add runs of other programs, or leave out --spread",
        )
    width = len(FEATURES)
    learned = [(dask.delayed(part), t.rows) for part, t in zip(parts, told, strict=True) if t.rows]
    inputs = array.concatenate(
        [array.from_delayed(part.X, (rows, width), dtype=float) for part, rows in learned]
    )
    targets = array.concatenate(
        [array.from_delayed(part.r, (rows,), dtype=float) for part, rows in learned]
    )
    member = Boosting(rounds=rounds, random_state=seed, calibration_folds=0)
    settings = {k: v for k, v in member._settings().items() if k != "nthread"}
    matrix = dask_xgboost.DaskDMatrix(client, inputs, targets)
    fitted = dask_xgboost.train(client, settings, matrix, num_boost_round=rounds)
    member.booster_ = fitted["booster"]
    guarded = _guarded(member, told, asked, seed)
    return _trained(guarded, told, asked, seed)


def _read(path: Path, *, fmt: str, target: str) -> _Part:
    """Read a file where it will stay."""
    asked = problem_of(read_runs([path], fmt), cast(Target, target))
    complete = ~asked.is_censored
    is_out = np.array([_is_left_out(name) for name in asked.groups]) & complete
    kept = ~is_out & complete
    rows, left = asked.X[kept], np.log(asked.truth[kept]) - asked.offset[kept]
    parts = [rows[hull_parts(rows, _PARTED) == kind] for kind in range(2 ** len(_PARTED))]
    bounds = [_extremes(part) for part in parts if len(part)]
    told = _Told(
        rows=len(rows),
        left_out=_rows(asked, is_out) if is_out.any() else None,
        median=float(np.median(left)) if len(left) else math.nan,
        rows_by_kind=np.array([len(part) for part in parts]),
        bounds=np.vstack(bounds) if bounds else rows,
        accelerators=Counter(record.configuration[0].accelerator for record in asked.records),
        sha256=data_hash(asked.records),
    )
    return _Part(rows, left, told)


def _is_left_out(program: str) -> bool:
    digest = hashlib.sha256(program.encode()).digest()
    return int.from_bytes(digest[:8], "big") % _LEFT_OUT_OF == 0


def _extremes(rows: Floats) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns that are nan throughout
        return np.vstack([np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)])


def _rows(asked: Problem, keep: NDArray[np.bool_]) -> Problem:
    return replace(
        asked,
        records=tuple(r for r, k in zip(asked.records, keep, strict=True) if k),
        **{name: getattr(asked, name)[keep] for name in _COLUMNS},
    )


def _joined(problems: Sequence[Problem]) -> Problem | None:
    if not problems:
        return None
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(p, name) for p in problems]) for name in _COLUMNS
    }
    return replace(problems[0], records=tuple(r for p in problems for r in p.records), **joined)


def _guarded(member: Boosting, told: Sequence[_Told], asked: Problem, seed: int) -> Guarded:
    """Return the trees behind their guard, with intervals from the programs left out."""
    watched = np.flatnonzero(is_watched()).tolist()
    guarded = Guarded(
        member, guarded_columns=watched, parted_columns=_PARTED, is_adaptive=True,
        random_state=seed,
    )  # fmt: skip
    guarded.n_features_in_ = member.n_features_in_ = len(FEATURES)
    hull = Hull.of(np.vstack([t.bounds for t in told]), _PARTED, watched)
    enough = np.sum([t.rows_by_kind for t in told], axis=0) >= LEAST_ROWS
    guarded.hull_ = replace(hull, has_rows=enough)
    guarded.level_ = float(np.nanmedian([t.median for t in told]))
    guarded.member_ = member
    member.calibration_ = None
    known = np.log(asked.truth) - asked.offset
    guarded.outside_ = calibrate(asked.X, guarded.level_ - known, asked.groups)
    errors = member._answer(asked.X) - known
    guarded.calibration_ = calibrate(asked.X, errors, asked.groups, is_adaptive=True)
    return guarded


def _trained(
    guarded: Guarded, told: Sequence[_Told], asked: Problem, seed: int
) -> tuple[TrainedModel, dict[str, Any]]:
    overall = metrics(asked.predict(guarded, slice(None)), asked.truth)
    found: dict[str, Any] = {
        "seed": seed,
        "split": "job",
        "chosen": "boosting",
        "weights": {"boosting": 1.0},
        "left_out": [{"name": "boosting", "overall": overall.to_record(), "top1_regret": None}],
    }
    accelerators = sum((Counter(t.accelerators) for t in told), Counter[str]())
    digest = hashlib.sha256("".join(sorted(t.sha256 for t in told)).encode()).hexdigest()
    about = describe_features(asked, hull=guarded.hull_) | {
        "accelerators": dict(sorted(accelerators.items())),
        "data_sha256": digest,
        "records": sum(t.rows for t in told) + len(asked.records),
    }
    model = TrainedModel(
        name=OWN_RUNS, estimator=guarded, target=asked.target, channels=0, about=about,
        metrics=found,
    )  # fmt: skip
    own, answers = is_own(asked.records), asked.predict(guarded, slice(None))
    return model, {**found, "own": beside_shipped(asked, own, model, answers)}
