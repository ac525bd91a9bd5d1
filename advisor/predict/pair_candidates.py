"""One row of the mixed columns as an object that is shown, with its split in words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from advisor.catalogue import Catalogue, OfferColumns
from advisor.domain import Bottleneck, Candidate, Configuration, Estimate, Offer, to_record
from advisor.jobs.job import Job
from advisor.jobs.units import transformer_units
from advisor.planners.core.nouns import Layout
from advisor.planners.core.units import GIB
from advisor.predict.candidates import (
    beside_steps,
    interruptions,
    offer_of,
    throughput,
    waits,
    whole_run,
)
from advisor.predict.completion import Completion
from advisor.predict.data_costs import SideCosts
from advisor.ways.pairs import PairColumns
from advisor.words import units_words


def pair_candidate(
    job: Job, catalogue: Catalogue, columns: PairColumns, completion: Completion,
    offers: OfferColumns, side: SideCosts, *, row: int, offer_rows: tuple[int, int],
    coverage: float, rank: int = 1,
) -> Candidate:  # fmt: skip
    """Make the candidate of two offers, one row of the columns and of the completions."""
    times = columns.times
    parts = [
        (offer_of(catalogue, offers, offer), int(count[row]))
        for offer, count in zip(offer_rows, columns.counts, strict=True)
    ]
    configuration = Configuration(parts=tuple(parts))
    storage = sum(
        float(side.storage_usd_per_h[offer]) * count
        for offer, (_, count) in zip(offer_rows, parts, strict=True)
    )
    egress = [float(side.egress_usd[offer]) for offer in offer_rows]
    once = max((e for e in egress if not math.isnan(e)), default=math.nan)
    price = configuration.price_usd_per_h
    # Storage as it is priced: of the machines for which the catalogue has a price.
    stored = sum(
        0.0 if math.isnan(s := float(side.storage_usd_per_h[offer])) else s * count
        for offer, (_, count) in zip(offer_rows, parts, strict=True)
    )
    billing = side.billing(*offer_rows)
    time_h, cost = completion.estimates(
        row, price + stored, coverage, once_usd=0.0 if math.isnan(once) else once, billing=billing
    )
    breakdown = completion.breakdown(row, price, storage, once, billing)
    step = Estimate.lognormal(float(times.step_s[row]), float(times.log_sd[row]), coverage)
    shares: dict[str, float] = {name: float(values[row]) for name, values in times.shares.items()}
    # Devices of two kinds have no common peak.
    units = transformer_units(
        job, step.value, sum(n * max(int(offer.accelerators), 1) for offer, n in parts), None,
        hours=float(completion.spot_h[row] + completion.on_demand_h[row]),
    )  # fmt: skip
    return Candidate(
        rank=rank,
        configuration=configuration,
        devices=sum(n * max(int(offer.accelerators), 1) for offer, n in parts),
        layout=_layout(columns, row),
        step_time_s=step,
        throughput_samples_per_s=throughput(job, step),
        training_time_h=time_h,
        cost_usd=cost,
        memory_gib=float(times.memory_bytes[row]) / GIB,
        bottleneck=cast(Bottleneck, max(shares, key=lambda name: shares[name])),
        shares=shares,
        reasons=(
            _split(columns, row, [offer for offer, _ in parts]),
            waits(shares),
            *units_words(to_record(units)),
            *interruptions(completion, row, sum(n for _, n in parts)),
            *whole_run(completion, row),
            *beside_steps(breakdown, time_h.value, cost.value),
        ),
        is_extrapolating=bool(times.is_extrapolating[row]),
        way="pipeline over groups" if columns.cut[row] else "uneven batches",
        breakdown=breakdown,
        completion=completion.way_of(row),
        units=units,
    )


def _layout(columns: PairColumns, row: int) -> Layout:
    """Return the layout of the first type's ranks; the reasons say how the second's differ."""
    layout = columns.times.layout(row)
    return replace(layout, dp=1, pp=2) if columns.cut[row] else layout


def _split(columns: PairColumns, row: int, offers: list[Offer]) -> str:
    names = [offer.accelerator or offer.instance_type for offer in offers]
    if cut := int(columns.cut[row]):
        first, last = (1, 0) if columns.is_second_first[row] else (0, 1)
        return (
            f"pipeline: the first {cut} units of layers on {names[first]}, the rest on "
            f"{names[last]}, micro-batches of {int(columns.times.micro_batch[row])}"
        )
    shares = [
        f"{int(b[row])} samples a step on each {name}"
        for b, name in zip(columns.samples, names, strict=True)
    ]
    zero = int(columns.times.zero_stage[row])
    sharded = f", ZeRO stage {zero}" if zero else ""
    if columns.times.layout(row).recompute != "none":
        sharded += ", activations computed again"
    return f"uneven batches: {', '.join(shares)}{sharded} (examples/uneven_ddp.py)"
