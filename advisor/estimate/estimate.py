"""One job on one configuration, with its parts and where every number comes from."""

from __future__ import annotations

import difflib
import math
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from advisor.answer import Answer, Candidate, CompletionWay, Configuration, Offer, to_record
from advisor.catalogue import Catalogue, Offers, Pricing, TableRow, TypeColumns
from advisor.collectors.watch import (
    cached_benchmark,
    cached_or_measured,
    cached_sheets,
    describe_host,
)
from advisor.errors import (
    AdvisorError,
    DoesNotFitError,
    DoesNotRunError,
    NotKnownError,
    UsageError,
)
from advisor.estimate.answer import (
    beside_steps,
    interruptions,
    memory_terms,
    network_words,
    offer_of,
    row_answer,
    waits,
    whole_run,
)
from advisor.estimate.best import refusal, rented_or_possible
from advisor.estimate.case import StepCase
from advisor.estimate.completion import Completion, Rent, SideCosts, on_demand, on_recorded_machine
from advisor.estimate.knowledge.learned import asked_of_cost, direct_cost
from advisor.estimate.knowledge.step_facts import StepFacts, price_facts
from advisor.estimate.predictor import Predictor
from advisor.estimate.time_columns import CODE, TimeColumns
from advisor.estimate.ways.data_parallel import is_answer
from advisor.jobs import NO_LENGTH, Job, script_notes, transformer_units
from advisor.machines import (
    accelerator_devices,
    host_device,
    is_same_machine,
    lone_fleet,
    lone_machines,
    suite_device,
)
from advisor.planners.core import GIB, Device, PlanningError
from advisor.planners.layouts import SearchSpace
from advisor.planners.step import runs_as
from advisor.words import input_words, units_words


def moved_by(
    predictor: Predictor, job: Job, instance_type: str, *, provider: str | None = None,
    count: int = 1,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Return by which factor each group of features moved the learned time, and the cost.

    ``time`` and ``cost``, each by group (job, anchor, series, machines, layout, physics), against
    the same run with the group at its usual values; without what no learned model covers.

    Raises CatalogueError if the type is unknown.
    """
    row = predictor.catalogue.instance_type(instance_type, provider=provider)
    columns = predictor.physics_columns(job, np.array([row.index]), np.array([count]))
    found: dict[str, dict[str, float]] = {}
    if predictor.learned is not None:
        (said,) = predictor.learned.effects(job, predictor.catalogue, columns)
        time = {name.removeprefix("effect_"): f for name, f in said.items() if math.isfinite(f)}
        found |= {"time": time} if time else {}
    offers, offer = predictor.cheapest(row)
    price = math.nan if offer is None else float(offers.price_usd_per_h[offer])
    asked = None
    if predictor.learned is not None:
        asked = asked_of_cost(predictor.catalogue, job, columns, price)
    if asked is not None:
        told = asked[0].model.explain(asked[1])
        found["cost"] = {name: float(np.exp(values[0])) for name, values in told.items()}
    return found


def estimate_on_type(
    predictor: Predictor, job: Job, instance_type: str, *, provider: str | None = None,
    count: int = 1, coverage: float = 0.9, space: SearchSpace | None = None,
    completion: CompletionWay | None = None, known_network: bool = False,
) -> Answer:  # fmt: skip
    """Estimate a job on machines of one type of the catalogue.

    ``completion`` is what the whole job runs on until it is done, machines that stay by default;
    ``space`` and ``known_network`` are those of ``Predictor.step_columns``.

    Raises CatalogueError if the type is unknown. Raises DoesNotRunError if the job cannot run
    there. Raises UsageError if the count makes no sense.
    """
    _check_count(count)
    row = predictor.catalogue.instance_type(instance_type, provider=provider)
    where = f"{count} x {row.name} ({row.provider})"
    columns, case, space = _laid_out(
        predictor, job, where, (row.index, count), space, known_network=known_network
    )
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
    found = _estimate(
        predictor, job, columns, (rented, count), device, coverage, case, of_type=row, space=space
    )
    if offer is None:
        return found
    if found.training_time_h is None:
        surplus = float(predictor.side_costs(job, offers).surplus_usd_per_h[offer])
        return replace(found, surplus_usd_per_h=surplus * count)
    whole = predictor.rented(
        job, columns, offers, offer, pricing=pricing, completion=completion, coverage=coverage,
        space=space, known_network=known_network,
    )  # fmt: skip
    return replace(
        whole, job=found.job, memory=found.memory, notes=found.notes, sources=found.sources,
        runs_as=found.runs_as,
        cost_direct_usd=None if predictor.learned is None else direct_cost(
            predictor.catalogue, job, columns, offers, offer, coverage
        ),
    )  # fmt: skip


def estimate_on_gpu(
    predictor: Predictor, job: Job, gpu: str, *, count: int = 1, coverage: float = 0.9,
    space: SearchSpace | None = None, known_network: bool = False,
) -> Answer:  # fmt: skip
    """Estimate a job on accelerators, whoever sells them; the hosts are no limit.

    More than one rented machine holds are in several (``machines.lone_machines``).

    Raises UsageError if the accelerator is unknown or the job has no steps. Raises
    DoesNotRunError if the job cannot run there.
    """
    _check_count(count)
    if job.work is None:
        raise UsageError(
            f"{job.name} has no training steps, so no accelerator speeds it up",
            hint="name a machine: --on g5.xlarge",
        )
    device = _accelerator(gpu)
    return on_device(
        predictor, job, device, (_card(device), count), coverage, space,
        known_network=known_network,
    )  # fmt: skip


def estimate_here(
    predictor: Predictor, job: Job, *, coverage: float = 0.9, space: SearchSpace | None = None
) -> Answer:
    """Estimate a job on this machine: as it was measured, where it was recorded here.

    Otherwise on its GPU where one was measured, on its processor where none was.

    Raises DoesNotRunError if the job cannot run here.
    """
    device, offer, is_recorded = machine_here(job)
    return on_device(predictor, job, device, (offer, 1), coverage, space, is_recorded=is_recorded)


PROVIDER: Final = "here"


def machine_here(
    job: Job, *, measures: bool = True, count: int = 1, price_usd_per_h: float = math.nan
) -> tuple[Device, Offer, bool]:
    """Return what the job would compute on here, and the machine as if it were sold.

    ``measures``: take the four-second benchmark where nobody has; the processor's tables answer
    otherwise. ``count``: accelerators that are used. The third is whether it was recorded here.

    Raises UsageError if this machine's GPU is not in the device sheet.
    """
    sheets = cached_sheets()
    measured = cached_or_measured() if measures else cached_benchmark()
    described = describe_host(benchmark=measured, sheets=sheets)
    seen = job.measured
    is_recorded = seen is not None and is_same_machine(seen.host, described)
    kind = "cuda" if any(sheet["device"] == "cuda" for sheet in sheets) else "cpu"
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
    is_cpu = device.kind == "cpu"
    offer = Offer(
        provider=PROVIDER, instance_type=described.cpu_model if is_cpu else device.name,
        region="this machine", pricing="own", price_usd_per_h=price_usd_per_h,
        accelerator=None if is_cpu else device.name, accelerators=0.0 if is_cpu else float(count),
        vcpus=described.logical_cpus, memory_gib=described.memory_limit_bytes / GIB,
    )  # fmt: skip
    return device, offer, is_recorded


def on_device(
    predictor: Predictor, job: Job, device: Device, machine: tuple[Offer, int], coverage: float,
    space: SearchSpace | None, *, is_recorded: bool = False, known_network: bool = False,
) -> Answer:  # fmt: skip
    """Estimate a job on a device, or several, in machines that nobody sells, or in this one."""
    offer, count = machine
    fleet, row, machines, where = _on(predictor, device, machine)
    if machines > 1:
        each = count // machines
        offer = replace(offer, instance_type=f"{each}x{device.name}", accelerators=float(each))
        machine = offer, machines
    columns, case, space = _laid_out(
        predictor, job, where, (row, machines), space, known_network=known_network,
        fleet=replace(fleet, is_recorded=is_recorded),
    )  # fmt: skip
    return _estimate(
        predictor, job, columns, machine, device, coverage, case,
        is_recorded=is_recorded and is_answer(job, space), space=space,
    )  # fmt: skip


# Machines, the row and number of those that are meant, and what they are called.
Meant = tuple[TypeColumns, int, int, str]


def _on(predictor: Predictor, device: Device, machine: tuple[Offer, int]) -> Meant:
    """Return machines with a device that nobody sells, or this one."""
    offer, count = machine
    if offer.provider == PROVIDER:
        row, cards = predictor.catalogue.accelerators.get(device.name), round(offer.accelerators)
        return lone_fleet(device, cards or 1, row), 0, 1, "this machine"
    fleet, machines = lone_machines(device, count, predictor.catalogue)
    return fleet, 0, machines, f"{count} x {device.name}"


def _card(device: Device) -> Offer:
    """Return an accelerator as if it were sold alone."""
    return Offer(
        provider="", instance_type=device.name, region="", pricing="given",
        price_usd_per_h=math.nan, accelerator=device.name, accelerators=1.0, vcpus=0,
        memory_gib=0.0,
    )  # fmt: skip


def _laid_out(
    predictor: Predictor, job: Job, where: str, machines: tuple[int, int],
    space: SearchSpace | None, **asked: Any,
) -> tuple[TimeColumns, StepCase | None, SearchSpace | None]:  # fmt: skip
    """Return the columns of one row, of what they were asked, and the space of its layout.

    ``machines``: its type and their number.

    Raises DoesNotRunError, UsageError or NotKnownError if the job has no estimate there.
    """

    def found(
        space: SearchSpace | None,
    ) -> tuple[TimeColumns, StepCase | None, SearchSpace | None]:
        kind, count = (np.array([one]) for one in machines)
        columns = predictor.step_columns(job, kind, count, space=space, **asked)
        case = None if job.work is None else predictor.case(job, space=space, **asked)
        _check_status(job, columns, case, where)
        return columns, case, space

    return rented_or_possible(found, space)


def _check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"--count {count} is out of range", hint="give 1 or more")


def machines_asked(
    predictor: Predictor, job: Job, *, on: str | None = None, gpu: str | None = None,
    count: int = 1,
) -> Meant:  # fmt: skip
    """Return the machines that are named.

    Raises UsageError if not exactly one of ``on`` and ``gpu`` is given, or one is unknown.
    """
    if (gpu is None) == (on is None):
        raise UsageError("name either --on or --gpu", hint="--gpu RTX-4090, or --on aws:g5.xlarge")
    _check_count(count)
    if on == PROVIDER:
        device, offer, _ = machine_here(job, measures=False)
        return _on(predictor, device, (offer, 1))
    if gpu is not None:
        device = _accelerator(gpu)
        return _on(predictor, device, (_card(device), count))
    provider, _, name = str(on).rpartition(":")
    found = predictor.catalogue.instance_type(name, provider=provider or None)
    return predictor.fleet_of(job), found.index, count, f"{count} x {found.name}"


def _accelerator(name: str) -> Device:
    device = suite_device(name)
    if device is None:
        known = list(accelerator_devices())
        lowered = {one.lower(): one for one in known}
        close = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)
        meant = " or ".join(lowered[one] for one in close)
        raise UsageError(
            f"no accelerator is called {name!r}",
            hint=f"did you mean {meant}?" if meant else f"one of: {', '.join(known)}",
        )
    return device


def _check_status(job: Job, columns: TimeColumns, case: StepCase | None, where: str) -> None:
    """Refuse machines that the job does not run on; ``case``: of what the columns were asked."""
    if columns.status[0]:
        why = refusal(case, columns, 0)
        if columns.status[0] == CODE["recorded_step_uncertain"]:
            raise NotKnownError(f"{job.name} cannot be estimated on {where}: {why}", hint=why.hint)
        is_full = columns.status[0] == CODE["does_not_fit_in_memory"] and case is not None
        error: type[AdvisorError] = DoesNotFitError if is_full else DoesNotRunError
        error = UsageError if why.exit_code == 2 else error
        raise error(f"{job.name} does not run on {where}: {why}", hint=why.hint)


def _estimate(
    predictor: Predictor, job: Job, columns: TimeColumns, machine: tuple[Offer, int],
    device: Device | None, coverage: float, case: StepCase | None, *, is_recorded: bool = False,
    of_type: TableRow | None = None, space: SearchSpace | None = None,
) -> Answer:  # fmt: skip
    row = row_answer(job, columns, 0, coverage, device)
    if case is not None:
        row["memory"] = memory_terms(case, columns, 0, row["layout"], device)
    if is_recorded:
        row["kept_free_gib"] = 0.0  # what ran there had room
    time_h = None
    if job.total_source != NO_LENGTH:
        done = (on_recorded_machine if is_recorded else on_demand)(job, columns, coverage)
        time_h = done.time_h(0, coverage)
        price = machine[0].price_usd_per_h * machine[1]
        rent = Rent(price_usd_per_h=price, billing=(0.0, 0.0))  # nobody rents it out
        row["breakdown"] = done.breakdown(0, rent)
    work, is_cpu = job.work, device is None or device.kind == "cpu"
    configuration = Configuration(parts=(machine,))
    facts = StepFacts(predictor, job, columns, device, of_type, space)
    return Answer(
        **row,
        job=job.name,
        configuration=configuration,
        runs_as=None if work is None or device is None else runs_as(device, work.precision),
        training_time_h=time_h,
        sources=(*facts.all(), *price_facts(configuration, is_lowest=True)),
        notes=tuple(filter(None, (
            job.fallback,
            input_words(job.feed.unseen, row["throughput_samples_per_s"].value,
                        machine[0].vcpus * machine[1]),
            *(note for note in job.notes if is_cpu or note not in job.limits.notes()),
            *script_notes(job, [(not is_cpu, row["devices"])]),
        ))),
        units=transformer_units(
            job, row["step_time_s"].value, row["devices"], device,
            hours=None if time_h is None else time_h.value,
        ),
    )  # fmt: skip


def group_candidate(
    job: Job, catalogue: Catalogue, choice: Answer, columns: TimeColumns, completion: Completion,
    offers: Offers, side: SideCosts, *, parts: tuple[tuple[int, int], ...],
    coverage: float, rank: int = 1,
) -> Candidate:  # fmt: skip
    """Make the candidate of several offers, ``parts`` being their rows and machines of each.

    ``columns`` and ``completion`` have one row.
    """
    rented = [(offer_of(catalogue, offers, offer), count) for offer, count in parts]
    configuration = Configuration(parts=tuple(rented))
    from advisor.estimate.unlike.places import layout_of_groups
    from advisor.estimate.unlike.ways import words_of

    rent = side.rent(configuration.price_usd_per_h, *parts)
    time_h, cost = completion.time_h(0, coverage), completion.cost_usd(0, rent, coverage)
    breakdown = completion.breakdown(0, rent)
    row = row_answer(job, columns, 0, coverage, None) | {
        "devices": choice.devices, "layout": layout_of_groups(choice), "way": choice.name,
        "memory": choice.memory,
    }  # fmt: skip
    names = {offer.instance_type: offer.accelerator or offer.instance_type for offer, _ in rented}
    # Devices of several kinds have no common peak.
    units = transformer_units(
        job, row["step_time_s"].value, choice.devices, None,
        hours=float(completion.spot_h[0] + completion.on_demand_h[0]),
    )  # fmt: skip
    return Candidate(
        **row,
        rank=rank,
        configuration=configuration,
        training_time_h=time_h,
        cost_usd=cost,
        reasons=(
            words_of(choice, names),
            waits(row["shares"]),
            *units_words(to_record(units)),
            *network_words(columns, 0),
            *interruptions(completion, 0, sum(n for _, n in parts)),
            *whole_run(completion, 0),
            *beside_steps(breakdown, time_h.value, cost.value),
        ),
        breakdown=breakdown,
        completion=completion.way_of(0),
        units=units,
    )


def machine_at_hand(
    predictor: Predictor, job: Job, *, price_usd_per_h: float = 0.0, coverage: float = 0.9,
    space: SearchSpace | None = None, count: int = 1, is_changed: bool = False,
) -> Candidate | None:  # fmt: skip
    """Return the job on this machine; None where it cannot run here, or is of unknown length.

    Nothing is measured for it: where nobody has (``advisor doctor``), the processor's tables
    answer.

    ``is_changed``: the job is trained otherwise than it was recorded in ways that its record does
    not show: its measured step is an anchor, not the answer.
    """
    try:
        device, offer, is_recorded = machine_here(
            job, measures=False, count=count, price_usd_per_h=price_usd_per_h
        )
        found = on_device(
            predictor, job, device, (offer, 1), coverage, space,
            is_recorded=is_recorded and not is_changed,
        )  # fmt: skip
    except (AdvisorError, PlanningError):
        return None
    if found.training_time_h is None or found.bottleneck is None:
        return None
    told = {field.name: getattr(found, field.name) for field in fields(found)}
    cost = found.training_time_h.scaled(price_usd_per_h)
    return Candidate(**told | {"rank": 0, "cost_usd": cost, "notes": ()})
