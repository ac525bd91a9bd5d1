"""Every (offer, count) as one row: what it takes and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.ask import Constraints
from advisor.catalogue import OfferColumns
from advisor.estimate import Completion, SideCosts, TimeColumns, on_demand, on_spot
from advisor.jobs import Job

# Pareto fronts of time and cost, as small pure functions on arrays.


# A person has to rent machines, bring the script there and fetch the results: nobody who has done
# it takes less. [h]
TROUBLE_H: Final = 10 / 60
# Rows that are set against all others first, where there are many.
_SAMPLE: Final = 1000


def pareto_front(time: ArrayLike, cost: ArrayLike) -> NDArray[np.int64]:
    """Return the rows that no other row beats in both time and cost, fastest first.

    A row beats another if it is no worse in both and better in one; of equal rows the first
    stays. Rows with nan are never on the front.

    Returns
    -------
    integer array
        Rows by rising time, and so by falling cost.

    Examples
    --------
    >>> pareto_front([1.0, 2.0, 3.0, 3.0], [9.0, 5.0, 6.0, 4.0]).tolist()
    [0, 1, 3]
    """
    t, c = np.asarray(time, float), np.asarray(cost, float)
    rows = np.flatnonzero(np.isfinite(t) & np.isfinite(c))
    if rows.size > 4 * _SAMPLE:  # a few rows beat most of the others, and sorting is what costs
        few = rows[:: rows.size // _SAMPLE]
        few = few[pareto_front(t[few], c[few])]
        rows = rows[c[rows] <= bar_of(t[few], c[few], t[rows])]
    order = rows[np.lexsort((rows, c[rows], t[rows]))]
    if order.size == 0:
        return np.zeros(0, dtype=np.int64)
    cheapest_before = np.concatenate(([np.inf], np.minimum.accumulate(c[order])[:-1]))
    return np.asarray(order[c[order] < cheapest_before], dtype=np.int64)


def bar_of(
    front_time: NDArray[np.float64], front_cost: NDArray[np.float64], time: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cost that each time has to stay below: the least of a front that is no slower.

    ``front_time``, ``front_cost``: (k,); by rising time and falling cost.

    Returns
    -------
    float array of shape (n,)
        inf where the front has nothing as fast.
    """
    place = np.searchsorted(front_time, time, side="right")
    return np.concatenate([[np.inf], front_cost])[place]


def spread_out(
    time: ArrayLike, cost: ArrayLike, size: int, *, first: Sequence[int] = ()
) -> NDArray[np.int64]:
    """Choose ``size`` rows that cover a front evenly, both ends among them.

    The next row chosen is always the one farthest from all chosen so far, in logarithms, since a
    user weighs factors ("twice as fast"), not differences.

    ``time``, ``cost``: (n,); positive, in the order of the front; ``size``: at least 1; ``first``:
    rows to choose before both ends; no more than ``size``.

    Returns
    -------
    integer array
        Rising rows.
    """
    points = np.column_stack([np.log(np.asarray(time, float)), np.log(np.asarray(cost, float))])
    if len(points) <= size:
        return np.arange(len(points))
    chosen = list(dict.fromkeys((*first, 0, len(points) - 1)))[:size]
    distance = np.min([np.linalg.norm(points - points[i], axis=1) for i in chosen], axis=0)
    while len(chosen) < size:
        farthest = int(np.argmax(distance))
        chosen.append(farthest)
        distance = np.minimum(distance, np.linalg.norm(points - points[farthest], axis=1))
    return np.array(sorted(chosen))


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One row a (offer, count)."""

    # offer, column: (n,); row of the offers and of the time columns
    offer: Integers
    column: Integers
    # time_h, cost_usd: (n,); expected; nan where the row cannot run. [h], [USD]
    time_h: Floats
    cost_usd: Floats
    is_spot: Booleans
    is_in_quota: Booleans
    # (n,); spot rows that on-demand ones beat even if nothing is ever taken away, and those of the
    # same machines at a higher price; they are not replayed
    is_hopeless: Booleans
    # the first has one row a row of the time columns: the machines that stay. The others have the
    # rows of spot offers, by the way to complete the job.
    completions: tuple[Completion, ...]
    # completed_by, completed_at: (n,); which of them has the row, and where
    completed_by: Integers
    completed_at: Integers

    @property
    def steady(self) -> Completion:
        """Completions on machines that stay, one row a row of the time columns."""
        return self.completions[0]

    def completion_of(self, row: int) -> Completion:
        """Return the completions among which ``row`` has its own."""
        return self.completions[int(self.completed_by[row])]

    def completion_row(self, row: int) -> int:
        """Return the place of ``row`` in ``completion_of(row)``."""
        return int(self.completed_at[row])

    def usd_per_h(self, offers: OfferColumns, columns: TimeColumns) -> Floats:
        """Return the price of all machines of every row [USD/h]."""
        return np.asarray(offers.price_usd_per_h[self.offer] * columns.count[self.column])

    def with_confidence(self, confidence: float | None, coverage: float) -> tuple[Floats, Floats]:
        """Return time [h] and cost [USD] that are kept with a probability; None: as expected.

        Half a log-normal on each side of the expected value, as ``Estimate.above``; ``coverage``
        is that of the completions.
        """
        if confidence is None:
            return self.time_h, self.cost_usd
        factors = []
        for bounds in ("finish_h", "billed_h"):
            factor = np.ones(self.time_h.shape)
            for number, completion in enumerate(self.completions):
                mine = np.flatnonzero(self.completed_by == number)
                found = getattr(completion, bounds)[self.completed_at[mine]]
                factor[mine] = kept_factor(found, confidence, coverage)
            factors.append(np.nan_to_num(factor, nan=1.0))
        return self.time_h * factors[0], self.cost_usd * factors[1]

    def is_late(self, deadline_h: float, confidence: float | None, coverage: float) -> Booleans:
        """Say which rows miss a deadline: expected (None), or with the confidence asked for.

        A row that is planned by the deadline says itself with which probability it misses it.
        """
        late = self.with_confidence(confidence, coverage)[0] > deadline_h
        for number, completion in enumerate(self.completions if confidence is not None else ()):
            mine = np.flatnonzero(self.completed_by == number)
            fraction = completion.late_fraction[self.completed_at[mine]]
            is_planned = np.isfinite(fraction)
            late[mine[is_planned]] = fraction[is_planned] > 1.0 - (confidence or 0.0)
        return np.asarray(late)

    def is_planned(self, rows: Integers) -> Booleans:
        """Say which rows follow a plan by the deadline."""
        late = [one.late_fraction for one in self.completions]
        begin = np.cumsum([0, *(one.size for one in late)])
        place = begin[self.completed_by[rows]] + self.completed_at[rows]
        return np.asarray(np.isfinite(np.concatenate(late)[place]))

    def with_completions(self, further: Sequence[Further]) -> Rows:
        """Return the rows with other ways to complete some of them behind."""
        columns: dict[str, list[Any]] = {}
        for number, one in enumerate(further, start=len(self.completions)):
            added = {
                "offer": self.offer[one.like],
                "column": self.column[one.like],
                "time_h": one.completion.finish_h[:, 1],
                "cost_usd": one.cost_usd,
                "is_spot": self.is_spot[one.like],
                "is_in_quota": self.is_in_quota[one.like],
                "is_hopeless": np.zeros(one.like.shape, dtype=bool),
                "completed_by": np.full(one.like.shape, number),
                "completed_at": np.arange(one.like.size),
            }
            for name, column in added.items():
                columns.setdefault(name, [getattr(self, name)]).append(column)
        if not columns:
            return self
        return Rows(
            **{name: np.concatenate(parts) for name, parts in columns.items()},
            completions=(*self.completions, *(one.completion for one in further)),
        )


def kept_factor(bounds: Floats, confidence: float | None, coverage: float) -> Floats:
    """Return the factor on the middle of (low, expected, high) that is kept with a probability."""
    if confidence is None:
        return np.ones(len(bounds))
    from statistics import NormalDist

    reach = NormalDist().inv_cdf(confidence) / NormalDist().inv_cdf(0.5 + coverage / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((bounds[:, 2] / bounds[:, 1]) ** reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """Another way to complete the job on some rows."""

    completion: Completion
    like: Integers  # (n,); rows with the same offer and count
    cost_usd: Floats  # (n,); [USD]


def price_rows(
    job: Job, request: Constraints, offers: OfferColumns, side: SideCosts, types: Integers,
    columns: TimeColumns, counts: int,
) -> Rows:  # fmt: skip
    """Cross the offers with the counts; the times of a type hold in all its regions.

    Rows that have no estimate are left out: their price is of no matter. ``side`` has one row an
    offer; what it has no price of costs nothing here.
    """
    position = np.searchsorted(types, offers.type_index)
    is_known = (columns.status == 0).reshape(-1, counts)
    offer, number = np.nonzero(is_known[position])
    column = position[offer] * counts + number
    steady = on_demand(job, columns, request.coverage)
    hourly = offers.price_usd_per_h + side.usd_per_h
    price = hourly[offer] * columns.count[column]
    once = np.nan_to_num(side.egress_usd)[offer]
    time_h = steady.finish_h[column, 1]
    cost = side.charged_h(offer, steady.billed_h[column, 1]) * price + once
    is_spot = (offers.pricing == "spot")[offer]
    hopeless = np.zeros(len(offer), dtype=bool)
    completions = [steady]
    completed_by, completed_at = np.zeros(len(offer), dtype=np.int64), column.copy()
    is_in_quota = columns.count[column] <= offers.max_instances[offer]
    if is_spot.any() and request.saves_checkpoints:
        bands = np.nan_to_num(offers.spot_interruption_band, nan=-1.0)[offer]
        usable_h = np.where(is_in_quota, time_h, np.nan)
        replayed = _worth_replaying(usable_h, cost, is_spot, column, bands)
        hopeless[is_spot] = True
        hopeless[replayed] = False
        band = offers.spot_interruption_band[offer[replayed]]
        if replayed.size:
            spot = on_spot(job, columns, column[replayed], band, request.coverage)
            completions.append(spot)
            completed_by[replayed], completed_at[replayed] = 1, np.arange(replayed.size)
            time_h[replayed] = spot.finish_h[:, 1]
            billed_h = side.charged_h(offer[replayed], spot.billed_h[:, 1])
            cost[replayed] = billed_h * price[replayed] + once[replayed]
    return Rows(
        offer=offer,
        column=column,
        time_h=time_h,
        cost_usd=cost,
        is_spot=is_spot,
        is_in_quota=is_in_quota,
        is_hopeless=hopeless & np.isfinite(time_h),
        completions=tuple(completions),
        completed_by=completed_by,
        completed_at=completed_at,
    )


def _worth_replaying(
    time_h: Floats, cost: Floats, is_spot: Booleans, column: Integers, bands: Floats
) -> Integers:
    """Return the spot rows that could be on the front if nothing were ever taken away.

    ``time_h`` and ``cost`` are bounds from below for them. Of the same machines with the same
    hazard only the cheapest can.
    """
    rows = np.flatnonzero(is_spot & np.isfinite(time_h))
    rows = rows[np.argsort(cost[rows], kind="stable")]
    kinds = column[rows] * 8 + bands[rows].astype(np.int64)
    rows = rows[np.sort(np.unique(kinds, return_index=True)[1])]
    steady = np.flatnonzero(~is_spot)
    front = steady[pareto_front(time_h[steady], cost[steady])]
    if front.size == 0:
        return rows
    bar = bar_of(time_h[front], cost[front], time_h[rows])
    return rows[cost[rows] < bar]
