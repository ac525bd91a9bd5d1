"""Prediction intervals from errors on left-out groups: split-conformal, grouped, and adaptive.

Further parts: features on a common scale: what is unknown becomes the median, what is far is drawn
in.

here        in the text   meaning
errors      e_i           prediction - truth of row i, its group left out of the fit
weights     w_i           1 / (rows of its group): every job counts the same
difficulty  s(x)          what error is usual at x, relative to the median (1 where not adaptive)

The half-width at coverage c is s(x) q, q the w-weighted quantile of |e_i|/s(x_i) at c (n+1)/n:
split-conformal prediction (Lei et al. 2018, theorem 2) with whole jobs as the unit that is left
out and the jobs' distributions pooled (Dunn, Wasserman & Ramdas 2023, section 3.1). Pooling holds
its coverage as the number of jobs grows; for a dozen it is checked in ``lab/notes/predictors.md``.

Splits that keep siblings together: the only ones on offer.

A random split of runs puts repeats and sizes of one job on both sides and measures a look-up
(``reference/cloud_runs.md`` section 4). ``random`` here is the thesis's split, shown for
comparison and never used to choose.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.answer import Recorded
from advisor.errors import ModelError
from advisor.records import RunRecord

Floats = NDArray[np.float64]

_FURTHEST: Final = 4.0  # standard deviations: beyond it a straight line is a guess anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Recorded):
    """Median, mean and standard deviation of each feature where it was known.

    A feature that never varied scales to 0: it tells nothing, whatever its value.
    """

    medians: Floats
    means: Floats
    deviations: Floats

    @classmethod
    def fit(cls, X: Floats) -> Scaling:
        """Return the scaling of some rows, shape (n, features)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # columns that are nan throughout
            medians = np.nan_to_num(np.nanmedian(X, axis=0))
        filled = np.where(np.isnan(X), medians, X)
        means, deviations = filled.mean(axis=0), filled.std(axis=0)
        is_constant = deviations <= 1e-12 * np.maximum(np.abs(means), 1.0)
        return cls(medians=medians, means=means, deviations=np.where(is_constant, 0.0, deviations))

    def apply(self, X: Floats) -> Floats:
        """Return the scaled rows, shape (n, features)."""
        filled = np.where(np.isnan(X), self.medians, X)
        used = self.deviations > 0
        scaled = np.zeros_like(filled)
        scaled[:, used] = (filled[:, used] - self.means[used]) / self.deviations[used]
        return np.clip(scaled, -_FURTHEST, _FURTHEST)


_RIDGE: Final = 300.0  # pulls the difficulty towards 1: hundreds of rows must speak for a slope
_FOLDS: Final = 10
_WIDEST: Final = 3.0  # the difficulty stays within this factor of the median


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Recorded):
    """Scores of the left-out rows, and how hard each row is expected to be."""

    scores: Floats  # (n,); ``|e| / s``, ascending
    levels: Floats  # (n,); weight at or below each score, up to 1
    groups: int  # jobs that were left out in turn
    # (features,); ln s is linear in the scaled features; None where not adaptive
    slopes: Floats | None = None
    scaling: Scaling | None = None

    def half_width(self, X: Floats, coverage: float) -> Floats:
        """Return the half-width of each row's interval, shape (n,)."""
        level = min(coverage * (self.scores.size + 1) / self.scores.size, 1.0)
        place = min(int(np.searchsorted(self.levels, level - 1e-12)), self.scores.size - 1)
        return np.asarray(self.scores[place] * self.difficulty(X), float)

    def difficulty(self, X: Floats) -> Floats:
        """Return how large an error is usual at each row, relative to the median row."""
        if self.slopes is None or self.scaling is None:
            return np.ones(len(X))
        return _difficulty(X, self.slopes, self.scaling)


def calibrate(
    X: Floats, errors: Floats, groups: NDArray[Any], *, is_adaptive: bool = False
) -> Calibration:
    """Return the calibration of some left-out errors.

    ``is_adaptive``: let the width follow what the features say of the error.
    """
    labels, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1.0 / counts[codes]
    sizes = np.abs(errors)
    bare = _sorted(sizes, weights, labels.size)
    if not is_adaptive:
        return bare
    slopes, scaling = _slopes(X, sizes, weights)
    scores = np.empty(len(sizes))
    for train, test in _folds(codes, labels.size):
        inner, inner_scaling = _slopes(X[train], sizes[train], weights[train])
        scores[test] = sizes[test] / _difficulty(X[test], inner, inner_scaling)
    spread = _sorted(scores, weights, labels.size)
    return replace(spread, slopes=slopes, scaling=scaling)


def _folds(codes: NDArray[np.intp], groups: int) -> Iterator[tuple[Any, Any]]:
    """Yield (train, test): the difficulty of a group must not have seen its errors."""
    if groups < 2:
        every = np.arange(len(codes))
        yield every, every
        return
    for fold in range(min(_FOLDS, groups)):
        inside = codes % min(_FOLDS, groups) == fold
        yield np.flatnonzero(~inside), np.flatnonzero(inside)


def _slopes(X: Floats, sizes: Floats, weights: Floats) -> tuple[Floats, Scaling]:
    """Regress ln |e| on the scaled features."""
    scaling = Scaling.fit(X)
    floor = max(float(np.median(sizes)) / 10.0, 1e-9)
    logs = np.log(np.maximum(sizes, floor))
    root = np.sqrt(weights / weights.mean())
    design = scaling.apply(X) * root[:, None]
    target = (logs - np.average(logs, weights=weights)) * root
    penalty = _RIDGE * np.eye(design.shape[1])
    return np.linalg.solve(design.T @ design + penalty, design.T @ target), scaling


def _difficulty(X: Floats, slopes: Floats, scaling: Scaling) -> Floats:
    log_s = np.clip(scaling.apply(X) @ slopes, -np.log(_WIDEST), np.log(_WIDEST))
    return np.asarray(np.exp(log_s))


def _sorted(scores: Floats, weights: Floats, groups: int) -> Calibration:
    order = np.argsort(scores, kind="stable")
    levels = np.cumsum(weights[order]) / weights.sum()
    return Calibration(scores=scores[order], levels=levels, groups=groups)


SplitName = Literal["random", "job", "instance", "both"]
SPLITS: Final[tuple[SplitName, ...]] = ("random", "job", "instance", "both")
Indices = NDArray[np.intp]


def group_folds(groups: ArrayLike, folds: int, seed: int = 0) -> Iterator[tuple[Indices, Indices]]:
    """Yield (train, test) with whole groups in each test fold, of about equal size.

    Raises ModelError if there is only one group: nothing can be left out.

    ``groups``: shape (n,); ``seed``: breaks ties between groups of one size.
    """
    labels, codes, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    if labels.size < 2:
        raise ModelError(
            f"only one group ({labels[0] if labels.size else 'none'}): nothing can be left out",
            hint="add runs of another job, or of another instance type",
        )
    shuffled = np.random.default_rng(seed).permutation(labels.size)
    loads = np.zeros(min(folds, labels.size))
    fold_of = np.empty(labels.size, int)
    for group in sorted(shuffled, key=lambda g: -counts[g]):
        fold_of[group] = int(np.argmin(loads))
        loads[fold_of[group]] += counts[group]
    assigned = fold_of[codes]
    for fold in range(loads.size):
        yield np.flatnonzero(assigned != fold), np.flatnonzero(assigned == fold)


def left_out(
    records: Sequence[RunRecord], split: SplitName, seed: int = 0
) -> Iterator[tuple[str, Indices, Indices]]:
    """Yield (what is left out, train, test) of one of the four splits.

    ``job`` leaves out each family in turn, ``instance`` each set of instance types, ``both`` each
    pair of the two: neither the family nor the instance type of a test run is in training.
    ``random`` draws 20 % of the runs five times without overlap. Raises ModelError if there is
    only one family or instance type to leave out.
    """
    families = np.array([record.job.family for record in records])
    instances = np.array([record.instance_key for record in records])
    if split == "random":
        order = np.random.default_rng(seed).permutation(len(records))
        for fold, test in enumerate(np.array_split(order, min(5, len(records)))):
            yield f"fold {fold}", np.setdiff1d(order, test), np.sort(test)
        return
    _require_two(families if split != "instance" else instances, split)
    if split == "both":
        _require_two(instances, split)
        for family in np.unique(families):
            for instance in np.unique(instances):
                is_family, is_instance = families == family, instances == instance
                test = np.flatnonzero(is_family & is_instance)
                train = np.flatnonzero(~is_family & ~is_instance)
                if test.size and train.size:
                    yield f"{family} on {instance}", train, test
        return
    keys = families if split == "job" else instances
    for key in np.unique(keys):
        yield str(key), np.flatnonzero(keys != key), np.flatnonzero(keys == key)


def _require_two(keys: NDArray[np.str_], split: str) -> None:
    if np.unique(keys).size < 2:
        raise ModelError(
            f"split {split!r} needs two groups, there is only {', '.join(np.unique(keys))!s}",
            hint="add runs of another job or instance type, or use --split random",
        )
