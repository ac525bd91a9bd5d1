"""A job runs no faster than it is fed."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import api
from advisor.answer import Candidate
from advisor.ask import JobSpec
from advisor.cli.program import app
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import unseen_input
from advisor.jobs.job import Job
from advisor.jobs.load import job_from_spec
from advisor.planners import step
from advisor.planners.core import Transformer
from advisor.planners.step.model_units import idle_s_per_sample, relative_speed, vcpus_needed
from advisor.planners.systems.perfect import Feeding
from advisor.rank.ranking import recommend

MakeJob = Callable[..., Job]


positive = st.floats(1e-3, 1e3)
speeds = st.floats(1e3, 1e5)


@given(positive, positive, speeds, speeds)
def test_the_vcpus_that_cure_an_input_bound_job_feed_it(
    samples_per_s: float, cpu_s: float, host_speed: float, speed: float
) -> None:
    n = float(vcpus_needed(samples_per_s, cpu_s, host_speed, speed))
    fed_by_one = speed / host_speed / cpu_s  # samples/s of one core
    assert n * fed_by_one >= samples_per_s * (1 - 1e-6)
    assert (n - 1) * fed_by_one < samples_per_s * (1 + 1e-6)


def test_an_unknown_core_is_taken_as_equal() -> None:
    assert relative_speed(None, 2e4) == relative_speed(2e4, math.nan) == 1.0


@given(
    st.floats(1e-4, 0.1), st.floats(1e-3, 0.1), st.floats(1e-3, 1.0), st.integers(0, 16),
    st.integers(1, 512),
)  # fmt: skip
def test_what_a_loader_waits_for_is_found_from_the_step_it_makes(
    cpu_s: float, idle_s: float, compute_s: float, workers: int, samples: int
) -> None:
    feeding = Feeding(
        cpu_s=cpu_s * samples, idle_s=idle_s * samples, compute_s=compute_s, workers=workers,
        cores=1e6,
    )  # fmt: skip
    step_s = feeding.step_s()
    found = idle_s_per_sample(
        step_s=step_s, wait_s=step_s - compute_s, cpu_s=cpu_s, samples=samples, workers=workers,
        busy_cores=1.0, cores=1e6,
    )  # fmt: skip
    if step_s - compute_s > 0.05 * step_s:
        assert found == pytest.approx(idle_s, rel=1e-6, abs=1e-9)
    else:  # it keeps up: nobody saw what it waits for
        assert found == 0.0


def test_full_cores_are_no_slow_disk() -> None:
    def found(busy: float) -> float:
        return idle_s_per_sample(
            step_s=1.0, wait_s=0.5, cpu_s=0.01, samples=100, workers=4, busy_cores=busy, cores=2
        )

    assert found(1.99) == 0.0
    assert found(1.0) == pytest.approx(0.03)


def test_no_machine_outruns_the_storage(make_job: MakeJob, predictor: Predictor) -> None:
    for workers in (0, 4):
        job = make_job(idle_s_per_sample=0.004, wait_s=1.0, workers=workers)
        for name in ("m5.4xlarge", "g4dn.xlarge", "p4d.24xlarge"):
            one = predictor.predict(job, name)
            assert one.step_time_s.value >= 0.004 * 256 / one.layout.dp / max(workers, 1)


def test_an_input_bound_job_is_not_put_on_a_faster_gpu_for_nothing(
    make_job: MakeJob, predictor: Predictor
) -> None:
    def pick(job: Job) -> Candidate:
        answer = recommend(job, predictor=predictor)
        (chosen,) = (one for one in answer.front if one.rank == answer.picks["best_value"])
        return chosen

    def price(one: Candidate) -> float:
        return one.configuration.price_usd_per_h

    fed, bound = make_job(), make_job(idle_s_per_sample=0.04, wait_s=2.5, workers=4)
    fast, slow = pick(fed), pick(bound)
    assert price(slow) < price(fast)
    ((offer, count),) = fast.configuration.parts
    there = predictor.predict(bound, offer.instance_type, provider=offer.provider, count=count)
    assert there.bottleneck == "input"
    assert slow.cost_usd.value < there.cost_usd.value
    # The dear machine is not paid for a step that the storage sets.
    assert slow.training_time_h.value / there.training_time_h.value < price(fast) / price(slow)
    assert any("a faster machine does not help" in reason for reason in there.reasons)


RESNET: dict[str, Any] = {"cnn": "224:64:3x256,4x512,6x1024,3x2048:bottleneck", "batch": 512}
GPT2: dict[str, Any] = {"layers": 12, "hidden": 768, "heads": 12, "tokens": "1B"}
UNSEEN = re.compile(
    r"No input pipeline was seen: it must deliver ([\d,.]+) images/s"
    r"(?:, ([\d,.]+) (us|ms|s) of a vCPU for each)?; profile the script with its loader\."
)


def test_what_nobody_saw_being_loaded_is_said_with_the_rate_that_it_takes(
    predictor: Predictor,
) -> None:
    """In every answer about images; of all machines' virtual CPUs each sample has its share."""
    answer = api.recommend(
        predictor=predictor, **RESNET, total_steps=1e5, gpus="H100", max_nodes=1
    )
    chosen = next(one for one in answer.front if one.rank == answer.picks["best_value"])
    offer, count = chosen.configuration.parts[0]
    (found,) = (match for said in answer.summary if (match := UNSEEN.fullmatch(said)))
    rate = float(found[1].replace(",", ""))
    assert rate == pytest.approx(chosen.throughput_samples_per_s.value, rel=0.01)
    each_s = float(found[2]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[3]]
    assert each_s * rate == pytest.approx(offer.vcpus * count, rel=0.02)
    job = job_from_spec(JobSpec(**RESNET))
    for one in (api.estimate(job, gpu="H100"), api.estimate(job, on="p5.48xlarge")):
        assert any(UNSEEN.fullmatch(note) for note in one.notes)
    plan = CliRunner().invoke(app, ["plan", "--cluster", "8xH100-80GB", "--cnn", RESNET["cnn"]])
    assert "No input pipeline was seen" in plan.stdout


def test_text_needs_no_pipeline_worth_a_word(predictor: Predictor) -> None:
    answer = api.recommend(predictor=predictor, **GPT2, gpus="H100", max_nodes=1)
    assert "pipeline" not in " ".join(answer.summary)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Transformer(layers=2, hidden=64, heads=2, sequence=197, vocabulary=0,
                     is_causal=False), "images"),
        (Transformer(layers=2, hidden=64, heads=2, sequence=128, vocabulary=1000), ""),
        (Transformer(layers=2, hidden=64, heads=2, sequence=128, vocabulary=1000,
                     is_causal=False), ""),
        (step.parse_network(str(RESNET["cnn"])), "images"),
    ],
)  # fmt: skip
def test_what_a_described_model_is_fed_with(model: Any, said: str) -> None:
    assert unseen_input(model) == said
