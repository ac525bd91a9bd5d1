r"""Ways to mend a straggler, and what each costs.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
:math:`t_i`             what rank i computes for in a step: b_i samples, c_i whatever b_i. [s]
x                       what exchanging gradients adds to every step. [s]
:math:`t_{med}`         median of the ranks
======================  =========================================================================

**Rebalance** (LB-BSP, Cephalo): all samples are kept; b_i such that all ranks end together, at
:math:`T = (B + \sum c_i / k_i) / \sum 1 / k_i` with :math:`k_i = (t_i - c_i) / b_i`.

**Drop near-duplicates** (SMS): a rank above (1 + delta) of the median keeps
:math:`b_i' = \lfloor b_i (t_{med} - c_i) / (t_i - c_i) \rfloor` samples. Choosing them takes time:
it pays only where **selection < saved**. The gain is at most :math:`1 - t_{med} / t_{max}`, and
the batch loses (B - B') / B.

**Backup workers** (Chen et al., 2016): the n - d first count, the others' work is thrown away.

**Asynchronous**: no rank waits; gradients are old by as many updates as there are ranks.

SMS's own paper was not found: its rule is as described in public summaries, and its similarity
measure and gradient-transfer control are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.checks import check_not_negative, check_positive

Array = NDArray[np.float64]
SLOWER: Final = 0.1  # delta: below it nobody is a straggler


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mended:
    """A way of mending.

    Attributes
    ----------
    step_s : float
        Of all ranks, with the exchange. [s]
    samples_fraction : float
        Of the samples of an ordinary step, what is learned from.
    gain : float
        Samples per second, over those of now, less 1; negative where it does not pay.
    batches : ndarray of shape (ranks,)
        Samples of each rank in a step.
    """

    step_s: float
    samples_fraction: float
    gain: float
    batches: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnlikeRanks:
    """Ranks that train together and compute unequally fast.

    Attributes
    ----------
    own_s : ndarray of shape (steps, ranks)
        What each computes for. [s]
    batches : ndarray of shape (ranks,)
        Samples of each in a step.
    fixed_s : float
        Of a rank's step, whatever its samples. [s]
    """

    own_s: Array
    batches: Array
    exchange_s: float = 0.0
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("ranks", exchange_s=self.exchange_s, fixed_s=self.fixed_s)
        check_positive("ranks", own_s=self.own_s, batches=self.batches)
        if self.own_s.ndim != 2 or self.own_s.shape[1] != len(self.batches):
            raise ValueError("ranks: own_s needs a column a rank")

    @property
    def step_s(self) -> float:
        """What a synchronous step takes now [s]."""
        return float(self.own_s.max(axis=1).mean()) + self.exchange_s

    def mended(self, step_s: float, batches: ArrayLike, kept: float = 1.0) -> Mended:
        """Return what a step of such a length and such batches gains."""
        held = np.asarray(batches, float)
        fraction = kept * float(held.sum() / self.batches.sum())
        return Mended(
            step_s=step_s,
            samples_fraction=fraction,
            gain=fraction * self.step_s / step_s - 1.0,
            batches=held,
        )

    def scaled(self, batches: ArrayLike) -> float:
        """Return the mean step with other batches: computing is fixed and per sample [s]."""
        share = np.asarray(batches, float) / self.batches
        fixed = np.minimum(self.fixed_s, self.own_s)
        return float((fixed + (self.own_s - fixed) * share).max(axis=1).mean()) + self.exchange_s


def rebalanced(ranks: UnlikeRanks) -> Mended:
    """Return the step in which every rank has as many samples as it can do in one time."""
    mean = ranks.own_s.mean(axis=0)
    fixed = np.minimum(ranks.fixed_s, 0.999 * mean)
    each = (mean - fixed) / ranks.batches
    until = (ranks.batches.sum() + np.sum(fixed / each)) / np.sum(1.0 / each)
    wanted = np.maximum((until - fixed) / each, 1.0)
    batches = _whole(wanted * ranks.batches.sum() / wanted.sum(), int(ranks.batches.sum()))
    return ranks.mended(ranks.scaled(batches), batches)


def dropped(ranks: UnlikeRanks, *, selection_s: float) -> Mended:
    """Return the step in which stragglers drop near-duplicates.

    Parameters
    ----------
    selection_s : float
        What choosing the samples takes a straggler in every step; below what is saved, or the
        gain is negative. [s]
    """
    check_not_negative("dropping", selection_s=selection_s)
    mean = ranks.own_s.mean(axis=0)
    median = float(np.median(mean))
    slow = mean > (1.0 + SLOWER) * median
    fixed = np.minimum(ranks.fixed_s, 0.999 * median)
    fewer = np.maximum(np.floor(ranks.batches * (median - fixed) / (mean - fixed)), 1.0)
    batches = np.where(slow, fewer, ranks.batches)
    extra = selection_s if slow.any() else 0.0
    return ranks.mended(ranks.scaled(batches) + extra, batches)


def backed_up(ranks: UnlikeRanks, backups: int) -> Mended:
    """Return the step that waits for all but so many ranks, whose work is thrown away.

    Raises
    ------
    ValueError
        If nobody would be waited for.
    """
    count = len(ranks.batches)
    if not 0 <= backups < count:
        raise ValueError(f"{backups} backups of {count} ranks")
    order = np.sort(ranks.own_s, axis=1)[:, count - 1 - backups]
    step_s = float(order.mean()) + ranks.exchange_s
    return ranks.mended(step_s, ranks.batches, kept=(count - backups) / count)


def asynchronous(ranks: UnlikeRanks) -> Mended:
    """Return ranks that wait for nobody: a step is the time of as many samples as now."""
    rates = ranks.batches / (ranks.own_s.mean(axis=0) + ranks.exchange_s)
    return ranks.mended(float(ranks.batches.sum() / rates.sum()), ranks.batches)


def _whole(wanted: Array, total: int) -> Array:
    """Round to whole samples that keep their sum: the largest rests go up."""
    floors = np.maximum(np.floor(wanted), 1.0)
    left = total - int(floors.sum())
    if left > 0:
        floors[np.argsort(wanted - floors)[::-1][:left]] += 1.0
    return np.asarray(floors)
