"""Mixed clusters among the candidates: two types of machines rented together in one region."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns
from advisor.catalogue.billing import SHORTEST_BILL_H, charged_h
from advisor.domain import Candidate
from advisor.jobs.job import Job
from advisor.planners.core.units import HOUR_S
from advisor.predict import STATUSES, Predictor
from advisor.predict.completion import Completion, on_demand, on_spot
from advisor.predict.data_costs import SideCosts
from advisor.predict.pair_candidates import pair_candidate
from advisor.ranking.front import pareto_front
from advisor.ranking.mixed_pairs import MixedOffers, bounds_s, count_pairs, mixed_offers
from advisor.ranking.request import Request
from advisor.ways.data_parallel import admits
from advisor.ways.pairs import Pair, PairCase, PairColumns, pair_case
from advisor.ways.two_types import two_types

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRows:
    """Mixed clusters that may be on the front, one row a pair of offers with counts.

    Attributes
    ----------
    time_h, cost_usd : arrays of shape (n,)
    clusters : MixedOffers
    columns : PairColumns
        One row a row.
    completion : Completion
    considered : int
        Mixed clusters in all, those left out by bounds among them.
    rejected : Counter of str
        By the first reason; ``"dominated"`` holds what was left out by bounds.
    """

    time_h: Floats
    cost_usd: Floats
    clusters: MixedOffers
    columns: PairColumns
    completion: Completion
    considered: int
    rejected: Counter[str]

    def candidate(
        self, row: int, job: Job, predictor: Predictor, offers: OfferColumns, side: SideCosts,
        *, coverage: float, rank: int,
    ) -> Candidate:  # fmt: skip
        """Make the object of one row."""
        return pair_candidate(
            job,
            predictor.catalogue,
            self.columns,
            self.completion,
            offers,
            side,
            row=row,
            offer_rows=(int(self.clusters.offers[0][row]), int(self.clusters.offers[1][row])),
            coverage=coverage,
            rank=rank,
        )


def mixed_rows(
    job: Job,
    request: Request,
    predictor: Predictor,
    offers: OfferColumns,
    side: SideCosts,
    beaten_by: tuple[Floats, Floats],
    *,
    is_pruned: bool = True,
) -> MixedRows | None:
    """Evaluate the mixed clusters that could be on the front.

    Parameters
    ----------
    job : Job
    request : Request
    predictor : Predictor
    offers : OfferColumns
    side : SideCosts
        One row an offer.
    beaten_by : pair of arrays
        Time [h] and cost [USD] of the clusters of equal machines that satisfy the constraints.
    is_pruned : bool, default True
        Leave out what bounds allow to (``mixed_pairs``).

    Returns
    -------
    MixedRows or None
        None where the job has no steps, or no two offers can be rented together.
    """
    counts = count_pairs(request.counts, request.max_nodes)
    if job.work is None or counts[0].size == 0 or len(offers) == 0:
        return None
    case = predictor.case(job, space=request.space, known_network=request.known_network)
    if not admits(case):
        return None  # neither uneven batches nor two stages have other degrees
    pairs = pair_case(case)
    types = predictor.catalogue.types
    clusters = mixed_offers(pairs, offers, side, types, counts, is_pruned=is_pruned)
    if clusters.considered == 0:
        return None
    front: tuple[Floats, Floats] | None = None
    if is_pruned:
        best = pareto_front(*beaten_by)
        front = beaten_by[0][best], beaten_by[1][best]
        step_s = bounds_s(pairs, _types(offers, clusters), clusters.counts)
        time_h = step_s * job.paid_steps / HOUR_S
        cost = np.maximum(time_h, SHORTEST_BILL_H) * clusters.usd_per_h + clusters.once_usd
        keeps = time_h <= (request.deadline_h or np.inf)
        keeps &= cost <= (request.budget_usd or np.inf)
        clusters = clusters.select(keeps & ~_is_beaten(time_h, cost, front))
    return _evaluated(pairs, request, offers, clusters, front)


def _is_beaten(time_h: Floats, cost: Floats, front: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    """Whether one of a front (rising times, falling costs) is as fast and costs no more."""
    times, costs = front
    if times.size == 0:
        return np.zeros(time_h.size, dtype=bool)
    place = np.searchsorted(times, time_h, side="right") - 1
    return np.asarray((place >= 0) & (cost >= costs[np.maximum(place, 0)]))


def _types(offers: OfferColumns, clusters: MixedOffers) -> Pair:
    return offers.type_index[clusters.offers[0]], offers.type_index[clusters.offers[1]]


def _evaluated(
    pairs: PairCase, request: Request, offers: OfferColumns, clusters: MixedOffers,
    front: tuple[Floats, Floats] | None,
) -> MixedRows:  # fmt: skip
    """Return the clusters with time and cost, those that cannot be chosen counted.

    Spot clusters that ``front`` beats even if nothing is ever taken away are not replayed.
    """
    job = pairs.case.job
    columns = two_types(pairs, _types(offers, clusters), clusters.counts)
    completion = on_demand(job, columns.times, request.coverage)
    is_spot = offers.pricing[clusters.offers[0]] == "spot"
    if front is not None and is_spot.any():
        time_h, cost = _undisturbed(job, columns, clusters)
        keeps = ~is_spot | (columns.times.status != 0) | ~_is_beaten(time_h, cost, front)
        rows = np.flatnonzero(keeps)
        clusters, columns = clusters.select(rows), columns.select(rows)
        completion, is_spot = completion.taken(rows), is_spot[rows]
    if request.saves_checkpoints:
        spot = np.flatnonzero(is_spot & (columns.times.status == 0))
        if spot.size:
            bands = _worse_band(offers, clusters.offers, spot)
            replayed = on_spot(job, columns.times, spot, bands, request.coverage)
            completion = completion.with_rows(spot, replayed)
    time_h = completion.finish_h[:, 1]
    bills = (offers.shortest_bill_h, offers.bill_step_h)
    charges = (np.maximum(*(column[rows] for rows in clusters.offers)) for column in bills)
    billed_h = charged_h(completion.billed_h[:, 1], *charges)
    cost = billed_h * clusters.usd_per_h + clusters.once_usd
    rejected: Counter[str] = Counter(dominated=clusters.considered - time_h.size)
    rows = _left(request, offers, clusters, columns, time_h, cost, rejected)
    return MixedRows(
        time_h=time_h[rows],
        cost_usd=cost[rows],
        clusters=clusters.select(rows),
        columns=columns.select(rows),
        completion=completion.taken(rows),
        considered=clusters.considered,
        rejected=rejected,
    )


def _undisturbed(job: Job, columns: PairColumns, clusters: MixedOffers) -> tuple[Floats, Floats]:
    """Return bounds from below on a spot cluster: its steps alone, [h] and [USD]."""
    time_h = columns.times.step_s * job.paid_steps / HOUR_S
    cost = np.maximum(time_h, SHORTEST_BILL_H) * clusters.usd_per_h + clusters.once_usd
    return np.nan_to_num(time_h, nan=np.inf), np.nan_to_num(cost, nan=np.inf)


def _worse_band(offers: OfferColumns, pair: Pair, rows: Integers) -> Floats:
    """Return the more often removed type's interruption band: one machine less stops the job."""
    bands = [offers.spot_interruption_band[p[rows]] for p in pair]
    return np.asarray(np.maximum(*bands))  # nan, the worst, wins


def _left(
    request: Request, offers: OfferColumns, clusters: MixedOffers, columns: PairColumns,
    time_h: Floats, cost: Floats, rejected: Counter[str],
) -> Integers:  # fmt: skip
    """Return the rows that satisfy the constraints; count the others by the first reason."""
    status = columns.times.status
    for code, reason in enumerate(STATUSES):
        if code:
            rejected[reason] += int(np.count_nonzero(status == code))
    left = status == 0
    quota = np.ones(status.size, dtype=bool)
    for rows, n in zip(clusters.offers, clusters.counts, strict=True):
        quota &= n <= offers.max_instances[rows]
    is_spot = offers.pricing[clusters.offers[0]] == "spot"
    for reason, holds in (
        ("over_quota", ~quota),
        ("over_hourly", clusters.usd_per_h > request.most_usd_per_h),
        ("no_checkpoints", is_spot & (not request.saves_checkpoints)),
        ("over_deadline", time_h > (request.deadline_h or np.inf)),
        ("over_budget", cost > (request.budget_usd or np.inf)),
    ):
        rejected[reason] += int(np.count_nonzero(left & holds))
        left &= ~holds
    return np.flatnonzero(left)
