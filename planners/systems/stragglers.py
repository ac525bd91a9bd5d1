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

**Forecast** (SMS, LB-BSP): what a rank takes for the next step is an exponentially weighted mean
of its last ones, of the weight that erred least so far. Batches that follow it step by step mend
what comes and goes slowly, too (``by_forecast``).

**Drop near-duplicates** (SMS): a rank above (1 + delta) of the median keeps
:math:`b_i' = \lfloor b_i (t_{med} - c_i) / (t_i - c_i) \rfloor` samples: of the two that are
nearest to each other one goes, until so many are left (``similar_samples``). Choosing takes
``selection_s`` of a rank at ordinary speed: it pays only where **selection < saved**. The gain is
at most :math:`1 - t_{med} / t_{max}`, and the batch loses (B - B') / B.

**Send less often** (SMS): rank i sends its gradients in every :math:`k_i`-th step and computes one
batch meanwhile; the others wait for it then only (``sent_less``).

**Backup workers** (Chen et al., 2016): the n - d first count, the others' work is thrown away.

**Asynchronous**: no rank waits; gradients are old by as many updates as there are ranks.

SMS's own paper was not found: its three mechanisms (who will be slow, similar samples in groups,
controlled transfers) are as public summaries name them; how each is done here is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core import PlanningError, check_not_negative, check_positive
from advisor.planners.systems.rank_spread import FEWEST_STEPS, Array, own_times

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


def _whole(wanted: Array, total: int) -> Array:
    """Round to whole samples that keep their sum: the largest rests go up."""
    floors = np.maximum(np.floor(wanted), 1.0)
    left = total - int(floors.sum())
    if left > 0:
        floors[np.argsort(wanted - floors)[::-1][:left]] += 1.0
    return np.asarray(floors)
