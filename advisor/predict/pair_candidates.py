"""A way of training on several groups of machines as an object that is shown."""

from __future__ import annotations

import math
from typing import cast

from advisor.catalogue import Catalogue, OfferColumns
from advisor.domain import Bottleneck, Candidate, Configuration, Estimate, to_record
from advisor.jobs.job import Job
from advisor.jobs.units import transformer_units
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
from advisor.ways.answer import Choice
from advisor.ways.columns import TimeColumns
from advisor.ways.group_columns import layout_of_groups
from advisor.ways.unlike import words_of
from advisor.ways.words import assumed_network
from advisor.words import units_words


def group_candidate(
    job: Job, catalogue: Catalogue, choice: Choice, columns: TimeColumns, completion: Completion,
    offers: OfferColumns, side: SideCosts, *, parts: tuple[tuple[int, int], ...],
    coverage: float, rank: int = 1,
) -> Candidate:  # fmt: skip
    """Make the candidate of several offers, ``parts`` being their rows and machines of each.

    ``columns`` and ``completion`` have one row.
    """
    rented = [(offer_of(catalogue, offers, offer), count) for offer, count in parts]
    configuration = Configuration(parts=tuple(rented))
    stored = [(float(side.storage_usd_per_h[offer]), count) for offer, count in parts]
    egress = [e for offer, _ in parts if not math.isnan(e := float(side.egress_usd[offer]))]
    once = max(egress, default=math.nan)
    price = configuration.price_usd_per_h
    # Storage as it is priced: of the machines for which the catalogue has a price.
    hourly = price + sum(each * count for each, count in stored if not math.isnan(each))
    billing = side.billing(*(offer for offer, _ in parts))
    time_h, cost = completion.estimates(
        0, hourly, coverage, once_usd=0.0 if math.isnan(once) else once, billing=billing
    )
    storage = sum(each * count for each, count in stored)
    breakdown = completion.breakdown(0, price, storage, once, billing)
    step = Estimate.lognormal(float(columns.step_s[0]), float(columns.log_sd[0]), coverage)
    shares: dict[str, float] = {name: float(values[0]) for name, values in columns.shares.items()}
    names = {offer.instance_type: offer.accelerator or offer.instance_type for offer, _ in rented}
    # Devices of several kinds have no common peak.
    units = transformer_units(
        job, step.value, choice.devices, None,
        hours=float(completion.spot_h[0] + completion.on_demand_h[0]),
    )  # fmt: skip
    return Candidate(
        rank=rank,
        configuration=configuration,
        devices=choice.devices,
        layout=layout_of_groups(choice),
        step_time_s=step,
        throughput_samples_per_s=throughput(job, step),
        training_time_h=time_h,
        cost_usd=cost,
        memory_gib=float(columns.memory_bytes[0]) / GIB,
        bottleneck=cast(Bottleneck, max(shares, key=lambda name: shares[name])),
        shares=shares,
        reasons=(
            words_of(choice, names),
            waits(shares),
            *units_words(to_record(units)),
            *((assumed_network(shares["network"]),) if columns.is_network_assumed[0] else ()),
            *interruptions(completion, 0, sum(n for _, n in parts)),
            *whole_run(completion, 0),
            *beside_steps(breakdown, time_h.value, cost.value),
        ),
        is_extrapolating=bool(columns.is_extrapolating[0]),
        way=choice.name,
        breakdown=breakdown,
        completion=completion.way_of(0),
        units=units,
    )
