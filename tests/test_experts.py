"""Cached experts: policies against slow twins, the oracle's bound, Che's form, published sizes."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from advisor.planners.core.errors import PlanningError
from advisor.planners.systems.expert_caching import (
    Policy,
    Served,
    che_hit_rate,
    foreseen,
    lru,
    oracle,
    used_least,
)
from advisor.planners.systems.expert_forecast import learn
from advisor.planners.systems.expert_serving import (
    Mixture,
    cache_sizes,
    drawn_hits,
    forecasts_that_win,
    gated_expert_bytes,
    loaded_ahead,
    met_experts,
    smallest_within,
    together,
    unrecorded_sizes,
)

lfu = partial(used_least, by_count=True)

Tokens = NDArray[np.int64]
orders = st.lists(st.integers(0, 7), max_size=60)
capacities = st.integers(1, 9)


def sticky(tokens: int, experts: int, top: int, *, seed: int, stay: float = 0.7) -> Tokens:
    """Tokens that keep the experts of the one before with some probability."""
    rng = np.random.default_rng(seed)
    weight = 1.0 / np.arange(1, experts + 1)
    found = np.empty((tokens, top), np.int64)
    for at in range(tokens):
        if at and rng.random() < stay:
            found[at] = found[at - 1]
        else:
            found[at] = rng.choice(experts, size=top, replace=False, p=weight / weight.sum())
    return found


def slow(order: list[int], capacity: int, *, by_count: bool) -> int:
    """Hits of LRU or LFU from the whole history at every miss."""
    kept: list[int] = []
    hits = 0
    for at, expert in enumerate(order):
        past = order[:at]
        if expert in kept:
            hits += 1
            continue
        if len(kept) == capacity:
            ages = {one: at - 1 - past[::-1].index(one) for one in kept}
            key = {one: (past.count(one) if by_count else 0, ages[one]) for one in kept}
            kept.remove(min(kept, key=lambda one: key[one]))
        kept.append(expert)
    return hits


@given(orders, capacities)
def test_recency_and_frequency_are_their_slow_twins(order: list[int], capacity: int) -> None:
    assert lru(np.array(order, int), capacity).hits == slow(order, capacity, by_count=False)
    assert lfu(np.array(order, int), capacity).hits == slow(order, capacity, by_count=True)


def periodic(order: Tokens, capacity: int, *, top: int, period: int, warm: int = 0) -> Served:
    """The rule of periods over a link that takes no time."""
    steps = [order[at : at + top] for at in range(0, len(order), top)]
    mixture = Mixture(
        experts=99, top=top, layers=1, expert_bytes=1.0, dense_bytes=0.0, compute_s=1e-3,
        link_bytes_per_s=1e30,
    )  # fmt: skip
    return loaded_ahead(mixture, [steps], capacity, period=period, warm=warm // top)[0]


def at_once(order: list[int], capacity: int, *, length: int) -> tuple[int, int]:
    """Hits, and loads of periods that are filled anew in no time: the slow twin."""
    hits = loads = 0
    kept: set[int] = set()
    for begin in range(0, len(order), length):
        part = order[begin : begin + length]
        hits += sum(one in kept for one in part)
        loads += sum(one not in kept for one in part)
        ranked = sorted(set(part), key=lambda one: (-part.count(one), one))[:capacity]
        now = set(ranked) | set(sorted(kept - set(ranked))[: capacity - len(ranked)])
        loads += len(now - kept) if begin + length < len(order) else 0
        kept = now
    return hits, loads


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40), capacities)
def test_periods_keep_the_most_used_of_the_one_before(
    pairs: list[tuple[int, int]], capacity: int
) -> None:
    order = np.array(pairs, int).ravel()
    found = periodic(order, capacity, top=2, period=3)
    assert found.hits == at_once(order.tolist(), capacity, length=6)[0]
    assert found.loads >= found.accesses - found.hits


def least_loads(order: list[int], capacity: int) -> int:
    """Fewest loads of all decisions what to give up at each miss, the loaded one included."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for expert in order:
        following: dict[frozenset[int], int] = {}
        for kept, loads in best.items():
            options = [kept] if expert in kept else [kept, kept | {expert}]
            if expert not in kept and len(kept) == capacity:
                options = [kept, *((kept - {one}) | {expert} for one in kept)]
            cost = loads + (expert not in kept)
            for one in options:
                following[one] = min(following.get(one, cost), cost)
        best = following
    return min(best.values())


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 4))
def test_the_oracle_is_the_best_of_all_decisions(order: list[int], capacity: int) -> None:
    assert oracle(np.array(order, int), capacity).loads == least_loads(order, capacity)


def policies(tokens: Tokens, experts: int, capacity: int) -> dict[str, Served]:
    order = tokens.ravel()
    half = tokens[: len(tokens) // 2]
    expected = learn(half, experts).expected(tokens)
    return {
        "lru": lru(order, capacity),
        "lfu": lfu(order, capacity),
        "periodic": periodic(order, capacity, top=tokens.shape[1], period=8),
        "learned": foreseen(order, capacity, expected),
    }


@given(st.integers(0, 200), st.integers(1, 8))
def test_nobody_loads_less_than_the_oracle(seed: int, capacity: int) -> None:
    tokens = sticky(40, 8, 2, seed=seed)
    least = oracle(tokens.ravel(), capacity).loads
    assert all(one.loads >= least for one in policies(tokens, 8, capacity).values())


@given(st.integers(0, 50))
def test_a_larger_cache_hits_no_less_where_policies_are_stacks(seed: int) -> None:
    order = sticky(60, 8, 2, seed=seed).ravel()
    for policy in (lru, oracle):
        hits = [policy(order, capacity).hits for capacity in range(1, 9)]
        assert hits == sorted(hits)
    assert lru(order, 8).loads == len(set(order.tolist()))


@pytest.mark.parametrize(("experts", "capacity"), list(product((16, 64), (4, 8, 12))))
def test_che_is_lru_where_every_access_is_drawn_anew(experts: int, capacity: int) -> None:
    rng = np.random.default_rng(experts + capacity)
    q = 1.0 / np.arange(1, experts + 1) ** 0.8
    order = rng.choice(experts, size=20_000, p=q / q.sum())
    # Twenty thousand draws: two standard errors are 0.007; Che itself errs by some 0.005.
    assert lru(order, capacity).hit_rate == pytest.approx(che_hit_rate(q, capacity), abs=0.015)


@given(st.integers(0, 50), st.integers(1, 8), st.integers(0, 70))
def test_what_warms_a_cache_is_not_counted(seed: int, capacity: int, warm: int) -> None:
    order = sticky(35, 8, 2, seed=seed).ravel()
    for policy in (lru, lfu, oracle):
        whole, late = policy(order, capacity), policy(order, capacity, warm=warm)
        assert late.accesses == len(order) - warm
        assert 0 <= late.hits <= whole.hits
    assert lru(order, capacity, warm=warm).hits == (
        lru(order, capacity).hits - lru(order[:warm], capacity).hits
    )


def test_che_is_too_low_where_routing_sticks() -> None:
    order = sticky(4000, 64, 2, seed=1, stay=0.8).ravel()
    said = che_hit_rate(np.bincount(order, minlength=64), 16)
    assert lru(order, 16).hit_rate > said + 0.05


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20).filter(any), st.floats(0.1, 25))
def test_ches_rate_is_a_share_and_grows_with_the_cache(q: list[float], capacity: float) -> None:
    rate = che_hit_rate(q, capacity)
    assert 0.0 < rate <= 1.0 + 1e-12
    assert che_hit_rate(q, 1.5 * capacity) >= rate - 1e-9


def test_a_forecast_learns_which_expert_follows_which() -> None:
    # Experts take turns: the one used longest ago is the next one, so that recency never hits.
    tokens = (np.arange(600) % 6)[:, None]
    order = tokens[300:].ravel()
    expected = learn(tokens[:300], 6).expected(tokens[300:])
    assert lru(order, 4).hits == 0
    learned = foreseen(order, 4, expected).hits
    assert learned >= 0.8 * oracle(order, 4).hits > 0


def test_mixtrals_expert_and_its_token_without_a_cache() -> None:
    size = gated_expert_bytes(4096, 14336)
    assert round(size / 1e6) == 352
    assert 11e-3 <= size / 32e9 <= size / 25e9 <= 14.2e-3
    mixture = mixtral(link=28e9)
    assert 0.7 <= mixture.token_s([2.0] * 32) <= 0.9


def mixtral(link: float) -> Mixture:
    size = gated_expert_bytes(4096, 14336)
    return Mixture(
        experts=8, top=2, layers=32, expert_bytes=size, dense_bytes=87 * 2**30 - 32 * 8 * size,
        compute_s=0.02, link_bytes_per_s=link,
    )  # fmt: skip


@given(st.lists(st.floats(0, 1), min_size=32, max_size=32), st.floats(1e9, 1e11))
def test_a_token_is_computing_and_what_it_loads(loads: list[float], link: float) -> None:
    mixture = mixtral(link)
    each = mixture.expert_bytes / link
    assert mixture.token_s(loads) == pytest.approx(0.02 + each * sum(loads))
    assert mixture.memory_bytes(8) == pytest.approx(87 * 2**30)


def test_the_smallest_cache_in_time_is_taken() -> None:
    trace = np.stack([sticky(400, 8, 2, seed=layer) for layer in range(4)])
    mixture = Mixture(
        experts=8, top=2, layers=4, expert_bytes=1e6, dense_bytes=1e6, compute_s=1e-3,
        link_bytes_per_s=1e9,
    )  # fmt: skip
    sizes = cache_sizes(
        mixture, trace[:, 200:], ("lru", "lfu", "periodic", "learned", "oracle"),
        before=trace[:, :200],
    )  # fmt: skip
    full = [one for one in sizes if one.cached == 8 and one.policy == "lru"]
    limit = 1.4 * min(one.token_s for one in full)
    chosen = smallest_within(sizes, token_s=limit)
    assert chosen is not None
    assert chosen.token_s <= limit
    assert chosen.policy != "oracle"
    assert not any(
        one.cached < chosen.cached and one.token_s <= limit
        for one in sizes if one.policy != "oracle"
    )  # fmt: skip
    assert smallest_within(sizes, token_s=0.5e-3) is None
    assert smallest_within(sizes, token_s=limit, memory_bytes=1.0) is None
    assert {one.cached for one in sizes} == set(range(1, 9))


def test_traces_of_another_mixture_are_refused() -> None:
    with pytest.raises(PlanningError, match="shape"):
        cache_sizes(
            mixtral(1e9), np.zeros((32, 5, 2), int), ("lru",), before=np.zeros((3, 5, 2), int)
        )


@pytest.mark.parametrize("capacity", [0, -1, 2.5])
def test_impossible_caches_are_refused(capacity: float) -> None:
    with pytest.raises(PlanningError, match="out of range"):
        lru([1, 2], capacity)  # type: ignore[arg-type]


def small(link: float, experts: int = 8) -> Mixture:
    return Mixture(
        experts=experts, top=2, layers=3, expert_bytes=1e6, dense_bytes=1e6, compute_s=1e-3,
        link_bytes_per_s=link,
    )  # fmt: skip


@given(st.integers(0, 100), st.integers(2, 8), st.floats(1e7, 1e12))
def test_what_is_loaded_ahead_is_hidden_as_far_as_the_link_is_idle(
    seed: int, capacity: int, link: float
) -> None:
    trace = np.stack([sticky(60, 8, 2, seed=seed + layer) for layer in range(3)])
    mixture = small(link)
    served, token_s = loaded_ahead(mixture, together(trace, 1), capacity, period=8)
    all_shown = sum(at_once(layer.ravel().tolist(), capacity, length=16)[1] for layer in trace)
    load_s = mixture.expert_bytes / link
    assert served.accesses - served.hits <= all_shown
    assert token_s == pytest.approx(1e-3 + load_s * (served.accesses - served.hits) / 60)
    # The link carries no more than there is time for.
    assert served.loads * load_s <= 60 * token_s * (1 + 1e-9)


@given(st.integers(0, 100), st.integers(2, 8))
def test_over_a_link_that_takes_no_time_a_period_is_there_at_once(
    seed: int, capacity: int
) -> None:
    trace = np.stack([sticky(60, 8, 2, seed=seed + layer) for layer in range(3)])
    served, token_s = loaded_ahead(small(1e30), together(trace, 1), capacity, period=8)
    twins = [at_once(layer.ravel().tolist(), capacity, length=16) for layer in trace]
    assert served.hits == sum(hits for hits, _ in twins)
    assert token_s == pytest.approx(1e-3)


@given(st.integers(0, 50), st.integers(1, 6))
def test_requests_together_need_every_expert_once(seed: int, requests: int) -> None:
    trace = np.stack([sticky(60, 8, 2, seed=seed + layer) for layer in range(3)])
    steps = together(trace, requests)
    length = 60 // requests
    assert all(len(layer) == length for layer in steps)
    for layer, of_layer in zip(trace, steps, strict=True):
        for at in range(length):
            needed = {int(e) for r in range(requests) for e in layer[r * length + at]}
            assert sorted(of_layer[at].tolist()) == sorted(needed)
    sizes = cache_sizes(small(1e9), trace, ("lru", "learned"), before=trace, requests=requests)
    assert all(one.hit_rate == 1.0 for one in sizes if one.cached == 8)


@pytest.mark.parametrize(("experts", "top", "requests"), [(8, 2, 1), (8, 2, 6), (16, 4, 3)])
def test_without_routing_a_cache_finds_its_share(experts: int, top: int, requests: int) -> None:
    rng = np.random.default_rng(0)
    shape = (3, 4000 * requests)
    trace = np.stack([
        np.stack([rng.permutation(experts)[:top] for _ in range(shape[1])]) for _ in range(3)
    ])  # fmt: skip
    mixture = Mixture(
        experts=experts, top=top, layers=3, expert_bytes=1e6, dense_bytes=0.0, compute_s=0.0,
        link_bytes_per_s=1e9,
    )  # fmt: skip
    half = shape[1] // 2
    drawn = cache_sizes(
        mixture, trace[:, half:], ("lru",), before=trace[:, :half], requests=requests
    )
    assert np.mean([len(e) for e in together(trace, requests)[0]]) == pytest.approx(
        met_experts(experts, top, requests), rel=0.02
    )
    for one, said in zip(drawn, unrecorded_sizes(mixture, requests=requests), strict=True):
        assert one.cached == said.cached
        assert one.hit_rate == pytest.approx(said.hit_rate, abs=0.015)


@pytest.mark.parametrize(("experts", "top"), [(8, 2), (8, 4), (16, 4), (64, 8)])
def test_fewer_places_than_a_token_has_experts_load_the_rest_again(experts: int, top: int) -> None:
    """Whatever is used: a slow simulation of LRU, and its law where every expert is as likely."""
    rng = np.random.default_rng(experts + top)
    drawn = np.stack([rng.permutation(experts)[:top] for _ in range(400)])
    for cached in range(1, top + 1):
        for tokens in (drawn, sticky(400, experts, top, seed=top), np.tile(drawn[:1], (400, 1))):
            hits = slow(tokens.ravel().tolist(), cached, by_count=False)
            assert tokens.size - hits >= 400 * (top - cached)
            half = tokens[200:]
            for found in cache_sizes(
                mixture_of(experts, top), half[None], ("lru",), before=tokens[None, :200]
            ):
                assert found.token_s >= 1e-3 * (top - found.cached) - 1e-12
        hits = slow(drawn.ravel().tolist(), cached, by_count=False)
        share = sum((cached - j) / (experts - j) for j in range(cached)) / top
        assert hits / drawn.size == pytest.approx(share, abs=0.03)
        assert drawn_hits(experts, cached, float(top)) == pytest.approx(share * top)


def test_a_forecast_is_kept_only_where_it_serves_faster_than_what_is_simpler() -> None:
    turns = np.stack([(np.arange(600) % 6)[:, None]] * 2)
    mixture = mixture_of(6, 1, layers=2)
    policies: tuple[Policy, ...] = ("lru", "lfu", "learned", "oracle")
    for trace in (turns, np.stack([sticky(600, 6, 1, seed=layer, stay=0.9) for layer in (1, 2)])):
        sizes = cache_sizes(mixture, trace[:, 300:], policies, before=trace[:, :300])
        kept = forecasts_that_win(sizes)
        for one in sizes:
            others = [
                o.token_s for o in sizes
                if o.cached == one.cached and o.policy not in ("learned", "oracle")
            ]  # fmt: skip
            is_better = one.token_s < 0.99 * min(others)
            assert (one in kept) == (one.policy != "learned" or is_better)
    # In turns recency never hits, and the forecast knows who comes next.
    assert any(one.policy == "learned" for one in forecasts_that_win(
        cache_sizes(mixture, turns[:, 300:], policies, before=turns[:, :300])
    ))  # fmt: skip


def mixture_of(experts: int, top: int, *, layers: int = 1) -> Mixture:
    return Mixture(
        experts=experts, top=top, layers=layers, expert_bytes=1e6, dense_bytes=0.0, compute_s=0.0,
        link_bytes_per_s=1e9,
    )  # fmt: skip
