"""Limits as advice: the recorded run stays within them, and they are read back as pasted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from advised import readings, recorded
from conftest import laptop
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st

from advisor import api
from advisor.advice import cures, machines
from advisor.advice.asking import facts_here, facts_on, family
from advisor.advice.facts import Facts
from advisor.ask import Constraints, Question
from advisor.collectors.format.recording import Throttling
from advisor.collectors.watch import host as hosts
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.planners.core.errors import GIB, MIB
from advisor.planners.layouts import SearchSpace
from advisor.planners.rightsizing.limits import RightSize

MakeJob = Callable[..., Job]


@given(st.floats(0.01, 64.0), st.floats(0.01, 64.0), st.floats(1.0, 1e12))
def test_what_is_pasted_is_never_less_than_what_is_needed(
    request_: float, limit: float, memory: float
) -> None:
    found = RightSize(
        cpu_request=request_, cpu_limit=limit, memory_bytes=memory, oom_probability=0.0,
    )  # fmt: skip
    said: dict[str, Any] = yaml.safe_load(machines.pasted(found))["resources"]
    assert float(said["limits"]["cpu"].removesuffix("m")) / 1000 >= limit
    assert float(said["limits"]["memory"].removesuffix("Mi")) * MIB >= memory * (1 - 1e-12)
    # Kubernetes refuses a request above its limit.
    assert int(said["requests"]["cpu"][:-1]) <= int(said["limits"]["cpu"][:-1])


@pytest.fixture(scope="module")
def facts(make_job: MakeJob) -> Facts:
    found = facts_here(Predictor(), make_job(), constraints=Constraints(here_usd_per_h=1.0))
    assert found is not None
    return found


def test_a_layout_that_this_machine_cannot_have_has_no_advice(make_job: MakeJob) -> None:
    alone = Constraints(space=SearchSpace(tp=1, pp=1))
    two = Constraints(space=SearchSpace(tp=2))
    assert facts_here(Predictor(), make_job(), constraints=alone) is not None
    assert facts_here(Predictor(), make_job(), constraints=two) is None


def test_a_small_job_is_limited_and_the_rest_is_what_is_saved(facts: Facts) -> None:
    (found,) = machines.advise_rightsizing(recorded(facts))
    # 3 GiB and a little of 16, 1.5 of 8 cores: memory is the larger share.
    assert 3 / 16 < found.cost_factor < 4 / 16
    assert found.time_factor == 1.0
    assert found.cost_saved_usd is not None
    assert found.cost_saved_usd.value == pytest.approx(
        (1 - found.cost_factor) * facts.now.cost_usd.value
    )
    said = yaml.safe_load(found.how.text)["resources"]["limits"]
    assert int(said["cpu"][:-1]) == pytest.approx(1500, abs=20)
    assert 3 * 1024 < int(said["memory"][:-2]) < 4 * 1024


def test_nothing_is_said_without_evidence(facts: Facts) -> None:
    silent = (
        replace(facts, recording=None),
        recorded(facts, readings=readings(1.0, GIB, seconds=2)),
        recorded(facts, throttling=(Throttling(begin_s=0, end_s=1, throttled_s=0.5),)),
        recorded(facts, contention=0.3),
        recorded(facts, readings=readings(1.0, 15.9 * GIB)),
    )
    assert [one for case in silent for one in machines.advise_rightsizing(case)] == []


def test_what_cannot_be_told_is_said_with_what_was_measured(facts: Facts) -> None:
    noisy: dict[str, dict[str, Any]] = {
        "5 readings, 20 are needed": {"readings": readings(1.0, GIB, seconds=2)[:5]},
        "a quota took 500 ms": {"throttling": (Throttling(begin_s=0, end_s=1, throttled_s=0.5),)},
        "waiting 30 % of the time, and over 10 %": {"contention": 0.3},
    }
    for said, seen in noisy.items():
        case = recorded(facts, **seen)
        assert case.recording is not None
        assert said in machines.untold(case.recording)
        _, (note,) = cures.noted((), case)
        assert note.startswith("Limits of cores and memory cannot be told: ")
        assert said in note
    assert cures.noted((), recorded(facts)) == ((), ())


def rented(make_job: MakeJob, machine: str) -> Facts:
    predictor, job = Predictor(), make_job()
    chosen = predictor.predict(job, machine)
    return facts_on(predictor, job, chosen)


@pytest.mark.parametrize("machine", ["aws:m5.24xlarge", "aws:g5.16xlarge"])
def test_a_smaller_machine_of_the_family_is_offered_where_memory_is_left(
    make_job: MakeJob, machine: str
) -> None:
    facts = recorded(rented(make_job, machine))
    ((offer, _),) = facts.now.configuration.parts
    (found,) = machines.advise_rightsizing(facts)
    assert found.name == "smaller-machine"
    assert found.then is not None
    ((other, count),) = found.then.configuration.parts
    assert family(other.instance_type) == family(offer.instance_type)
    assert (other.accelerator, other.accelerators) == (offer.accelerator, offer.accelerators)
    # 3 GiB and a little are needed.
    assert 3.0 < other.memory_gib < offer.memory_gib
    assert count == 1
    assert found.cost_factor < 1.0
    asked = Predictor().predict(facts.job, other.instance_type, provider=other.provider)
    assert asked.cost_usd.value == pytest.approx(
        found.cost_factor * facts.now.cost_usd.value, rel=1e-6
    )
    # The others of the family that would hold it are no better by time times cost.
    for one in facts.smaller(facts.job):
        if (one.configuration.parts[0][0].memory_gib or 0) > 4:
            product = one.training_time_h.value * one.cost_usd.value
            best = found.then.training_time_h.value * found.then.cost_usd.value
            assert product >= best * (1 - 1e-9) or one.cost_usd.value >= facts.now.cost_usd.value


def test_no_smaller_machine_is_offered_without_room_or_evidence(make_job: MakeJob) -> None:
    facts = rented(make_job, "aws:m5.24xlarge")
    silent = (
        facts,
        recorded(facts, readings=readings(1.0, 383 * GIB)),
        recorded(rented(make_job, "aws:m5.large"), readings=readings(1.0, 7.9 * GIB)),
        recorded(facts, contention=0.3),
    )
    assert [one for case in silent for one in machines.advise_rightsizing(case)] == []


def test_a_step_too_noisy_to_answer_for_is_refused_with_what_was_measured(
    facts: Facts, predictor: Predictor, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside busy neighbours the clock says too little; why was told when it was recorded."""
    replace_everywhere(monkeypatch, hosts, "describe_host", lambda **_: laptop())
    replace_everywhere(monkeypatch, "advisor.collectors.watch.benchmark", "cached_sheets", tuple)
    replace_everywhere(
        monkeypatch, "advisor.collectors.watch.benchmark", "cached_or_measured", lambda: None
    )
    noisy = recorded(facts, contention=0.4).recording
    with pytest.raises(UsageError) as refused:
        api.advised(make_job(log_sd=1.0), Question(), noisy, on="here", predictor=predictor)
    assert "cannot be estimated on this machine: its time is known to a factor of" in str(
        refused.value
    )
    assert "as it waited 40 % of the time for other programs" in str(refused.value)
    assert "profile again" in str(refused.value.hint)
