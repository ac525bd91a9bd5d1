"""Collectives against a slow simulation of the ring, closed forms and limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.planners.links.collectives import (
    CollectiveParameters,
    hierarchical_all_reduce_s,
    hierarchical_broadcast_s,
    hierarchical_reduce_scatter_s,
    network_rate,
    reduce_scatter_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)

IDEAL = CollectiveParameters(
    launch_s=0.0,
    intra_step_s=0.0,
    network_step_s=0.0,
    intra_efficiency=1.0,
    network_efficiency=1.0,
    stream_bytes_per_s=1e30,
    rdma_from_bytes_per_s=12.5e9,
)
REAL = CollectiveParameters(
    launch_s=3e-5,
    intra_step_s=4e-6,
    network_step_s=4e-5,
    intra_efficiency=0.77,
    network_efficiency=0.6,
    stream_bytes_per_s=1e9,
    rdma_from_bytes_per_s=12.5e9,
)
sizes = st.floats(1.0, 1e11)
rates = st.floats(1e7, 1e12)
latencies = st.floats(0.0, 1e-2)


def simulated_ring_all_reduce(vectors: np.ndarray, rate: float, alpha: float) -> float:
    """Run the ring message by message; check the sums; return when the last rank is done."""
    ranks = len(vectors)
    total = vectors.sum(axis=0)
    chunks = [[part.copy() for part in np.array_split(vector, ranks)] for vector in vectors]
    chunk_bytes = vectors.shape[1] / ranks * vectors.itemsize
    free = np.zeros(ranks)  # when each rank has what it must send next
    for step in range(2 * (ranks - 1)):
        arrival = np.empty(ranks)
        sent = [
            (sender, (sender - step) % ranks, chunks[sender][(sender - step) % ranks].copy())
            for sender in range(ranks)
        ]
        for sender, index, chunk in sent:
            receiver = (sender + 1) % ranks
            if step < ranks - 1:
                chunks[receiver][index] += chunk
            else:
                chunks[receiver][index] = chunk
            # A receiver can pass a chunk on when it has come and its own send has gone.
            arrival[receiver] = max(free[sender], free[receiver]) + alpha + chunk_bytes / rate
        free = arrival
    for own in chunks:
        np.testing.assert_allclose(np.concatenate(own), total)
    return float(free.max())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize(("rate", "alpha"), [(1e6, 0.0), (1e6, 1e-3), (1e9, 1e-4)])
def test_ring_closed_form_equals_its_simulation(ranks: int, rate: float, alpha: float) -> None:
    vectors = np.random.default_rng(ranks).normal(size=(ranks, 840))
    simulated = simulated_ring_all_reduce(vectors, rate, alpha)
    closed = ring_all_reduce_s(vectors[0].nbytes, ranks, rate, alpha)
    assert float(closed) == pytest.approx(simulated, rel=1e-9)


@given(m=sizes, rate=rates)
def test_without_latency_the_ring_tends_to_two_messages_over_the_bandwidth(
    m: float, rate: float
) -> None:
    assert float(ring_all_reduce_s(m, 10**6, rate)) == pytest.approx(2 * m / rate, rel=1e-5)


@given(p=st.integers(2, 4096), alpha=st.floats(1e-7, 1e-2))
def test_empty_messages_cost_latency_only(p: int, alpha: float) -> None:
    assert float(ring_all_reduce_s(0.0, p, 1e9, alpha)) == pytest.approx(2 * (p - 1) * alpha)
    levels = np.ceil(np.log2(p))
    assert float(tree_all_reduce_s(0.0, p, 1e9, alpha)) == pytest.approx(2 * levels * alpha)


@given(m=sizes, rate=rates, alpha=latencies)
def test_one_rank_costs_nothing(m: float, rate: float, alpha: float) -> None:
    for collective in (ring_all_reduce_s, tree_all_reduce_s, reduce_scatter_s):
        assert float(collective(m, 1, rate, alpha)) == 0.0
    assert float(hierarchical_all_reduce_s(m, 1, 1, rate, alpha, rate, alpha, REAL)) == 0.0


@given(g=st.integers(1, 16), n=st.integers(1, 64), inner=latencies, outer=latencies)
def test_an_empty_message_waits_for_every_step_of_the_better_schedule(
    g: int, n: int, inner: float, outer: float
) -> None:
    inside, between = inner + REAL.intra_step_s, outer + REAL.network_step_s
    ring = 2 * (g * n - 1) * (between if n > 1 else inside)
    tree = max(2 * (g - 1) * inside, 2 * np.ceil(np.log2(n)) * between) + 2 * (g - 1) * inside
    took = ring if n == 1 else min(ring, tree)
    launch = REAL.launch_s if g * n > 1 else 0.0
    found = float(hierarchical_all_reduce_s(0.0, g, n, 1e11, inner, 1e10, outer, REAL))
    assert found == pytest.approx(took + launch)
    scattered = float(hierarchical_reduce_scatter_s(0.0, g, n, 1e11, inner, 1e10, outer, REAL))
    assert scattered == pytest.approx(ring / 2 + launch)


@given(m=sizes, n=st.integers(1, 300), rate=rates, alpha=latencies)
def test_a_broadcast_is_its_simulation(m: float, n: int, rate: float, alpha: float) -> None:
    """Whoever has the message sends it to one more in each round; pieces hide all but one send."""
    tree = pieces = 0.0
    have = 1
    while have < n:
        have = min(2 * have, n)
        tree += alpha + m / rate
        pieces += alpha
    pieces += m / rate if n > 1 else 0.0
    links = (1, n, 1e30, 0.0, rate, alpha, IDEAL)
    found = float(hierarchical_broadcast_s(m, *links, is_pipelined=False))
    assert found == pytest.approx(tree)
    assert float(hierarchical_broadcast_s(m, *links)) == pytest.approx(pieces)
    assert float(hierarchical_broadcast_s(0.0, *links[:-1], REAL)) == 0.0
    # A real library adds its own steps and a launch, and reaches a share of the rate.
    one_by_one = hierarchical_broadcast_s(m, *links[:-1], REAL, is_pipelined=False)
    sent = min(rate * REAL.network_efficiency, REAL.stream_bytes_per_s if rate < 12.5e9 else 1e99)
    rounds = math.ceil(math.log2(n))
    expected = rounds * (alpha + REAL.network_step_s + m / sent) + REAL.launch_s * (n > 1)
    assert float(one_by_one) == pytest.approx(expected)


@given(m=sizes, p=st.integers(2, 512), rate=rates, alpha=st.floats(1e-7, 1e-2))
def test_the_tree_block_count_is_the_best(m: float, p: int, rate: float, alpha: float) -> None:
    levels = np.ceil(np.log2(p))
    blocks = np.logspace(-3, 9, 5000)
    one_way = (blocks + levels) * (alpha + m / (blocks * rate))
    assert float(tree_all_reduce_s(m, p, rate, alpha)) <= 2 * one_way.min() * (1 + 1e-9)


@given(m=sizes, g=st.integers(1, 16), inner=rates, outer=rates, alpha=latencies)
def test_one_node_is_a_flat_ring(
    m: float, g: int, inner: float, outer: float, alpha: float
) -> None:
    flat = ring_all_reduce_s(m, g, inner, alpha)
    two_level = hierarchical_all_reduce_s(m, g, 1, inner, alpha, outer, alpha, IDEAL)
    assert float(two_level) == pytest.approx(float(flat))


@given(m=st.floats(1e3, 1e11), n=st.integers(2, 128), outer=rates)
def test_one_device_a_node_is_a_ring_of_the_network(m: float, n: int, outer: float) -> None:
    two_level = hierarchical_all_reduce_s(m, 1, n, 1e12, 0.0, outer, 0.0, IDEAL)
    assert float(two_level) == pytest.approx(2 * (n - 1) / n * m / outer)


@given(m=sizes, g=st.integers(1, 16), n=st.integers(2, 128), outer=rates)
def test_devices_share_the_network_interface(m: float, g: int, n: int, outer: float) -> None:
    """With free links inside the node each interface carries the message twice, whatever g."""
    time = float(hierarchical_all_reduce_s(m, g, n, 1e30, 0.0, outer, 0.0, IDEAL))
    assert 2 * (n - 1) / n * m / outer * (1 - 1e-9) <= time <= 2 * m / outer * (1 + 1e-9)


@given(m=sizes, g=st.integers(1, 8), n=st.integers(1, 64), more=st.floats(1.0, 10.0))
def test_more_bytes_never_take_less_time(m: float, g: int, n: int, more: float) -> None:
    for collective in (hierarchical_all_reduce_s, hierarchical_reduce_scatter_s):
        less = collective(m, g, n, 1e10, 1e-5, 1e9, 3e-5, REAL)
        assert collective(m * more, g, n, 1e10, 1e-5, 1e9, 3e-5, REAL) >= less


def test_arguments_broadcast() -> None:
    grid = ring_all_reduce_s(np.array([[1e6], [1e9]]), np.array([2, 4, 8]), 1e9, 1e-5)
    assert grid.shape == (2, 3)


@pytest.mark.parametrize(("m", "p", "rate"), [(-1.0, 2, 1e9), (1.0, 0, 1e9), (1.0, 2, 0.0)])
def test_impossible_sizes_are_refused(m: float, p: int, rate: float) -> None:
    with pytest.raises(ValueError, match="need ranks"):
        ring_all_reduce_s(m, p, rate)


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="efficiencies"):
        replace(REAL, intra_efficiency=1.2)


def test_a_stream_limits_a_network_without_rdma() -> None:
    rates = network_rate(np.array([1e9, 6.25e9, 12.5e9]), REAL)
    np.testing.assert_allclose(rates, [0.6e9, 1e9, 7.5e9])
    assert float(network_rate(12.5e9, REAL, has_rdma=False)) == 1e9
    assert float(network_rate(6.25e9, REAL, has_rdma=True)) == pytest.approx(3.75e9)


@given(m=sizes, g=st.integers(1, 8), n=st.integers(1, 512))
def test_the_ring_is_used_only_where_it_is_better(m: float, g: int, n: int) -> None:
    alpha = 3e-5 + REAL.network_step_s if n > 1 else 1e-5 + REAL.intra_step_s
    rate = min(1e10 * REAL.intra_efficiency if g > 1 else 1e30, 0.6e9) if n > 1 else 7.7e9
    ring = float(ring_all_reduce_s(m, g * n, rate, alpha)) + REAL.launch_s * (g * n > 1)
    time = float(hierarchical_all_reduce_s(m, g, n, 1e10, 1e-5, 1e9, 3e-5, REAL))
    assert time <= ring * (1 + 1e-9)
    if n == 1:
        assert time == pytest.approx(ring)
