"""The samples of a step: the batch, passes that could be one, gradients that are sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from advisor.advice.edits import faster_by
from advisor.advice.facts import Facts, source
from advisor.advice.record import Advice, How
from advisor.advice.script import SourceScript, has_argument
from advisor.advice.software import MODEL
from advisor.jobs.loading import job_of
from advisor.machines.host import host_device
from advisor.planners.elastic.noise import NoiseScale
from advisor.planners.layouts.grid import SearchSpace
from advisor.question import JobSpec


def _larger(facts: Facts) -> Iterator[Advice | None]:
    """Offer twice the batch; where gradients were seen, with the samples that it needs more."""
    job, twice = facts.job, 2 * facts.job.global_batch
    changed = job_of(JobSpec(batch=twice), job=job)
    rests_on = f"{MODEL}, as many samples as now"
    condition = (
        "Below the critical batch: the gradient noise scale is unknown, since one gradient norm "
        "a step was seen; profile with --workers 2 to know it. Tune the learning rate again."
    )
    if job.noise is not None:
        more = job.noise.more_samples(job.global_batch, twice)
        steps, epochs = changed.total_steps * more, changed.epochs * more
        changed = replace(changed, total_steps=steps, epochs=epochs)
        rests_on = (
            f"{MODEL}; {100 * (more - 1):.2g}% more samples by the gradient noise scale of "
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
    end = "no upper end" if noise.high is None else f"{noise.high:.2g}"
    return f"{noise.samples:.2g} samples ({noise.low:.2g} to {end})"


def _one_pass(facts: Facts) -> Iterator[Advice | None]:
    """Offer one pass over all samples of a step where they are accumulated over several."""
    recording, space = facts.recording, facts.constraints.space or SearchSpace()
    deep = None if recording is None else recording.deep_step
    if deep is None or deep.micro_batches < 2 or space.accumulation_steps is not None:
        return
    if facts.now.layout.accumulation_steps < 2 or recording is None:
        return
    if recording.accumulation_steps != deep.micro_batches:
        return  # several losses of several models, no accumulation
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
        rests_on=f"{sent / 1e6:.3g} MB sent a step for gradients of "
        f"{job.work.gradient_bytes / 1e6:.3g} MB; that took {1e3 * seen.exchange_s:.3g} ms",
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
        change=f"Send gradients in buckets of {size / wanted / 2**20:.3g} MB while others are "
        "still computed.",
        rests_on=f"one bucket of {size / 2**20:.3g} MB: {1e3 * exposed_s:.3g} ms of its exchange "
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
        rests_on=f"{moved / 1e6:.3g} MB a step are not copied, at "
        f"{device.memory_bytes_per_s / 1e9:.3g} GB/s",
        condition="Unless gradients are detached in place; it saves their memory too.",
        how=How(kind="lines", text=text),
    )


advise: Final = source("batches", _larger, _one_pass, _no_sync, _buckets, _gradient_view)
