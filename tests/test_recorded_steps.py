"""A script recorded on a processor, asked for a GPU: laws that need no truth, and the protocol."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import data
from advisor.ask import JobSpec, SetupRequest
from advisor.collectors.derive.store import read_recording
from advisor.estimate.estimate import estimate_on_gpu
from advisor.estimate.predictor import Predictor
from advisor.jobs import job_from_spec
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job
from advisor.jobs.load import read_job, write_job
from advisor.jobs.recorded_work import CALL_S
from advisor.lab import score
from advisor.lab.data import recorded
from advisor.lab.fit.described import recorded_rows
from advisor.lab.fit.hosts import fit_call, left_out_log_sd
from advisor.lab.score.recorded import without_group
from advisor.machines import suite_device
from advisor.machines.devices import device_parameters
from advisor.planners.core import Operator, Operators, Work
from advisor.planners.step import at_batch, in_precision, step_time
from advisor.planners.step.device_rates import convolution_kind, unmeasured

# Parameters as their papers and torchvision's and timm's documentation state them [millions].
PUBLISHED = {
    "torchvision-resnet50-b2": 25.56, "torchvision-vgg16-b2": 138.36,
    "torchvision-densenet121-b2": 7.98, "torchvision-mobilenet_v2-b2": 3.50,
    "torchvision-squeezenet1_1-b2": 1.24, "torchvision-resnext101_32x8d-b2": 88.79,
    "torchvision-shufflenet_v2_x1_0-b2": 2.28, "timm-vit_base_patch16_224-b2": 86.57,
}  # fmt: skip
TWICE = [n for n in recorded.stored_jobs() if n.endswith("-b16")]
GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
GPUS = ("V100-SXM2-16GB", "T4", "H100-SXM5-80GB")


def stored(name: str) -> Job:
    job = recorded.recorded_job(name)
    assert job is not None
    return job


def work_of(name: str) -> Work:
    work = stored(name).work
    assert work is not None
    return work


def step_s(physics: Predictor, job: Job, gpu: str) -> float:
    return estimate_on_gpu(physics, job, gpu).step_time_s.value


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_recorded_networks_are_the_published_ones(name: str) -> None:
    assert work_of(name).parameters / 1e6 == pytest.approx(PUBLISHED[name], abs=0.01)


def test_timms_networks_have_the_parameters_of_its_table() -> None:
    from advisor.lab.data import RECORDED

    rows = RECORDED.read("timm", data.measurements(None))
    stated = dict(zip(rows["network"], rows["parameters_m"], strict=True))
    names = [n for n in recorded.stored_jobs() if n.startswith("timm")]
    assert len(names) >= 50
    for name in names:
        network = name.partition("-")[2].rpartition("-b")[0]
        assert work_of(name).parameters / 1e6 == pytest.approx(stated[network], abs=0.02), name


# Laws.


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", TWICE[:8])
def test_the_batch_that_was_recorded_changes_no_answer(
    physics: Predictor, name: str, gpu: str
) -> None:
    two, sixteen = stored(name.replace("-b16", "-b2")), stored(name)
    for batch in (2, 32):
        few, many = (
            step_s(physics, replace(job, global_batch=batch), gpu) for job in (two, sixteen)
        )
        assert few == pytest.approx(many, rel=0.03)


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(recorded.stored_jobs()), batch=st.integers(1, 64))
def test_a_step_takes_at_least_its_calls_times_the_least_host_time(name: str, batch: int) -> None:
    work, parameters = work_of(name), device_parameters()
    device = suite_device("H100-SXM5-80GB")
    assert device is not None
    found = step_time(work, [device], [float(batch)], parameters)
    made = work.operators
    calls = {"forward": made.kernels[made.phase == "forward"].sum()}
    engine = made.kernels[made.phase == "backward"].sum()
    least = CALL_S * math.exp(-4 * parameters.host_log_sd)
    at_least = least * (calls["forward"] + parameters.engine_call_fraction * engine)
    assert found.micro_batch_s[0, 0] >= at_least
    assert found.host_log_sd[0, 0] <= parameters.host_log_sd + 1e-9


def test_an_unseen_host_widens_small_steps_alone(physics: Predictor) -> None:
    """A step that only starts calls is as uncertain as hosts are; one that computes is not."""
    job = stored("torchvision-resnet50-b2")
    small, large = (
        estimate_on_gpu(physics, replace(job, global_batch=n), "H100-SXM5-80GB").step_time_s
        for n in (1, 512)
    )
    ends = [one.high / one.low for one in (small, large)]
    assert ends[0] > 1.3 * ends[1]


def test_a_step_grows_with_its_batch(physics: Predictor) -> None:
    job = stored("torchvision-resnet50-b2")
    batches = [*range(1, 17), 23, 32, 64, 128]
    found = [step_s(physics, replace(job, global_batch=n), "L4") for n in batches]
    assert all(b >= 0.999 * a for a, b in itertools.pairwise(found))


def test_a_job_at_another_batch_is_the_same_work_in_proportion() -> None:
    work = work_of("torchvision-resnet18-b2")
    twice = at_batch(work, 4)
    again = at_batch(twice, 2).operators
    assert again.flop == pytest.approx(work.operators.flop)
    assert again.bytes == pytest.approx(work.operators.bytes)
    for device in map(suite_device, GPUS):
        assert device is not None
        one, two = (step_time(w, [device], [8.0], device_parameters()) for w in (work, twice))
        assert one.micro_batch_s == pytest.approx(two.micro_batch_s)


# What is not in a recording, and is known of the software.


def test_convolutions_in_32_bits_run_as_tf32_where_a_device_has_it() -> None:
    work, parameters = at_batch(work_of("torchvision-resnet50-b2"), 64), device_parameters()
    has, lacks = suite_device("A100-SXM4-40GB"), suite_device("V100-SXM2-16GB")
    assert has is not None
    assert lacks is not None
    plain = replace(work, call_s=None)  # as described: no word of the framework
    for device, is_faster in ((unmeasured(has), True), (unmeasured(lacks), False)):
        recorded_s, described_s = (
            step_time(w, [device], [64.0], parameters).compute_s[0, 0] for w in (work, plain)
        )
        assert (recorded_s < 0.7 * described_s) == is_faster


def test_wide_groups_of_a_convolution_are_products_and_narrow_ones_are_not() -> None:
    assert convolution_kind("2x256x28x28,256x64x3x3", 0.0) == "convolution"
    assert convolution_kind("2x256x28x28,256x8x3x3", 0.0) == "depthwise"
    assert convolution_kind("2x256x28x28,2x256x28x28,256x64x3x3", 0.0) == "convolution"


@pytest.mark.parametrize("name", ["timm-vit_tiny_patch16_224-b2", "timm-resnet50_gn-b2"])
def test_autocast_keeps_normalisation_in_32_bits_and_casts_around_it(name: str) -> None:
    whole = work_of(name)
    cast, stored_half = (in_precision(whole, "fp16", is_autocast=a) for a in (True, False))
    norms = [
        sum(o.bytes for o in w.operators if "norm" in o.name) for w in (whole, cast, stored_half)
    ]
    assert norms[1] > norms[0] > norms[2]
    again = in_precision(cast, "fp32")
    assert {o.name for o in again.operators} == {o.name for o in whole.operators}
    for one, other in zip(again.operators, whole.operators, strict=True):
        assert one.bytes == pytest.approx(other.bytes)
        assert one.count == pytest.approx(other.count)
        assert one.dtype == other.dtype


def test_what_autocast_does_to_a_step_operator_by_operator() -> None:
    """A cast reads 4 and writes 2 bytes of each entry, beside the 8 that are read and written."""
    kinds: dict[str, Any] = {
        "aten::mm": "matmul", "aten::relu": "elementwise", "aten::native_layer_norm":
        "normalisation", "aten::_softmax": "reduction", "aten::gelu": "elementwise",
    }  # fmt: skip
    operators = [
        Operator(name=name, kind=kind, phase="forward", count=3, flop=5.0, bytes=100.0,
                 fixed_bytes=20.0)
        for name, kind in kinds.items()
    ]  # fmt: skip
    update = Operator(name="aten::add", kind="optimizer", phase="optimizer", count=1, flop=1.0,
                      bytes=8.0, fixed_bytes=8.0)  # fmt: skip
    recorded_work = replace(work_of("timm-resnet50_gn-b2"), precision="fp32")
    whole = replace(recorded_work, operators=Operators.of([*operators, update]))
    cast = {o.name: o for o in in_precision(whole, "bf16").operators if o.phase != "backward"}
    for name in ("aten::native_layer_norm", "aten::_softmax"):  # in 32 bits, and cast around
        found = cast["autocast::" + name]
        assert (found.count, found.fixed_bytes, found.bytes) == (6, 20, 20 + 80 * (1 + 6 / 8))
        assert found.dtype == "fp32"
    assert cast["aten::relu"].bytes == 100  # nothing returns it to 16 bits
    for name in ("aten::mm", "aten::gelu"):
        assert (cast[name].bytes, cast[name].dtype, cast[name].count) == (20 + 40, "bf16", 3)
    assert cast["aten::add"].bytes == 8
    weights = [o for o in in_precision(whole, "bf16").operators if o.name == "autocast::weights"]
    assert [o.phase for o in weights] == ["forward", "backward"]
    for one in weights:
        assert (one.count, one.bytes) == (3, (4 + 2) * whole.trainable_parameters)
        assert one.fixed_bytes == one.bytes
    returned = replace(
        whole,
        operators=Operators.of(
            [*whole.operators, replace(operators[1], name="aten::native_batch_norm")]
        ),
    )
    narrow = {o.name: o for o in in_precision(returned, "bf16").operators}
    assert narrow["aten::relu"].bytes == 20 + 40
    stored = in_precision(whole, "bf16", is_autocast=False)
    assert [o.bytes for o in stored.operators] == [60.0] * 5 + [8.0]
    double = in_precision(whole, "fp64")
    assert [o.bytes for o in double.operators] == [200.0] * 5 + [16.0]
    single = in_precision(double, "fp32", is_autocast=False)
    assert [o.bytes for o in single.operators] == [100.0] * 5 + [8.0]


def test_weights_stored_in_16_bits_are_not_cast() -> None:
    job = stored("timm-vit_tiny_patch16_224-b2")
    half, cast = (
        job_from_spec(JobSpec(precision="fp16"), SetupRequest(weights=w), job=job)
        for w in ("bf16", None)
    )
    assert half.work is not None
    assert cast.work is not None
    assert not any(o.name.startswith("autocast") for o in half.work.operators)
    assert any(o.name == "autocast::weights" for o in cast.work.operators)


# What a call takes.


def test_what_a_call_takes_is_what_the_suites_hosts_took() -> None:
    """Fitted again: a call of the suite's median host, beside the constants that ship."""
    parameters = device_parameters()
    found = fit_call(recorded_rows(data.measurements(None)), parameters)
    assert found is not None
    assert found.call_s == pytest.approx(CALL_S, rel=0.1)
    assert found.engine_share == pytest.approx(parameters.engine_call_fraction, rel=0.3)
    assert left_out_log_sd(found) == pytest.approx(parameters.host_log_sd, rel=0.1)


# What the suites' PyTorch did that today's does not.

ZEROES = """
import sys, torch
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=float(sys.argv[2]))
for step in range(1000):
    optimizer.zero_grad(set_to_none=sys.argv[1] == "drops")
    loss = net(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
"""


def calls_of(job: Job) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return calls, kernels and bytes of zeroing and of adding to gradients, by phase."""
    assert job.work is not None
    made, found = job.work.operators, {}
    for name, phase in (("aten::zero_", "optimizer"), ("aten::add_", "backward")):
        rows = (made.name == name) & (made.phase == phase)
        found[name, phase] = tuple(
            float(column[rows].sum()) for column in (made.count, made.kernels, made.fixed_bytes)
        )
    return found


@pytest.mark.slow  # four recordings
@pytest.mark.parametrize("momentum", ["0", "0.9"])
def test_the_suites_zero_grad_adds_what_a_recording_of_it_has(
    tmp_path: Path, momentum: str
) -> None:
    script, jobs = tmp_path / "train.py", {}
    script.write_text(ZEROES)
    for way in ("drops", "zeroes"):
        subprocess.run(
            [sys.executable, "-m", "advisor.cli", "profile", "--quiet", "--steps", "4", "--runs",
             str(tmp_path / way), "--no-rehearse", "--", sys.executable, str(script), way,
             momentum],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        jobs[way] = job_from_recording(read_recording(next((tmp_path / way).iterdir())))
    drops, zeroes = jobs["drops"], jobs["zeroes"]
    assert calls_of(recorded.zeroing(drops, drops)) == calls_of(zeroes)
    assert sum(sum(calls) for calls in calls_of(drops).values()) == 0


# The protocol.


@pytest.mark.slow  # of a few tables `tests/test_blind_fits.py` holds the same
def test_the_left_out_gpu_is_in_no_fit() -> None:
    rows = score.load("recorded").rows(data.measurements(None))
    asking = without_group(rows.facts, "GPU", "RTX-3090")
    assert "RTX-3090" not in asking.constants.residual.seen.points.device
    family = without_group(rows.facts, "family of networks", "densenet")
    points = family.constants.residual.seen.points
    whole = without_group(rows.facts, "family of networks", "of none").constants.residual
    assert len(points) == len(whole.seen.points) - 64  # two precisions of four on eight machines


@pytest.mark.slow
def test_the_protocol_errs_by_little_more_than_half_of_every_simpler_rule() -> None:
    """In the mean: a third of the rows are of one GPU, whose machines decide the median."""
    found = score.run("recorded", data.measurements(None))
    assert found.overall.rows >= 500
    rules = [scores.mape_fraction for scores in found.baselines.values()]
    assert found.overall.mape_fraction < 0.55 * min(rules)
    assert 0.85 <= (found.overall.coverage or 0.0) <= 0.97
    assert found.figures["GPU left out, fp64: MAPE"] < 0.25  # nothing was fitted to those rows
    assert 0.85 <= found.figures["GPU left out, fp64: coverage"] <= 0.97


def test_a_saved_job_answers_as_the_recording_does(physics: Predictor, tmp_path: Path) -> None:
    job = job_from_recording(read_recording(GOLDEN), total_steps=1000)
    write_job(job, tmp_path / "job.json")
    saved = read_job(tmp_path / "job.json")
    for gpu in GPUS:
        one, two = (estimate_on_gpu(physics, j, gpu).step_time_s for j in (job, saved))
        assert (two.low, two.value, two.high) == (one.low, one.value, one.high)


def test_a_job_saved_before_hosts_were_known_is_started_by_todays(tmp_path: Path) -> None:
    job = job_from_recording(read_recording(GOLDEN), total_steps=1000)
    assert job.work is not None
    for once_s in (11e-6, 65e-6):
        old = replace(job, work=replace(job.work, call_s=once_s))
        write_job(old, tmp_path / "job.json")
        found = read_job(tmp_path / "job.json").work
        assert found is not None
        assert found.call_s == job.work.call_s


@pytest.mark.parametrize(("workers", "delayed"), [(2, 0.0), (2, 0.6)])
def test_neighbours_of_the_laptop_are_no_input_of_the_gpu(workers: int, delayed: float) -> None:
    """Loaders that waited for a core are not slow; those that stood still are."""
    seen = read_recording(GOLDEN)
    assert seen.step_time is not None
    assert seen.loading is not None
    assert seen.host.cpu_limit == 2
    first = replace(seen.readings[0], t_s=100.0, cpu_s=0.0, run_delay_s=0.0)
    last = replace(first, t_s=110.0, cpu_s=13.0, run_delay_s=10.0 * delayed)
    loading = replace(
        seen.loading, workers=workers, wait_s=0.5 * seen.step_time.corrected_s,
        cpu_s_per_sample=1e-9,
    )  # fmt: skip
    job = job_from_recording(
        replace(seen, readings=(first, last), loading=loading), total_steps=1000
    )
    assert (job.feed.idle_s_per_sample > 0) == (delayed == 0.0)
