"""The gradient noise scale, from squared norms of gradients at two batch sizes.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
:math:`G, S`            true gradient, covariance of one sample's
b, B                    batches: of one pass of one rank, and of a whole step. [samples]
:math:`m_b, m_B`        means over the sampled steps of :math:`|G_b|^2` and :math:`|G_B|^2`
noise scale             :math:`tr(S) / |G|^2`: a batch of so many samples needs twice as many
                        samples in all, and twice the fewest steps. [samples]
======================  =========================================================================

.. math::
    E |G_b|^2 = |G|^2 + tr(S) / b

at both batches gives both unknowns. Their ratio is taken of the means, not step by step: a
single step's is mostly noise. The interval is of means over drawn blocks of neighbouring steps,
as long as the root of their number, since a step's gradient is much like the one before.

References
----------
.. [1] S. McCandlish et al., "An Empirical Model of Large-Batch Training," arXiv 1812.06162,
   appendix A.1.
.. [2] J. Kaplan et al., "Scaling Laws for Neural Language Models," arXiv 2001.08361, equations
   1.6 (loss after some steps; table 3) and 5.3 (critical batch by the loss; table 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import PlanningError

_DRAWS: Final = 400
_ENDS: Final = (0.05, 0.95)
# [2]: parameters and their exponent, steps and theirs, tokens of the critical batch and theirs.
_PARAMETERS, _STEPS, _CRITICAL = (6.5e13, 0.077), (2.1e3, 0.76), (2.1e8, 0.21)
_SUBSTEPS: Final = 1000
ASSUMED_NOISE: Final = (
    "the assumed noise of language models trained from scratch (Kaplan, arXiv 2001.08361)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """The measured noise of a job's gradients."""

    samples: float  # the noise scale [samples]
    low: float  # lower end of the interval at 90 % [samples]
    high: float | None  # upper end; None where it cannot be told from an endless one [samples]
    steps: int

    def __post_init__(self) -> None:
        ends = (self.low, self.samples, np.inf if self.high is None else self.high)
        if not (0 <= ends[0] <= ends[1] <= ends[2] and 0 < self.samples < np.inf):
            raise ValueError(f"impossible noise scale: {self}")

    def more_samples(self, batch: float, other: float) -> float:
        """Return how many times the samples a job needs with another batch.

        ``batch``, ``other``: as it is, and instead [samples].

        Examples
        --------
        >>> NoiseScale(samples=100.0, low=90.0, high=110.0, steps=50).more_samples(100, 200)
        1.5
        """
        return (self.samples + other) / (self.samples + batch)


def noise_scale(
    small_batch: float, small_norm2: float, large_batch: float, large_norm2: float
) -> float:
    """Return the gradient noise scale [samples] from squared gradient norms at two batch sizes.

    ``E|G_B|^2 = |G|^2 + tr(S) / B``, solved for both unknowns (McCandlish, appendix A.1).

    Raises PlanningError if the norms contradict that (too few gradients were averaged).

    Examples
    --------
    >>> noise_scale(32, 1.0 + 640 / 32, 256, 1.0 + 640 / 256)
    640.0
    """
    signal = (large_batch * large_norm2 - small_batch * small_norm2) / (large_batch - small_batch)
    noise = (small_norm2 - large_norm2) / (1.0 / small_batch - 1.0 / large_batch)
    if not (signal > 0 and noise > 0):
        raise PlanningError(
            f"gradient norms {small_norm2:g} and {large_norm2:g} at batches {small_batch:g} and "
            f"{large_batch:g} give no noise scale",
            hint="average the squared norms over more steps",
        )
    return noise / signal


def measured_noise(
    small_batch: float,
    small_norm2: Sequence[float],
    large_batch: float,
    large_norm2: Sequence[float],
) -> NoiseScale:
    """Return the noise scale of sampled steps, with its interval.

    ``small_batch``, ``large_batch``: [samples]; ``small_norm2``, ``large_norm2``: squared norms of
    both, one of each for every sampled step.

    Raises PlanningError if the norms give none: the gradients of these steps are all noise, or all
    alike.
    """
    small, large = np.asarray(small_norm2, float), np.asarray(large_norm2, float)
    if len(small) != len(large) or not len(small) or not 0 < small_batch < large_batch:
        raise ValueError("a noise scale needs norms at two batches, one of each for every step")
    scale = noise_scale(small_batch, float(small.mean()), large_batch, float(large.mean()))
    size = max(1, round(len(small) ** 0.5))
    starts = np.random.default_rng(0).integers(
        0, len(small) - size + 1, (_DRAWS, -(-len(small) // size))
    )
    at = (starts[:, :, None] + np.arange(size)).reshape(_DRAWS, -1)
    drawn = _scales(small_batch, small[at].mean(axis=1), large_batch, large[at].mean(axis=1))
    low, high = np.quantile(drawn, _ENDS, method="nearest")
    return NoiseScale(
        samples=scale,
        low=float(min(low, scale)),
        high=float(max(high, scale)) if np.isfinite(high) else None,
        steps=len(small),
    )


def language_noise(
    parameters: float, vocabulary: int, batch_tokens: float, steps: float, points: int
) -> tuple[float, ...]:
    """Return a language model's critical batch at equal distances of its training [tokens].

    As published of dense transformers trained from scratch on text [2]_: by the loss ``L`` of the
    steps so far, which are worth ``1 / (1 + B_crit / B)`` of those at an endless batch. It stands
    for the noise scale: needed samples grow with the batch by the same law.

    ``parameters``: without embeddings; ``batch_tokens``, ``steps``: of the training as it is.

    >>> [round(one, -3) for one in language_noise(85e6, 50304, 2**19, 2000, 3)]
    [2000.0, 130000.0, 270000.0]
    """
    worth, found = 0.0, []
    least = (_PARAMETERS[0] / parameters) ** _PARAMETERS[1]
    for _ in range(_SUBSTEPS):
        loss = least + (_STEPS[0] / max(worth, 1e-9)) ** _STEPS[1]
        critical = _CRITICAL[0] / min(loss, np.log(vocabulary)) ** (1.0 / _CRITICAL[1])
        found.append(float(critical))
        worth += steps / _SUBSTEPS / (1.0 + critical / batch_tokens)
    at = np.linspace(0, _SUBSTEPS - 1, points).round().astype(int)
    return tuple(found[one] for one in at)


def _scales(
    small_batch: float, small: NDArray[np.float64], large_batch: float, large: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``noise_scale`` of many means; endless where no signal is left, 0 without noise."""
    signal = large_batch * large - small_batch * small
    noise = np.maximum((small - large) * small_batch * large_batch, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(signal > 0, noise / np.maximum(signal, 1e-300), np.inf)
    return np.asarray(found)
