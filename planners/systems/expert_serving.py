"""Token latency and memory of a mixture of experts whose experts do not all stay on the device.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``expert_bytes`` S  of one expert's weights. [bytes]
``link``        b   bytes per second from where the experts lie to the device. [bytes/s]
``compute_s``       one token with every expert on the device. [s]
``cached``      C   experts a layer that stay there
``hit_rate``    h   of the accesses of a layer [fraction]
``requests``        decoded together: a step gives each of them a token, and needs the experts of
                    any of them once
==================  ============================================================================

    S of a gated layer  3 x hidden x inner x bytes a weight
    token_s             compute + sum over layers  loads that are waited for x S / b
    memory              dense + layers x C x S

where (1 - h) of the accesses are waited for in caches that load on a miss. A load ahead of use
(the periodic rule) is hidden as far as the link is idle while tokens are computed, which
``loaded_ahead`` replays.

Published checks (eMoE, arXiv 2503.06823): Mixtral-8x7B's expert is 352 MB and takes 11 to 14 ms
over 25 to 32 GB/s; with every access a miss, two experts in 32 layers, a token takes 0.7 to 0.9
s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    PlanningError,
    check_counts,
    check_not_negative,
    check_positive,
    refused,
)
from advisor.planners.systems.expert_caching import (
    Policy,
    Served,
    Steps,
    foreseen,
    oracle,
    used_least,
)
from advisor.planners.systems.expert_forecast import learn

# Tokens between two choices of the periodic rule: perplexity stayed flat for 20 to 40 (eMoE).
PERIOD: Final = 32


def _most_used(stretch: Sequence[int], kept: set[int], capacity: int) -> list[int]:
    """Return what a period keeps, the most used first; what is there stays where room is left."""
    counts = np.bincount(stretch)
    most = np.argsort(-counts, kind="stable")[:capacity]
    chosen = [int(one) for one in most if counts[one]]
    return chosen + sorted(kept - set(chosen))[: capacity - len(chosen)]


def loaded_ahead(
    mixture: Mixture, steps: Steps, capacity: int, *, period: int = PERIOD, warm: int = 0
) -> tuple[Served, float]:
    """Return what the periodic rule does over a real link, and a token's latency [s].

    What a period brings in comes while tokens are computed, the most used of all layers first. An
    expert that is needed before is loaded at once, and the token waits: only that shows.

    ``steps``: the experts that are needed, by layer and token; ``warm``: [tokens].
    """
    load_s = mixture.expert_bytes / mixture.link_bytes_per_s
    kept: list[set[int]] = [set() for _ in steps]
    chosen: list[set[int]] = [set() for _ in steps]
    coming: dict[tuple[int, int], None] = {}  # in order
    accesses = hits = loads = 0
    idle_s = 0.0

    def arrive(layer: int, expert: int) -> None:
        del coming[layer, expert]
        if len(kept[layer]) >= capacity:
            kept[layer].remove(min(kept[layer] - chosen[layer]))
        kept[layer].add(expert)

    for at in range(len(steps[0])):
        if at and at % period == 0:
            ranked = [
                _most_used([int(e) for one in layer[at - period : at] for e in one], own, capacity)
                for layer, own in zip(steps, kept, strict=True)
            ]
            chosen = [set(one) for one in ranked]
            wanted = [(k, layer) for layer, one in enumerate(ranked) for k in range(len(one))]
            coming = {
                (layer, ranked[layer][k]): None
                for k, layer in sorted(wanted) if ranked[layer][k] not in kept[layer]
            }  # fmt: skip
        for layer, of_layer in enumerate(steps):
            idle_s += mixture.compute_s / len(steps)
            while coming and idle_s >= load_s:
                idle_s -= load_s
                loads += at >= warm
                arrive(*next(iter(coming)))
            idle_s *= bool(coming)
            needed = [int(one) for one in of_layer[at]]
            missed = [one for one in needed if one not in kept[layer]]
            for one in missed:
                if (layer, one) in coming:
                    arrive(layer, one)
            if at >= warm:
                accesses, hits = accesses + len(needed), hits + len(needed) - len(missed)
                loads += len(missed)
    served = Served(accesses=accesses, hits=hits, loads=loads)
    judged = max(len(steps[0]) - warm, 1)
    return served, mixture.compute_s + load_s * (accesses - hits) / judged


# Sizes of the cache that are tried: more say nothing more, and each is a replay a policy.
MOST_SIZES: Final = 12
# By how much less time a token must take for a forecast to be worth computing.
LEAST_WIN: Final = 0.01


def gated_expert_bytes(hidden: int, inner: int, bytes_per_weight: float = 2.0) -> float:
    """Return the size of an expert of three matrices (gate, up, down) [bytes].

    Examples
    --------
    >>> gated_expert_bytes(4096, 14336) / 1e6  # Mixtral-8x7B in 16 bits
    352.321536
    """
    check_counts("expert", hidden=hidden, inner=inner)
    check_positive("expert", bytes_per_weight=bytes_per_weight)
    return 3.0 * hidden * inner * bytes_per_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A mixture of experts that serves.

    Raises PlanningError if an amount makes no sense.
    """

    # experts, top: of a layer, and how many each token uses
    experts: int
    top: int
    layers: int
    # expert_bytes, dense_bytes: of one expert, and of everything that is none [bytes]
    expert_bytes: float
    dense_bytes: float
    compute_s: float  # one token with everything on the device [s]
    link_bytes_per_s: float  # over which experts come [bytes/s]

    def __post_init__(self) -> None:
        check_counts("experts", experts=self.experts, top=self.top, layers=self.layers)
        check_positive(
            "experts", expert_bytes=self.expert_bytes, link_bytes_per_s=self.link_bytes_per_s
        )
        check_not_negative("experts", dense_bytes=self.dense_bytes, compute_s=self.compute_s)
        if self.top > self.experts:
            raise refused(
                f"{self.top} experts a token of {self.experts} are out of range",
                "a token uses some of the experts",
            )

    def token_s(self, loads: Sequence[float]) -> float:
        """Return the latency of a token, given the loads that each layer waits for [s]."""
        check_not_negative("layer", loads=np.asarray(loads, float))
        return self.compute_s + self.expert_bytes / self.link_bytes_per_s * float(sum(loads))

    def memory_bytes(self, cached: float) -> float:
        """Return what the device holds with so many experts a layer [bytes]."""
        return self.dense_bytes + self.layers * cached * self.expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """One size of the cache under one policy."""

    policy: Policy
    cached: int
    hit_rate: float
    # token_s, memory_bytes: [s], [bytes]
    token_s: float
    memory_bytes: float


def together(trace: NDArray[np.int64], requests: int) -> Steps:
    """Return the experts that each step needs where so many requests are decoded together.

    ``trace``: (layers, tokens, top); it is cut into as many stretches, one a request.

    Raises PlanningError if ``requests`` is not a count.
    """
    check_counts("requests", requests=requests)
    layers, tokens, top = trace.shape
    steps = tokens // requests
    cut = trace[:, : steps * requests].reshape(layers, requests, steps, top)
    if requests == 1:
        return [list(layer) for layer in cut[:, 0]]
    return [
        [np.array(list(dict.fromkeys(layer[:, at].ravel().tolist()))) for at in range(steps)]
        for layer in cut
    ]


def cache_sizes(
    mixture: Mixture, trace: NDArray[np.int64], policies: Sequence[Policy], *,
    before: NDArray[np.int64], requests: int = 1,
) -> tuple[CacheSize, ...]:  # fmt: skip
    """Return what every policy makes of every size of the cache.

    ``trace``: (layers, tokens, top); the experts of every token; what is judged; ``before``: an
    earlier trace, which fills the caches and teaches the learned policy; ``requests``: decoded
    together.

    Raises PlanningError if the trace is not the mixture's.
    """
    for part in (before, trace):
        shape = (mixture.layers, mixture.top)
        if part.ndim != 3 or (part.shape[0], part.shape[2]) != shape or not part.shape[1]:
            raise PlanningError(
                f"a trace of shape {part.shape} is not of {shape[0]} layers, {shape[1]} experts",
                hint="profile the script again",
            )
    earlier, later = together(before, requests), together(trace, requests)
    whole = [[*a, *b] for a, b in zip(earlier, later, strict=True)]
    warm, judged = len(earlier[0]), len(later[0])
    found = []
    for policy in policies:
        expected = [
            learn(a, mixture.experts).expected(layer) if policy == "learned" else None
            for a, layer in zip(earlier, whole, strict=True)
        ]
        for cached in _sizes(mixture):
            if policy == "periodic":
                of_all, token_s = loaded_ahead(mixture, whole, cached, warm=warm)
                served = [of_all]
            else:
                served = [
                    _served(policy, layer, cached, ahead, warm)
                    for layer, ahead in zip(whole, expected, strict=True)
                ]
                token_s = mixture.token_s([one.loads / judged for one in served])
            found.append(CacheSize(
                policy=policy, cached=cached,
                hit_rate=sum(one.hits for one in served) / sum(one.accesses for one in served),
                token_s=token_s, memory_bytes=mixture.memory_bytes(cached),
            ))  # fmt: skip
    return tuple(found)


def met_experts(experts: int, top: int, requests: int) -> float:
    """Return how many experts of a layer a step meets, each as likely as another.

    >>> met_experts(8, 2, 1), round(met_experts(8, 2, 16), 1)
    (2.0, 7.9)
    """
    return experts * (1.0 - (1.0 - top / experts) ** requests)


def unrecorded_sizes(mixture: Mixture, *, requests: int = 1) -> tuple[CacheSize, ...]:
    """Return what LRU makes of every size where no routing was recorded.

    Each expert is taken to be as likely as another, whatever came before; knowing more (some are
    popular, routing sticks) only helps.
    """
    met = met_experts(mixture.experts, mixture.top, requests)
    found = []
    for cached in _sizes(mixture):
        hits = drawn_hits(mixture.experts, cached, met)
        found.append(CacheSize(
            policy="lru", cached=cached, hit_rate=hits / met,
            token_s=mixture.token_s([met - hits] * mixture.layers),
            memory_bytes=mixture.memory_bytes(cached),
        ))  # fmt: skip
    return tuple(found)


def drawn_hits(experts: int, cached: int, met: float) -> float:
    """Return how many of the experts that a step needs LRU finds, each as likely as another.

    Before the j-th (from 0) the cache holds the j of this step and C - j of the E - j others, one
    of which is asked for. From the C-th on none is found: with fewer places than a token has
    experts, at least the difference is loaded again, whatever is used.

    >>> drawn_hits(8, 8, 2.0), drawn_hits(8, 1, 2.0)
    (2.0, 0.125)
    """
    j = np.arange(min(cached, math.ceil(met)))
    return float(np.sum(np.clip(met - j, 0.0, 1.0) * (cached - j) / (experts - j)))


def forecasts_that_win(sizes: Sequence[CacheSize]) -> tuple[CacheSize, ...]:
    """Return the sizes, learned forecasts only where no simpler rule serves about as fast."""
    simple = dict.fromkeys((size.cached for size in sizes), np.inf)
    for one in sizes:
        if one.policy not in ("learned", "oracle"):
            simple[one.cached] = min(simple[one.cached], one.token_s)
    return tuple(
        one for one in sizes
        if one.policy != "learned" or one.token_s < (1.0 - LEAST_WIN) * simple[one.cached]
    )  # fmt: skip


def smallest_within(
    sizes: Sequence[CacheSize], *, token_s: float, memory_bytes: float = np.inf
) -> CacheSize | None:
    """Return the smallest cache that serves a token in time, the fastest of that size.

    None where none does. The oracle serves nobody and is left out.
    """
    good = [
        one for one in sizes
        if one.policy != "oracle" and one.token_s <= token_s and one.memory_bytes <= memory_bytes
    ]  # fmt: skip
    return min(good, key=lambda one: (one.cached, one.token_s, one.policy), default=None)


def _sizes(mixture: Mixture) -> list[int]:
    """Return sizes from one expert, fewer than a token may use, to all of them."""
    spread = np.linspace(1, mixture.experts, MOST_SIZES - 1)
    return sorted({mixture.top, *(round(float(one)) for one in spread)})


def _served(
    policy: Policy, layer: Sequence[NDArray[np.int64]], cached: int,
    expected: NDArray[np.float64] | None, warm: int,
) -> Served:  # fmt: skip
    order, count = np.concatenate(layer), sum(len(one) for one in layer[:warm])
    if expected is not None:
        return foreseen(order, cached, expected, warm=count)
    if policy == "oracle":
        return oracle(order, cached, warm=count)
    return used_least(order, cached, by_count=policy == "lfu", warm=count)
