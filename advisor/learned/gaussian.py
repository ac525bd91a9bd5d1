"""A Gaussian process on what physics leaves over.

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
from advisor.learned.intervals import Scaling

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
