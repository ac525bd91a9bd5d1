"""Advice to share a device: half the bill at best, and silent where it cannot be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from advisor import api
from advisor.advice import neighbours
from advisor.advice.asking import facts_on
from advisor.advice.facts import Facts
from advisor.ask import Question
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.words import advice_text

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def idle(make_job: MakeJob, predictor: Predictor) -> Facts:
    """A job that waits for its storage most of the time."""
    job = make_job(idle_s_per_sample=0.01, wait_s=1.0, workers=0, global_batch=32)
    return facts_on(predictor, job, predictor.predict(job, "aws:g5.xlarge"))


def test_a_job_that_leaves_its_device_idle_shares_it(idle: Facts) -> None:
    (one,) = neighbours.advise_colocation(idle)
    busy = idle.now.shares["compute"] + idle.now.shares["memory"]
    assert 0 < busy < 0.6
    assert one.time_factor == pytest.approx(1.0 + busy**2)
    assert one.cost_factor == pytest.approx((1.0 + busy**2) / 2.0)
    assert 0.5 <= one.cost_factor < 1.0 <= one.time_factor
    assert one.cost_saved_usd is not None
    assert one.time_saved_h is not None
    assert one.time_saved_h.value <= 0 < one.cost_saved_usd.value
    assert "half the bill" in one.change


def test_beside_a_busier_job_it_keeps_less_of_its_rate(idle: Facts, make_job: MakeJob) -> None:
    busy = make_job(global_batch=32, workers=8, total_steps=9e6)  # it runs longer
    beside = neighbours.beside(idle, busy, "run busy")
    alone = neighbours.beside(idle, idle.job, "itself")
    assert beside is not None
    assert alone is not None
    assert "run busy" in beside.change
    assert beside.time_factor > alone.time_factor


def test_two_that_do_not_fit_are_not_put_together(idle: Facts) -> None:
    full = replace(idle, now=replace(idle.now, memory_gib=0.4 * 22.0))
    assert neighbours.beside(full, idle.job, "itself") is not None
    full = replace(idle, now=replace(idle.now, memory_gib=22.0))
    assert neighbours.beside(full, idle.job, "itself") is None


def test_two_that_do_not_fit_at_once_take_turns(idle: Facts) -> None:
    """Weights of both and the activations of one: the rest comes and goes."""
    work = idle.job.work
    assert work is not None
    held = work.parameter_bytes + work.optimizer_state_bytes
    weights = held / 2**30
    full = replace(idle, now=replace(idle.now, memory_gib=weights + 0.6 * (22.0 - 2 * weights)))
    assert neighbours.beside(full, idle.job, "itself") is None
    found = neighbours.in_turns(full, idle.job, "itself")
    assert found is not None
    assert next(iter(neighbours.advise_colocation(full))).name == "take-turns"
    one, _ = found.details["jobs"]
    assert one["input_s"] > 0  # it waits for its storage
    assert one["input_s"] + one["compute_s"] == pytest.approx(full.now.step_time_s.value)
    assert one["weight_bytes"] == pytest.approx(held)
    needed = 2 * one["weight_bytes"] + one["transient_bytes"]
    assert found.details["needed_bytes"] == pytest.approx(needed)
    # A job that computes for less than half of its step loses nothing beside itself.
    computes = one["compute_s"] / full.now.step_time_s.value
    assert found.time_factor == pytest.approx(max(1.0, 2 * computes))
    over = replace(idle, now=replace(idle.now, memory_gib=weights + 1.1 * (22.0 - 2 * weights)))
    assert neighbours.in_turns(over, idle.job, "itself") is None


def test_two_that_fill_the_device_share_it_as_published(
    make_job: MakeJob, predictor: Predictor
) -> None:
    """Two ResNet-50 on a V100: 226 images/s alone, 116 each together (SwitchFlow)."""
    job = replace(make_job(global_batch=32, workers=8), name="own")
    other = replace(job, name="other")
    facts = facts_on(predictor, job, predictor.predict(job, "aws:g5.xlarge"))
    ways = {one.name: one for one in neighbours.beside_run(facts, other)}
    assert set(ways) == {"share-device", "take-turns"}
    assert "waits" in ways["take-turns"].condition
    for one in ways.values():
        busy = one.details["rates"][0]
        assert 116 / 226 - 0.03 <= busy <= 1.0
    # By turns nobody is slower than one after the other.
    jobs = ways["take-turns"].details["jobs"]
    turns = max(sum(j["compute_s"] for j in jobs), jobs[0]["compute_s"] + jobs[0]["input_s"])
    alone = jobs[0]["compute_s"] + jobs[0]["input_s"]
    assert ways["take-turns"].time_factor == pytest.approx(turns / alone, rel=1e-6)


def test_cores_that_two_loaders_need_and_processors_are_not_shared(
    make_job: MakeJob, predictor: Predictor
) -> None:
    hungry = make_job(cpu_s_per_sample=0.05, wait_s=1.0, workers=4, global_batch=32)
    assert not list(
        neighbours.advise_colocation(
            facts_on(predictor, hungry, predictor.predict(hungry, "g5.xlarge"))
        )
    )
    job = make_job()
    assert not list(
        neighbours.advise_colocation(
            facts_on(predictor, job, predictor.predict(job, "m5.4xlarge"))
        )
    )


def test_another_run_is_named_and_judged_even_where_it_does_not_pay(
    make_job: MakeJob, predictor: Predictor
) -> None:
    own = replace(make_job(global_batch=32), name="own")
    other = replace(make_job(global_batch=32), name="other")
    found = api.advised(own, Question(), on="aws:g5.xlarge", beside=other, predictor=predictor)
    (one,) = (advice for advice in found if advice.name == "share-device")
    assert "run other" in one.change
    assert one.time_factor * one.cost_factor > 0.9  # two that fill it: no gain
    with pytest.raises(UsageError, match="cannot share a device"):
        api.advised(own, Question(), on="aws:m5.4xlarge", beside=other, predictor=predictor)


def test_what_loses_time_and_gains_nothing_is_no_change(
    make_job: MakeJob, predictor: Predictor
) -> None:
    """It was asked about, so that it is said, with what it would cost."""
    own = replace(make_job(global_batch=32, workers=8), name="own")
    other = replace(own, name="other")
    found = api.advised(own, Question(), on="aws:g5.xlarge", beside=other, predictor=predictor)
    for one in found:
        saved = [part.value for part in (one.time_saved_h, one.cost_saved_usd) if part is not None]
        assert not saved or max(saved) > 0, one.name
    assert "take-turns" not in {one.name for one in found}
    (said,) = found.notes
    assert said.startswith("Does not pay (")
    assert "Take turns on the device with run other" in said
    lines = advice_text(found.to_record())
    assert said in " ".join(" ".join(lines).split())
    assert not any("-$0" in line or "-$-" in line for line in lines)


@pytest.mark.parametrize("steps", [1e2, 1e4, 1e6, 1e8])
def test_a_neighbour_of_any_length_has_its_interval(
    idle: Facts, make_job: MakeJob, steps: float
) -> None:
    other = make_job(global_batch=32, workers=8, total_steps=steps)
    found = neighbours.beside(idle, other, "run other")
    assert found is not None
    for saved in (found.time_saved_h, found.cost_saved_usd):
        assert saved is not None
        assert saved.low <= saved.value <= saved.high


def test_measured_pairs_speak_where_both_jobs_are_among_them(
    idle: Facts, make_job: MakeJob, tmp_path: Path
) -> None:
    other = replace(make_job(global_batch=32, workers=8, total_steps=9e6), name="other")
    table = tmp_path / "pairs.csv"
    table.write_text(
        f"first,second,first_rate,second_rate\n{idle.job.name},other,0.31,0.9\nother,other,0.4,0.4\n"
    )
    pairs = neighbours.read_pairs(table)
    told = neighbours.beside(idle, other, "run other", pairs)
    alone = neighbours.beside(idle, other, "run other")
    stranger = neighbours.beside(idle, replace(other, name="unlisted"), "run unlisted", pairs)
    assert told is not None
    assert alone is not None
    assert stranger is not None
    assert "2 measured pairs of 2 jobs" in told.rests_on
    assert told.time_factor > alone.time_factor  # it keeps a third of its rate, not most of it
    assert stranger.rests_on == alone.rests_on


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("first,second,first_rate,second_rate\n", "has no pair"),
        ("first,second,first_rate\na,b,0.5\n", "line 2"),
        ("first,second,first_rate,second_rate\na,b,0.5,fast\n", "line 2"),
        ("first,second,first_rate,second_rate\na,b,0.5,0.5\na,c,0.5,-1\n", "line 3"),
    ],
)
def test_pairs_that_make_no_sense_are_refused_by_line(
    text: str, said: str, tmp_path: Path
) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text(text)
    with pytest.raises(UsageError, match=said):
        neighbours.read_pairs(table)
    with pytest.raises(UsageError, match="cannot read"):
        neighbours.read_pairs(tmp_path / "absent.csv")
