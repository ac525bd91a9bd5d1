"""Prediction intervals from errors on left-out groups: split-conformal, grouped, and adaptive.

here        in the text   meaning
errors      e_i           prediction - truth of row i, its group left out of the fit
weights     w_i           1 / (rows of its group): every job counts the same
difficulty  s(x)          what error is usual at x, relative to the median (1 where not adaptive)

The half-width at coverage c is s(x) q, q the w-weighted quantile of |e_i|/s(x_i) at c (n+1)/n:
split-conformal prediction (Lei et al. 2018, theorem 2) with whole jobs as the unit that is left
out and the jobs' distributions pooled (Dunn, Wasserman & Ramdas 2023, section 3.1). Pooling holds
its coverage as the number of jobs grows; for a dozen it is checked in ``lab/notes/predictors.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Recorded

Floats = NDArray[np.float64]

_FURTHEST: Final = 4.0  # standard deviations: beyond it a straight line is a guess anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Recorded):
    """Median, mean and standard deviation of each feature where it was known.

    Features on a common scale: what is unknown becomes the median, what is far is drawn in.

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
