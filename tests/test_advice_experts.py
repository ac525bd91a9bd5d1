"""``advise --serving``: the cache that is advised serves the recorded tokens in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from advised import recorded

from advisor import api
from advisor.advice import experts
from advisor.advice.asking import facts_on
from advisor.advice.experts import Serving
from advisor.advice.facts import Facts
from advisor.ask import Constraints, Question
from advisor.collectors.format.facts import RoutedPass, Routing
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.systems.expert_caching import lru
from advisor.quantities import usd_text
from advisor.words.verdicts import cache_table

MakeJob = Callable[..., Job]
LAYERS, EXPERTS, TOP, TOKENS = 4, 16, 2, 200


def routing(seed: int = 0, *, training: tuple[bool, ...] = (True,) * 4) -> Routing:
    """Tokens that use few of the experts most of the time."""
    rng = np.random.default_rng(seed)
    q = 1.0 / np.arange(1, EXPERTS + 1) ** 2
    passes = []
    for step, is_training in enumerate(training):
        layers = [
            [
                rng.choice(EXPERTS, TOP, replace=False, p=q / q.sum()).tolist()
                for _ in range(TOKENS)
            ]
            for _ in range(LAYERS)
        ]
        passes.append(
            RoutedPass(
                step=step,
                is_training=is_training,
                experts=tuple(tuple(one for pair in layer for one in pair) for layer in layers),
            )
        )
    return Routing(
        layers=tuple(f"blocks.{k}.gate" for k in range(LAYERS)), experts=EXPERTS, top=TOP,
        expert_bytes=200_000_000, dense_bytes=2_000_000_000, passes=tuple(passes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def facts(make_job: MakeJob, predictor: Predictor) -> Facts:
    job = make_job(global_batch=32)
    return recorded(
        facts_on(predictor, job, predictor.predict(job, "aws:g5.xlarge")), routing=routing()
    )


def served(
    facts: Facts, predictor: Predictor, *, on: str = "aws:g5.8xlarge", **asked: Any
) -> dict[str, Any]:
    found = experts.serving_advice(
        facts.job, facts.recording, Serving(**asked), predictor.catalogue, on=on
    )
    assert json.loads(json.dumps(found.to_record()))["details"] == found.details
    return dict(found.details)


def test_the_cache_keeps_the_latency_that_was_asked_for(
    facts: Facts, predictor: Predictor
) -> None:
    everything = served(facts, predictor)["resident_token_s"]
    # Dense weights and two experts a layer, read once at the A10G's 600 GB/s.
    assert everything == pytest.approx((2e9 + LAYERS * TOP * 2e8) / 600e9, rel=0.01)
    sizes = []
    for factor in (1.5, 3.0, 6.0):
        found = served(facts, predictor, token_s=factor * everything)
        assert found["token_s"] <= factor * everything
        assert found["memory_bytes"] == 2e9 + LAYERS * found["cached"] * 2e8
        sizes.append(found["cached"])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def test_hit_rates_are_those_of_the_recorded_tokens(facts: Facts, predictor: Predictor) -> None:
    found = served(facts, predictor)
    assert facts.recording is not None
    assert facts.recording.routing is not None
    trace = experts.trace_of(facts.recording.routing)
    assert trace.shape == (LAYERS, 4 * TOKENS, TOP)
    warm = 2 * TOKENS * TOP
    for size in found["sizes"]:
        if size["policy"] == "lru":
            served_by = [lru(layer.ravel(), size["cached"], warm=warm) for layer in trace]
            expected = sum(one.hits for one in served_by) / sum(one.accesses for one in served_by)
            assert size["hit_rate"] == pytest.approx(expected)
    best = {one["cached"]: one["hit_rate"] for one in found["sizes"] if one["policy"] == "oracle"}
    # Foresight bounds those that load on a miss.
    assert all(
        one["hit_rate"] <= best[one["cached"]] + 0.02
        for one in found["sizes"]
        if one["policy"] in ("lru", "lfu", "learned")
    )


def test_a_slower_link_needs_a_larger_cache(facts: Facts, predictor: Predictor) -> None:
    fast, slow = (
        served(facts, predictor, token_s=0.05, link_bytes_per_s=rate) for rate in (1e11, 5e9)
    )
    assert slow["cached"] > fast["cached"]
    assert fast["link"] == "as given"
    assert "PCIe" in served(facts, predictor)["link"]


def test_passes_in_evaluation_are_taken_where_there_are_some() -> None:
    mixed = routing(training=(True, False, True, False))
    trace = experts.trace_of(mixed)
    assert trace.shape[1] == 2 * TOKENS
    assert trace[0, :TOKENS].ravel().tolist() == list(mixed.passes[1].experts[0])


def test_what_cannot_be_answered_is_said(facts: Facts, predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="no layer was seen to route"):
        served(recorded(facts), predictor)
    few = replace(
        routing(), passes=(RoutedPass(step=1, is_training=False, experts=((0, 1) * 50,) * LAYERS),)
    )
    with pytest.raises(UsageError, match="too little"):
        served(recorded(facts, routing=few), predictor)
    with pytest.raises(PlanningError, match="no cache") as none:
        served(facts, predictor, token_s=1e-6)
    assert none.value.exit_code == 3
    with pytest.raises(PlanningError, match="no cache"):
        served(facts, predictor, memory_bytes=2.1 * GIB)
    with pytest.raises(UsageError, match="not known"):
        served(facts, predictor, on="m5.4xlarge")


def test_the_answer_is_a_list_of_one_with_its_table(facts: Facts, predictor: Predictor) -> None:
    found = api.advised(
        facts.job, Question(), facts.recording, on="aws:g5.xlarge", predictor=predictor,
        serving=Serving(),
    )  # fmt: skip
    (one,) = found
    assert one.name == "expert-cache"
    lines = cache_table(one.details)
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == sorted(
        {size["cached"] for size in one.details["sizes"]}
    )
    assert rows[-1][2:4] == ["100.0", "%"]  # with all of them there nothing is missed


MIXTRAL: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": True,
    "experts": 8, "experts_per_token": 2, "vocabulary": 32000, "sequence": 4096,
}  # fmt: skip


def described(predictor: Predictor, *, on: str | None, **serving: Any) -> dict[str, Any]:
    found = api.advise(on=on, serving=Serving(**serving), predictor=predictor, **MIXTRAL, batch=8)
    assert found.now is None
    return dict(found[0].details)


def test_a_described_mixture_is_served_where_it_could_not_be_trained(predictor: Predictor) -> None:
    found = described(predictor, on="aws:p5.48xlarge", token_s=0.5)
    # 87 GB of weights in all, and half a GiB of keys and values of one request of 4,096 tokens.
    weights = found["resident_memory_bytes"] - 32 * 4096 * 2 * 1024 * 2
    assert weights == pytest.approx(46.7e9 * 2, rel=0.01)
    assert round(found["expert_bytes"] / 1e6) == 352
    cached = found["cached"]  # LRU, its experts drawn: the second of a token is one of seven
    assert found["hit_rate"] == pytest.approx((cached / 8 + (cached - 1) / 7) / 2)
    assert found["oracle_hit_rate"] is None
    assert found["token_s"] <= 0.5


def test_without_a_machine_the_one_that_serves_a_token_for_least_is_taken(
    predictor: Predictor,
) -> None:
    found = described(predictor, on=None, token_s=0.1)
    paid = found["price_usd_per_h"] / 3600 * found["token_s"] * 1e6
    assert found["usd_per_million_tokens"] == pytest.approx(paid)
    for name in ("aws:g6e.16xlarge", "gcp:a2-ultragpu-1g", "lambda:gpu_1x_gh200"):
        try:
            other = described(predictor, on=name, token_s=0.1)
        except PlanningError:
            continue
        assert found["usd_per_million_tokens"] <= other["usd_per_million_tokens"]


def test_experts_wait_in_the_memory_of_the_machine(predictor: Predictor) -> None:
    # Its one L40S has 48 GB, its host 32 GB: the experts that are not on the device need 90.
    with pytest.raises(PlanningError, match="no cache") as none:
        described(predictor, on="aws:g6e.xlarge", token_s=1.0)
    assert "do not hold the experts" in (none.value.hint or "")
    given = described(predictor, on="aws:g6e.xlarge", token_s=20.0, link_bytes_per_s=1e9)
    assert given["link"] == "as given"


def test_requests_together_need_more_experts_and_share_their_loads(
    facts: Facts, predictor: Predictor
) -> None:
    alone, four = (served(facts, predictor, token_s=0.2, requests=count) for count in (1, 4))
    assert four["resident_token_s"] > alone["resident_token_s"]
    assert four["tokens_per_s"] == pytest.approx(4 / four["token_s"])
    best = max(one["hit_rate"] for one in four["sizes"])
    assert best == 1.0
    with pytest.raises(UsageError, match="too little"):
        served(facts, predictor, requests=100)


def test_what_serves_a_mixture_is_said_unasked(facts: Facts, predictor: Predictor) -> None:
    """Recorded or described, in ``advise`` and ``recommend``: the machine and price of serving."""
    recorded_words = api.advised(
        facts.job, Question(), facts.recording, on="aws:g5.xlarge", predictor=predictor
    ).serving
    served_by = experts.serving_advice(
        facts.job, facts.recording, Serving(), predictor.catalogue
    ).details
    assert served_by["place"] in recorded_words
    assert usd_text(served_by["usd_per_million_tokens"]) in recorded_words
    small = {**MIXTRAL, "layers": 4, "batch": 8, "tokens": 1e8}
    found = api.recommend(predictor=predictor, gpus="H100", **small)
    advised = api.advise(serving=True, predictor=predictor, gpus="H100", **small)[0].details
    assert advised["place"] in found.serving
    assert usd_text(advised["usd_per_million_tokens"]) in found.serving
    dense = api.recommend(predictor=predictor, gpus="H100", layers=4, hidden=1024, heads=8,
                          tokens=1e8)  # fmt: skip
    assert dense.serving == ""
    tiny = replace(routing(), expert_bytes=1000, dense_bytes=1000)
    assert not experts.serving_words(
        facts.job, recorded(facts, routing=tiny).recording, predictor.catalogue, Constraints()
    )


def test_a_card_with_fewer_places_than_a_token_has_experts_is_answered(
    predictor: Predictor,
) -> None:
    """Mixtral on 24 GB: one expert a layer fits, and a token loads at least one more in each."""
    with pytest.raises(PlanningError, match="no cache") as none:
        described(predictor, on="aws:g5.16xlarge")
    assert "takes 1" in (none.value.hint or "")  # what does fit, not all of the 87 GiB
    found = described(predictor, on="aws:g5.16xlarge", token_s=1.0)
    assert found["cached"] == 1
    assert found["memory_bytes"] <= 24e9
    loads = found["token_s"] - found["resident_token_s"]
    each = found["expert_bytes"] / found["link_bytes_per_s"]
    assert loads >= 32 * (2 - 1) * each
    assert loads == pytest.approx(32 * (2 - 1 / 8) * each)
