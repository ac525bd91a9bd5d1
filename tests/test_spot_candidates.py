"""Laws of the candidates on spot machines that are helped out, or that come one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from advisor.answer import Candidate, Recommendation
from advisor.ask import Constraints
from advisor.catalogue import parse_gpus
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.rank import spot_ways
from advisor.rank.front import FrontByMachines
from advisor.rank.ranking import recommend

MakeJob = Callable[..., Job]

# V100s of AWS stand in the open interruption band: on the front are machines that stay, both new
# ways, and plain spot.
REQUEST = Constraints(
    least_gain_fraction=0.0,
    pricings=("on-demand", "spot"),
    providers=("aws",),
    gpus=parse_gpus("V100"),
    top=500,
)


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Job:
    return make_job(startup_s=60.0, total_steps=2e6)


@pytest.fixture(scope="module")
def answer(job: Job, predictor: Predictor) -> Recommendation:
    return recommend(job, REQUEST, predictor=predictor)


def of_way(answer: Recommendation, way: str) -> list[Candidate]:
    return [c for c in answer.front if c.completion == way]


def test_both_ways_are_found_where_spot_comes_and_goes(answer: Recommendation) -> None:
    for way in ("on-demand", "spot", "spot-with-fallback", "elastic-spot"):
        assert of_way(answer, way), way
    hidden = sum(answer.rejected.values())
    assert len(answer.front) + hidden == answer.considered


def test_the_front_with_further_ways_leaves_nothing_of_the_front_without(
    job: Job, predictor: Predictor, answer: Recommendation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_ways, "with_spot_ways", lambda *args: args[-1])
    without = recommend(job, REQUEST, predictor=predictor)
    assert len(without.front) < len(answer.front)
    for old in without.front:
        assert any(
            new.training_time_h.value <= old.training_time_h.value
            and new.cost_usd.value <= old.cost_usd.value
            for new in answer.front
        )


def test_replaying_only_what_may_pay_changes_no_front(
    job: Job, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(REQUEST, gpus=parse_gpus("V100,T4"))
    answer = recommend(job, request, predictor=predictor)

    class Nothing(FrontByMachines):
        def beats(self, time_h: Any, cost_usd: Any, machines: Any) -> Any:
            return ~np.isfinite(np.asarray(time_h))

    monkeypatch.setattr(spot_ways, "FrontByMachines", Nothing)
    everything = recommend(job, request, predictor=predictor)
    assert everything.considered > answer.considered
    assert [replace(c, reasons=()) for c in everything.front] == [
        replace(c, reasons=()) for c in answer.front
    ]


def test_a_named_configuration_has_the_numbers_of_its_candidate(
    job: Job, predictor: Predictor, answer: Recommendation
) -> None:
    for candidate in answer.front:
        offer, count = candidate.configuration.parts[0]
        named = predictor.predict(
            job, offer.instance_type, count=count, provider=offer.provider, region=offer.region,
            pricing="on-demand" if offer.pricing == "on-demand" else "spot",
            completion=candidate.completion,
        )  # fmt: skip
        for name in ("training_time_h", "cost_usd"):
            one, other = getattr(named, name), getattr(candidate, name)
            assert [one.value, one.low, one.high] == pytest.approx(
                [other.value, other.low, other.high], rel=1e-9
            )
        assert named.bills == candidate.bills


def test_bills_and_what_is_paid_besides_sum_to_the_cost(answer: Recommendation) -> None:
    for candidate in answer.front:
        beside = sum(
            candidate.breakdown[name].cost_usd or 0.0 for name in ("storage", "results_out")
        )
        machines = sum(bill.time_h * bill.price_usd_per_h for bill in candidate.bills)
        assert machines + beside == pytest.approx(candidate.cost_usd.value, rel=1e-3)
        whole = sum(part.cost_usd or 0.0 for part in candidate.breakdown.values())
        assert whole == pytest.approx(candidate.cost_usd.value, rel=1e-9)
        times = sum(part.time_h for part in candidate.breakdown.values())
        assert times == pytest.approx(candidate.training_time_h.value, rel=1e-9)
        record = candidate.to_record()
        assert record["completion"] == candidate.completion
        assert [b["pricing"] for b in record["bills"]] == [b.pricing for b in candidate.bills]


def test_fallback_lies_between_on_demand_and_spot(answer: Recommendation) -> None:
    for candidate in of_way(answer, "spot-with-fallback"):
        assert candidate.on_demand_time_h is not None
        assert candidate.on_demand_cost_usd is not None
        assert candidate.training_time_h.value > 0.99 * candidate.on_demand_time_h.value
        assert candidate.cost_usd.value < candidate.on_demand_cost_usd.value
        spot, on_demand = candidate.bills
        assert spot.price_usd_per_h < on_demand.price_usd_per_h
        assert any("spot with fallback" in reason for reason in candidate.reasons)


def test_elastic_rents_no_more_machines_than_it_asks_for(answer: Recommendation) -> None:
    for candidate in of_way(answer, "elastic-spot"):
        assert candidate.layout.dp > 1
        (bill,) = candidate.bills
        assert bill.time_h <= candidate.training_time_h.high
        assert any("elastic spot" in reason for reason in candidate.reasons)


def test_without_on_demand_prices_there_is_nothing_to_fall_back_to(
    job: Job, predictor: Predictor
) -> None:
    spot = recommend(job, replace(REQUEST, pricings=("spot",)), predictor=predictor)
    assert spot.front
    assert not of_way(spot, "spot-with-fallback")
    assert not of_way(spot, "on-demand")


def test_a_job_without_checkpoints_stays_on_demand(job: Job, predictor: Predictor) -> None:
    answer = recommend(job, replace(REQUEST, saves_checkpoints=False), predictor=predictor)
    assert {c.completion for c in answer.front} == {"on-demand"}


def test_a_deadline_between_spot_and_on_demand_is_kept_by_fallback(
    job: Job, predictor: Predictor, answer: Recommendation
) -> None:
    fallback = of_way(answer, "spot-with-fallback")[-1]
    deadline = 1.001 * fallback.training_time_h.value
    bound = recommend(job, replace(REQUEST, deadline_h=deadline), predictor=predictor)
    assert bound.front[-1].completion == "spot-with-fallback"
    assert bound.front[-1].cost_usd == fallback.cost_usd


def test_ways_that_make_no_sense_are_refused(job: Job, predictor: Predictor) -> None:
    name = "p3dn.24xlarge"
    with pytest.raises(UsageError, match="runs on no fewer machines"):
        predictor.predict(job, name, pricing="spot", completion="elastic-spot")
    with pytest.raises(UsageError, match="needs spot machines"):
        predictor.predict(job, name, completion="spot-with-fallback")
    with pytest.raises(UsageError, match="needs on-demand machines"):
        predictor.predict(job, name, pricing="spot", completion="on-demand")
