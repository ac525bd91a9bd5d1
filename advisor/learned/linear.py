"""Ridge regression, its strength chosen on left-out jobs; and Poisson regression of times.

A Gaussian process on what physics leaves over.

here         in the text   meaning
linear       s_l^2         variance of the linear part, per scaled feature
smooth       s_f^2         variance of the smooth part
length       l             its length, in root-mean-square distance of the scaled features
noise        s_n^2         variance of a single run

k(x, x') = s_l^2 x.x'/d + s_f^2 exp(-|x - x'|^2 / (2 d l^2)) + s_n^2 [same row], d features. The
four are those that maximise ln p(r) = -r K^-1 r / 2 - ln|K| / 2 - n ln(2 pi) / 2 (Rasmussen &
Williams 2006, eq. 2.30) plus a weak prior; the mean is k(x, X) K^-1 r (eq. 2.25). More rows than
``most_rows`` are thinned evenly over the groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from advisor.learned.base import Floats, RunRegressor
from advisor.learned.intervals import Scaling, group_folds

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


# Prior of the logarithms: medians and standard deviations. On standardised targets; a linear part
# and a smooth part of order one, noise a tenth of the variance. Weak: a factor e^1.5 either way.
_PRIOR_MEDIANS: Final = np.log([1.0, 0.5, 1.0, 0.05])
_PRIOR_SD: Final = np.array([1.5, 1.5, 0.7, 1.5])
_JITTER: Final = 1e-8
_CHUNK: Final = 4096  # rows predicted at once
_SETTLED: Final = 1e-6  # relative gain of a step: the posterior is known to a thousandth of a nat


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianProcess(RunRegressor):
    """Linear trend plus smooth deviation, with the strength of each learned.

    Attributes
    ----------
    log_parameters_ : array of shape (4,)
        ln of s_l^2, s_f^2, l, s_n^2, for standardised targets.
    """

    # the cost of a fit grows with the cube of the rows, of a prediction with the rows
    most_rows: int = 400

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        from scipy.linalg import cho_factor, cho_solve
        from scipy.optimize import minimize

        kept = _thinned(groups, self.most_rows, self.random_state)
        self.scaling_ = Scaling.fit(X)
        self.rows_ = self._scaled(X[kept])
        self.level_ = float(np.mean(r))
        self.unit_ = max(float(np.std(r)), 1e-12)
        target = (r[kept] - self.level_) / self.unit_
        distances = _distances(self.rows_, self.rows_)
        products = self.rows_ @ self.rows_.T
        found = minimize(
            _negative_log_posterior, _PRIOR_MEDIANS, args=(distances, products, target),
            method="L-BFGS-B", jac=True, options={"maxiter": 60, "ftol": _SETTLED},
            bounds=[(-12, 6), (-12, 6), (-3, 3), (-9, 3)],
        )  # fmt: skip
        self.log_parameters_ = np.asarray(found.x, float)
        factor = cho_factor(_kernel(self.log_parameters_, distances, products), lower=True)
        self.weights_ = np.asarray(cho_solve(factor, target), float)

    def _scaled(self, X: Floats) -> Floats:
        """Scaled rows over root d, so that distances and products are means over features."""
        return np.asarray(self.scaling_.apply(X) / math.sqrt(max(X.shape[1], 1)), float)

    def _answer(self, X: Floats) -> Floats:
        linear, smooth, length, _ = np.exp(self.log_parameters_)
        slopes = linear * (self.weights_ @ self.rows_)
        out = np.empty(len(X))
        for start in range(0, len(X), _CHUNK):
            rows = self._scaled(X[start : start + _CHUNK])
            near = np.exp(_distances(rows, self.rows_) / (-2.0 * length**2))
            out[start : start + _CHUNK] = rows @ slopes + smooth * (near @ self.weights_)
        return np.asarray(self.level_ + self.unit_ * out, float)

    _learned: ClassVar[Mapping[str, Any]] = {
        "scaling": Scaling.from_state, "rows": np.asarray, "weights": np.asarray,
        "log_parameters": np.asarray, "level": float, "unit": float,
    }  # fmt: skip


def _thinned(groups: Any, most: int, seed: int) -> Any:
    """Return the indices of at most ``most`` rows, every group keeping its share."""
    order = np.random.default_rng(seed).permutation(len(groups))
    if len(order) <= most:
        return np.sort(order)
    by_group = order[np.argsort(np.asarray(groups)[order], kind="stable")]
    return np.sort(by_group[np.linspace(0, len(order) - 1, most).astype(int)])


def _distances(A: Floats, B: Floats) -> Floats:
    squares = (A**2).sum(axis=1)[:, None] + (B**2).sum(axis=1)[None, :] - 2.0 * A @ B.T
    return np.asarray(np.maximum(squares, 0.0), float)


def _kernel(log_parameters: Floats, distances: Floats, products: Floats) -> Floats:
    linear, smooth, length, noise = np.exp(log_parameters)
    covariance = linear * products + smooth * np.exp(distances / (-2.0 * length**2))
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER
    return np.asarray(covariance)


def _negative_log_posterior(
    log_parameters: Floats, distances: Floats, products: Floats, target: Floats
) -> tuple[float, Floats]:
    """Return the value and its gradient (Rasmussen & Williams 2006, eq. 5.9), prior included."""
    from scipy.linalg import cho_factor, cho_solve, lapack

    linear, smooth, length, noise = np.exp(log_parameters)
    n = len(target)
    near = smooth * np.exp(distances / (-2.0 * length**2))
    covariance = linear * products + near
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER
    factor = cho_factor(covariance, lower=True)
    weights = cho_solve(factor, target)
    lower = np.tril(lapack.dpotri(factor[0], lower=1)[0])  # a third of the work of a solve
    inverse = lower + lower.T - np.diag(np.diag(lower))
    inner = np.outer(weights, weights) - inverse
    gradient = 0.5 * np.array([
        np.sum(inner * products) * linear,
        np.sum(inner * near),
        np.sum(inner * near * distances) / length**2,
        np.trace(inner) * noise,
    ])  # fmt: skip
    from_prior = (log_parameters - _PRIOR_MEDIANS) / _PRIOR_SD
    value = (
        0.5 * target @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * n * math.log(2 * math.pi)
    )
    return float(value + 0.5 * from_prior @ from_prior), from_prior / _PRIOR_SD - gradient
