"""The use of machines by a job: threads, cores, devices, prices, layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from advisor.advice.facts import Facts, source
from advisor.advice.record import Advice, How
from advisor.advice.rightsizing import MOST_CONTENTION
from advisor.advice.software import MODEL
from advisor.collectors.recording import Recording
from advisor.jobs.job import Job
from advisor.planners.layouts.grid import SearchSpace

_CALL: Final = "torch.set_num_threads"
# Of a core: what a system's own processes take on a machine that nobody else uses.
_NEGLIGIBLE: Final = 0.25


def _threads(facts: Facts) -> Iterator[Advice | None]:
    """Offer all cores where the script or its environment keeps the framework to fewer threads."""
    job = facts.job
    limits, seen = job.limits, job.measured
    if limits.threads is None or facts.has_accelerators or seen is None:
        return
    cores = _cores_there(facts)
    each = int(cores // max(seen.processes, 1))
    if each <= limits.threads:
        return
    # What is left of the cores while loader processes work is what the threads have.
    left = cores / max(seen.processes, 1) - _loading_cores(job)
    if left <= limits.threads:
        return
    lifted = replace(limits, threads=None, threads_source="", cores=left * seen.processes)
    how = How(kind="flag", text=f"OMP_NUM_THREADS={each}")
    if limits.threads_source == _CALL:
        how = How(kind="lines", text=f"torch.set_num_threads({each})")
    yield facts.priced(
        replace(job, limits=lifted),
        name="threads",
        change=f"Compute with {each} threads in place of {limits.threads} "
        f"({limits.threads_source}).",
        rests_on=f"{MODEL}, and what this host's cores do together",
        condition="Where the cores are the job's own; small operators gain little.",
        how=how,
    )


def _loading_cores(job: Job) -> float:
    """Return how many cores the loader processes of one rank keep busy [cores]."""
    feed, seen = job.feed, job.measured
    if not feed.workers or feed.cpu_s_per_sample is None or seen is None:
        return 0.0
    busy = feed.cpu_s_per_sample * job.recorded_batch / max(seen.step_s, 1e-9)
    return min(busy, float(feed.workers))


def _cores(facts: Facts) -> Iterator[Advice | None]:
    limits = facts.job.limits
    if limits.cores is None or facts.has_accelerators or _cores_there(facts) <= limits.cores:
        return
    yield facts.priced(
        replace(facts.job, limits=replace(limits, cores=None, cores_source="")),
        name="cores",
        change=f"Let it use all cores: {limits.cores_source} keeps it to {limits.cores:g}.",
        rests_on=MODEL,
        condition="Where nobody else is meant to have the others.",
        how=How(kind="flag", text="taskset -c 0-$(($(nproc --all) - 1)) COMMAND"),
    )


def _cores_there(facts: Facts) -> float:
    """Return the virtual CPUs of one of the machines it is judged on.

    On this machine those that others kept busy while it was recorded are not there: threads that
    wait for a core hold all others up at every barrier.
    """
    offer, _ = facts.now.configuration.parts[0]
    seen = facts.job.measured
    if not facts.is_here or seen is None:
        return float(offer.vcpus)
    recording = facts.recording
    others = 0.0 if recording is None else others_cores(recording)
    return seen.host.cpu_limit - max(others - _NEGLIGIBLE, 0.0)


def others_cores(recording: Recording) -> float:
    """Return how many cores other processes kept busy while a job was recorded [cores].

    The machine's processor time is read now and then: between the first and the last time that it
    was, less the recorded processes' own. Where it was not read, what the job waited for a core.
    """
    readings = recording.readings
    fresh = [
        one for one, before in zip(readings[1:], readings, strict=False)
        if one.machine_cpu_s is not None and one.machine_cpu_s != before.machine_cpu_s
    ]  # fmt: skip
    waiting = recording.contention / max(1.0 - recording.contention, 1e-9)
    if len(fresh) < 2 or fresh[-1].t_s <= fresh[0].t_s:
        return waiting
    first, last = fresh[0], fresh[-1]
    busy_s = (last.machine_cpu_s or 0.0) - (first.machine_cpu_s or 0.0)
    found = (busy_s - (last.cpu_s - first.cpu_s)) / (last.t_s - first.t_s)
    return max(found, waiting if recording.contention > MOST_CONTENTION else 0.0)


def _spot(facts: Facts) -> Iterator[Advice | None]:
    offer, _ = facts.now.configuration.parts[0]
    if offer.pricing != "on-demand" or not facts.constraints.saves_checkpoints:
        return
    yield facts.priced(
        facts.job,
        pricing="spot",
        name="spot",
        change="--spot",
        evidence="table",
        rests_on="replays of recorded availability at the spot price, with the published rate of "
        "interruption (advisor simulate spot)",
        condition="The job must save checkpoints and go on from the last one by itself.",
        how=How(kind="flag", text="--spot"),
    )


def _layout(facts: Facts) -> Iterator[Advice | None]:
    """Offer the best layout where the user has fixed another."""
    space = facts.constraints.space
    fixed = {} if space is None else space.fixed
    if not fixed or facts.job.work is None:
        return
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
    yield facts.priced(
        facts.job,
        space=SearchSpace(),
        name="layout",
        change=f"Leave the layout open: {flags} rules out a better one.",
        rests_on=f"{MODEL}, in the best of all layouts",
        condition="Where the script can be launched so (advisor plan prints how).",
        how=How(kind="flag", text=f"leave out {flags}"),
    )


def _all_devices(facts: Facts) -> Iterator[Advice | None]:
    """Offer the other accelerators of this machine where only some of them train."""
    job, recording = facts.job, facts.recording
    if recording is None or job.measured is None or not facts.is_here:
        return
    devices, used = len(recording.host.gpus), job.measured.processes
    if not job.measured.device.startswith("cuda") or devices <= used:
        return
    yield facts.priced(
        job,
        devices=devices,
        name="all-devices",
        change=f"Train on all {devices} accelerators of this machine: {devices - used} are idle.",
        rests_on=f"{MODEL}, in the best layout over {devices} devices",
        condition="Nobody else uses them; the script needs DDP or FSDP (advisor plan prints it).",
        how=How(kind="flag", text=f"torchrun --standalone --nproc-per-node={devices} SCRIPT"),
    )


advise: Final = source(
    "machines", _threads, _cores, _spot, _layout, _all_devices, needs_work=False
)
