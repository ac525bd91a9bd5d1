"""Limits for the job: ones to paste, or a smaller machine of the same family."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from advisor.advice.facts import Facts, saved
from advisor.advice.record import Advice, How
from advisor.collectors.recording import Recording
from advisor.domain import Estimate
from advisor.planners.core.units import GIB, HOUR_S, MIB
from advisor.planners.rightsizing.limits import RightSize, memory_limit_bytes, right_size
from advisor.planners.rightsizing.nouns import RecordedUsage

FEWEST_READINGS: Final = 20
LIKELY_OOM: Final = 0.05
MOST_CONTENTION: Final = 0.1
# Both machines are of one model: what it says wrong of one it says wrong of the other too.
_MODEL_SD: Final = 0.1


def advise(facts: Facts) -> Iterable[Advice]:
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
    ((offer, count),) = facts.now.configuration.parts
    needed = memory_limit_bytes(usage, rest_s=_rest_s(facts, usage)) / GIB
    if not offer.memory_gib or needed >= offer.memory_gib:
        return
    now = facts.now
    found = [
        one for one in facts.smaller()
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
        f"needs {needed:.2g} GiB of {offer.memory_gib:g}, and {other.memory_gib:g} are enough.",
        time_saved_h=saved(now.training_time_h, time_factor, _MODEL_SD),
        cost_saved_usd=saved(now.cost_usd, cost_factor, _MODEL_SD),
        time_factor=time_factor,
        cost_factor=cost_factor,
        evidence="measured",
        rests_on=f"{len(recording.readings)} readings: peak {usage.peak_bytes / GIB:.2g} GiB; "
        "time and price of the smaller machine by the same estimate",
        condition="Memory beyond what was recorded is not in it: a later phase may need more.",
        how=How(kind="flag", text=f"--on {other.provider}:{other.instance_type}"),
        then=best,
    )


def _rest_s(facts: Facts, usage: RecordedUsage) -> float:
    return max(0.0, HOUR_S * facts.now.training_time_h.value - usage.length_s)


def _limits(facts: Facts, recording: Recording, usage: RecordedUsage) -> Iterator[Advice]:
    """Offer limits to paste."""
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
        change=f"Limit the job to {found.cpu_limit:.2g} cores and "
        f"{found.memory_bytes / GIB:.2g} GiB: it has {host.cpu_limit:.2g} cores and "
        f"{_memory(recording) / GIB:.2g} GiB.",
        time_saved_h=None,
        cost_saved_usd=spared if cost.value > 0 else None,
        time_factor=1.0,
        cost_factor=share,
        evidence="measured",
        rests_on=f"{len(recording.readings)} readings: peak {usage.peak_bytes / GIB:.2g} GiB, "
        f"mean {float(np.mean(usage.cores)):.2g} cores; the replay of that run under this quota "
        "takes at most 1% longer",
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


def _memory(recording: Recording) -> int:
    return min(recording.host.memory_bytes, recording.host.memory_limit_bytes)


def _dominant_share(found: RightSize, recording: Recording) -> float:
    """Return the share of the machine that the limits take, of what they take most of."""
    cores = found.cpu_limit / max(recording.host.cpu_limit, 1e-9)
    return max(cores, found.memory_bytes / max(_memory(recording), 1))
