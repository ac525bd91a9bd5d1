"""``advise --serving``: how many experts of a mixture stay on the device once it serves.

What serves is asked: the weights, the keys and values, and the link over which experts come; that
the same device could train the model does not matter. A recorded job is replayed from its routers'
choices; of a described one each expert is taken to be as likely as another, the worst case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.advice.facts import Advice, worded
from advisor.answer import told
from advisor.ask import Constraints
from advisor.catalogue import Catalogue, OfferFilter, Pricing
from advisor.collectors.format import Recording, Routing
from advisor.errors import AdvisorError, UsageError
from advisor.jobs import Job
from advisor.planners.core import (
    GIB,
    PRECISION_BYTES,
    Device,
    Link,
    PlanningError,
    key_value_width,
    transformer_parameters,
)
from advisor.planners.systems import (
    BY_HITS,
    POLICIES,
    CacheSize,
    Mixture,
    cache_sizes,
    che_hit_rate,
    forecasts_that_win,
    met_experts,
    smallest_within,
    together,
    unrecorded_sizes,
)
from advisor.quantities import digits, seconds_text, usd_text

_FEWEST_TOKENS: Final = 64
# Whatever is at hand serves smaller mixtures.
_LEAST_BYTES: Final = GIB
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
    requests: int = 1  # decoded together


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a model would be served."""

    name: str
    device: Device
    flop_per_s: float  # of large products on it
    link: Link  # over which experts come
    holds_bytes: float  # where experts wait that are not on the device [bytes]
    price_usd_per_h: float  # of one device; 0 where nobody sells it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A mixture of experts, and what is known of its routing."""

    name: str
    mixture: Mixture  # on a device that takes no time
    cache_bytes: float  # keys and values of a request; 0 where their size was not recorded
    weight_bytes: float  # of one weight
    trace: NDArray[np.int64] | None  # see ``trace_of``; None where no routing was recorded

    def met(self, requests: int) -> float:
        """Return how many experts of a layer a step needs."""
        if self.trace is None:
            return met_experts(self.mixture.experts, self.mixture.top, requests)
        return _met(self.trace, requests)

    def at(self, place: _Place, requests: int, met: float) -> Mixture:
        """Return it on a device: weights, keys and values are read once a step, or computed on."""
        mixture, layers = self.mixture, self.mixture.layers
        kept = mixture.dense_bytes + requests * self.cache_bytes
        read_s = (kept + layers * met * mixture.expert_bytes) / place.device.memory_bytes_per_s
        active = mixture.dense_bytes + layers * mixture.top * mixture.expert_bytes
        computed_s = requests * 2.0 * active / self.weight_bytes / place.flop_per_s
        return replace(
            mixture, dense_bytes=kept, compute_s=max(read_s, computed_s),
            link_bytes_per_s=place.link.bytes_per_s,
        )  # fmt: skip


def _met(trace: NDArray[np.int64], requests: int) -> float:
    """Return how many experts of a layer a step of a trace needs, on average."""
    return float(np.mean([len(one) for layer in together(trace, requests) for one in layer]))


def serving_advice(
    job: Job, recording: Recording | None, asked: Serving, catalogue: Catalogue, *,
    on: str | None = None, constraints: Constraints | None = None,
) -> Advice:  # fmt: skip
    """Return the smallest cache of experts that serves a token in time.

    ``on``: the machine, of whose devices one serves, or ``"here"``; by default the one with one
    accelerator that serves a token for the least money, among those that ``constraints`` admit.

    Raises UsageError if no routing is known, or nothing of the device or the link.
    Raises PlanningError if no cache is small and fast enough; exit code 3.
    """
    served = _served(job, recording)
    met = served.met(asked.requests)
    sizes_on = _timed(served, asked, met)
    if on is None:
        place = _cheapest(served, asked, sizes_on, catalogue, constraints or Constraints())
    elif on == "here":
        place = _here(recording, asked)
    else:
        place = _place(on, asked, catalogue)
    mixture, sizes = sizes_on(place)
    trace = None
    if served.trace is not None:
        before, trace = _halves(served.trace, asked.requests)
        rest = tuple(one for one in POLICIES if one not in BY_HITS)
        sizes += cache_sizes(mixture, trace, rest, before=before, requests=asked.requests)
        sizes = forecasts_that_win(sizes)
    chosen = _chosen(mixture, sizes, place, asked)
    return _advice(served, mixture, chosen, sizes, place, trace, asked.requests)


def serving_words(
    job: Job, recording: Recording | None, catalogue: Catalogue, limits: Constraints
) -> str:
    """Say in a line what serves a mixture of experts once it is trained; nothing of others."""
    try:
        one = serving_advice(job, recording, Serving(), catalogue, constraints=limits).details
    except (AdvisorError, PlanningError):
        return ""
    if one["resident_memory_bytes"] < _LEAST_BYTES:
        return ""
    usd, kept = one["usd_per_million_tokens"], f"{one['cached']} of {one['experts']}"
    stays = f"{kept if one['cached'] < one['experts'] else 'all'} experts of a layer on it"
    said = f", {usd_text(usd)} per million tokens" if usd else ""
    return f"Once trained, {one['place']} serves it with {stays}{said} (advisor advise --serving)"


def _chosen(
    mixture: Mixture, sizes: tuple[CacheSize, ...], place: _Place, asked: Serving
) -> CacheSize:
    limit_s = asked.token_s or _SLOWER * mixture.compute_s
    room = asked.memory_bytes or place.device.memory_bytes
    able = tuple(one for one in sizes if _is_held(mixture, one, place))
    chosen = smallest_within(able, token_s=limit_s, memory_bytes=room)
    if chosen is not None:
        return chosen
    held = [one for one in able if one.memory_bytes <= room] or able
    best = min((one for one in held if one.policy != "oracle"), key=lambda one: one.token_s)
    reason = f"{seconds_text(best.token_s)} takes {digits(best.memory_bytes / GIB)} GiB"
    if len(able) < len(sizes):
        reason += (
            f", and the {digits(place.holds_bytes / GIB)} GiB of {place.name} do not hold the "
            "experts beside it"
        )
    raise PlanningError(
        f"no cache of experts within {digits(room / GIB)} GiB serves a token in "
        f"{seconds_text(limit_s)} on {place.name}",
        hint=f"{reason}: --latency, --memory, --link, or another machine with --on",
        exit_code=3,
    )


def _is_held(mixture: Mixture, size: CacheSize, place: _Place) -> bool:
    """Return whether the experts that are not on the device have a place to wait in."""
    experts_bytes = mixture.layers * mixture.experts * mixture.expert_bytes
    return size.cached == mixture.experts or experts_bytes <= place.holds_bytes


def _served(job: Job, recording: Recording | None) -> _Served:
    """Return the mixture of a recorded or a described job."""
    routing = None if recording is None else recording.routing
    if routing is not None and routing.passes:
        return _Served(
            name=job.name, cache_bytes=0.0, weight_bytes=4.0, trace=trace_of(routing),
            mixture=_mixture(
                routing.experts, routing.top, len(routing.layers), routing.expert_bytes,
                routing.dense_bytes,
            ),
        )  # fmt: skip
    model = None if job.work is None else job.work.transformer
    if model is None or model.experts < 2 or job.work is None:
        raise UsageError(
            f"{job.name}: no layer was seen to route tokens to experts",
            hint="profile a script whose model has a router and experts "
            "(examples/stdlib_moe.py has), or describe one: --model, or --experts with --layers",
        )
    each = float(PRECISION_BYTES[job.work.precision])
    expert = (3 if model.is_gated else 2) * model.hidden * (model.ffn or 4 * model.hidden)
    layers = model.layers - model.dense_layers
    dense = transformer_parameters(model) - layers * model.experts * expert
    kept = 2.0 * model.layers * key_value_width(model) * model.sequence
    return _Served(
        name=job.name, cache_bytes=kept * max(each, 1.0), weight_bytes=each, trace=None,
        mixture=_mixture(
            model.experts, model.experts_per_token, layers, expert * each, dense * each
        ),
    )  # fmt: skip


def _mixture(
    experts: int, top: int, layers: int, expert_bytes: float, dense_bytes: float
) -> Mixture:
    """Return a mixture on a device that takes no time."""
    return Mixture(
        experts=experts, top=top, layers=layers, expert_bytes=expert_bytes,
        dense_bytes=dense_bytes, compute_s=0.0, link_bytes_per_s=1.0,
    )  # fmt: skip


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
    trace: NDArray[np.int64], requests: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tokens = trace.shape[1]
    if tokens < 2 * _FEWEST_TOKENS * requests:
        raise UsageError(
            f"{tokens} tokens of {len(trace)} layers say too little of a cache",
            hint="profile for longer: --for 60s" + ("" if requests == 1 else "; fewer --requests"),
        )
    return trace[:, : tokens // 2], trace[:, tokens // 2 :]


_SizesOn = Callable[[_Place], tuple[Mixture, tuple[CacheSize, ...]]]


def _cheapest(
    served: _Served, asked: Serving, sizes_on: _SizesOn, catalogue: Catalogue, limits: Constraints
) -> _Place:
    """Return the machine with one accelerator that serves a token for the least money."""
    best: tuple[float, _Place] | None = None
    for place in _rented(asked, catalogue, limits):
        mixture, found = sizes_on(place)
        try:
            chosen = _chosen(mixture, found, place, asked)
        except PlanningError:
            continue
        usd = place.price_usd_per_h * chosen.token_s
        if best is None or usd < best[0]:
            best = usd, place
    if best is None:
        within = "" if asked.token_s is None else f" in {seconds_text(asked.token_s)}"
        raise PlanningError(
            f"no machine with one accelerator serves a token of {served.name}{within}",
            hint="--latency, --link or fewer constraints; or name a machine: --on aws:p5.48xlarge",
            exit_code=3,
        )
    return best[1]


def _timed(served: _Served, asked: Serving, met: float) -> _SizesOn:
    """Return what times a cache on a device; its hits are replayed once, not for every device."""
    requests = asked.requests
    if served.trace is None:

        def described(place: _Place) -> tuple[Mixture, tuple[CacheSize, ...]]:
            mixture = served.at(place, requests, met)
            return mixture, unrecorded_sizes(mixture, requests=requests)

        return described
    before, trace = _halves(served.trace, requests)
    known = cache_sizes(served.mixture, trace, BY_HITS, before=before, requests=requests)
    # Asked for by a step in the half that is judged.
    asks_bytes = _met(trace, requests) * served.mixture.layers * served.mixture.expert_bytes

    def timed(place: _Place) -> tuple[Mixture, tuple[CacheSize, ...]]:
        mixture, whole_s = served.at(place, requests, met), asks_bytes / place.link.bytes_per_s
        return mixture, tuple(
            replace(one, token_s=mixture.compute_s + whole_s * (1.0 - one.hit_rate))
            for one in known
        )

    return timed


def _rented(asked: Serving, catalogue: Catalogue, limits: Constraints) -> Iterator[_Place]:
    """Go through the machines with one accelerator, each at its cheapest."""
    offers = catalogue.select(limits.offer_filter())
    _, first = np.unique(offers.type_index, return_index=True)
    for row in sorted(first.tolist()):
        kind = int(offers.type_index[row])
        if catalogue.types.accelerator_count[kind] != 1:
            continue
        name = f"{catalogue.types.provider[kind]}:{catalogue.types.name[kind]}"
        try:
            yield _place(name, asked, catalogue, float(offers.price_usd_per_h[row]))
        except AdvisorError:
            continue  # nobody knows what its memory or its link carries


def _place(
    on: str, asked: Serving, catalogue: Catalogue, price_usd_per_h: float | None = None
) -> _Place:
    """Return one device of a machine of the catalogue, at its share of the price."""
    kind = catalogue.instance_type(on)
    if kind.accelerator not in catalogue.accelerators or not kind.accelerator_count:
        raise UsageError(
            f"what memory and link of {kind.name} carry is not known",
            hint="name a machine with an accelerator: --on aws:g5.xlarge; or measure this one: "
            "advisor doctor",
        )
    card = catalogue.accelerators[kind.accelerator].laid_out()
    if price_usd_per_h is None:
        paid: tuple[Pricing, ...] = ("on-demand",)
        wanted = OfferFilter(providers=(kind.provider,), types=(kind.name,), pricing=paid)
        prices = catalogue.select(wanted).price_usd_per_h
        price_usd_per_h = float(prices[0]) if len(prices) else 0.0
    is_given = asked.link_bytes_per_s is not None
    count = int(kind.accelerator_count)
    return _Place(
        name=f"one {card.name} of {kind.provider} {kind.name}",
        device=Device(
            name=card.name, kind="gpu", memory_bytes=card.memory_bytes,
            memory_bytes_per_s=card.memory_bytes_per_s,
        ),
        flop_per_s=card.flop_per_s,
        link=Link(
            name="as given" if is_given else f"PCIe of the {card.name}",
            bytes_per_s=asked.link_bytes_per_s or card.host_bytes_per_s,
        ),
        holds_bytes=np.inf if is_given else float(kind.memory_bytes or 0.0),
        price_usd_per_h=price_usd_per_h / count,
    )  # fmt: skip


def _here(recording: Recording | None, asked: Serving) -> _Place:
    """Return the processor that was recorded on; what is not in memory comes from its disk."""
    host = None if recording is None else recording.host
    if host is None or host.benchmark is None:
        raise UsageError(
            "what memory and disk of this machine carry is not known",
            hint="measure it (advisor doctor) and profile the script here, or name a machine: "
            "--on aws:g5.xlarge",
        )
    link = asked.link_bytes_per_s or host.benchmark.disk_read_bytes_per_s
    if link is None:
        raise UsageError("what the disk reads is not known", hint="give it: --link 2GB/s")
    return _Place(
        name="this machine",
        device=Device(
            name="host", kind="cpu", memory_bytes=float(host.memory_limit_bytes),
            memory_bytes_per_s=host.benchmark.copy_bytes_per_s,
        ),
        flop_per_s=host.benchmark.matmul_flop_per_s,
        link=Link(
            name="disk" if asked.link_bytes_per_s is None else "as given", bytes_per_s=link
        ),
        holds_bytes=np.inf, price_usd_per_h=0.0,
    )  # fmt: skip


def _advice(
    served: _Served, mixture: Mixture, chosen: CacheSize, sizes: tuple[CacheSize, ...],
    place: _Place, trace: NDArray[np.int64] | None, requests: int,
) -> Advice:  # fmt: skip
    full_bytes = mixture.memory_bytes(mixture.experts)
    details = _details(mixture, chosen, sizes, place, trace, requests)
    kept, size = f"all {mixture.experts} experts", f"{digits(full_bytes / GIB)} GiB"
    stay = "all experts stay"
    if chosen.cached < mixture.experts:
        kept = f"{chosen.cached} of {mixture.experts} experts"
        size = f"{digits(chosen.memory_bytes / GIB)} GiB in place of {size}"
        stay = f"of each layer {chosen.cached} stay: {_WORDS[chosen.policy]}"
    name = "expert-cache" if trace is None else "expert-cache (recorded)"
    return Advice(
        **worded(
            name, kept=kept, size=size, stay=stay, mixture=mixture, chosen=chosen, place=place,
            trace=trace, oracle=details["oracle_hit_rate"],
            text=_condition(served, trace, requests),
        ),
        time_saved_h=None, cost_saved_usd=None,
        time_factor=chosen.token_s / mixture.compute_s,
        cost_factor=chosen.memory_bytes / full_bytes, details=details,
    )  # fmt: skip


def _condition(served: _Served, trace: NDArray[np.int64] | None, requests: int) -> str:
    text = "For text like the recorded one, " if trace is not None else "For any text, "
    text += "one request at a time" if requests == 1 else f"{requests} requests decoded together"
    text += (
        "; keys and values were not recorded and are left out."
        if not served.cache_bytes
        else f"; {digits(requests * served.cache_bytes / GIB)} GiB of keys and values are in "
        "memory."
    )
    return text


def _details(
    mixture: Mixture, chosen: CacheSize, sizes: tuple[CacheSize, ...], place: _Place,
    trace: NDArray[np.int64] | None, requests: int,
) -> dict[str, Any]:  # fmt: skip
    foresight = independent = None
    if trace is not None:
        foresight = next(
            one.hit_rate for one in sizes
            if one.policy == "oracle" and one.cached == chosen.cached
        )  # fmt: skip
        independent = float(np.mean([
            che_hit_rate(np.bincount(layer.ravel(), minlength=mixture.experts), chosen.cached)
            for layer in trace
        ]))  # fmt: skip
    usd = place.price_usd_per_h / 3600 * chosen.token_s / requests
    return {
        **asdict(chosen),
        "place": place.name,
        "price_usd_per_h": place.price_usd_per_h,
        "usd_per_million_tokens": 1e6 * usd if place.price_usd_per_h else None,
        "requests": requests,
        "tokens_per_s": requests / chosen.token_s,
        **told(mixture, ("experts", "top", "layers", "expert_bytes")),
        "oracle_hit_rate": foresight,
        "independent_hit_rate": independent,
        "link_bytes_per_s": place.link.bytes_per_s,
        "link": place.link.name,
        "resident_token_s": mixture.compute_s,
        "resident_memory_bytes": mixture.memory_bytes(mixture.experts),
        "sizes": [asdict(one) for one in sizes],
    }
