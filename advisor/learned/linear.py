"""Ridge regression, its strength chosen on left-out jobs; and Poisson regression of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from advisor.learned.base import Floats, RunRegressor
from advisor.learned.intervals import Scaling
from advisor.learned.splits import group_folds

_STRENGTHS: Final = tuple(10.0 ** np.arange(-2, 4, 0.5))
_STRENGTH_FOLDS: Final = 10
_ROUNDS: Final = 5
_USUAL: Final = 2.0  # errors beyond this many median errors lose weight


@dataclass(kw_only=True, eq=False, repr=False)
class Ridge(RunRegressor):
    """Linear regression that keeps its slopes small.

    min_b sum_i v_i (r_i - b_0 - z_i b)^2 + a |b|^2 with z the scaled features; a is the one of
    ``strengths`` with the smallest mean absolute error on left-out groups; the weights v_i of rows
    that miss by much are lowered and the fit repeated (Huber's weights), since runs have outliers.
    """

    strengths: tuple[float, ...] = _STRENGTHS

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        self.scaling_ = Scaling.fit(X)
        scaled = self.scaling_.apply(X)
        self.strength_ = self.strengths[0]
        if len(self.strengths) > 1 and np.unique(groups).size > 1:
            losses = np.zeros(len(self.strengths))
            for train, test in group_folds(groups, _STRENGTH_FOLDS, self.random_state):
                paths = _ridge_path(scaled[train], r[train], self.strengths)
                losses += [np.abs(scaled[test] @ b + b0 - r[test]).sum() for b0, b in paths]
            self.strength_ = self.strengths[int(np.argmin(losses))]
        self.intercept_, self.coef_ = _robust(scaled, r, self.strength_)

    def _answer(self, X: Floats) -> Floats:
        return np.asarray(self.scaling_.apply(X) @ self.coef_ + self.intercept_)

    _learned: ClassVar[Mapping[str, Any]] = {
        "scaling": Scaling.from_state, "coef": np.asarray, "intercept": float, "strength": float,
    }  # fmt: skip


def _ridge_path(
    Z: Floats, r: Floats, strengths: tuple[float, ...], weights: Floats | None = None
) -> list[tuple[float, Floats]]:
    """Return intercept and slopes for each strength, by one singular value decomposition."""
    v = np.ones(len(r)) if weights is None else weights
    centre, level = np.average(Z, axis=0, weights=v), float(np.average(r, weights=v))
    root = np.sqrt(v)
    u, s, vt = np.linalg.svd((Z - centre) * root[:, None], full_matrices=False)
    projected = u.T @ ((r - level) * root)
    path = []
    for strength in strengths:
        slopes = vt.T @ (s / (s**2 + strength) * projected)
        path.append((level - float(centre @ slopes), slopes))
    return path


def _robust(Z: Floats, r: Floats, strength: float) -> tuple[float, Floats]:
    """Return intercept and slopes under Huber's weights."""
    weights = np.ones(len(r))
    intercept, slopes = 0.0, np.zeros(Z.shape[1])
    for _ in range(_ROUNDS):
        ((intercept, slopes),) = _ridge_path(Z, r, (strength,), weights)
        errors = np.abs(r - intercept - Z @ slopes)
        usual = _USUAL * max(float(np.median(errors)), 1e-12)
        weights = np.minimum(1.0, usual / np.maximum(errors, 1e-300))
    return intercept, slopes


@dataclass(kw_only=True, eq=False, repr=False)
class Poisson(RunRegressor):
    """Poisson regression of a positive target itself: ln E[y] is linear in the scaled features.

    The thesis's baseline for times. The target is y, not ln y, and an offset multiplies.
    """

    _is_multiplicative = True

    strength: float = 1e-2  # penalty on the squared slopes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        from sklearn.linear_model import PoissonRegressor

        if np.any(r < 0):
            raise ValueError(f"Poisson regression needs y >= 0, got {r.min()}")
        self.scaling_ = Scaling.fit(X)
        self.unit_ = max(float(np.mean(r)), 1e-300)  # keeps the solver's steps of order one
        model = PoissonRegressor(alpha=self.strength, max_iter=1000)
        model.fit(self.scaling_.apply(X), r / self.unit_)
        self.coef_, self.intercept_ = model.coef_, float(model.intercept_)

    def _answer(self, X: Floats) -> Floats:
        linear = self.scaling_.apply(X) @ self.coef_ + self.intercept_
        return np.asarray(self.unit_ * np.exp(np.clip(linear, -50.0, 50.0)))

    _learned: ClassVar[Mapping[str, Any]] = {
        "scaling": Scaling.from_state, "coef": np.asarray, "intercept": float, "unit": float,
    }  # fmt: skip
