"""``--on here`` gives back what was measured; limits of the script hold on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collecting import record
from conftest import laptop
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st

from advisor import api
from advisor.answer import Answer
from advisor.ask import LayoutRequest, Question
from advisor.collectors.format.facts import Limits, limits_of
from advisor.collectors.watch import host as hosts
from advisor.errors import AdvisorError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.machines.devices import cpu_device, is_same_machine
from advisor.machines.fleet import limited_processor

MakeJob = Callable[..., Job]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is the laptop that the tests' jobs were recorded on."""
    replace_everywhere(monkeypatch, hosts, "describe_host", lambda **_: laptop())
    replace_everywhere(monkeypatch, "advisor.collectors.watch.benchmark", "cached_sheets", tuple)
    replace_everywhere(
        monkeypatch, "advisor.collectors.watch.benchmark", "cached_or_measured", lambda: None
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("recorded_batch", [32, 256])
@pytest.mark.parametrize("log_sd", [0.001, 0.1, 0.3])
def test_here_gives_back_what_was_measured(
    make_job: MakeJob, predictor: Predictor, threads: int, recorded_batch: int, log_sd: float
) -> None:
    """Whatever the threads, the accumulation, the ranks and the noise of the recording."""
    job = make_job(
        threads=threads, recorded_batch=recorded_batch, log_sd=log_sd, step_s=3.0, wait_s=0.6,
        global_batch=256,
    )  # fmt: skip
    assert job.measured is not None
    job = replace(job, measured=replace(job.measured, processes=256 // recorded_batch))
    found = api.estimate(job, on="here", predictor=predictor)
    step = found.step_time_s
    assert step.value == pytest.approx(3.0, rel=1e-9)
    assert math.log(step.high / step.low) == pytest.approx(2 * 1.644854 * log_sd, rel=1e-6)
    assert part_s(found, "input") == pytest.approx(0.6)
    assert sum(found.shares.values()) * found.step_time_s.value == pytest.approx(3.0)
    assert found.layout.dp == 256 // recorded_batch
    assert found.layout.micro_batch == 32
    assert found.layout.accumulation_steps == recorded_batch // 32
    assert not found.is_extrapolating


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("wait_s", [0.0, 1.0, 3.0, 3.1])
def test_a_step_that_mostly_waited_is_answered_too(
    make_job: MakeJob, predictor: Predictor, wait_s: float
) -> None:
    job = make_job(step_s=3.0, wait_s=wait_s, global_batch=32)
    found = api.estimate(job, on="here", predictor=predictor)
    assert found.step_time_s.value == pytest.approx(3.0)
    assert sum(found.shares.values()) * found.step_time_s.value == pytest.approx(3.0)
    assert part_s(found, "input") == pytest.approx(min(wait_s, 3.0))
    assert api.estimate(job, on="aws:g5.xlarge", predictor=predictor).step_time_s.value > 0


@pytest.mark.usefixtures("here")
def test_the_whole_job_here_is_its_parts_as_measured(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job(step_s=0.5, global_batch=32, total_steps=100.0, startup_s=7.0)
    job = replace(job, epochs=4.0, epoch_end_steps=3.0)
    found = api.estimate(job, on="here", predictor=predictor).training_time_h
    assert found is not None
    assert found.value * 3600 == pytest.approx(7.0 + 0.5 * (100 + 4 * 3), rel=0.01)


@pytest.mark.usefixtures("here")
def test_what_the_user_changes_is_estimated_from_the_measured_step(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job(step_s=3.0, global_batch=32)
    doubled = api.job_of(replace(Question().job, batch=64), job=job)
    found = api.estimate(doubled, on="here", predictor=predictor).step_time_s
    assert 4.0 < found.value < 6.5  # the optimizer's part of the step is not doubled
    fixed = api.estimate(
        job, on="here", predictor=predictor, layout=LayoutRequest(zero=0)
    ).step_time_s
    assert fixed.value == pytest.approx(3.0, rel=0.05)


@pytest.mark.usefixtures("here")
def test_another_machine_s_recording_is_estimated_here(
    make_job: MakeJob, predictor: Predictor
) -> None:
    elsewhere = replace(laptop(), cpu_model="Intel(R) Xeon(R) Platinum 8488C", logical_cpus=8)
    job = make_job(step_s=3.0, global_batch=32, host=elsewhere)
    found = api.estimate(job, on="here", predictor=predictor)
    assert found.step_time_s.value != pytest.approx(3.0, rel=0.01)


def part_s(found: Answer, name: str) -> float:
    return found.shares[name] * found.step_time_s.value


def test_a_machine_is_the_same_under_another_limit() -> None:
    limited = replace(laptop(), cpu_limit=1.0, memory_limit_bytes=1 << 30, system="Linux newer")
    assert is_same_machine(limited, laptop())
    assert not is_same_machine(replace(laptop(), logical_cpus=4), laptop())
    assert not is_same_machine(replace(laptop(), cpu_model="another"), laptop())
    assert not is_same_machine(replace(laptop(), memory_bytes=32 << 30), laptop())


# Limits.


def test_a_limit_is_what_somebody_set() -> None:
    """A framework's own choice, and a value without effect, are none."""
    plain: dict[str, Any] = {"threads": 2, "called": None, "environment": {}, "affinity": 2}
    assert limits_of(plain, 2, 2.0) == Limits()
    assert limits_of({}, 2, 1.0) == Limits()  # recorded before limits were
    called = limits_of({**plain, "threads": 1, "called": 1}, 2, 2.0)
    assert (called.threads, called.threads_source) == (1, "torch.set_num_threads")
    told = limits_of({**plain, "environment": {"OMP_NUM_THREADS": 2}}, 2, 2.0)
    assert (told.threads, told.threads_source) == (2, "OMP_NUM_THREADS")
    late = limits_of({**plain, "environment": {"OMP_NUM_THREADS": 1}}, 2, 2.0)
    assert late.threads is None
    kept = limits_of({**plain, "affinity": 1}, 2, 2.0)
    assert (kept.cores, kept.cores_source) == (1.0, "its CPU affinity")
    quota = limits_of(plain, 2, 0.5)
    assert (quota.cores, quota.cores_source) == (0.5, "a CPU quota")


def test_a_script_of_one_thread_gains_nothing_from_more_cores(
    make_job: MakeJob, predictor: Predictor
) -> None:
    """Today's defect: it used the 192 virtual CPUs of a c7i.48xlarge."""
    job = make_job(threads=1, global_batch=32)
    limited = replace(job, limits=Limits(threads=1, threads_source="OMP_NUM_THREADS"))

    def step(one: Job, name: str) -> float:
        return api.estimate(one, on=f"aws:{name}", predictor=predictor).step_time_s.value

    large, small = step(limited, "c7i.48xlarge"), step(limited, "c7i.4xlarge")
    assert large == pytest.approx(small, rel=0.02)
    assert step(job, "c7i.48xlarge") < large / 5
    # A card has no threads of the host's.
    assert step(limited, "g5.xlarge") == step(job, "g5.xlarge")


def test_a_quota_leaves_no_more_cores_to_the_loader_either(
    make_job: MakeJob, predictor: Predictor
) -> None:
    job = make_job(cpu_s_per_sample=0.05, workers=8, global_batch=32)
    limited = replace(job, limits=Limits(cores=1.0, cores_source="a CPU quota"))
    free, kept = (
        api.estimate(one, on="aws:g5.16xlarge", predictor=predictor) for one in (job, limited)
    )
    assert part_s(kept, "input") > part_s(free, "input")
    assert part_s(kept, "input") + part_s(kept, "compute") <= 32 * 0.05 * 2


@given(vcpus=st.integers(1, 256), threads=st.integers(1, 300), more=st.integers(1, 64))
def test_more_threads_are_never_slower_and_never_more_than_the_machine(
    vcpus: int, threads: int, more: int
) -> None:
    whole = cpu_device(
        name="one", vcpus=vcpus, memory_bytes=1e9, core_speed=2e4, cpu_model="Intel Xeon 8488C"
    )
    few, many = (limited_processor(whole, float(n)) for n in (threads, threads + more))
    for name in ("fp32_flop_per_s", "memory_bytes_per_s", "cores"):
        least, most, all_ = (getattr(device, name) for device in (few, many, whole))
        assert 0 < least <= most * (1 + 1e-9)
        assert most <= all_ * (1 + 1e-9)
    assert few.cores == min(threads, vcpus)
    if threads >= vcpus:
        assert few == whole


def test_the_answer_says_that_lifting_a_limit_may_help(
    make_job: MakeJob, predictor: Predictor
) -> None:
    limited = replace(make_job(), limits=Limits(threads=1, threads_source="OMP_NUM_THREADS"))
    for job, says in ((limited, True), (make_job(), False)):
        notes = api.recommend(job, predictor=predictor, cloud="aws", top=1).notes
        assert any("OMP_NUM_THREADS" in note and "lifting" in note for note in notes) == says
        shown = api.estimate(job, on="aws:c7i.4xlarge", predictor=predictor)
        assert any("lifting" in note for note in shown.notes) == says
        assert bool(shown.to_record()["notes"]) == says


def test_a_job_that_cannot_run_here_is_a_deliberate_error(
    make_job: MakeJob, predictor: Predictor, here: None
) -> None:
    elsewhere = replace(laptop(), cpu_model="another")
    job = make_job(host=elsewhere, threads=1, global_batch=32, peak_rss_bytes=500 << 30)
    assert job.work is not None
    big = replace(job, work=replace(job.work, parameters=10**12, parameter_bytes=4e12))
    with pytest.raises(AdvisorError):
        api.estimate(big, on="here", predictor=predictor)


LIMITED = """
import os, threading, torch

{before}
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
"""
CALL = "torch.set_num_threads(1)"
IN_A_THREAD = (
    "one = threading.Thread(target=torch.set_num_threads, args=(1,)); one.start(); one.join()"
)
PINNED = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"


@pytest.mark.parametrize(
    ("before", "environment", "said", "cores"),
    [
        pytest.param("", {}, (None, ""), None, marks=pytest.mark.slow),
        (CALL, {}, (1, "torch.set_num_threads"), None),
        pytest.param(
            "", {"OMP_NUM_THREADS": "1"}, (1, "OMP_NUM_THREADS"), None, marks=pytest.mark.slow
        ),
        pytest.param(IN_A_THREAD, {}, (None, ""), None, marks=pytest.mark.slow),
        (PINNED, {}, (None, ""), 1.0),
    ],
    ids=["nothing", "call", "environment", "a loader's thread", "affinity"],
)
def test_the_hooks_tell_a_limit_from_the_framework_s_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, environment: dict[str, str],
    said: tuple[int | None, str], cores: float | None,
) -> None:  # fmt: skip
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if cores is not None and hosts.usable_cpus() < 2:
        pytest.skip("one processor cannot be limited")
    seen = record(tmp_path, LIMITED.format(before=before))
    assert (seen.limits.threads, seen.limits.threads_source) == said
    assert seen.limits.cores == cores


def test_ranks_of_the_advisor_are_not_limited_by_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``--workers`` pins every rank and divides the threads: another machine has more of both."""
    import os

    from advisor.collectors.hooks import chores as hook

    class Torch:
        @staticmethod
        def get_num_threads() -> int:
            return 1

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert limits_of(hook.facts(Torch, None), 2, 2.0).cores == 1.0
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert limits_of(hook.facts(Torch, None, True), 2, 2.0) == Limits()
    assert limits_of(hook.facts(Torch, 1, True), 2, 2.0).threads == 1


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "said", [{}, {"zero": 3}, {"recompute": "full"}, {"micro_batch": 8}, {"tp": 2}]
)
def test_this_machine_beside_others_is_laid_out_as_asked(
    make_job: MakeJob, predictor: Predictor, said: dict[str, Any]
) -> None:
    """``recommend --zero 3`` says of this machine what ``predict --on here --zero 3`` says."""
    job = make_job(global_batch=32)
    question = Question.read({**said, "gpus": "T4:1", "max_nodes": 1})
    row = api.ranked(job, question, predictor=predictor, with_changes=False).here
    try:
        alone = api.estimate(job, on="here", layout=question.layout, predictor=predictor)
    except AdvisorError:
        assert row is None
        return
    assert row is not None
    assert (row.layout, row.step_time_s) == (alone.layout, alone.step_time_s)
    assert row.training_time_h == alone.training_time_h
