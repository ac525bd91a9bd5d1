"""The arithmetic of the model: precision, compilation, attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from advisor.advice.edits import cut_of, without
from advisor.advice.facts import Facts, saved, source
from advisor.advice.record import Advice, How
from advisor.advice.script import SourceScript
from advisor.collectors.recording import OperatorCount
from advisor.domain import QUANTILES
from advisor.jobs.job import Job
from advisor.jobs.loading import job_of
from advisor.machines.devices import accelerator_devices
from advisor.planners.core.nouns import Operator, Precision
from advisor.planners.step.device_rates import runs_as
from advisor.question import JobSpec, SetupRequest

MODEL: Final = "the device model, asked with the recorded operators"
_AUTOCAST: Final = """\
with torch.autocast(device_type="{}", dtype=torch.{}):
    loss = ...  # forward and loss"""
_SCALER: Final = """
scaler.scale(loss).backward()  # scaler = torch.amp.GradScaler("cuda")
scaler.step(optimizer)
scaler.update()"""
_CONVOLUTIONS: Final = ("convolution", "winograd", "depthwise")
# How many times as fast: ResNet-50, and the least and the most of the networks tried, V100, 16
# bits (docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html, 2025-07-09).
_CHANNELS_LAST: Final = (1.22, 1.08, 1.35)
_SCORES: Final = ("aten::_softmax", "aten::_softmax_backward_data")


def _half_precision(facts: Facts) -> Iterator[Advice | None]:
    assert facts.job.work is not None
    if facts.job.work.precision not in ("fp32", "tf32"):
        return
    device = "cuda" if facts.has_accelerators else "cpu"
    half = _half(facts)
    dtype, after = ("float16", _SCALER) if half == "fp16" else ("bfloat16", "")
    yield facts.priced(
        _in(facts, half),
        name="mixed-precision",
        change=f"Train in {half}: torch.autocast(..., dtype=torch.{dtype}).",
        rests_on=MODEL,
        condition="The loss must be watched: some models need fp32 in a layer or two.",
        how=How(kind="lines", text=_AUTOCAST.format(device, dtype) + after),
        is_model_kept=False,
    )


def _half(facts: Facts) -> Precision:
    """Return the 16-bit numbers that the machine computes in: some cards have no bf16."""
    sheet = accelerator_devices()
    name = facts.now.configuration.parts[0][0].accelerator
    is_older = name in sheet and runs_as(sheet[name], "bf16") == "fp16"
    return "fp16" if is_older else "bf16"


def _full_precision(facts: Facts) -> Iterator[Advice | None]:
    """Offer fp32 where the machine does not compute in 16 bits: they are converted."""
    assert facts.job.work is not None
    if facts.job.work.precision not in ("bf16", "fp16") or facts.has_accelerators:
        return
    yield facts.priced(
        _in(facts, "fp32"),
        name="full-precision",
        change="Train in fp32 on processors that convert 16-bit numbers for every product.",
        rests_on=MODEL,
        condition="On a processor without 16-bit products; accelerators keep autocast.",
        how=How(kind="lines", text='enabled = device.type != "cpu"  # for torch.autocast'),
    )


def _tf32(facts: Facts) -> Iterator[Advice | None]:
    assert facts.job.work is not None
    if facts.job.work.precision != "fp32" or not facts.has_accelerators:
        return
    script = SourceScript.of(facts.recording)
    if script is not None and script.mentions("allow_tf32", "set_float32_matmul_precision"):
        return
    yield facts.priced(
        _in(facts, "tf32"),
        name="tf32",
        change='Let fp32 products run in TF32: torch.set_float32_matmul_precision("high").',
        rests_on=MODEL,
        condition="NVIDIA from Ampere on; 10 bits of mantissa in place of 23. bf16 gains more.",
        how=How(kind="lines", text='torch.set_float32_matmul_precision("high")'),
        is_model_kept=False,
    )


def _compiled(facts: Facts) -> Iterator[Advice | None]:
    assert facts.job.work is not None
    work = facts.job.work
    if work.setup.kernels != "eager" or work.transformer is None:
        return
    yield facts.priced(
        job_of(JobSpec(), SetupRequest(kernels="compiled"), job=facts.job),
        name="compile",
        change="Compile the model: torch.compile(model).",
        rests_on=MODEL,
        condition="The first step takes minutes more, and every new shape compiles again.",
        how=How(kind="lines", text="model = torch.compile(model)"),
    )


def _channels_last(facts: Facts) -> Iterator[Advice | None]:
    """Offer the layout of tensor cores where convolutions in 16 bits have PyTorch's usual one."""
    work, now = facts.job.work, facts.now
    script = SourceScript.of(facts.recording)
    steps = now.breakdown.get("steps")
    assert work is not None
    flop = sum(one.flop for one in work.operators)
    convolved = sum(one.flop for one in work.operators if one.kind in _CONVOLUTIONS)
    if work.precision not in ("bf16", "fp16") or not facts.has_accelerators or steps is None:
        return
    if script is None or script.mentions("channels_last") or convolved < 0.5 * flop:
        return
    computing = now.shares.get("compute", 0.0) + now.shares.get("memory", 0.0)
    share = computing * steps.time_h / now.training_time_h.value
    usual, least, most = (share * (1.0 - 1.0 / gain) for gain in _CHANNELS_LAST)
    sd = math.log(most / least) / (2.0 * QUANTILES[0.9])
    yield Advice(
        name="channels-last",
        change="Keep images and weights in channels-last order, as tensor cores take them.",
        time_saved_h=saved(now.training_time_h, 1.0 - usual, sd),
        cost_saved_usd=saved(now.cost_usd, 1.0 - usual, sd),
        time_factor=1.0 - usual,
        cost_factor=1.0 - usual,
        evidence="table",
        rests_on="ResNet-50 in 16 bits on a V100: 22% faster, other networks 8 to 35% (PyTorch's "
        f"tutorial on memory formats); {share:.0%} of the job computes",
        condition="Convolutional networks in 16 bits; some grouped convolutions become slower.",
        how=How(
            kind="lines",
            text="model = model.to(memory_format=torch.channels_last)\n"
            "images = images.to(memory_format=torch.channels_last)",
        ),
    )


def _fused_attention(facts: Facts) -> Iterator[Advice | None]:
    """Offer PyTorch's fused attention where scores are written out, as recorded or described."""
    job, work = facts.job, facts.job.work
    assert work is not None
    if work.setup.attention != "unfused":
        return
    usual = {
        "name": "fused-attention",
        "change": "Compute attention with F.scaled_dot_product_attention: scores stay on chip.",
        "condition": "Where the scores themselves are not needed.",
        "how": How(
            kind="lines",
            text="y = F.scaled_dot_product_attention(q, k, v, is_causal=...)",
        ),
    }
    if job.measured is None:
        flash = job_of(JobSpec(), SetupRequest(attention="flash"), job=job)
        yield facts.priced(flash, rests_on=MODEL, **usual)  # type: ignore[arg-type]
        return
    cut = cut_of(facts, _is_of_scores)
    if cut is None or work.setup.has_adapters:
        return
    yield facts.priced(
        without(job, cut),
        evidence="measured",
        rests_on=f"softmax, mask and dropout of the scores: {cut.share:.1%} of the recorded step; "
        "the products stay",
        **usual,  # type: ignore[arg-type]
    )


def _is_of_scores(one: OperatorCount) -> bool:
    """Whether an operator reads attention's scores: as PyTorch's own softmax of a product."""
    return one.name in _SCORES and one.shapes.count("x") >= 3


def _in(facts: Facts, precision: Precision) -> Job:
    return job_of(JobSpec(precision=precision), job=facts.job)


def moved_once(parameters: float, numbers: float, calls: float) -> Operator:
    """Return one pass over so many fp32 numbers of every parameter, as the optimizer's."""
    size = 4.0 * numbers * parameters
    return Operator(
        name="fused optimizer",
        kind="optimizer",
        phase="optimizer",
        count=max(calls, 1.0),
        flop=8.0 * parameters,
        bytes=size,
        fixed_bytes=size,
    )


advise: Final = source(
    "software",
    _half_precision,
    _full_precision,
    _tf32,
    _compiled,
    _channels_last,
    _fused_attention,
)
