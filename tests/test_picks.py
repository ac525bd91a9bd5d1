"""Laws of the choice: what is worth a line, what is picked, and when nothing is rented."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from advisor.answer import Candidate, Configuration, Estimate, Offer, Recommendation
from advisor.ask import Constraints, JobSpec
from advisor.catalogue import Catalogue, OfferFilter
from advisor.collectors.format.why_cpu import Told
from advisor.estimate.answer import offer_of
from advisor.estimate.estimate import machine_at_hand
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job
from advisor.jobs.job import Job
from advisor.jobs.load import job_from_spec
from advisor.jobs.runs import Actual
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Transformer
from advisor.planners.step.describe import transformer_work
from advisor.rank.changes import changes, device_band, known_error, stored_errors, unmeasured_words
from advisor.rank.front import (
    LEAST_SPEED_UP,
    LONGEST_STAY_H,
    TROUBLE_H,
    apart,
    distinct,
    pareto_front,
)
from advisor.rank.front import picks as picks_of
from advisor.rank.ranking import recommend
from advisor.rank.renting import DATED, USUALLY, WEIGHTS
from advisor.words import claims_of, recommendation

MakeJob = Callable[..., Job]

AMOUNTS = st.floats(0.01, 1000.0)
ROWS = st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=30)
GAIN = 0.1


def front_of(rows: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    time, cost = (np.array(column) for column in zip(*rows, strict=True))
    kept = pareto_front(time, cost)
    return time[kept], cost[kept]


def candidate(
    time_h: float, cost_usd: float, rank: int = 1, provider: str = "verda", sd: float = 0.1
) -> Candidate:
    offer = Offer(
        provider=provider, instance_type="t", region="r", pricing="on-demand",
        price_usd_per_h=1.0, accelerator=None, accelerators=0.0, vcpus=2, memory_gib=4.0,
    )  # fmt: skip
    time = Estimate.lognormal(time_h, sd)
    return Candidate(
        rank=rank, configuration=Configuration(parts=((offer, 1),)), layout=Layout(),
        step_time_s=time, throughput_samples_per_s=time, training_time_h=time,
        cost_usd=Estimate(value=cost_usd, low=cost_usd, high=cost_usd), memory_gib=1.0,
        bottleneck="compute", shares={"compute": 1.0}, reasons=(), is_extrapolating=False,
        way="program",
    )  # fmt: skip


@given(rows=ROWS, sds=st.lists(st.floats(0.0, 0.5), min_size=30, max_size=30))
def test_of_two_rows_one_is_clearly_faster_and_the_other_clearly_cheaper(
    rows: list[tuple[float, float]], sds: list[float]
) -> None:
    time, cost = front_of(rows)
    sd = np.array(sds[: len(time)])
    least = apart(sd[:, None], sd[None, :], np.eye(len(sd), dtype=bool), GAIN)
    kept = distinct(time, cost, least).tolist()
    for i in kept:
        for j in kept:
            if time[i] < time[j]:
                factor = (1.0 + least[i, j]) * (1 - 1e-9)
                assert time[j] > factor * time[i]
                assert cost[i] > factor * cost[j]


@given(rows=ROWS)
@example(rows=[(1.0, 1.0), (1.109375, 0.5)])  # 11 % faster, and 9 % with the renting
def test_a_row_that_is_left_out_has_one_in_its_place(rows: list[tuple[float, float]]) -> None:
    """As somebody waits for it: from ten minutes before the start, which renting takes anyone."""
    time, cost = front_of(rows)
    kept = distinct(time, cost, np.full((len(time), len(time)), GAIN))
    waited = time + TROUBLE_H
    for i in set(range(len(time))) - set(kept.tolist()):
        stands_in = (waited[kept] <= 1.1 * waited[i]) & (cost[kept] <= 1.1 * cost[i])
        assert stands_in.any()


@given(rows=ROWS)
def test_the_best_product_is_never_left_out(rows: list[tuple[float, float]]) -> None:
    time, cost = front_of(rows)
    kept = distinct(time, cost, np.full((len(time), len(time)), GAIN))
    product = (time + TROUBLE_H) * cost
    assert product[kept].min() == product.min()


@given(rows=ROWS)
def test_who_pays_more_for_time_is_sooner_done(rows: list[tuple[float, float]]) -> None:
    time, cost = front_of(rows)
    names = sorted(WEIGHTS, key=WEIGHTS.__getitem__)
    chosen = [USUALLY.best(name, time, cost, np.ones(len(time))) for name in names]
    assert time[chosen].tolist() == sorted(time[chosen], reverse=True)
    assert cost[chosen].tolist() == sorted(cost[chosen])


@given(rows=ROWS, data=st.data())
def test_an_error_of_a_fifth_costs_no_more_than_it_can(
    rows: list[tuple[float, float]], data: st.DataObject
) -> None:
    """Time and cost err together: the true product is within 1.2^4 of the best one."""
    time, cost = front_of(rows)
    factor = np.array(
        data.draw(st.lists(st.floats(1 / 1.2, 1.2), min_size=len(time), max_size=len(time)))
    )
    one = np.ones(len(time))
    chosen = USUALLY.best("best_value", time * factor, cost * factor, one)
    product = USUALLY.worth("best_value", time, cost, one)
    assert product[chosen] <= 1.2**4 * (1 + 1e-9) * product.min()


def test_machines_that_only_share_the_start_up_are_one_row() -> None:
    """Eight machines for a job that boots for two minutes and computes for ten seconds."""
    count = np.array([8, 4, 2, 1])
    time, cost = 120 + 10 / count, count * (120 + 10 / count)
    assert distinct(time, cost, np.full((4, 4), GAIN)).tolist() == [3]


@given(AMOUNTS, AMOUNTS)
def test_this_machine_is_left_only_for_half_the_wait_a_persons_work_included(
    here_h: float, there_h: float
) -> None:
    here = replace(candidate(here_h, 0.0, rank=0))
    found = picks_of([candidate(there_h, 1.0)], here)
    waited_h = float(USUALLY.judged_h("best_value", there_h, 1))
    hurried_h = float(USUALLY.judged_h("fastest", there_h, 1))
    is_left = max(here_h, USUALLY.patience_h) >= LEAST_SPEED_UP * waited_h
    is_left |= here_h > LONGEST_STAY_H and there_h < here_h
    assert found["best_value"] == (1 if is_left else "here")
    assert found["cheapest"] == ("here" if here_h <= 100 * hurried_h else 1)
    assert found["fastest"] == ("here" if here_h <= hurried_h else 1)


def test_a_machine_at_hand_with_a_price_competes_by_it() -> None:
    rented = candidate(1.0, 1.0)
    assert picks_of([rented], candidate(10.0, 0.01, rank=0))["best_value"] == "here"
    assert picks_of([rented], candidate(10.0, 5.0, rank=0))["best_value"] == 1
    # Seen: "Stay on this machine: 4.31 h, $2.16" beside a row of 8 minutes and five cents.
    assert picks_of([candidate(0.13, 0.05)], candidate(4.31, 2.16, rank=0))["best_value"] == 1


def test_the_deadline_is_kept_with_the_confidence_asked_for() -> None:
    rows = [candidate(1.0, 4.0, 1), candidate(1.8, 2.0, 2), candidate(2.0, 1.0, 3)]
    within = {
        confidence: picks_of(rows, None, deadline_h=2.0, confidence=confidence)["within_deadline"]
        for confidence in (0.5, 0.8, 0.9)
    }
    assert within == {0.5: 3, 0.8: 2, 0.9: 1}
    assert "within_deadline" not in picks_of(rows, None, deadline_h=0.5)


def test_what_nothing_similar_was_measured_of_has_to_win_at_its_worst() -> None:
    known, unknown = candidate(2.0, 2.0, 2), candidate(1.0, 1.5, 1, sd=0.2)
    assert picks_of([unknown, known], None)["best_value"] == 1
    unknown = replace(unknown, is_extrapolating=True)
    assert picks_of([unknown, known], None)["best_value"] == 1
    unsure = replace(candidate(1.0, 3.0, 1, sd=0.6), is_extrapolating=True)
    assert picks_of([unsure, known], None)["best_value"] == 2


def test_nothing_rented_and_nothing_here_has_no_pick() -> None:
    assert picks_of([], None) == {}
    assert picks_of([], candidate(1.0, 0.0, rank=0))["best_value"] == "here"


EVERY = Constraints(least_gain_fraction=0.0, top=500)


@pytest.fixture(scope="module")
def answer(make_job: MakeJob, predictor: Predictor) -> Recommendation:
    job = make_job()
    return recommend(job, predictor=predictor, here=machine_at_hand(predictor, job))


@pytest.fixture(scope="module")
def unbound(make_job: MakeJob, predictor: Predictor) -> Recommendation:
    """The answer of rented machines, with what would change it."""
    return recommend(make_job(), predictor=predictor, with_changes=True)


@pytest.fixture(scope="module")
def every(make_job: MakeJob, predictor: Predictor) -> Recommendation:
    """The whole front."""
    return recommend(make_job(), EVERY, predictor=predictor)


def test_picks_name_rows_that_are_shown(answer: Recommendation) -> None:
    ranks = {one.rank for one in answer.front} | {"here"}
    assert set(answer.picks.values()) <= ranks
    assert set(answer.picks) - {DATED} == set(WEIGHTS)
    assert answer.to_record()["picks"] == answer.picks


def _beats(one: Candidate, other: Candidate) -> bool:
    is_faster = one.training_time_h.value <= 1.1 * other.training_time_h.value
    return one is not other and is_faster and one.cost_usd.value <= 1.1 * other.cost_usd.value


def test_rows_of_the_catalogue_differ_by_the_gain(answer: Recommendation) -> None:
    # What is picked for its few machines may stand beside more of them for less.
    picked = {rank for rank in answer.picks.values() if rank != "here"}
    rows = [
        one for one in answer.front
        if one.rank not in picked or not any(_beats(other, one) for other in answer.front)
    ]  # fmt: skip
    assert len(rows) > 1
    for slower, faster in zip(rows[1:], rows, strict=False):
        assert slower.training_time_h.value > 1.1 * faster.training_time_h.value
        assert faster.cost_usd.value > 1.1 * slower.cost_usd.value


def test_without_a_gain_the_whole_front_is_there(
    make_job: MakeJob, predictor: Predictor, every: Recommendation
) -> None:
    some = recommend(make_job(), Constraints(top=500), predictor=predictor)
    assert "too_little_gain" not in every.rejected
    merged = some.rejected["too_little_gain"]
    # The best of dated prices, and what is doubted less, may stand beside the front.
    assert len(every.front) <= len(some.front) + merged <= len(every.front) + 2
    assert merged > 0


def test_alternatives_are_as_good_within_what_can_be_told(answer: Recommendation) -> None:
    found = [(one, other) for one in answer.front for other in one.alternatives]
    assert found
    for one, other in found:
        assert other.configuration != one.configuration
        most = 1 + float(apart(0.7, 0.7, is_same=False, gain=GAIN))
        assert other.training_time_h <= most * one.training_time_h.value
        assert other.cost_usd <= most * one.cost_usd.value


def test_machines_boot_where_they_are_rented_and_not_here(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job()
    slow = replace(job, transfers=replace(job.transfers, boot_s=3600.0))
    at_once = predictor.predict(job, "g5.xlarge").training_time_h.value
    assert predictor.predict(slow, "g5.xlarge").training_time_h.value >= at_once + 1.0
    assert machine_at_hand(predictor, slow) == machine_at_hand(predictor, job)


def test_a_confidence_is_kept_by_every_row(
    make_job: MakeJob, predictor: Predictor, unbound: Recommendation
) -> None:
    hours = sorted(one.training_time_h.value for one in unbound.front)
    deadline = hours[len(hours) // 2]
    sure = recommend(
        make_job(), Constraints(deadline_h=deadline, confidence=0.9), predictor=predictor
    )
    assert sure.front
    for one in sure.front:
        assert one.training_time_h.above(deadline) <= 0.1 + 1e-9
    even = recommend(make_job(), Constraints(deadline_h=deadline), predictor=predictor)
    assert even.front[-1].cost_usd.value <= sure.front[-1].cost_usd.value


def test_a_row_that_is_sure_of_the_deadline_is_always_shown(
    make_job: MakeJob, predictor: Predictor
) -> None:
    for deadline in (2.0, 5.0, 20.0):
        every = recommend(make_job(), replace(EVERY, deadline_h=deadline), predictor=predictor)
        sure = [one for one in every.front if (one.late_probability or 0.0) <= 0.1]
        answer = recommend(make_job(), Constraints(deadline_h=deadline), predictor=predictor)
        found = answer.picks.get("within_deadline")
        assert (found is None) == (not sure)
        if isinstance(found, int):
            costs = min(one.cost_usd.value for one in sure)
            assert answer.front[found - 1].cost_usd.value == costs


@pytest.mark.parametrize("steps", [16.0, 3000.0, 450_000.0])
def test_the_answer_is_one_screen(make_job: MakeJob, predictor: Predictor, steps: float) -> None:
    job = replace(make_job(), total_steps=steps)
    answer = recommend(job, predictor=predictor, here=machine_at_hand(predictor, job)).to_record()
    for width in (80, 120):
        lines, are_choices = zip(*recommendation.text(answer, width=width), strict=True)
        assert len(lines) <= recommendation.SCREEN_LINES
        assert max(map(len, lines)) <= width
        assert any(are_choices)
        # What the sentences point to stands in the table.
        for told in re.findall(r"\(#(\d+)\)", " ".join(answer["summary"])):
            assert any(re.match(rf"[> ] ?{told} ", line) for line in lines), told


def test_a_row_explains_itself_and_an_unknown_one_says_which_there_are(
    answer: Recommendation,
) -> None:
    for one in answer.front:
        said = recommendation.explained_text(answer.to_record(), one.rank)
        assert all(name in said for name in ("layout", "where time and cost go"))
        parts = sum(part.time_h for part in one.breakdown.values())
        assert math.isclose(parts, one.training_time_h.value, rel_tol=1e-9)
    with pytest.raises(Exception, match="no row 99"):
        recommendation.explained_text(answer.to_record(), 99)


def test_the_hourly_price_of_all_machines_together_is_bounded(
    make_job: MakeJob, predictor: Predictor, every: Recommendation
) -> None:
    hourly = [one.configuration.price_usd_per_h for one in every.front]
    most = sorted(hourly)[len(hourly) // 2]
    bound = recommend(make_job(), replace(EVERY, max_hourly_usd=most), predictor=predictor)
    assert bound.rejected["over_hourly"] > 0
    assert all(one.configuration.price_usd_per_h <= most for one in bound.front)
    kept = [one.cost_usd for one, usd in zip(every.front, hourly, strict=True) if usd <= most]
    assert {one.value for one in kept} <= {one.cost_usd.value for one in bound.front}


@pytest.mark.parametrize("is_laid_out", [True, False])
def test_what_misses_the_hourly_limit_by_least_is_shown(
    make_job: MakeJob, predictor: Predictor, is_laid_out: bool
) -> None:
    """Of a job that is searched for layouts, and of a small one that fits a single card."""
    size = 4096 if is_laid_out else 256
    job = job_from_spec(JobSpec(layers=8, hidden=size, heads=8, tokens=10_000_000))
    request = Constraints(max_hourly_usd=0.001, max_nodes=2, providers=("aws",))
    answer = recommend(job, request, predictor=predictor)
    assert not answer.front
    hourly = [one.configuration.price_usd_per_h for one in answer.nearest]
    assert hourly == sorted(hourly)
    free = recommend(job, replace(request, max_hourly_usd=None, top=500), predictor=predictor)
    assert hourly[0] <= min(one.configuration.price_usd_per_h for one in free.front)
    first = next(line for line, is_bold in recommendation.text(answer.to_record()) if is_bold)
    assert first == "Nothing satisfies the constraints. The nearest misses:"


def test_every_spot_row_says_how_often_it_is_interrupted(
    make_job: MakeJob, predictor: Predictor
) -> None:
    request = Constraints(pricings=("on-demand", "spot"))
    answer = recommend(make_job(), request, predictor=predictor)
    offers = [offer for one in answer.front for offer, _ in one.configuration.parts]
    assert any(offer.pricing == "spot" for offer in offers)
    assert all(("interrupt" in offer.terms) == (offer.pricing == "spot") for offer in offers)
    shown = "\n".join(line for line, _ in recommendation.text(answer.to_record(), most=None))
    assert shown.count("interrupt") >= sum(offer.pricing == "spot" for offer in offers)


def test_what_would_change_the_answer_is_asked_of_the_same_estimate(
    make_job: MakeJob, predictor: Predictor, unbound: Recommendation
) -> None:
    job, answer = make_job(), unbound
    chosen = answer.front[answer.picks["best_value"] - 1]  # type: ignore[operator]
    by_name = {change.name: change for change in answer.changes}
    assert "batch" in by_name
    offer, count = chosen.configuration.parts[0]
    twice = job_from_spec(JobSpec(batch=2 * job.global_batch), job=job)
    same = predictor.predict(
        twice, offer.instance_type, count=count, provider=offer.provider, region=offer.region
    )
    assert by_name["batch"].training_time_h == same.training_time_h
    assert by_name["batch"].cost_usd == same.cost_usd
    assert by_name["batch"].time_factor == pytest.approx(
        same.training_time_h.value / chosen.training_time_h.value
    )
    for change in answer.changes:
        assert change.name == "ddp" or min(change.time_factor, change.cost_factor) < 1.0


def test_the_strongest_change_says_what_is_best_after_it(
    make_job: MakeJob, predictor: Predictor, unbound: Recommendation
) -> None:
    job, answer = make_job(), unbound
    chosen = answer.front[answer.picks["best_value"] - 1]  # type: ignore[operator]
    asked: list[Job] = []

    def ask(other: Job) -> Candidate:
        asked.append(other)
        return answer.front[0 if chosen.rank > 1 else 1]

    strongest, *others = changes(job, Constraints(), predictor, chosen, None, ask=ask)
    assert len(asked) == 1
    assert asked[0] != job
    assert strongest.pick is answer.front[0 if chosen.rank > 1 else 1]
    assert strongest.to_record()["pick"]["rank"] == strongest.pick.rank
    assert all(one.pick is None for one in others)
    (same, *_) = changes(job, Constraints(), predictor, chosen, None, ask=lambda _: chosen)
    assert same.pick is None  # the same machines are still the best


def test_a_script_is_told_what_the_choice_assumes_of_it(
    make_job: MakeJob, predictor: Predictor
) -> None:
    told = Told(reason="--no-cuda", change="leave --no-cuda out")
    job = replace(make_job(), told=told)
    here = machine_at_hand(predictor, job)
    answer = recommend(job, predictor=predictor, here=here, with_changes=True)
    chosen = answer.front[answer.picks["best_value"] - 1]  # type: ignore[operator]
    named = {change.name: change for change in answer.changes}
    assert here is not None
    assert named["device"].training_time_h == here.training_time_h
    assert "leave --no-cuda out" in named["device"].do
    assert ("ddp" in named) == (
        chosen.layout.devices > 1 and any(one.layout.devices == 1 for one in answer.front)
    )
    ddp = replace(job, told=Told(spreads=("DDP",)))
    able = recommend(ddp, predictor=predictor, here=here, with_changes=True)
    assert not {"ddp", "device"} & {change.name for change in able.changes}


def test_limits_that_bind_are_asked_for_twice(
    make_job: MakeJob, predictor: Predictor, unbound: Recommendation
) -> None:
    budget = min(one.cost_usd.value for one in unbound.front) * 1.5
    bound = recommend(
        make_job(), Constraints(budget_usd=budget), predictor=predictor, with_changes=True
    )
    more = recommend(make_job(), Constraints(budget_usd=2 * budget), predictor=predictor)
    change = next(one for one in bound.changes if one.name == "budget")
    assert change.training_time_h == more.front[0].training_time_h
    assert change.training_time_h.value < bound.front[0].training_time_h.value
    assert not [one for one in unbound.changes if one.name in ("budget", "deadline")]


def on_card(name: str) -> Candidate:
    one = candidate(1.0, 1.0)
    offer, _ = one.configuration.parts[0]
    card = replace(offer, accelerator=name, accelerators=1.0)
    return replace(one, configuration=Configuration(parts=((card, 1),)))


def test_the_error_to_expect_is_the_stored_one_of_jobs_known_so(
    predictor: Predictor, make_job: MakeJob
) -> None:
    recorded = make_job()
    assert recorded.measured is not None
    run = Actual(run="r", provider="", instance_type="A100", count=1, step_s=0.1)
    jobs = {
        "described": replace(recorded, measured=None),
        "gpu": replace(recorded, actuals=(run, replace(run, run="s"))),
        "instance": replace(recorded, measured=replace(recorded.measured, device="cuda")),
    }
    volta = on_card("V100-SXM2-16GB")
    said = set()
    for protocol, job in jobs.items():
        record, day = stored_errors(protocol)
        found = known_error(job, volta, predictor.catalogue)
        assert found is not None
        assert (found.protocol, found.day) == (protocol, day)
        cards = {
            name: float(value)
            for name, value in (
                *((k.removesuffix(": median APE"), v) for k, v in record["figures"].items()),
                *((g["group"], g["median_ape_fraction"]) for g in record["groups"]),
            )
            if name.startswith("V100") and ":" not in name
        }
        assert found.accelerators >= len(cards) > 0
        assert min(cards.values()) <= found.median_ape_fraction <= max(cards.values())
        said.add(found.jobs)
    assert len(said) == 3
    assert known_error(jobs["described"], candidate(1.0, 1.0), predictor.catalogue) is None
    # One run is less than several.
    one_run = known_error(replace(recorded, actuals=(run,)), volta, predictor.catalogue)
    assert one_run is not None
    assert one_run.protocol == "instance"


def on_cards(name: str, devices: int) -> Candidate:
    one = on_card(name)
    offer, _ = one.configuration.parts[0]
    return replace(one, configuration=Configuration(parts=((offer, devices),)))


def test_the_error_to_expect_is_that_of_as_many_devices(predictor: Predictor) -> None:
    model = Transformer(layers=4, hidden=256, heads=4, sequence=128, vocabulary=1000)
    job = described_job(transformer_work(model, micro_batch=1), name="gpt")
    figures = stored_errors("layouts")[0]["figures"]
    for devices in (4, 16, 128, 2048):
        found = known_error(job, on_cards("H100-SXM5-80GB", devices), predictor.catalogue)
        assert found is not None
        assert (found.protocol, found.of, found.devices) == (
            "layouts",
            "step",
            device_band(devices),
        )
        key = f"Hopper, {device_band(devices)}: median APE"
        assert found.median_ape_fraction == figures[key]
    # Of one device other rows tell, and of more Voltas than published runs had none do.
    alone = known_error(job, on_card("V100-SXM2-16GB"), predictor.catalogue)
    assert alone is not None
    assert alone.protocol == "described"
    many = on_cards("V100-SXM2-16GB", 2048)
    assert known_error(job, many, predictor.catalogue) is None
    assert "2,048 x V100" in unmeasured_words(job, many)
    # Runs on single devices tell nothing of several.
    run = Actual(run="r", provider="", instance_type="A100", count=1, step_s=0.1)
    known = replace(job, actuals=(run, run))
    assert known_error(known, on_cards("V100-SXM2-16GB", 8), predictor.catalogue) is None


def test_a_campaign_of_days_is_looked_up_among_campaigns(predictor: Predictor) -> None:
    model = Transformer(layers=4, hidden=256, heads=4, sequence=128, vocabulary=1000)
    job = described_job(transformer_work(model, micro_batch=1), name="gpt", steps=1e6)
    many = on_cards("A100-SXM4-80GB", 512)
    days = replace(many, training_time_h=replace(many.training_time_h, value=200.0, high=300.0))
    found = known_error(job, days, predictor.catalogue)
    assert found is not None
    overall = stored_errors("campaigns")[0]["overall"]
    assert (found.of, found.median_ape_fraction) == ("whole job", overall["median_ape_fraction"])


def test_a_job_recorded_on_a_cpu_is_given_no_error_of_other_jobs(
    predictor: Predictor, make_job: MakeJob
) -> None:
    job = make_job()  # recorded on a CPU
    volta = on_card("V100-SXM2-16GB")
    assert known_error(job, volta, predictor.catalogue) is None
    words = unmeasured_words(job, volta)
    assert "recorded on a CPU" in words
    assert "no test results" in words
    assert "V100" in words
    one = replace(volta, rank=1)
    record = {
        "front": [one.to_record()], "picks": picks_of((one,), None), "known_error": None
    }  # fmt: skip
    claims = claims_of(record, certainty=0.9, worth=2.0, trouble_h=0.5, unmeasured=words)
    told = [one.text for one in claims]
    assert words in told
    assert not any("Typical error" in line for line in told)
    # No run on a T4 was asked about a Hopper.
    seen = job.measured
    assert seen is not None
    on_gpu = replace(job, measured=replace(seen, device="cuda"))
    assert known_error(on_gpu, on_card("H100-SXM5-80GB"), predictor.catalogue) is None
    assert "one run on a GPU" in unmeasured_words(on_gpu, on_card("H100-SXM5-80GB"))


def test_the_best_value_is_among_the_rows_of_the_screen(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = replace(make_job(), total_steps=450_000.0)
    answer = recommend(job, Constraints(least_gain_fraction=0.01), predictor=predictor)
    assert len(answer.front) > 5
    lines = [line for line, _ in recommendation.text(answer.to_record())]
    best_row = answer.front[answer.picks["best_value"] - 1]  # type: ignore[operator]
    assert any(re.match(rf">{best_row.rank:>2} best", line) for line in lines)


def test_every_row_says_the_day_of_its_price_and_undated_ones_can_be_left_out() -> None:
    catalogue = Catalogue.load(with_overrides=False)
    asking = Predictor(catalogue, learned=None)
    job = described_job(
        transformer_work(
            Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50304),
            micro_batch=1,
        ),
        name="gpt2", global_batch=512, steps=1000,
    )  # fmt: skip
    every, dated = (
        recommend(job, Constraints(is_dated=is_dated, pricings=("on-demand", "spot"), top=20),
                  predictor=asking)
        for is_dated in (False, True)
    )  # fmt: skip
    undated = catalogue.select(OfferFilter()), catalogue.select(OfferFilter(is_dated=True))
    assert len(undated[1]) < len(undated[0])
    for found in (every, dated):
        offers = [offer for one in found.front for offer, _ in one.configuration.parts]
        assert all(offer.price_status and offer.price_kind for offer in offers)
        assert found.catalogue.as_of == max(offer.price_as_of for offer in offers)
        assert any("price" in line for line in str(found).splitlines())
    assert all(o.price_as_of for one in dated.front for o, _ in one.configuration.parts)
    # What AWS asks for spot machines is nowhere listed for all regions: it was derived.
    spot = catalogue.select(OfferFilter(providers=("aws",), pricing=["spot"]))
    assert all(offer_of(catalogue, spot, row).price_kind == "derived" for row in (0, 9))
