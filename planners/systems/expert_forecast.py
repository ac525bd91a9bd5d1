"""A forecast of how much each expert of a layer is used soon, learned from earlier tokens.

A ridge regression in closed form, one for each layer:

    y(t) = sum over s >= 1 of gamma^(s-1) use(t + s)        discounted use, per expert
    x(t) = [1, use(t), a moving average for each of SPANS, the counts so far / t]
    W    = (X'X + ridge I)^-1 X'Y

Recency, frequency and which expert follows which are columns of x, so that LRU and LFU are near
points of the same family and the trace decides between them. No network is trained: with some
thousand tokens a linear map is as much as the data carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.systems.expert_caching import LayerSteps

GAMMA: Final = 0.5  # chosen on the trace of examples/stdlib_moe.py among 0.5, 0.8, 0.9 and 0.97
SPANS: Final = (4, 32)  # tokens
_RIDGE: Final = 1.0  # of one token
_AT_ONCE: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class UseForecast:
    """A learned map from what was used to what will be."""

    experts: int
    weights: NDArray[np.float64]  # (features, experts)

    def expected(self, steps: LayerSteps) -> NDArray[np.float64]:
        """Return the expected discounted use of each expert after each access.

        ``steps``: the experts of each token, or of the tokens that are computed together.

        Returns
        -------
        ndarray of shape (accesses, experts)
            The router names all experts of a token at once: those still to come in this token
            are expected above all others.
        """
        sizes = [len(one) for one in steps]
        used = _features(_uses(steps, self.experts)) @ self.weights
        found: NDArray[np.float64] = np.repeat(used, sizes, axis=0)
        row = 0
        for one in steps:
            for done in range(len(one)):
                found[row, one[done + 1 :]] += _AT_ONCE
                row += 1
        return found


def learn(steps: LayerSteps, experts: int) -> UseForecast:
    """Fit the forecast to a trace of one layer, as ``UseForecast.expected`` takes it."""
    used = _uses(steps, experts)
    later = np.zeros_like(used)
    for at in range(len(used) - 2, -1, -1):
        later[at] = used[at + 1] + GAMMA * later[at + 1]
    x = _features(used)
    inside = x.T @ x + _RIDGE * np.eye(x.shape[1])
    return UseForecast(
        experts=experts, weights=np.linalg.solve(inside, x.T @ later).astype(np.float64)
    )


def _uses(steps: LayerSteps, experts: int) -> NDArray[np.float64]:
    used = np.zeros((len(steps), experts))
    for row, one in zip(used, steps, strict=True):
        if one.ndim != 1 or (one.size and not 0 <= one.min() <= one.max() < experts):
            raise ValueError(f"experts below {experts} by token, got shape {one.shape}")
        np.add.at(row, one, 1.0)
    return used


def _features(used: NDArray[np.float64]) -> NDArray[np.float64]:
    count = len(used)
    parts = [np.ones((count, 1)), used]
    for span in SPANS:
        mean = np.zeros_like(used)
        level = np.zeros(used.shape[1])
        for at in range(count):
            level += (used[at] - level) / span
            mean[at] = level
        parts.append(mean)
    parts.append(np.cumsum(used, axis=0) / np.arange(1, count + 1)[:, None])
    return np.hstack(parts)
