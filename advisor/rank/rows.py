"""Further ways to complete a job on spot offers, as rows beside those of plain spot.

A row is replayed only where it could be on the front of time and cost: bounds from below are set
against the rows there are, the most promising first, and every replay raises the bar.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import estimate
from advisor.answer import Candidate, ProbeAdvice
from advisor.ask import Constraints
from advisor.catalogue import Catalogue, OfferColumns, OfferFilter, rented_at_once
from advisor.estimate import (
    CODE,
    STATUSES,
    Completion,
    Predictor,
    SideCosts,
    TimeColumns,
    commonly_run,
    direct_cost,
    hazards,
    refusal,
    restart_s,
)
from advisor.jobs import Job, script_notes, stack_notes
from advisor.planners import spot as planner_spot
from advisor.planners.core import HOUR_S
from advisor.planners.goodput import NEGLIGIBLE_FRACTION
from advisor.quantities import hours_text, percent_text, usd_text
from advisor.rank.changes import advise
from advisor.rank.front import CONFIDENCE, Beliefs, alternatives, near_any, shown_of, worth_a_line
from advisor.rank.prune import AskedRows, MixedRows, mixed_rows, promising_columns
from advisor.rank.ranking_rows import Further, Rows, bar_of, pareto_front, price_rows
from advisor.rank.renting import WEIGHTS, Renting, asking_h
from advisor.records import packaged_spot_history

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Rows replayed before the front is drawn anew.
_CHUNK: Final = 8
# Plans by the deadline that are replayed, at half a second each.
_PLANS: Final = 3


def with_spot_ways(
    job: Job, request: Constraints, predictor: Predictor, offers: OfferColumns, side: SideCosts,
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
    front = _Front(rows.time_h[usable], rows.cost_usd[usable])
    case = _Case(job, request, predictor, offers, side, columns, rows.offer, rows.column, spot)
    planned = _by_deadline(case, rows)
    # No way takes less time than the work, or less money than that on the type's best count.
    is_open = front.is_open(case.least_h, case.least_machine_h() * case.price + case.once)
    if not is_open.any():
        return rows.with_completions(planned)
    case = _Case(
        job, request, predictor, offers, side, columns, rows.offer, rows.column, spot[is_open]
    )
    case.plain = _plain_spot(case, rows)
    further = [*_with_fallback(case, front), *_elastic(case, front), *planned]
    return rows.with_completions(further)


def _plain_spot(case: _Case, rows: Rows) -> dict[int, tuple[float, float]]:
    """Return time [h] and cost [USD] on spot machines alone, by kind, where it was replayed."""
    is_replayed = rows.completed_by[case.row] > 0
    return {
        kind: (float(rows.time_h[row]), float(rows.cost_usd[row]))
        for kind, row in zip(
            case.kind[is_replayed].tolist(), case.row[is_replayed].tolist(), strict=True
        )
    }


class _Front:
    """Times and costs that bounds from below have to beat [h], [USD]."""

    def __init__(self, time_h: Floats, cost_usd: Floats) -> None:
        self.time_h, self.cost_usd = np.zeros(0), np.zeros(0)
        self.add(time_h, cost_usd)

    def is_open(self, time_h: Floats, cost_usd: Floats) -> NDArray[np.bool_]:
        """Say which rows nothing beats yet."""
        return cost_usd < bar_of(self.time_h, self.cost_usd, time_h)

    def add(self, time_h: Floats, cost_usd: Floats) -> None:
        """Raise the bar."""
        time_h = np.concatenate([self.time_h, time_h])
        cost_usd = np.concatenate([self.cost_usd, cost_usd])
        best = pareto_front(time_h, cost_usd)
        self.time_h, self.cost_usd = time_h[best], cost_usd[best]


class _Case:
    """Spot rows with what all ways need: prices, bands, and the least time and machine time."""

    def __init__(
        self, job: Job, request: Constraints, predictor: Predictor, offers: OfferColumns,
        side: SideCosts, columns: TimeColumns, offer: Integers, column: Integers, spot: Integers,
    ) -> None:  # fmt: skip
        self.job, self.request, self.predictor, self.columns = job, request, predictor, columns
        self.side = side
        self.row, self.offer, self.column = spot, offer[spot], column[spot]
        self.count = columns.count[self.column].astype(float)
        self.price = (offers.price_usd_per_h + side.usd_per_h)[self.offer] * self.count
        on_demand = predictor.catalogue.prices.on_demand_usd_per_h[offers.price_index]
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


def _with_fallback(case: _Case, front: _Front) -> list[Further]:
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


def _by_deadline(case: _Case, rows: Rows) -> list[Further]:
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


def _cheapest_plan(case: _Case, places: Integers, bar: float, least_usd: Floats) -> list[Further]:
    """Replay plans one by one while one could cost less than the best so far."""
    best: list[Further] = []
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
            bar, best = (
                float(cost[0]),
                [Further(completion=done, like=case.row[at], cost_usd=cost)],
            )
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


def _elastic(case: _Case, front: _Front) -> list[Further]:
    """Return rows on as many spot machines as there are."""
    least_usd = case.least_machine_h() * case.price + case.once
    places = case.cheapest(np.flatnonzero(case.count > 1), least_usd)
    places = places[front.is_open(case.least_h[places], least_usd[places])]
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
    case: _Case, front: _Front, places: Integers, least_usd: Floats, price: Floats,
    complete: Callable[[Integers], Completion],
) -> list[Further]:  # fmt: skip
    """Replay the places that may be on the front, the most promising first.

    ``price`` is that of an hour of all machines which the completions' billed time counts in.
    """
    found = []
    left = places[np.argsort(case.least_h[places] * least_usd[places], kind="stable")]
    while (left := left[front.is_open(case.least_h[left], least_usd[left])]).size:
        at, left = left[:_CHUNK], left[_CHUNK:]
        completion = complete(at)
        billed_h = case.side.charged_h(case.offer[at], completion.billed_h[:, 1])
        cost = billed_h * price[at] + case.once[at]
        kept = np.flatnonzero(case.pays(at, completion.finish_h[:, 1], cost))
        if kept.size:
            done = completion.taken(kept)
            found.append(Further(completion=done, like=case.row[at[kept]], cost_usd=cost[kept]))
            front.add(done.finish_h[:, 1], cost[kept])
    return found


# Rows of offers and counts: which keep the constraints, make the front, and are shown.


_NEAREST_SHOWN: Final = 3


def ranked_rows(
    job: Job,
    request: Constraints,
    predictor: Predictor,
    *,
    prunes: bool,
    for_best_value: bool = False,
) -> tuple[Ranked, Counter[str], int]:
    """Return the ranked rows, how many others there were by what is against them, and of all."""
    wanted = request.offer_filter()
    offers = predictor.catalogue.select(wanted)
    types = np.unique(offers.type_index)
    counts = np.array(request.counts, dtype=np.int64)
    asked = AskedRows(
        job=job, request=request, offers=offers, types=types, counts=counts,
        for_best_value=for_best_value,
    )  # fmt: skip
    columns = promising_columns(asked, predictor, prunes=prunes)
    side = predictor.side_costs(job, offers)
    rows = price_rows(job, request, offers, side, types, columns, len(counts))
    rows = with_spot_ways(job, request, predictor, offers, side, columns, rows)
    rejected, feasible = _reject(request, rows, columns, offers)
    crossed = np.repeat(np.bincount(np.searchsorted(types, offers.type_index)), len(counts))
    for code, reason in enumerate(STATUSES[1:], start=1):
        rejected[reason] += int(crossed[columns.status == code].sum())
    rejected.update(_without_offer(predictor.catalogue, wanted, len(types), len(counts)))
    mixed: MixedRows | None = None
    if _may_mix(request, offers, feasible):
        steady = rows.time_h[feasible], rows.cost_usd[feasible]
        mixed = mixed_rows(job, request, predictor, offers, side, steady)
    further = len(rows.offer) - int(crossed[columns.status == 0].sum())  # ways on the same offers
    considered = int(crossed.sum()) + further + rejected["no_price"] + rejected["not_offered"]
    if mixed is not None:
        considered += mixed.considered
        # Mixed clusters are numbered behind those of equal machines.
        feasible = np.concatenate([feasible, len(rows.offer) + np.arange(len(mixed.rows))])
        rejected.update(mixed.rejected)
    ranked = Ranked(job, request, predictor, offers, side, columns, rows, mixed, feasible)
    rejected["dominated"] += int(feasible.size - ranked.front.size)
    rejected["too_little_gain"] += int(ranked.front.size - ranked.kept.size)
    return ranked, rejected, considered


def _without_offer(
    catalogue: Catalogue, wanted: OfferFilter, offered: int, counts: int
) -> dict[str, int]:
    """Count candidates of types that have no price, and of those that have none as asked for.

    ``offered``: types that have one; ``counts``: numbers of machines of each.
    """
    admitted = int(np.count_nonzero(catalogue.admitted_types(wanted)))
    anywhere = replace(
        wanted, regions=(), max_price_usd_per_h=np.inf, max_age_days=np.inf, is_dated=False
    )
    priced = offered
    if anywhere != wanted:
        priced = len(np.unique(catalogue.select(anywhere).type_index))
    return {"no_price": (admitted - priced) * counts, "not_offered": (priced - offered) * counts}


def _may_mix(request: Constraints, offers: OfferColumns, feasible: Integers) -> bool:
    """Whether unlike machines are looked at: as asked for, else where equal ones fall short.

    Equal machines fall short where none of them keeps the constraints, or where there are not
    enough of a type: a quota, or the user's own.
    """
    if request.mixed is not None:
        return request.mixed
    return feasible.size == 0 or bool((offers.max_instances < request.max_nodes).any())


class Ranked:
    """Rows that keep the constraints, those of them on the front, and those shown."""

    def __init__(
        self, job: Job, request: Constraints, predictor: Predictor, offers: OfferColumns,
        side: SideCosts, columns: TimeColumns, rows: Rows, mixed: MixedRows | None,
        feasible: Integers,
    ) -> None:  # fmt: skip
        self.job, self.request, self.predictor = job, request, predictor
        self.offers, self.side, self.columns = offers, side, columns
        self.rows, self.mixed, self.feasible = rows, mixed, feasible
        self.renting = Renting.of(request)
        at_once = rented_at_once(predictor.catalogue.types, offers)
        request_h = asking_h(request, at_once[rows.offer], columns.count[rows.column])
        self.beliefs = beliefs = Beliefs.of(rows, columns, mixed, request_h)
        on_front = pareto_front(beliefs.time_h[feasible], beliefs.cost_usd[feasible])
        undominated = feasible[on_front]
        kept = worth_a_line(beliefs, undominated, request.least_gain_fraction)
        sure = self._within_deadline(undominated)
        picked = self._picked(sure)
        # A plan by the deadline counts, whatever may be over sooner for less without one; so does
        # what a person would rather rent than more machines for less.
        front = np.union1d(undominated, np.concatenate([sure, picked]))
        self.front = front[np.argsort(beliefs.time_h[front], kind="stable")]
        self.kept = self.front[np.isin(self.front, np.concatenate([kept, sure, picked]))]
        self.shown = shown_of(beliefs, self.kept, request.top, first=picked)
        self.near = near_any(beliefs, feasible, self.shown, request.least_gain_fraction)
        is_empty = self.front.size == 0
        self.nearest = _nearest(request, rows, offers, columns) if is_empty else self.front[:0]

    def _within_deadline(self, front: Integers) -> Integers:
        """Return the cheapest row that keeps the deadline with the confidence.

        Of the front, and of those planned by the deadline.
        """
        deadline_h, rows = self.request.deadline_h, self.rows
        equal = self.feasible[self.feasible < len(rows.offer)]
        if deadline_h is None:
            return equal[:0]
        able = equal[np.isin(equal, front) | rows.is_planned(equal)]
        confidence = self.request.confidence or CONFIDENCE
        able = able[~rows.is_late(deadline_h, confidence, self.request.coverage)[able]]
        return able[np.argsort(rows.cost_usd[able], kind="stable")][:1]

    def _picked(self, sure: Integers) -> Integers:
        """Return the rows that picks name, the best value first."""
        feasible = self.feasible
        if feasible.size == 0:
            return feasible
        found = self.beliefs.best(WEIGHTS, feasible, self.renting)
        able = self._keeping(feasible)
        if 0 < able.size < feasible.size:
            found |= self.beliefs.best(["best_value"], able, self.renting)
        return np.array(list(dict.fromkeys([*found.values(), *sure.tolist()])), dtype=np.int64)

    def _keeping(self, places: Integers) -> Integers:
        """Return the rows that keep the deadline with the confidence; all where there is none.

        Clusters of several types keep it as expected: nothing else is known of them here.
        """
        deadline_h, rows = self.request.deadline_h, self.rows
        if deadline_h is None:
            return places
        confidence = self.request.confidence or CONFIDENCE
        late = rows.is_late(deadline_h, confidence, self.request.coverage)
        is_mixed = places >= len(rows.offer)
        return places[is_mixed | ~late[np.where(is_mixed, 0, places)]]

    def candidates(self, places: Integers) -> tuple[Candidate, ...]:
        """Return some rows as objects, ranked in their order."""
        if not places.size:
            return ()
        fastest = 1 + int(np.argmin(self.beliefs.time_h[places]))
        cheapest = 1 + int(np.argmin(self.beliefs.cost_usd[places]))
        made = (self._candidate(row, rank) for rank, row in enumerate(places.tolist(), start=1))
        return tuple(_placed(one, self.request, fastest, cheapest) for one in made)

    def _candidate(self, row: int, rank: int) -> Candidate:
        rows, request = self.rows, self.request
        if self.mixed is not None and row >= len(rows.offer):
            mixed = self.mixed.rows[row - len(rows.offer)].candidate(
                self.job,
                self.predictor,
                self.offers,
                self.side,
                coverage=request.coverage,
                rank=rank,
            )
            return self._with_person(mixed, row)
        found = self.predictor.candidate(
            self.job, self.columns, rows.completion_of(row), self.offers, self.side,
            offer_row=int(rows.offer[row]), column=int(rows.column[row]),
            completion_row=rows.completion_row(row), coverage=request.coverage, rank=rank,
            steady=rows.steady,
        )  # fmt: skip
        found = self._with_person(found, row)
        if request.with_direct_costs and self.predictor.learned is not None:
            cost = direct_cost(
                self.predictor.catalogue, self.job, self.columns.select(rows.column[[row]]),
                self.offers, int(rows.offer[row]), request.coverage,
            )  # fmt: skip
            found = replace(found, cost_direct_usd=cost)
        if rows.is_planned(np.array([row]))[0]:
            return found  # what costs and lasts as much does not keep the deadline as surely
        others = alternatives(
            self.beliefs, rows, self.columns, self.near, row, request.least_gain_fraction,
            self.predictor, self.offers,
        )  # fmt: skip
        return replace(found, alternatives=others)

    def _with_person(self, one: Candidate, row: int) -> Candidate:
        """Return a candidate with what renting it costs a person."""
        work_h = float(self.renting.work_h(self.beliefs.machines[row]))
        return replace(one, effort_h=work_h, request_h=float(self.beliefs.request_h[row]))

    def refused(self) -> str:
        """Say why no machine runs the job, by the largest of them; empty where some do."""
        columns, job, request = self.columns, self.job, self.request
        refused = (columns.status > 0) & (columns.status < CODE["dominated"])
        if self.front.size or self.nearest.size or not refused.size or not refused.all():
            return ""
        machines = self.predictor.fleet_of(job)
        device = machines.device[columns.type_index]
        memory = machines.devices.fact("memory_bytes")[device]
        is_common = columns.status == np.bincount(columns.status).argmax()
        is_able = is_common & (device >= 0) & (columns.workers <= job.global_batch)
        row = int(np.argmax(np.where(is_able, memory * columns.workers, -1.0)))
        case = None if job.work is None else self.predictor.case(
            job, space=request.space, known_network=request.known_network
        )  # fmt: skip
        why = refusal(case, columns, row)
        name = self.predictor.catalogue.types.name[int(columns.type_index[row])]
        where = f"{columns.count[row]} x {name}"
        return f"No machine that was considered runs the job. {where}: {why}; {why.hint}."

    def probes(self) -> tuple[ProbeAdvice, ...]:
        """Return the short runs that are worth their price, where they are asked for."""
        if not self.request.with_probes:
            return ()
        return advise(self.request, self.predictor, self.offers, self.rows, self.columns)

    def notes(
        self, front: tuple[Candidate, ...], nearest: tuple[Candidate, ...]
    ) -> tuple[str, ...]:
        """Return what has to be known of the list, the most general first."""
        hidden = self.kept.size - len(front)
        return (
            *self.job.notes,
            *script_notes(self.job, map(_placing, front or nearest)),
            *stack_notes(commonly_run(self.job, self.request.space).work),
            *_notes(hidden, self.columns, self.predictor),
            *_unpriced(self.job, self.side, _offers_of(self.rows, self.mixed, self.shown)),
        )


def _offers_of(rows: Rows, mixed: MixedRows | None, places: Integers) -> Integers:
    """Return the offers that candidates are made of, all of a mixed one."""
    equal = places[places < len(rows.offer)]
    if mixed is None:
        return rows.offer[equal]
    others = (places[places >= len(rows.offer)] - len(rows.offer)).tolist()
    parts = [offer for at in others for offer, _ in mixed.rows[at].parts]
    return np.concatenate([rows.offer[equal], np.array(parts, np.int64)])


def _reject(
    request: Constraints, rows: Rows, columns: TimeColumns, offers: OfferColumns
) -> tuple[Counter[str], Integers]:
    """Count the rows by the first reason against them; return the counts and the rows left."""
    _, cost = rows.with_confidence(request.confidence, request.coverage)
    deadline_h = request.deadline_h or np.inf
    late = rows.is_late(deadline_h, request.confidence, request.coverage)
    rejected: Counter[str] = Counter()
    left = np.ones(rows.offer.shape, dtype=bool)
    for reason, holds in (
        ("over_quota", ~rows.is_in_quota),
        ("over_hourly", rows.usd_per_h(offers, columns) > request.most_usd_per_h),
        ("no_checkpoints", rows.is_spot & (not request.saves_checkpoints)),
        ("dominated", rows.is_hopeless),
        ("over_deadline", late),
        ("over_budget", cost > (request.budget_usd or np.inf)),
    ):
        rejected[reason] += int(np.count_nonzero(left & holds))
        left &= ~holds
    return rejected, np.flatnonzero(left)


def _nearest(
    request: Constraints, rows: Rows, offers: OfferColumns, columns: TimeColumns
) -> Integers:
    """Rows that miss the constraints by the smallest factor, each of other machines."""
    usable = np.isfinite(rows.time_h) & rows.is_in_quota & ~rows.is_hopeless
    found = np.flatnonzero(usable & ~(rows.is_spot & (not request.saves_checkpoints)))
    time_h, cost = rows.time_h[found], rows.cost_usd[found]
    # The factor by which a row is over all constraints together; one where it keeps them.
    over = np.maximum(time_h / (request.deadline_h or np.inf), 1.0)
    over *= np.maximum(cost / (request.budget_usd or np.inf), 1.0)
    over *= np.maximum(rows.usd_per_h(offers, columns)[found] / request.most_usd_per_h, 1.0)
    order = found[np.lexsort((time_h * cost, over))]
    first = np.sort(np.unique(rows.column[order], return_index=True)[1])
    return np.asarray(order[first][:_NEAREST_SHOWN])


def _placing(one: Candidate) -> tuple[bool, int]:
    """Return whether a candidate has accelerators, and its devices."""
    return any(offer.accelerators for offer, _ in one.configuration.parts), one.layout.devices


def _placed(one: Candidate, request: Constraints, fastest: int, cheapest: int) -> Candidate:
    """Add what only the list knows: its place, and whether the interval crosses a constraint."""
    place = [name for name, rank in (("fastest", fastest), ("cheapest", cheapest))
             if rank == one.rank]  # fmt: skip
    reasons = [" and ".join(place)] if place else []
    risks = []
    if request.budget_usd is not None and one.cost_usd.high > request.budget_usd:
        risks.append(f"may cost up to {usd_text(one.cost_usd.high)}")
    late = one.late_probability
    if late is None and request.deadline_h is not None:
        late = one.training_time_h.above(request.deadline_h)
    if late is not None and one.training_time_h.high > (request.deadline_h or math.inf):
        risks.append(
            f"may take up to {hours_text(one.training_time_h.high)}; late with a probability of "
            f"{percent_text(late)}"
        )
    return replace(one, reasons=(*reasons, *one.reasons, *risks), late_probability=late)


def _notes(hidden: int, columns: TimeColumns, predictor: Predictor) -> tuple[str, ...]:
    notes = []
    if columns.is_learned is not None and predictor.learned is not None:
        covered = len(np.unique(columns.type_index[columns.is_learned]))
        notes.append(
            f"the learned model covers {covered:,} instance types ({predictor.learned.folder}); "
            "the others use the analytic estimate alone"
        )
    if hidden:
        notes.append(f"{hidden} more candidates on the front are not shown (raise --top)")
    return tuple(notes)


def _unpriced(job: Job, side: SideCosts, offers: Integers) -> tuple[str, ...]:
    """Say what the times and costs do not include, and how to add it, a sentence each."""
    lacks = []
    if job.transfers.data_bytes is None:
        lacks.append("Data download is not included. Pass --data SIZE to add it.")
    if job.program is None and not job.epochs * job.epoch_end_steps:
        lacks.append("Validation is not included. Pass --validation SHARE to add it.")
    if np.isnan(side.storage_usd_per_h[offers]).any():
        lacks.append("Storage is not included where the provider's price is unknown.")
    if np.isnan(side.egress_usd[offers]).any():
        lacks.append("Downloading results is not included where the provider's price is unknown.")
    return tuple(lacks)
