"""The use of machines by a job: limits and sizes, threads, cores, devices, prices, layouts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.advice import neighbours
from advisor.advice.facts import Advice, Facts, source
from advisor.answer import Candidate, Estimate, told
from advisor.collectors.errors import counted
from advisor.collectors.format import Recording
from advisor.jobs import Job
from advisor.planners.core import GIB, HOUR_S, MIB
from advisor.planners.layouts import SearchSpace
from advisor.quantities import REACH_90, digits, percent_text, seconds_text, usd_text

if TYPE_CHECKING:
    from advisor.planners.rightsizing import LimitedRun, RecordedUsage, RightSize
    from advisor.planners.systems import Borrowed


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
    needed = memory_limit_bytes(usage, rest_s=_rest_s(facts, usage))
    if not offer.memory_gib or needed >= offer.memory_gib * GIB:
        return
    now = facts.now
    found = [
        one for one in facts.smaller(facts.job)
        if (one.configuration.parts[0][0].memory_gib or 0.0) * GIB >= needed
        and one.cost_usd.value < now.cost_usd.value
    ]  # fmt: skip
    if not found:
        return
    best = min(found, key=lambda one: one.training_time_h.value * one.cost_usd.value)
    advice = facts.advised(
        "smaller-machine", best.training_time_h.value / now.training_time_h.value,
        best.cost_usd.value / now.cost_usd.value, _MODEL_SD, count=count, offer=offer,
        other=best.configuration.parts[0][0], needed=needed, usage=usage,
        readings=len(recording.readings),
    )  # fmt: skip
    yield replace(advice, then=best)


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
    high = _MOST_WAITED * taken.loss_fraction
    price = neighbours.memory_price(facts)
    # What is saved, by what is borrowed of every machine for as long as the job takes.
    gib_h = count * taken.borrowed_bytes / GIB * one.training_time_h.value * slower
    most_paid = max(now.cost_usd.value - one.cost_usd.value * slower, 0.0) / max(gib_h, 1e-9)
    found = facts.advised(
        "borrow-memory", one.training_time_h.value * slower / now.training_time_h.value,
        one.cost_usd.value * slower / now.cost_usd.value,
        math.hypot(_MODEL_SD, math.log((1.0 + high) / slower) / REACH_90),
        count=count, offer=offer, taken=taken, waited=waited, high=high, windows=windows,
        priced=price[1], most_paid=usd_text(most_paid),
        beside=now.configuration.parts[0][0].instance_type,
        least=" at least (it touches more in the shortest window)" if taken.is_least else "",
        where="swapped to its solid-state disk" if link is None
        else f"in other machines' memory, over {digits(link / 1e9)} GB/s",
    )  # fmt: skip
    details = told(taken, ("borrowed_bytes", "loss_fraction", "age_s"))
    details |= {"link_bytes_per_s": link, "is_least": taken.is_least}
    details |= {"usd_per_gib_h": price[0], "most_usd_per_gib_h": most_paid}
    return replace(found, details=details)


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
    yield Advice(
        **facts.worded(
            "limits", found=found, usage=usage, readings=len(recording.readings),
            memory=_memory(recording), cores=float(np.mean(usage.cores)), text=pasted(found),
            least=_cheapest_policy(compared([usage]), facts),
        ),
        time_saved_h=None, cost_saved_usd=spared if cost.value > 0 else None,
        time_factor=1.0, cost_factor=share,
    )  # fmt: skip


def usage_of(recording: Recording) -> RecordedUsage | None:
    """Return what a recording used; None where it has too few readings, or was held back.

    Under a quota, or beside busy neighbours, usage is not what the job would use. Memory counts
    what processes share once.
    """
    readings = recording.readings
    if untold(recording):
        return None
    t = np.array([one.t_s for one in readings])
    from advisor.planners.rightsizing import RecordedUsage

    return RecordedUsage.of_counters(
        t_s=t,
        cpu_s=[one.cpu_s for one in readings],
        memory_bytes=[one.pss_bytes or one.rss_bytes for one in readings],
        step_s=float(t[-1] - t[0]) / (len(t) - 1),
    )


def untold(recording: Recording) -> str:
    """Say what keeps a recording from telling what it uses, with its figure; empty if it tells."""
    readings, contention = recording.readings, recording.contention
    if len(readings) < FEWEST_READINGS or readings[-1].t_s <= readings[0].t_s:
        return f"{counted(len(readings), 'reading')}, {FEWEST_READINGS} are needed"
    if recording.throttling:
        taken_s = sum(one.throttled_s for one in recording.throttling)
        return f"a quota took {seconds_text(taken_s)} of its processor time away"
    if contention > MOST_CONTENTION:
        return (
            f"other programs kept it waiting {percent_text(contention)} of the time, and over "
            f"{percent_text(MOST_CONTENTION)} hides what it would use"
        )
    return ""


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


def _cheapest_policy(policies: Mapping[str, tuple[LimitedRun, ...]], facts: Facts) -> str:
    """Say which policy reserves what costs least, of those that slow the job by at most 1 %.

    At what clouds charge for a core and a GiB; ``advisor simulate limits`` judges the same.
    """
    prices = facts.resource_prices()
    kept = {
        name: run
        for name, (run,) in policies.items()
        if not run.oom and run.slowdown <= _MOST_SLOWER
    }
    if not kept or not prices:
        return "no policy that changes limits holds it back by less"
    best = min(
        kept,
        key=lambda name: (
            kept[name].reserved_core_h * prices["usd_per_core_h"]
            + kept[name].reserved_gib_h * prices["usd_per_gib_h"]
        ),
    )
    said = []
    for what, of in (("the cores", "reserved_core_h"), ("the memory", "reserved_gib_h")):
        share = getattr(kept[best], of) / getattr(policies["peak"][0], of) - 1.0
        said.append(f"{percent_text(abs(share))} {'less' if share <= 0 else 'more'} of {what}")
    return f"of {len(policies)} policies {best} costs least: {' and '.join(said)} than the peaks"


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
    name = "threads (script)" if limits.threads_source == _CALL else "threads"
    yield facts.priced(name, replace(job, limits=lifted), each=each)


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
    lifted = replace(limits, cores=None, cores_source="")
    yield facts.priced("cores", replace(facts.job, limits=lifted))


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
    if offer.pricing == "on-demand" and facts.constraints.saves_checkpoints:
        yield facts.priced("spot", facts.job, pricing="spot")


# Flags of what a search space calls otherwise.
_FLAGS: Final = {
    "accumulation_steps": "accumulate", "zero_stages": "zero", "recomputes": "recompute",
    "swaps": "swap", "moves": "offload", "offloads": "offload", "offloads_alone": "offload",
}  # fmt: skip


def _layout(facts: Facts) -> Iterator[Advice | None]:
    """Offer the best layout where the user has fixed another."""
    space = facts.constraints.space
    fixed = {} if space is None else space.fixed
    if fixed and facts.job.work is not None:
        names = dict.fromkeys(_FLAGS.get(name, name).replace("_", "-") for name in fixed)
        flags = ", ".join(f"--{name}" for name in names)
        yield facts.priced("layout", facts.job, space=SearchSpace(), flags=flags)


def _all_devices(facts: Facts) -> Iterator[Advice | None]:
    """Offer the other accelerators of this machine where only some of them train."""
    job, recording = facts.job, facts.recording
    if recording is None or job.measured is None or not facts.is_here:
        return
    devices, used = len(recording.host.gpus), job.measured.processes
    if job.measured.device.startswith("cuda") and devices > used:
        yield facts.priced("all-devices", job, devices=devices, all=devices, idle=devices - used)


advise_machines: Final = source(_threads, _cores, _spot, _layout, _all_devices, needs_work=False)
