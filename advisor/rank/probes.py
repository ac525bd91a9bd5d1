"""Short runs that would tell which machines to choose, where they are worth their price."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from advisor.answer import ProbeAdvice
from advisor.ask import Constraints
from advisor.catalogue import Offers
from advisor.estimate import Predictor, TimeColumns, offer_of
from advisor.learned import worthwhile
from advisor.rank.renting import Integers
from advisor.rank.rows import Rows

MINUTES: Final = 6.0  # to start a machine, load the data and see some hundred steps
_FIGURES: Final = ("price_usd", "gain_usd", "log_sd_before", "log_sd_after")
_MOST: Final = 2
_CONSIDERED: Final = 300  # candidates nearest to being chosen: the others are never the answer


def advise(
    request: Constraints, predictor: Predictor, offers: Offers, rows: Rows, columns: TimeColumns
) -> tuple[ProbeAdvice, ...]:
    """Return the short runs that are worth their price, best first (see ``learned.probing``).

    The choice that they help with is the cheapest candidate on demand that keeps the budget and
    the deadline of the request.
    """
    deadline_h, budget_usd = request.deadline_h or math.inf, request.budget_usd or math.inf
    near = _near_choice(rows, deadline_h, budget_usd)
    if near.size == 0:
        return ()
    at, price = rows.column[near], offers.price_usd_per_h[rows.offer[near]]
    found = worthwhile(
        cost_usd=rows.cost_usd[near], time_h=rows.time_h[near], log_sd=columns.log_sd[at],
        instance_types=columns.type_index[at], price_usd_per_h=price, probe_h=MINUTES / 60.0,
        deadline_h=deadline_h, budget_usd=budget_usd, most=_MOST,
    )  # fmt: skip
    advice = []
    for probe in found:
        same = np.flatnonzero(columns.type_index[at] == probe.instance_type)
        cheapest = near[same[np.argmin(price[same])]]
        figures = {name: getattr(probe, name) for name in _FIGURES}
        offer = offer_of(predictor.catalogue, offers, int(rows.offer[cheapest]))
        advice.append(ProbeAdvice(offer=offer, minutes=MINUTES, **figures))
    return tuple(advice)


def _near_choice(rows: Rows, deadline_h: float, budget_usd: float) -> Integers:
    """Return the rows that a probe could make the choice: of equal machines the cheapest."""
    usable = np.isfinite(rows.time_h) & rows.is_in_quota & ~rows.is_hopeless & ~rows.is_spot
    places = np.flatnonzero(usable)
    places = places[np.argsort(rows.cost_usd[places], kind="stable")]
    _, first = np.unique(rows.column[places], return_index=True)
    places = places[np.sort(first)]
    over = np.maximum(rows.time_h[places] / deadline_h, 1.0)
    over *= np.maximum(rows.cost_usd[places] / budget_usd, 1.0)
    order = np.argsort(rows.cost_usd[places] * over**2, kind="stable")
    return np.asarray(places[order[:_CONSIDERED]], dtype=np.int64)
