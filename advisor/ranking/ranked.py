"""Rows of offers and counts: which keep the constraints, make the front, and are shown."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns, OfferFilter
from advisor.domain import Candidate, ProbeAdvice
from advisor.jobs.job import Job
from advisor.jobs.script_notes import script_notes
from advisor.predict import STATUSES, Predictor, TimeColumns
from advisor.predict.data_costs import SideCosts
from advisor.ranking.front import pareto_front
from advisor.ranking.mixed import MixedRows, mixed_rows
from advisor.ranking.picks import CONFIDENCE
from advisor.ranking.probes import advise
from advisor.ranking.pruning import AskedRows, promising_columns
from advisor.ranking.request import Request
from advisor.ranking.rows import Rows, price_rows
from advisor.ranking.shortlist import Beliefs, alternatives, shown_of, worth_a_line
from advisor.ranking.spot_rows import with_spot_ways

Integers = NDArray[np.int64]

_NEAREST_SHOWN: Final = 3


def ranked_rows(
    job: Job, request: Request, predictor: Predictor, *, prunes: bool
) -> tuple[Ranked, Counter[str], int]:
    """Return the ranked rows, how many others there were by what is against them, and of all."""
    wanted = _filter(request)
    offers = predictor.catalogue.select(wanted)
    types = np.unique(offers.type_index)
    counts = np.array(request.counts, dtype=np.int64)
    asked = AskedRows(job=job, request=request, offers=offers, types=types, counts=counts)
    columns = promising_columns(asked, predictor, prunes=prunes)
    side = predictor.side_costs(job, offers)
    rows = price_rows(job, request, offers, side, types, columns, len(counts))
    rows = with_spot_ways(job, request, predictor, offers, side, columns, rows)
    rejected, feasible = _reject(request, rows, columns, offers)
    admitted = int(np.count_nonzero(predictor.catalogue.admitted_types(wanted)))
    rejected["no_price"] = (admitted - len(types)) * len(counts)
    mixed: MixedRows | None = None
    if _may_mix(request, offers, feasible):
        steady = rows.time_h[feasible], rows.cost_usd[feasible]
        mixed = mixed_rows(job, request, predictor, offers, side, steady)
    considered = len(rows.offer) + rejected["no_price"]
    if mixed is not None:
        considered += mixed.considered
        # Mixed clusters are numbered behind those of equal machines.
        feasible = np.concatenate([feasible, len(rows.offer) + np.arange(len(mixed.rows))])
        rejected.update(mixed.rejected)
    ranked = Ranked(job, request, predictor, offers, side, columns, rows, mixed, feasible)
    rejected["dominated"] += int(feasible.size - ranked.front.size)
    rejected["too_little_gain"] += int(ranked.front.size - ranked.kept.size)
    return ranked, rejected, considered


def _may_mix(request: Request, offers: OfferColumns, feasible: Integers) -> bool:
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
        self, job: Job, request: Request, predictor: Predictor, offers: OfferColumns,
        side: SideCosts, columns: TimeColumns, rows: Rows, mixed: MixedRows | None,
        feasible: Integers,
    ) -> None:  # fmt: skip
        self.job, self.request, self.predictor = job, request, predictor
        self.offers, self.side, self.columns = offers, side, columns
        self.rows, self.mixed, self.feasible = rows, mixed, feasible
        self.beliefs = beliefs = Beliefs.of(rows, columns, mixed)
        on_front = pareto_front(beliefs.time_h[feasible], beliefs.cost_usd[feasible])
        undominated = feasible[on_front]
        kept = worth_a_line(beliefs, undominated, request.least_gain_fraction)
        sure = self._within_deadline(undominated)
        # A plan by the deadline counts, whatever may be over sooner for less without one.
        front = np.union1d(undominated, sure)
        self.front = front[np.argsort(beliefs.time_h[front], kind="stable")]
        self.kept = self.front[np.isin(self.front, np.concatenate([kept, sure]))]
        self.shown = shown_of(beliefs, self.kept, request.top, also=sure)
        self.nearest = _nearest(request, rows, offers, columns)
        if self.front.size:
            self.nearest = self.front[:0]

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
            return self.mixed.rows[row - len(rows.offer)].candidate(
                self.job,
                self.predictor,
                self.offers,
                self.side,
                coverage=request.coverage,
                rank=rank,
            )
        found = self.predictor.candidate(
            self.job, self.columns, rows.completion_of(row), self.offers, self.side,
            offer_row=int(rows.offer[row]), column=int(rows.column[row]),
            completion_row=rows.completion_row(row), coverage=request.coverage, rank=rank,
            steady=rows.steady,
        )  # fmt: skip
        if rows.is_planned(np.array([row]))[0]:
            return found  # what costs and lasts as much does not keep the deadline as surely
        others = alternatives(
            self.beliefs, rows, self.columns, self.feasible, row, request.least_gain_fraction,
            self.predictor, self.offers,
        )  # fmt: skip
        return replace(found, alternatives=others)

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
            *_notes(hidden, self.columns, not front, self.predictor),
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


def _filter(request: Request) -> OfferFilter:
    return OfferFilter(
        providers=request.providers,
        regions=(request.region,) if request.region else (),
        gpus=request.gpus,
        max_price_usd_per_h=request.max_price_usd_per_h or np.inf,
        pricing=request.pricings,
    )


def _reject(
    request: Request, rows: Rows, columns: TimeColumns, offers: OfferColumns
) -> tuple[Counter[str], Integers]:
    """Count the rows by the first reason against them; return the counts and the rows left."""
    status = columns.status[rows.column]
    _, cost = rows.with_confidence(request.confidence, request.coverage)
    deadline_h = request.deadline_h or np.inf
    late = rows.is_late(deadline_h, request.confidence, request.coverage)
    rejected: Counter[str] = Counter()
    for code, reason in enumerate(STATUSES):
        if code:
            rejected[reason] += int(np.count_nonzero(status == code))
    left = status == 0
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


def _nearest(request: Request, rows: Rows, offers: OfferColumns, columns: TimeColumns) -> Integers:
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


def _placed(one: Candidate, request: Request, fastest: int, cheapest: int) -> Candidate:
    """Add what only the list knows: its place, and whether the interval crosses a constraint."""
    place = [name for name, rank in (("fastest", fastest), ("cheapest", cheapest))
             if rank == one.rank]  # fmt: skip
    reasons = [" and ".join(place)] if place else []
    risks = []
    if request.budget_usd is not None and one.cost_usd.high > request.budget_usd:
        risks.append(f"may cost up to {one.cost_usd.high:,.2f} USD")
    late = one.late_probability
    if late is None and request.deadline_h is not None:
        late = one.training_time_h.above(request.deadline_h)
    if late is not None and one.training_time_h.high > (request.deadline_h or math.inf):
        risks.append(f"may take up to {one.training_time_h.high:,.1f} h, late in {late:.0%}")
    return replace(one, reasons=(*reasons, *one.reasons, *risks), late_probability=late)


def _notes(
    hidden: int, columns: TimeColumns, is_empty: bool, predictor: Predictor
) -> tuple[str, ...]:
    notes = []
    if columns.is_learned is not None and predictor.learned is not None:
        covered = len(np.unique(columns.type_index[columns.is_learned]))
        notes.append(
            f"the learned model covers {covered:,} instance types ({predictor.learned.folder}); "
            "the others are estimated by physics alone"
        )
    if hidden:
        notes.append(f"{hidden} more candidates on the front are not shown (--top)")
    does_not_fit = columns.status == STATUSES.index("does_not_fit_in_memory")
    if is_empty and does_not_fit.any() and not (columns.status == 0).any():
        notes.append("the job does not fit into the memory of anything that was looked at")
    return tuple(notes)


def _unpriced(job: Job, side: SideCosts, offers: Integers) -> tuple[str, ...]:
    """Say in one line what the times and costs do not hold, and how to add it."""
    lacks = []
    if job.transfers.data_bytes is None:
        lacks.append("bringing in the data (--data 120GB)")
    if job.program is None and not job.epochs * job.epoch_end_steps:
        lacks.append("validation (no end of an epoch was seen; --validation 5%)")
    if np.isnan(side.storage_usd_per_h[offers]).any():
        lacks.append("storage at providers without a price of it")
    if np.isnan(side.egress_usd[offers]).any():
        lacks.append("results out of providers without a price of it")
    return ("not in time and cost: " + "; ".join(lacks),) if lacks else ()
