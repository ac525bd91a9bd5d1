"""The arithmetic of a step: precision, compilation and attention, its samples, the optimizer.

Of models that were described, not run: what of the training software could be chosen otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from advisor.advice.facts import Advice, Cut, Facts, cure_words, cut_of, faster_by, source, without
from advisor.advice.script import SourceScript, argument, has_argument
from advisor.ask import JobSpec, SetupRequest
from advisor.collectors.format import Columns, rows_of
from advisor.errors import AdvisorError
from advisor.jobs import Job, job_from_spec
from advisor.machines import accelerator_devices, host_device
from advisor.planners.core import Operator, PlanningError, Precision, select
from advisor.planners.layouts import SearchSpace
from advisor.planners.step import is_of_wide_groups, runs_as
from advisor.quantities import QUANTILES, digits

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
    if facts.work.precision not in ("fp32", "tf32"):
        return
    device, half = "cuda" if facts.has_accelerators else "cpu", _half(facts)
    dtype, after = ("float16", _SCALER) if half == "fp16" else ("bfloat16", "")
    yield facts.priced(
        "mixed-precision", _in(facts, half), half=half, dtype=dtype, device=device, after=after
    )


def _half(facts: Facts) -> Precision:
    """Return the 16-bit numbers that the machine computes in: some cards have no bf16."""
    sheet = accelerator_devices()
    name = facts.now.configuration.parts[0][0].accelerator
    is_older = name in sheet and runs_as(sheet[name], "bf16") == "fp16"
    return "fp16" if is_older else "bf16"


def _full_precision(facts: Facts) -> Iterator[Advice | None]:
    """Offer fp32 where the machine does not compute in 16 bits: they are converted."""
    if facts.work.precision in ("bf16", "fp16") and not facts.has_accelerators:
        yield facts.priced("full-precision", _in(facts, "fp32"))


def _tf32(facts: Facts) -> Iterator[Advice | None]:
    if facts.work.precision != "fp32" or not facts.has_accelerators:
        return
    script = SourceScript.of(facts.recording)
    if script is None or not script.mentions("allow_tf32", "set_float32_matmul_precision"):
        yield facts.priced("tf32", _in(facts, "tf32"))


def _compiled(facts: Facts) -> Iterator[Advice | None]:
    if facts.work.setup.kernels == "eager" and facts.work.transformer is not None:
        yield facts.priced("compile", _with(facts, kernels="compiled"))


def _channels_last(facts: Facts) -> Iterator[Advice | None]:
    """Offer the layout of tensor cores where convolutions in 16 bits have PyTorch's usual one."""
    work, now = facts.work, facts.now
    script = SourceScript.of(facts.recording)
    steps = now.breakdown.get("steps")
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
    yield facts.advised("channels-last", 1.0 - usual, 1.0 - usual, sd, share=share)


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
    job, setup = facts.job, facts.work.setup
    if setup.attention != "unfused":
        return
    if job.measured is None and not job.is_rehearsed:
        yield facts.priced("fused-attention", _with(facts, attention="flash"))
        return
    cut = cut_of(facts, _is_of_scores)
    if cut is not None and not setup.has_adapters:
        yield facts.priced("fused-attention (recorded)", without(job, cut), cut=cut)


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
    job, work, recording = facts.job, facts.work, facts.recording
    if recording is None or not recording.fallbacks or not job.is_rehearsed:
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
    changed = replace(work, operators=made.keeping(~looped, *kernels))
    yield facts.priced(
        "fast-kernels", replace(job, work=changed, fallback=""), share=share,
        names=" ".join(recording.fallbacks),
    )  # fmt: skip


def _in(facts: Facts, precision: Precision) -> Job:
    return job_from_spec(JobSpec(precision=precision), job=facts.job)


def _with(facts: Facts, **chosen: Any) -> Job:
    """Return the job with other software."""
    return job_from_spec(JobSpec(), SetupRequest(**chosen), job=facts.job)


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
    _half_precision,
    _full_precision,
    _tf32,
    _compiled,
    _channels_last,
    _fused_attention,
    _fast_kernels,
)


def _larger(facts: Facts) -> Iterator[Advice | None]:
    """Offer twice the batch; where gradients were seen, with the samples that it needs more."""
    job, twice = facts.job, 2 * facts.job.global_batch
    changed = job_from_spec(JobSpec(batch=twice), job=job)
    if job.noise is None:
        yield facts.priced("batch", changed, twice=twice)
        return
    more = job.noise.more_samples(job.global_batch, twice)
    steps, epochs = changed.total_steps * more, changed.epochs * more
    yield facts.priced(
        "batch (noise)", replace(changed, total_steps=steps, epochs=epochs), twice=twice,
        more=more - 1, end="no upper end" if job.noise.high is None else digits(job.noise.high),
    )  # fmt: skip


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
        "one-pass", facts.job, space=replace(space, accumulation_steps=1), deep=deep,
        each=deep.samples // max(recording.world_size, 1),
    )  # fmt: skip


def _no_sync(facts: Facts) -> Iterator[Advice | None]:
    """Offer ``no_sync`` where ranks exchange gradients in every pass of an accumulated step."""
    job, recording = facts.job, facts.recording
    if recording is None or recording.communication is None or job.measured is None:
        return
    passes, seen = recording.accumulation_steps, job.measured
    sent = recording.communication.get("payload_bytes_per_step", 0.0)
    if passes < 2 or seen.exchange_s <= 0 or sent < 1.5 * facts.work.gradient_bytes:
        return
    spared = seen.exchange_s * (1.0 - 1.0 / passes)
    left = replace(seen, step_s=seen.step_s - spared, exchange_s=seen.exchange_s - spared)
    yield facts.priced("no-sync", replace(job, measured=left), passes=passes, sent=sent)


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
        "gradient-buckets", faster_by(job, exposed_s * (1.0 - 1.0 / wanted)), size=size,
        each=size / wanted, exposed_s=exposed_s, cap=max(size / wanted / 2**20, 1),
    )  # fmt: skip


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
    changed = faster_by(job, moved / device.memory_bytes_per_s)
    yield facts.priced("gradient-view", changed, moved=moved, device=device, text=text)


advise_batches: Final = source(_larger, _one_pass, _no_sync, _buckets, _gradient_view)


# Training from scratch takes about 20 tokens a parameter (Hoffmann et al., 2022); with fewer
# tokens than parameters a model is being tuned.
_TUNED_BELOW: Final = 1.0


def _other_software(facts: Facts) -> Iterator[Advice | None]:
    """Offer a described transformer other training software."""
    job, work = facts.job, facts.job.work
    if work is None or work.transformer is None or job.measured is not None:
        return
    tokens = job.total_steps * job.global_batch * work.transformer.sequence
    is_tuned = tokens < _TUNED_BELOW * work.parameters
    for name, words in cure_words().items():
        chosen = words.get("setup")
        if chosen is None or (words.get("is_for_tuning") and not is_tuned):
            continue
        if all(getattr(work.setup, of) == value for of, value in chosen.items()) or (
            is_tuned and work.setup.has_adapters
        ):
            continue
        try:
            changed = _with(facts, **chosen)
        except (AdvisorError, PlanningError):
            continue  # contradicts what is chosen already
        yield facts.priced(name, changed)


advise_described: Final = source(_other_software)


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
    changed = without(job, cut, instead=(update,), instead_s=min(instead_s, cut.seconds))
    yield facts.priced(
        "fused-optimizer", changed, optimizer=sorted(names)[0], cut=cut, update=update,
        calls=sum(cut.calls.values()), text=_fused_lines(facts, names),
    )  # fmt: skip


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
    if facts.work.setup.optimizer == "adamw" and facts.has_accelerators:
        yield facts.priced("8-bit-optimizer", _with(facts, optimizer="adamw-8bit"))


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
    if calls and cut is not None:
        text = script.with_arguments(*calls, set_to_none="True")
        yield facts.priced("drop-gradients", without(facts.job, cut), cut=cut, text=text)


def _gradient_sizes(facts: Facts) -> set[str]:
    """Return the sizes of what the update reads, as operators write them."""
    recording = facts.recording
    if recording is None or recording.deep_step is None:
        return set()
    rows = rows_of(recording.deep_step.operators, "phase", "shapes")
    updates = [shapes for phase, shapes in rows if phase == "optimizer"]
    return {size for shapes in updates for size in shapes.split(",") if size}


advise_optimizers: Final = source(_fused, _eight_bits, _dropped_gradients)
