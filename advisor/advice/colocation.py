"""Half a GPU, half the bill: another job on the same device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.advice.facts import Facts
from advisor.advice.record import Advice, How
from advisor.domain import QUANTILES, Candidate, Estimate
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.machines.devices import suite_device
from advisor.planners.colocation.interference import Sharer, shared_rates, sharer
from advisor.planners.colocation.switchflow import Shared, Tenant, needed_bytes, pair_bill
from advisor.planners.core.units import GIB, HOUR_S

# One standard deviation of the error of ln(1 / rate - 1) where neither job was measured beside any
# other: Gavel's pairs with the mean job in place of both (0.43 where both were, 2026-11-22).
_SLOWDOWN_LOG_SD: Final = 0.98


def advise(facts: Facts) -> Iterable[Advice]:
    """Return what two runs of the job on one device would save each of them."""
    found = beside(facts, facts.job, "a second run of it")
    return () if found is None else (found,)


def beside_run(facts: Facts, other: Job) -> Iterable[Advice]:
    """Return what sharing a device with another run would save.

    Raises
    ------
    UsageError
        If the two cannot share it.
    """
    found = beside(facts, other, f"run {other.name}")
    if found is None:
        raise UsageError(
            f"{facts.job.name} and {other.name} cannot share a device of these machines",
            hint="both need one accelerator with memory and cores for two: --on aws:g5.2xlarge",
        )
    return (found,)


def beside(facts: Facts, other: Job, name: str) -> Advice | None:
    """Return what sharing the device with another job would save this one.

    Parameters
    ----------
    facts : Facts
        Of a job on one accelerator.
    other : Job
        Judged on the same machine.
    name : str
        What it is called.

    Returns
    -------
    Advice, or None where either has no accelerator or several, where both do not fit its memory or
    its machine's cores, or where the recordings do not show how busy they keep it.
    """
    now = facts.now
    if facts.job.work is None or other.work is None:
        return None
    then = now if other is facts.job else facts.ask(other)
    if then is None:
        return None
    jobs = (_sharer(facts.job, now), _sharer(other, then))
    if jobs[0] is None or jobs[1] is None or not _fits(facts.job, now, other, then):
        return None
    rates = shared_rates([jobs[0], jobs[1]])
    alone_s = [one.training_time_h.value * HOUR_S for one in (now, then)]
    reach = math.exp(QUANTILES[now.cost_usd.coverage] * _SLOWDOWN_LOG_SD)
    usual, least, most = (_shared(alone_s, rates, share) for share in (1.0, 1.0 / reach, reach))
    busy = [one.busy_fraction for one in (jobs[0], jobs[1])]
    return Advice(
        name="share-device",
        source="colocation",
        change=f"Share the device with {name}: half a GPU, half the bill while both run.",
        time_saved_h=_saved(
            now.training_time_h,
            [float(one.finish_s[0]) / alone_s[0] for one in (usual, least, most)],
        ),
        cost_saved_usd=_saved(
            now.cost_usd, [float(one.bill_fraction[0]) for one in (usual, least, most)]
        ),
        time_factor=float(usual.finish_s[0]) / alone_s[0],
        cost_factor=float(usual.bill_fraction[0]),
        evidence="formula",
        rests_on=f"kernels keep the device busy for {busy[0]:.0%} and {busy[1]:.0%} of a step; "
        f"rates beside each other {rates[0]:.2f} and {rates[1]:.2f} of those alone "
        "(the law that Gavel's measured pairs keep)",
        condition=f"Where both wait to be run: together they take {usual.device_s / HOUR_S:.3g} h "
        f"of the device, one after the other {usual.device_s_apart / HOUR_S:.3g} h.",
        how=How(kind="flag", text="CUDA_VISIBLE_DEVICES=0 python train.py &  # and the other one"),
    )


def _shared(alone_s: Sequence[float], rates: NDArray[np.float64], share: float) -> Shared:
    """Return the bill of two jobs that slow each other by a share of what is said."""
    slower = 1.0 + share * (1.0 / rates - 1.0)
    return pair_bill(alone_s, (1.0 / slower).tolist())


def _saved(now: Estimate, factors: Sequence[float]) -> Estimate:
    """Return what is saved at the usual, the least and the most slowdown; a loss is negative.

    More slowdown does not always cost more: a neighbour that stays longer pays longer.
    """
    saved = [now.value * (1.0 - factor) for factor in factors]
    return Estimate(value=saved[0], low=min(saved), high=max(saved), coverage=now.coverage)


def _sharer(job: Job, on: Candidate) -> Sharer | None:
    """Return what a job does to the queue of its device; None where that is unknown."""
    (offer, count), *others = on.configuration.parts
    if others or count != 1 or offer.accelerator is None or on.layout.devices != 1:
        return None
    assert job.work is not None
    busy = on.shares.get("compute", 0.0) + on.shares.get("memory", 0.0)
    passes = max(on.layout.accumulation_steps, 1)
    kernels = sum(
        one.count * (1 if one.phase == "optimizer" else passes) for one in job.work.operators
    )
    if not (0.0 < busy <= 1.0 and kernels > 0):
        return None
    return sharer(busy, busy * on.step_time_s.value / kernels)


def _fits(job: Job, on: Candidate, other: Job, other_on: Candidate) -> bool:
    """Whether two processes fit the device's memory, and their loaders the machine's cores."""
    offer, _ = on.configuration.parts[0]
    device = suite_device(offer.accelerator or "")
    tenants = [
        Tenant(name="job", input_s=0.0, compute_s=1.0, transient_bytes=one.memory_gib * GIB)
        for one in (on, other_on)
    ]
    memory = math.nan if device is None or device.memory_bytes is None else device.memory_bytes
    cores = sum(
        (one.feed.cpu_s_per_sample or 0.0) * then.throughput_samples_per_s.value
        for one, then in ((job, on), (other, other_on))
    )
    return needed_bytes(tenants, is_in_turns=False) <= memory and cores <= offer.vcpus
