"""A job of rounds: a part says the whole, on processors alone, no surer than it is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.format.recording import Recording, Rounds, StepTime, TotalWork
from advisor.errors import NotKnownError, RunError, UsageError
from advisor.estimate.completion import on_demand
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job

KNOWN = Rounds(
    kind="LightGBM", unit="round", device="cpu", cores=1.0, busy_cores=0.98, compile_s=0.1,
    spread_fraction=0.0,
)  # fmt: skip


def partial(rounds: Rounds = KNOWN, **changes: Any) -> Recording:
    """Forty rounds of a second each of a thousand; 5 s to the end of the first."""
    from conftest import laptop

    step = StepTime(
        corrected_s=1.0, raw_s=1.0, low_s=0.98, high_s=1.02, steps=39, warmup_steps=0,
        delay_fraction=0.0, clock="round", is_settled=True,
    )  # fmt: skip
    work = TotalWork(steps=1000, epochs=None, source="LightGBM: 1000", confidence="certain")
    values: dict[str, Any] = {
        "run_id": "a", "path": Path("a"), "command": ("python", "a.py"), "status": "stopped",
        "stop_reason": "settled", "exit_code": 0, "started_at": "", "duration_s": 45.0,
        "host": laptop(), "readings": (), "step_time": step, "deep_step": None, "loading": None,
        "total_work": work, "threads": None, "world_size": 1, "accumulation_steps": 1,
        "peak_rss_bytes": 1 << 30, "warnings": (), "startup_s": 5.0, "rounds": rounds,
    }  # fmt: skip
    return Recording(**values | changes)


def hours(predictor: Predictor, job: Job) -> np.ndarray[Any, Any]:
    """Low, expected and high of the whole job on machines of 2 and more vCPUs."""
    names = ("m7i.large", "m7i.4xlarge")
    types = np.array([predictor.catalogue.instance_type(name).index for name in names])
    columns = predictor.physics_columns(job, types, np.ones(len(types), dtype=np.int64))
    return on_demand(job, columns, 0.9).finish_h


@given(st.integers(50, 10**6))
def test_a_part_of_the_rounds_says_the_whole(total: int) -> None:
    work = TotalWork(steps=total, epochs=None, source="", confidence="certain")
    job = job_from_recording(partial(total_work=work))
    assert job.total_steps == total
    assert job.startup_s == pytest.approx(4.0)  # the first round is one of all
    assert job.measured is not None
    assert job.measured.step_s == 1.0


@given(st.floats(0.0, 1.5), st.floats(0.0, 1.5))
def test_rounds_that_differ_widen_by_what_was_not_seen(less: float, more: float) -> None:
    less, more = sorted((less, more))

    def log_sd(spread: float, steps: int) -> float:
        work = TotalWork(steps=steps, epochs=None, source="", confidence="certain")
        job = job_from_recording(partial(replace(KNOWN, spread_fraction=spread), total_work=work))
        assert job.measured is not None
        return job.measured.log_sd

    assert log_sd(less, 1000) <= log_sd(more, 1000)
    assert log_sd(more, 100) <= log_sd(more, 1000)
    sampling = math.log(1.02 / 0.98) / (2 * 1.644854)
    assert log_sd(more, 39) == pytest.approx(sampling)  # all were seen


def test_a_script_seen_to_its_end_is_known_however_few_its_rounds() -> None:
    step = partial().step_time
    assert step is not None
    wide = replace(step, low_s=0.0, high_s=2.0, steps=3)
    few = TotalWork(steps=4, epochs=None, source="seen to its end", confidence="certain")
    with pytest.raises(NotKnownError):
        job_from_recording(partial(step_time=wide, total_work=few))
    ended = partial(step_time=wide, total_work=few, status="finished", exit_code=0, ending_s=7.0)
    with pytest.raises(NotKnownError):  # it ended by itself, but badly
        job_from_recording(replace(ended, exit_code=1))
    job = job_from_recording(ended)
    assert job.total_steps + job.startup_s == pytest.approx(4 + 4 + 7)
    corrected = job_from_recording(replace(ended, busy_s=12.0))
    assert corrected.total_steps + corrected.startup_s == pytest.approx(12.0)


def test_cores_help_only_who_may_use_them(predictor: Predictor) -> None:
    limited = hours(predictor, job_from_recording(partial()))
    core_speed = predictor.fleet.core_speed
    free = replace(KNOWN, cores=None, busy_cores=4.0)
    unlimited = hours(predictor, job_from_recording(partial(free)))
    indices = [predictor.catalogue.instance_type(n).index for n in ("m7i.large", "m7i.4xlarge")]
    by_speed = core_speed[indices[0]] / core_speed[indices[1]]
    assert limited[1, 1] / limited[0, 1] == pytest.approx(by_speed, rel=0.02)
    assert unlimited[1, 1] < unlimited[0, 1]
    widths = unlimited[:, 2] / unlimited[:, 0]
    assert widths[1] > limited[1, 2] / limited[1, 0]  # how much of the gain is had is not known


def test_boundaries_are_paid_as_often_as_the_whole_job_has_them() -> None:
    keras = replace(KNOWN, kind="Keras", unit="batch", cores=None)
    work = TotalWork(steps=1000, epochs=10.0, source="", confidence="certain")
    job = job_from_recording(partial(keras, total_work=work, boundaries=3, boundary_s=2.5))
    assert job.epochs * job.epoch_end_steps == pytest.approx(10 * 2.5)
    given = job_from_recording(partial(keras, total_work=work), epochs=30.0)
    assert given.total_steps == 3000


@pytest.mark.parametrize(
    ("changes", "options", "error", "says"),
    [
        ({"rounds": replace(KNOWN, device="cuda")}, {}, RunError, "on a GPU"),
        ({"total_work": None}, {}, RunError, "how many rounds of LightGBM"),
        ({}, {"global_batch": 64}, UsageError, "no traced step"),
        ({}, {"epochs": 3.0}, UsageError, "no epochs"),
        ({}, {"total_samples": 100.0}, UsageError, "how many samples a round"),
    ],
)
def test_what_cannot_be_said_is_refused_with_what_to_do(
    changes: dict[str, Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        job_from_recording(partial(**changes), **options)
    assert getattr(caught.value, "hint", "")


def test_the_job_s_facts_name_the_rounds() -> None:
    job = job_from_recording(partial())
    assert job.facts()["rounds"] == {"kind": "LightGBM", "unit": "round"}
    assert any("a GPU is not used" in text for text in job.assumptions)
