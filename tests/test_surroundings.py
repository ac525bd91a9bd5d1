"""What is paid and waited for beside the steps: data in, ends of epochs, storage, results out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import api
from advisor.answer import Estimate, Recommendation
from advisor.ask import Constraints, JobSpec, Question
from advisor.catalogue import Pricing
from advisor.catalogue.offer_columns import PRICINGS
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.completion import CHECKPOINTS_KEPT, checkpoint_s
from advisor.estimate.predictor import Predictor
from advisor.jobs import load
from advisor.jobs.job import VOLUME_BYTES_PER_S, Job, Transfers, recorded_data, write_bytes_per_s
from advisor.rank.ranking import recommend

GIB = 2**30
WHOLE: dict[str, Any] = {
    "data": "200GB",
    "data_rate": "50MB/s",
    "results": "5GB",
    "validation": "10%",
}


def with_surroundings(job: Job, **said: str | float) -> Job:
    """The job with what a user says about it; its machines start as fast as before."""
    found = load.job_from_spec(Question.read(said).job, job=job)
    return replace(found, transfers=replace(found.transfers, boot_s=job.transfers.boot_s))


@pytest.fixture(scope="module")
def job(make_job: Callable[..., Job]) -> Job:
    return make_job(startup_s=90.0)


@pytest.fixture(scope="module")
def answer(job: Job, predictor: Predictor) -> Recommendation:
    request = Constraints(least_gain_fraction=0.0, pricings=("on-demand", "spot"), top=50)
    return recommend(with_surroundings(job, **WHOLE), request, predictor=predictor)


def test_the_parts_sum_to_the_expected_time_and_cost(answer: Recommendation) -> None:
    assert {offer.pricing for c in answer.front for offer, _ in c.configuration.parts} == {
        "on-demand",
        "spot",
    }
    for c in answer.front:
        parts = c.breakdown.values()
        assert math.isclose(sum(p.time_h for p in parts), c.training_time_h.value, rel_tol=1e-9)
        assert math.isclose(sum(p.cost_usd or 0.0 for p in parts), c.cost_usd.value, rel_tol=1e-9)
        assert all(p.time_h >= -1e-9 for p in parts)


def test_each_part_is_what_its_name_says(answer: Recommendation, job: Job) -> None:
    for c in answer.front:
        part = c.breakdown
        assert part["data_in"].time_h == pytest.approx(200e9 / 50e6 / 3600)
        step_h = c.step_time_s.value / 3600
        assert part["steps"].time_h == pytest.approx(job.total_steps * step_h)
        assert part["epoch_ends"].time_h == pytest.approx(0.1 * part["steps"].time_h)


def test_data_comes_as_fast_as_network_volume_and_place_let_it(
    job: Job, predictor: Predictor
) -> None:
    def hours(**given: str) -> float:
        there = with_surroundings(job, data="1TB", **given)
        return predictor.predict(there, "g4dn.xlarge").breakdown["data_in"].time_h

    assert hours() == pytest.approx(1e12 / VOLUME_BYTES_PER_S / 3600)
    assert hours(data_rate="1GB/s") == hours()
    assert hours(data_rate="10MB/s") == pytest.approx(1e12 / 10e6 / 3600)


@given(small=st.floats(1e6, 1e13), more=st.floats(1.0, 100.0))
def test_a_larger_checkpoint_is_written_no_slower_and_takes_no_less(
    small: float, more: float
) -> None:
    rates = [write_bytes_per_s(Transfers(), size) for size in (small, more * small)]
    assert VOLUME_BYTES_PER_S <= rates[0] <= rates[1] <= 1000 * 2**20
    assert small / rates[0] <= more * small / rates[1] * (1 + 1e-12)


def test_a_checkpoint_of_half_a_terabyte_takes_minutes_at_a_rate_that_is_said(
    predictor: Predictor,
) -> None:
    """Mixtral 8x7B: 46.7 B parameters in 12 bytes each, on one machine of eight A100."""
    said = {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": True,
        "experts": 8, "experts_per_token": 2, "tokens": "1B", "vocabulary": 32000,
    }  # fmt: skip
    job = load.job_from_spec(Question.read(said).job)
    faster = load.job_from_spec(Question.read({**said, "checkpoint_rate": "10GB/s"}).job)
    assert job.state_bytes == pytest.approx(560e9, rel=0.01)
    assert checkpoint_s(job) == pytest.approx(560e9 / (1000 * 2**20), rel=0.01)
    assert checkpoint_s(faster) == pytest.approx(56.0, rel=0.01)
    found = api.estimate(job, on="p4de.24xlarge", predictor=predictor)
    facts = {one.what: one for one in found.sources}
    assert facts["checkpoint"].source == "assumed"
    assert "1.05 GB/s a machine" in facts["checkpoint"].value
    assert job.facts()["checkpoint"]["rate_source"].startswith("assumed")
    assert faster.facts()["checkpoint"]["rate_source"] == "given: --checkpoint-rate"
    with pytest.raises(UsageError, match="--checkpoint-rate"):
        load.job_from_spec(replace(Question.read(said).job, checkpoint_bytes_per_s=0.0))


def test_storage_and_results_are_priced_as_the_catalogue_lists_them(
    job: Job, predictor: Predictor
) -> None:
    there = with_surroundings(job, data="500GiB", results="10GiB")
    one = predictor.predict(there, "g5.xlarge", count=2, region="eu-west-1")
    prices = {
        p.item: p.price_usd
        for p in predictor.catalogue.other_prices
        if p.provider == "aws"
        and p.region in ("eu-west-1", "us")
        and p.tier in ("", "up to 10 TiB/month")
    }
    kept_gib = 500 + CHECKPOINTS_KEPT * job.state_bytes / GIB
    months = one.training_time_h.value / 730
    assert one.breakdown["storage"].cost_usd == pytest.approx(
        2 * kept_gib * months * prices["block storage gp3"]
    )
    assert one.breakdown["results_out"].cost_usd == pytest.approx(10 * prices["internet egress"])


def test_more_to_move_is_never_earlier_or_cheaper(job: Job, predictor: Predictor) -> None:
    for pricing in ("on-demand", "spot"):
        before = predictor.predict(job, "g5.xlarge", pricing=pricing)
        for option in ({"data": "2TB"}, {"results": "1TB"}, {"validation": "50%"}):
            more = with_surroundings(job, **option)
            after = predictor.predict(more, "g5.xlarge", pricing=pricing)
            assert after.cost_usd.value > before.cost_usd.value
            assert after.training_time_h.value >= before.training_time_h.value


def test_a_machine_that_is_taken_away_takes_its_data_along(job: Job, predictor: Predictor) -> None:
    def added_h(pricing: Pricing) -> float:
        plain, loaded = (
            predictor.predict(each, "g5.xlarge", pricing=pricing)
            for each in (job, with_surroundings(job, data="500GB"))
        )
        return loaded.training_time_h.value - plain.training_time_h.value

    assert added_h("spot") > added_h("on-demand")


def test_a_spot_candidate_has_its_machines_on_demand_beside_it(
    job: Job, predictor: Predictor
) -> None:
    loaded = with_surroundings(job, **WHOLE)
    steady, spot = (
        predictor.predict(loaded, "g5.xlarge", region="us-east-1", pricing=pricing)
        for pricing in ("on-demand", "spot")
    )
    assert steady.on_demand_cost_usd is None
    assert spot.on_demand_cost_usd == steady.cost_usd
    assert spot.on_demand_time_h == steady.training_time_h
    assert any(reason.startswith("on demand: ") for reason in spot.reasons)


def test_what_failures_add_is_said_or_called_negligible(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    # 64 devices fail 0.03 times a day (Llama 3): a restart of 100 h is felt, one of 9 s is not.
    for restart_h, word in ((0.0025, "less than 1 %"), (100.0, "failures and a checkpoint every")):
        long = make_job(total_steps=1e7, startup_s=restart_h * 3600)
        one = predictor.predict(long, "p5.48xlarge", count=8)
        parts = one.breakdown
        added = parts["checkpoints"].time_h + parts["interruptions"].time_h
        assert (added < 0.01 * parts["steps"].time_h) == (word == "less than 1 %")
        assert any(word in reason for reason in one.reasons)


@given(st.floats(1.01, 5), st.floats(1.01, 5), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_chance_above_a_limit_agrees_with_the_interval(
    below: float, above: float, coverage: float
) -> None:
    one = Estimate(value=7.0, low=7 / below, high=7 * above, coverage=coverage)
    assert one.above(7.0) == pytest.approx(0.5)
    assert one.above(one.low) == pytest.approx((1 + coverage) / 2)
    assert one.above(one.high) == pytest.approx((1 - coverage) / 2)
    assert one.above(0.0) == 1.0
    certain = Estimate(value=7.0, low=7.0, high=7.0)
    assert (certain.above(6.9), certain.above(7.1)) == (1.0, 0.0)
    free = Estimate(value=0.0, low=0.0, high=0.0)
    assert (free.above(-1.0), free.above(0.0), free.above(1.0)) == (1.0, 0.0, 0.0)


def test_a_deadline_has_the_chance_of_being_missed(job: Job, predictor: Predictor) -> None:
    request = Constraints(
        least_gain_fraction=0.0, deadline_h=48.0, pricings=("on-demand", "spot"), top=30
    )
    for c in recommend(job, request, predictor=predictor).front:
        assert c.late_probability is not None
        assert c.late_probability <= 0.5 + 1e-9
        said = any("late with" in reason for reason in c.reasons)
        assert said == (c.training_time_h.high > 48.0)
    free = recommend(job, predictor=predictor)
    assert all(c.late_probability is None for c in free.front)


def test_what_is_not_priced_is_said(job: Job, predictor: Predictor) -> None:
    def said(of: Job, provider: str, region: str | None = None) -> str:
        asked = Constraints(providers=(provider,), region=region, top=3, least_gain_fraction=0.0)
        shown = recommend(of, asked, predictor=predictor)
        return " ".join(note for note in shown.notes if "not included" in note)

    assert "--data" in said(job, "aws")
    assert "--validation" in said(job, "aws")
    whole = with_surroundings(job, **WHOLE)
    assert said(whole, "aws", "us-east-1") == ""
    assert "Storage" in said(whole, "lambda")
    assert "Downloading results" in said(whole, "lambda")


def test_a_recorded_loader_says_how_much_data_there_is() -> None:
    seen = recorded_data(60_000, 784.0)
    assert seen.data_bytes == 60_000 * 784
    assert "60,000 samples" in seen.data_source
    for unknown in (recorded_data(None, 784.0), recorded_data(60_000, None)):
        assert unknown == Transfers()


def test_command_line_python_and_json_have_one_estimate(
    job: Job, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "load_job", lambda *_, **__: job)
    monkeypatch.setattr(api, "recording_of", lambda *_: None)
    options = [w for k, v in WHOLE.items() for w in (f"--{k.replace('_', '-')}", v)]
    shell = CliRunner().invoke(
        app, ["recommend", "--json", "--spot", *options], catch_exceptions=False
    )
    python = api.recommend(job, spot=True, predictor=predictor, **WHOLE)
    assert shell.exit_code == 0
    assert shell.stdout == json.dumps(python.to_record(), indent=2) + "\n"
    first = python.front[0]
    offer, count = first.configuration.parts[0]
    rented = api.job_of(JobSpec(), job=with_surroundings(job, **WHOLE))
    alone = predictor.predict(
        rented, offer.instance_type, count=count, provider=offer.provider, region=offer.region,
        pricing=next(way for way in PRICINGS if way == offer.pricing),
        completion=first.completion,
    )  # fmt: skip
    assert alone.breakdown.keys() == first.breakdown.keys()
    for name, part in first.breakdown.items():
        assert alone.breakdown[name].time_h == pytest.approx(part.time_h, rel=1e-9)
        assert alone.breakdown[name].cost_usd == pytest.approx(part.cost_usd, rel=1e-9)


@pytest.mark.parametrize(
    "given", [{"data": "-5GB"}, {"data": "much"}, {"data_rate": "0"}, {"results": "1 lorry"},
              {"validation": "-5%"}, {"validation": "often"}]
)  # fmt: skip
def test_nonsense_is_refused(given: dict[str, str], job: Job) -> None:
    with pytest.raises(UsageError) as refused:
        with_surroundings(job, **given)
    assert refused.value.exit_code == 2


def test_the_given_share_holds_where_no_epoch_was_seen_and_where_one_was(job: Job) -> None:
    for seen in (job, replace(job, epochs=90.0, epoch_end_steps=7.0)):
        told = with_surroundings(seen, validation="0.2")
        assert told.paid_steps == pytest.approx(1.2 * job.total_steps)
