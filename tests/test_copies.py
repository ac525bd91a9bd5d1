"""One stored work at every batch: copies, calls and what they may not do; no GPU is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from advisor.ask import JobSpec, SetupRequest
from advisor.errors import UsageError
from advisor.estimate.estimate import estimate_on_gpu
from advisor.estimate.predictor import Predictor
from advisor.jobs import Actual, Job, job_from_spec
from advisor.jobs.recorded_work import CALL_S
from advisor.lab.data.recorded import recorded_job
from advisor.machines import suite_device
from advisor.machines.devices import device_parameters
from advisor.planners.core import Device, Operator, Precision, Work, concatenate
from advisor.planners.core.arrays import select
from advisor.planners.core.nouns import Operators
from advisor.planners.step import in_precision, step_time

BATCHES: Final = (2, 12, 64, 512)
IMAGE_BYTES: Final = 4.0 * 3 * 224 * 224
LEAST_LINK: Final = 3e9  # no link of a GPU is slower [bytes/s]
GPUS: Final = ("RTX-3090", "A100-SXM4-40GB", "H100-SXM5-80GB", "T4", "GTX-1080-Ti")
LOADED_S: Final = 0.5e-3  # of a sample, inline


def stored(name: str = "timm-resnet50-b2") -> Job:
    job = recorded_job(name)
    assert job is not None
    return job


def work_of(job: Job) -> Work:
    assert job.work is not None
    return job.work


def fed(job: Job, *, workers: int = 4, is_pinned: bool = False, is_queued: bool = False) -> Job:
    """Return a job whose script takes its images from a loader."""
    work = replace(
        work_of(job), input_bytes_per_sample=IMAGE_BYTES, is_pinned=is_pinned,
        is_queued=is_queued, loaders=workers,
    )  # fmt: skip
    feed = replace(job.feed, cpu_s_per_sample=LOADED_S, sample_bytes=IMAGE_BYTES, workers=workers)
    return replace(job, work=work, feed=feed)


def device(name: str) -> Device:
    found = suite_device(name)
    assert found is not None
    return found


def told_s(physics: Predictor, job: Job, gpu: str, batch: int) -> Mapping[str, float]:
    """Return the parts of a step as they are printed, and their sum [s]."""
    asked = job_from_spec(JobSpec(batch=batch, precision="fp16"), SetupRequest(), job=job)
    found = estimate_on_gpu(physics, asked, gpu)
    step_s = found.step_time_s.value
    return {name: share * step_s for name, share in found.shares.items()} | {"step": step_s}


@pytest.mark.parametrize("gpu", GPUS)
def test_all_but_calls_grow_in_proportion_to_the_batch(gpu: str) -> None:
    """What one more sample takes is the same at every batch."""
    work = work_of(fed(stored()))
    found = step_time(work, [device(gpu)], BATCHES, device_parameters())
    parts = [getattr(found, f"{one}_s")[0] for one in ("compute", "memory", "copy")]
    a_sample = np.diff(np.sum(parts, axis=0)) / np.diff(BATCHES)
    assert a_sample == pytest.approx(a_sample[-1], rel=0.05)
    assert np.ptp(found.launch_s[0]) < found.launch_s[0].max()  # no part of it grows
    assert found.launch_s[0, -1] <= found.launch_s[0, 0]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_copy_takes_no_longer_than_its_bytes_over_the_slowest_link(
    physics: Predictor, gpu: str, batch: int
) -> None:
    parts = told_s(physics, fed(stored()), gpu, batch)
    assert 0 < parts["copy"] <= batch * IMAGE_BYTES / LEAST_LINK
    assert parts["input"] == 0  # loader processes keep up


@pytest.mark.parametrize("name", ["timm-resnet50-b2", "timm-vit_small_patch16_224-b2"])
@pytest.mark.parametrize("batch", [64, 256, 512])
def test_a_loader_in_the_script_adds_no_more_than_its_bytes_at_a_real_link(
    physics: Predictor, name: str, batch: int
) -> None:
    """On the RTX 3090 of timm's own rows, whose images lie on the GPU."""
    without, with_one = (
        told_s(physics, job, "RTX-3090", batch)["step"]
        for job in (stored(name), fed(stored(name)))
    )
    assert 0 < with_one - without <= batch * IMAGE_BYTES / LEAST_LINK


def test_what_a_script_lets_a_copy_do_is_never_slower() -> None:
    work = work_of(fed(stored()))
    for gpu in GPUS:
        plain, pinned, queued, none = (
            step_time(one, [device(gpu)], BATCHES, device_parameters()).micro_batch_s[0]
            for one in (
                work,
                replace(work, is_pinned=True),
                replace(work, is_pinned=True, is_queued=True),
                replace(work, input_bytes_per_sample=0.0, loaders=0),
            )
        )
        assert (plain > pinned).all()
        assert (pinned >= queued).all()
        assert (queued >= none * (1 - 1e-9)).all()


def test_a_queued_copy_hides_behind_calls_and_not_behind_kernels_of_its_stream() -> None:
    work = replace(work_of(fed(stored())), is_pinned=True, is_queued=True)
    bare = replace(work, input_bytes_per_sample=0.0)
    on = device("H100-SXM5-80GB")
    few, many = (step_time(one, [on], [2, 512], device_parameters()) for one in (work, bare))
    added = few.micro_batch_s[0] - many.micro_batch_s[0]
    assert added[1] == pytest.approx(few.copy_s[0, 1], rel=0.25)
    link = on.host_bytes_per_s
    assert link is not None
    assert few.copy_s[0, 1] == pytest.approx(512 * IMAGE_BYTES / link)


def test_inline_loading_runs_beside_the_gpu_until_the_script_waits_for_it(
    physics: Predictor,
) -> None:
    """The host makes the next batch while the GPU computes; ``loss.item()`` ends that."""
    inline = fed(stored(), workers=0)
    work = work_of(inline)
    read = Operator(
        name="aten::_local_scalar_dense", kind="other", phase="forward", count=1, flop=0.0,
        bytes=4.0,
    )  # fmt: skip
    waits = replace(
        inline, work=replace(work, operators=concatenate([work.operators, Operators.of([read])]))
    )
    free, stopped = (told_s(physics, job, "RTX-3090", 512) for job in (inline, waits))
    assert free["input"] == 0
    assert stopped["input"] == pytest.approx(512 * LOADED_S, rel=0.01)


def test_loading_processes_alone_add_to_a_step_and_eight_as_much_as_more(
    physics: Predictor,
) -> None:
    work = work_of(fed(stored(), workers=0))
    bare = replace(work, input_bytes_per_sample=0.0)
    for gpu in GPUS:
        inline, none, *fed_by = (
            step_time(one, [device(gpu)], [12], device_parameters()).micro_batch_s[0, 0]
            - step_time(one, [device(gpu)], [12], device_parameters()).copy_s[0, 0]
            for one in (work, bare, *(replace(work, loaders=n) for n in (1, 4, 8, 16)))
        )
        assert inline == pytest.approx(none, rel=0.01)  # what the loop itself loads is ``input``
        assert inline < fed_by[0] < fed_by[1] < fed_by[2]
        assert fed_by[2] == fed_by[3]
    told = told_s(physics, fed(stored(), workers=0), "RTX-3090", 12)
    assert told["input"] <= 12 * LOADED_S


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp64"])
def test_a_rehearsed_network_is_cast_as_a_recorded_one(precision: Precision) -> None:
    """A rehearsal sees convolutions in TF32, a recording on a processor in fp32."""
    work = work_of(stored())
    made = work.operators
    convolves = np.isin(made.kind.astype(str), ["convolution", "winograd", "depthwise"])
    rehearsed = replace(
        work,
        precision="tf32",
        operators=replace(made, dtype=np.where(convolves, "tf32", made.dtype)),
    )
    both = [in_precision(one, precision).operators for one in (work, rehearsed)]
    assert both[0] == both[1]


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_described_network_takes_what_a_recorded_one_does(
    physics: Predictor, precision: str
) -> None:
    cnn = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"
    spec = JobSpec(batch=512, precision=precision)
    jobs = (
        job_from_spec(spec, SetupRequest(), job=stored()),
        job_from_spec(
            replace(spec, cnn=cnn, total_steps=1000), SetupRequest(optimizer="sgd-momentum")
        ),
    )
    process = physics.constants.residual
    nothing = replace(process, seen=select(process.seen, np.zeros(len(process.seen.points), bool)))
    equation = Predictor(constants=replace(physics.constants, residual=nothing), learned=None)
    # Rows on the very card (NVIDIA's tuned ResNet) tell of a described one more than of a script.
    for predictor, apart in ((equation, 0.05), (physics, 0.08 if precision == "fp16" else 0.05)):
        recorded_s, described_s = (
            estimate_on_gpu(predictor, job, "A100-SXM4-40GB").step_time_s for job in jobs
        )
        assert described_s.value == pytest.approx(recorded_s.value, rel=apart)


# The host that starts the calls.


def test_a_slow_core_starts_calls_slowly_and_computes_no_slower() -> None:
    work, on = work_of(stored()), device("H100-SXM5-80GB")
    slow, usual = (
        step_time(work, [on], [2, 512], device_parameters(), [speed]) for speed in (0.5, 1.0)
    )
    assert slow.micro_batch_s[0, 0] == pytest.approx(2 * usual.micro_batch_s[0, 0], rel=0.05)
    assert slow.micro_batch_s[0, 1] == pytest.approx(usual.micro_batch_s[0, 1], rel=0.02)


def test_who_says_what_a_call_takes_is_believed_and_told_a_narrower_range(
    physics: Predictor,
) -> None:
    job = stored()
    usual, told, slow = (
        estimate_on_gpu(
            physics, job_from_spec(JobSpec(batch=2, call_s=call), SetupRequest(), job=job),
            "H100-SXM5-80GB",
        ).step_time_s
        for call in (None, CALL_S, 3 * CALL_S)
    )  # fmt: skip
    assert told.value == pytest.approx(usual.value, rel=0.01)
    assert told.high / told.low < usual.high / usual.low
    assert slow.value > 2.5 * told.value
    with pytest.raises(UsageError, match="--call goes with"):
        JobSpec(cnn="224:64:3x256,4x512,6x1024,3x2048:bottleneck", call_s=CALL_S)


def told_with_a_run(physics: Predictor, asked: int, ran: int, times: float) -> tuple[float, float]:
    """Return by what a run of another batch moves a step, and what is left of its range."""

    def step_s(batch: int, *runs: Actual) -> Any:
        spec = JobSpec(batch=batch, precision="fp16")
        job = job_from_spec(spec, SetupRequest(), job=stored(), actuals=runs)
        return estimate_on_gpu(physics, job, "H100-SXM5-80GB").step_time_s

    took = Actual(
        run="r", provider="", instance_type="H100-SXM5-80GB", count=1, batch=ran,
        step_s=times * step_s(ran).value,
    )  # fmt: skip
    before, after = step_s(asked), step_s(asked, took)
    return after.value / before.value, math.log(after.high / after.low) / math.log(
        before.high / before.low
    )


@pytest.mark.parametrize("times", [1.5, 1 / 1.5])
def test_a_run_tells_of_its_host_as_much_as_its_calls_are_of_its_step(
    physics: Predictor, times: float
) -> None:
    """Small steps are the host's, large ones the card's: neither says all of the other."""
    small, large = (
        {asked: told_with_a_run(physics, asked, ran, times) for asked in (2, 64, 512)}
        for ran in (12, 512)
    )
    assert small[2][0] == pytest.approx(times, rel=0.03)
    moved = [abs(math.log(small[batch][0])) for batch in (2, 64, 512)]
    assert moved[0] > moved[1] > moved[2] > 0
    assert small[2][1] < small[64][1] < small[512][1] < 0.9
    assert large[512][0] == pytest.approx(times, rel=0.03)
    assert large[512][1] < large[64][1] < large[2][1] < 0.9
