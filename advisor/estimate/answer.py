"""One row of the columns as an object that is shown, with the reasons for it in words.

Among them are those for its layout: what simpler ones would take, or that they do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from advisor.answer import (
    Bill,
    Candidate,
    Configuration,
    Estimate,
    Explanation,
    Offer,
    Part,
    Predictions,
    Refused,
    to_record,
)
from advisor.catalogue import Catalogue, Offers, Pricing
from advisor.collectors.errors import counted
from advisor.estimate.case import StepCase, host_core_speed, is_laid_out_by_shape
from advisor.estimate.completion import PAID_ON_DEMAND, Completion, SideCosts
from advisor.estimate.knowledge.layout_model import Outside
from advisor.estimate.time_columns import CODE, TimeColumns, way_name
from advisor.estimate.ways.data_parallel import data_parallel, memory_there
from advisor.estimate.ways.model_parallel import OnMachine, on_machine, outside, space_on
from advisor.estimate.ways.recorded_units import unit_model
from advisor.jobs import Job, transformer_units
from advisor.planners.core import GIB, Device, Layout
from advisor.planners.goodput import LLAMA3, NEGLIGIBLE_FRACTION
from advisor.planners.layouts import layout_columns
from advisor.planners.memory import (
    TERMS,
    UNSEEN,
    Ledger,
    MemoryConstants,
    Term,
    deviation_bytes,
    needed_of,
    without_terms,
    work_ledger,
)
from advisor.planners.spot import BANDS
from advisor.planners.step import vcpus_needed
from advisor.quantities import REACH_90, hours_interval, percent_text, seconds_text, usd_interval
from advisor.words import units_words

_TIMES: Final = (
    ("start_up", "start-up"),
    ("data_in", "data download"),
    ("epoch_ends", "validation"),
)  # fmt: skip
_COSTS: Final = (
    ("shortest_bill", "minimum billing"),
    ("cpu_surplus", "processor time beyond the baseline"), ("storage", "storage"),
    ("results_out", "downloading results"),
)  # fmt: skip
# Shares of a step below this are not worth a word.
_WORTH_SAYING: Final = 0.05


def candidate(
    job: Job, catalogue: Catalogue, columns: TimeColumns, completion: Completion,
    offers: Offers, side: SideCosts, *, offer_row: int, column: int, completion_row: int,
    steady: Completion | None, coverage: float, why: tuple[str, ...], rank: int = 1,
    device: Device | None, case: StepCase | None,
) -> Candidate:  # fmt: skip
    """Make the candidate of one offer, one row of the time columns and one of the completions.

    ``side`` has one row an offer; ``steady``, one row a column, says for a spot offer what the
    same machines would take on demand; ``why`` says why the layout was chosen; ``device`` is what
    the machines compute on; ``case``: that the columns were asked of, None without steps.
    """
    offer = offer_of(catalogue, offers, offer_row)
    count = int(columns.count[column])
    row = row_answer(job, columns, column, coverage, device)
    if case is not None:
        row["memory"] = memory_terms(case, columns, column, row["layout"], device)
    step, shares = row["step_time_s"], row["shares"]
    rent = side.rent(offer.price_usd_per_h * count, (offer_row, count))
    each = on_demand_price(offers, offer_row)
    steady_rent = replace(rent, price_usd_per_h=(each or math.nan) * count)
    bills = _bills(
        completion, completion_row, offer.pricing, rent.price_usd_per_h,
        steady_rent.price_usd_per_h,
    )  # fmt: skip
    if completion.way_of(completion_row) in PAID_ON_DEMAND and each is not None:
        rent = steady_rent  # what its billed hours are counted in
    time_h = completion.time_h(completion_row, coverage)
    cost = completion.cost_usd(completion_row, rent, coverage)
    alike: dict[str, Any] = {}
    if steady is not None and offer.pricing == "spot" and each is not None:
        alike = {
            "on_demand_time_h": steady.time_h(column, coverage),
            "on_demand_cost_usd": steady.cost_usd(column, steady_rent, coverage),
        }
    breakdown = completion.breakdown(completion_row, rent)
    speed = float(catalogue.types.core_speed[int(columns.type_index[column])])
    is_learned = columns.is_learned is not None and bool(columns.is_learned[column])
    late = float(completion.late_fraction[completion_row])
    units = transformer_units(
        job, step.value, row["devices"], device,
        hours=float(completion.spot_h[completion_row] + completion.on_demand_h[completion_row]),
    )  # fmt: skip
    return Candidate(
        **row,
        rank=rank,
        configuration=Configuration(parts=((offer, count),)),
        training_time_h=time_h,
        cost_usd=cost,
        reasons=(
            waits(shares),
            *units_words(to_record(units)),
            *network_words(columns, column),
            *(("corrected by measured runs of similar size",) if is_learned else ()),
            *why,
            *_feeding(job, offer, shares, step.value, speed),
            *interruptions(completion, completion_row, count),
            *whole_run(completion, completion_row),
            *_on_demand(**alike),
            *beside_steps(breakdown, time_h.value, cost.value),
        ),
        breakdown=breakdown,
        surplus_usd_per_h=rent.surplus_usd_per_h,
        is_learned=is_learned,
        is_network_assumed=columns.assumed_network(column) is not None,
        **alike,
        completion=completion.way_of(completion_row),
        late_probability=None if math.isnan(late) else late,
        bills=bills,
        units=units,
    )


def row_answer(
    job: Job, columns: TimeColumns, row: int, coverage: float, device: Device | None
) -> dict[str, Any]:
    """Return what one row of the columns says of an answer, by the names of its fields.

    ``device``: what the machines compute on; None where that is not known, or several.
    """
    step = Estimate.lognormal(float(columns.step_s[row]), float(columns.log_sd[row]), coverage)
    shares: dict[str, float] = {name: float(part[row]) for name, part in columns.shares.items()}
    return {
        "devices": int(columns.workers[row]),
        "layout": columns.layout(row),
        "way": way_name(int(columns.way[row])),
        "step_time_s": step,
        "throughput_samples_per_s": throughput(job.global_batch, step),
        "memory_gib": float(columns.memory_bytes[row]) / GIB,
        **({} if device is None else memory_there(device, is_program=job.work is None)),
        "shares": shares,
        "bottleneck": max(shares, key=lambda name: shares[name]),
        "is_extrapolating": bool(columns.is_extrapolating[row]),
    }


def memory_terms(
    case: StepCase, columns: TimeColumns, row: int, layout: Layout, device: Device | None
) -> dict[str, Any]:
    """Return what a row's fullest device holds, by term and by what reads it; empty if unknown.

    ``terms_gib``, and ``stages_gib`` of the ends of a pipeline; ``read_gib`` by
    ``Definition``, each with its interval and deviation; ``equations`` and ``sources`` of the
    terms; ``fits_probability``; ``decided_at``, what that had to be, where a layout was chosen.
    """
    if device is None:
        return {}
    way, there = way_name(int(columns.way[row])), {"": device}
    if way != "model parallel":
        terms = row_ledger(case, columns, row, device)
        return memory_record({"": terms}, case.constants.memory, there) if terms else {}
    problem, asked = on_machine(case, int(columns.type_index[row])).problem, layout_columns(layout)
    found = memory_record({"": problem.ledger(asked)}, problem.memory, there, case.space.sureness)
    if layout.pp > 1:
        found["stages_gib"] = {
            "first stage": _in_gib(problem.ledger(asked, "first")),
            "last stage": _in_gib(problem.ledger(asked, "last")),
        }
    return found


def row_ledger(case: StepCase, columns: TimeColumns, row: int, device: Device) -> Ledger:
    """Return what a row's fullest device holds of recorded work, by term; empty if unknown."""
    way, layout = way_name(int(columns.way[row])), columns.layout(row)
    if way == "recorded units":
        return unit_model(case).problem(int(columns.type_index[row])).ledger(layout)
    if way != "data parallel":
        return {}
    return work_ledger(
        case.work, max(layout.micro_batch, 1), dp=layout.dp, zero_stage=layout.zero_stage,
        is_cpu=device.kind == "cpu", accumulates=layout.accumulation_steps > 1,
        parameters=case.constants.memory,
    )  # fmt: skip


def memory_record(
    ledgers: Mapping[str, Ledger], constants: MemoryConstants, devices: Mapping[str, Device],
    decided_at: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what is told of the fullest device's memory, and by term of each group's.

    ``ledgers``: of the fullest device, by group; ``devices``: likewise; ``decided_at``: how likely
    a layout had to fit.
    """
    spare = {name: _spare_sds(one, constants, devices[name]) for name, one in ledgers.items()}
    fullest = min(spare, key=spare.__getitem__)
    terms = ledgers[fullest]
    found: dict[str, Any] = {} if decided_at is None else {"decided_at": decided_at}
    if len(ledgers) > 1:
        found["group"] = fullest
        found["stages_gib"] = {name: _in_gib(one) for name, one in ledgers.items()}
    return found | {
        "terms_gib": _in_gib(terms), "coverage": 0.9,
        "fits_probability": NormalDist().cdf(spare[fullest]),
        "read_gib": {name: _reading(terms, constants, unseen) for name, unseen in UNSEEN.items()},
        "equations": {name: TERMS[name][1] for name in terms},
        "sources": {name: TERMS[name][2] for name in terms},
    }  # fmt: skip


def _spare_sds(terms: Ledger, constants: MemoryConstants, device: Device) -> float:
    """Return what a device has beyond its terms, in standard deviations of them."""
    sd = max(float(deviation_bytes(terms, constants)), 1.0)
    return (device.memory_bytes - float(needed_of(terms))) / sd


def _in_gib(terms: Ledger) -> dict[str, float]:
    return {name: float(terms[name]) / GIB for name in TERMS if float(terms.get(name, 0.0)) > 0}


def _reading(
    terms: Ledger, constants: MemoryConstants, unseen: tuple[Term, ...]
) -> dict[str, float]:
    """Return the sum of the terms but for some, and its 90 % interval [GiB]."""
    value = float(without_terms(terms, unseen)) / GIB
    sd = float(deviation_bytes(terms, constants, unseen)) / GIB
    low, high = max(value - REACH_90 * sd, 0.0), value + REACH_90 * sd
    return {"value": value, "low": low, "high": high, "sd": sd}


def _bills(
    completion: Completion, row: int, pricing: str, price: float, on_demand_price: float
) -> tuple[Bill, ...]:
    """Divide the rented time by price; prices are of all machines together [USD/h].

    ``pricing``, ``price``: the offer's, spot where the job runs on spot machines.
    """
    steady, usd = "on-demand", on_demand_price
    if completion.way_of(row) == "on-demand":
        steady, usd = pricing, price
    hours = (
        ("spot", float(completion.spot_h[row]), price),
        (steady, float(completion.on_demand_h[row]), usd),
    )
    return tuple(
        Bill(pricing=kind, time_h=time_h, price_usd_per_h=usd)
        for kind, time_h, usd in hours
        if time_h > 0
    )


def throughput(samples: int, step: Estimate) -> Estimate:
    """Return the samples per second of a step time, its bounds turned round."""
    return Estimate(
        value=samples / step.value, low=samples / step.high, high=samples / step.low,
        coverage=step.coverage,
    )  # fmt: skip


def offer_of(catalogue: Catalogue, offers: Offers, row: int) -> Offer:
    """Return one row of the offers as an object."""
    types = catalogue.types
    i = int(offers.type_index[row])
    name = str(types.accelerator[i])
    source = offers.source(row)
    pricing: Pricing = offers.pricing[row].item()
    at_once = float(offers.most_at_once[row])
    return Offer(
        provider=str(types.provider[i]), instance_type=str(types.name[i]),
        region=str(offers.regions[offers.region_index[row]]), pricing=pricing,
        price_usd_per_h=float(offers.price_usd_per_h[row]), accelerator=name or None,
        accelerators=float(types.accelerator_count[i]) if name else 0.0, vcpus=int(types.vcpus[i]),
        memory_gib=float(types.memory_bytes[i]) / GIB, terms=_terms(offers, row),
        price_as_of=source.day_of(pricing), price_kind=source.kind_of(pricing),
        price_status=source.status_of(pricing), listing=source.listing,
        most_at_once=int(at_once) if math.isfinite(at_once) else None,
    )  # fmt: skip


_COMMITTED: Final = {"reserved-1y": "your one-year price", "reserved-3y": "your three-year price"}


def _terms(offers: Offers, row: int) -> str:
    """Say what is particular of an offer's price."""
    if offers.pricing[row] == "spot":
        return interruption_words(float(offers.spot_interruption_band[row]))
    if offers.pricing[row] in _COMMITTED:
        return _COMMITTED[str(offers.pricing[row])]
    status = offers.source(row).status
    if status == "own reserved":
        return "your reservation"
    if status == "own block":
        return f"your capacity block of {offers.bill_step_h[row]:g} h"
    return ""


def interruption_words(band: float) -> str:
    """Say how many spot machines are taken away in a month.

    >>> interruption_words(0.0), interruption_words(4.0), interruption_words(math.nan)
    ('under 5 % interrupted per month', 'over 20 % interrupted per month', 'interruptions unknown')
    """
    if math.isnan(band):
        return "interruptions unknown"
    name = BANDS[int(band)].replace("<", "under ").replace(">", "over ").replace("%", " %")
    return f"{name} interrupted per month"


def waits(shares: Mapping[str, float]) -> str:
    """Say what the step waits for, largest first, small shares left out."""
    parts = sorted(shares.items(), key=lambda item: -item[1])
    return "step: " + ", ".join(
        f"{name} {percent_text(share)}" for name, share in parts if share >= _WORTH_SAYING
    )


def network_words(columns: TimeColumns, column: int) -> tuple[str, ...]:
    """Say on which assumed network a row rests, where it does."""
    assumed = columns.assumed_network(column)
    return () if assumed is None else (assumed_network(*assumed),)


def _feeding(
    job: Job, offer: Offer, shares: Mapping[str, float], step_s: float, core_speed: float
) -> tuple[str, ...]:
    """Where the job waits for data: how many virtual CPUs would feed it, or that none would."""
    if shares["input"] < _WORTH_SAYING:
        return ()
    computes_s = job.feed.cpu_s_per_sample
    if job.feed.idle_s_per_sample > (computes_s or 0.0):
        each = seconds_text(job.feed.idle_s_per_sample)
        return (
            f"input-bound: loading waits {each} per sample for storage; a faster machine does "
            "not help, more loader workers do",
        )
    if computes_s is None:
        return ()
    fed = job.global_batch / (step_s * max(1.0 - shares["input"], 1e-9))
    needed = float(vcpus_needed(fed, computes_s, host_core_speed(job), core_speed))
    if job.feed.is_environment:
        return (
            f"{percent_text(shares['input'])} of the step is the environment's, on one core; "
            "run several at once",
        )
    if job.feed.workers == 0:
        return (
            f"{percent_text(shares['input'])} of the step loads data in the training loop; "
            "use loader workers",
        )
    return (
        f"input-bound: {counted(math.ceil(needed), 'vCPU')} would feed it (a machine has "
        f"{offer.vcpus}); "
        "use more loader workers",
    )


def interruptions(completion: Completion, row: int, count: int) -> tuple[str, ...]:
    """Say what failures or removals add, and which checkpoints that assumes."""
    overhead = float(completion.overhead_fraction[row])
    interval = seconds_text(float(completion.checkpoint_interval_s[row]))
    every = f"a checkpoint every {interval}"
    finish = f"the median run takes {1 + overhead:.2f} times the uninterrupted time"
    way = completion.way_of(row)
    if way == "spot":
        return (f"spot: {finish}, including waits for machines, with {every}",)
    if way in PAID_ON_DEMAND:
        spot, on_demand = float(completion.spot_h[row]), float(completion.on_demand_h[row])
        on_spot = f"on spot machines {percent_text(spot / (spot + on_demand))} of the"
        said = f"spot with fallback: {on_spot} time, on demand when no spot machine is available"
        if way == "spot-by-deadline":
            said = (
                f"by the deadline: {on_spot} rented time, on demand or waiting where the plan of "
                "`advisor simulate spot --deadline` says so"
            )
        return (f"{said}; {finish}, with {every}",)
    if way == "elastic-spot":
        mean = count * float(completion.spot_h[row] / completion.rented_h[row])
        return (
            f"elastic spot: starts with the machines available and grows to {count}, "
            f"{mean:.1f} on average; {finish}, including waits, with {every}",
        )
    if completion.is_negligible[row]:
        return (f"checkpoints and failures add less than {percent_text(NEGLIGIBLE_FRACTION)}",)
    return (
        f"failures and a checkpoint every {interval} add {percent_text(overhead)}; a second "
        f"network path would hide {percent_text(LLAMA3.network_fraction)} of the failures",
    )


def whole_run(completion: Completion, row: int) -> tuple[str, ...]:
    """Say what a whole run of this size adds, where it is worth a word."""
    stalls_s = float(completion.parts_s["whole_run"][row])
    added = stalls_s / (float(completion.from_first_step_s[row]) - stalls_s)
    if not added >= NEGLIGIBLE_FRACTION:
        return ()
    return (
        f"evaluation, stalls and manual stops add {percent_text(added)} (fitted on published "
        "training runs)",
    )


def on_demand_price(offers: Offers, row: int) -> float | None:
    """Return the on-demand price of one of an offer's machines in its region [USD/h], if any."""
    price = float(offers.on_demand_usd_per_h[row])
    return None if math.isnan(price) else price


def _on_demand(**alike: Estimate) -> tuple[str, ...]:
    """Set what the same machines take on demand beside a spot candidate."""
    if not alike:
        return ()
    cost, cost_bounds = usd_interval(alike["on_demand_cost_usd"].to_record())
    time, time_bounds = hours_interval(alike["on_demand_time_h"].to_record())
    return (f"on demand: {cost} ({cost_bounds}) in {time} ({time_bounds})",)


def beside_steps(parts: Mapping[str, Part], time_h: float, cost_usd: float) -> tuple[str, ...]:
    """Name what is neither steps nor interruptions where it takes a share worth a word."""
    shares = [(parts[key].time_h / time_h, f"{name} {{}} of the time") for key, name in _TIMES]
    for key, name in _COSTS:
        shares.append(((parts[key].cost_usd or 0.0) / cost_usd, f"{name} {{}} of the cost"))
    said = [words.format(percent_text(share)) for share, words in shares if share >= 0.01]
    return ("other than training steps: " + ", ".join(said),) if said else ()


def explanation(found: Predictions, effects: Sequence[Mapping[str, float]]) -> Explanation:
    """Join what the steps wait for with what was learned, a row a configuration.

    ``effects`` has one entry a candidate; what has none is a row with its reason.
    """
    told = iter(effects)
    rows: list[Mapping[str, Any]] = []
    for one in found:
        if isinstance(one, Refused):
            rows.append({"configuration": one.configuration, "reason": one.reason})
            continue
        offer, count = one.configuration.parts[0]
        shares = {f"share_{name}": share for name, share in one.shares.items()}
        rows.append({
            "configuration": f"{count} x {offer.instance_type}",
            "learned": one.is_learned,
            **shares,
            **next(told),
        })  # fmt: skip
    return Explanation(tuple(rows))


_DATA_PARALLEL: Final[dict[str, Any]] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}


def reasons(
    case: StepCase, row: int, count: int, layout: Layout, step_s: float
) -> tuple[str, ...]:
    """Return why ``layout`` was chosen on ``count`` machines of a type.

    ``row``, ``count``: of the fleet's types; machines; ``layout``: the fastest that fits;
    ``step_s``: its step [s].
    """
    if not is_laid_out_by_shape(case, np.array([row])).all():
        return _of_plain(case, row, count, layout, step_s)
    on = on_machine(case, row)
    said = [*outside_words(case, row, layout)]
    if layout.tp * layout.pp * layout.cp * layout.ep > 1:
        said.append(_against_data_parallel(case, on, count, step_s))
    kept = replace(space_on(case, on.problem), recomputes=("none",), offloads=())
    devices = count * on.per_node
    fits = layout.recompute == "none" or on.problem.fits(devices, case.job.global_batch, kept)
    if not fits:
        said.append("no layout without recomputation fits")
    if layout.offload:
        said.append(_against_device_memory(case, on, count, layout, step_s))
    return tuple(said)


def _against_data_parallel(case: StepCase, on: OnMachine, count: int, step_s: float) -> str:
    space = replace(space_on(case, on.problem), **_DATA_PARALLEL)
    plain = on.problem.search(count * on.per_node, case.job.global_batch, space)
    if plain.best is not None:
        return f"data parallel alone would take {plain.best.step_s / step_s:.2f} times as long"
    if plain.nearest is not None:
        return "data parallel alone does not fit"
    return "data parallel alone has too few samples for all devices"


def _against_device_memory(
    case: StepCase, on: OnMachine, count: int, layout: Layout, step_s: float
) -> str:
    moved = f"{' and '.join(sorted(layout.offload))} in host memory"
    space = replace(space_on(case, on.problem), offloads=())
    kept = on.problem.search(count * on.per_node, case.job.global_batch, space).best
    if kept is None:
        return f"only with {moved} does it fit"
    return f"without {moved} it would take {kept.step_s / step_s:.2f} times as long"


def _of_plain(
    case: StepCase, row: int, count: int, layout: Layout, step_s: float
) -> tuple[str, ...]:
    """Return what a layout of whole models, or of recorded units, says for itself."""
    said = []
    if layout.zero_stage or layout.tp * layout.pp > 1:
        said.append(_against_plain(case, row, count, layout, step_s))
    if layout.accumulation_steps > 1:
        samples = layout.micro_batch * layout.accumulation_steps * layout.dp
        smaller = ", the last one smaller" if samples > case.job.global_batch else ""
        said.append(
            f"{layout.accumulation_steps} micro-batches of {layout.micro_batch} keep the batch"
            f"{smaller}"
        )
    return tuple(said)


def _against_plain(case: StepCase, row: int, count: int, layout: Layout, step_s: float) -> str:
    """Return what whole models on every device, sharded less, would take instead."""
    is_split = layout.tp * layout.pp > 1
    fewer = [z for z in case.space.zero_stages if is_split or z < layout.zero_stage]
    space = replace(case.space, **_DATA_PARALLEL, zero_stages=tuple(fewer), recomputes=("none",),
                    micro_batch=None, accumulation_steps=None)  # fmt: skip
    plain = data_parallel(replace(case, space=space, seen={}), np.array([row]), np.array([count]))
    if fewer and plain.status[0] == 0:
        stage = plain.layout(0).zero_stage
        sharded = f"with ZeRO stage {stage}" if stage else "without shards"
        return f"data parallel {sharded} would take {plain.step_s[0] / step_s:.2f} times as long"
    if not fewer:
        return f"ZeRO stage {layout.zero_stage} as asked"
    if plain.status[0] == CODE["fewer_samples_than_workers"]:
        return "data parallel alone has too few samples for all devices"
    return (
        "data parallel alone does not fit"
        if is_split
        else (f"fits only with ZeRO stage {layout.zero_stage}")
    )


# Shares of a step below this are not worth a number.
_WORTH_A_NUMBER: Final = 0.01


# In what a question leaves the box of what was measured (``layout_model.Outside``).
_OUTSIDE: Final[Mapping[Outside, str]] = {
    "wide": "a wider model", "narrow": "a narrower model", "devices": "more devices",
    "chip": "another chip", "precision": "another precision", "stack": "another stack",
    "experts": "a mixture of experts",
}  # fmt: skip


def outside_words(case: StepCase, row: int, layout: Layout) -> tuple[str, ...]:
    """Say in what a layout by shape leaves what the layout model was fitted on, if it does."""
    if case.own is not None or not is_laid_out_by_shape(case, np.array([row])).all():
        return ()
    found = outside(case, on_machine(case, row), layout)
    why = ", ".join(_OUTSIDE[name] for name in found)
    said = f"outside what we measured on GPUs of its generation, so the interval is wider: {why}"
    return (said,) if found else ()


def assumed_network(bytes_per_s: float, slope: float) -> str:
    """Return what is said of a row whose network nobody states.

    ``slope``: by how much ln(step) falls as the logarithm of the network rises.

    >>> assumed_network(400e9, 0.25)
    'network assumed: 3,200 Gbit/s a machine, as rented; half of it makes a step 19 % longer'
    """
    more = 2.0**slope - 1.0
    longer = f"{percent_text(more)} longer" if more >= _WORTH_A_NUMBER else "hardly longer"
    return (
        f"network assumed: {network_text(bytes_per_s)} a machine, as rented; "
        f"half of it makes a step {longer}"
    )


def network_text(bytes_per_s: float) -> str:
    """Return a network's rate in words.

    >>> network_text(400e9), network_text(1.25e9)
    ('3,200 Gbit/s', '10 Gbit/s')
    """
    return f"{round(bytes_per_s * 8e-9):,} Gbit/s"
