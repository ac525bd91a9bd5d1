from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.errors import GIB, PlanningError, bytes_per_s
from advisor.planners.systems.atom import (
    AVERAGE_EVERY,
    BACKWARD,
    Peer,
    SwapModel,
    averaging_s,
    plan_atom,
    step_parts,
)

PEER = Peer(
    gpu_bytes=24 * GIB,
    memory_bytes=3000 * GIB,
    host_bytes_per_s=1.0,
    network_bytes_per_s=bytes_per_s(1.0),
)
amounts = st.integers(1, 9).map(float)


def model_of(forward: list[float], size: list[float]) -> SwapModel:
    return SwapModel(
        forward_s=tuple(forward),
        parameter_bytes=tuple(size),
        boundary_bytes=(1.0,) * len(size),
        saved_bytes=(0.5,) * len(size),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=7), st.integers(1, 4), st.data())
def test_cuts_equal_trying_every_cut(
    layers: list[tuple[float, float]], accumulation: int, data: st.DataObject
) -> None:
    forward, size = [c for c, _ in layers], [s for _, s in layers]
    peer = replace(PEER, gpu_bytes=float(data.draw(st.integers(10, 60))))
    best = None
    for n in range(len(layers)):
        for cuts in itertools.combinations(range(1, len(layers)), n):
            edges = [0, *cuts, len(layers)]
            pieces = list(itertools.pairwise(edges))
            sizes = [sum(size[a:b]) for a, b in pieces]
            saved = [0.5 * (b - a) for a, b in pieces]
            needs = [
                before + 2 * own + kept
                for before, own, kept in zip([0.0, *sizes[:-1]], sizes, saved, strict=True)
            ]
            if max(needs) <= peer.gpu_bytes:
                compute = [sum(forward[a:b]) for a, b in pieces]
                time = sum(step_parts(compute, sizes, accumulation, peer))
                best = time if best is None else min(best, time)
    if best is None:
        with pytest.raises(PlanningError, match="no cut fits"):
            plan_atom(model_of(forward, size), peer, peers=1, accumulation_steps=accumulation)
        return
    found = plan_atom(model_of(forward, size), peer, peers=1, accumulation_steps=accumulation)
    assert found.step_s == pytest.approx(best)
    assert found.gpu_bytes <= peer.gpu_bytes


def test_with_a_fast_host_link_only_computing_is_left() -> None:
    model = model_of([1.0] * 6, [1.0] * 6)
    peer = replace(PEER, host_bytes_per_s=1e12)
    found = plan_atom(model, peer, peers=1, accumulation_steps=5)
    assert found.step_s == pytest.approx(4 * 5 * 6.0)
    assert found.exposed_fraction == pytest.approx(0.0, abs=1e-9)


def test_enough_accumulation_hides_the_loads() -> None:
    model = model_of([1.0] * 6, [7.0] * 6)
    peer = replace(PEER, gpu_bytes=22.0)
    few = plan_atom(model, peer, peers=1, accumulation_steps=1)
    many = plan_atom(model, peer, peers=1, accumulation_steps=few.accumulation_to_hide)
    assert few.accumulation_to_hide == 7
    assert few.exposed_fraction > 0.5
    # All that is left is the very first load, 7 s of 175 s.
    assert many.exposed_fraction == pytest.approx(7 / 175)


# Configurations of GPT-3 (Brown et al. 2020, table 2.1): hidden width, layers.
GPT3 = {
    "small": (768, 12),
    "medium": (1024, 24),
    "XL": (2048, 24),
    "6.7B": (4096, 32),
    "175B": (12288, 96),
}


def gpt3(name: str, network_gbit_per_s: float) -> tuple[SwapModel, Peer]:
    """12 h^2 parameters a layer, 2,048 tokens; a consumer GPU that sustains 15 Tflop/s."""
    hidden, layers = GPT3[name]
    parameters, tokens = 12 * hidden**2, 2048
    model = SwapModel(
        forward_s=(2 * parameters * tokens / 15e12,) * layers,
        parameter_bytes=(2.0 * parameters,) * layers,
        boundary_bytes=(2.0 * tokens * hidden,) * layers,
        saved_bytes=(34.0 * tokens * hidden,) * layers,
    )
    peer = Peer(
        gpu_bytes=24 * GIB,
        memory_bytes=4000 * GIB,
        network_bytes_per_s=bytes_per_s(network_gbit_per_s),
    )
    return model, peer


def pipeline_rival_s(model: SwapModel, peer: Peer, *, peers: int, micro_batches: int) -> float:
    """Return the step of an even pipeline over the same peers and network: the closed form [s].

    (M + p - 1) times the slower of computing a stage and handing its activations and their
    gradient over the network.
    """
    stage = (1 + BACKWARD) * sum(model.forward_s) / peers
    # What the last layer makes, logits say, is handed to nobody.
    widest = max(model.boundary_bytes[:-1], default=0.0)
    sent = widest / peer.network_bytes_per_s + peer.network_latency_s
    return (micro_batches + peers - 1) * max(stage, 2 * sent if peers > 1 else 0.0)


def gain(name: str, network_gbit_per_s: float, average_every: int) -> float:
    """Swapping's throughput over a pipeline's on 8 peers, 64 micro-batches a step."""
    model, peer = gpt3(name, network_gbit_per_s)
    found = plan_atom(model, peer, peers=8, accumulation_steps=8, average_every=average_every)
    return pipeline_rival_s(model, peer, peers=8, micro_batches=64) / found.step_s


def test_gains_over_pipelines_are_of_the_published_order() -> None:
    """ATOM: up to 20 x over decentralised pipelines on slow networks, GPT-3 configurations.

    Its interval was not seen: at the default the most over these networks is a factor of two
    below, at 32 a factor of two above, and averaging after every step gains next to nothing.
    """
    networks = (0.1, 0.4, 1.0, 10.0)
    most = {k: max(gain(n, g, k) for n in GPT3 for g in networks) for k in (1, AVERAGE_EVERY, 32)}
    assert most[1] < 1.5
    assert 20 / 2.5 < most[AVERAGE_EVERY] < 20
    assert most[AVERAGE_EVERY] < most[32] < 2.5 * 20


@pytest.mark.parametrize("name", list(GPT3))
def test_swapping_wins_on_slow_networks_once_the_averaging_is_rare(name: str) -> None:
    assert gain(name, 0.1, 10_000) > 1
    # Where averaging is free, a slower network only ever speaks for swapping.
    free = [gain(name, g, 10**9) for g in (400.0, 10.0, 1.0, 0.1)]
    assert all(slower >= faster * (1 - 1e-3) for faster, slower in itertools.pairwise(free))
    assert free[0] < 1.5  # nothing to win where the network is fast


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 64), st.integers(1, 10_000), st.floats(0.01, 100.0))
def test_an_averaging_costs_the_same_however_often_it_is_made(
    peers: int, every: int, network: float
) -> None:
    model, peer = gpt3("small", network)
    often = plan_atom(model, peer, peers=peers, accumulation_steps=2, average_every=1)
    seldom = plan_atom(model, peer, peers=peers, accumulation_steps=2, average_every=every)
    once = averaging_s(sum(model.parameter_bytes), peer, peers=peers)
    assert often.sync_s == pytest.approx(once)
    assert seldom.sync_s * every == pytest.approx(once)
    assert seldom.synchronous_step_s == pytest.approx(often.step_s)
    # Only the exchange is shared out: what is computed and loaded stays.
    assert seldom.step_s - seldom.sync_s == pytest.approx(often.step_s - often.sync_s)


def test_what_the_last_layer_makes_is_handed_to_nobody() -> None:
    model, peer = gpt3("small", 1.0)
    logits = replace(model, boundary_bytes=(*model.boundary_bytes[:-1], 1e12))
    for one in (model, logits):
        rival_s = pipeline_rival_s(one, peer, peers=8, micro_batches=64)
        assert rival_s == pipeline_rival_s(model, peer, peers=8, micro_batches=64)
        assert plan_atom(one, peer, peers=8, accumulation_steps=8).host_bytes == pytest.approx(
            plan_atom(model, peer, peers=8, accumulation_steps=8).host_bytes
        )
    inside = replace(model, boundary_bytes=(1e12, *model.boundary_bytes[1:]))
    assert pipeline_rival_s(inside, peer, peers=8, micro_batches=64) > rival_s


def test_the_hosts_processors_touch_all_of_the_state_once_a_step() -> None:
    model, peer = gpt3("small", 1.0)
    found = plan_atom(model, peer, peers=4, accumulation_steps=2)
    parameters = sum(model.parameter_bytes) / 2
    assert found.update_s == pytest.approx(16 * parameters / peer.host_update_bytes_per_s)
    parts = found.forward_s + found.backward_s + found.update_s + found.sync_s
    assert found.step_s == pytest.approx(parts)


def test_all_peers_together_send_what_an_all_reduce_must() -> None:
    """2 (n - 1) P over all n peers; nothing for one (Patarasuk and Yuan 2009)."""
    _, peer = gpt3("small", 1.0)
    for peers in (1, 2, 3, 16):
        sent = peers * averaging_s(1e9, peer, peers=peers) * peer.network_bytes_per_s
        assert sent == pytest.approx(2 * (peers - 1) * 1e9)
    far = replace(peer, network_latency_s=0.5)
    assert averaging_s(1e9, far, peers=1) == 0
    assert averaging_s(1e9, far, peers=2) == pytest.approx(averaging_s(1e9, peer, peers=2) + 0.5)


def test_host_memory_is_a_constraint() -> None:
    model, peer = gpt3("175B", 0.1)
    with pytest.raises(PlanningError, match="host memory"):
        plan_atom(model, replace(peer, memory_bytes=512 * GIB), peers=8, accumulation_steps=8)
