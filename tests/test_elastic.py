"""Elastic schedules against exhaustive search and billing identities."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.ask import Question
from advisor.catalogue.containers import container_billing, container_offers
from advisor.errors import UsageError
from advisor.estimate import JobFigures, figures_of, over_phases
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.planners import PlanningError
from advisor.planners.links.gradients import expected_maximum
from advisor.planners.systems.gradient_noise import NoiseScale, noise_scale
from advisor.planners.systems.hydrozoa import (
    Billing,
    Phase,
    WorkerScaling,
    billed_cost_usd,
    elastic_plan,
)
from advisor.planners.systems.rank_spread import RankSpread
from advisor.report.simulation import elastic
from advisor.simulate.elastic import planned
from advisor.simulate.questions import SimulateElastic

HOUR = 3600.0
SCALING = WorkerScaling(
    workers=(1, 2, 4, 8), step_s=0.02, sample_s=0.004, sync_s=(0.0, 0.03, 0.06, 0.09)
)
BILLING = Billing(price_usd_per_h=3.0)
PHASES = [Phase(samples=2e5, noise_batch=b) for b in (300.0, 900.0, 2700.0, 8000.0)]
BATCHES = [256, 512, 1024, 2048]


def every_schedule(resize_s: float) -> list[tuple[float, float]]:
    """Time and bill of all 4^4 worker choices, each phase at its fastest batch (the slow twin)."""
    results = []
    for counts in itertools.product(range(4), repeat=len(PHASES)):
        lengths = []
        for phase, k in zip(PHASES, counts, strict=True):
            lengths.append(
                min(
                    phase.samples * (1 + b / phase.noise_batch) / b  # type: ignore[operator]
                    * (0.02 + 0.004 * b / SCALING.workers[k] + SCALING.sync_s[k])
                    for b in BATCHES
                )
            )  # fmt: skip
        workers = [SCALING.workers[k] for k in counts]
        for at in range(1, len(counts)):
            if workers[at] > workers[at - 1]:
                lengths[at] += resize_s
            elif workers[at] < workers[at - 1]:
                lengths[at - 1] += resize_s
        results.append((sum(lengths), billed_cost_usd(workers, lengths, BILLING)))
    return results


@pytest.mark.parametrize("resize_s", [0.0, 60.0, 900.0])
@pytest.mark.parametrize("stretch", [1.02, 1.3, 2.0, 5.0])
def test_schedule_is_as_cheap_as_the_best_of_all_that_meet_the_deadline(
    resize_s: float, stretch: float
) -> None:
    every = every_schedule(resize_s)
    deadline = min(t for t, _ in every) * stretch
    plan = elastic_plan(
        PHASES, SCALING, BILLING, batch=256, batches=BATCHES, resize_s=resize_s,
        deadline_s=deadline,
    )  # fmt: skip
    cheapest = min(cost for time, cost in every if time <= deadline)
    # Bills are rounded up to whole seconds of each worker.
    assert plan.elastic.cost_usd <= cheapest + 8 * 4 * 3.0 / HOUR
    assert plan.elastic.time_s <= deadline


def test_a_budget_buys_the_fastest_schedule() -> None:
    every = every_schedule(60.0)
    budget = min(cost for _, cost in every) * 1.2
    plan = elastic_plan(
        PHASES, SCALING, BILLING, batch=256, batches=BATCHES, resize_s=60.0, budget_usd=budget
    )
    fastest = min(time for time, cost in every if cost <= budget)
    assert plan.elastic.cost_usd <= budget
    assert plan.elastic.time_s <= fastest * (1 + 1e-9)


@settings(deadline=None, max_examples=30)
@given(
    noise=st.lists(st.floats(50, 1e5), min_size=1, max_size=6),
    resize=st.floats(0, 2000),
    quantum=st.sampled_from([1.0, 60.0, 3600.0]),
    startup=st.sampled_from([0.0, 120.0]),
)
def test_elastic_never_costs_more_than_fixed_and_its_front_is_one(
    noise: list[float], resize: float, quantum: float, startup: float
) -> None:
    phases = [Phase(samples=1e5, noise_batch=b) for b in noise]
    billing = Billing(price_usd_per_h=2.0, quantum_s=quantum, startup_s=startup)
    plan = elastic_plan(phases, SCALING, billing, batch=256, batches=BATCHES, resize_s=resize)
    assert plan.saving_fraction is not None
    assert plan.saving_fraction >= -1e-9
    times, costs = ([getattr(s, name) for s in plan.front] for name in ("time_s", "cost_usd"))
    assert np.all(np.diff(times) > 0)
    assert np.all(np.diff(costs) < 0)


def test_without_a_measured_noise_scale_the_batch_stays() -> None:
    plan = elastic_plan(
        [Phase(samples=1e5)] * 3, SCALING, BILLING, batch=256, batches=BATCHES, deadline_s=1e6
    )
    assert set(plan.elastic.batches) == {256.0}
    # Equal phases: nothing to gain from changing workers.
    assert plan.elastic.resizes == 0


def test_batch_grows_with_the_noise_scale() -> None:
    plan = elastic_plan(
        PHASES, SCALING, BILLING, batch=256, batches=BATCHES, resize_s=0.0, budget_usd=1e9
    )
    assert np.all(np.diff(plan.elastic.batches) >= 0)
    assert plan.elastic.batches[-1] > plan.elastic.batches[0]


def test_needed_samples_follow_the_critical_batch() -> None:
    phase = Phase(samples=1e6, noise_batch=500.0)
    # At the noise scale twice the samples; steps never below samples / noise scale.
    np.testing.assert_allclose(phase.needed_samples(np.array([0.0, 500.0])), [1e6, 2e6])
    steps = phase.needed_samples(np.array([1e9])) / 1e9
    np.testing.assert_allclose(steps, 1e6 / 500.0, rtol=1e-5)


def test_noise_scale_is_found_from_real_gradients() -> None:
    rng = np.random.default_rng(0)
    mean, spread = np.full(50, 0.3), 2.0
    norms = []
    for batch in (16, 256):
        gradients = mean + spread / np.sqrt(batch) * rng.normal(size=(4000, 50))
        norms.append(float((gradients**2).sum(axis=1).mean()))
    true = spread**2 * 50 / float((mean**2).sum())
    assert noise_scale(16, norms[0], 256, norms[1]) == pytest.approx(true, rel=0.05)
    with pytest.raises(PlanningError, match="no noise scale"):
        noise_scale(16, 1.0, 256, 2.0)


@pytest.mark.parametrize(
    ("quantum", "minimum", "startup", "billed_s"),
    [(1.0, 0.0, 0.0, 100 + 100 + 40), (60.0, 0.0, 0.0, 120 + 120 + 60), (1.0, 90.0, 0.0, 290),
     (1.0, 0.0, 10.0, 270)],
)  # fmt: skip
def test_every_rental_is_rounded_up_by_itself(
    quantum: float, minimum: float, startup: float, billed_s: float
) -> None:
    billing = Billing(
        price_usd_per_h=HOUR, quantum_s=quantum, minimum_s=minimum, startup_s=startup
    )
    # Two workers for 100 s, a third for the 40 s in the middle.
    cost = billed_cost_usd((2, 3, 2), (30.0, 40.0, 30.0), billing)
    assert cost == pytest.approx(billed_s)


def test_a_limit_that_nothing_meets_is_refused_with_the_two_ends() -> None:
    with pytest.raises(PlanningError, match=r"fastest takes .* cheapest") as refused:
        elastic_plan(PHASES, SCALING, BILLING, batch=256, deadline_s=1.0)
    assert refused.value.exit_code == 3


def test_a_recorded_job_brings_its_own_figures(make_job: Callable[..., Job]) -> None:
    """What ``simulate elastic --run`` plans with is the one estimate, at every count."""
    job, predictor = make_job(total_steps=5_004.0), Predictor()
    found = figures_of(predictor, job, "aws:g5.xlarge", [1, 2, 4])
    batch = np.array([float(job.global_batch)])
    steps = found.scaling.steps_s(batch)[0]
    for count, step_s in zip(found.scaling.workers, steps, strict=True):
        asked = predictor.predict(job, "aws:g5.xlarge", count=count)
        assert step_s == pytest.approx(asked.step_time_s.value, rel=1e-6)
    assert found.samples * found.phases == pytest.approx(job.total_steps * job.global_batch)
    assert found.phases == 1  # 5,004 steps of 256 are an epoch of ImageNet
    one = predictor.predict(job, "aws:g5.xlarge").configuration
    assert found.price_usd_per_h == one.price_usd_per_h
    with pytest.raises(UsageError, match="no training steps"):
        figures_of(predictor, replace(job, work=None), "aws:g5.xlarge", [1])


def test_workers_that_differ_wait_for_the_slowest_and_the_more_the_longer() -> None:
    spread = replace(SCALING, spread_fraction=0.1)
    batch = np.array([256.0])
    ratio = (spread.steps_s(batch) - SCALING.sync_s) / (SCALING.steps_s(batch) - SCALING.sync_s)
    np.testing.assert_allclose(ratio[0], 1 + 0.1 * expected_maximum([1, 2, 4, 8]))
    drawn = 1 + 0.1 * np.random.default_rng(0).normal(size=(20_000, 8)).max(axis=1)
    assert ratio[0, -1] == pytest.approx(drawn.mean(), rel=0.005)


def test_unlike_recorded_ranks_make_elastic_workers_slower(make_job: Callable[..., Job]) -> None:
    """Their spread is in the steps; of more samples a step it takes its share."""
    even = make_job(total_steps=5_004.0)
    seen = RankSpread(staying_fraction=0.4, passing_fraction=0.1, lag1=0.5, ranks=9, steps=500)
    both = [
        figures_of(Predictor(), replace(even, spread=one), "aws:g5.xlarge", [1, 8]).scaling
        for one in (None, seen)
    ]
    assert both[1].spread_fraction == pytest.approx(seen.with_prior(both[0].spread_fraction))
    for batch in (256.0, 4096.0):
        alike, unlike = (one.steps_s(np.array([batch]))[0] for one in both)
        assert unlike[0] == pytest.approx(alike[0])
        assert unlike[1] > alike[1]
        computing = both[0].step_s + both[0].sample_s * batch / 8
        gap = (both[1].spread_fraction - both[0].spread_fraction) * float(expected_maximum(8))
        exchanging = both[1].sync_s[1] - both[0].sync_s[1]  # what hides behind a longer step
        assert unlike[1] - alike[1] == pytest.approx(gap * computing + exchanging, rel=0.01)


def answered(known: JobFigures, **given: Any) -> Mapping[str, Any]:
    return planned(
        SimulateElastic(question=Question(), batches="1024", price=1.0, **given), known
    ).record


def test_a_recorded_noise_scale_is_used_and_the_job_keeps_its_own_length(
    make_job: Callable[..., Job],
) -> None:
    noise = NoiseScale(samples=512.0, low=400.0, high=700.0, steps=80)
    job = replace(make_job(total_steps=5_004.0), noise=noise)
    known = figures_of(Predictor(), job, "aws:g5.xlarge", [1, 2])
    record = answered(known)
    phase = Phase(
        samples=record["samples_per_phase"], noise_batch=record["noise_scale_samples"][0]
    )
    assert phase.noise_batch == pytest.approx(512.0)
    # At its own batch the job takes as many samples as it does.
    own = float(phase.needed_samples(np.array([known.batch]))[0])
    assert own == pytest.approx(job.total_steps * job.global_batch)
    twice = float(phase.needed_samples(np.array([2 * known.batch]))[0])
    assert twice / own == pytest.approx(noise.more_samples(known.batch, 2 * known.batch))
    assert record["noise_scale_source"] == "recorded"
    assert record["noise_scale_recorded"] == asdict(noise)
    assert answered(known, noise="300:300")["noise_scale_samples"] == [pytest.approx(300.0)]
    unknown = answered(replace(known, noise=None))
    assert unknown["noise_scale_source"] == "unknown"
    assert unknown["noise_scale_samples"] == [None]
    said = [" ".join(str(one) for one in elastic(each)) for each in (record, unknown)]
    assert "512 samples (400 to 700), of 80 recorded steps" in said[0]
    assert "unknown, so the batch stays" in said[1]


def test_a_growing_batch_is_not_credited_to_elastic_workers() -> None:
    """Both sides take the best batch of each phase; what that saves is said apart."""
    plan = elastic_plan(PHASES, SCALING, BILLING, batch=256, batches=BATCHES, resize_s=60.0)
    assert plan.fixed is not None
    assert plan.constant is not None
    best = min(
        sum(
            min(
                float(phase.needed_samples(np.array(float(b)))) / b
                * (0.02 + 0.004 * b / count + sync) for b in BATCHES
            )
            for phase in PHASES
        ) * count
        for count, sync in zip(SCALING.workers, SCALING.sync_s, strict=True)
    )  # fmt: skip
    assert plan.fixed.cost_usd == pytest.approx(best * 3.0 / HOUR, rel=1e-3)
    assert plan.fixed.cost_usd <= plan.constant.cost_usd
    assert plan.saving_fraction == pytest.approx(1 - plan.elastic.cost_usd / plan.fixed.cost_usd)
    if plan.elastic.resizes == 0:
        assert plan.saving_fraction == pytest.approx(0.0, abs=1e-9)


def test_a_change_of_layout_is_paid_like_a_resize() -> None:
    """Counts that keep the state alike are reached more cheaply than those that do not."""
    moved = replace(SCALING, layouts=("a", "a", "b", "b"), relayout_s=500.0)
    pauses = moved.resizes_s(60.0)
    assert pauses[0, 1] == pauses[2, 3] == 60.0
    assert pauses[1, 2] == pauses[0, 3] == 560.0
    near, far = (
        elastic_plan(PHASES, one, BILLING, batch=256, batches=BATCHES, deadline_s=4_000.0)
        for one in (SCALING, moved)
    )
    assert far.elastic.cost_usd >= near.elastic.cost_usd
    with pytest.raises(ValueError, match="layouts"):
        replace(SCALING, layouts=("a",))


def test_layouts_of_a_job_that_change_with_the_count_are_known(
    make_job: Callable[..., Job],
) -> None:
    found = figures_of(Predictor(), make_job(total_steps=5_004.0), "aws:g5.xlarge", [1, 2, 4])
    assert found.scaling.layouts == ()  # a small network lies alike on every count
    assert found.vcpus == 4
    assert found.accelerator


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=5), st.integers(1, 9))
def test_the_noise_scale_goes_through_what_was_recorded(points: list[float], phases: int) -> None:
    found = over_phases(points, phases)
    assert len(found) == phases
    assert min(points) * (1 - 1e-9) <= min(found) <= max(found) <= max(points) * (1 + 1e-9)
    assert found[0] == pytest.approx(points[0])
    if phases > 1:
        assert found[-1] == pytest.approx(points[-1])


@given(
    st.sampled_from(sorted(container_offers())), st.floats(0.25, 8), st.floats(0.5, 30),
    st.floats(1, 7200), st.integers(1, 6),
)  # fmt: skip
def test_containers_are_billed_for_what_they_are_given(
    name: str, vcpus: float, gib: float, time_s: float, workers: int
) -> None:
    offer = container_offers()[name]
    held, _ = container_billing(name, vcpus=vcpus, gib=gib, coordinator=(0.25, 0.5))
    paid = billed_cost_usd([workers], [time_s], held)
    seconds = max(time_s, offer["minimum_s"])
    a_worker = vcpus * offer["vcpu_usd_per_h"] + gib * offer["gib_usd_per_h"]
    beside = 0.25 * offer["vcpu_usd_per_h"] + 0.5 * offer["gib_usd_per_h"]
    least = (workers * a_worker + beside) * seconds / HOUR
    assert least * (1 - 1e-9) <= paid
    assert paid <= least + (workers * a_worker + beside) * offer["quantum_s"] / HOUR + 1e-9


def test_containers_that_nobody_offers_are_refused() -> None:
    with pytest.raises(UsageError, match="no containers are called"):
        container_billing("lambda:4x8")
    with pytest.raises(UsageError, match="cannot read"):
        container_billing("aws-fargate:4")
    with pytest.raises(UsageError, match="no accelerator"):
        container_billing("aws-fargate:4x16", accelerator="L4")
    with pytest.raises(UsageError, match="at most"):
        container_billing("aws-fargate:64x16")
    with_card, _ = container_billing("gcp-cloud-run:4x16", accelerator="L4")
    assert with_card.price_usd_per_h > container_billing("gcp-cloud-run:4x16")[0].price_usd_per_h
