"""From a job and constraints to the Pareto list, and why everything else is not on it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import OfferColumns, OfferFilter
from advisor.collectors.recording import Recording
from advisor.domain import Candidate, ProposedChange, Recommendation
from advisor.jobs.job import Job
from advisor.jobs.script_notes import script_notes
from advisor.predict import STATUSES, Predictor, TimeColumns
from advisor.predict.data_costs import SideCosts
from advisor.ranking.changes import changes, relaxed
from advisor.ranking.front import pareto_front
from advisor.ranking.known_error import known_error
from advisor.ranking.mixed import MixedRows, mixed_rows
from advisor.ranking.picks import CONFIDENCE, picks
from advisor.ranking.probes import advise
from advisor.ranking.pruning import AskedRows, promising_columns
from advisor.ranking.request import Request
from advisor.ranking.rows import Rows, price_rows
from advisor.ranking.shortlist import Beliefs, alternatives, shared_reasons, shown_of, worth_a_line
from advisor.ranking.spot_rows import with_spot_ways
from advisor.ranking.summary import keeps, summary

__all__ = ["Request", "pareto_front", "recommend"]

Integers = NDArray[np.int64]

_NEAREST_SHOWN: Final = 3


def recommend(
    job: Job,
    request: Request | None = None,
    *,
    predictor: Predictor | None = None,
    here: Candidate | None = None,
    prunes: bool = True,
    with_changes: bool = True,
    recording: Recording | None = None,
) -> Recommendation:
    """Rank what could be rented for ``job`` by training time and cost.

    Parameters
    ----------
    job : Job
    request : Request, optional
        No constraints and on-demand prices by default.
    predictor : Predictor, optional
        Over the bundled catalogue by default.
    here : Candidate, optional
        The job on this machine, which takes part where it keeps the constraints.
    prunes : bool, default True
        False searches the best layout of every row, those that cannot be on the front too.
    with_changes : bool, default True
        Also say what would change the answer, which asks a few more questions.
    recording : Recording, optional
        What was seen of the job: more can be said of what would change the answer.

    Returns
    -------
    Recommendation
        An empty ``front`` means that nothing satisfies the constraints; ``nearest`` then holds
        what comes closest to them.
    """
    request = request or Request()
    predictor = predictor or Predictor()
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
    if request.mixed:
        steady = rows.time_h[feasible], rows.cost_usd[feasible]
        mixed = mixed_rows(job, request, predictor, offers, side, steady)
    if mixed is not None:
        # Mixed clusters are numbered behind those of equal machines.
        feasible = np.concatenate([feasible, len(rows.offer) + np.arange(len(mixed.time_h))])
        rejected.update(mixed.rejected)
    ranked = _Ranked(job, request, predictor, offers, side, columns, rows, mixed, feasible)
    rejected["dominated"] += int(feasible.size - ranked.front.size)
    rejected["too_little_gain"] += int(ranked.front.size - ranked.kept.size)
    front, nearest = ranked.candidates(ranked.shown), ranked.candidates(ranked.nearest)
    at_hand = here if here is not None and keeps(here, request) else None
    chosen = picks(front, at_hand, deadline_h=request.deadline_h, confidence=request.confidence)
    rented = next((one for one in front if one.rank == chosen.get("best_value")), None)
    error = None if rented is None else known_error(rented, predictor.catalogue)
    return Recommendation(
        run=job.name,
        job=job.facts(),
        catalogue_as_of=predictor.catalogue.as_of,
        catalogue_offers=len(offers.type_index),
        predictor=predictor.name,
        predictor_version=predictor.version,
        considered=len(rows.offer)
        + rejected["no_price"]
        + (mixed.considered if mixed is not None else 0),
        rejected={reason: number for reason, number in rejected.items() if number},
        front=front,
        nearest=nearest,
        here=here,
        picks=chosen,
        summary=summary(front, at_hand, chosen, error, confidence=request.confidence),
        shared_reasons=shared_reasons(front),
        changes=(
            _changes(job, request, predictor, rented, here, front, rejected, recording)
            if with_changes and rented is not None
            else ()
        ),
        known_error=error,
        probes=(advise(request, predictor, offers, rows, columns) if request.with_probes else ()),
        notes=(
            *job.notes,
            *script_notes(job, map(_placing, front or nearest)),
            *_notes(ranked.kept.size - len(front), columns, not front, predictor),
            *_unpriced(job, side, _offers_of(rows, mixed, ranked.shown)),
        ),
    )


def _changes(
    job: Job, request: Request, predictor: Predictor, rented: Candidate, here: Candidate | None,
    front: tuple[Candidate, ...], rejected: Counter[str], recording: Recording | None,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what would change the answer: the script, how it is paid, the limits that bind."""

    def limited(other: Request) -> Recommendation:
        return recommend(job, other, predictor=predictor, with_changes=False)

    def changed(other: Job) -> Recommendation:
        return recommend(other, request, predictor=predictor, with_changes=False)

    return (
        *changes(
            job, request, predictor, rented, here, front, recording=recording, ask=changed
        ),
        *relaxed(request, rented, front, rejected, limited),
    )  # fmt: skip


class _Ranked:
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
        self.front = feasible[on_front]
        kept = worth_a_line(beliefs, self.front, request.least_gain_fraction)
        sure = self._within_deadline()
        self.kept = self.front[np.isin(self.front, np.concatenate([kept, sure]))]
        self.shown = shown_of(beliefs, self.kept, request.top, also=sure)
        self.nearest = _nearest(request, rows, offers, columns)
        if self.front.size:
            self.nearest = self.front[:0]

    def _within_deadline(self) -> Integers:
        """Return the cheapest row of the front that keeps the deadline with the confidence."""
        deadline_h, rows = self.request.deadline_h, self.rows
        front = self.front[self.front < len(rows.offer)]
        if deadline_h is None:
            return front[:0]
        confidence = self.request.confidence or CONFIDENCE
        time_h, _ = rows.with_confidence(confidence, self.request.coverage)
        return front[time_h[front] <= deadline_h][-1:]  # the front falls in cost

    def candidates(self, places: Integers) -> tuple[Candidate, ...]:
        """Return some rows as objects, ranked in their order."""
        made = (self._candidate(row, rank) for rank, row in enumerate(places.tolist(), start=1))
        return tuple(_placed(one, self.request, len(places)) for one in made)

    def _candidate(self, row: int, rank: int) -> Candidate:
        rows, request = self.rows, self.request
        if self.mixed is not None and row >= len(rows.offer):
            return self.mixed.candidate(
                row - len(rows.offer), self.job, self.predictor, self.offers, self.side,
                coverage=request.coverage, rank=rank,
            )  # fmt: skip
        found = self.predictor.candidate(
            self.job, self.columns, rows.completion_of(row), self.offers, self.side,
            offer_row=int(rows.offer[row]), column=int(rows.column[row]),
            completion_row=rows.completion_row(row), coverage=request.coverage, rank=rank,
            steady=rows.steady,
        )  # fmt: skip
        others = alternatives(
            self.beliefs, rows, self.columns, self.feasible, row, request.least_gain_fraction,
            self.predictor, self.offers,
        )  # fmt: skip
        return replace(found, alternatives=others)


def _offers_of(rows: Rows, mixed: MixedRows | None, places: Integers) -> Integers:
    """Return the offers that candidates are made of, both of a mixed one."""
    equal = places[places < len(rows.offer)]
    if mixed is None:
        return rows.offer[equal]
    others = places[places >= len(rows.offer)] - len(rows.offer)
    return np.concatenate([rows.offer[equal], *(x[others] for x in mixed.clusters.offers)])


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
    time_h, cost = rows.with_confidence(request.confidence, request.coverage)
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
        ("over_deadline", time_h > (request.deadline_h or np.inf)),
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


def _placed(one: Candidate, request: Request, places: int) -> Candidate:
    """Add what only the list knows: its place, and whether the interval crosses a constraint."""
    place = {places: "cheapest", 1: "fastest"}.get(one.rank)
    reasons = [place] if place else []
    if places == 1:
        reasons = ["fastest and cheapest"]
    risks = []
    if request.budget_usd is not None and one.cost_usd.high > request.budget_usd:
        risks.append(f"may cost up to {one.cost_usd.high:,.2f} USD")
    late = None if request.deadline_h is None else one.training_time_h.above(request.deadline_h)
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
