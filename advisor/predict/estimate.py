"""One job on one configuration, with its parts and where every number comes from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from advisor.catalogue import Pricing
from advisor.collectors import benchmark, device_sheet, host
from advisor.collectors.recording import Host
from advisor.domain import (
    SCHEMA_VERSION,
    Bill,
    Bottleneck,
    CompletionWay,
    Estimate,
    Fact,
    TrainingUnits,
)
from advisor.errors import UsageError
from advisor.jobs.described import NO_LENGTH
from advisor.jobs.job import Job
from advisor.jobs.script_notes import script_notes
from advisor.jobs.units import transformer_units
from advisor.machines import devices
from advisor.machines.fleet import lone_fleet
from advisor.machines.host import host_device, is_same_machine
from advisor.planners.core.nouns import Device, Layout
from advisor.planners.core.units import GIB
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.step.device_rates import runs_as
from advisor.predict import STATUSES, Predictor, TimeColumns
from advisor.predict.direct_cost import direct_cost
from advisor.predict.facts import StepFacts
from advisor.ways.as_recorded import is_answer
from advisor.ways.columns import WAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """A job on one configuration.

    Attributes
    ----------
    job, target : str
        The job's name, and what it would run on, in words.
    devices : int
    step_time_s, throughput_samples_per_s : Estimate
        Of one optimizer step over all devices.
    parts_s : mapping of Bottleneck to float
        Seconds of the step by what it waits for; they sum to it. [s]
    runs_as : str or None
        Precision of the large products there; None for a program without steps.
    layout : Layout
    way : str
        How the job is trained there (``ways.columns.WAYS``).
    memory_gib : float
        Needed on one device. [GiB]
    device_memory_gib : float or None
        There on one device; None for a program without steps. [GiB]
    training_time_h, cost_usd : Estimate or None
        Of the whole job; None where no length or no price is known.
    cost_direct_usd : Estimate or None
        The cost of the steps alone as a model predicts it from runs, with no time in between;
        None where it has not seen such jobs and machines.
    is_extrapolating : bool
    facts : tuple of Fact
    units : TrainingUnits or None
        Tokens, utilisation and accelerator-hours; None where the job is no transformer.
    completion : CompletionWay or None
        What the whole job runs on until it is done; None where nothing is rented.
    bills : tuple of Bill
        The machines' expected bill by price.
    notes : tuple of str
        What a user should know of the job beside the numbers.
    """

    job: str
    target: str
    devices: int
    step_time_s: Estimate
    throughput_samples_per_s: Estimate
    parts_s: Mapping[Bottleneck, float]
    runs_as: str | None
    layout: Layout
    way: str
    memory_gib: float
    device_memory_gib: float | None
    training_time_h: Estimate | None
    cost_usd: Estimate | None
    is_extrapolating: bool
    facts: tuple[Fact, ...] = field(default=())
    units: TrainingUnits | None = None
    completion: CompletionWay | None = None
    bills: tuple[Bill, ...] = ()
    notes: tuple[str, ...] = ()
    cost_direct_usd: Estimate | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record of ``advisor predict --json``."""
        whole = {
            name: None if estimate is None else estimate.to_record()
            for name, estimate in (
                ("training_time_h", self.training_time_h), ("cost_usd", self.cost_usd),
                ("cost_direct_usd", self.cost_direct_usd),
            )
        }  # fmt: skip
        plain = ("job", "target", "devices", "runs_as", "way", "memory_gib",
                 "device_memory_gib")  # fmt: skip
        layout = self.layout.to_record()
        # Kept beside the whole layout: names of the first schema.
        first = ("micro_batch", "accumulation_steps", "zero_stage")
        return {
            "schema_version": SCHEMA_VERSION,
            **{name: getattr(self, name) for name in plain},
            **{name: layout[name] for name in first},
            "layout": layout,
            "step_time_s": self.step_time_s.to_record(),
            "throughput_samples_per_s": self.throughput_samples_per_s.to_record(),
            "units": self.units and self.units.to_record(),
            "completion": self.completion,
            "bills": [bill.to_record() for bill in self.bills],
            "parts_s": dict(self.parts_s),
            **whole,
            "extrapolating": self.is_extrapolating,
            "notes": list(self.notes),
            "sources": [fact.to_record() for fact in self.facts],
        }


def estimate_on_type(
    predictor: Predictor, job: Job, instance_type: str, *, provider: str | None = None,
    count: int = 1, coverage: float = 0.9, space: SearchSpace | None = None,
    completion: CompletionWay | None = None, known_network: bool = False,
) -> StepEstimate:  # fmt: skip
    """Estimate a job on machines of one type of the catalogue.

    ``completion`` is what the whole job runs on until it is done, machines that stay by default;
    ``space`` and ``known_network`` are those of ``Predictor.step_columns``.

    Raises
    ------
    CatalogueError
        If the type is unknown.
    UsageError
        If the job cannot run there, or the count makes no sense.
    """
    _check_count(count)
    row = predictor.catalogue.instance_type(instance_type, provider=provider)
    columns = predictor.step_columns(
        job, np.array([row.index]), np.array([count]), space=space, known_network=known_network
    )
    where = f"{count} x {row.name} ({row.provider})"
    _check_status(job, columns, where)
    device = predictor.device_of(row.index, job)
    pricing: Pricing = "on-demand" if completion in (None, "on-demand") else "spot"
    offers, offer = predictor.cheapest(row, pricing=pricing)
    if offer is None and completion is not None:
        raise UsageError(
            f"{where} is not sold at a {pricing} price",
            hint=f"see `advisor catalogue show {row.name}`",
        )
    price = None if offer is None else float(offers.price_usd_per_h[offer])
    found = _estimate(
        predictor, job, columns, where, device, coverage,
        price_usd_per_h=None if price is None else price * count,
    )  # fmt: skip
    if offer is None or found.training_time_h is None:
        return found
    whole = predictor.rented(
        job, columns, offers, offer, pricing=pricing, completion=completion, coverage=coverage,
        space=space, known_network=known_network,
    )  # fmt: skip
    return replace(
        found, training_time_h=whole.training_time_h, cost_usd=whole.cost_usd, units=whole.units,
        completion=whole.completion, bills=whole.bills,
        cost_direct_usd=direct_cost(predictor, job, columns, offers, offer, coverage),
    )  # fmt: skip


def estimate_on_gpu(
    predictor: Predictor, job: Job, gpu: str, *, count: int = 1, coverage: float = 0.9,
    space: SearchSpace | None = None,
) -> StepEstimate:  # fmt: skip
    """Estimate a job on accelerators of one machine, whoever sells it; the host is no limit.

    Raises
    ------
    UsageError
        If the accelerator is unknown, the job has no steps or cannot run there.
    """
    _check_count(count)
    if job.work is None:
        raise UsageError(
            f"{job.name} has no training steps, so no accelerator speeds it up",
            hint="name a machine: --on g5.xlarge",
        )
    device = _accelerator(gpu)
    return on_device(predictor, job, device, f"{count} x {device.name}", count, coverage, space)


def estimate_here(
    predictor: Predictor, job: Job, *, coverage: float = 0.9, space: SearchSpace | None = None
) -> StepEstimate:
    """Estimate a job on this machine: as it was measured, where it was recorded here.

    Otherwise on its GPU where one was measured, on its processor where none was.

    Raises
    ------
    UsageError
        If the job cannot run here.
    """
    machine = machine_here(job)
    named = machine.host.cpu_model if machine.device.kind == "cpu" else machine.device.name
    return on_device(
        predictor, job, machine.device, f"this machine ({named})", 1, coverage, space,
        is_recorded=machine.is_recorded,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHere:
    """The machine at hand: as described, what a job computes on, whether it was recorded here.

    Attributes
    ----------
    host : Host
    device : Device
    is_recorded : bool
    """

    host: Host
    device: Device
    is_recorded: bool


def machine_here(job: Job, *, measures: bool = True) -> MachineHere:
    """Return what the job would run on here.

    Parameters
    ----------
    job : Job
    measures : bool
        Take the four-second benchmark where nobody has; the processor's tables answer otherwise.

    Raises
    ------
    UsageError
        If this machine's GPU is not in the device sheet.
    """
    sheets = device_sheet.cached()
    measured = benchmark.cached_or_measured() if measures else benchmark.cached()
    described = host.describe(benchmark=measured, sheets=sheets)
    seen = job.measured
    is_recorded = seen is not None and is_same_machine(seen.host, described)
    kind = "cuda" if any(sheet.device == "cuda" for sheet in sheets) else "cpu"
    if job.work is None:
        kind = "cpu"
    if seen is not None and is_recorded:
        described, kind = seen.host, seen.device
    threads = job.compute_threads
    device = host_device(described, None if threads is None else max(round(threads), 1), kind)
    if device is None:
        raise UsageError(
            "this machine's GPU is not in the device sheet", hint="name the nearest: --gpu L4"
        )
    return MachineHere(host=described, device=device, is_recorded=is_recorded)


def on_device(
    predictor: Predictor, job: Job, device: Device, where: str, count: int, coverage: float,
    space: SearchSpace | None, *, is_recorded: bool = False,
) -> StepEstimate:  # fmt: skip
    """Estimate a job on ``count`` of a device in one machine that nobody sells."""
    lone = lone_fleet(device, count, predictor.catalogue.accelerators.get(device.name))
    lone = replace(lone, is_recorded=is_recorded)
    columns = predictor.step_columns(job, np.array([0]), np.array([1]), fleet=lone, space=space)
    _check_status(job, columns, where)
    return _estimate(
        predictor, job, columns, where, device, coverage, price_usd_per_h=None,
        is_recorded=is_recorded and is_answer(job, space),
    )  # fmt: skip


def _check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"--count {count} is out of range", hint="give 1 or more")


def _accelerator(name: str) -> Device:
    device = devices.suite_device(name)
    if device is None:
        known = list(devices.accelerator_devices())
        lowered = {one.lower(): one for one in known}
        close = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)
        meant = " or ".join(lowered[one] for one in close)
        raise UsageError(
            f"no accelerator is called {name!r}",
            hint=f"did you mean {meant}?" if meant else f"one of: {', '.join(known)}",
        )
    return device


def _check_status(job: Job, columns: TimeColumns, where: str) -> None:
    if columns.status[0]:
        reason = STATUSES[int(columns.status[0])].replace("_", " ")
        raise UsageError(
            f"{job.name} cannot be estimated on {where}: {reason}",
            hint="choose another type, count, batch or precision",
        )


def _is_accelerated(device: Device | None) -> bool:
    return device is not None and device.kind != "cpu"


def _estimate(
    predictor: Predictor, job: Job, columns: TimeColumns, where: str, device: Device | None,
    coverage: float, *, price_usd_per_h: float | None, is_recorded: bool = False,
) -> StepEstimate:  # fmt: skip
    step = Estimate.lognormal(float(columns.step_s[0]), float(columns.log_sd[0]), coverage)
    time_h = None
    if job.total_source != NO_LENGTH:
        from advisor.predict.completion import as_recorded_h, on_demand

        if is_recorded:
            time_h = as_recorded_h(job, columns, coverage)
        else:
            time_h, _ = on_demand(job, columns, coverage).estimates(0, 0.0, coverage)
    work = job.work
    facts = StepFacts(predictor, job, columns, device, price_usd_per_h)
    return StepEstimate(
        job=job.name,
        target=where,
        devices=int(columns.workers[0]),
        step_time_s=step,
        throughput_samples_per_s=Estimate(
            value=job.global_batch / step.value,
            low=job.global_batch / step.high,
            high=job.global_batch / step.low,
            coverage=coverage,
        ),
        parts_s={name: float(share[0]) * step.value for name, share in columns.shares.items()},
        runs_as=None if work is None or device is None else runs_as(device, work.precision),
        layout=columns.layout(0),
        way=WAYS[int(columns.way[0])],
        memory_gib=float(columns.memory_bytes[0]) / GIB,
        device_memory_gib=None if device is None else device.memory_bytes / GIB,
        training_time_h=time_h,
        cost_usd=None,
        is_extrapolating=bool(columns.is_extrapolating[0]),
        facts=tuple(facts.all()),
        notes=(
            *job.notes,
            *script_notes(job, [(_is_accelerated(device), int(columns.workers[0]))]),
        ),
        units=transformer_units(
            job,
            step.value,
            int(columns.workers[0]),
            device,
            hours=None if time_h is None else time_h.value,
        ),
    )
