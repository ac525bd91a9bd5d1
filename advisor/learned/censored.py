"""Runs that were cut short: what their times are expected to be, given that they are longer.

here     in the text   meaning
bound    c_i           the time at which run i was cut, on the estimator's scale
middle   mu_i          ridge regression's answer
spread   sigma         standard deviation of the errors
mills    lambda        phi(z) / (1 - Phi(z)) at z = (c_i - mu_i) / sigma

The EM iteration of a censored normal regression (Tobin 1958; Aitkin 1981, section 2): a cut run
counts as mu_i + sigma lambda, and its share of sigma^2 is sigma^2 (1 + z lambda - lambda^2) plus
the squared distance of that from mu_i. What it converges to is handed to the estimator proper,
which then learns once.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.learned.intervals import Scaling

Floats = NDArray[np.float64]

_ROUNDS: Final = 200
_STRENGTH: Final = 1.0
_SETTLED: Final = 1e-4  # of the spread


def expected_times(X: Floats, y: Floats, is_bound: NDArray[np.bool_]) -> Floats:
    """Return y with each lower bound replaced by its expectation, never below the bound."""
    from scipy.special import log_ndtr

    if not is_bound.any() or is_bound.all():
        return y
    rows = np.column_stack([np.ones(len(y)), Scaling.fit(X).apply(X)])
    penalty = _STRENGTH * np.eye(rows.shape[1])
    penalty[0, 0] = 0.0
    solver = np.linalg.solve(rows.T @ rows + penalty, rows.T)
    filled, bounds = y.copy(), y[is_bound]
    spread = max(float(np.std(y)), 1e-12)
    for _ in range(_ROUNDS):
        middle = rows @ (solver @ filled)
        z = (bounds - middle[is_bound]) / spread
        mills = np.exp(-0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - log_ndtr(-z))
        mills = np.maximum(mills, z)  # far in the tail both grow alike
        expected = np.maximum(middle[is_bound] + spread * mills, bounds)
        moved = float(np.max(np.abs(expected - filled[is_bound])))
        filled[is_bound] = expected
        squares = (filled - middle) ** 2
        squares[is_bound] += spread**2 * np.clip(1.0 + z * mills - mills**2, 0.0, 1.0)
        spread = max(math.sqrt(float(np.mean(squares))), 1e-12)
        if moved < _SETTLED * spread:
            break
    return filled
