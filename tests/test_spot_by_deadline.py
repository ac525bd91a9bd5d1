"""The pick by a deadline on spot is the plan that the simulator follows, with its probability."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.answer import Candidate, Recommendation
from advisor.ask import Constraints, JobSpec
from advisor.catalogue import parse_gpus
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.case import SPACE
from advisor.estimate.completion import whole_run
from advisor.estimate.predictor import Predictor
from advisor.estimate.spot import spot_jobs
from advisor.jobs.job import Job
from advisor.jobs.load import job_from_spec
from advisor.planners.spot.availability import BANDS, Spells, SpotJob
from advisor.planners.spot.deadline import late_probability, replay_plan
from advisor.planners.spot.policy import SpellHazards, SpotPolicy, with_saves_s
from advisor.planners.spot.policy_replay import replay_policy
from advisor.rank.ranking import recommend
from advisor.simulate.questions import SimulateSpot
from advisor.simulate.spot import PLANNED
from advisor.simulate.spot import answer as simulated
from advisor.words import recommendation

HOUR_S = 3600.0
DEADLINE_H = 13.0
REQUEST = Constraints(
    pricings=("on-demand", "spot"), deadline_h=DEADLINE_H, providers=("aws",), max_nodes=1,
    gpus=parse_gpus("A100:8"), top=500, space=replace(SPACE, tp=1, pp=1, cp=1, ep=1),
)  # fmt: skip
AMOUNT = st.floats(1.0, 1e6)
JOB = SpotJob(work_s=2 * HOUR_S, restart_s=300, checkpoint_interval_s=900, checkpoint_s=5)


@given(AMOUNT, AMOUNT, AMOUNT, st.floats(0.0, 2.0))
def test_more_time_never_makes_a_job_later(
    whole: float, restart: float, deadline: float, sd: float
) -> None:
    late, later = (late_probability(whole, restart, d, sd) for d in (deadline, 2 * deadline))
    assert 0.0 <= later <= late <= 1.0
    assert late_probability(whole, restart, restart + whole * 1.001, 0.0) == 0.0
    assert late_probability(whole, restart, restart + whole, 0.3) == pytest.approx(0.5)


def test_a_plan_over_joined_records_is_that_over_each() -> None:
    """The slow twin: the same policy walks over one record after the other."""
    random = np.random.default_rng(3)
    records = []
    for mean_s in (2000.0, 9000.0, 30000.0):
        lengths = random.exponential(mean_s, 40)
        begins = np.cumsum(lengths + random.exponential(4000.0, 40)) - lengths
        end = float(begins[-1] + lengths[-1] + 1.0)
        records.append(Spells(up_start_s=begins, up_length_s=lengths, end_s=end))
    deadline = 5 * HOUR_S
    prices = {"spot_price_usd_per_h": 0.3, "price_usd_per_h": 1.0}
    run = replay_plan(records, JOB, starts=5, deadline_s=deadline, **prices)
    nothing = np.zeros(0)
    unknown = Spells(up_start_s=nothing, up_length_s=nothing, end_s=1.0)
    policy = SpotPolicy.of(SpellHazards.of(unknown, records), JOB, deadline_s=deadline, **prices)
    each = [
        replay_policy(
            one.tiled(3), JOB, (np.arange(5) + 0.5) / 5 * one.end_s, deadline_s=deadline,
            choose=policy.choose,
        ).finish_s
        for one in records
    ]  # fmt: skip
    assert np.allclose(run.finish_s, np.concatenate(each))
    assert run.finish_s.max() <= deadline + 1e-6


@pytest.fixture(scope="module")
def job() -> Job:
    """A job of some hours on eight A100s: long enough to be taken away on the way."""
    return job_from_spec(JobSpec(layers=32, hidden=4096, heads=32, tokens=1e9))


@pytest.fixture(scope="module")
def answer(job: Job, predictor: Predictor) -> Recommendation:
    return recommend(job, REQUEST, predictor=predictor)


def pick(answer: Recommendation) -> Candidate:
    (found,) = [one for one in answer.front if one.rank == answer.picks["within_deadline"]]
    return found


def test_the_pick_by_the_deadline_is_a_plan_and_says_how_sure_it_is(
    answer: Recommendation,
) -> None:
    one = pick(answer)
    assert one.completion == "spot-by-deadline"
    assert one.late_probability is not None
    assert one.late_probability <= 0.1
    assert not one.alternatives
    sure = [
        other for other in answer.front
        if other is not one and other.late_probability is not None
        and other.late_probability <= 0.1
    ]  # fmt: skip
    assert all(other.cost_usd.value >= one.cost_usd.value for other in sure)
    shown = "\n".join(line for line, _ in recommendation.text(answer.to_record(), most=None))
    assert "on demand or waiting" in shown
    assert re.search(r"^[> ] ?\d+ (?:best, )?in time ", shown, re.MULTILINE)
    parts = sum(part.time_h for part in one.breakdown.values())
    assert parts == pytest.approx(one.training_time_h.value, rel=1e-9)


def test_it_costs_what_the_simulator_says(
    job: Job, predictor: Predictor, answer: Recommendation
) -> None:
    one = pick(answer)
    ((offer, count),) = one.configuration.parts
    row = predictor.catalogue.instance_type(offer.instance_type, provider=offer.provider)
    columns = predictor.step_columns(
        job, np.array([row.index]), np.array([count]), space=REQUEST.space
    )
    bands = {"under 5 %": "<5%", "5-10 %": "5-10%", "10-15 %": "10-15%",
             "15-20 %": "15-20%"}  # fmt: skip
    band = next((b for words, b in bands.items() if words in offer.terms), ">20%")
    place = float(list(dict.fromkeys([*bands.values(), ">20%"])).index(band))
    factor = whole_run(job, columns, None)[0]
    (planned,) = spot_jobs(job, columns, np.array([0]), np.array([place]), factor)
    on_demand = next(b for b in one.bills if b.pricing == "on-demand").price_usd_per_h / count
    asked = SimulateSpot(
        hours=planned.work_s / HOUR_S, restart=planned.restart_s, checkpoint=planned.checkpoint_s,
        checkpoint_every=planned.checkpoint_interval_s, nodes=count, deadline=DEADLINE_H,
        price=on_demand, spot_price=offer.price_usd_per_h, interruptions=band,
    )  # fmt: skip
    (way,) = [one for one in simulated(asked).record["ways"] if one["name"] == PLANNED]
    assert way["miss_probability"] == 0.0
    beside = sum(one.breakdown[n].cost_usd or 0.0 for n in ("storage", "results_out"))
    assert one.cost_usd.value - beside == pytest.approx(way["mean_cost_usd"], rel=0.02)
    assert one.training_time_h.value == pytest.approx(way["finish_h"]["p50"], rel=0.02)
    assert with_saves_s(planned) > planned.work_s


def test_without_a_deadline_or_checkpoints_nothing_is_planned(
    job: Job, predictor: Predictor
) -> None:
    for request in (
        replace(REQUEST, deadline_h=None), replace(REQUEST, saves_checkpoints=False),
        replace(REQUEST, pricings=("on-demand",)),
    ):  # fmt: skip
        found = recommend(job, request, predictor=predictor)
        assert all(one.completion != "spot-by-deadline" for one in found.front)


def test_predict_has_no_deadline_to_plan_by(job: Job, predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="needs a deadline"):
        predictor.predict(job, "p4d.24xlarge", pricing="spot", completion="spot-by-deadline")


def test_the_simulator_takes_how_often_machines_are_interrupted() -> None:
    def mean_usd(*words: str) -> float:
        done = CliRunner().invoke(app, ["simulate", "spot", "--hours", "9", "--deadline", "14h",
                                        "--json", *words])  # fmt: skip
        assert done.exit_code == 0, done.output
        ways = {way["name"]: way for way in json.loads(done.stdout)["ways"]}
        return float(ways[PLANNED]["mean_cost_usd"])

    assert mean_usd("--interruptions", "<5%") < mean_usd()
    assert mean_usd("--interruptions", ">20%") == mean_usd()
    refused = CliRunner().invoke(app, ["simulate", "spot", "--hours", "9", "--interruptions", "9"])
    assert "no interruption band" in str(refused.exception)
    shown = " ".join(CliRunner().invoke(app, ["simulate", "spot", "--help"]).output.split())
    assert ", ".join(BANDS) in shown
