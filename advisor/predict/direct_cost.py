"""The cost of a job as it was learned from runs, with no time in between: the Nazari thesis's way.

What a job is billed follows from its time (``completion``). This is a second opinion beside it: a
model whose label was the cost itself, relative to what the partial run's time would cost on the
machines asked about. It answers where it has seen such jobs on such machines, and nowhere else;
it knows the steps alone, not what a bill has besides (start-up, storage, a shortest bill).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from advisor.catalogue import OfferColumns
from advisor.domain import Estimate
from advisor.jobs.job import Job
from advisor.predict import Predictor, TimeColumns
from advisor.predict.learned import COST, Learned, candidate_records
from advisor.records.importers.profiled import profile


def direct_cost(
    predictor: Predictor, job: Job, columns: TimeColumns, offers: OfferColumns, offer: int,
    coverage: float,
) -> Estimate | None:  # fmt: skip
    """Return the cost of the whole job on the machines of the only row of the columns [USD].

    None for a predictor of physics alone, a job that was not profiled on processors, a machine
    without a price, and wherever the model has seen no such runs. Raises ModelError if the model's
    folder was changed, or was fitted on other features than this version's.
    """
    price = float(offers.price_usd_per_h[offer])
    model = None if predictor.learned is None else Learned.default(COST)
    if model is None or not price > 0 or profile(job) is None:
        return None
    (asked,) = candidate_records(job, predictor.catalogue, columns, np.array([0]))
    (machines,) = asked.configuration
    asked = replace(asked, configuration=(replace(machines, price_usd_per_h=price),))
    if not model.covers([asked])[0]:
        return None
    found = model.model.predict([asked], coverage)
    return Estimate(
        value=float(found.value[0]), low=float(found.low[0]), high=float(found.high[0]),
        coverage=coverage,
    )  # fmt: skip
