"""The candidates as one table: every offer in every number of machines, with time and cost.

A row on spot offers may stand there again, completed in another way (``rank.spot_ways``); a
cluster of several types is a row behind all of equal machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Answer
from advisor.ask import Constraints
from advisor.catalogue import Offers
from advisor.estimate import Completion, SideCosts, TimeColumns, on_demand, on_spot
from advisor.jobs import Job
from advisor.quantities import REACH_90
from advisor.rank.front import Front, pareto_front

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# A group of several types is no row of the offers, of the columns or of the completions.
_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """A mixed cluster with what it takes, in one row of columns."""

    time_h: float
    cost_usd: float
    parts: tuple[tuple[int, int], ...]  # rows of the offers, and machines of each
    choice: Answer
    columns: TimeColumns
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One row a candidate; those in ``mixed`` are the last."""

    # offer, column: (n,); row of the offers and of the time columns
    offer: Integers
    column: Integers
    # time_h, cost_usd: (n,); expected; nan where the row cannot run. [h], [USD]
    time_h: Floats
    cost_usd: Floats
    log_sd: Floats  # (n,); standard deviation of the error of ln(time)
    kind: Integers  # (n,); the instance type; negative, and each its own, of several types
    machines: Integers  # (n,)
    is_extrapolating: Booleans  # (n,); outside what the models were fitted on
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
    mixed: tuple[MixedRow, ...] = ()

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return len(self.offer)

    def is_mixed(self, rows: Integers) -> Booleans:
        """Say which rows are of several types."""
        return np.asarray(self.offer[rows] == _NONE)

    def mixed_row(self, row: int) -> MixedRow:
        """Return a cluster of several types."""
        return self.mixed[row - self.size]

    def completion_of(self, row: int) -> tuple[Completion, int]:
        """Return the completions among which ``row`` has its own, and its place there."""
        return self.completions[int(self.completed_by[row])], int(self.completed_at[row])

    def usd_per_h(self, offers: Offers) -> Floats:
        """Return the price of all machines of every row of equal ones [USD/h]."""
        return np.asarray(offers.price_usd_per_h[self.offer] * self.machines)

    def worst(self, rows: Integers) -> Floats:
        """Return the factor by which rows are judged worse than expected, as picks judge them."""
        return np.where(self.is_extrapolating[rows], np.exp(REACH_90 * self.log_sd[rows]), 1.0)

    def kept(self, bounds: str, confidence: float | None, coverage: float) -> Floats:
        """Return ``"finish_h"`` or ``"billed_h"`` over what is expected, kept with a probability.

        Half a log-normal on each side of the expected value, as ``Estimate.above``; ``coverage``
        is that of the completions. 1 of what is as expected (None), and of several types.
        """
        factors = [kept_factor(getattr(c, bounds), confidence, coverage) for c in self.completions]
        return self._of_completions(factors, 1.0)

    def late_fraction(self) -> Floats:
        """Return with which probability a plan by the deadline misses it; nan without a plan."""
        return self._of_completions([one.late_fraction for one in self.completions], np.nan)

    def _of_completions(self, values: Sequence[Floats], other: float) -> Floats:
        begin = np.cumsum([0, *(len(one) for one in values)])
        found = np.concatenate(values)[begin[self.completed_by] + self.completed_at]
        return np.where(self.completed_by == _NONE, other, np.nan_to_num(found, nan=other))

    def is_late(self, deadline_h: float, confidence: float | None, coverage: float) -> Booleans:
        """Say which rows miss a deadline: expected (None), or with the confidence asked for.

        A row that is planned by the deadline says itself with which probability it misses it.
        """
        late = self.time_h * self.kept("finish_h", confidence, coverage) > deadline_h
        if confidence is None:
            return np.asarray(late)
        planned = self.late_fraction()
        return np.where(np.isnan(planned), late, planned > 1.0 - confidence)

    def with_way(self, completion: Completion, like: Integers, cost_usd: Floats) -> Rows:
        """Return the rows with some of them behind, completed in another way."""
        added = {name: getattr(self, name)[like] for name in _COLUMNS} | {
            "time_h": completion.finish_h[:, 1],
            "cost_usd": cost_usd,
            "is_hopeless": np.zeros(like.shape, dtype=bool),
            "completed_by": np.full(like.shape, len(self.completions)),
            "completed_at": np.arange(like.size),
        }
        return self._joined(added, completions=(*self.completions, completion))

    def with_mixed(self, found: Sequence[MixedRow]) -> Rows:
        """Return the rows with clusters of several types behind."""
        none = np.full(len(found), _NONE)
        added = {
            **dict.fromkeys(("offer", "column", "completed_by", "completed_at"), none),
            **dict.fromkeys(("is_spot", "is_hopeless"), none == 0),
            "is_in_quota": none < 0,
            "time_h": [one.time_h for one in found],
            "cost_usd": [one.cost_usd for one in found],
            "log_sd": [one.columns.log_sd[0] for one in found],
            "is_extrapolating": [one.columns.is_extrapolating[0] for one in found],
            "machines": [sum(number for _, number in one.parts) for one in found],
            "kind": -1 - np.arange(len(found)),
        }
        return self._joined(added, completions=self.completions, mixed=tuple(found))

    def _joined(self, added: dict[str, Any], **others: Any) -> Rows:
        for name in _COLUMNS:
            own = getattr(self, name)
            others[name] = np.concatenate([own, np.asarray(added[name], own.dtype)])
        return Rows(**others)


_COLUMNS: Final = (
    "offer", "column", "time_h", "cost_usd", "log_sd", "kind", "machines", "is_extrapolating",
    "is_spot", "is_in_quota", "is_hopeless", "completed_by", "completed_at",
)  # fmt: skip


def kept_factor(bounds: Floats, confidence: float | None, coverage: float) -> Floats:
    """Return the factor on the middle of (low, expected, high) that is kept with a probability."""
    if confidence is None:
        return np.ones(len(bounds))
    reach = NormalDist().inv_cdf(confidence) / NormalDist().inv_cdf(0.5 + coverage / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((bounds[:, 2] / bounds[:, 1]) ** reach)


def price_rows(
    job: Job, request: Constraints, offers: Offers, side: SideCosts, types: Integers,
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
        offer=offer, column=column, time_h=time_h, cost_usd=cost, log_sd=columns.log_sd[column],
        kind=columns.type_index[column], machines=columns.count[column],
        is_extrapolating=columns.is_extrapolating[column], is_spot=is_spot,
        is_in_quota=is_in_quota, is_hopeless=hopeless & np.isfinite(time_h),
        completions=tuple(completions), completed_by=completed_by, completed_at=completed_at,
    )  # fmt: skip


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
    return rows[~Front(time_h[front], cost[front]).beats(time_h[rows], cost[rows])]
