"""Layer swapping as a way of training: described and recorded models over slow networks."""

from __future__ import annotations

from functools import cache

import pytest
from recorded_models import transformer as recorded_transformer

from advisor.answer import Answer
from advisor.ask import LayoutRequest
from advisor.catalogue import Catalogue
from advisor.errors import UsageError
from advisor.estimate.knowledge.laws import model_on
from advisor.estimate.predictor import Predictor
from advisor.estimate.unlike.groups import OnGroups
from advisor.estimate.ways.stages import pipeline_over_groups
from advisor.estimate.ways.swapping import LAYER_SWAPPING, NAME
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.machines.cluster import parse_cluster
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.planners.systems.atom import AVERAGE_EVERY

SMALL = Transformer(layers=24, hidden=2048, heads=16, sequence=1024, vocabulary=50304)


@cache
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


@cache
def physics() -> Predictor:
    return Predictor(catalogue(), learned=None)


def case(cluster: str, model: Transformer | Job = SMALL, batch: int = 64) -> OnGroups:
    job = model
    if isinstance(job, Transformer):
        work = transformer_work(job, micro_batch=1, precision="bf16")
        job = described_job(work, name="described", global_batch=batch)
    machines = parse_cluster(cluster, catalogue())
    return OnGroups(
        model=model_on(physics().case(job), machines), cluster=machines, global_batch=batch
    )


def layer_swapping(on: OnGroups, *, average_every: int | None = None) -> Answer:
    return LAYER_SWAPPING.choice(on, LayoutRequest(average_every=average_every))


def number(choice: Answer, name: str) -> float:
    value = choice.details[name]
    assert isinstance(value, int | float)
    return float(value)


def test_every_unit_lies_in_one_piece_and_the_peer_holds_the_whole_model() -> None:
    found = layer_swapping(case("8x1xRTX-3090@1Gbps", batch=256))
    pieces = found.details["layers_by_piece"]
    assert isinstance(pieces, list)
    assert sum(pieces) == 24 + 2  # embedding and head
    assert found.commands == ()
    # Weights, gradients, fp32 master weights and Adam's moments: 14 to 18 bytes a parameter; and
    # 64 GiB of host memory is the default of such a machine.
    parameters = 24 * 12 * 2048**2 + 50304 * 2048
    assert 14 * parameters < number(found, "host_gib") * 2**30 < 64 * 2**30


@pytest.mark.parametrize("every", [1, AVERAGE_EVERY])
def test_a_slower_network_speaks_for_swapping(every: int) -> None:
    """A pipeline sends activations for every sample, swapping the weights every K steps."""
    gains = []
    for rate in ("10Gbps", "1Gbps", "100Mbps"):
        on = case(f"8x1xRTX-3090@{rate}", batch=4096)
        step_s = layer_swapping(on, average_every=every).step_time_s.value
        gains.append(pipeline_over_groups(on).step_time_s.value / step_s)
    assert gains == sorted(gains)


def test_peers_that_average_rarely_beat_a_pipeline_on_a_slow_network() -> None:
    """Synchronous, swapping loses; every 64 steps, it wins (ATOM's point)."""
    slow = case("8x1xRTX-3090@100Mbps", batch=256)
    rival_s = pipeline_over_groups(slow).step_time_s.value
    found = {k: layer_swapping(slow, average_every=k) for k in (1, AVERAGE_EVERY, 64)}
    assert found[1].step_time_s.value > rival_s > found[64].step_time_s.value
    for every, choice in found.items():
        assert choice.details["average_every"] == every
        assert number(choice, "synchronous_step_s") == pytest.approx(found[1].step_time_s.value)
        assert number(choice, "averaging_s") * every == pytest.approx(
            number(found[1], "averaging_s")
        )
    assert any("local SGD" in note for note in found[64].notes)
    assert not any("local SGD" in note for note in found[1].notes)


def test_the_interval_is_stated_where_nobody_gives_one_and_is_at_least_one() -> None:
    some = case("4x1xRTX-3090@1Gbps")
    default, given = layer_swapping(some), layer_swapping(some, average_every=AVERAGE_EVERY)
    assert default.details == given.details
    with pytest.raises(UsageError, match="--average-every 0"):
        layer_swapping(some, average_every=0)
    lone = layer_swapping(case("1x1xRTX-3090@1Gbps"))
    assert number(lone, "averaging_s") == 0
    assert not any("averages" in note for note in lone.notes)


def test_swapping_needs_host_memory_and_a_sample_for_every_gpu() -> None:
    large = Transformer(layers=40, hidden=5120, heads=40, sequence=1024, vocabulary=50304)
    with pytest.raises(PlanningError, match="host memory"):
        layer_swapping(case("8x1xRTX-3090@10Gbps", large))
    with pytest.raises(PlanningError, match="less than one sample"):
        layer_swapping(case("8x1xRTX-3090@10Gbps", batch=4))


def test_the_slowest_of_unlike_gpus_rules_the_step() -> None:
    alone = [
        layer_swapping(case(f"8x1x{gpu}@1Gbps", batch=256)).step_time_s.value
        for gpu in ("RTX-3090", "RTX-4090")
    ]
    both = layer_swapping(case("4x1xRTX-3090@1Gbps,4x1xRTX-4090@1Gbps", batch=256))
    assert both.step_time_s.value == pytest.approx(max(alone), rel=1e-6)


def test_a_recorded_model_swaps_its_units() -> None:
    work = recorded_transformer()
    job = described_job(work, name="recorded", global_batch=64)
    found = layer_swapping(case("4x1xRTX-3090@1Gbps", job))
    pieces = found.details["layers_by_piece"]
    assert isinstance(pieces, list)
    assert sum(pieces) == 6 + 3  # blocks; embedding, last normalisation and head
    # fp32 weights and gradients, Adam's moments: 16 bytes a parameter, and activations at cuts.
    assert number(found, "host_gib") * 2**30 >= 16 * work.parameters


def test_swapping_is_compared_on_consumer_cards_or_where_asked_for() -> None:
    geforce, servers = case("4x1xRTX-3090@1Gbps").cluster, case("8xA100-80GB@200Gbps").cluster
    for cluster, swap, is_shown in (
        (geforce, None, True), (geforce, False, False), (servers, None, False),
        (servers, True, True),
    ):  # fmt: skip
        assert LAYER_SWAPPING.stands_beside(cluster, LayoutRequest(swap=swap)) == is_shown
    refused = PlanningError("nothing fits", hint="more memory", exit_code=3)
    found = layer_swapping(case("4x1xRTX-3090@1Gbps"))
    assert found.name == NAME
    assert "swapping its layers" in (LAYER_SWAPPING.instead(refused, found).hint or "")
