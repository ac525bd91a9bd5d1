"""Advice to use loaded data again: priced by the one estimate, silent where the job is fed."""

from collections.abc import Callable

import pytest
from conftest import laptop
from everywhere import replace_everywhere

from advisor.advice import feeding
from advisor.advice.asking import facts_here, facts_on
from advisor.advice.facts import Advice, Facts
from advisor.collectors.watch import host as hosts
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.planners.systems.perfect import RHO, freshness

MakeJob = Callable[..., Job]


def found(facts: Facts) -> dict[str, Advice]:
    return {one.name: one for one in feeding.advise_data_reuse(facts)}


def on(predictor: Predictor, job: Job, name: str = "aws:g5.xlarge") -> Facts:
    return facts_on(predictor, job, predictor.predict(job, name))


@pytest.mark.parametrize("workers", [0, 4])
def test_repeating_is_priced_as_the_room_says(
    make_job: MakeJob, predictor: Predictor, workers: int
) -> None:
    job = make_job(idle_s_per_sample=0.1, wait_s=4.0, workers=workers, sample_bytes=None)
    facts = on(predictor, job)
    advice = found(facts)["repeat-batches"]
    now = facts.now
    wait = now.shares["input"]
    echo = int(advice.change.split(" times")[0].split()[-1])
    loading = 1.0 if workers else wait
    step = loading / echo + (0.0 if workers else 1.0 - wait)
    rate = 0.7 * freshness(echo, RHO) / max(step, 1.0 - wait) + 0.3
    assert echo > 1
    assert advice.time_factor == pytest.approx(1.0 / rate, rel=0.05)
    assert not advice.is_model_kept
    assert advice.time_saved_h is not None
    assert 0 < advice.time_saved_h.low < advice.time_saved_h.value < advice.time_saved_h.high
    assert "accuracy" in advice.condition


def test_where_it_ran_the_measured_wait_is_what_shrinks(
    make_job: MakeJob, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_everywhere(monkeypatch, hosts, "describe_host", lambda **_: laptop())
    replace_everywhere(monkeypatch, "advisor.collectors.watch.benchmark", "cached_sheets", tuple)
    replace_everywhere(
        monkeypatch, "advisor.collectors.watch.benchmark", "cached_or_measured", lambda: None
    )
    job = make_job(
        idle_s_per_sample=0.2, wait_s=6.4, workers=0, sample_bytes=None, global_batch=32,
        step_s=8.0,
    )  # fmt: skip
    facts = facts_here(predictor, job)
    assert facts is not None
    assert facts.now.step_time_s.value == pytest.approx(8.0)
    echo = 4  # 6.4 s of loading beside 1.6 s of computing
    rate = 0.7 * freshness(echo, RHO) / (6.4 / echo + 1.6) + 0.3 / 8.0
    assert found(facts)["repeat-batches"].time_factor == pytest.approx(1 / (8.0 * rate), rel=0.01)


def test_samples_that_a_core_makes_every_epoch_are_kept(
    make_job: MakeJob, predictor: Predictor
) -> None:
    usual = {"cpu_s_per_sample": 0.05, "workers": 2, "wait_s": 1.0, "dataset_samples": 10_000,
             "sample_bytes": 1e5, "total_steps": 4000.0}  # fmt: skip
    advice = found(on(predictor, make_job(**usual)))["keep-samples"]
    assert advice.time_factor < 0.5
    assert advice.is_model_kept
    for change in ({"sample_bytes": 1e8}, {"total_steps": 30.0}, {"dataset_samples": None}):
        assert "keep-samples" not in found(on(predictor, make_job(**(usual | change))))


def test_a_fed_job_is_left_alone(make_job: MakeJob, predictor: Predictor) -> None:
    assert found(on(predictor, make_job())) == {}
    assert found(on(predictor, make_job(cpu_s_per_sample=1e-6, workers=8))) == {}
