"""Caches of the experts of one layer: recency, frequency, periods, foresight.

==============  ================================================================================
here            meaning, unit
==============  ================================================================================
``accesses``    experts in the order in which tokens need them; k of each token, one after another
``capacity`` C  experts that the cache holds
``hits``        accesses that find their expert there
``loads``       experts brought in: one a miss, and those that a period brings ahead of use
``popularity``  share of the accesses that each expert has [fraction]
==============  ================================================================================

    LRU, LFU      a miss replaces the expert used longest ago, or least often (then longest ago)
    periodic      every p tokens the C most used of the period before; a miss is loaded, used
                  and not kept
    foreseen      a miss replaces what is expected to be used least, or is not kept (a forecast)
    oracle        a miss replaces what is used farthest in the future, or is not kept itself
    Che           sum (1 - exp(-q t)) = C,  hit rate = sum q (1 - exp(-q t))

No policy loads less than the oracle (Belady, with the choice not to keep): loading ahead can
always be put off until the use, and then it is one of the replacements that the oracle is best
among. Che's form holds for LRU where every access is drawn anew from the popularity; routing that
sticks to its experts hits more often, so that a recorded trace is asked for, not frequencies.

Sources: Belady 1966; Che, Tung and Wang 2002; the periodic rule is eMoE's (arXiv 2503.06823),
which asks its predictor once every p prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import check_counts, check_positive, refused

# Experts that are needed together, by layer and step.
Steps = Sequence[Sequence[NDArray[np.int64]]]
# The same of one layer.
LayerSteps = Sequence[NDArray[np.int64]] | NDArray[np.int64]
Policy = Literal["lru", "lfu", "periodic", "learned", "oracle"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
# Their hits do not depend on what a load takes.
BY_HITS: Final[tuple[Policy, ...]] = ("lru", "lfu", "learned")
_NEVER: Final = np.iinfo(np.int64).max
_ROOT_STEPS: Final = 200
_LEAST_SHARE: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The hits and loads of a cache on a trace."""

    accesses: int
    hits: int
    loads: int

    @property
    def hit_rate(self) -> float:
        """Of the accesses [fraction]; 1 where there was none."""
        return self.hits / self.accesses if self.accesses else 1.0


def used_least(accesses: ArrayLike, capacity: int, *, by_count: bool, warm: int = 0) -> Served:
    """Return what a cache does that replaces the expert used least often, then longest ago.

    ``by_count``: false for longest ago alone. The first ``warm`` accesses fill the cache and are
    not counted; so in the other policies.
    """
    order = _checked(accesses, capacity)
    kept: set[int] = set()
    uses: dict[int, tuple[int, int]] = {}
    hits = 0
    for at, expert in enumerate(order):
        if expert in kept:
            hits += at >= warm
        else:
            if len(kept) >= capacity:
                kept.remove(min(kept, key=lambda one: uses[one]))
            kept.add(expert)
        uses[expert] = (uses.get(expert, (0, 0))[0] + by_count, at)
    return _counted(order, hits, warm)


lru: Final = partial(used_least, by_count=False)


def foreseen(
    accesses: ArrayLike, capacity: int, expected: NDArray[np.float64], *, warm: int = 0
) -> Served:
    """Return what a cache does that gives up what is expected to be used least.

    That may be the expert that was just loaded: it is used and not kept.

    ``accesses``: shape (n,); ``expected``: (n, experts); use that is expected of each expert after
    each access; see ``forecast``.
    """
    order = _checked(accesses, capacity)
    if expected.shape[0] != len(order):
        raise ValueError(f"{len(order)} accesses, {expected.shape[0]} forecasts")
    kept: set[int] = set()
    hits = 0
    for at, expert in enumerate(order):
        hits += expert in kept and at >= warm
        kept.add(expert)
        if len(kept) > capacity:
            now = expected[at]
            kept.remove(min(kept, key=lambda one: (now[one], one)))
    return _counted(order, hits, warm)


def oracle(accesses: ArrayLike, capacity: int, *, warm: int = 0) -> Served:
    """Return what a cache does that knows every later access: nobody loads less."""
    order = _checked(accesses, capacity)
    following = [_NEVER] * len(order)
    seen: dict[int, int] = {}
    for at in range(len(order) - 1, -1, -1):
        following[at] = seen.get(order[at], _NEVER)
        seen[order[at]] = at
    until: dict[int, int] = {}
    hits = 0
    for at, expert in enumerate(order):
        if expert in until:
            hits += at >= warm
        elif len(until) >= capacity:
            farthest = max(until, key=lambda one: until[one])
            if until[farthest] <= following[at]:
                continue  # used once and not kept
            del until[farthest]
        until[expert] = following[at]
    return _counted(order, hits, warm)


def che_hit_rate(popularity: ArrayLike, capacity: float) -> float:
    """Return LRU's hit rate where each access is drawn from the popularity [fraction].

    Raises PlanningError if a share is negative, they are all zero, or the capacity is not
    positive.

    Examples
    --------
    >>> round(che_hit_rate([1, 1, 1, 1], 2), 3)  # all alike: any half of them hits half the time
    0.5
    """
    check_positive("cache", capacity=capacity)
    q = np.asarray(popularity, float)
    if not (q.ndim == 1 and np.all(q >= 0) and np.isfinite(q).all() and q.sum() > 0):
        raise refused("the popularity of experts is out of range", "give counts or shares")
    q = q[q > _LEAST_SHARE * q.max()]  # what is never used fills no place
    q /= q.sum()
    if capacity >= len(q):
        return 1.0
    low, high = 0.0, 1.0
    while np.sum(-np.expm1(-q * high)) < capacity:
        low, high = high, 2.0 * high
    for _ in range(_ROOT_STEPS):
        middle = 0.5 * (low + high)
        if np.sum(-np.expm1(-q * middle)) < capacity:
            low = middle
        else:
            high = middle
    return float(np.sum(q * -np.expm1(-q * high)))


def _checked(accesses: ArrayLike, capacity: int) -> list[int]:
    check_counts("cache", capacity=capacity)
    order = np.asarray(accesses)
    if order.ndim != 1 or (len(order) and (order.dtype.kind not in "iu" or order.min() < 0)):
        raise ValueError(f"experts in order, got {order.dtype} of shape {order.shape}")
    found: Sequence[int] = order.tolist()
    return list(found)


def _counted(order: Sequence[int], hits: int, warm: int) -> Served:
    accesses = max(len(order) - warm, 0)
    return Served(accesses=accesses, hits=hits, loads=accesses - hits)
