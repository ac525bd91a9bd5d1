r"""Ways to mend a straggler, and what each costs.

Further parts: similar samples of a batch: which stand for the others, and what choosing them
takes.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
:math:`t_i`             what rank i computes for in a step: b_i samples, c_i whatever b_i. [s]
x                       what exchanging gradients adds to every step. [s]
:math:`t_{med}`         median of the ranks
======================  =========================================================================

**Rebalance** (LB-BSP, Cephalo): all samples are kept; b_i such that all ranks end together, at
:math:`T = (B + \sum c_i / k_i) / \sum 1 / k_i` with :math:`k_i = (t_i - c_i) / b_i`.

**Forecast** (SMS, LB-BSP): what a rank takes for the next step is an exponentially weighted mean
of its last ones, of the weight that erred least so far. Batches that follow it step by step mend
what comes and goes slowly, too (``by_forecast``).

**Drop near-duplicates** (SMS): a rank above (1 + delta) of the median keeps
:math:`b_i' = \lfloor b_i (t_{med} - c_i) / (t_i - c_i) \rfloor` samples: of the two that are
nearest to each other one goes, until so many are left (``representatives``). Choosing takes
``selection_s`` of a rank at ordinary speed: it pays only where **selection < saved**. The gain is
at most :math:`1 - t_{med} / t_{max}`, and the batch loses (B - B') / B.

**Send less often** (SMS): rank i sends its gradients in every :math:`k_i`-th step and computes one
batch meanwhile; the others wait for it then only (``sent_less``).

**Backup workers** (Chen et al., 2016): the n - d first count, the others' work is thrown away.

**Asynchronous**: no rank waits; gradients are old by as many updates as there are ranks.

SMS's own paper was not found: its three mechanisms (who will be slow, similar samples in groups,
controlled transfers) are as public summaries name them; how each is done here is our own.

The spread of the ranks of one job, and how much of it stays from step to step.

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

from advisor.planners.core import PlanningError, check_not_negative, check_positive
from advisor.planners.links import expected_maximum

Array = NDArray[np.float64]
SLOWER: Final = 0.1  # delta: below it nobody is a straggler
_LEAST_STEP: Final = 0.01  # of a rank's median


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mended:
    """A way of mending."""

    step_s: float  # of all ranks, with the exchange [s]
    samples_fraction: float  # of the samples of an ordinary step, what is learned from
    gain: float  # samples per second, over those of now, less 1; negative where it does not pay
    batches: Array  # (ranks,); samples of each rank in a step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnlikeRanks:
    """Ranks that train together and compute unequally fast."""

    own_s: Array  # (steps, ranks); what each computes for [s]
    batches: Array  # (ranks,); samples of each in a step
    exchange_s: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("ranks", exchange_s=self.exchange_s)
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
        """Return the mean step with other batches: computing is per sample [s]."""
        share = np.asarray(batches, float) / self.batches
        return float((self.own_s * share).max(axis=1).mean()) + self.exchange_s


def unlike_ranks(
    step_s: Mapping[int, Sequence[float]], wait_s: Mapping[int, Sequence[float]], *, batch: float,
    exchange_s: float = 0.0,
) -> UnlikeRanks:  # fmt: skip
    """Return recorded ranks of one batch size each, what held them back counted as theirs.

    Waiting is read every few steps and shared out over them, so a short step may seem to have
    waited for longer than it took: no step counts as less than a hundredth of a rank's
    median.

    Raises PlanningError if there are fewer than two ranks or thirty steps, or a rank hardly ever
    computes.
    """
    own = own_times(step_s, wait_s, is_wall=True)
    if own.shape[1] < 2 or len(own) < FEWEST_STEPS:
        raise PlanningError(
            f"unlike ranks need two of them and {FEWEST_STEPS} steps, got {own.shape}",
            hint="profile for longer, with --workers 2 or more",
        )
    usual = np.median(own, axis=0)
    if np.any(usual <= 0):
        raise PlanningError("a rank hardly ever computes", hint="profile for longer")
    return UnlikeRanks(
        own_s=np.maximum(own, _LEAST_STEP * usual), batches=np.full(own.shape[1], float(batch)),
        exchange_s=exchange_s,
    )  # fmt: skip


def rebalanced(ranks: UnlikeRanks) -> Mended:
    """Return the step in which every rank has as many samples as it can do in one time."""
    each = ranks.own_s.mean(axis=0) / ranks.batches
    until = ranks.batches.sum() / np.sum(1.0 / each)
    wanted = np.maximum(until / each, 1.0)
    batches = _whole(wanted * ranks.batches.sum() / wanted.sum(), int(ranks.batches.sum()))
    return ranks.mended(ranks.scaled(batches), batches)


def kept_batches(ranks: UnlikeRanks) -> Array:
    """Return what is left of each rank's batch when stragglers drop what makes them slow."""
    mean = ranks.own_s.mean(axis=0)
    median = float(np.median(mean))
    fewer = np.maximum(np.floor(ranks.batches * median / mean), 1.0)
    return np.where(mean > (1.0 + SLOWER) * median, fewer, ranks.batches)


def dropped(ranks: UnlikeRanks, *, choosing_s: ArrayLike) -> Mended:
    """Return the step in which stragglers drop near-duplicates.

    ``choosing_s``: what choosing the samples takes each straggler in every step, at its own speed;
    below what is saved, or the gain is negative. [s]
    """
    extra = np.broadcast_to(np.asarray(choosing_s, float), ranks.batches.shape)
    check_not_negative("dropping", choosing_s=extra)
    batches = kept_batches(ranks)
    busy = ranks.own_s * (batches / ranks.batches) + np.where(batches < ranks.batches, extra, 0.0)
    return ranks.mended(float(busy.max(axis=1).mean()) + ranks.exchange_s, batches)


def backed_up(ranks: UnlikeRanks, backups: int) -> Mended:
    """Return the step that waits for all but so many ranks, whose work is thrown away.

    Raises ValueError if nobody would be waited for.
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


# Weights of the newest step in a forecast; 0 is the mean of all so far.
_WEIGHTS: Final = np.array([0.0, 0.05, 0.1, 0.2, 0.5, 1.0])


def forecast(own_s: ArrayLike) -> Array:
    """Return what each step is expected to take by those before it; the first is as it was.

    ``own_s``: (steps, ranks); [s]. The weight of the newest step is, at every step, the one whose
    forecasts have erred least so far over all ranks.
    """
    own = np.asarray(own_s, float)
    means = np.tile(own[0], (len(_WEIGHTS), 1))
    erred = np.zeros(len(_WEIGHTS))
    found = own.copy()
    for s in range(1, len(own)):
        found[s] = means[int(erred.argmin())]
        apart = own[s] - means
        erred += np.abs(apart).sum(axis=1)
        means += np.where(_WEIGHTS > 0, _WEIGHTS, 1.0 / (s + 1.0))[:, None] * apart
    return found


def named_ahead(ranks: UnlikeRanks) -> tuple[int, float, float]:
    """Return how many steps had a straggler, and in which share of them it was known ahead.

    Returns
    -------
    steps, by_forecast, by_habit : int, float, float
        Steps whose slowest rank took more than 1.1 of the median; the share of them in which the
        forecast named that rank; and in which the rank that is slowest most often was it.
    """
    own = ranks.own_s
    who, said = own.argmax(axis=1), forecast(own).argmax(axis=1)
    is_slow = own.max(axis=1) > (1.0 + SLOWER) * np.median(own, axis=1)
    is_slow[0] = False  # nothing was known
    count = int(is_slow.sum())
    if not count:
        return 0, 0.0, 0.0
    often = int(np.bincount(who[is_slow]).max())
    return count, float((who == said)[is_slow].mean()), often / count


def by_forecast(ranks: UnlikeRanks) -> Mended:
    """Return steps whose batches are shared out anew by the forecast of each.

    The recorded steps are played: a rank takes per sample what it took. ``batches`` are the means.
    """
    each = forecast(ranks.own_s) / ranks.batches
    share = (1.0 / each) / np.sum(1.0 / each, axis=1, keepdims=True)
    batches = np.maximum(np.floor(share * ranks.batches.sum()), 1.0)
    batches[np.arange(len(batches)), share.argmax(axis=1)] += ranks.batches.sum() - batches.sum(
        axis=1
    )
    step_s = float((ranks.own_s * batches / ranks.batches).max(axis=1).mean()) + ranks.exchange_s
    return ranks.mended(step_s, batches.mean(axis=0))


def sent_less(ranks: UnlikeRanks, every: ArrayLike) -> Mended:
    """Return steps in which rank i sends gradients every ``every[i]`` steps, of one batch.

    The recorded steps are played: a rank begins its batch when the last one was sent, and is
    waited for when it is due.

    Raises ValueError if nobody sends in every step.
    """
    apart = np.asarray(every, int)
    if apart.shape != ranks.batches.shape or apart.min() != 1:
        raise ValueError(f"somebody sends in every step, got {apart.tolist()}")
    now, ready = 0.0, ranks.own_s[0].copy()
    for s in range(len(ranks.own_s)):
        due = (s + 1) % apart == 0
        now = max(now, float(ready[due].max())) + ranks.exchange_s
        following = ranks.own_s[min(s + 1, len(ranks.own_s) - 1)]
        ready = np.where(due, now + following, ready)
    kept = float((ranks.batches / apart).sum() / ranks.batches.sum())
    return ranks.mended(now / len(ranks.own_s), ranks.batches, kept=kept)


# What a sample that is dropped costs beside the distances: calls of numpy, and rows that are
# searched anew (lab/experiments/stragglers.py selection, 2026-11-24). [s], [s a sample]
_DROP_S: Final = 4.5e-6
_DROP_EACH_S: Final = 8e-9
_MIRROR_S: Final = 1.5e-9  # for each pair of a symmetric product: columns are read as rows [s]
# Passes over the (n, n) distances: they are made, cleared and searched. [accesses of 4 bytes]
_DISTANCE_PASSES: Final = 8.0
# Numbers of a sample, from which the product is made by halves, and up to which halves are quick:
# a longer row leaves the cache before it is used again.
_LONG_ROW: Final = 512
_LONGEST_ROW: Final = 32768


def representatives(samples: ArrayLike, keep: int) -> NDArray[np.int64]:
    """Return which samples of a batch are kept: one of the nearest two goes, again and again.

    ``samples``: (n, ...); in any unit.

    Raises ValueError if none or more than all are kept.

    Examples
    --------
    >>> representatives([[0.0], [0.1], [5.0], [9.0]], 3).tolist()
    [1, 2, 3]
    """
    flat = np.asarray(samples, np.float32).reshape(len(np.asarray(samples)), -1)
    if not 1 <= keep <= len(flat):
        raise ValueError(f"{keep} of {len(flat)} samples")
    square = np.einsum("ij,ij->i", flat, flat)
    # BLAS makes half of a symmetric product, and numpy mirrors it: that pays where rows are long.
    other = flat.T if flat.shape[1] >= _LONG_ROW else np.ascontiguousarray(flat.T)
    apart = flat @ other
    apart *= -2.0  # in place: new pages for each pass would take longer than the pass
    apart += square[:, None]
    apart += square[None, :]
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    gap = apart[np.arange(len(flat)), nearest]
    away = np.zeros(len(flat), np.float32)  # inf for those that went: no column is cleared
    for _ in range(len(flat) - keep):
        gone = int(gap.argmin())
        away[gone] = gap[gone] = np.inf
        nearest[gone] = -1
        for one in np.flatnonzero(nearest == gone):
            row = apart[one] + away
            nearest[one] = row.argmin()
            gap[one] = row[nearest[one]]
    return np.flatnonzero(nearest >= 0)


def selection_s(
    samples: float, keep: float, sample_bytes: float, *, flop_per_s: float,
    memory_bytes_per_s: float,
) -> float:  # fmt: skip
    """Return what ``representatives`` takes of one batch on an ordinary rank [s].

    ``sample_bytes``: of one sample as tensors of 4 bytes a number; ``flop_per_s``,
    ``memory_bytes_per_s``: of the processor that chooses.
    """
    check_positive("selection", samples=samples, sample_bytes=sample_bytes)
    check_positive("selection", flop_per_s=flop_per_s, memory_bytes_per_s=memory_bytes_per_s)
    size = sample_bytes / 4.0
    products_s = 2.0 * samples**2 * size / flop_per_s
    if _LONG_ROW <= size <= _LONGEST_ROW:
        products_s = products_s / 2.0 + _MIRROR_S * samples**2
    moved = 4.0 * _DISTANCE_PASSES * samples**2 + 3.0 * samples * sample_bytes
    each_s = _DROP_S + _DROP_EACH_S * samples
    return products_s + moved / memory_bytes_per_s + each_s * max(samples - keep, 0.0)


def _whole(wanted: Array, total: int) -> Array:
    """Round to whole samples that keep their sum: the largest rests go up."""
    floors = np.maximum(np.floor(wanted), 1.0)
    left = total - int(floors.sum())
    if left > 0:
        floors[np.argsort(wanted - floors)[::-1][:left]] += 1.0
    return np.asarray(floors)


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
        passing_fraction=float(np.sqrt(variance)),
        lag1=lag1,
        ranks=ranks,
        steps=steps,
    )


def per_doubling(sd_fraction: float) -> float:
    """Return the slowdown of the first doubling of the workers: laws that grow by log2 take it.

    Examples
    --------
    >>> round(per_doubling(0.031), 4)
    0.0175
    """
    return sd_fraction * float(expected_maximum(2))
