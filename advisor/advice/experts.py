"""``advise --serving``: how many experts of a mixture stay on the device once it serves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.advice.facts import Advice, Facts, How
from advisor.catalogue import Catalogue
from advisor.collectors.format import Routing
from advisor.errors import UsageError
from advisor.machines import part
from advisor.planners.core import GIB, PlanningError
from advisor.planners.systems import (
    POLICIES,
    CacheSize,
    Mixture,
    cache_sizes,
    che_hit_rate,
    smallest_within,
)

_FEWEST_TOKENS: Final = 64
# Accesses that are replayed for each size and policy: a second of computing for all of them.
_MOST_ACCESSES: Final = 48_000
# What a token may take, by default, over what it takes with every expert on the device.
_SLOWER: Final = 2.0
_WORDS: Final = {
    "lru": "replace the expert used longest ago (LRU)",
    "lfu": "replace the expert used least often (LFU)",
    "periodic": "every 32 tokens take the most used of the 32 before",
    "learned": "replace the expert that a linear forecast, learned from the trace, expects least",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A question about serving; None is the default."""

    # longest latency of a token; twice that with every expert on the device [s]
    token_s: float | None = None
    memory_bytes: float | None = None  # for weights on the device; all that it has [bytes]
    # over which experts come: the card's PCIe, on a processor its disk [bytes/s]
    link_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a model would be served."""

    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    link: str


def serving_advice(facts: Facts, asked: Serving, catalogue: Catalogue) -> Advice:
    """Return the smallest cache of experts that serves a token in time.

    ``facts``: of a recorded job whose routers were seen, on one machine or device.

    Raises UsageError if no routing was recorded, or nothing is known of the device or the link.
    Raises PlanningError if no cache is small and fast enough; exit code 3.
    """
    routing = None if facts.recording is None else facts.recording.routing
    if routing is None or not routing.passes:
        raise UsageError(
            f"{facts.job.name}: no layer was seen to route tokens to experts",
            hint="profile a script whose model has a router and experts: "
            "examples/stdlib_moe.py has",
        )
    place = _place(facts, asked, catalogue)
    mixture = Mixture(
        experts=routing.experts, top=routing.top, layers=len(routing.layers),
        expert_bytes=routing.expert_bytes, dense_bytes=routing.dense_bytes,
        compute_s=_read_s(routing, place), link_bytes_per_s=place.link_bytes_per_s,
    )  # fmt: skip
    before, trace = _halves(trace_of(routing), routing)
    sizes = cache_sizes(mixture, trace, POLICIES, before=before)
    limit_s = asked.token_s or _SLOWER * mixture.compute_s
    room = asked.memory_bytes or place.memory_bytes
    chosen = smallest_within(sizes, token_s=limit_s, memory_bytes=room)
    if chosen is None:
        best = min((one for one in sizes if one.policy != "oracle"), key=lambda one: one.token_s)
        raise PlanningError(
            f"no cache of experts within {room / GIB:.3g} GiB serves a token in "
            f"{1e3 * limit_s:.3g} ms",
            hint=f"{1e3 * best.token_s:.3g} ms takes {best.memory_bytes / GIB:.3g} GiB: "
            "--latency, --memory, or another --link",
            exit_code=3,
        )
    return _advice(mixture, chosen, sizes, place, trace)


def trace_of(routing: Routing) -> NDArray[np.int64]:
    """Return the experts of every token, shape (layers, tokens, top).

    Passes in evaluation mode are the ones that a server would make; those of training stand in
    where there are none. Training learns meanwhile: the newest passes are taken.
    """
    evaluated = [one for one in routing.passes if not one.is_training]
    taken = list(evaluated or routing.passes)
    most = max(_MOST_ACCESSES // (len(routing.layers) * routing.top), 2 * _FEWEST_TOKENS)
    parts: list[NDArray[np.int64]] = []
    for one in reversed(taken):
        parts.append(np.array(one.experts, np.int64).reshape(len(routing.layers), -1, routing.top))
        if sum(part.shape[1] for part in parts) >= most:
            break
    return np.concatenate(parts[::-1], axis=1)[:, -most:]


def _halves(
    trace: NDArray[np.int64], routing: Routing
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tokens = trace.shape[1]
    if tokens < 2 * _FEWEST_TOKENS:
        raise UsageError(
            f"{tokens} tokens of {len(routing.layers)} layers say too little of a cache",
            hint="profile for longer: --for 60s",
        )
    return trace[:, : tokens // 2], trace[:, tokens // 2 :]


def _place(facts: Facts, asked: Serving, catalogue: Catalogue) -> _Place:
    offer, _ = facts.now.configuration.parts[0]
    recording = facts.recording
    if offer.accelerator is not None and offer.accelerator in catalogue.accelerators:
        card = part(catalogue.accelerators[offer.accelerator])
        return _Place(
            memory_bytes=card.memory_bytes, memory_bytes_per_s=card.memory_bytes_per_s,
            link_bytes_per_s=asked.link_bytes_per_s or card.host_bytes_per_s,
            link=f"PCIe of the {card.name}" if asked.link_bytes_per_s is None else "as given",
        )  # fmt: skip
    benchmark = None if recording is None else recording.host.benchmark
    if benchmark is None or offer.accelerator is not None or not facts.is_here:
        raise UsageError(
            f"what memory and link of {offer.instance_type} carry is not known",
            hint="name a machine with an accelerator: --on aws:g5.xlarge; or measure this one: "
            "advisor doctor",
        )
    link = asked.link_bytes_per_s or benchmark.disk_read_bytes_per_s
    if link is None:
        raise UsageError("what the disk reads is not known", hint="give it: --link 2GB/s")
    return _Place(
        memory_bytes=offer.memory_gib * GIB, memory_bytes_per_s=benchmark.copy_bytes_per_s,
        link_bytes_per_s=link,
        link="disk" if asked.link_bytes_per_s is None else "as given",
    )  # fmt: skip


def _read_s(routing: Routing, place: _Place) -> float:
    """Return what a token takes with everything on the device: its weights are read once [s]."""
    used = routing.dense_bytes + len(routing.layers) * routing.top * routing.expert_bytes
    return used / place.memory_bytes_per_s


def _advice(
    mixture: Mixture, chosen: CacheSize, sizes: tuple[CacheSize, ...], place: _Place,
    trace: NDArray[np.int64],
) -> Advice:  # fmt: skip
    full_bytes = mixture.memory_bytes(mixture.experts)
    details = _details(mixture, chosen, sizes, place, trace)
    words = (
        f"Keep {chosen.cached} of {mixture.experts} experts of each layer on the device: "
        f"{chosen.memory_bytes / GIB:.3g} GiB in place of {full_bytes / GIB:.3g} GiB."
        if chosen.cached < mixture.experts
        else f"Keep all {mixture.experts} experts of each layer on the device: "
        f"{full_bytes / GIB:.3g} GiB."
    )
    return Advice(
        name="expert-cache",
        source="experts",
        change=words,
        time_saved_h=None,
        cost_saved_usd=None,
        time_factor=chosen.token_s / mixture.compute_s,
        cost_factor=chosen.memory_bytes / full_bytes,
        evidence="measured",
        rests_on=f"{trace.shape[1]} recorded tokens in {mixture.layers} layers: "
        f"{chosen.hit_rate:.0%} of the experts they need are there "
        f"(foresight would have {details['oracle_hit_rate']:.0%}); an expert of "
        f"{mixture.expert_bytes / 2**20:.3g} MiB comes over {place.link_bytes_per_s / 1e9:.3g} "
        f"GB/s ({place.link}): a token takes {1e3 * chosen.token_s:.3g} ms, with all experts "
        f"there {1e3 * mixture.compute_s:.3g} ms (weights read once)",
        condition="For text like the recorded one, one request at a time: a batch needs more "
        "experts at once. Factors are of a token's latency and of the device's memory.",
        how=How(
            kind="lines", text=f"# {chosen.cached} experts a layer stay: {_WORDS[chosen.policy]}"
        ),
        details=details,
    )


def _details(
    mixture: Mixture, chosen: CacheSize, sizes: tuple[CacheSize, ...], place: _Place,
    trace: NDArray[np.int64],
) -> dict[str, Any]:  # fmt: skip
    foresight = next(
        one.hit_rate for one in sizes if one.policy == "oracle" and one.cached == chosen.cached
    )
    independent = [
        che_hit_rate(np.bincount(layer.ravel(), minlength=mixture.experts), chosen.cached)
        for layer in trace
    ]
    return {
        **asdict(chosen),
        "experts": mixture.experts,
        "top": mixture.top,
        "layers": mixture.layers,
        "expert_bytes": mixture.expert_bytes,
        "oracle_hit_rate": foresight,
        "independent_hit_rate": float(np.mean(independent)),
        "link_bytes_per_s": place.link_bytes_per_s,
        "link": place.link,
        "resident_token_s": mixture.compute_s,
        "resident_memory_bytes": mixture.memory_bytes(mixture.experts),
        "sizes": [asdict(one) for one in sizes],
    }
