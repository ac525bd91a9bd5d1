"""Token latency and memory of a mixture of experts whose experts do not all stay on the device.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``expert_bytes`` S  of one expert's weights. [bytes]
``link``        b   bytes per second from where the experts lie to the device. [bytes/s]
``overlap_s``       of a load that is hidden behind computing. [s]
``compute_s``       one token with every expert on the device. [s]
``cached``      C   experts a layer that stay there
``hit_rate``    h   of the accesses of a layer [fraction]
==================  ============================================================================

    S of a gated layer   3 x hidden x inner x bytes a weight
    token_s              compute + sum over layers  k x loads per access x max(0, S / b - overlap)
    memory               dense + layers x C x S

where loads per access = 1 - h for caches that load on a miss. A load ahead of use (the periodic
rule) takes the link as well and is counted like a miss: an upper bound where it is hidden.

Published checks (eMoE, arXiv 2503.06823): Mixtral-8x7B's expert is 352 MB and takes 11 to 14 ms
over 25 to 32 GB/s; with every access a miss, two experts in 32 layers, a token takes 0.7 to 0.9
s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.checks import check_counts, check_not_negative, check_positive
from advisor.planners.core.errors import PlanningError
from advisor.planners.experts.caching import Policy, Served, foreseen, lfu, lru, oracle, periodic
from advisor.planners.experts.forecast import learn

# Sizes of the cache that are tried: more say nothing more, and each is a replay a policy.
MOST_SIZES: Final = 12


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

    Attributes
    ----------
    experts, top : int
        Of a layer, and how many each token uses.
    expert_bytes, dense_bytes : float
        Of one expert, and of everything that is none. [bytes]
    compute_s : float
        One token with everything on the device. [s]
    link_bytes_per_s : float
        Over which experts come. [bytes/s]
    overlap_s : float
        Of each load that is hidden. [s]

    Raises
    ------
    PlanningError
        If an amount makes no sense.
    """

    experts: int
    top: int
    layers: int
    expert_bytes: float
    dense_bytes: float
    compute_s: float
    link_bytes_per_s: float
    overlap_s: float = 0.0

    def __post_init__(self) -> None:
        check_counts("experts", experts=self.experts, top=self.top, layers=self.layers)
        check_positive(
            "experts", expert_bytes=self.expert_bytes, link_bytes_per_s=self.link_bytes_per_s
        )
        check_not_negative(
            "experts", dense_bytes=self.dense_bytes, compute_s=self.compute_s,
            overlap_s=self.overlap_s,
        )  # fmt: skip
        if self.top > self.experts:
            raise PlanningError(
                f"{self.top} experts a token of {self.experts} are out of range",
                hint="a token uses some of the experts",
                exit_code=2,
            )

    def token_s(self, loads_per_access: Sequence[float]) -> float:
        """Return the latency of a token, given the loads of each layer [s]."""
        check_not_negative("layer", loads_per_access=np.asarray(loads_per_access, float))
        visible_s = max(0.0, self.expert_bytes / self.link_bytes_per_s - self.overlap_s)
        return self.compute_s + self.top * visible_s * float(sum(loads_per_access))

    def memory_bytes(self, cached: float) -> float:
        """Return what the device holds with so many experts a layer [bytes]."""
        return self.dense_bytes + self.layers * cached * self.expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """One size of the cache under one policy.

    Attributes
    ----------
    policy : {"lru", "lfu", "periodic", "learned", "oracle"}
    token_s, memory_bytes : float
        [s], [bytes]
    """

    policy: Policy
    cached: int
    hit_rate: float
    token_s: float
    memory_bytes: float


def cache_sizes(
    mixture: Mixture,
    trace: NDArray[np.int64],
    policies: Sequence[Policy],
    *,
    before: NDArray[np.int64],
) -> tuple[CacheSize, ...]:
    """Return what every policy makes of every size of the cache.

    Parameters
    ----------
    trace : ndarray of int, shape (layers, tokens, top)
        The experts of every token; what is judged.
    before : ndarray of the same form
        An earlier trace, which fills the caches and teaches the learned policy.

    Raises
    ------
    PlanningError
        If the trace is not the mixture's.
    """
    for one in (before, trace):
        shape = (mixture.layers, mixture.top)
        if one.ndim != 3 or (one.shape[0], one.shape[2]) != shape or not one.shape[1]:
            raise PlanningError(
                f"a trace of shape {one.shape} is not of {shape[0]} layers and {shape[1]} experts",
                hint="profile the script again",
            )
    whole = np.concatenate([before, trace], axis=1)
    warm = before.shape[1] * mixture.top
    found = []
    for policy in policies:
        expected = [
            learn(earlier, mixture.experts).expected(layer) if policy == "learned" else None
            for earlier, layer in zip(before, whole, strict=True)
        ]
        for cached in _sizes(mixture):
            served = [
                _served(policy, layer, cached, mixture.top, ahead, warm)
                for layer, ahead in zip(whole, expected, strict=True)
            ]
            found.append(CacheSize(
                policy=policy, cached=cached,
                hit_rate=sum(one.hits for one in served) / sum(one.accesses for one in served),
                token_s=mixture.token_s([one.loads_per_access for one in served]),
                memory_bytes=mixture.memory_bytes(cached),
            ))  # fmt: skip
    return tuple(found)


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
    """Return sizes from what a token uses to all experts."""
    spread = np.linspace(mixture.top, mixture.experts, MOST_SIZES)
    return sorted({round(float(one)) for one in spread})


def _served(
    policy: Policy, layer: NDArray[np.int64], cached: int, top: int,
    expected: NDArray[np.float64] | None, warm: int,
) -> Served:  # fmt: skip
    order = layer.ravel()
    if policy == "periodic":
        return periodic(order, cached, top=top, warm=warm)
    if expected is not None:
        return foreseen(order, cached, expected, warm=warm)
    return {"lru": lru, "lfu": lfu, "oracle": oracle}[policy](order, cached, warm=warm)
