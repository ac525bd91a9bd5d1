"""The arithmetic of the model: precision, compilation, attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from advisor.advice.facts import Advice, Cut, Facts, How, cut_of, faster_by, saved, source, without
from advisor.advice.script import SourceScript, argument, has_argument
from advisor.ask import JobSpec, SetupRequest
from advisor.collectors.format import Columns, rows_of
from advisor.errors import AdvisorError
from advisor.jobs import Job, job_from_spec
from advisor.machines import accelerator_devices, host_device
from advisor.planners.core import Operator, PlanningError, Precision, select
from advisor.planners.layouts import SearchSpace
from advisor.planners.step import is_of_wide_groups, runs_as
from advisor.planners.systems import NoiseScale
from advisor.quantities import QUANTILES, digits, percent_text, seconds_text

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
# How many times as long convolutions in groups of many channels take in it: RegNetV, and RepVGG of
# four groups on an RTX 3090 (timm's benchmark, ``datasets/measurements/recorded``).
_WIDE_GROUPS: Final = 3.3
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
        job_from_spec(JobSpec(), SetupRequest(kernels="compiled"), job=facts.job),
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
    flop = float(work.operators.flop.sum())
    convolved = float(work.operators.flop[np.isin(work.operators.kind, _CONVOLUTIONS)].sum())
    if work.precision not in ("bf16", "fp16") or not facts.has_accelerators or steps is None:
        return
    if script is None or script.mentions("channels_last") or convolved < 0.5 * flop:
        return
    computing = now.shares.get("compute", 0.0) + now.shares.get("memory", 0.0)
    share = computing * steps.time_h / now.training_time_h.value
    deep = facts.recording.deep_step if facts.recording else None
    slower = _of_wide_groups(deep.operators) if deep else 0.0
    usual, least, most = (
        share * (1.0 - (1.0 - slower) / gain - slower * _WIDE_GROUPS) for gain in _CHANNELS_LAST
    )
    if least <= 0.0:
        return
    sd = math.log(most / least) / (2.0 * QUANTILES[0.9])
    yield Advice(
        name="channels-last",
        change="Keep images and weights in channels-last order, as tensor cores take them.",
        time_saved_h=saved(now.training_time_h, 1.0 - usual, sd),
        cost_saved_usd=saved(now.cost_usd, 1.0 - usual, sd),
        time_factor=1.0 - usual,
        cost_factor=1.0 - usual,
        evidence="table",
        rests_on="ResNet-50 in 16 bits on a V100: 22 % faster, other networks 8 to 35 % "
        "(PyTorch's "
        f"tutorial on memory formats); {percent_text(share)} of the job computes",
        condition="Convolutional networks in 16 bits.",
        how=How(
            kind="lines",
            text="model = model.to(memory_format=torch.channels_last)\n"
            "images = images.to(memory_format=torch.channels_last)",
        ),
    )


def _of_wide_groups(operators: Columns) -> float:
    """Return the share of the operations that are convolutions in groups of many channels.

    By the backward pass, where operands tell them from transposed ones.
    """
    rows = rows_of(operators, "phase", "flop", "shapes")
    backward = [(flop, shapes) for phase, flop, shapes in rows if phase == "backward"]
    wide = sum(flop for flop, shapes in backward if is_of_wide_groups(shapes))
    return float(wide / max(sum(flop for flop, _ in backward), 1.0))


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
            kind="lines", text="y = F.scaled_dot_product_attention(q, k, v, is_causal=...)"
        ),
    }
    if job.measured is None and not job.is_rehearsed:
        flash = job_from_spec(JobSpec(), SetupRequest(attention="flash"), job=job)
        yield facts.priced(flash, rests_on=MODEL, **usual)  # type: ignore[arg-type]
        return
    cut = cut_of(facts, _is_of_scores)
    if cut is None or work.setup.has_adapters:
        return
    yield facts.priced(
        without(job, cut),
        evidence="measured",
        rests_on=f"softmax, mask and dropout of the scores: {percent_text(cut.share, 1)} of "
        "the recorded step; "
        "the products stay",
        **usual,  # type: ignore[arg-type]
    )


def _is_of_scores(name: str, _: str, shapes: str) -> bool:
    """Whether an operator reads attention's scores: as PyTorch's own softmax of a product."""
    return name in _SCORES and shapes.count("x") >= 3


# A loop over time steps calls an operator more than so many times as often as there are modules.
_LOOPED: Final = 4


def _fast_kernels(facts: Facts) -> Iterator[Advice | None]:
    """Offer the kernels that a rehearsed script went without, in place of a loop over time steps.

    A kernel is priced as one pass over all that the loop reads and writes, and two backward: it
    keeps the state on chip, so that it takes less.
    """
    job, work, recording = facts.job, facts.job.work, facts.recording
    if recording is None or work is None or not recording.fallbacks or not job.is_rehearsed:
        return
    calls = _LOOPED * max(len(work.layers), 1)
    made = work.operators
    looped = ~made.is_update & (made.count > calls)
    forward = [
        replace(one, count=1.0, listed=None)
        for one in select(made, looped & (made.phase == "forward"))
    ]
    kernels = [
        *forward,
        *(replace(one, phase="backward", flop=2 * one.flop, bytes=2 * one.bytes)
          for one in forward),
    ]  # fmt: skip
    if not kernels:
        return
    share = float(made.bytes[looped].sum() / made.bytes.sum())
    names = " ".join(recording.fallbacks)
    yield facts.priced(
        replace(job, work=replace(work, operators=made.keeping(~looped, *kernels)), fallback=""),
        name="fast-kernels",
        change=f"Install {names} on the rented machine (no more than this).",
        rests_on=f"{percent_text(share)} of the traced bytes are those of a loop over time steps, "
        "which a kernel passes over once, and twice backward",
        condition="Where the library then takes its kernels: the first real step shows it.",
        how=How(kind="flag", text=f"pip install {names}"),
    )


def _in(facts: Facts, precision: Precision) -> Job:
    return job_from_spec(JobSpec(precision=precision), job=facts.job)


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


advise_software: Final = source(
    "software",
    _half_precision,
    _full_precision,
    _tf32,
    _compiled,
    _channels_last,
    _fused_attention,
    _fast_kernels,
)


# The samples of a step: the batch, passes that could be one, gradients that are sent.


def _larger(facts: Facts) -> Iterator[Advice | None]:
    """Offer twice the batch; where gradients were seen, with the samples that it needs more."""
    job, twice = facts.job, 2 * facts.job.global_batch
    changed = job_from_spec(JobSpec(batch=twice), job=job)
    rests_on = f"{MODEL}, for as many samples as now"
    condition = (
        "Below the critical batch: the gradient noise scale is unknown, since one gradient norm "
        "a step was seen; profile with --workers 2 to know it. Tune the learning rate again."
    )
    if job.noise is not None:
        more = job.noise.more_samples(job.global_batch, twice)
        steps, epochs = changed.total_steps * more, changed.epochs * more
        changed = replace(changed, total_steps=steps, epochs=epochs)
        rests_on = (
            f"{MODEL}; {percent_text(more - 1)} more samples by the gradient noise scale of "
            f"{_scale(job.noise)} ({job.noise.steps} recorded steps)"
        )
        condition = (
            "The noise scale is that of the recorded steps and grows while a model trains; tune "
            "the learning rate again."
        )
    yield facts.priced(
        changed,
        name="batch",
        change=f"--batch {twice}, with the learning rate tuned again.",
        rests_on=rests_on,
        condition=condition,
        how=How(kind="flag", text=f"--batch {twice}"),
        is_model_kept=False,
    )


def _scale(noise: NoiseScale) -> str:
    end = "no upper end" if noise.high is None else digits(noise.high)
    return f"{digits(noise.samples)} samples ({digits(noise.low)} to {end})"


def _one_pass(facts: Facts) -> Iterator[Advice | None]:
    """Offer one pass over all samples of a step where they are accumulated over several."""
    recording, space = facts.recording, facts.constraints.space or SearchSpace()
    deep = None if recording is None else recording.deep_step
    if deep is None or deep.micro_batches < 2 or space.accumulation_steps is not None:
        return
    if facts.now.layout.accumulation_steps < 2 or recording is None:
        return
    if recording.accumulation_steps != deep.micro_batches:
        return  # several losses of each micro-batch
    yield facts.priced(
        facts.job,
        space=replace(space, accumulation_steps=1),
        name="one-pass",
        change=f"Do all {deep.samples} samples of a step in one pass: do not accumulate over "
        f"{deep.micro_batches}.",
        rests_on=f"{MODEL}: what a pass takes whatever its size is paid once",
        condition="The activations of all samples must fit into memory; batch normalisation sees "
        "other batches.",
        how=How(
            kind="lines",
            text=f"batch_size = {deep.samples // max(recording.world_size, 1)}\n"
            "gradient_accumulation_steps = 1",
        ),
    )


def _no_sync(facts: Facts) -> Iterator[Advice | None]:
    """Offer ``no_sync`` where ranks exchange gradients in every pass of an accumulated step."""
    job, recording = facts.job, facts.recording
    if recording is None or recording.communication is None or job.measured is None:
        return
    passes, seen = recording.accumulation_steps, job.measured
    sent = recording.communication.get("payload_bytes_per_step", 0.0)
    assert job.work is not None
    if passes < 2 or seen.exchange_s <= 0 or sent < 1.5 * job.work.gradient_bytes:
        return
    spared = seen.exchange_s * (1.0 - 1.0 / passes)
    yield facts.priced(
        replace(job, measured=replace(seen, step_s=seen.step_s - spared,
                                      exchange_s=seen.exchange_s - spared)),
        name="no-sync",
        change=f"Exchange gradients once a step, not in each of {passes} passes.",
        evidence="measured",
        rests_on=f"{digits(sent / 1e6)} MB sent a step for gradients of "
        f"{digits(job.work.gradient_bytes / 1e6)} MB; that took {seconds_text(seen.exchange_s)}",
        condition="Where every pass but the last is wrapped.",
        how=How(kind="lines", text="with model.no_sync():  # for all passes but the last"),
    )  # fmt: skip


def _buckets(facts: Facts) -> Iterator[Advice | None]:
    """Offer smaller buckets where all gradients wait for the end of the backward pass in one."""
    job, recording = facts.job, facts.recording
    told = None if recording is None else recording.communication
    if not told or job.measured is None or job.work is None:
        return
    buckets, cap = told.get("num_buckets_reduced", 0), told.get("bucket_cap_bytes", 0.0)
    exposed_ns = told.get("avg_backward_comm_time", 0) - told.get(
        "avg_backward_compute_comm_overlap_time", 0
    )
    size = job.work.gradient_bytes
    if buckets != 1 or exposed_ns <= 0 or size < 4e6 or size > cap:
        return
    wanted, exposed_s = 4, 1e-9 * exposed_ns
    yield facts.priced(
        faster_by(job, exposed_s * (1.0 - 1.0 / wanted)),
        name="gradient-buckets",
        change=f"Send gradients in buckets of {digits(size / wanted / 2**20)} MB while others are "
        "still computed.",
        rests_on=f"one bucket of {digits(size / 2**20)} MB: {seconds_text(exposed_s)} of its "
        "exchange "
        "are behind the backward pass; of n buckets the last alone is (Li et al., VLDB 2020)",
        condition="Large messages: below about 1 MB latency eats the gain.",
        how=How(
            kind="lines", text=f"DDP(model, bucket_cap_mb={max(size / wanted / 2**20, 1):.0f})"
        ),
    )


def _gradient_view(facts: Facts) -> Iterator[Advice | None]:
    """Offer gradients that are views of the buckets, where they are copied into them."""
    job, recording = facts.job, facts.recording
    told = None if recording is None else recording.communication
    if not told or job.measured is None or job.work is None or recording is None:
        return
    if told.get("gradient_as_bucket_view") != 0:
        return
    device = host_device(job.measured.host, job.measured.threads, job.measured.device)
    if device is None:
        return
    moved = 4.0 * job.work.gradient_bytes  # read and written, into the bucket and out of it
    script = SourceScript.of(recording)
    calls = () if script is None else script.named("DDP", "DistributedDataParallel")
    text = "DDP(model, gradient_as_bucket_view=True)"
    if script is not None and len(calls) == 1 and not has_argument(calls[0], "static_graph"):
        text = script.with_arguments(calls[0], gradient_as_bucket_view="True")
    yield facts.priced(
        faster_by(job, moved / device.memory_bytes_per_s),
        name="gradient-view",
        change="Let DDP's gradients be views of its buckets: gradient_as_bucket_view=True.",
        rests_on=f"{digits(moved / 1e6)} MB a step are not copied, at "
        f"{digits(device.memory_bytes_per_s / 1e9)} GB/s",
        condition="Unless gradients are detached in place; it saves their memory too.",
        how=How(kind="lines", text=text),
    )


advise_batches: Final = source("batches", _larger, _one_pass, _no_sync, _buckets, _gradient_view)


# Models that were described, not run: what of the training software could be chosen otherwise.


_MODEL: Final = "the device model, asked about the described model in other software"
# Training from scratch takes about 20 tokens a parameter (Hoffmann et al., 2022); with fewer
# tokens than parameters a model is being tuned.
_TUNED_BELOW: Final = 1.0
_RANK: Final = 16

# Name, what is chosen, the change, the condition, the flag, whether the model is kept.
_CURES: Final[tuple[tuple[str, dict[str, Any], str, str, str, bool], ...]] = (
    ("fused-kernels", {"kernels": "fused"},
     "Use fused kernels for norms, activations and losses (Liger, Megatron).",
     "Where kernels exist for the model's family.", "--kernels fused", True),
    ("bf16-weights", {"weights": "bf16"},
     "Keep weights, gradients and moments in bf16.",
     "With stochastic rounding, or small learning rates lose updates.", "--weights bf16", False),
    ("adafactor", {"optimizer": "adafactor"},
     "Use Adafactor: a row and a column of state a matrix.",
     "Its learning rate is tuned anew.", "--optimizer adafactor", False),
    ("overlap", {"overlaps": True},
     "Reduce gradients behind the backward pass.",
     "DDP and FSDP do so by default.", "--overlap", True),
)  # fmt: skip
_TUNING: Final[tuple[tuple[str, dict[str, Any], str, str, str, bool], ...]] = (
    ("lora", {"adapter_rank": _RANK},
     f"Train low-rank adapters of rank {_RANK} (LoRA) in place of all weights.",
     "For tuning; compare with full tuning on your own task.", f"--lora {_RANK}", False),
    ("qlora", {"adapter_rank": _RANK, "base_bits": 4},
     f"Train adapters of rank {_RANK} beside weights in 4 bits (QLoRA).",
     "For tuning, where memory decides: products are slower.", f"--lora {_RANK} --base-bits 4",
     False),
    ("freeze", {"frozen_fraction": 0.5},
     "Freeze the first half of the layers.",
     "For tuning on data like that of the first training.", "--frozen 50%", False),
)  # fmt: skip


def _other_software(facts: Facts) -> Iterator[Advice | None]:
    """Offer a described transformer other training software."""
    job, work = facts.job, facts.job.work
    if work is None or work.transformer is None or job.measured is not None:
        return
    tokens = job.total_steps * job.global_batch * work.transformer.sequence
    is_tuned = tokens < _TUNED_BELOW * work.parameters
    for name, chosen, change, condition, flag, is_kept in _CURES + (_TUNING if is_tuned else ()):
        if all(getattr(work.setup, of) == value for of, value in chosen.items()) or (
            is_tuned and work.setup.has_adapters
        ):
            continue
        try:
            changed = job_from_spec(JobSpec(), SetupRequest(**chosen), job=job)
        except (AdvisorError, PlanningError):
            continue  # contradicts what is chosen already
        yield facts.priced(
            changed, name=name, change=change, rests_on=_MODEL,
            condition=condition, how=How(kind="flag", text=flag), is_model_kept=is_kept,
        )  # fmt: skip


advise_described: Final = source("described", _other_software)


# The optimizer's update: fused kernels, fewer bytes of state, gradients that are dropped.


# Fused updates of PyTorch (torch.optim, ``fused=``), and the fp32 numbers of a parameter that one
# pass reads and writes: weight twice, gradient once, each moment twice.
_FUSED: Final = {"Adam": 7.0, "AdamW": 7.0, "SGD": 5.0, "Adagrad": 5.0}
# What a fused update costs beside its pass over memory, and for each tensor: Adam's with 4 to 100
# tensors of 1,000 numbers, one thread of an AMD EPYC (lab/experiments/eager_calls.py, 2026-11-22).
# [s]
_FUSED_CALL_S: Final = 26e-6
_FUSED_TENSOR_S: Final = 3.9e-6
# Numbers changed in place over those copied by the benchmark, whose destination is read first.
_IN_PLACE: Final = 1.5
# Of what the recorded update ran in: a kernel of its own, or over lists of tensors.
_KERNELS: Final = ("aten::_fused_", "fused_")
_ZEROS: Final = ("aten::zero_", "aten::_foreach_zero_")


def _fused(facts: Facts) -> Iterator[Advice | None]:
    """Offer ``fused=True`` where the update runs operator by operator, as it was recorded."""
    job, recording = facts.job, facts.recording
    if recording is None or recording.deep_step is None or job.measured is None:
        return
    if facts.has_accelerators and recording.deep_step.device == "cpu":
        return  # on accelerators PyTorch updates lists of tensors by itself
    names = set(recording.optimizers)
    if not names or not names <= set(_FUSED) or job.work is None:
        return
    cut = cut_of(facts, _is_update)
    if cut is None or any(name.startswith(_KERNELS) for name, _ in cut.calls):
        return
    cut = _as_timed(cut, recording.deep_step.update_s, job.measured.step_s)
    tensors = max(cut.calls.values())  # of what it calls most: once a tensor, or twice
    update = moved_once(
        job.work.trainable_parameters, max(_FUSED[name] for name in names), tensors
    )
    device = host_device(job.measured.host, job.measured.threads, job.measured.device)
    if device is None:
        return
    instead_s = update.bytes / (_IN_PLACE * device.memory_bytes_per_s)
    instead_s += _FUSED_CALL_S + tensors * _FUSED_TENSOR_S
    yield facts.priced(
        without(job, cut, instead=(update,), instead_s=min(instead_s, cut.seconds)),
        name="fused-optimizer",
        change=f"Update the parameters in one kernel: {sorted(names)[0]}(..., fused=True).",
        evidence="measured",
        rests_on=f"the update took {percent_text(cut.share, 1)} of the recorded step in "
        f"{sum(cut.calls.values()):,} operators; fused it moves "
        f"{digits(update.bytes / 1e6)} MB once",
        condition="Parameters of floating point on a CPU or GPU; not beside foreach=True.",
        how=How(kind="lines", text=_fused_lines(facts, names)),
    )


def _as_timed(cut: Cut, update_s: float | None, step_s: float) -> Cut:
    """Return the update with the time that it took in ordinary steps, where that was taken.

    Its operators alone are less: between them PyTorch goes through the parameters in Python.
    """
    if update_s is None or step_s <= 0:
        return cut
    return replace(cut, seconds=min(update_s, step_s), share=min(update_s / step_s, 1.0))


def _is_update(name: str, phase: str, _: str) -> bool:
    return phase == "optimizer" and not name.startswith("profiler::")


def _fused_lines(facts: Facts, names: set[str]) -> str:
    """Return the change of the script, or of any."""
    script = SourceScript.of(facts.recording)
    calls = () if script is None else script.named(*names)
    if script is None or not calls or any(has_argument(call, "fused") for call in calls):
        return f"torch.optim.{sorted(names)[0]}(..., fused=True)"
    return script.with_arguments(*calls, fused="True")


def _eight_bits(facts: Facts) -> Iterator[Advice | None]:
    """Offer 8-bit moments where Adam's fp32 ones are kept on accelerators."""
    assert facts.job.work is not None
    if facts.job.work.setup.optimizer != "adamw" or not facts.has_accelerators:
        return
    yield facts.priced(
        job_from_spec(JobSpec(), SetupRequest(optimizer="adamw-8bit"), job=facts.job),
        name="8-bit-optimizer",
        change="Keep Adam's moments in 8 bits: bitsandbytes.optim.AdamW8bit.",
        rests_on=f"{MODEL}; 2 bytes of state a parameter in place of 8 (Dettmers et al., 2022)",
        condition="NVIDIA GPUs; embeddings are best kept in 32 bits.",
        how=How(
            kind="lines",
            text="import bitsandbytes\n"
            "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...)",
        ),
        is_model_kept=False,
    )


def _dropped_gradients(facts: Facts) -> Iterator[Advice | None]:
    """Offer to drop gradients where they are written over with zeros every step."""
    script = SourceScript.of(facts.recording)
    if script is None:
        return
    calls = [c for c in script.named("zero_grad") if argument(c, "set_to_none") is False]
    gradients = _gradient_sizes(facts)
    cut = cut_of(
        facts, lambda name, _, shapes: name in _ZEROS and shapes.split(",")[0] in gradients
    )
    if not calls or cut is None:
        return
    yield facts.priced(
        without(facts.job, cut),
        name="drop-gradients",
        change="Drop gradients in place of zeroing them: zero_grad(set_to_none=True).",
        evidence="measured",
        rests_on=f"zeroing gradients took {percent_text(cut.share, 1)} of the recorded step",
        condition="Unless code reads .grad between zero_grad and backward.",
        how=How(kind="lines", text=script.with_arguments(*calls, set_to_none="True")),
    )


def _gradient_sizes(facts: Facts) -> set[str]:
    """Return the sizes of what the update reads, as operators write them."""
    recording = facts.recording
    if recording is None or recording.deep_step is None:
        return set()
    rows = rows_of(recording.deep_step.operators, "phase", "shapes")
    updates = [shapes for phase, shapes in rows if phase == "optimizer"]
    return {size for shapes in updates for size in shapes.split(",") if size}


advise_optimizers: Final = source("optimizers", _fused, _eight_bits, _dropped_gradients)
