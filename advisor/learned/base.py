"""Base of all estimators: scikit-learn's contract, offsets, censored runs, intervals.

here            meaning
y               the target, on the scale that the estimator is given (mostly ln T)
offset          what physics already says of y; what is learned is the rest, r = y - offset
is_censored     y is only a lower bound: the run was cut short (``_learn_censored``)
interval        prediction +- quantile of the errors on jobs that were left out of the fit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from advisor.answer import Recorded
from advisor.learned.censored import expected_times
from advisor.learned.intervals import Calibration, calibrate
from advisor.learned.splits import group_folds
from advisor.learned.tasks import run

Floats = NDArray[np.float64]


State = dict[str, Any]

_LEAST_GROUPS: Final = 2


@dataclass(kw_only=True, eq=False, repr=False)
class RunRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators: ``fit``, ``predict`` and ``predict_interval``.

    A subclass is a dataclass of its settings, and has ``_learn(X, r, groups)``, ``_answer(X)``,
    ``state()`` and ``restore(state)``.

    Attributes
    ----------
    calibration_ : Calibration or None
        What ``predict_interval`` goes by; None where ``calibration_folds`` is 0.
    """

    calibration_folds: int = 10  # of whole groups, for the intervals; 0 makes none
    is_adaptive: bool = False  # intervals are wider where the features say that errors are
    n_jobs: int | None = None
    random_state: int = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None,
        offset: ArrayLike | None = None, is_censored: ArrayLike | None = None,
    ) -> Self:  # fmt: skip
        """Learn, and calibrate the intervals on groups that are left out in turn.

        Parameters
        ----------
        X : array-like of shape (n, features)
            nan where unknown.
        y : array-like of shape (n,)
        groups : array-like of shape (n,), optional
            Siblings that must stay together; without it every row stands alone.
        offset : array-like of shape (n,), optional
            Part of y that is known.
        is_censored : array-like of shape (n,) of bool, optional
            Where y is only a lower bound.
        """
        rows, targets = validate_data(
            self, X, y, dtype=float, y_numeric=True, ensure_all_finite="allow-nan",
            ensure_min_samples=2,
        )  # fmt: skip
        count = len(targets)
        known = self._remove(np.asarray(targets, float), _or_zeros(offset, count))
        labels = np.arange(count) if groups is None else np.asarray(groups)
        bounds = np.zeros(count, bool) if is_censored is None else np.asarray(is_censored, bool)
        self._learn_censored(rows, known, labels, bounds)
        self.calibration_ = None
        if self.calibration_folds and np.unique(labels).size >= _LEAST_GROUPS:
            self.calibration_ = self._calibrate(rows, known, labels, bounds)
        return self

    def predict(self, X: ArrayLike, *, offset: ArrayLike | None = None) -> Floats:
        """Return the prediction of each row, shape (n,)."""
        rows = self._checked(X)
        return self._add(self._answer(rows), _or_zeros(offset, len(rows)))

    def predict_interval(
        self, X: ArrayLike, coverage: float = 0.9, *, offset: ArrayLike | None = None
    ) -> Floats:
        """Return bounds that hold the truth of an unseen job with probability ``coverage``.

        Raises ValueError if ``coverage`` is not in (0, 1), or the estimator was fitted without
        calibration or on one group only.

        Returns
        -------
        array of shape (n, 2)
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be in (0, 1), got {coverage}")
        rows = self._checked(X)
        return self._band(rows, coverage, offset)[:, [0, 2]]

    def predict_band(
        self, X: ArrayLike, coverage: float = 0.9, *, offset: ArrayLike | None = None
    ) -> Floats:
        """Return low, prediction and high of each row at once, shape (n, 3).

        Half the work of ``predict`` and ``predict_interval``; raises as they do.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be in (0, 1), got {coverage}")
        return self._band(self._checked(X), coverage, offset)

    def _band(self, rows: Floats, coverage: float, offset: ArrayLike | None) -> Floats:
        half = self._half_width(rows, coverage)
        middle, known = self._answer(rows), _or_zeros(offset, len(rows))
        low, high = self._spread(middle, half)
        return np.column_stack([self._add(part, known) for part in (low, middle, high)])

    def _half_width(self, X: Floats, coverage: float) -> Floats:
        if self.calibration_ is None:
            raise ValueError("fitted without calibration, or on one group only: no intervals")
        return self.calibration_.half_width(X, coverage)

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return np.asarray(
            validate_data(self, X, reset=False, dtype=float, ensure_all_finite="allow-nan")
        )

    def _learn_censored(self, X: Floats, r: Floats, groups: Any, bounds: Any) -> None:
        """Learn; lower bounds count as what they are expected to stand for."""
        if bounds.any():
            scale = np.log if self._is_multiplicative else np.asarray
            filled = expected_times(X, scale(r), bounds)
            r = np.exp(filled) if self._is_multiplicative else filled
        self._learn(X, r, groups)

    def _calibrate(self, X: Floats, r: Floats, groups: Any, bounds: Any) -> Calibration:
        folds = list(group_folds(groups, self.calibration_folds, self.random_state))
        answers = run(
            "intervals",
            _fold_answer,
            [(self._bare(), X, r, groups, bounds, train, test) for train, test in folds],
            self.n_jobs,
        )
        errors = np.empty(len(r))
        for (_, test), answer in zip(folds, answers, strict=True):
            errors[test] = self._errors(answer, r[test])
        # A cut run's error is unknown: only that it is at least so large on one side.
        seen = ~bounds
        return calibrate(X[seen], errors[seen], groups[seen], is_adaptive=self.is_adaptive)

    def _bare(self) -> RunRegressor:
        """Return an unfitted twin without calibration and without workers of its own."""
        twin: RunRegressor = clone(self)
        return twin.set_params(calibration_folds=0, n_jobs=1)  # type: ignore[no-any-return]

    def blank(self, columns: int) -> RunRegressor:
        """Return an unfitted, uncalibrated twin that will take ``columns`` columns."""
        twin = self._bare()
        twin.n_features_in_ = columns
        twin.calibration_ = None
        return twin

    # The scale of the target: additive by default, a factor where y itself is a time.
    _is_multiplicative = False
    # What is learned, and how it is read: ``"unit"`` for the attribute ``unit_``.
    _learned: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def _remove(self, y: Floats, offset: Floats) -> Floats:
        return y / np.exp(offset) if self._is_multiplicative else y - offset

    def _add(self, r: Floats, offset: Floats) -> Floats:
        return r * np.exp(offset) if self._is_multiplicative else r + offset

    def _errors(self, answer: Floats, r: Floats) -> Floats:
        if self._is_multiplicative:
            tiny = np.finfo(float).tiny
            return np.log(np.maximum(answer, tiny)) - np.log(np.maximum(r, tiny))
        return answer - r

    def _spread(self, middle: Floats, half: Floats) -> tuple[Floats, Floats]:
        if self._is_multiplicative:
            return middle * np.exp(-half), middle * np.exp(half)
        return middle - half, middle + half

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        raise NotImplementedError

    def _answer(self, X: Floats) -> Floats:
        raise NotImplementedError

    def _named(self) -> Sequence[tuple[str, RunRegressor]]:
        return ()

    def state(self) -> State:
        """Return what was learned as plain data and arrays."""
        learned = {name: getattr(self, f"{name}_") for name in self._learned}
        return {k: v.state() if isinstance(v, Recorded) else v for k, v in learned.items()}

    def restore(self, state: State) -> None:
        """Take on what was learned."""
        for name, kind in self._learned.items():
            setattr(self, f"{name}_", kind(state[name]))


def _fold_answer(
    estimator: RunRegressor, X: Floats, r: Floats, groups: Any, bounds: Any, train: Any, test: Any
) -> Floats:
    estimator._learn_censored(X[train], r[train], groups[train], bounds[train])
    return estimator._answer(X[test])


def _or_zeros(values: ArrayLike | None, length: int) -> Floats:
    if values is None:
        return np.zeros(length)
    array = np.asarray(values, float)
    if array.shape != (length,):
        raise ValueError(f"offset must have shape ({length},), got {array.shape}")
    return array
