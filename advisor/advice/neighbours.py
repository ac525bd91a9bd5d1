"""Others on one machine: half a GPU for half the bill, memory that nobody touches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.advice.facts import Advice, Facts, worded
from advisor.answer import Candidate, Estimate, told
from advisor.collectors import bounded
from advisor.collectors.errors import printable
from advisor.collectors.format import Recording
from advisor.errors import UsageError
from advisor.jobs import Job
from advisor.machines import suite_device
from advisor.planners import systems
from advisor.planners.core import GIB, HOUR_S, MIB, PlanningError
from advisor.planners.memory import model_state
from advisor.quantities import QUANTILES, seconds_text, usd_text

if TYPE_CHECKING:
    from advisor.planners.systems import Harvest, MeasuredPair, Sharer, Tenant, TouchedWindow

# One standard deviation of the error of ln(1 / rate - 1) where neither job was measured beside any
# other: Gavel's pairs with the mean job in place of both (0.43 where both were, 2026-11-22).
_SLOWDOWN_LOG_SD: Final = 0.98


def advise_colocation(facts: Facts) -> Iterable[Advice]:
    """Return what two runs of the job on one device would save each of them.

    As two processes; by turns where the device's memory is too small for that.
    """
    name = "a second run of it"
    found = beside(facts, facts.job, name) or in_turns(facts, facts.job, name)
    return () if found is None else (found,)


def beside_run(facts: Facts, other: Job, pairs: Sequence[MeasuredPair] = ()) -> Iterable[Advice]:
    """Return what sharing a device with another run would save, as two processes and by turns.

    ``pairs``: jobs that were measured beside each other on such a device, by the names of their
    runs; they speak where both jobs are among them.

    Raises UsageError if the two cannot share it.
    """
    name = f"run {other.name}"
    ways = (beside(facts, other, name, pairs), in_turns(facts, other, name))
    found = tuple(one for one in ways if one is not None)
    if not found:
        raise UsageError(
            f"{facts.job.name} and {other.name} cannot share a device of these machines",
            hint="both need one accelerator with memory and cores for two: --on aws:g5.2xlarge",
        )
    return found


_PAIRS_HINT: Final = "a CSV with the columns first,second,first_rate,second_rate"


def read_pairs(path: Path) -> tuple[MeasuredPair, ...]:
    """Read pairs of jobs that were measured on one device.

    ``path``: CSV with the columns ``first``, ``second`` (names of runs) and ``first_rate``,
    ``second_rate``: of each beside the other, over its rate alone.

    Raises UsageError if it cannot be read, has no pair, or a rate makes no sense; the message
    names the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(bounded.csv_tables(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the pairs {path}: {error}", hint=_PAIRS_HINT) from error
    if not rows:
        raise UsageError(f"{path} has no pair", hint=_PAIRS_HINT)
    return tuple(_pair(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2))


def _pair(row: Mapping[str, str], where: str) -> MeasuredPair:
    try:
        return systems.MeasuredPair(
            first=row["first"].strip(), second=row["second"].strip(),
            first_rate=float(row["first_rate"]), second_rate=float(row["second_rate"]),
        )  # fmt: skip
    except (KeyError, AttributeError) as error:
        raise UsageError(f"{where}: no {error}", hint=_PAIRS_HINT) from error
    except (ValueError, PlanningError) as error:
        why = printable(str(error))[:200]
        raise UsageError(f"{where}: {why}", hint=_PAIRS_HINT) from error


# What each of two jobs keeps of its rate beside the other, first the one that is advised: over the
# rates alone, with bounds of the asked coverage, (2,) each [fraction].
_Kept = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def kept_by_pairs(
    pairs: Sequence[MeasuredPair], first: str, second: str, coverage: float
) -> _Kept | None:
    """Return what two jobs keep by measured pairs; None where one of them is in no pair.

    ``advise --beside RUN --pairs FILE`` answers this.
    """
    if not {first, second} <= _named(pairs):
        return None
    rate, log_sd = systems.rates_by_pairs(pairs, first, second)
    reach = np.exp(QUANTILES[coverage] * log_sd)
    return rate, rate / reach, np.minimum(rate * reach, 1.0)


def _named(pairs: Sequence[MeasuredPair]) -> set[str]:
    return {name for pair in pairs for name in (pair.first, pair.second)}


def _kept_by_recordings(first: Sharer, second: Sharer, coverage: float) -> _Kept:
    rate = systems.shared_rates([first, second])
    reach = math.exp(QUANTILES[coverage] * _SLOWDOWN_LOG_SD)
    slower = 1.0 / rate - 1.0
    return rate, 1.0 / (1.0 + reach * slower), 1.0 / (1.0 + slower / reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Two:
    """Two jobs on one accelerator, each as it is there alone; first the one that is advised."""

    jobs: tuple[Job, Job]
    alone: tuple[Candidate, Candidate]
    tenants: tuple[Tenant, Tenant]
    device_bytes: float  # NaN where unknown

    def fits(self, *, is_in_turns: bool) -> bool:
        """Whether both fit the device's memory."""
        return systems.needed_bytes(self.tenants, is_in_turns=is_in_turns) <= self.device_bytes


def _two(facts: Facts, other: Job) -> _Two | None:
    """Return both jobs on the device.

    None where either has no accelerator or several, or their loaders need more cores than the
    machine has.
    """
    now, job = facts.now, facts.job
    if job.work is None or other.work is None:
        return None
    then = now if other is job else facts.ask(other)
    if then is None or not (_is_one_device(now) and _is_one_device(then)):
        return None
    offer, _ = now.configuration.parts[0]
    cores = sum(
        (one.feed.cpu_s_per_sample or 0.0) * on.throughput_samples_per_s.value
        for one, on in ((job, now), (other, then))
    )
    if cores > offer.vcpus:
        return None
    device = suite_device(offer.accelerator or "")
    known = device is not None and device.memory_bytes is not None
    return _Two(
        jobs=(job, other), alone=(now, then), tenants=(_tenant(job, now), _tenant(other, then)),
        device_bytes=device.memory_bytes if device is not None and known else math.nan,
    )  # fmt: skip


def _tenant(job: Job, on: Candidate) -> Tenant:
    """Return a job's step on the device: what it waits for, what stays, and what comes and goes.

    Weights and optimizer state stay between steps; activations and gradients do not.
    """
    step_s, needed = on.step_time_s.value, on.memory_gib * GIB
    input_s = min(on.shares.get("input", 0.0), 0.99) * step_s
    assert job.work is not None
    stays = model_state(job.work.parameter_bytes, 0, job.work.optimizer_state_bytes)
    weights = min(float(stays.device_bytes), needed)
    return systems.Tenant(
        name=job.name, input_s=input_s, compute_s=step_s - input_s, weight_bytes=weights,
        transient_bytes=needed - weights,
    )  # fmt: skip


def beside(
    facts: Facts, other: Job, name: str, pairs: Sequence[MeasuredPair] = ()
) -> Advice | None:
    """Return what sharing the device as two processes would save this job.

    ``facts``: of a job on one accelerator; ``other``: judged on the same machine; ``name``: what
    it is called; ``pairs``: as of ``beside_run``.

    Returns
    -------
    Advice, or None where the two cannot share a device (``_two``), where both do not fit its
    memory at once, or where neither the recordings show how busy they keep it nor pairs tell.
    """
    two = _two(facts, other)
    if two is None or not two.fits(is_in_turns=False):
        return None
    now, then = two.alone
    coverage = now.cost_usd.coverage
    kept = kept_by_pairs(pairs, facts.job.name, other.name, coverage)
    if kept is not None:
        return _shared(
            two, kept, "share-device (pairs)", other=name, pairs=len(pairs),
            names=len(_named(pairs)),
        )  # fmt: skip
    first, second = _sharer(facts.job, now), _sharer(other, then)
    if first is None or second is None:
        return None
    kept = _kept_by_recordings(first, second, coverage)
    return _shared(two, kept, "share-device", other=name, first=first, second=second)


# One standard deviation of the logarithm of a round: our experiment's three configurations
# (lab/notes/experiments.md, SwitchFlow's rows: +6, +5 and 0 % of the sum, up to 15 % of one job).
_ROUND_LOG_SD: Final = 0.1


def in_turns(facts: Facts, other: Job, name: str) -> Advice | None:
    """Return what taking turns by steps would save this job (SwitchFlow).

    While one computes the other loads, and only one's activations are on the device.

    Returns
    -------
    Advice, or None where the two cannot share a device (``_two``) or its memory does not hold all
    weights and the larger activations.
    """
    two = _two(facts, other)
    if two is None or not two.fits(is_in_turns=True):
        return None
    now = two.alone[0]
    together_s = systems.round_s(two.tenants, "switchflow")
    rate = np.array([one.step_s for one in two.tenants]) / together_s
    reach = math.exp(QUANTILES[now.cost_usd.coverage] * _ROUND_LOG_SD)
    return _shared(
        two, (rate, rate / reach, np.minimum(rate * reach, 1.0)), "take-turns", other=name,
        together_s=together_s, apart_s=systems.round_s(two.tenants, "sessions"),
    )  # fmt: skip


def _shared(two: _Two, kept: _Kept, name: str, **figures: Any) -> Advice:
    """Return advice on two jobs that keep such rates on one device."""
    now, (rate, low, high) = two.alone[0], kept
    alone_s = [one.training_time_h.value * HOUR_S for one in two.alone]
    usual, least, most = (systems.pair_bill(alone_s, one.tolist()) for one in (rate, high, low))
    needed = systems.needed_bytes(two.tenants, is_in_turns=name == "take-turns")
    words = worded(
        name, rate=rate, tenants=two.tenants, needed=needed, there=two.device_bytes, usual=usual,
        preempted=_preempted(two), **figures,
    )  # fmt: skip
    parts = ("name", "input_s", "compute_s", "weight_bytes", "transient_bytes")
    return Advice(
        **words,
        time_saved_h=_saved(
            now.training_time_h,
            [float(one.finish_s[0]) / alone_s[0] for one in (usual, least, most)],
        ),
        cost_saved_usd=_saved(
            now.cost_usd, [float(one.bill_fraction[0]) for one in (usual, least, most)]
        ),
        time_factor=float(usual.finish_s[0]) / alone_s[0],
        cost_factor=float(usual.bill_fraction[0]),
        details={
            "rates": rate.tolist(), "needed_bytes": needed,
            "jobs": [told(one, parts) for one in two.tenants],
        },
    )  # fmt: skip


def _preempted(two: _Two) -> str:
    """Say how long the advised job waits where it is the more urgent one and takes the device."""
    victim, on = two.tenants[1], two.alone[1]
    kernels = _kernels(two.jobs[1], max(on.layout.accumulation_steps, 1))
    if not kernels:
        return "What the other's kernels take is not known."
    kernel_s = victim.compute_s / kernels
    stays_s, leaves_s = (
        systems.preemption_s(victim, kernel_s=kernel_s, is_moved=is_moved)
        for is_moved in (False, True)
    )
    return (
        f"Where it may stop the other, it waits {seconds_text(stays_s)} for the device, a mean "
        f"kernel, or {seconds_text(leaves_s)} where the other's weights leave it."
    )


def _kernels(job: Job, passes: int) -> float:
    assert job.work is not None
    operators = job.work.operators
    return float((operators.count * np.where(operators.is_update, 1, passes)).sum())


def _saved(now: Estimate, factors: Sequence[float]) -> Estimate:
    """Return what is saved at the usual, the least and the most slowdown; a loss is negative.

    More slowdown does not always cost more: a neighbour that stays longer pays longer.
    """
    saved = [now.value * (1.0 - factor) for factor in factors]
    return Estimate(value=saved[0], low=min(saved), high=max(saved), coverage=now.coverage)


def _is_one_device(on: Candidate) -> bool:
    (offer, count), *others = on.configuration.parts
    is_alone = not others and count == 1 and on.layout.devices == 1
    return is_alone and offer.accelerator is not None


def _sharer(job: Job, on: Candidate) -> Sharer | None:
    """Return what a job does to the queue of its device; None where that is unknown."""
    assert job.work is not None
    busy = on.shares.get("compute", 0.0) + on.shares.get("memory", 0.0)
    kernels = _kernels(job, max(on.layout.accumulation_steps, 1))
    if not (0.0 < busy <= 1.0 and kernels > 0):
        return None
    return systems.sharer(busy, busy * on.step_time_s.value / kernels)


# The memory is taken by a control group's soft limit, to swap on a local solid-state disk.
_SWAP: Final = "nvme"
# Less than this share of what it holds is not worth a limit.
_LEAST_SHARE: Final = 0.05
# One standard deviation of the logarithm of the loss: latencies are known by order of magnitude.
_LOSS_LOG_SD: Final = math.log(2.0)


def advise_harvesting(facts: Facts) -> Iterable[Advice]:
    """Offer a soft limit where the recording says how much memory was touched.

    On the machine of the recording, whose memory is shared; ``advisor profile --working-set``.
    """
    recording = facts.recording
    if recording is None or not facts.is_here or facts.has_accelerators:
        return
    windows = windows_of(recording)
    found = systems.harvest(windows, fault_s=systems.FAULT_S[_SWAP]) if windows else None
    if found is None or found.harvested_bytes < _LEAST_SHARE * found.resident_bytes:
        return
    yield _advice(facts, recording, found, len(windows))


def memory_price(facts: Facts) -> tuple[float, str]:
    """Return what clouds charge for memory [USD/GiB-h], and that in words; NaN where unknown."""
    try:
        each = facts.resource_prices()
    except UsageError:  # a catalogue without offers that differ in memory alone
        each = {}
    if not each:
        return math.nan, "what memory costs is not known"
    bounds = " to ".join(f"{each[f'usd_per_gib_h_{of}']:.2g}" for of in ("low", "high"))
    usd = each["usd_per_gib_h"]
    return usd, f"memory at ${usd:.2g} a GiB-hour (half lie at {bounds}; {each['source']})"


def windows_of(recording: Recording) -> list[TouchedWindow]:
    """Return the windows of its ordinary running.

    Those that began after the first step, where there are steps, and in which memory hardly grew.
    """
    begin_s = 0.0 if recording.step_time is None else recording.startup_s or 0.0
    return [
        systems.TouchedWindow(
            window_s=one.window_s,
            touched_bytes=one.touched_bytes,
            resident_bytes=one.resident_bytes,
        )
        for one in recording.touched
        if one.t_s - one.window_s >= begin_s and one.is_steady
    ]


def _advice(facts: Facts, recording: Recording, found: Harvest, windows: int) -> Advice:
    host = recording.host
    memory = min(host.memory_bytes, host.memory_limit_bytes)
    # What is billed is what it takes most of: memory given back is worth nothing beside cores.
    cores = sum(one.cpu_s for one in recording.readings[-1:]) / max(recording.duration_s, 1e-9)
    before, after = (
        max(cores / max(host.cpu_limit, 1e-9), size / memory)
        for size in (found.resident_bytes, found.limit_bytes)
    )
    slower = 1.0 + found.loss_fraction
    spread = math.exp(QUANTILES[facts.now.cost_usd.coverage] * _LOSS_LOG_SD)
    sizes = ("limit_bytes", "resident_bytes", "touched_bytes", "harvested_bytes")
    usd, priced = memory_price(facts)
    worth = usd * found.harvested_bytes / GIB
    return Advice(
        **facts.worded(
            "harvest-memory", found=found, windows=windows, most=systems.MOST_LOSS,
            longest=max(one.window_s for one in recording.touched),
            low=found.loss_fraction / spread, high=found.loss_fraction * spread,
            limit=math.ceil(found.limit_bytes / MIB), priced=priced,
            worth="" if math.isnan(usd) else f" (worth {usd_text(worth)} an hour)",
        ),
        time_saved_h=None, cost_saved_usd=None, time_factor=slower,
        cost_factor=slower * min(after / before, 1.0),
        details=told(found, (*sizes, "age_s", "loss_fraction")) | {
            "fault_s": systems.FAULT_S[_SWAP],
            "worth_usd_per_h": None if math.isnan(usd) else worth,
        },
    )  # fmt: skip
