"""Clusters of unlike machines among the candidates: several types rented together in one region.

The estimate of each is what ``plan`` answers for it (``ways.unlike``), so that the front of
``recommend`` is never worse than ``plan`` on machines that it asks. Clusters whose bounds from
below (``ways.group_bounds``) are beaten by what is known are not asked; the best bounds are asked
first, since what they turn out to take beats most others. Where nobody asked for mixed clusters,
no more than ``_MOST_ASKED`` are; the rest are counted as ``not_asked``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns
from advisor.catalogue.billing import SHORTEST_BILL_H, charged_h
from advisor.domain import Candidate
from advisor.jobs.job import Job
from advisor.machines.cluster import ClusterGroup, NamedCluster
from advisor.machines.cluster_text import group_of_type
from advisor.planners.core.tables import concatenate
from advisor.planners.core.units import HOUR_S
from advisor.predict import STATUSES, Predictor
from advisor.predict.completion import Completion, on_demand, on_spot
from advisor.predict.data_costs import SideCosts
from advisor.predict.pair_candidates import group_candidate
from advisor.ranking.front import bar_of, pareto_front
from advisor.ranking.group_offers import MixedOffers, mixed_offers
from advisor.ranking.request import Request
from advisor.ranking.rows import kept_factor
from advisor.ways.answer import Choice
from advisor.ways.case import StepCase
from advisor.ways.columns import TimeColumns
from advisor.ways.group_bounds import least_group_step_s, refined_step_s
from advisor.ways.group_columns import group_columns
from advisor.ways.unit_models import model_on
from advisor.ways.unlike import best_released

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Machines = tuple[tuple[int, int], ...]

# Clusters asked before the others' bounds are held against what they take.
_AT_ONCE: Final = 8
# Clusters asked, most promising first, where nobody asked for mixed ones: some seconds.
_MOST_ASKED: Final = 24
# A band above all that are known.
_UNKNOWN: Final = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """A mixed cluster with what it takes, in one row of columns.

    Attributes
    ----------
    time_h, cost_usd : float
    parts : tuple of (int, int)
        Rows of the offers, and machines of each.
    choice : Choice
    columns : TimeColumns
    completion : Completion
    """

    time_h: float
    cost_usd: float
    parts: tuple[tuple[int, int], ...]
    choice: Choice
    columns: TimeColumns
    completion: Completion

    def candidate(
        self, job: Job, predictor: Predictor, offers: OfferColumns, side: SideCosts, *,
        coverage: float, rank: int,
    ) -> Candidate:  # fmt: skip
        """Make the object that is shown."""
        return group_candidate(
            job, predictor.catalogue, self.choice, self.columns, self.completion, offers, side,
            parts=self.parts, coverage=coverage, rank=rank,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRows:
    """Mixed clusters that keep the constraints, and how many others there are.

    Attributes
    ----------
    rows : tuple of MixedRow
    considered : int
        Mixed clusters in all, those left out by bounds among them.
    rejected : Counter of str
        By the first reason; ``"dominated"`` holds what was left out by bounds.
    """

    rows: tuple[MixedRow, ...]
    considered: int
    rejected: Counter[str]

    @property
    def time_h(self) -> Floats:
        """Of every row [h]."""
        return np.array([row.time_h for row in self.rows])

    @property
    def cost_usd(self) -> Floats:
        """Of every row [USD]."""
        return np.array([row.cost_usd for row in self.rows])


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
        Leave out what bounds allow to.

    Returns
    -------
    MixedRows or None
        None where the job has no steps, or no two offers can be rented together.
    """
    if job.work is None or len(offers) == 0:
        return None
    case = predictor.case(job, space=request.space, known_network=request.known_network)
    clusters = mixed_offers(
        case, offers, side, predictor.catalogue.types, request.counts, request.max_nodes,
        is_pruned=is_pruned,
    )  # fmt: skip
    if clusters.considered == 0:
        return None
    search = _MixedSearch(case, request, predictor, offers, clusters, beaten_by)
    search.run(is_pruned=is_pruned)
    return search.found()


@dataclass(slots=True)
class _Groups:
    """What ``plan`` answers for groups of machines, asked once whatever they cost."""

    case: StepCase
    predictor: Predictor
    of_type: dict[int, ClusterGroup] = field(default_factory=dict)
    known: dict[Machines, tuple[Choice | None, TimeColumns]] = field(default_factory=dict)

    def ask(self, machines: Machines) -> tuple[Choice | None, TimeColumns]:
        if machines not in self.known:
            cluster = NamedCluster(groups=tuple(self._group(*one) for one in machines))
            model = model_on(self.case, self.predictor.catalogue, cluster.groups)
            batch = self.case.job.global_batch
            choice = best_released(model, cluster, global_batch=batch)
            self.known[machines] = choice, group_columns(choice, model.places)
        return self.known[machines]

    def _group(self, row: int, count: int) -> ClusterGroup:
        if row not in self.of_type:
            types = self.predictor.catalogue.types
            name = f"{types.provider[row]}:{types.name[row]}"
            found = self.predictor.catalogue.instance_type(name)
            self.of_type[row] = group_of_type(found, 1, self.predictor.catalogue)
        return replace(self.of_type[row], count=count)


class _MixedSearch:
    """Clusters asked so far, what is known to be possible, and the bounds of the others."""

    def __init__(
        self, case: StepCase, request: Request, predictor: Predictor, offers: OfferColumns,
        clusters: MixedOffers, beaten_by: tuple[Floats, Floats],
    ) -> None:  # fmt: skip
        self.case, self.request, self.offers, self.clusters = case, request, offers, clusters
        self.groups = _Groups(case, predictor)
        self.types = offers.type_index[clusters.offers]
        self.is_spot = np.asarray(offers.pricing == "spot")[clusters.offers[:, 0]]
        self.kept: list[MixedRow] = []
        self.rejected: Counter[str] = Counter()
        front = pareto_front(*beaten_by)
        self.front = beaten_by[0][front], beaten_by[1][front]
        before = np.where(
            clusters.counts > 0,
            (case.startup_s(np.arange(len(case.fleet.device)))
             + case.data_in_s(np.arange(len(case.fleet.device))))[self.types],
            0.0,
        ).max(axis=1, initial=0.0)  # fmt: skip
        self.before_s = before
        self.least_s = least_group_step_s(case, self.types, clusters.counts)
        self.is_refined, self.asked = False, 0
        self._bound()
        self.is_open = np.ones(self.time_h.size, dtype=bool)

    def run(self, *, is_pruned: bool) -> None:
        """Ask clusters until no bound of an open one is below all that is known."""
        request, clusters = self.request, self.clusters
        enough = np.nan_to_num(clusters.of(self.offers.max_instances), nan=np.inf)
        for reason, holds in (
            ("does_not_fit_in_memory", ~np.isfinite(self.time_h)),
            ("over_quota", (clusters.counts > enough).any(axis=1)),
            ("over_hourly", clusters.usd_per_h > request.most_usd_per_h),
            ("no_checkpoints", self.is_spot & (not request.saves_checkpoints)),
        ):
            self._close(reason, np.asarray(holds))
        if not is_pruned and self.is_open.any():
            self._ask(np.flatnonzero(self.is_open))
        gain = 1.0 + request.least_gain_fraction
        while self.is_open.any():
            if self.asked >= _MOST_ASKED and self.request.mixed is not True:
                self._close("not_asked", self.is_open.copy())
                break
            self._close("over_deadline", self.time_h > (request.deadline_h or np.inf))
            self._close("over_budget", self.cost_usd > (request.budget_usd or np.inf))
            beaten = np.zeros(self.is_open.size, dtype=bool)
            rows = np.flatnonzero(self.is_open)
            # Nothing is gained by less than what two lines differ by.
            cost = self.cost_usd[rows] * gain
            beaten[rows] = cost >= bar_of(*self.front, self.time_h[rows] * gain)
            self._close("dominated", beaten)
            rows = np.flatnonzero(self.is_open)
            if not self.is_refined:
                self._refine(rows)
            elif rows.size:
                best = rows[pareto_front(self.time_h[rows], self.cost_usd[rows])]
                if best.size > _AT_ONCE:
                    at = np.linspace(0, best.size - 1, _AT_ONCE).round().astype(np.int64)
                    best = best[np.unique(at)]
                self.asked += best.size
                self._ask(best)

    def _bound(self) -> None:
        """Set the bounds of times and costs from those of the steps."""
        clusters = self.clusters
        self.time_h = (self.least_s * self.case.job.paid_steps + self.before_s) / HOUR_S
        billed = np.maximum(self.time_h, SHORTEST_BILL_H)
        self.cost_usd = billed * clusters.usd_per_h + clusters.once_usd

    def _refine(self, rows: Integers) -> None:
        """Raise the bounds of the few that are left, once."""
        types, counts = self.types[rows], self.clusters.counts[rows]
        self.least_s[rows] = refined_step_s(self.case, types, counts, self.least_s[rows])
        self._bound()
        self.is_refined = True

    def found(self) -> MixedRows:
        """Return the clusters asked that keep the constraints; the others are counted."""
        self.rejected["dominated"] += self.clusters.considered - self.time_h.size
        return MixedRows(
            rows=tuple(self.kept), considered=self.clusters.considered, rejected=self.rejected
        )

    def _close(self, reason: str, rows: NDArray[np.bool_]) -> None:
        closed = self.is_open & rows
        self.rejected[reason] += int(np.count_nonzero(closed))
        self.is_open &= ~closed

    def _ask(self, rows: Integers) -> None:
        """Find what the job takes on some clusters; keep those that satisfy the constraints."""
        self.is_open[rows] = False
        machines = [self._machines(row) for row in rows.tolist()]
        asked = [self.groups.ask(one) for one in machines]
        columns = concatenate([found for _, found in asked])
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
        left = np.ones(rows.size, dtype=bool)
        for reason, holds in (
            *(
                (STATUSES[code], columns.status == code)
                for code in np.unique(columns.status)
                if code
            ),
            ("over_deadline", late > (request.deadline_h or np.inf)),
            ("over_budget", dear > (request.budget_usd or np.inf)),
        ):
            self.rejected[reason] += int(np.count_nonzero(left & holds))
            left &= ~holds
        for at in np.flatnonzero(left).tolist():
            choice, found = asked[at]
            assert choice is not None
            self.kept.append(
                MixedRow(
                    time_h=float(time_h[at]),
                    cost_usd=float(cost[at]),
                    parts=self._parts(int(rows[at])),
                    choice=choice,
                    columns=found,
                    completion=completion.taken(np.array([at])),
                )
            )
        times = np.concatenate([self.front[0], time_h[left]])
        costs = np.concatenate([self.front[1], cost[left]])
        front = pareto_front(times, costs)
        self.front = times[front], costs[front]

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
        return found.with_rows(spot, on_spot(job, columns, spot, worst, coverage))

    def _parts(self, row: int) -> tuple[tuple[int, int], ...]:
        offers, counts = self.clusters.offers[row].tolist(), self.clusters.counts[row].tolist()
        return tuple((o, n) for o, n in zip(offers, counts, strict=True) if n)

    def _machines(self, row: int) -> Machines:
        return tuple((int(self.offers.type_index[o]), n) for o, n in self._parts(row))
