"""What stands beside computing: the feed of a job, its chores, and data that is used again.

The feed is loader processes, their start, data on slow disks; chores are ends of epochs,
checkpoints and waiting for the device; data that was loaded already is batches that are used
again, or samples that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from advisor.advice.facts import Advice, Facts, cut_of, faster_by, saved, source, without
from advisor.advice.script import SourceScript, argument, has_argument, last_name
from advisor.collectors.format import Recording
from advisor.estimate import checkpoint_s
from advisor.jobs import Job
from advisor.planners import systems
from advisor.planners.core import GIB
from advisor.planners.goodput import expected_completion
from advisor.quantities import QUANTILES, digits

if TYPE_CHECKING:
    from advisor.planners.systems import Feeding

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
    if share < _INPUT_BOUND or job.feed.is_environment:
        return
    twice = 2 * job.feed.workers
    counts = {twice or _WORKERS // 2, max(_WORKERS, twice)}
    if facts.is_here:
        counts = {min(one, _spare_cores(facts)) for one in counts}
    found = [
        facts.priced(
            "loader-workers", _fed_by(facts, workers), workers=workers, share=share,
            text=_loader_lines(facts, num_workers=str(workers)),
        )
        for workers in sorted(counts) if workers > job.feed.workers
    ]  # fmt: skip
    # Processes beside a short step slow it: more of them are not always better.
    yield max(filter(None, found), key=lambda one: one.strength, default=None)


def _spare_cores(facts: Facts) -> int:
    seen = facts.job.measured
    if seen is None:
        return 0
    busy = (seen.threads or 1) * seen.processes
    return int(seen.host.cpu_limit - busy) + facts.job.feed.workers


def _fed_by(facts: Facts, workers: int) -> Job:
    """Return the job with so many loader processes; here they load beside the step."""
    job = facts.job
    work = job.work and replace(job.work, loaders=workers)
    fed = replace(job, work=work, feed=replace(job.feed, workers=workers))
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
    yield facts.priced(
        "persistent-workers", replace(job, epoch_end_steps=0.0),
        ends=job.epochs * job.epoch_end_steps / job.paid_steps,
        text=script.with_arguments(loaders[0], persistent_workers="True"),
    )  # fmt: skip


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
    changed = faster_by(replace(job, feed=feed), job.feed.wait_s)
    yield facts.priced("dataset-in-memory", changed, share=share, reading=reading, size=size)


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
        return f"while {digits(rate / 1e6)} MB/s are read from disk ({faults:.0f} faults a second)"
    return ""


def _loader_lines(facts: Facts, **given: str) -> str:
    """Return the change of the only loader of the script, or of any."""
    script = SourceScript.of(facts.recording)
    calls = () if script is None else script.named("DataLoader")
    if script is not None and len(calls) == 1:
        return script.with_arguments(calls[0], **given)
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"DataLoader(..., {words})"


advise_feeding: Final = source(_workers, _persistent, _in_memory)


# Ends of epochs below this share of the job are not worth doing more seldom.
_ENDS: Final = 0.05
_EVERY: Final = 2
_READS: Final = ("item", "tolist", "numpy", "cpu")
# A quarter either way of a saving that rests on a rate of failures: between the published ones.
_FAILURES_LOG_SD: Final = 0.25


def _ends(facts: Facts) -> Iterator[Advice | None]:
    job = facts.job
    share = job.epochs * job.epoch_end_steps / job.paid_steps
    if job.epochs < 2 * _EVERY or share < _ENDS:
        return
    changed = replace(job, epochs=job.epochs / _EVERY)
    yield facts.priced("validate-less", changed, share=share, effect_log_sd=job.epoch_end_log_sd)


def _checkpoints(facts: Facts) -> Iterator[Advice | None]:
    """Offer the interval that loses least to saves and failures, where the script has another."""
    job, recording = facts.job, facts.recording
    saves = None if recording is None else recording.saves
    step = None if recording is None else recording.step_time
    if saves is None or step is None or saves.count < 2:
        return
    now, seen = facts.now, step.steps + step.warmup_steps
    work_s = now.step_time_s.value * job.paid_steps
    interval_s = now.step_time_s.value * seen / saves.count
    save_s = saves.seconds if facts.is_here else max(checkpoint_s(job), saves.seconds)
    if work_s < 2 * interval_s:
        return
    usual: dict[str, Any] = {
        "devices": now.layout.devices,
        "nodes": sum(count for _, count in now.configuration.parts),
        "checkpoint_s": save_s,
        "restart_s": max(job.startup_s, 1.0),
    }
    own = expected_completion(work_s, checkpoint_interval_s=interval_s, **usual)
    best = expected_completion(work_s, **usual)
    factor = float(best.expected_s[0] / own.expected_s[0])
    wanted = float(best.checkpoint_interval_s[0])
    cost_factor = factor if now.cost_usd.value > 0 else 1.0
    found = facts.advised(
        "checkpoint-interval", factor, cost_factor, _FAILURES_LOG_SD, wanted=wanted,
        interval_s=interval_s, save_s=save_s, seen=seen,
        every=max(round(wanted / now.step_time_s.value), 1),
    )  # fmt: skip
    if not facts.is_here:  # the estimate there saves as seldom as is best
        before = now.training_time_h.scaled(1.0 / factor), now.cost_usd.scaled(1.0 / factor)
        time_h, cost = (saved(one, factor, _FAILURES_LOG_SD) for one in before)
        found = replace(found, time_saved_h=time_h, cost_saved_usd=cost)
    yield found


def _waiting(facts: Facts) -> Iterator[Advice | None]:
    """Offer not to read a number of every step back: the device is waited for each time."""
    script = SourceScript.of(facts.recording)
    if script is None:
        return
    calls = script.each_step(lambda call: last_name(call.func) in _READS and not call.args)
    cut = cut_of(
        facts, lambda name, phase, _: name == "aten::_local_scalar_dense" and phase != "optimizer"
    )
    if not calls or cut is None:
        return
    lines = ", ".join(str(call.lineno) for call in calls)
    yield facts.priced(
        "read-less", without(facts.job, cut), place=f"{script.path.name}:{lines}",
        reads=sum(cut.calls.values()),
    )  # fmt: skip


advise_chores: Final = source(_ends, _checkpoints, _waiting)


# Of the wall time, spent repeating before the job goes on with fresh data: that of our own
# experiment (lab/notes/experiments.md); PerFect's was not published.
REPEATING: Final = 0.7
# Below this share of a step no loader is slower than what it feeds.
_LEAST_WAIT: Final = 0.04
# Of the memory that is left, for samples that are kept.
_OF_MEMORY: Final = 0.8


def _used_again(facts: Facts) -> Iterator[Advice | None]:
    """Offer to use loaded data again where the job is input-bound."""
    fed = _feeding(facts)
    if fed is not None and fed.is_input_bound:
        yield from _repeated(facts, fed)
        yield from _kept(facts)


def _feeding(facts: Facts) -> Feeding | None:
    """Return what feeds the job on the machines it is judged on; None where that is unknown."""
    job, now = facts.job, facts.now
    if (
        job.work is None
        or job.feed.is_environment
        or not (job.feed.cpu_s_per_sample or job.feed.idle_s_per_sample)
    ):
        return None
    step_s, share = now.step_time_s.value, now.shares.get("input", 0.0)
    if not _LEAST_WAIT < share < 1.0:
        return None
    # Beside the step loading takes all of it, in the loop its share.
    batch_s = step_s if job.feed.workers else share * step_s
    return systems.Feeding(
        cpu_s=0.0,
        idle_s=batch_s * max(job.feed.workers, 1),
        compute_s=(1.0 - share) * step_s,
        workers=job.feed.workers,
        cores=1.0,
    )


def _repeated(facts: Facts, fed: Feeding) -> Iterator[Advice | None]:
    """Offer to repeat every batch for most of the time, and to end on fresh data."""
    found = systems.best_echo(fed)
    if found.echo < 2:
        return
    savings = [
        1.0 - _time_factor(fed, found.echo, rho)
        for rho in (systems.RHO, systems.RHO_LOW, systems.RHO_HIGH)
    ]
    spread = (savings[2] - savings[1]) / (2.0 * QUANTILES[facts.now.cost_usd.coverage])
    yield facts.priced(
        "repeat-batches", _echoed(facts, fed, found.echo), echo=found.echo, fed=fed,
        repeating=REPEATING, rho=systems.RHO, low=systems.RHO_LOW, high=systems.RHO_HIGH,
        effect_log_sd=spread / savings[0] if savings[0] > 0 else 0.0,
    )  # fmt: skip


def _rates(fed: Feeding, echo: int) -> tuple[float, float]:
    """Return updates a second, all of them, while repeating and after."""
    return REPEATING / fed.step_s(echo), (1.0 - REPEATING) / fed.step_s()


def _time_factor(fed: Feeding, echo: int, rho: float) -> float:
    spent_s = systems.repeat_then_fresh_s(fed, updates=1.0, echo=echo, share=REPEATING, rho=rho)
    return spent_s / fed.step_s()


def _echoed(facts: Facts, fed: Feeding, echo: int) -> Job:
    """Return the job with more steps, of which fewer load."""
    repeating, fresh = _rates(fed, echo)
    updates = repeating + fresh
    more = updates / (repeating * systems.freshness(echo, systems.RHO) + fresh)
    less = _loading_less(facts, (repeating / echo + fresh) / updates)
    return replace(less, total_steps=less.total_steps * more)


def _loading_less(facts: Facts, share: float) -> Job:
    """Return the job of whose steps a share loads; where it ran, it waits less.

    In the loop a batch's loading is hidden behind one step of an accelerator, however many steps
    the batch serves: steps that load nothing hide nothing.
    """
    feed, seen = facts.job.feed, facts.job.measured
    less = _loading(facts.job, share + (1.0 - share) * _hidden(facts))
    if seen is None:
        return less
    computing_s = seen.step_s - feed.wait_s
    wait_s = share * (seen.step_s if feed.workers and feed.wait_s else feed.wait_s)
    if feed.workers:
        wait_s = max(wait_s - computing_s, 0.0)
    measured = replace(seen, step_s=max(computing_s + wait_s, 1e-9))
    return replace(less, feed=replace(less.feed, wait_s=wait_s), measured=measured)


def _loading(job: Job, factor: float) -> Job:
    """Return the job whose samples take so many times as long to load."""
    cpu_s, idle_s = job.feed.cpu_s_per_sample, factor * job.feed.idle_s_per_sample
    cpu_s = cpu_s and factor * cpu_s
    return replace(job, feed=replace(job.feed, cpu_s_per_sample=cpu_s, idle_s_per_sample=idle_s))


def _hidden(facts: Facts) -> float:
    """Return the share of loading in the loop that runs while an accelerator computes."""
    is_beside = facts.job.feed.workers or facts.is_here
    twice = None if is_beside else facts.ask(_loading(facts.job, 2.0))
    if twice is None:
        return 0.0
    # What is hidden of a step is the same: what is added is all that was loaded.
    both = facts.now, twice
    wait_s, more_s = (one.shares.get("input", 0.0) * one.step_time_s.value for one in both)
    return 1.0 - min(wait_s / max(more_s - wait_s, 1e-12), 1.0)


def _kept(facts: Facts) -> Iterator[Advice | None]:
    """Offer to keep samples that the processor makes anew every epoch."""
    job, feed = facts.job, facts.job.feed
    made_s = feed.cpu_s_per_sample or 0.0
    if feed.sample_bytes is None or not feed.dataset_samples or made_s <= feed.idle_s_per_sample:
        return
    epochs = job.total_steps * job.global_batch / feed.dataset_samples
    size = feed.sample_bytes * feed.dataset_samples
    offer, _ = facts.now.configuration.parts[0]
    room = offer.memory_gib * GIB - job.peak_rss_bytes
    if epochs < 2 or not 0 < size <= _OF_MEMORY * room:
        return
    benchmark = None if job.measured is None else job.measured.host.benchmark
    copied_s = (
        0.0 if benchmark is None else feed.sample_bytes / benchmark.copy_one_core_bytes_per_s
    )
    again = min(copied_s / made_s, 1.0)
    changed = _loading_less(facts, (1.0 + (math.ceil(epochs) - 1.0) * again) / math.ceil(epochs))
    yield facts.priced("keep-samples", changed, made_s=made_s, epochs=epochs, size=size)


advise_data_reuse: Final = source(_used_again)
