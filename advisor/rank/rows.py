"""The candidates as one table: every offer in every number of machines, with time and cost.

A row on spot offers may stand there again, completed in another way (``rank.spot_ways``); a
cluster of several types is a row behind all of equal machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from advisor.answer import Answer
from advisor.ask import Constraints
from advisor.catalogue import Offers
from advisor.estimate import Completion, SideCosts, TimeColumns, on_demand, on_spot
from advisor.jobs import Job
from advisor.planners.core import concatenate
from advisor.rank.front import FrontByMachines, doubted
from advisor.rank.renting import Booleans, Floats, Integers

# A group of several types is no row of the offers or of the columns.
_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """A mixed cluster with what it takes, in one row of columns."""

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
    # what the job takes: first one row a row of the time columns, on machines that stay; then
    # those of the rows of spot offers, by the way to complete the job, and of several types
    completions: Completion
    done: Integers  # (n,); row of the completions
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

    def usd_per_h(self, offers: Offers) -> Floats:
        """Return the price of all machines of every row of equal ones [USD/h]."""
        return np.asarray(offers.price_usd_per_h[self.offer] * self.machines)

    def worst(self, rows: Integers) -> tuple[Floats, Floats]:
        """Return by which factors time and cost are judged worse than expected, as by picks.

        They differ of spot machines, whose replacements may be dearer.
        """
        done, is_judged = self.done[rows], self.is_extrapolating[rows]
        bounds = self.completions.finish_h, self.completions.billed_h
        with np.errstate(invalid="ignore", divide="ignore"):
            time, cost = (
                np.where(is_judged, np.nan_to_num(one[done, 2] / one[done, 1], nan=1.0), 1.0)
                for one in bounds
            )
        return time, cost

    def doubted(self, lacks: Integers, gain: float, coverage: float) -> Floats:
        """Return ``front.doubted`` of the rows of equal machines."""
        return doubted(lacks, self.completions.finish_h[self.done], gain, coverage)

    def kept(self, bounds: str, confidence: float | None, coverage: float) -> Floats:
        """Return ``"finish_h"`` or ``"billed_h"`` over what is expected, kept with a probability.

        Half a log-normal on each side of the expected value, as ``Estimate.above``; ``coverage``
        is that of the completions. 1 of what is as expected (None).
        """
        factor = kept_factor(getattr(self.completions, bounds), confidence, coverage)
        return np.nan_to_num(factor[self.done], nan=1.0)

    def is_late(self, deadline_h: float, confidence: float | None, coverage: float) -> Booleans:
        """Say which rows miss a deadline: expected (None), or with the confidence asked for.

        A row that is planned by the deadline says itself with which probability it misses it.
        """
        late = self.time_h * self.kept("finish_h", confidence, coverage) > deadline_h
        if confidence is None:
            return np.asarray(late)
        planned = self.completions.late_fraction[self.done]
        return np.where(np.isnan(planned), late, planned > 1.0 - confidence)

    def with_way(self, completion: Completion, like: Integers, cost_usd: Floats) -> Rows:
        """Return the rows with some of them behind, completed in another way."""
        return self._joined(completion, cost_usd, is_hopeless=False, **{
            name: getattr(self, name)[like] for name in _COLUMNS
        })  # fmt: skip

    def with_mixed(self, found: Sequence[MixedRow]) -> Rows:
        """Return the rows with clusters of several types behind."""
        if not found:
            return self
        columns, kinds = concatenate([one.columns for one in found]), -1 - np.arange(len(found))
        return self._joined(
            concatenate([one.completion for one in found]), [one.cost_usd for one in found],
            is_hopeless=False, offer=_NONE, column=_NONE, is_spot=False, is_in_quota=True,
            log_sd=columns.log_sd, is_extrapolating=columns.is_extrapolating,
            machines=columns.count, kind=kinds, mixed=tuple(found),
        )  # fmt: skip

    def _joined(self, completion: Completion, cost_usd: ArrayLike, **added: Any) -> Rows:
        """Return the rows with others behind, of these columns, which complete the job so."""
        time_h = completion.finish_h[:, 1]
        done = len(self.completions.way) + np.arange(time_h.size)
        others = {"mixed": added.pop("mixed", self.mixed)}
        for name, rows in (added | {"time_h": time_h, "cost_usd": cost_usd, "done": done}).items():
            own = getattr(self, name)
            behind = np.broadcast_to(np.asarray(rows, own.dtype), time_h.shape)
            others[name] = np.concatenate([own, behind])
        return Rows(completions=concatenate([self.completions, completion]), **others)


# What a row has of its offer and its machines, however the job is completed.
_COLUMNS: Final = (
    "offer", "column", "log_sd", "kind", "machines", "is_extrapolating", "is_spot", "is_in_quota",
)  # fmt: skip


def counted_out(rejected: Counter[str], *reasons: tuple[str, Booleans]) -> Booleans:
    """Return the rows that no reason holds for; the others are counted by the first that does."""
    left = np.ones(reasons[0][1].shape, dtype=bool)
    for reason, holds in reasons:
        rejected[reason] += int(np.count_nonzero(left & holds))
        left &= ~holds
    return left


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
    completions, done = steady, column.copy()
    is_in_quota = columns.count[column] <= offers.max_instances[offer]
    if is_spot.any() and request.saves_checkpoints:
        bands = np.nan_to_num(offers.spot_interruption_band, nan=-1.0)[offer]
        usable_h = np.where(is_in_quota, time_h, np.nan)
        replayed = _worth_replaying(
            usable_h, cost, is_spot, column, bands, columns.count[column]
        )  # fmt: skip
        hopeless[is_spot] = True
        hopeless[replayed] = False
        band = offers.spot_interruption_band[offer[replayed]]
        if replayed.size:
            spot = on_spot(job, columns, column[replayed], band, request.coverage)
            completions = concatenate([steady, spot])
            done[replayed] = len(columns.count) + np.arange(replayed.size)
            time_h[replayed] = spot.finish_h[:, 1]
            billed_h = side.charged_h(offer[replayed], spot.billed_h[:, 1])
            cost[replayed] = billed_h * price[replayed] + once[replayed]
    return Rows(
        offer=offer, column=column, time_h=time_h, cost_usd=cost, log_sd=columns.log_sd[column],
        kind=columns.type_index[column], machines=columns.count[column],
        is_extrapolating=columns.is_extrapolating[column], is_spot=is_spot,
        is_in_quota=is_in_quota, is_hopeless=hopeless & np.isfinite(time_h),
        completions=completions, done=done,
    )  # fmt: skip


def _worth_replaying(
    time_h: Floats, cost: Floats, is_spot: Booleans, column: Integers, bands: Floats,
    machines: Integers,
) -> Integers:  # fmt: skip
    """Return the spot rows that could be on the front if nothing were ever taken away.

    ``time_h`` and ``cost`` are bounds from below for them. Of the same machines with the same
    hazard only the cheapest can. What only more machines beat may still be picked: it is less
    work for a person.
    """
    rows = np.flatnonzero(is_spot & np.isfinite(time_h))
    rows = rows[np.argsort(cost[rows], kind="stable")]
    kinds = column[rows] * 8 + bands[rows].astype(np.int64)
    rows = rows[np.sort(np.unique(kinds, return_index=True)[1])]
    steady = ~is_spot
    known = FrontByMachines(time_h[steady], cost[steady], machines[steady])
    return rows[~known.beats(time_h[rows], cost[rows], machines[rows])]
