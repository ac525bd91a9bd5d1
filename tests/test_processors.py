"""Processors of rented machines: what lasts of them, which generation they are, what they hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.answer import Candidate, Fact
from advisor.ask import Constraints, Question
from advisor.catalogue import Catalogue
from advisor.errors import DoesNotRunError
from advisor.estimate.estimate import estimate_on_type
from advisor.estimate.predictor import Predictor
from advisor.jobs import load
from advisor.jobs.job import Job, Program
from advisor.rank.ranking import recommend

GIB = 2**30
ROOT = Path(__file__).resolve().parents[1]
# A page's table in the provider's own terms: credits earned by the hour (a credit is a virtual CPU
# for a minute), and those given at launch.
CREDITS = {
    "t2.micro": (6, 30), "t2.2xlarge": (81.6, 240), "Standard_B1s": (6, 30),
    "Standard_B2pts_v2": (24, 60), "Standard_B4ms": (54, 120), "Standard_B16as_v2": (384, 480),
}  # fmt: skip
# Of machines in unlimited mode: credits by the hour, and what a vCPU-hour beyond them costs.
UNLIMITED = {
    "t3.micro": (12, 0.05), "t3a.2xlarge": (192, 0.05), "t4g.micro": (12, 0.04),
    "t4g.large": (36, 0.04),
}  # fmt: skip
SMALL = {
    "layers": 4, "hidden": 128, "heads": 4, "sequence": 64, "vocabulary": 65, "batch": 12,
    "precision": "fp32",
}  # fmt: skip


def described(**said: object) -> Job:
    return load.job_from_spec(Question.read({**SMALL, **said}).job)


def steps_h(found: Candidate) -> float:
    return found.breakdown["steps"].time_h


def on(predictor: Predictor, name: str, job: Job) -> Candidate:
    return predictor.predict(job, name)


def selling(predictor: Predictor, *names: str) -> Predictor:
    """A catalogue in which only some types have a price."""
    found = predictor.catalogue
    left = found.prices.take(np.isin(found.types.name[found.prices.type_index], names))
    return Predictor(replace(found, prices=left))


def by_the_minute_h(work_h: float, vcpus: float, credits_per_h: float, credits: float) -> float:
    """When so much work at full speed is done on a machine that keeps an account of credits."""
    step_h = 1 / 600
    done_h, hours = 0.0, 0.0
    while done_h < work_h:
        credits += credits_per_h * step_h
        used = min(vcpus * 60 * step_h, credits)
        credits -= used
        done_h += used / 60 / vcpus
        hours += step_h
    return hours


@pytest.mark.parametrize("name", CREDITS)
@pytest.mark.parametrize("work_h", [0.2, 3.0])
def test_a_throttled_machine_takes_as_long_as_its_account_of_credits_says(
    predictor: Predictor, name: str, work_h: float
) -> None:
    full_h = steps_h(on(predictor, name, described(total_steps=10))) / 10
    steps = max(round(work_h / full_h), 1)
    vcpus = predictor.catalogue.instance_type(name).vcpus or 0.0
    expected_h = by_the_minute_h(steps * full_h, vcpus, *CREDITS[name])
    found = on(predictor, name, described(total_steps=steps))
    assert steps_h(found) == pytest.approx(expected_h, rel=0.02)
    assert found.breakdown["cpu_surplus"].cost_usd == 0.0


@pytest.mark.parametrize("name", UNLIMITED)
def test_an_unlimited_machine_keeps_its_speed_and_bills_what_is_beyond_its_credits(
    predictor: Predictor, name: str
) -> None:
    short, long = (on(predictor, name, described(total_steps=n)) for n in (10, 2_000_000))
    assert steps_h(long) / 2_000_000 == pytest.approx(steps_h(short) / 10)
    credits_per_h, usd = UNLIMITED[name]
    offer, _ = long.configuration.parts[0]
    beyond = offer.vcpus - credits_per_h / 60
    surplus = long.breakdown["cpu_surplus"].cost_usd or 0.0
    assert surplus == pytest.approx(beyond * usd * long.training_time_h.value)
    rest = sum(part.cost_usd or 0.0 for part in long.breakdown.values()) - surplus
    assert rest == pytest.approx(offer.price_usd_per_h * long.training_time_h.value, rel=0.02)
    assert long.cost_usd.value == pytest.approx(rest + surplus)


def test_a_job_that_stays_below_the_baseline_pays_no_surplus(
    predictor: Predictor, make_job: Callable[..., Job]
) -> None:
    def program(parallelism: float) -> Job:
        program = Program(duration_s=600.0, cpu_s=600.0 * parallelism, parallelism=parallelism)
        return make_job(
            work=None, program=program, global_batch=1, total_steps=1.0, step_s=600.0,
            peak_rss_bytes=GIB // 2,
        )  # fmt: skip

    within, beyond = (on(predictor, "t3.2xlarge", program(cores)) for cores in (3.0, 8.0))
    assert within.breakdown["cpu_surplus"].cost_usd == 0.0
    assert (beyond.breakdown["cpu_surplus"].cost_usd or 0.0) > 0.0


@settings(max_examples=15)
@given(log_steps=st.floats(2, 8), name=st.sampled_from(sorted(CREDITS)))
def test_more_work_takes_longer_and_never_more_than_the_baseline_makes_it(
    predictor: Predictor, log_steps: float, name: str
) -> None:
    steps = round(math.exp(log_steps * math.log(10)))
    more = on(predictor, name, described(total_steps=2 * steps))
    some, few = (on(predictor, name, described(total_steps=n)) for n in (steps, 1))
    row = predictor.catalogue.instance_type(name)
    full_h, share = steps_h(few), row.cpu_baseline or 1.0
    assert full_h * steps * (1 - 1e-9) <= steps_h(some) < steps_h(more)
    assert steps_h(some) <= full_h * steps / share * (1 + 1e-9)


def test_what_was_learned_of_costs_says_nothing_of_bursting_machines(predictor: Predictor) -> None:
    run = load.load_job(ROOT / "tests" / "golden" / "run-schema-1")
    known, bursting = (
        estimate_on_type(predictor, run, name) for name in ("c7i.large", "t3.large")
    )
    assert known.cost_direct_usd is not None
    assert bursting.cost_direct_usd is None


def test_a_machine_without_a_known_baseline_is_left_out_and_says_why(predictor: Predictor) -> None:
    job = described(total_steps=1000)
    with pytest.raises(DoesNotRunError, match="baseline"):
        estimate_on_type(predictor, job, "t1.micro")
    found = recommend(job, Constraints(), predictor=selling(predictor, "t1.micro", "t3.micro"))
    assert found.rejected["cpu_baseline_unknown"] > 0
    assert {one.instance_type for c in found.front for one, _ in c.configuration.parts} == {
        "t3.micro"
    }


def test_every_burstable_type_that_is_sold_has_its_baseline_or_is_known_to_lack_it() -> None:
    types = Catalogue.load(with_overrides=False).types
    bursts = re.compile(r"aws t\d|azure Standard_B\d|gcp (e2-(micro|small|medium)|f1-|g1-)")
    for provider, name, share, source in zip(
        types.provider, types.name, types.cpu_baseline, types.cpu_baseline_source, strict=True
    ):
        is_burstable = bursts.match(f"{provider} {name}") is not None
        assert is_burstable == (share != 1.0) == bool(source), name


def test_no_recommendation_undercuts_what_the_machine_alone_would_be_predicted(
    predictor: Predictor,
) -> None:
    """The ranking and ``predict`` pay the same for processor time beyond the baseline."""
    job = described(total_steps=500_000)
    types = ("t4g.micro", "t3.large", "t3a.xlarge", "Standard_B2pts_v2", "c7g.large", "e2-small")
    request = Constraints(least_gain_fraction=0.0, top=50, max_nodes=1)
    found = recommend(job, request, predictor=selling(predictor, *types))
    assert found.front
    for one in found.front:
        offer, _ = one.configuration.parts[0]
        alone = predictor.predict(job, offer.instance_type, region=offer.region)
        assert alone.cost_usd.value == pytest.approx(one.cost_usd.value)
        assert alone.training_time_h.value == pytest.approx(one.training_time_h.value)


# Generations.


# Cores x clock x operations a cycle, from the makers' descriptions of the cores.
GRAVITONS = {"c6g.large": 2 * 2.6e9 * 16, "c7g.large": 2 * 2.6e9 * 32, "c8g.large": 2 * 2.8e9 * 32}


def rates(predictor: Predictor, name: str) -> Fact:
    found = estimate_on_type(predictor, described(total_steps=1000), name)
    return next(fact for fact in found.sources if "peak and memory" in fact.what)


def test_generations_of_one_family_compute_as_their_data_sheets_say(predictor: Predictor) -> None:
    for name, flop_per_s in GRAVITONS.items():
        fact = rates(predictor, name)
        assert fact.source == "looked up"
        assert float(fact.value.split()[0]) * 1e12 == pytest.approx(flop_per_s, rel=1e-3)
    times = [on(predictor, n, described(total_steps=10**6)).training_time_h for n in GRAVITONS]
    assert times[0].value > times[1].value > times[2].value


def test_a_processor_that_nobody_states_or_that_may_be_several_is_called_assumed(
    predictor: Predictor,
) -> None:
    types = predictor.catalogue.types
    unstated = types.name[(types.cpu_model == "") & (types.accelerator == "")][0]
    assert rates(predictor, str(unstated)).source == "assumed"
    several = rates(predictor, "n2d-standard-2")
    assert several.source == "assumed"
    assert "Rome, Milan" in several.note


def test_of_several_processors_the_answer_is_the_slowest_ones(predictor: Predictor) -> None:
    catalogue = predictor.catalogue
    row = catalogue.instance_type("n2d-standard-2").index
    job = described(total_steps=10**6)

    def alone(model: str) -> float:
        models = catalogue.types.cpu_model.copy()
        models[row] = model
        other = replace(catalogue, types=replace(catalogue.types, cpu_model=models))
        return Predictor(other, learned=None).predict(job, "n2d-standard-2").training_time_h.value

    assert alone("Rome, Milan") == pytest.approx(max(alone("Rome"), alone("Milan")))


# Main memory.


def test_what_is_recommended_has_main_memory_for_its_ranks(predictor: Predictor) -> None:
    job = load.job_from_spec(
        Question.read({"layers": 12, "hidden": 768, "heads": 12, "tokens": "5B"}).job
    )
    request = Question.read({"gpus": "T4", "max_nodes": 1, "gain": 0.0, "top": 50}).constraints
    found = recommend(job, request, predictor=predictor)
    assert found.rejected["does_not_fit_in_memory"] > 0
    for one in found.front:
        offer, _ = one.configuration.parts[0]
        assert offer.memory_gib >= 2.0 * offer.accelerators
    with pytest.raises(DoesNotRunError, match=r"4 processes need .* GiB of main memory"):
        estimate_on_type(predictor, job, "n1-standard-1+4xT4")
    assert found.rejected["too_few_vcpus"] > 0
    for one in found.front:
        offer, _ = one.configuration.parts[0]
        assert offer.vcpus >= offer.accelerators
    with pytest.raises(DoesNotRunError, match="fewer vCPUs than ranks"):
        estimate_on_type(predictor, job, "n1-highmem-2+4xT4")
    # The same cards in a larger machine hold it.
    assert estimate_on_type(predictor, job, "n1-highmem-16+4xT4").devices == 4
