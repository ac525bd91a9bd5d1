r"""The spread of the ranks of one job, and how much of it stays from step to step.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
:math:`t_{is}`          what rank i computes for in step s: waiting for others is not in it. [s]
:math:`r_{is}`          that over the mean of all ranks in the step
:math:`a_i`             mean of a rank's r over the steps, less 1: what stays with the rank
:math:`e_{is}`          what is left: it comes and goes, with correlation rho from step to step
:math:`\sigma_a, \sigma_e`  their standard deviations over ranks, and over ranks and steps
======================  =========================================================================

Dividing by the mean of n ranks takes 1/n of the variance away, which is given back. Of the
variance of the rank means, what passing noise leaves in a mean of S steps is taken off:

.. math::
    \sigma_a^2 = \frac{1}{n - 1} \sum_i a_i^2 - \frac{\sigma_e^2}{S} \frac{1 + \rho}{1 - \rho}

A synchronous step waits for the slowest rank: for K ranks like these it takes :math:`1 +
\sqrt{\sigma_a^2 + \sigma_e^2}\, E[\max_K]` of the mean (``links.gradients``), since the mean
over many draws of ranks does not know which part stays.

References
----------
.. [1] Alibaba cluster-trace-gpu-v2020, mini-batch times of ten workers a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import PlanningError
from advisor.planners.links import expected_maximum

Array = NDArray[np.float64]
FEWEST_STEPS: Final = 30
# Ranks that the prior's variance between ranks counts as: published jobs lie orders of magnitude
# apart (medians of .014 to 3.05 over 80 jobs of [1]_): a few ranks of one's own outweigh it.
PRIOR_RANKS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread:
    """The measured spread of the ranks of one job."""

    # staying_fraction, passing_fraction: standard deviations over the mean: between ranks, and
    # from step to step
    staying_fraction: float
    passing_fraction: float
    lag1: float  # correlation of a rank's passing part with that of its next step
    ranks: int
    steps: int

    def __post_init__(self) -> None:
        parts = (self.staying_fraction, self.passing_fraction)
        is_known = all(0 <= one < float("inf") for one in parts) and -1 <= self.lag1 <= 1
        if not (is_known and self.ranks > 1 and self.steps > 0):
            raise ValueError(f"impossible spread of ranks: {self}")

    def with_prior(self, prior_fraction: float) -> float:
        """Return the standard deviation over workers of one step's compute, as a fraction of it.

        What stays, seen on few ranks, is joined with a prior's.
        """
        known = self.ranks - 1
        staying = known * self.staying_fraction**2 + PRIOR_RANKS * prior_fraction**2
        return float(np.sqrt(self.passing_fraction**2 + staying / (known + PRIOR_RANKS)))


def own_times(
    step_s: Mapping[int, Sequence[float]],
    wait_s: Mapping[int, Sequence[float]],
    *,
    is_wall: bool = False,
) -> Array:
    """Return what each rank computes for in each step, of shape (steps, ranks) [s].

    Parameters
    ----------
    step_s, wait_s : mapping of int to sequence of float
        By rank, in order: whole steps, and what of each was spent waiting for the others. Their
        ends belong to the same step; ranks may have unequal numbers of them. [s]
    is_wall : bool, default False
        Count what holds a rank back (a quota, neighbours) as its own too: a step's length is then
        that of the rank that was held back least, the same for all, for they wait for each other.
    """
    ranks = sorted(step_s)
    count = min((min(len(step_s[r]), len(wait_s.get(r, ()))) for r in ranks), default=0)
    if not count:
        return np.zeros((0, len(ranks)))
    whole = np.array([step_s[r][-count:] for r in ranks]).T
    waited = np.array([wait_s[r][-count:] for r in ranks]).T
    if is_wall:
        whole = whole.max(axis=1, keepdims=True)
    return np.asarray(np.maximum(whole - waited, 0.0))


def measured_spread(own_s: ArrayLike) -> RankSpread:
    """Return the spread of ranks by the equations above.

    ``own_s``: (steps, ranks); [s].

    Raises PlanningError if there are fewer than two ranks or thirty steps, or a rank never
    computed.
    """
    times = np.asarray(own_s, float)
    if times.ndim != 2 or times.shape[1] < 2 or times.shape[0] < FEWEST_STEPS:
        raise PlanningError(
            f"the spread of ranks needs two of them and {FEWEST_STEPS} steps, got {times.shape}",
            hint="profile for longer, with --workers 2 or more",
        )
    if not np.all(np.isfinite(times)) or np.any(times.mean(axis=0) <= 0):
        raise PlanningError("a rank that never computes has no spread", hint="profile for longer")
    steps, ranks = times.shape
    whole = times.mean(axis=1, keepdims=True)
    relative = times / np.where(whole > 0, whole, 1.0)
    mean = relative.mean(axis=0)
    passing = relative - mean
    given_back = ranks / (ranks - 1.0)
    variance = given_back * float(np.mean(passing**2)) * steps / (steps - 1.0)
    below = float(np.sum(passing[:-1] ** 2))
    lag1 = float(np.sum(passing[1:] * passing[:-1])) / below if below > 0 else 0.0
    lag1 = float(np.clip(lag1, -0.99, 0.99))
    left = variance / steps * (1 + lag1) / (1 - lag1)
    between = float(np.sum((mean - mean.mean()) ** 2)) / (ranks - 1.0)
    return RankSpread(
        staying_fraction=float(np.sqrt(max(0.0, between - left))),
        passing_fraction=float(np.sqrt(variance)), lag1=lag1, ranks=ranks, steps=steps,
    )  # fmt: skip


def per_doubling(sd_fraction: float) -> float:
    """Return the slowdown of the first doubling of the workers: laws that grow by log2 take it.

    Examples
    --------
    >>> round(per_doubling(0.031), 4)
    0.0175
    """
    return sd_fraction * float(expected_maximum(2))
