"""The use of machines by a job: threads, cores, devices, prices, layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.advice import neighbours
from advisor.advice.facts import Advice, Facts, How, saved, source
from advisor.advice.step import MODEL
from advisor.answer import Candidate, Estimate
from advisor.collectors.format import Recording
from advisor.jobs import Job
from advisor.planners.core import GIB, HOUR_S, MIB
from advisor.planners.layouts import SearchSpace
from advisor.quantities import REACH_90, digits, percent_text

if TYPE_CHECKING:
    from advisor.planners.rightsizing import LimitedRun, RecordedUsage, RightSize
    from advisor.planners.systems import Borrowed

# Limits for the job: ones to paste, or a smaller machine of the same family.


FEWEST_READINGS: Final = 20
LIKELY_OOM: Final = 0.05
MOST_CONTENTION: Final = 0.1
_MOST_SLOWER: Final = 1.01
# Both machines are of one model: what it says wrong of one it says wrong of the other too.
_MODEL_SD: Final = 0.1


def advise_rightsizing(facts: Facts) -> Iterable[Advice]:
    """Offer limits where the job was recorded, a smaller machine of the family where it is rented.

    What was recorded elsewhere says nothing of cores; where a GPU is paid for, limits save little.
    """
    recording = facts.recording
    usage = None if recording is None else usage_of(recording)
    if recording is None or usage is None:
        return
    if not facts.is_here:
        yield from _smaller(facts, recording, usage)
    elif not facts.has_accelerators:
        yield from _limits(facts, recording, usage)


def _smaller(facts: Facts, recording: Recording, usage: RecordedUsage) -> Iterator[Advice]:
    """Offer the best of the smaller machines that hold what the job needs."""
    from advisor.planners.rightsizing import memory_limit_bytes

    ((offer, count),) = facts.now.configuration.parts
    needed = memory_limit_bytes(usage, rest_s=_rest_s(facts, usage)) / GIB
    if not offer.memory_gib or needed >= offer.memory_gib:
        return
    now = facts.now
    found = [
        one for one in facts.smaller(facts.job)
        if (one.configuration.parts[0][0].memory_gib or 0.0) >= needed
        and one.cost_usd.value < now.cost_usd.value
    ]  # fmt: skip
    if not found:
        return
    best = min(found, key=lambda one: one.training_time_h.value * one.cost_usd.value)
    other = best.configuration.parts[0][0]
    time_factor = best.training_time_h.value / now.training_time_h.value
    cost_factor = best.cost_usd.value / now.cost_usd.value
    yield Advice(
        name="smaller-machine",
        source="rightsizing",
        change=f"Rent {count} x {other.instance_type} in place of {offer.instance_type}: the job "
        f"needs {digits(needed)} GiB of {offer.memory_gib:g}, and {other.memory_gib:g} are "
        "enough.",
        time_saved_h=saved(now.training_time_h, time_factor, _MODEL_SD),
        cost_saved_usd=saved(now.cost_usd, cost_factor, _MODEL_SD),
        time_factor=time_factor,
        cost_factor=cost_factor,
        evidence="measured",
        rests_on=f"{len(recording.readings)} readings: peak {digits(usage.peak_bytes / GIB)} GiB; "
        "time and price of the smaller machine by the same estimate",
        condition="Memory beyond what was recorded is not in it: a later phase may need more.",
        how=How(kind="flag", text=f"--on {other.provider}:{other.instance_type}"),
        then=best,
    )


# Of a rented machine's memory, what its system keeps to itself. [bytes]
_SYSTEM: Final = 0.5 * GIB
# A real kernel gives up other pages than the oldest, too: under a limit below what was touched, up
# to so many times the pages came back (lab/notes/experiments.md). The law is the least; the middle
# is said.
_MOST_WAITED: Final = 10.0


def advise_borrowing(facts: Facts) -> Iterable[Advice]:
    """Offer a machine that is short of memory, and say what the job pays for what lies elsewhere.

    Beside the rented machine, which holds all of it; ``advisor profile --working-set`` says what
    is touched. Training on accelerators does not wait for the host's pages alone: not answered.
    """
    recording = facts.recording
    if recording is None or facts.is_here or facts.has_accelerators:
        return
    windows = neighbours.windows_of(recording)
    if not windows:
        return
    from advisor.planners import systems

    link = facts.borrow_bytes_per_s
    # Swap on its own solid-state disk; over a network, a page's way to another machine's memory.
    fault_s = systems.FAULT_S["nvme" if link is None else "rdma"]
    held = max(one.resident_bytes for one in windows)
    small = replace(facts.job, peak_rss_bytes=1)
    found = []
    for one in facts.smaller(small):
        memory = (one.configuration.parts[0][0].memory_gib or 0.0) * GIB - _SYSTEM
        if not 0.0 < memory < held:
            continue
        taken = systems.borrow(windows, memory, fault_s=fault_s, bytes_per_s=link or math.inf)
        if taken is not None:
            found.append((one, taken))
    if not found:
        return
    best = min(found, key=lambda pair: _worth(*pair))
    if (
        link is not None
        or _worth(*best) < facts.now.training_time_h.value * facts.now.cost_usd.value
    ):
        yield _borrowing(facts, *best, len(windows))


def _worth(one: Candidate, taken: Borrowed) -> float:
    slower = 1.0 + math.sqrt(_MOST_WAITED) * taken.loss_fraction
    return one.training_time_h.value * slower * one.cost_usd.value * slower


def _borrowing(facts: Facts, one: Candidate, taken: Borrowed, windows: int) -> Advice:
    now, waited = facts.now, math.sqrt(_MOST_WAITED) * taken.loss_fraction
    slower = 1.0 + waited
    (offer, count), link = one.configuration.parts[0], facts.borrow_bytes_per_s
    where = (
        "swapped to its solid-state disk" if link is None
        else f"in other machines' memory, over {digits(link / 1e9)} GB/s"
    )  # fmt: skip
    time_factor = one.training_time_h.value * slower / now.training_time_h.value
    cost_factor = one.cost_usd.value * slower / now.cost_usd.value
    high = _MOST_WAITED * taken.loss_fraction
    error = math.hypot(_MODEL_SD, math.log((1.0 + high) / slower) / REACH_90)
    least = " at least (it touches more in the shortest window)" if taken.is_least else ""
    return Advice(
        name="borrow-memory",
        source="borrowing",
        change=f"Rent {count} x {offer.instance_type} ({offer.memory_gib:g} GiB) with "
        f"{digits(taken.borrowed_bytes / GIB)} GiB of the job's memory {where}.",
        time_saved_h=saved(now.training_time_h, time_factor, error),
        cost_saved_usd=saved(now.cost_usd, cost_factor, error),
        time_factor=time_factor,
        cost_factor=cost_factor,
        evidence="measured",
        rests_on=f"{windows} windows of touched memory: pages untouched for "
        f"{digits(taken.age_s)} s "
        f"lie there, and waiting for them takes {percent_text(waited, 1)}{least} "
        f"({percent_text(taken.loss_fraction, 1)} to "
        f"{percent_text(high, 1)}) of the time; beside "
        f"{now.configuration.parts[0][0].instance_type}, which "
        "holds all of them",
        condition="For what it did while it was recorded. The kernel keeps what was touched last "
        "only nearly: up to ten times as many pages came back under a real limit.",
        how=How(kind="flag", text=f"--on {offer.provider}:{offer.instance_type}"),
        details={
            "borrowed_bytes": taken.borrowed_bytes,
            "loss_fraction": taken.loss_fraction,
            "age_s": taken.age_s,
            "link_bytes_per_s": link,
            "is_least": taken.is_least,
        },
    )


def _rest_s(facts: Facts, usage: RecordedUsage) -> float:
    return max(0.0, HOUR_S * facts.now.training_time_h.value - usage.length_s)


def _limits(facts: Facts, recording: Recording, usage: RecordedUsage) -> Iterator[Advice]:
    """Offer limits to paste."""
    from advisor.planners.rightsizing import compared, right_size

    found = right_size(usage, rest_s=_rest_s(facts, usage))
    share = _dominant_share(found, recording)
    if share >= 1.0 or found.oom_probability > LIKELY_OOM:
        return
    cost = facts.now.cost_usd
    spared = Estimate(
        value=(1 - share) * cost.value, low=(1 - share) * cost.low, high=(1 - share) * cost.high,
        coverage=cost.coverage,
    )  # fmt: skip
    host = recording.host
    yield Advice(
        name="limits",
        source="rightsizing",
        change=f"Limit the job to {digits(found.cpu_limit)} cores and "
        f"{digits(found.memory_bytes / GIB)} GiB: it has {digits(host.cpu_limit)} cores and "
        f"{digits(_memory(recording) / GIB)} GiB.",
        time_saved_h=None,
        cost_saved_usd=spared if cost.value > 0 else None,
        time_factor=1.0,
        cost_factor=share,
        evidence="measured",
        rests_on=f"{len(recording.readings)} readings: peak {digits(usage.peak_bytes / GIB)} GiB, "
        f"mean {digits(float(np.mean(usage.cores)))} cores; the replay of that run under this "
        "quota "
        f"takes at most 1 % longer; {_least_reserved(compared([usage]), recording)} "
        "(advisor simulate limits)",
        condition="Pays where requests are billed, or where the rest of the machine is used by "
        "others; a machine rented whole costs the same.",
        how=How(kind="yaml", text=pasted(found)),
    )


def usage_of(recording: Recording) -> RecordedUsage | None:
    """Return what a recording used; None where it has too few readings, or was held back.

    Under a quota, or beside busy neighbours, usage is not what the job would use. Memory counts
    what processes share once.
    """
    readings = recording.readings
    is_held_back = bool(recording.throttling) or recording.contention > MOST_CONTENTION
    if len(readings) < FEWEST_READINGS or is_held_back:
        return None
    t = np.array([one.t_s for one in readings])
    if t[-1] <= t[0]:
        return None
    from advisor.planners.rightsizing import RecordedUsage

    return RecordedUsage.of_counters(
        t_s=t,
        cpu_s=[one.cpu_s for one in readings],
        memory_bytes=[one.pss_bytes or one.rss_bytes for one in readings],
        step_s=float(t[-1] - t[0]) / (len(t) - 1),
    )


def pasted(found: RightSize) -> str:
    """Return the limits as Kubernetes and container engines take them."""
    memory = math.ceil(found.memory_bytes / MIB)
    request, limit = (math.ceil(1000 * one) for one in (found.cpu_request, found.cpu_limit))
    return (
        f"# docker run --cpus {limit / 1000:g} --memory {memory}m ...\n"
        "resources:\n"
        f'  requests: {{cpu: "{min(request, limit)}m", memory: "{memory}Mi"}}\n'
        f'  limits: {{cpu: "{limit}m", memory: "{memory}Mi"}}'
    )


def _least_reserved(policies: Mapping[str, tuple[LimitedRun, ...]], recording: Recording) -> str:
    """Say which way of setting limits reserves least, of those that hold the job back by 1 %."""
    host = recording.host
    shares = {
        name: max(run.reserved_core_h / max(host.cpu_limit, 1e-9),
                  run.reserved_gib_h * GIB / max(_memory(recording), 1)) / run.slowdown
        for name, (run,) in policies.items()
        if not run.oom and run.slowdown <= _MOST_SLOWER
    }  # fmt: skip
    if not shares:
        return "no policy that changes limits holds it back by less"
    best = min(shares, key=lambda name: shares[name])
    less = 1.0 - shares[best] / shares["peak"]
    return (
        f"of {len(policies)} policies {best} reserves the least memory: {percent_text(less)} less "
        "than the peaks"
    )


def _memory(recording: Recording) -> int:
    return min(recording.host.memory_bytes, recording.host.memory_limit_bytes)


def _dominant_share(found: RightSize, recording: Recording) -> float:
    """Return the share of the machine that the limits take, of what they take most of."""
    cores = found.cpu_limit / max(recording.host.cpu_limit, 1e-9)
    return max(cores, found.memory_bytes / max(_memory(recording), 1))


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


advise_machines: Final = source(
    "machines", _threads, _cores, _spot, _layout, _all_devices, needs_work=False
)
