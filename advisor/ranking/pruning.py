"""Which (type, count) need a search for their best layout at all: bounds decide.

Every row has a bound from below on its time (computing alone, shared evenly) and so, with the
cheapest price of its type, on its cost. A row whose bounds something already estimated beats in
both cannot be on the front. The rows with the best bounds are searched first; what they turn out
to take beats most others unseen, so that the front is that of the full search
(``tests/test_pruning.py``) for a small share of its searches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns
from advisor.catalogue.billing import SHORTEST_BILL_H, charged_h
from advisor.jobs.job import Job
from advisor.planners.core.tables import put, select
from advisor.planners.core.units import HOUR_S
from advisor.predict import Predictor
from advisor.predict.completion import Completion, on_demand, on_spot
from advisor.ranking.front import bar_of, pareto_front
from advisor.ranking.request import Request
from advisor.ways.best import best_columns, first_look, improvable, least_step_s
from advisor.ways.case import StepCase
from advisor.ways.columns import CODE, TimeColumns

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# Rows searched before the others are looked at again.
_AT_ONCE: Final = 8
# Most that storage and traffic out add to what machines cost, before a row is given up for it.
_BESIDE: Final = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRows:
    """What is asked of a catalogue: the offers admitted and the numbers of machines.

    Attributes
    ----------
    types, counts : integer arrays of shape (n_types,), (n_counts,)
        Rows of the catalogue's types that have an offer, rising; machines together.
    """

    job: Job
    request: Request
    offers: OfferColumns
    types: Integers
    counts: Integers

    @property
    def rows(self) -> tuple[Integers, Integers]:
        """Type and count of every row, type by type."""
        return np.repeat(self.types, len(self.counts)), np.tile(self.counts, len(self.types))

    def cheapest(self, pricing: str, most_usd_per_h: float) -> tuple[Floats, Integers]:
        """Return the lowest price of a machine of every row within quota, and its offer's row.

        inf and -1 where there is none for at most ``most_usd_per_h`` together. [USD/h]
        """
        n, k = len(self.types), len(self.counts)
        price, place = np.full((n, k), np.inf), np.full((n, k), -1, dtype=np.int64)
        rows = np.flatnonzero(self.offers.pricing == pricing)
        rows = rows[np.argsort(-self.offers.price_usd_per_h[rows], kind="stable")]
        at = np.searchsorted(self.types, self.offers.type_index[rows])
        for j, count in enumerate(self.counts):
            within = self.offers.max_instances[rows] >= count
            within &= self.offers.price_usd_per_h[rows] * count <= most_usd_per_h
            # The last of equal places wins: the cheapest.
            price[at[within], j] = self.offers.price_usd_per_h[rows[within]]
            place[at[within], j] = rows[within]
        return price.ravel(), place.ravel()


def promising_columns(
    asked: AskedRows, predictor: Predictor, *, prunes: bool = True
) -> TimeColumns:
    """Estimate the rows that may be on the front; the others say what beat them unseen.

    Parameters
    ----------
    prunes : bool, default True
        False searches every row.

    Returns
    -------
    TimeColumns
        One row a row of ``asked``; statuses ``dominated``, ``over_deadline`` and ``over_budget``
        where a bound was enough.
    """
    job = asked.job
    type_index, count = asked.rows
    if job.work is None or not prunes:
        return predictor.step_columns(
            job, type_index, count, space=asked.request.space,
            known_network=asked.request.known_network,
        )  # fmt: skip
    case = predictor.case(
        job, space=asked.request.space, known_network=asked.request.known_network
    )
    columns = predictor.corrected(job, first_look(case, type_index, count))
    search = _Search(asked, predictor, case, columns)
    search.run()
    return search.columns


class _Search:
    """Rows estimated so far, what is known to be possible, and the bounds of the others."""

    def __init__(
        self, asked: AskedRows, predictor: Predictor, case: StepCase, columns: TimeColumns
    ) -> None:
        self.asked, self.predictor, self.case = asked, predictor, case
        self.columns = columns
        self.type_index, self.count = asked.rows
        self.is_open = improvable(case, columns)
        rows = np.flatnonzero(self.is_open)
        self.time_h = np.full(len(self.count), np.inf)
        bound = least_step_s(case, columns, rows)
        before = np.nan_to_num(columns.startup_s + columns.data_in_s)[rows]
        self.time_h[rows] = (bound * asked.job.paid_steps + before) / HOUR_S
        self.known: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))
        self._price(asked.request.most_usd_per_h)
        self._learn(np.flatnonzero((columns.status == 0) & np.isfinite(columns.step_s)))

    def _price(self, most_usd_per_h: float) -> None:
        """Set the prices of all rows and with them the bounds of their costs."""
        self.most_usd_per_h = most_usd_per_h
        pricings = ("on-demand", "spot")
        self.prices = {one: self.asked.cheapest(one, most_usd_per_h) for one in pricings}
        price = np.minimum(*(price for price, _ in self.prices.values()))
        billed = np.maximum(self.time_h, SHORTEST_BILL_H)
        self.cost_usd = billed * price * self.count

    def run(self) -> None:
        """Search rows until no bound of an open one is below all that is known."""
        self._close("does_not_fit_in_memory", ~np.isfinite(self.time_h))
        self._close("over_deadline", self.time_h > (self.asked.request.deadline_h or np.inf))
        self._close("over_budget", self.cost_usd > (self.asked.request.budget_usd or np.inf))
        while True:
            self._close("dominated", self._is_beaten())
            rows = np.flatnonzero(self.is_open)
            if rows.size == 0:
                self._look_at_nearest()
                return
            front = rows[pareto_front(self.time_h[rows], self.cost_usd[rows])]
            if front.size:
                self._evaluate(_spread(front))
            elif self.known[0].size == 0 and np.isfinite(self.most_usd_per_h):
                self._price(np.inf)  # nothing keeps the limit: what misses it by least?
            else:
                reason = "over_quota" if np.isinf(self.most_usd_per_h) else "over_hourly"
                self._close(reason, self.is_open)

    def _look_at_nearest(self) -> None:
        """Search what misses the constraints by least, where nothing known keeps them."""
        deadline_h = self.asked.request.deadline_h or np.inf
        budget_usd = self.asked.request.budget_usd or np.inf
        time_h, cost = self.known
        if np.any((time_h <= deadline_h) & (cost <= budget_usd)):
            return
        late = [CODE["over_deadline"], CODE["over_budget"]]
        is_late = np.isin(self.columns.status, late)
        rows = np.flatnonzero(is_late & np.isfinite(self.time_h) & np.isfinite(self.cost_usd))
        hours, usd = self.time_h[rows], self.cost_usd[rows]
        over = np.maximum(hours / deadline_h, 1.0) * np.maximum(usd / budget_usd, 1.0)
        order = rows[np.lexsort((hours * usd, over))]
        first = np.sort(np.unique(self.type_index[order], return_index=True)[1])
        # Bounds scale without loss: of these machines every number is looked at.
        nearest = self.type_index[order[first][:_AT_ONCE]]
        near = rows[np.isin(self.type_index[rows], nearest)]
        if near.size:
            self._evaluate(near)

    def _evaluate(self, rows: Integers) -> None:
        found = best_columns(self.case, self.type_index[rows], self.count[rows])
        found = self.predictor.corrected(self.asked.job, found)
        if (found.is_learned is None) != (self.columns.is_learned is None):
            found = replace(found, is_learned=np.zeros(len(rows), dtype=bool))
        if self.columns.is_learned is None and found.is_learned is not None:
            found = replace(found, is_learned=None)
        self.columns = put(self.columns, rows, found)
        self.is_open[rows] = False
        self._learn(rows[found.status == 0])

    def _learn(self, rows: Integers) -> None:
        """Add what the job takes on these rows, each by its cheapest offers, to what is known."""
        if rows.size == 0:
            return
        job, coverage = self.asked.job, self.asked.request.coverage
        some = select(self.columns, rows)
        prices, offers = self.prices["on-demand"]
        priced = np.flatnonzero(np.isfinite(prices[rows]))
        if priced.size:
            done = on_demand(job, select(some, priced), coverage)
            self._know(done, prices[rows[priced]] * self.count[rows[priced]], offers[rows[priced]])
        prices, offers = self.prices["spot"]
        if not self.asked.request.saves_checkpoints:
            return
        # Replays cost time: only of what would be best if nothing were ever taken away.
        time_h = some.step_s * job.paid_steps / HOUR_S
        cost = time_h * prices[rows] * self.count[rows] * _BESIDE
        worth = np.flatnonzero(cost < bar_of(*self.known, time_h))
        worth = worth[pareto_front(time_h[worth], cost[worth])]
        if worth.size:
            band = self.asked.offers.spot_interruption_band[offers[rows[worth]]]
            done = on_spot(job, some, worth, band, coverage)
            self._know(done, prices[rows[worth]] * self.count[rows[worth]], offers[rows[worth]])

    def _know(self, done: Completion, usd_per_h: Floats, offer: Integers) -> None:
        """Add what jobs take to what is known; storage and traffic out may cost a few per cent."""
        bills = self.asked.offers.shortest_bill_h[offer], self.asked.offers.bill_step_h[offer]
        billed = charged_h(done.billed_h[:, 1], *bills)
        time_h = np.concatenate([self.known[0], done.finish_h[:, 1]])
        cost = np.concatenate([self.known[1], billed * usd_per_h * _BESIDE])
        front = pareto_front(time_h, cost)
        self.known = time_h[front], cost[front]

    def _is_beaten(self) -> Booleans:
        """Return the rows that something known is no slower and no more expensive than."""
        time_h, cost = self.known
        if time_h.size == 0:
            return np.zeros(len(self.count), dtype=bool)
        place = np.searchsorted(time_h, self.time_h, side="right") - 1
        least = np.where(place >= 0, cost[np.maximum(place, 0)], np.inf)
        return np.asarray(least <= self.cost_usd)

    def _close(self, status: str, rows: Booleans) -> None:
        """Stop looking at rows; those without an estimate say why."""
        closed = self.is_open & rows
        self.is_open &= ~closed
        unknown = closed & ~((self.columns.status == 0) & np.isfinite(self.columns.step_s))
        self.columns.status[unknown] = CODE[status]


def _spread(front: Integers) -> Integers:
    """Return a few rows of a front, both ends among them."""
    if front.size <= _AT_ONCE:
        return front
    return front[np.unique(np.linspace(0, front.size - 1, _AT_ONCE).round().astype(np.int64))]
