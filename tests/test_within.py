"""What given machines train in a given time: the inverse of a plan, by the same estimate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.ask import JobSpec, SetupRequest
from advisor.errors import UsageError
from advisor.estimate.completion import of_length, on_demand, steps_within
from advisor.estimate.knowledge.known import job_of
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.machines.cluster import read_cluster
from advisor.planners.core.errors import PlanningError
from advisor.rank.given import PlanQuestion, plan
from advisor.rank.within import SIZES, Within, sizes_within, trained_within

UNLIKE = "4x RTX 3090 + 2x A5000"
SMALL = JobSpec(layers=12, hidden=768, heads=12, batch=48)
InProcess = Callable[..., Any]


def asked(
    predictor: Predictor, cluster: str, hours: float | None, spec: JobSpec = SMALL
) -> PlanQuestion:
    machines = read_cluster(cluster, predictor.catalogue)
    return PlanQuestion(job=job_of(spec), cluster=machines, predictor=predictor, within_h=hours)


@pytest.mark.parametrize("cluster", ["2x4xL4@25Gbps", UNLIKE, "2x g5.12xlarge"])
def test_a_plan_of_the_steps_trained_takes_the_time_that_was_asked(
    physics: Predictor, cluster: str
) -> None:
    question = asked(physics, cluster, 30.0)
    (row,) = trained_within(question).rows
    job = replace(question.job, total_steps=row.steps.value, total_source="given")
    best = plan(replace(question, job=job, within_h=None)).best
    assert best.name == row.plan.name
    assert best.training_time_h is not None
    assert best.training_time_h.value == pytest.approx(30.0, rel=1e-9)


@given(hours=st.floats(0.5, 2000.0), ends=st.floats(0.0, 50.0))
def test_more_steps_than_those_trained_take_longer(
    physics: Predictor, hours: float, ends: float
) -> None:
    """The inverse of any finish, with ends of epochs, failures and whole runs in it."""
    job = replace(job_of(SMALL), epochs=2.0, epoch_end_steps=ends, total_steps=1000.0)
    columns = physics.step_columns(job, *_one_machine(physics))
    found = steps_within(job, columns, hours, 0.9)

    def finish_h(steps: float, bound: int) -> float:
        return float(on_demand(of_length(job, steps), columns, 0.9).finish_h[0, bound])

    for steps, bound in ((found.low, 2), (found.value, 1), (found.high, 0)):
        assert finish_h(1.0001 * steps + 1e-3, bound) > hours
        if steps:
            assert finish_h(steps, bound) <= hours * (1 + 1e-9)


def _one_machine(predictor: Predictor) -> tuple[Any, Any]:
    import numpy as np

    row = predictor.catalogue.instance_type("g5.12xlarge").index
    return np.array([row]), np.array([2])


def test_half_of_the_machines_and_half_of_the_time_train_less(physics: Predictor) -> None:
    whole = trained_within(asked(physics, "2x4xL4@25Gbps", 30.0)).rows[0]
    half_time = trained_within(asked(physics, "2x4xL4@25Gbps", 15.0)).rows[0]
    half = trained_within(asked(physics, "1x4xL4@25Gbps", 30.0)).rows[0]
    assert half_time.steps.value < whole.steps.value
    assert half.steps.value < whole.steps.value
    assert whole.tokens is not None
    assert whole.tokens.value == pytest.approx(whole.steps.value * 48 * 2048)


def test_epochs_follow_from_the_size_of_the_data(
    physics: Predictor, make_job: Callable[..., Job]
) -> None:
    question = replace(asked(physics, "4xL4", 10.0), job=make_job(dataset_samples=100_000))
    (row,) = trained_within(question).rows
    assert row.epochs is not None
    assert row.epochs.value == pytest.approx(row.samples.value / 100_000)
    assert row.tokens is None


@pytest.fixture(scope="module")
def sizes(physics: Predictor) -> Within:
    return sizes_within(asked(physics, "8xA100-80GB", 72.0), JobSpec())


def test_sizes_train_as_many_tokens_as_the_devices_have_operations(sizes: Within) -> None:
    """6 N D of Kaplan et al. 2020 at 20 to 65 % of the datasheet's peak."""
    for row in sizes.rows:
        assert row.tokens is not None
        share = 6 * row.parameters * row.tokens.value / (72 * 3600 * 8 * 312e12)
        assert 0.2 < share < 0.65, row.name


def test_the_size_nearest_to_the_optimum_is_marked(sizes: Within) -> None:
    ratios = {row.name: row.tokens_per_parameter or 0.0 for row in sizes.rows}
    assert list(ratios.values()) == sorted(ratios.values(), reverse=True)
    nearest = min(ratios, key=lambda name: abs(math.log(ratios[name] / 20)))
    assert sizes.compute_optimal == nearest == "1.3B"
    assert {*ratios, *sizes.left_out} == {size.name for size in SIZES}
    assert "175B" in sizes.left_out
    assert Within.from_record(json.loads(json.dumps(sizes.to_record()))).rows[0].steps


def test_the_published_sizes_have_the_parameters_that_they_are_called_by() -> None:
    for size in SIZES:
        spec = JobSpec(layers=size.layers, hidden=size.hidden, heads=size.heads)
        work = job_of(spec).work
        assert work is not None
        number = float(size.name[:-1]) * (1e9 if size.name.endswith("B") else 1e6)
        assert work.parameters == pytest.approx(number, rel=0.2), size.name


def test_adapters_have_no_compute_optimal_size(physics: Predictor) -> None:
    setup = SetupRequest(adapter_rank=16)
    question = asked(physics, "8xA100-80GB", 1.0)
    assert sizes_within(question, JobSpec(), setup).compute_optimal is None


def test_machines_that_are_not_ready_by_then_are_said_to_be(physics: Predictor) -> None:
    spec = replace(SMALL, data_bytes=1e12)
    with pytest.raises(PlanningError, match="not ready by then") as caught:
        trained_within(asked(physics, "4xL4", 0.5, spec))
    assert caught.value.exit_code == 3
    with pytest.raises(UsageError, match="no time is given"):
        trained_within(asked(physics, "4xL4", None))


WORDS = ("--layers", "12", "--hidden", "768", "--heads", "12", "--batch", "48")


@pytest.mark.parametrize("more", [("--for", "3d"), ("--tokens", "1B")])
def test_plan_and_recommend_say_the_same_of_unlike_machines(
    in_process: InProcess, tmp_path: Path, more: tuple[str, ...]
) -> None:
    words = ("--cluster", UNLIKE, *WORDS, *more)
    said = [in_process(verb, *words, cwd=tmp_path) for verb in ("plan", "recommend")]
    assert [one.returncode for one in said] == [0, 0]
    assert said[0].stdout == said[1].stdout != ""


def test_recommend_holds_given_machines_to_the_deadline(
    in_process: InProcess, tmp_path: Path
) -> None:
    words = ("recommend", "--cluster", UNLIKE, *WORDS, "--tokens", "1B", "--deadline")
    assert in_process(*words, "300d", cwd=tmp_path).returncode == 0
    late = in_process(*words, "1m", cwd=tmp_path)
    assert (late.returncode, "misses --deadline" in late.stderr) == (3, True)


@pytest.mark.parametrize(
    "flags",
    [("--cloud", "aws"), ("--gpus", "A100:8"), ("--spot",), ("--full",), ("--explain", "1"),
     ("--max-price", "3", "--cluster-price", "2")],
)  # fmt: skip
def test_recommend_refuses_what_says_nothing_of_given_machines(
    in_process: InProcess, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    words = ("recommend", "--cluster", UNLIKE, *WORDS, "--tokens", "1B", *flags)
    done = in_process(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(flag in done.stderr for flag in flags if flag.startswith("--"))
    assert "--cluster-trace" in done.stderr  # what to do


def test_settings_of_a_project_do_not_forbid_given_machines(
    in_process: InProcess, tmp_path: Path
) -> None:
    (tmp_path / "advisor.toml").write_text('cloud = "aws"\ndeadline = "300d"\n')
    words = ("recommend", "--cluster", UNLIKE, *WORDS, "--tokens", "1B")
    assert in_process(*words, cwd=tmp_path).returncode == 0
    assert in_process(*words, "--cloud", "gcp", cwd=tmp_path).returncode == 2


def test_a_time_without_machines_is_a_mistake(in_process: InProcess, tmp_path: Path) -> None:
    done = in_process("recommend", *WORDS, "--tokens", "1B", "--for", "3d", cwd=tmp_path)
    assert done.returncode == 2
    assert "--cluster" in done.stderr


def test_the_table_fits_eighty_columns(sizes: Within) -> None:
    from advisor.words import within_text

    text = within_text(sizes.to_record(), width=80)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "*1.3B" in text
    # A row a size: none is broken at the layout.
    table = lines[lines.index("") + 1 :]
    table = table[: table.index("")]
    assert [line.split()[0].lstrip("*") for line in table] == [
        "model", *(row.name for row in sizes.rows)
    ]  # fmt: skip
