"""The bounded search: candidates whose bounds from below are beaten are never asked.

Every candidate has a bound from below on its time (computing alone, shared evenly) and so, with
its cheapest price, on its cost. It cannot be on the front where something known is as fast and no
dearer. Those with the best bounds are asked first; what they turn out to take beats most others
unseen, so that the front is that of the full search (``tests/test_pruning.py``) for a small share
of its questions.

Two kinds of candidates are searched so. Of equal machines it is decided which (type, count) need a
search for their best layout at all; what was searched bounds the rows of the same devices behind
links that are no faster, and is kept for the same job under other limits. Clusters of unlike
machines are asked as ``plan`` is (``estimate.best``), so that the front of ``recommend`` is never
worse than ``plan`` on machines that it asks. Where nobody asked for mixed clusters, no more than
``_MOST_ASKED`` of them are; the rest are counted as ``not_asked``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import estimate  # what is over unlike machines is loaded where it is asked
from advisor.answer import Answer
from advisor.ask import Constraints
from advisor.catalogue import Offers, TypeColumns
from advisor.estimate import (
    CODE,
    STATUSES,
    Completion,
    Predictor,
    SideCosts,
    StepCase,
    TimeColumns,
    best_columns,
    first_look,
    improvable,
    is_no_faster,
    least_searched_s,
    least_step_s,
    on_demand,
    on_spot,
)
from advisor.jobs import Job
from advisor.machines import ClusterGroup, alike, group_of_type
from advisor.planners.core import HOUR_S, concatenate, put, select
from advisor.providers import SHORTEST_BILL_H, charged_h
from advisor.rank.front import Front, doubted, pareto_front
from advisor.rank.renting import DOUBTING, Booleans, Floats, Integers, Renting, asking_h
from advisor.rank.rows import MixedRow, counted_out, kept_factor

if TYPE_CHECKING:
    from advisor.rank.group_offers import MixedOffers

Machines = tuple[tuple[int, int], ...]
_Answered = tuple[float, tuple[Answer | None, TimeColumns]]

# Picks that may name what is dominated: less work for a person than what beats it.
_JUDGED: Final = ("best_value", "fastest")
# Candidates asked before the others' bounds are held against what they take.
_AT_ONCE: Final = 8
# Rows that are asked at once for the sake of their prices' day, and how often.
_DATED: Final = 4
_DATED_ROUNDS: Final = 6
# Clusters asked, most promising first, where nobody asked for mixed ones: some seconds.
_MOST_ASKED: Final = 24
# A band above all that are known.
_UNKNOWN: Final = 9.0
# Most that storage and traffic out add to what machines cost, before a row is given up for it.
_BESIDE: Final = 1.1


class _Bounded(ABC):
    """Candidates by their bounds from below, and what is known to be possible."""

    time_h: Floats
    cost_usd: Floats
    count: Integers  # of machines
    is_open: Booleans
    known: Front
    renting: Renting
    # the least T^w c known of what surely keeps the limits, by pick: see ``renting``
    least_worth: dict[str, float]

    def run(self) -> None:
        """Ask until no bound of an open candidate is below all that is known."""
        while (rows := np.flatnonzero(self.is_open)).size:
            self.close("dominated", rows[self.is_beaten(rows)])
            if (rows := np.flatnonzero(self.is_open)).size:
                self.advance(rows)

    @abstractmethod
    def is_beaten(self, rows: Integers) -> Booleans:
        """Say which open candidates can be neither on the front nor picked."""

    @abstractmethod
    def advance(self, rows: Integers) -> None:
        """Ask some of the open candidates, or change bounds, or close."""

    @abstractmethod
    def closed(self, reason: str, rows: Integers) -> None:
        """Keep why candidates are no longer looked at."""

    def late_h(self, usd_per_h: Floats, once_usd: Floats | float) -> Floats:
        """Return when each takes longer than something known and costs more; inf: never [h]."""
        cost = (self.known.cost_usd[:, None] - once_usd) / np.maximum(usd_per_h, 1e-12)
        late_h = np.maximum(self.known.time_h[:, None], cost)
        return np.asarray(late_h.min(axis=0, initial=np.inf))

    def may_be(self, pick: str, rows: Integers) -> Booleans:
        """Say which candidates a pick may name, by their bounds."""
        return np.asarray(self.worth(pick, rows) <= self.least_worth[pick])

    def worth(self, pick: str, rows: Integers) -> Floats:
        """Return a bound from below on what a pick judges candidates by."""
        some = self.time_h[rows], self.cost_usd[rows], self.count[rows]
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.renting.worth(pick, *some), nan=np.inf)

    def close(self, reason: str, rows: Integers) -> None:
        """Stop looking at candidates, those of them that are open."""
        rows = rows[self.is_open[rows]]
        self.is_open[rows] = False
        self.closed(reason, rows)

    def close_where(self, *reasons: tuple[str, NDArray[Any]]) -> None:
        """Stop looking at candidates by the first reason that holds."""
        for reason, holds in reasons:
            self.close(reason, np.flatnonzero(holds))

    def best(self, rows: Integers) -> Integers:
        """Return a few of the candidates on the front of the bounds, both ends among them."""
        front = rows[pareto_front(self.time_h[rows], self.cost_usd[rows])]
        if front.size <= _AT_ONCE:
            return front
        return front[np.unique(np.linspace(0, front.size - 1, _AT_ONCE).round().astype(np.int64))]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRows:
    """What is asked of a catalogue: the offers admitted and the numbers of machines."""

    job: Job
    request: Constraints
    offers: Offers
    # types, counts: (n_types,); rows of the catalogue's types that have an offer, rising; machines
    # together
    types: Integers
    counts: Integers
    # only the row of best value is asked for: what cannot be that is not searched either
    for_best_value: bool = False
    # (types of the catalogue,); place among ``types`` of what each is searched as; its own by
    # default
    searched_as: Integers | None = None

    @property
    def rows(self) -> tuple[Integers, Integers]:
        """Type and count of every row, type by type."""
        return np.repeat(self.types, len(self.counts)), np.tile(self.counts, len(self.types))

    def of_kinds(self, fleet: TypeColumns) -> AskedRows:
        """Return the rows of types that differ: each is rented where any type like it is."""
        kinds, place = alike(fleet, self.types)
        searched_as = np.zeros(int(self.types[-1]) + 1 if self.types.size else 0, dtype=np.int64)
        searched_as[self.types] = place
        return replace(self, types=kinds, searched_as=searched_as)

    def of_types(self, columns: TimeColumns, asked: AskedRows) -> TimeColumns:
        """Return what was found of kinds as the rows of all types that ``asked`` has."""
        if self.searched_as is None:
            return columns
        n = len(self.counts)
        rows = (self.searched_as[asked.types][:, None] * n + np.arange(n)).ravel()
        return replace(select(columns, rows), type_index=asked.rows[0])

    def cheapest(
        self, admitted: Booleans, most_usd_per_h: float, usd_per_h: Floats
    ) -> tuple[Floats, Integers]:
        """Return the lowest price of a machine of every row within quota, and its offer's row.

        inf and -1 where there is none for at most ``most_usd_per_h`` together; ``admitted``: which
        offers count; ``usd_per_h`` of each is what an hour costs, processor time beyond a baseline
        included. [USD/h]
        """
        n, k = len(self.types), len(self.counts)
        price, place = np.full((n, k), np.inf), np.full((n, k), -1, dtype=np.int64)
        rows = np.flatnonzero(admitted)
        rows = rows[np.argsort(usd_per_h[rows], kind="stable")[::-1]]
        at = self._place(self.offers.type_index[rows])
        for j, count in enumerate(self.counts):
            within = self.offers.max_instances[rows] >= count
            within &= self.offers.price_usd_per_h[rows] * count <= most_usd_per_h
            # The last of equal places wins: the cheapest, and of equal prices the first offer.
            price[at[within], j] = usd_per_h[rows[within]]
            place[at[within], j] = rows[within]
        return price.ravel(), place.ravel()

    def _place(self, type_index: Integers) -> Integers:
        if self.searched_as is None:
            return np.asarray(np.searchsorted(self.types, type_index))
        return self.searched_as[type_index]


def promising_columns(
    asked: AskedRows, predictor: Predictor, *, prunes: bool = True
) -> TimeColumns:
    """Estimate the rows that may be on the front; the others say what beat them unseen.

    ``prunes``: false searches every row; True by default.

    Returns
    -------
    TimeColumns
        One row a row of ``asked``; statuses ``dominated``, ``over_deadline`` and ``over_budget``
        where a bound was enough.
    """
    job = asked.job
    type_index, count = asked.rows
    learned = predictor.learned
    # What corrects row by row makes a searched row faster than its bound.
    own = predictor.own_model is not None and predictor.own_model.may_correct(job)
    is_bounded = not own and (learned is None or not learned.covers_accelerators_of(job))
    if job.work is None or not prunes or not is_bounded:
        return predictor.step_columns(
            job, type_index, count, space=asked.request.space,
            known_network=asked.request.known_network,
        )  # fmt: skip
    case = predictor.case(
        job, space=asked.request.space, known_network=asked.request.known_network
    )
    # What was learned may know types by name; else types that differ in nothing are searched once.
    is_by_kind = learned is None or not learned.may_correct(job)
    kinds = asked.of_kinds(case.fleet) if is_by_kind else asked
    search = _EqualSearch(kinds, predictor, case)
    search.run()
    search.look_at_nearest()
    search.look_at_dated()
    search.keep()
    return kinds.of_types(search.columns, asked)


# What is known of a job's rows whatever the limits, kept with the case: a first look, and the best
# layouts of those that were searched; where a search may give another answer; and bounds from
# below on the time [h], and which of these are close.
_Searched = tuple[TimeColumns, Booleans, Floats, Booleans]


def _first(asked: AskedRows, predictor: Predictor, case: StepCase) -> _Searched:
    """Return what can be said of every row at little cost."""
    columns = predictor.corrected(asked.job, first_look(case, *asked.rows))
    is_open = improvable(case, columns)
    rows = np.flatnonzero(is_open)
    time_h = np.full(len(columns.count), np.inf)
    bound = least_step_s(case, columns, rows)
    before = np.nan_to_num(columns.startup_s + columns.data_in_s)[rows]
    time_h[rows] = (bound * asked.job.paid_steps + before) / HOUR_S
    return columns, is_open, time_h, ~is_open


class _EqualSearch(_Bounded):
    """Clusters of equal machines: rows estimated so far, and the bounds of the others."""

    def __init__(self, asked: AskedRows, predictor: Predictor, case: StepCase) -> None:
        self.asked, self.predictor, self.case = asked, predictor, case
        self.type_index, self.count = asked.rows
        self.key = ("searched", asked.types.tobytes(), asked.counts.tobytes())
        if self.key not in case.seen:
            case.seen[self.key] = _first(asked, predictor, case)
        self.before: _Searched = case.seen[self.key]
        # Its own: written to.
        own = select(self.before[0], np.arange(len(self.count)))
        self.is_open, self.time_h, self.is_close = (one.copy() for one in self.before[1:])
        columns, request = own, asked.request
        self.columns = columns
        self.is_settled = ~self.is_open
        self.known = Front()
        limits = (request.budget_usd, request.deadline_h, request.confidence)
        is_free = limits == (None, None, None) and np.isinf(request.most_usd_per_h)
        self.is_for_best_value = asked.for_best_value and is_free
        self.renting = Renting.of(request)
        surplus = predictor.side_costs(asked.job, asked.offers).surplus_usd_per_h
        self.usd_per_h = asked.offers.price_usd_per_h + surplus
        self.least_worth = dict.fromkeys(_JUDGED, np.inf)
        self._price(asked.request.most_usd_per_h)
        self._learn(np.flatnonzero((columns.status == 0) & np.isfinite(columns.step_s)))
        self.close_where(
            ("does_not_fit_in_memory", ~np.isfinite(self.time_h)),
            ("over_deadline", self.time_h > (request.deadline_h or np.inf)),
            ("over_budget", self.cost_usd > (request.budget_usd or np.inf)),
        )

    def keep(self) -> None:
        """Keep with the case what was found, for the same job under other limits."""
        before, was_open, *_ = self.before
        is_open = was_open & ~self.is_settled
        unsearched = np.flatnonzero(is_open)
        columns = put(self.columns, unsearched, select(before, unsearched))
        self.case.seen[self.key] = columns, is_open, self.time_h, self.is_close

    def _price(self, most_usd_per_h: float) -> None:
        """Set the prices of all rows and with them the bounds of their costs."""
        self.most_usd_per_h = most_usd_per_h
        self.prices = {
            one: self.asked.cheapest(
                (self.asked.offers.pricing == "spot") == (one == "spot"),
                most_usd_per_h,
                self.usd_per_h,
            )
            for one in ("on-demand", "spot")
        }
        self.price: Floats = np.minimum(*(price for price, _ in self.prices.values()))
        self.cost_usd = np.empty(len(self.count))
        self._bound_costs(np.arange(len(self.count)))

    def advance(self, rows: Integers) -> None:
        """Search a few rows: of the front, else of those that may still be picked."""
        front = rows[pareto_front(self.time_h[rows], self.cost_usd[rows])]
        on_front = front[~self.known.beats(self.time_h[front], self.cost_usd[front])]
        if on_front.size and not self.is_for_best_value:
            if not self._look_closer(on_front):
                self._evaluate(self.best(on_front))
        elif front.size:
            rows = rows[np.isfinite(self.cost_usd[rows])]  # the others cannot be rented
            value = self.worth("best_value", rows)
            first = rows[np.argsort(value, kind="stable")[:_AT_ONCE]]
            if not self._look_closer(first):
                self._evaluate(first)
        elif self.known.time_h.size == 0 and np.isfinite(self.most_usd_per_h):
            self._price(np.inf)  # nothing keeps the limit: what misses it by least?
        else:
            self.close("over_quota" if np.isinf(self.most_usd_per_h) else "over_hourly", rows)

    def _look_closer(self, rows: Integers) -> bool:
        """Raise the bounds of those rows that have only a cheap one; say whether any had."""
        rows = rows[~self.is_close[rows]]
        bound_s = least_step_s(self.case, self.columns, rows, closely=True)
        before_s = np.nan_to_num(self.columns.startup_s + self.columns.data_in_s)[rows]
        time_h = (bound_s * self.asked.job.paid_steps + before_s) / HOUR_S
        is_more = np.isfinite(time_h) & (time_h > self.time_h[rows])
        self.time_h[rows[is_more]] = time_h[is_more]
        self.is_close[rows] = True
        self._bound_costs(rows)
        return rows.size > 0

    def look_at_nearest(self) -> None:
        """Search what misses the constraints by least, where nothing known keeps them."""
        deadline_h = self.asked.request.deadline_h or np.inf
        budget_usd = self.asked.request.budget_usd or np.inf
        if np.any((self.known.time_h <= deadline_h) & (self.known.cost_usd <= budget_usd)):
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
            self._evaluate(near, is_bounded=False)

    def look_at_dated(self) -> None:
        """Search what promises most at prices of a known day, where others beat it unseen."""
        offers, asked = self.asked.offers, self.asked
        is_alone = asked.for_best_value or asked.request.least_gain_fraction <= 0
        if is_alone or offers.is_dated.all():
            return
        is_dated = offers.is_dated & (offers.pricing != "spot")
        price, _ = asked.cheapest(is_dated, self.most_usd_per_h, self.usd_per_h)
        rows = np.flatnonzero(np.isfinite(price) & np.isfinite(self.time_h))
        for _ in range(_DATED_ROUNDS):
            worth = self._worth_at(price, rows)
            first = rows[np.argsort(worth, kind="stable")][:_DATED]
            if first.size == 0 or self.is_settled[first[0]]:
                return  # what takes the least is known, and the others' bounds are above it
            self._evaluate(first[~self.is_settled[first]], is_bounded=False)

    def _worth_at(self, price: Floats, rows: Integers) -> Floats:
        """Return what rows are worth at other prices, by their times or else their bounds."""
        took_h = self.columns.step_s[rows] * self.asked.job.paid_steps / HOUR_S
        is_known = self.is_settled[rows] & (self.columns.status[rows] == 0)
        hours = np.where(is_known, np.fmax(took_h, self.time_h[rows]), self.time_h[rows])
        hours[self.is_settled[rows] & (self.columns.status[rows] != 0)] = np.inf
        cost = np.maximum(hours, SHORTEST_BILL_H) * price[rows] * self.count[rows]
        return self.renting.worth("best_value", hours, cost, self.count[rows])

    def _most_s(self, rows: Integers) -> Floats:
        """Return the steps from which on what is known beats each row [s]."""
        price = np.asarray(self.price[rows] * self.count[rows])
        late_h = self.late_h(price, 0.0)
        # What is beaten may still be picked.
        for pick, least in self.least_worth.items():
            late_h = np.maximum(late_h, self.renting.latest_h(pick, least, price))
        return np.asarray(late_h * HOUR_S / self.asked.job.paid_steps)

    def _evaluate(self, rows: Integers, *, is_bounded: bool = True) -> None:
        most_s = self._most_s(rows) if is_bounded else np.full(rows.size, np.inf)
        found = best_columns(self.case, self.type_index[rows], self.count[rows], most_s)
        # Above the limit another layout may have been left out.
        self.is_settled[rows] = (found.step_s <= most_s) | np.isinf(most_s)
        least_s = np.minimum(least_searched_s(self.case, found), most_s)
        self._bound_slower_links(rows, found, least_s)
        found = self.predictor.corrected(self.asked.job, found)
        if (found.is_learned is None) != (self.columns.is_learned is None):
            found = replace(found, is_learned=np.zeros(len(rows), dtype=bool))
        if self.columns.is_learned is None and found.is_learned is not None:
            found = replace(found, is_learned=None)
        self.columns = put(self.columns, rows, found, is_own=True)
        self.is_open[rows] = False
        self._learn(rows[found.status == 0])

    def _bound_slower_links(self, rows: Integers, found: TimeColumns, least_s: Floats) -> None:
        """Raise the bounds of open rows that are like searched ones but for slower links.

        ``least_s``: of every searched row what no layout is faster than: a search that was cut
        says no more than where it was cut.
        """
        before_s = np.nan_to_num(self.columns.startup_s + self.columns.data_in_s)
        device = self.case.fleet.device[self.type_index]
        near = np.flatnonzero(self.is_open & np.isin(device, device[rows]))
        for at in np.flatnonzero(found.status == 0).tolist():
            row = int(rows[at])
            like = near[(self.count[near] == self.count[row]) & (device[near] == device[row])]
            like = like[is_no_faster(self.case, self.type_index[like], int(self.type_index[row]))]
            bound_s = least_s[at] * self.asked.job.paid_steps + before_s[like]
            self.time_h[like] = np.maximum(self.time_h[like], bound_s / HOUR_S)
            self._bound_costs(like)

    def _bound_costs(self, rows: Integers) -> None:
        billed = np.maximum(self.time_h[rows], SHORTEST_BILL_H)
        self.cost_usd[rows] = billed * self.price[rows] * self.count[rows]

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
            self._know(done, prices, offers, rows[priced])
        prices, offers = self.prices["spot"]
        if not self.asked.request.saves_checkpoints:
            return
        # Replays cost time: only of what would be best if nothing were ever taken away.
        time_h = some.step_s * job.paid_steps / HOUR_S
        cost = time_h * prices[rows] * self.count[rows] * _BESIDE
        worth = np.flatnonzero(~self.known.beats(time_h, cost))
        worth = worth[pareto_front(time_h[worth], cost[worth])]
        if worth.size:
            band = self.asked.offers.spot_interruption_band[offers[rows[worth]]]
            done = on_spot(job, some, worth, band, coverage)
            self._know(done, prices, offers, rows[worth])

    def _know(self, done: Completion, prices: Floats, offers: Integers, rows: Integers) -> None:
        """Add what jobs take to what is known; storage and traffic out may cost a few per cent."""
        offer, finish_h = offers[rows], done.finish_h[:, 1]
        bills = self.asked.offers.shortest_bill_h[offer], self.asked.offers.bill_step_h[offer]
        billed = charged_h(done.billed_h[:, 1], *bills)
        cost_usd = billed * prices[rows] * self.count[rows] * _BESIDE
        self._know_worth(rows, offer, done, cost_usd)
        self.known.add(finish_h, cost_usd)

    def _know_worth(
        self, rows: Integers, offer: Integers, done: Completion, cost_usd: Floats
    ) -> None:
        """Lower what a pick is known to be worth, by rows that surely keep the limits."""
        request, count = self.asked.request, self.count[rows]
        latest_h, dearest = done.finish_h[:, 2], done.billed_h[:, 2] / done.billed_h[:, 1]
        sure = ~self.columns.is_extrapolating[rows]  # those are judged by their worst
        sure &= latest_h <= (request.deadline_h or np.inf)
        sure &= cost_usd * dearest <= (request.budget_usd or np.inf)
        offers = self.asked.offers
        request_h = asking_h(request, offers.most_at_once[offer], count)
        doubt = doubted(
            offers.lacks(offer, count), done.finish_h, request.least_gain_fraction,
            request.coverage,
        )  # fmt: skip
        for pick in _JUDGED:
            judged_usd = cost_usd * doubt if pick in DOUBTING else cost_usd
            value = self.renting.worth(pick, done.finish_h[:, 1], judged_usd, count, request_h)
            self.least_worth[pick] = min(self.least_worth[pick], value[sure].min(initial=np.inf))

    def is_beaten(self, rows: Integers) -> Booleans:
        """Say which open rows can be neither on the front nor picked."""
        if self.is_for_best_value:
            # What is dominated may still be picked: it can be less work for a person.
            return ~self.may_be("best_value", rows)
        is_beaten = self.known.beats(self.time_h[rows], self.cost_usd[rows])
        for pick in _JUDGED:
            is_beaten &= ~self.may_be(pick, rows)
        return is_beaten

    def closed(self, reason: str, rows: Integers) -> None:
        """Say why rows without an estimate have none."""
        is_known = (self.columns.status[rows] == 0) & np.isfinite(self.columns.step_s[rows])
        self.columns.status[rows[~is_known]] = CODE[reason]


def mixed_rows(
    job: Job, request: Constraints, predictor: Predictor, offers: Offers, side: SideCosts,
    beaten_by: tuple[Floats, Floats], *, least_worth: Mapping[str, float] = MappingProxyType({}),
    for_best_value: bool = False, is_pruned: bool = True,
) -> MixedSearch | None:  # fmt: skip
    """Evaluate the mixed clusters that could be on the front.

    ``side``: one row an offer; ``beaten_by``: time [h] and cost [USD] of the clusters of equal
    machines that satisfy the constraints; ``least_worth``: by pick, what the best of these that
    surely keep the limits is worth; ``for_best_value``: what cannot be that is left out, too;
    ``is_pruned``: leave out what bounds allow to; True by default.

    Returns
    -------
    MixedSearch or None
        With what was ``kept``, ``rejected`` and ``considered``. None where the job has no steps,
        or no two offers can be rented together.
    """
    if job.work is None or len(offers) == 0:
        return None
    from advisor.rank.group_offers import mixed_offers

    case = predictor.case(job, space=request.space, known_network=request.known_network)
    clusters = mixed_offers(
        case, offers, side, predictor.catalogue.types, request.counts, request.max_nodes,
        is_pruned=is_pruned,
    )  # fmt: skip
    if clusters.considered == 0:
        return None
    search = MixedSearch(case, request, predictor, offers, clusters, Front(*beaten_by))
    search.least_worth |= least_worth
    search.is_for_best_value = for_best_value
    if not is_pruned and (rows := np.flatnonzero(search.is_open)).size:
        search.ask(rows, np.full(rows.size, np.inf))
    search.run()
    search.rejected["dominated"] += clusters.considered - search.time_h.size
    return search


def _step_s(found: tuple[Answer | None, TimeColumns]) -> float:
    return float(found[1].step_s[0])


class MixedSearch(_Bounded):
    """Clusters of unlike machines: those kept so far, and the bounds of the others."""

    def __init__(
        self, case: StepCase, request: Constraints, predictor: Predictor, offers: Offers,
        clusters: MixedOffers, known: Front,
    ) -> None:  # fmt: skip
        self.case, self.request, self.offers, self.clusters = case, request, offers, clusters
        self.catalogue = predictor.catalogue
        # What was found for the same job under other limits, by the machines: up to which step
        # ways were looked for [s], and the best.
        self.answers: dict[Machines, _Answered] = case.seen.setdefault(("mixed clusters",), {})
        self.of_type: dict[int, ClusterGroup] = {}
        self.types = offers.type_index[clusters.offers]
        self.is_spot = np.asarray(offers.pricing == "spot")[clusters.offers[:, 0]]
        self.kept: list[MixedRow] = []
        self.rejected: Counter[str] = Counter()
        self.considered, self.known = clusters.considered, known
        before_s = case.startup_s(self.types.ravel()) + case.data_in_s(self.types.ravel())
        before_s = np.where(clusters.counts > 0, before_s.reshape(self.types.shape), 0.0)
        self.before_s = before_s.max(axis=1, initial=0.0)
        self.least_s = estimate.least_group_step_s(case, self.types, clusters.counts)
        self.is_refined, self.asked, self.is_for_best_value = False, 0, False
        self.renting, self.count = Renting.of(request), clusters.counts.sum(axis=1)
        self.least_worth = dict.fromkeys(_JUDGED, np.inf)
        self._bound()
        self.is_open = np.ones(self.time_h.size, dtype=bool)
        enough = np.nan_to_num(clusters.of(offers.max_instances), nan=np.inf)
        self.close_where(
            ("does_not_fit_in_memory", ~np.isfinite(self.time_h)),
            ("over_quota", np.any(clusters.counts > enough, axis=1)),
            ("over_hourly", clusters.usd_per_h > request.most_usd_per_h),
            ("no_checkpoints", self.is_spot & (not request.saves_checkpoints)),
        )

    def is_beaten(self, rows: Integers) -> Booleans:
        """Say which open clusters gain too little: no more than two lines differ by."""
        gain = 1.0 + self.request.least_gain_fraction
        is_beaten = self.known.beats(self.time_h[rows] * gain, self.cost_usd[rows] * gain)
        if self.is_for_best_value:
            is_beaten |= ~self.may_be("best_value", rows)
        return is_beaten

    def _most_s(self, rows: Integers) -> Floats:
        """Return the steps from which on what is known beats each cluster, and no pick is it."""
        hourly, once = self.clusters.usd_per_h[rows], self.clusters.once_usd[rows]
        late_h = self.late_h(hourly, once)
        late_h[np.logical_or(*(self.may_be(pick, rows) for pick in _JUDGED))] = np.inf
        return np.asarray((late_h * HOUR_S - self.before_s[rows]) / self.case.job.paid_steps)

    def advance(self, rows: Integers) -> None:
        """Raise the bounds of the few that are left, once; then ask the most promising."""
        if not self.is_refined:
            self._refine(rows)
            self._close_over_limits()
        else:
            best = self.best(rows)
            self.asked += best.size
            self.ask(best, self._most_s(best))
            if self.asked >= _MOST_ASKED and self.request.mixed is not True:
                self.close("not_asked", np.flatnonzero(self.is_open))

    def run(self) -> None:
        """Ask the clusters that keep the limits by their bounds."""
        self._close_over_limits()
        super().run()

    def _close_over_limits(self) -> None:
        self.close_where(
            ("over_deadline", self.time_h > (self.request.deadline_h or np.inf)),
            ("over_budget", self.cost_usd > (self.request.budget_usd or np.inf)),
        )

    def closed(self, reason: str, rows: Integers) -> None:
        """Count the clusters."""
        self.rejected[reason] += rows.size

    def _bound(self) -> None:
        """Set the bounds of times and costs from those of the steps."""
        clusters = self.clusters
        self.time_h = (self.least_s * self.case.job.paid_steps + self.before_s) / HOUR_S
        billed = np.maximum(self.time_h, SHORTEST_BILL_H)
        self.cost_usd = billed * clusters.usd_per_h + clusters.once_usd

    def _refine(self, rows: Integers) -> None:
        """Raise the bounds of the few that are left, once."""
        types, counts = self.types[rows], self.clusters.counts[rows]
        self.least_s[rows] = estimate.refined_step_s(self.case, types, counts, self.least_s[rows])
        self._bound()
        self.is_refined = True

    def ask(self, rows: Integers, most_s: Floats) -> None:
        """Find what the job takes on some clusters; keep those that satisfy the constraints.

        ``most_s``: steps from which on each is of no matter.
        """
        self.is_open[rows] = False
        asked = [
            self._answer(self._machines(row), most)
            for row, most in zip(rows.tolist(), most_s.tolist(), strict=True)
        ]
        columns = concatenate([found for _, found in asked])
        is_cut = np.isfinite(most_s) & ~(columns.step_s <= most_s)
        columns = replace(columns, status=np.where(is_cut, CODE["dominated"], columns.status))
        completion = self._completion(rows, columns)
        time_h = completion.finish_h[:, 1]
        bills = (self.offers.shortest_bill_h, self.offers.bill_step_h)
        charges = (np.nanmax(self.clusters.of(one)[rows], axis=1) for one in bills)
        billed_h = charged_h(completion.billed_h[:, 1], *charges)
        clusters, request = self.clusters, self.request
        cost = billed_h * clusters.usd_per_h[rows] + clusters.once_usd[rows]
        late, dear = (
            values * kept_factor(bounds, request.confidence, request.coverage)
            for values, bounds in ((time_h, completion.finish_h), (cost, completion.billed_h))
        )
        statuses = [
            (status, columns.status == code) for code, status in enumerate(STATUSES) if code
        ]
        left = counted_out(
            self.rejected, *statuses, ("over_deadline", late > (request.deadline_h or np.inf)),
            ("over_budget", dear > (request.budget_usd or np.inf)),
        )  # fmt: skip
        for at in np.flatnonzero(left).tolist():
            choice, found = asked[at]
            assert choice is not None
            self.kept.append(
                MixedRow(
                    cost_usd=float(cost[at]),
                    parts=self._parts(int(rows[at])),
                    choice=choice,
                    columns=found,
                    completion=select(completion, np.array([at])),
                )
            )
        self.known.add(time_h[left], cost[left])

    def _answer(self, machines: Machines, most_s: float) -> tuple[Answer | None, TimeColumns]:
        """Return what ``plan`` answers for groups of machines, asked once whatever they cost."""
        up_to_s, found = self.answers.get(machines, (0.0, None))
        if found is None or (up_to_s < most_s and (found[0] is None or _step_s(found) > up_to_s)):
            cluster = tuple(self._group(*one) for one in machines)
            model = estimate.model_on(self.case, cluster)
            batch = self.case.job.global_batch
            choice = estimate.best_released(model, cluster, global_batch=batch, most_s=most_s)
            found = choice, estimate.group_columns(choice, model.places)
            self.answers[machines] = most_s, found
        return found

    def _group(self, row: int, count: int) -> ClusterGroup:
        if row not in self.of_type:
            types = self.catalogue.types
            found = self.catalogue.instance_type(f"{types.provider[row]}:{types.name[row]}")
            self.of_type[row] = group_of_type(found, 1, self.catalogue)
        return replace(self.of_type[row], count=count)

    def _completion(self, rows: Integers, columns: TimeColumns) -> Completion:
        """Return completions on machines that stay, and of spot machines their replays."""
        job, coverage = self.case.job, self.request.coverage
        found = on_demand(job, columns, coverage)
        spot = np.flatnonzero(self.is_spot[rows] & (columns.status == 0))
        if not spot.size:
            return found
        # The more often removed type's band: one machine less stops the job. Unknown is worst.
        bands = self.clusters.of(np.nan_to_num(self.offers.spot_interruption_band, nan=_UNKNOWN))
        worst = np.nanmax(bands[rows[spot]], axis=1)
        worst[worst == _UNKNOWN] = np.nan
        return put(found, spot, on_spot(job, columns, spot, worst, coverage))

    def _parts(self, row: int) -> tuple[tuple[int, int], ...]:
        offers, counts = self.clusters.offers[row].tolist(), self.clusters.counts[row].tolist()
        return tuple((o, n) for o, n in zip(offers, counts, strict=True) if n)

    def _machines(self, row: int) -> Machines:
        return tuple((int(self.offers.type_index[o]), n) for o, n in self._parts(row))
