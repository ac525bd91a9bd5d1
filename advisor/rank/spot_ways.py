"""Further ways to complete a job on spot offers, as rows beside those of plain spot.

A row is replayed only where it could be on the front of time and cost: bounds from below are set
against the rows there are, the most promising first, and every replay raises the bar.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import estimate
from advisor.ask import Constraints
from advisor.catalogue import Offers
from advisor.estimate import Completion, Predictor, SideCosts, TimeColumns, hazards, restart_s
from advisor.jobs import Job
from advisor.planners import spot as planner_spot
from advisor.planners.core import HOUR_S, select
from advisor.planners.goodput import NEGLIGIBLE_FRACTION
from advisor.rank.front import CONFIDENCE, FrontByMachines
from advisor.rank.renting import Floats, Integers
from advisor.rank.rows import Rows
from advisor.records import packaged_spot_history

# A completion of some rows in another way, like which rows they are, and what they cost [USD].
_Way = tuple[Completion, Integers, Floats]
# Rows replayed before the front is drawn anew.
_CHUNK: Final = 8
# Plans by the deadline that are replayed, at half a second each.
_PLANS: Final = 3


def with_spot_ways(
    job: Job, request: Constraints, predictor: Predictor, offers: Offers, side: SideCosts,
    columns: TimeColumns, rows: Rows,
) -> Rows:  # fmt: skip
    """Return the rows with those of the ways that change machines on the way, where they may pay.

    ``rows``: of machines that stay and of plain spot, as ``price_rows`` makes them.
    """
    spot = np.flatnonzero(rows.is_spot & rows.is_in_quota)
    spot = spot[columns.status[rows.column[spot]] == 0]
    if not spot.size or not request.saves_checkpoints:
        return rows
    usable = np.flatnonzero(rows.is_in_quota & ~rows.is_hopeless)
    front = FrontByMachines(
        rows.time_h[usable], rows.cost_usd[usable], rows.machines[usable]
    )  # fmt: skip
    known = job, request, predictor, offers, side, columns, rows.offer, rows.column
    case = _Case(*known, spot)
    planned = _by_deadline(case, rows)
    # No way takes less time than the work, or less money than that on the type's best count.
    least_usd = case.least_machine_h() * case.price + case.once
    is_open = ~front.beats(case.least_h, least_usd, case.count)
    found = planned
    if is_open.any():
        case = _Case(*known, spot[is_open])
        case.plain = _plain_spot(case, rows)
        found = [*_with_fallback(case, front), *_elastic(case, front), *planned]
    for completion, like, cost_usd in found:
        rows = rows.with_way(completion, like, cost_usd)
    return rows


def _plain_spot(case: _Case, rows: Rows) -> dict[int, tuple[float, float]]:
    """Return time [h] and cost [USD] on spot machines alone, by kind, where it was replayed."""
    is_replayed = rows.done[case.row] != case.column
    return {
        kind: (float(rows.time_h[row]), float(rows.cost_usd[row]))
        for kind, row in zip(
            case.kind[is_replayed].tolist(), case.row[is_replayed].tolist(), strict=True
        )
    }


class _Case:
    """Spot rows with what all ways need: prices, bands, and the least time and machine time."""

    def __init__(
        self, job: Job, request: Constraints, predictor: Predictor, offers: Offers,
        side: SideCosts, columns: TimeColumns, offer: Integers, column: Integers, spot: Integers,
    ) -> None:  # fmt: skip
        self.job, self.request, self.predictor, self.columns = job, request, predictor, columns
        self.side = side
        self.row, self.offer, self.column = spot, offer[spot], column[spot]
        self.count = columns.count[self.column].astype(float)
        self.price = (offers.price_usd_per_h + side.usd_per_h)[self.offer] * self.count
        on_demand = offers.on_demand_usd_per_h
        is_admitted = on_demand <= (request.max_price_usd_per_h or np.inf)
        is_admitted &= "on-demand" in request.pricings
        on_demand = np.where(is_admitted, on_demand, np.nan)
        self.on_demand_price = (on_demand + side.usd_per_h)[self.offer] * self.count
        self.once = np.nan_to_num(side.egress_usd)[self.offer]
        self.band = offers.spot_interruption_band[self.offer]
        work_s = columns.step_s[self.column] * job.paid_steps
        self.least_h = (work_s + restart_s(columns)[self.column]) / HOUR_S
        # The same machines with the same hazard, whatever their price.
        band = np.nan_to_num(self.band, nan=7.0).astype(np.int64)
        self.kind = self.column * 8 + band
        self.plain: dict[int, tuple[float, float]] = {}

    def least_machine_h(self) -> Floats:
        """Return the least rented time on any count of the type, as if of all machines [h].

        Of the counts that were estimated; what was pruned away took no less than they.
        """
        columns = self.columns
        machine_s = np.where(columns.status == 0, columns.count * columns.step_s, np.inf)
        least_s = np.full(int(columns.type_index.max()) + 1, np.inf)
        np.minimum.at(least_s, columns.type_index, machine_s)
        least_s = least_s[columns.type_index[self.column]] / self.count
        return np.asarray(least_s * self.job.paid_steps / HOUR_S)

    def cheapest(self, places: Integers, cost: Floats) -> Integers:
        """Return the cheapest place of every kind."""
        order = places[np.argsort(cost[places], kind="stable")]
        first: Integers = order[np.sort(np.unique(self.kind[order], return_index=True)[1])]
        return first

    def pays(self, at: Integers, time_h: Floats, cost_usd: Floats) -> NDArray[np.bool_]:
        """Say what gains enough over plain spot on the same machines to be worth its trouble."""
        plain = [self.plain.get(kind, (np.inf, np.inf)) for kind in self.kind[at].tolist()]
        plain_h, plain_usd = np.array(plain).reshape(-1, 2).T
        least = 1.0 - NEGLIGIBLE_FRACTION
        return np.asarray((time_h < least * plain_h) | (cost_usd < least * plain_usd))


def _with_fallback(case: _Case, front: FrontByMachines) -> list[_Way]:
    """Return rows on spot machines with on-demand ones in their place while there are none.

    Such a job is always rented, and on spot no more often than spot machines are there.
    """
    up = _availability(case)
    mean_price = up * case.price + (1.0 - up) * case.on_demand_price
    least_usd = case.least_h * mean_price + case.once
    ratio = case.price / case.on_demand_price
    places = case.cheapest(np.flatnonzero(ratio < 1.0), least_usd)

    def complete(at: Integers) -> Completion:
        return estimate.on_spot_with_fallback(
            case.job, case.columns, case.column[at], case.band[at], ratio[at],
            case.request.coverage,
        )  # fmt: skip

    return _replayed(case, front, places, least_usd, case.on_demand_price, complete)


def _by_deadline(case: _Case, rows: Rows) -> list[_Way]:
    """Return the row whose plan by the deadline costs least, if it costs less than all else.

    Of the rows that can keep the deadline with the confidence, those that would cost least if
    spot machines were there as often as in the records, the job on demand meanwhile.
    """
    request, deadline_h = case.request, case.request.deadline_h
    if deadline_h is None:
        return []
    confidence = request.confidence or CONFIDENCE
    bar = _surest_usd(rows, deadline_h, confidence, request.coverage)
    least_usd = case.least_h * case.price + case.once
    is_open = (case.price < case.on_demand_price) & (case.least_h < deadline_h)
    places = case.cheapest(np.flatnonzero(is_open & (least_usd < bar)), least_usd)
    if not places.size:
        return []
    late = estimate.late_fractions(
        case.job, case.columns, case.column[places], case.band[places], deadline_h
    )
    places = places[late <= 1.0 - confidence]
    up = _availability(case)[places]
    on_spot_h = np.minimum(case.least_h[places], up * deadline_h)
    usd = case.price[places] * on_spot_h
    usd += case.on_demand_price[places] * (case.least_h[places] - on_spot_h)
    return _cheapest_plan(case, places[np.argsort(usd, kind="stable")][:_PLANS], bar, least_usd)


def _cheapest_plan(case: _Case, places: Integers, bar: float, least_usd: Floats) -> list[_Way]:
    """Replay plans one by one while one could cost less than the best so far."""
    best: list[_Way] = []
    for place in places[least_usd[places] < bar].tolist():
        at = np.array([place])
        if least_usd[place] >= bar:
            continue
        done = estimate.on_spot_by_deadline(
            case.job, case.columns, case.column[at], case.band[at],
            (case.price[at], case.on_demand_price[at]), case.request.deadline_h or 0.0,
            case.request.coverage,
        )  # fmt: skip
        billed_h = case.side.charged_h(case.offer[at], done.billed_h[:, 1])
        cost = billed_h * case.on_demand_price[at] + case.once[at]
        if cost[0] < bar:
            bar, best = float(cost[0]), [(done, case.row[at], cost)]
    return best


def _surest_usd(rows: Rows, deadline_h: float, confidence: float, coverage: float) -> float:
    """Return the least cost of what keeps the deadline anyway [USD]."""
    able = rows.is_in_quota & ~rows.is_hopeless & np.isfinite(rows.cost_usd)
    able &= ~rows.is_late(deadline_h, confidence, coverage)
    return float(rows.cost_usd[able].min()) if able.any() else np.inf


def _availability(case: _Case) -> Floats:
    """Return the share of the time in which each row's spot machines are all there."""
    history = packaged_spot_history()
    kinds, of_kind = np.unique(
        np.stack([case.count, hazards(case.band)], axis=1), axis=0, return_inverse=True
    )
    return np.array([planner_spot.availability_of(history, *kind) for kind in kinds.tolist()])[
        of_kind.reshape(-1)
    ]


def _elastic(case: _Case, front: FrontByMachines) -> list[_Way]:
    """Return rows on as many spot machines as there are."""
    least_usd = case.least_machine_h() * case.price + case.once
    places = case.cheapest(np.flatnonzero(case.count > 1), least_usd)
    places = places[~front.beats(case.least_h[places], least_usd[places], case.count[places])]
    step_columns = partial(
        case.predictor.step_columns, space=case.request.space,
        known_network=case.request.known_network,
    )  # fmt: skip
    found = estimate.elastic_workers(case.job, case.columns, case.column[places], step_columns)
    workers = {at: one for at, one in zip(places.tolist(), found, strict=True) if one is not None}
    places = np.array(list(workers), dtype=np.int64)

    def complete(at: Integers) -> Completion:
        able = [workers[place] for place in at.tolist()]
        return estimate.on_elastic_spot(
            case.job, case.columns, case.column[at], case.band[at], able, case.request.coverage
        )

    return _replayed(case, front, places, least_usd, case.price, complete)


def _replayed(
    case: _Case, front: FrontByMachines, places: Integers, least_usd: Floats, price: Floats,
    complete: Callable[[Integers], Completion],
) -> list[_Way]:  # fmt: skip
    """Replay the places that may be on the front, the most promising first.

    ``price`` is that of an hour of all machines which the completions' billed time counts in.
    """
    found = []
    left = places[np.argsort(case.least_h[places] * least_usd[places], kind="stable")]

    def is_open(at: Integers) -> NDArray[np.bool_]:
        return ~front.beats(case.least_h[at], least_usd[at], case.count[at])

    while (left := left[is_open(left)]).size:
        at, left = left[:_CHUNK], left[_CHUNK:]
        completion = complete(at)
        billed_h = case.side.charged_h(case.offer[at], completion.billed_h[:, 1])
        cost = billed_h * price[at] + case.once[at]
        kept = np.flatnonzero(case.pays(at, completion.finish_h[:, 1], cost))
        if kept.size:
            done = select(completion, kept)
            found.append((done, case.row[at[kept]], cost[kept]))
            front.add(done.finish_h[:, 1], cost[kept], case.count[at[kept]])
    return found
