"""Laws of the recommendation over the whole bundled catalogue."""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.answer import Candidate, Recommendation
from advisor.ask import Constraints
from advisor.catalogue import parse_gpus
from advisor.cli.program import app
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job, Program
from advisor.providers import bills, charged_h
from advisor.quantities import hours_interval, usd_interval
from advisor.rank.ranking import recommend
from advisor.words.recommendation import text

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def answer(make_job: MakeJob, predictor: Predictor) -> Recommendation:
    return recommend(make_job(), predictor=predictor)


def test_every_candidate_is_on_the_front_or_has_its_reason(answer: Recommendation) -> None:
    hidden = sum(int(n.split()[0]) for n in answer.notes if "not shown" in n)
    assert len(answer.front) + hidden + sum(answer.rejected.values()) == answer.considered


ASKED = ("--layers", "12", "--hidden", "768", "--heads", "12", "--tokens", "1B")


@pytest.mark.parametrize(("columns", "more"), [
    ("60", ("--gpus", "T4", "--deadline", "20d")),
    ("120", ("--gpus", "L4,A10G", "--top", "3", "--max-nodes", "2")),
])  # fmt: skip
def test_the_command_under_an_answer_explains_a_row_of_it(
    columns: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the flags of the question: pasted, it is about the row that was listed."""
    monkeypatch.setenv("COLUMNS", columns)
    answer = CliRunner().invoke(app, ["recommend", *ASKED, *more]).stdout
    command = answer[answer.index(" advisor recommend ") :].replace("\\\n", " ")
    words = shlex.split(command)
    assert words[1:-2] == ["recommend", *ASKED, *more]
    assert re.search(rf"^[> ] ?{words[-1]} ", answer, re.MULTILINE)
    rented = re.search(r"\((\d+ x \S+?)\)", answer)
    explained = CliRunner().invoke(app, words[1:]).stdout
    assert rented is not None
    assert explained.startswith(f"{words[-1]}: {rented[1]} ")


def test_nobody_on_the_list_beats_another(answer: Recommendation) -> None:
    """But what a price without a day, or without a launcher, beats: that may be picked."""
    picked = {answer.picks.get("best_value"), answer.picks.get("dated")}
    front = [one for one in answer.front if one.rank not in picked]
    times = [c.training_time_h.value for c in front]
    costs = [c.cost_usd.value for c in front]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)


def test_cost_is_billed_time_times_instances_times_price(
    answer: Recommendation, predictor: Predictor
) -> None:
    known = predictor.catalogue
    for c in answer.front:
        offer, _ = c.configuration.parts[0]
        row = known.instance_type(offer.instance_type, provider=offer.provider)
        bill = [
            one[[row.index]] for one in bills(known.types.provider, known.types.accelerator_count)
        ]
        billed_h = float(charged_h(np.array([c.training_time_h.value]), *bill)[0])
        assert c.training_time_h.value <= billed_h <= c.training_time_h.value + 1 / 60
        machines = billed_h * c.configuration.price_usd_per_h
        beside = sum(c.breakdown[name].cost_usd or 0.0 for name in ("storage", "results_out"))
        assert math.isclose(c.cost_usd.value, machines + beside, rel_tol=1e-9)
        assert beside <= 0.01 * machines + 0.1


def test_time_is_start_up_steps_and_ends_of_epochs(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job(epochs=90.0, epoch_end_steps=50.0)
    one = predictor.predict(job, "g5.xlarge")
    work_h = one.step_time_s.value * (450_000 + 90 * 50) / 3600
    # Failures of single machines and checkpoints add next to nothing.
    assert work_h <= one.training_time_h.value <= 1.02 * work_h
    later = predictor.predict(replace(job, startup_s=60.0), "g5.xlarge")
    assert 0 < later.training_time_h.value - one.training_time_h.value < 600 / 3600


def test_layout_keeps_the_global_batch_and_fills_the_devices(answer: Recommendation) -> None:
    for c in answer.front:
        offer, count = c.configuration.parts[0]
        assert c.layout.dp == count * max(math.ceil(offer.accelerators), 1)
        assert 256 <= c.layout.global_batch < 256 + c.layout.dp * c.layout.accumulation_steps


def test_shares_of_the_step_sum_to_one(answer: Recommendation) -> None:
    for c in answer.front:
        assert math.isclose(sum(c.shares.values()), 1.0, abs_tol=1e-6)
        assert c.shares[c.bottleneck] == max(c.shares.values())


def test_a_budget_only_removes_candidates(make_job: MakeJob, predictor: Predictor) -> None:
    every = Constraints(top=500, least_gain_fraction=0.0)
    free = recommend(make_job(), every, predictor=predictor)
    costs = [c.cost_usd.value for c in free.front]
    budget = float(np.median(costs))
    bound = recommend(make_job(), replace(every, budget_usd=budget), predictor=predictor)
    expected = [c for c in free.front if c.cost_usd.value <= budget]
    # A pick counts a person's work: within the budget another one may be, and is then shown.
    picked = set(bound.picks.values())
    others = [c for c in bound.front if c.rank not in picked or bare(c) in map(bare, expected)]
    assert [bare(c) for c in others] == [bare(c) for c in expected]
    assert all(c.cost_usd.value <= budget for c in bound.front)


def bare(one: Candidate) -> Candidate:
    return replace(one, rank=0, reasons=())


def test_a_deadline_is_kept(make_job: MakeJob, predictor: Predictor) -> None:
    bound = recommend(make_job(), Constraints(deadline_h=24.0), predictor=predictor)
    assert all(c.training_time_h.value <= 24.0 for c in bound.front)
    assert bound.rejected["over_deadline"] > 0


def test_impossible_constraints_give_the_nearest_misses(
    make_job: MakeJob, predictor: Predictor
) -> None:
    answer = recommend(make_job(), Constraints(budget_usd=0.01), predictor=predictor)
    assert not answer.front
    assert answer.nearest
    free = recommend(make_job(), Constraints(top=500), predictor=predictor)
    cheapest = min(c.cost_usd.value for c in free.front)
    assert math.isclose(answer.nearest[0].cost_usd.value, cheapest)


def test_a_model_that_fits_nowhere_says_so(make_job: MakeJob, predictor: Predictor) -> None:
    job = make_job(global_batch=1, recorded_batch=1)
    assert job.work is not None
    huge = replace(job, work=replace(job.work, saved_bytes_per_sample=1e16))
    answer = recommend(huge, predictor=predictor)
    assert not answer.front
    assert [claim.kind for claim in answer.claims] == ["refused"]
    assert "misses by" in answer.summary[0]


def test_filters_admit_only_what_they_name(make_job: MakeJob, predictor: Predictor) -> None:
    request = Constraints(providers=("aws",), gpus=parse_gpus("A100:8"))
    answer = recommend(make_job(), request, predictor=predictor)
    for c in answer.front:
        for offer, _ in c.configuration.parts:
            assert offer.provider == "aws"
            assert offer.accelerators == 8
            assert offer.accelerator is not None
            assert offer.accelerator.startswith("A100")


def test_spot_only_adds_offers(make_job: MakeJob, predictor: Predictor) -> None:
    every = Constraints(least_gain_fraction=0.0)
    dear = recommend(make_job(), every, predictor=predictor)
    spot = replace(every, pricings=("on-demand", "spot"))
    both = recommend(make_job(), spot, predictor=predictor)
    assert (both.catalogue.offers or 0) > (dear.catalogue.offers or 0)
    assert both.front[-1].cost_usd.value <= dear.front[-1].cost_usd.value
    assert both.front[0].training_time_h.value == dear.front[0].training_time_h.value


def test_spot_takes_longer_than_the_same_machines_on_demand(
    make_job: MakeJob, predictor: Predictor
) -> None:
    steady = predictor.predict(make_job(), "g5.xlarge")
    spot = predictor.predict(make_job(), "g5.xlarge", pricing="spot")
    assert spot.training_time_h.value > steady.training_time_h.value
    assert spot.step_time_s == steady.step_time_s
    assert spot.training_time_h.high / spot.training_time_h.low > (
        steady.training_time_h.high / steady.training_time_h.low
    )


def test_spot_without_checkpoints_is_refused(make_job: MakeJob, predictor: Predictor) -> None:
    request = Constraints(pricings=("on-demand", "spot"), saves_checkpoints=False)
    answer = recommend(make_job(), request, predictor=predictor)
    assert answer.rejected["no_checkpoints"] > 0
    parts = [offer for c in answer.front for offer, _ in c.configuration.parts]
    assert {offer.pricing for offer in parts} == {"on-demand"}


def test_leaving_out_hopeless_spot_rows_changes_no_front(
    make_job: MakeJob, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Constraints(providers=("aws",), pricings=("on-demand", "spot"), max_nodes=2, top=500)
    pruned = recommend(make_job(), request, predictor=predictor)
    monkeypatch.setattr(
        "advisor.rank.rows._worth_replaying",
        lambda time_h, cost, is_spot, *_: np.flatnonzero(is_spot & np.isfinite(time_h)),
    )
    whole = recommend(make_job(), request, predictor=predictor)
    # The replays are tabulated on a grid over the rows at hand, so equal rows differ by a little.
    for c in whole.front:
        assert any(
            p.training_time_h.value <= 1.05 * c.training_time_h.value
            and p.cost_usd.value <= 1.05 * c.cost_usd.value
            for p in pruned.front
        )


def test_predict_gives_the_number_of_the_list(make_job: MakeJob, predictor: Predictor) -> None:
    job = make_job()
    for c in recommend(job, predictor=predictor).front:
        offer, count = c.configuration.parts[0]
        alone = predictor.predict(job, offer.instance_type, count=count, provider=offer.provider)
        # Sums over many rows at once round differently from those over one.
        for name in ("training_time_h", "cost_usd"):
            one, other = getattr(alone, name), getattr(c, name)
            assert (one.value, one.low, one.high) == pytest.approx(
                (other.value, other.low, other.high), rel=1e-9
            )


def test_twice_the_measured_step_is_never_faster_anywhere(
    make_job: MakeJob, predictor: Predictor
) -> None:
    slow, fast = make_job(step_s=16.0), make_job(step_s=8.0)
    one, two = predictor.predict(fast, "m5.4xlarge"), predictor.predict(slow, "m5.4xlarge")
    assert two.step_time_s.value > one.step_time_s.value
    for name in ("g5.xlarge", "p4d.24xlarge"):  # of a GPU a processor's step says nothing
        one, two = predictor.predict(fast, name), predictor.predict(slow, name)
        assert two.step_time_s.value >= one.step_time_s.value


def test_slow_loading_bounds_the_step_and_names_the_cure(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job(cpu_s_per_sample=1.0, workers=4)
    fed = predictor.predict(job, "p4d.24xlarge")
    assert fed.bottleneck == "input"
    assert any("vCPUs would feed it" in reason for reason in fed.reasons)


def test_json_record_round_trips_and_names_units(answer: Recommendation) -> None:
    import json

    record = json.loads(json.dumps(answer.to_record()))
    assert record["schema_version"] == 2
    first = record["front"][0]
    assert set(first["training_time_h"]) == {"value", "low", "high", "coverage"}
    assert {"dp", "tp", "pp", "micro_batch"} <= set(first["layout"])
    assert len(answer.to_frame()) == len(answer.front)


def test_a_program_without_steps_runs_on_one_machine(
    make_job: MakeJob, predictor: Predictor
) -> None:
    program = Program(duration_s=600.0, cpu_s=1100.0, parallelism=1.8)
    job = make_job(
        work=None, program=program, global_batch=1, total_steps=1.0, step_s=600.0,
        peak_rss_bytes=3 << 30,
    )  # fmt: skip
    answer = recommend(job, predictor=predictor)
    assert answer.front
    assert answer.rejected["runs_on_one_machine"] > 0
    for c in answer.front:
        offer, count = c.configuration.parts[0]
        assert count == 1
        assert offer.memory_gib >= 3 * 1.2


@pytest.mark.parametrize("times", [1.0, 1e3, 1e6])
def test_numbers_of_the_table_never_run_together(answer: Recommendation, times: float) -> None:
    """A 405B model takes millions of hours and dollars: its ranges are as wide as 19 letters."""
    record = json.loads(json.dumps(answer.to_record()))
    for one in record["front"]:
        for name in ("training_time_h", "cost_usd"):
            for bound in ("low", "value", "high"):
                one[name][bound] *= times
    lines = [line for line, _ in text(record, width=80, most=None)]
    assert max(map(len, lines)) <= 80
    for one in record["front"]:
        time, _ = hours_interval(one["training_time_h"])
        cost, _ = usd_interval(one["cost_usd"])
        bounds = r"[\d,.]+-[\d,.]+"
        line = (
            rf"[> ] ?{one['rank']} .*{re.escape(time)} {bounds} +{re.escape(cost)} {bounds}( |$)"
        )
        assert any(re.match(line, shown) for shown in lines), (time, cost)
