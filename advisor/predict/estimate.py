"""One job on one configuration, with its parts and where every number comes from."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from advisor.catalogue import Pricing
from advisor.collectors import benchmark, device_sheet, host
from advisor.collectors.recording import Host
from advisor.domain import Answer, Bottleneck, CompletionWay, Configuration, Estimate, Offer
from advisor.errors import UsageError
from advisor.jobs.described import NO_LENGTH
from advisor.jobs.job import Job
from advisor.jobs.script_notes import script_notes
from advisor.jobs.units import transformer_units
from advisor.machines import devices
from advisor.machines.fleet import lone_fleet
from advisor.machines.host import host_device, is_same_machine
from advisor.planners.core.nouns import Device
from advisor.planners.core.units import GIB
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.step.device_rates import runs_as
from advisor.predict import STATUSES, Predictor, TimeColumns
from advisor.predict.candidates import offer_of, throughput
from advisor.predict.direct_cost import direct_cost
from advisor.predict.facts import StepFacts
from advisor.ways.as_recorded import is_answer
from advisor.ways.columns import WAYS


def estimate_on_type(
    predictor: Predictor, job: Job, instance_type: str, *, provider: str | None = None,
    count: int = 1, coverage: float = 0.9, space: SearchSpace | None = None,
    completion: CompletionWay | None = None, known_network: bool = False,
) -> Answer:  # fmt: skip
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
    if offer is not None:
        rented = offer_of(predictor.catalogue, offers, offer)
    else:
        rented = Offer(
            provider=row.provider, instance_type=row.name, region="", pricing=pricing,
            price_usd_per_h=math.nan, accelerator=row.accelerator or None,
            accelerators=row.accelerator_count if row.accelerator else 0.0,
            vcpus=int(row.vcpus or 0), memory_gib=(row.memory_bytes or 0.0) / GIB,
        )  # fmt: skip
    found = _estimate(predictor, job, columns, (rented, count), device, coverage)
    if offer is None or found.training_time_h is None:
        return found
    whole = predictor.rented(
        job, columns, offers, offer, pricing=pricing, completion=completion, coverage=coverage,
        space=space, known_network=known_network,
    )  # fmt: skip
    return replace(
        whole, job=found.job, notes=found.notes, sources=found.sources, runs_as=found.runs_as,
        device_memory_gib=found.device_memory_gib,
        cost_direct_usd=direct_cost(predictor, job, columns, offers, offer, coverage),
    )  # fmt: skip


def estimate_on_gpu(
    predictor: Predictor, job: Job, gpu: str, *, count: int = 1, coverage: float = 0.9,
    space: SearchSpace | None = None,
) -> Answer:  # fmt: skip
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
    card = Offer(
        provider="", instance_type=device.name, region="", pricing="given",
        price_usd_per_h=math.nan, accelerator=device.name, accelerators=1.0, vcpus=0,
        memory_gib=0.0,
    )  # fmt: skip
    return on_device(predictor, job, device, (card, count), coverage, space)


def estimate_here(
    predictor: Predictor, job: Job, *, coverage: float = 0.9, space: SearchSpace | None = None
) -> Answer:
    """Estimate a job on this machine: as it was measured, where it was recorded here.

    Otherwise on its GPU where one was measured, on its processor where none was.

    Raises
    ------
    UsageError
        If the job cannot run here.
    """
    machine = machine_here(job)
    return on_device(
        predictor, job, machine.device, (machine.offer(), 1), coverage, space,
        is_recorded=machine.is_recorded,
    )  # fmt: skip


PROVIDER: Final = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHere:
    """The machine at hand: as described, what a job computes on, whether it was recorded here."""

    host: Host
    device: Device
    is_recorded: bool

    def offer(self, count: int = 1, price_usd_per_h: float = math.nan) -> Offer:
        """Return it as if it were sold, with ``count`` of its accelerators."""
        is_cpu = self.device.kind == "cpu"
        return Offer(
            provider=PROVIDER,
            instance_type=self.host.cpu_model if is_cpu else self.device.name,
            region="this machine",
            pricing="own",
            price_usd_per_h=price_usd_per_h,
            accelerator=None if is_cpu else self.device.name,
            accelerators=0.0 if is_cpu else float(count),
            vcpus=self.host.logical_cpus,
            memory_gib=self.host.memory_limit_bytes / GIB,
        )


def machine_here(job: Job, *, measures: bool = True) -> MachineHere:
    """Return what the job would run on here.

    Parameters
    ----------
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
    predictor: Predictor, job: Job, device: Device, machine: tuple[Offer, int], coverage: float,
    space: SearchSpace | None, *, is_recorded: bool = False,
) -> Answer:  # fmt: skip
    """Estimate a job on a device, or several, in one machine that nobody sells."""
    count = machine[1] if machine[0].provider != PROVIDER else round(machine[0].accelerators) or 1
    where = "this machine" if machine[0].provider == PROVIDER else f"{count} x {device.name}"
    lone = lone_fleet(device, count, predictor.catalogue.accelerators.get(device.name))
    lone = replace(lone, is_recorded=is_recorded)
    columns = predictor.step_columns(job, np.array([0]), np.array([1]), fleet=lone, space=space)
    _check_status(job, columns, where)
    return _estimate(
        predictor, job, columns, machine, device, coverage,
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
    predictor: Predictor, job: Job, columns: TimeColumns, machine: tuple[Offer, int],
    device: Device | None, coverage: float, *, is_recorded: bool = False,
) -> Answer:  # fmt: skip
    step = Estimate.lognormal(float(columns.step_s[0]), float(columns.log_sd[0]), coverage)
    time_h = None
    if job.total_source != NO_LENGTH:
        from advisor.predict.completion import as_recorded_h, on_demand

        if is_recorded:
            time_h = as_recorded_h(job, columns, coverage)
        else:
            time_h, _ = on_demand(job, columns, coverage).estimates(0, 0.0, coverage)
    work = job.work
    configuration = Configuration(parts=(machine,))
    price = configuration.price_usd_per_h
    is_priced = machine[0].provider != PROVIDER and not math.isnan(price)
    facts = StepFacts(predictor, job, columns, device, price if is_priced else None)
    shares: dict[str, float] = {name: float(share[0]) for name, share in columns.shares.items()}
    return Answer(
        job=job.name,
        configuration=configuration,
        devices=int(columns.workers[0]),
        step_time_s=step,
        throughput_samples_per_s=throughput(job, step),
        shares=shares,
        bottleneck=cast(Bottleneck, max(shares, key=lambda name: shares[name])),
        runs_as=None if work is None or device is None else runs_as(device, work.precision),
        layout=columns.layout(0),
        way=WAYS[int(columns.way[0])],
        memory_gib=float(columns.memory_bytes[0]) / GIB,
        device_memory_gib=None if device is None else device.memory_bytes / GIB,
        training_time_h=time_h,
        is_extrapolating=bool(columns.is_extrapolating[0]),
        sources=tuple(facts.all()),
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
