"""One offer rented for the whole job, in any way to complete it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from advisor.catalogue import Catalogue, OfferColumns
from advisor.domain import CompletionWay
from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.predict.candidates import on_demand_price
from advisor.predict.completion import Completion, on_demand, on_spot
from advisor.predict.data_costs import SideCosts
from advisor.predict.spot_ways import elastic_workers, on_elastic_spot, on_spot_with_fallback
from advisor.ways.columns import TimeColumns


def completed(
    job: Job, columns: TimeColumns, catalogue: Catalogue, offers: OfferColumns, offer_row: int,
    side: SideCosts, way: CompletionWay, coverage: float,
    step_columns: Callable[..., TimeColumns],
) -> Completion:  # fmt: skip
    """Return what the only row of the columns takes on the machines of one offer.

    Raises UsageError if the job cannot be completed that way on machines of this offer.
    """
    name = str(catalogue.types.name[int(offers.type_index[offer_row])])
    if (offers.pricing[offer_row] == "spot") != (way != "on-demand"):
        wanted = "on-demand" if way == "on-demand" else "spot"
        raise UsageError(
            f"{way!r} needs {wanted} machines, and those of {name} are offered as "
            f"{offers.pricing[offer_row]}",
            hint=f'ask for pricing="{wanted}"',
        )
    if way == "on-demand":
        return on_demand(job, columns, coverage)
    if way == "spot-by-deadline":
        raise UsageError(
            f"{way!r} needs a deadline", hint="rank machines: advisor recommend --spot --deadline"
        )
    row, band = np.array([0]), offers.spot_interruption_band[[offer_row]]
    if way == "spot":
        return on_spot(job, columns, row, band, coverage)
    if way == "elastic-spot":
        workers = elastic_workers(job, columns, row, step_columns)[0]
        if workers is None:
            raise UsageError(
                f"the job runs on no fewer machines than {int(columns.count[0])} x {name}",
                hint="an elastic job needs several machines that train data-parallel",
            )
        return on_elastic_spot(job, columns, row, band, [workers], coverage)
    price = on_demand_price(catalogue, offers, offer_row)
    if price is None:
        raise UsageError(
            f"{name} is not sold on demand in {offers.region[offer_row]}",
            hint="choose another region, or plain spot",
        )
    storage = np.nan_to_num(side.storage_usd_per_h[[offer_row]])
    ratio = (offers.price_usd_per_h[[offer_row]] + storage) / (price + storage)
    return on_spot_with_fallback(job, columns, row, band, ratio, coverage)
