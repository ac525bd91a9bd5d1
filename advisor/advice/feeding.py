"""The feed of a job: loader processes, their start, data on slow disks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from advisor.advice.edits import faster_by
from advisor.advice.facts import Facts, source
from advisor.advice.record import Advice, How
from advisor.advice.script import SourceScript, argument, has_argument
from advisor.collectors.recording import Recording
from advisor.jobs.job import Job

# Shares of a step from which waiting for data is worth a change.
_INPUT_BOUND: Final = 0.05
_WORKERS: Final = 4
# What may stand at the end of an epoch beside the start of loader processes.
_VALIDATES: Final = ("no_grad", "inference_mode", "validation_step", ".eval()", "evaluate(")
# Reading at this share of what the disk was measured to give, or faults of so many pages a
# second: the wait is for the disk.
_DISK_SHARE: Final = 0.5
_FAULTS_PER_S: Final = 100.0


def _workers(facts: Facts) -> Iterator[Advice | None]:
    job = facts.job
    share = facts.now.shares.get("input", 0.0)
    if share < _INPUT_BOUND:
        return
    workers = max(_WORKERS, 2 * job.feed.workers)
    if facts.is_here:
        workers = min(workers, _spare_cores(facts))
        if workers <= job.feed.workers:
            return
    yield facts.priced(
        _fed_by(facts, workers),
        name="loader-workers",
        change=f"Load with DataLoader(num_workers={workers}).",
        evidence="measured",
        rests_on=f"{share:.0%} of the step waits for data; {job.feed.workers} loader processes "
        "were recorded",
        condition="While cores are left over; each process holds the dataset object again.",
        how=How(kind="lines", text=_loader_lines(facts, num_workers=str(workers))),
    )


def _spare_cores(facts: Facts) -> int:
    seen = facts.job.measured
    if seen is None:
        return 0
    busy = (seen.threads or 1) * seen.processes
    return int(seen.host.cpu_limit - busy) + facts.job.feed.workers


def _fed_by(facts: Facts, workers: int) -> Job:
    """Return the job with so many loader processes; here they load beside the step."""
    job = facts.job
    fed = replace(job, feed=replace(job.feed, workers=workers))
    if not facts.is_here or job.measured is None or job.feed.cpu_s_per_sample is None:
        return fed
    each_s = job.feed.cpu_s_per_sample + job.feed.idle_s_per_sample
    load_s = each_s * job.recorded_batch / workers
    wait_s = max(load_s - (job.measured.step_s - job.feed.wait_s), 0.0)
    wait_s = min(wait_s, job.feed.wait_s)
    shorter = faster_by(fed, job.feed.wait_s - wait_s)
    return replace(shorter, feed=replace(shorter.feed, wait_s=wait_s))


def _persistent(facts: Facts) -> Iterator[Advice | None]:
    """Offer to keep loader processes where every epoch starts them anew."""
    job, recording = facts.job, facts.recording
    script = SourceScript.of(recording)
    if script is None or job.feed.workers == 0 or job.epochs < 2 or not job.epoch_end_steps:
        return
    loaders = [
        call for call in script.named("DataLoader")
        if (has_argument(call, "num_workers") and argument(call, "num_workers") != 0)
    ]  # fmt: skip
    if len(loaders) != 1 or has_argument(loaders[0], "persistent_workers"):
        return
    if script.mentions(*_VALIDATES):
        return  # how much of the end of an epoch is the loader's was not seen
    ends = job.epochs * job.epoch_end_steps / job.paid_steps
    yield facts.priced(
        replace(job, epoch_end_steps=0.0),
        name="persistent-workers",
        change="Keep the loader's processes between epochs: persistent_workers=True.",
        evidence="measured",
        rests_on=f"between epochs the step stands still for {ends:.1%} of the job, and the script "
        "validates nothing there",
        condition="With num_workers above 0; the processes keep their memory.",
        how=How(kind="lines", text=script.with_arguments(loaders[0], persistent_workers="True")),
    )


def _in_memory(facts: Facts) -> Iterator[Advice | None]:
    """Offer to keep the dataset in memory where the loop waits for the disk."""
    job, recording = facts.job, facts.recording
    if recording is None or job.measured is None or job.feed.sample_bytes is None:
        return
    share = job.feed.wait_s / job.measured.step_s
    reading = _reads_disk(recording)
    size = job.feed.sample_bytes * (job.feed.dataset_samples or 0)
    room = job.measured.host.memory_limit_bytes - job.peak_rss_bytes
    if share < _INPUT_BOUND or not reading or not 0 < size < room:
        return
    feed = replace(job.feed, wait_s=0.0, cpu_s_per_sample=None, idle_s_per_sample=0.0)
    cached = replace(job, feed=feed)
    yield facts.priced(
        faster_by(cached, job.feed.wait_s),
        name="dataset-in-memory",
        change="Copy the dataset to memory (or a local SSD) before training.",
        evidence="measured",
        rests_on=f"{share:.0%} of the step waits for data, {reading}; all samples as tensors are "
        f"{size / 2**30:.3g} GiB",
        condition="For several epochs over data that fits; the first one still reads it.",
        how=How(kind="flag", text="cp -r DATA /dev/shm/  # and pass that folder to the script"),
    )


def _reads_disk(recording: Recording) -> str:
    """Say how the disk is read while the job trains; empty where it hardly is."""
    seen = recording.readings
    if len(seen) < 2 or seen[-1].t_s <= seen[0].t_s:
        return ""
    # From the middle on: the start reads programs.
    half = seen[len(seen) // 2]
    span = seen[-1].t_s - half.t_s
    if span <= 0:
        return ""
    rate = (seen[-1].disk_read_bytes - half.disk_read_bytes) / span
    faults = (seen[-1].major_faults - half.major_faults) / span
    benchmark = recording.host.benchmark
    most = None if benchmark is None else benchmark.disk_read_bytes_per_s
    if faults > _FAULTS_PER_S or (most and rate > _DISK_SHARE * most):
        return f"while {rate / 1e6:.3g} MB/s are read from disk ({faults:.0f} faults a second)"
    return ""


def _loader_lines(facts: Facts, **given: str) -> str:
    """Return the change of the only loader of the script, or of any."""
    script = SourceScript.of(facts.recording)
    calls = () if script is None else script.named("DataLoader")
    if script is not None and len(calls) == 1:
        return script.with_arguments(calls[0], **given)
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"DataLoader(..., {words})"


advise: Final = source("feeding", _workers, _persistent, _in_memory)
