"""What of the candidates is listed: those that keep the constraints, their front, the shown.

Everything else is counted by the first reason against it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Alternative, Candidate, Configuration, ProbeAdvice
from advisor.ask import Constraints
from advisor.catalogue import Catalogue, OfferFilter
from advisor.errors import UsageError
from advisor.estimate import (
    CODE,
    STATUSES,
    Predictor,
    commonly_run,
    direct_cost,
    group_candidate,
    offer_of,
    refusal,
)
from advisor.jobs import Job, script_notes, stack_notes
from advisor.planners.core import select
from advisor.planners.layouts import framework_words
from advisor.quantities import hours_text, percent_text, usd_text
from advisor.rank.front import CONFIDENCE, apart, distinct, near_any, pareto_front, spread_out
from advisor.rank.probes import advise
from advisor.rank.renting import DATED, DOUBTING, WEIGHTS, Floats, Integers, Renting, asking_h
from advisor.rank.rows import Rows, counted_out, price_rows
from advisor.rank.search import AskedRows, mixed_rows, promising_columns

_NEAREST_SHOWN: Final = 3
# Alternatives that are named: the same machines elsewhere, and other machines.
_REGIONS: Final = 3
_MACHINES: Final = 5


class Listed:
    """The candidates of a question: those on the front, those worth a line, and those shown.

    ``prunes``: false searches the best layout of every row; ``for_best_value``: only the row that
    is the best value need be right.
    """

    def __init__(
        self, job: Job, request: Constraints, predictor: Predictor, *, prunes: bool = True,
        for_best_value: bool = False,
    ) -> None:  # fmt: skip
        self.job, self.request, self.predictor = job, request, predictor
        self.renting, self.gain = Renting.of(request), request.least_gain_fraction
        self.work = commonly_run(job, request.space).work
        wanted, prices = request.offer_filter(), predictor.catalogue.prices
        if any(np.isnan(prices.usd_per_h(one)).all() for one in request.committed):
            raise UsageError(
                f"nobody states a price of a commitment of {request.commitment}",
                hint="state yours: a rule `price` in overrides.csv, pricing reserved-1y or -3y",
            )
        self.offers = predictor.catalogue.select(wanted)
        asked = AskedRows(
            job=job, request=request, offers=self.offers, types=np.unique(self.offers.type_index),
            counts=np.array(request.counts, dtype=np.int64), for_best_value=for_best_value,
        )  # fmt: skip
        self.columns = promising_columns(asked, predictor, prunes=prunes)
        self.side = predictor.side_costs(job, self.offers)
        self.rejected: Counter[str] = Counter()
        self.rows, self.feasible = self._priced(asked)
        self._count(asked, wanted)
        at_once = self.offers.most_at_once[self.rows.offer]
        self.request_h = asking_h(request, at_once, self.rows.machines)
        lacks = self.offers.lacks(self.rows.offer, self.rows.machines)
        self.doubt = self.rows.doubted(lacks, self.gain, request.coverage)
        self._add_mixed(for_best_value=for_best_value)
        # Clusters of several types are asked for: nothing is waited for.
        self.request_h = np.pad(self.request_h, (0, len(self.rows.mixed)))
        self.doubt = np.pad(self.doubt, (0, len(self.rows.mixed)), constant_values=1.0)
        self._draw()

    def _priced(self, asked: AskedRows) -> tuple[Rows, Integers]:
        """Return the rows of equal machines, and those of them that keep the constraints."""
        job, request, offers, side = self.job, self.request, self.offers, self.side
        rows = price_rows(job, request, offers, side, asked.types, self.columns, len(asked.counts))
        if rows.is_spot.any():
            from advisor.rank.spot_ways import with_spot_ways  # seldom asked

            rows = with_spot_ways(job, request, self.predictor, offers, side, self.columns, rows)
        cost = rows.cost_usd * rows.kept("billed_h", request.confidence, request.coverage)
        deadline_h = request.deadline_h or np.inf
        left = counted_out(
            self.rejected,
            ("over_quota", ~rows.is_in_quota),
            ("over_hourly", rows.usd_per_h(offers) > request.most_usd_per_h),
            ("no_checkpoints", rows.is_spot & (not request.saves_checkpoints)),
            ("dominated", rows.is_hopeless),
            ("over_deadline", rows.is_late(deadline_h, request.confidence, request.coverage)),
            ("over_budget", cost > (request.budget_usd or np.inf)),
        )
        return rows, np.flatnonzero(left)

    def _count(self, asked: AskedRows, wanted: OfferFilter) -> None:
        """Count what there is no row of, by its reason, and all candidates."""
        counts, status = len(asked.counts), self.columns.status
        offered = np.bincount(np.searchsorted(asked.types, self.offers.type_index))
        crossed = np.repeat(offered, counts)
        for code, reason in enumerate(STATUSES[1:], start=1):
            self.rejected[reason] += int(crossed[status == code].sum())
        self.rejected.update(
            _without_offer(self.predictor.catalogue, wanted, len(asked.types), counts)
        )
        ways = self.rows.size - int(crossed[status == 0].sum())  # others on the same offers
        absent = self.rejected["no_price"] + self.rejected["not_offered"]
        self.considered = int(crossed.sum()) + ways + absent

    def _add_mixed(self, *, for_best_value: bool) -> None:
        """Look at unlike machines as asked for, else where equal ones fall short.

        They do where none of them keeps the constraints, or where there are not enough of a type:
        a quota, or the user's own.
        """
        request, rows = self.request, self.rows
        is_short = not self.feasible.size or (self.offers.max_instances < request.max_nodes).any()
        if not (is_short if request.mixed is None else request.mixed):
            return
        steady = rows.time_h[self.feasible], rows.cost_usd[self.feasible]
        found = mixed_rows(
            self.job, request, self.predictor, self.offers, self.side, steady,
            least_worth=self._least_worth(), for_best_value=for_best_value,
        )  # fmt: skip
        if found is not None:
            self.considered += found.considered
            self.rejected.update(found.rejected)
            self.rows = rows.with_mixed(found.kept)
            behind = np.arange(rows.size, self.rows.size)
            self.feasible = np.concatenate([self.feasible, behind])

    def _least_worth(self) -> dict[str, float]:
        """Return what each pick is worth at least among equal machines that surely keep limits."""
        able = self.feasible
        if (late := self._late()) is not None:
            able = able[~late[able]]
        least = {}
        for one in WEIGHTS:
            worth = self.renting.worth(one, *self._judged(able, one))
            least[one] = float(np.fmin.reduce(worth, initial=np.inf))
        return least

    def _late(self) -> NDArray[np.bool_] | None:
        """Say which rows miss the deadline with the confidence, or that of picks; None: none."""
        request = self.request
        if request.deadline_h is None:
            return None
        confidence = request.confidence or CONFIDENCE
        return self.rows.is_late(request.deadline_h, confidence, request.coverage)

    def _draw(self) -> None:
        """Draw the front, and choose what is worth a line and what is shown."""
        rows, feasible = self.rows, self.feasible
        on_front = pareto_front(rows.time_h[feasible], rows.cost_usd[feasible])
        undominated = feasible[on_front]
        kept = self._worth_a_line(undominated)
        late = self._late()
        sure = feasible[:0] if late is None else self._within_deadline(undominated, late)
        picked = self._picked(sure, late)
        # A plan by the deadline counts, whatever may be over sooner for less without one; so does
        # what a person would rather rent than more machines for less.
        front = np.union1d(undominated, np.concatenate([sure, picked]))
        self.front = front[np.argsort(rows.time_h[front], kind="stable")]
        self.kept = self.front[np.isin(self.front, np.concatenate([kept, sure, picked]))]
        self.rejected["dominated"] += int(feasible.size - self.front.size)
        self.rejected["too_little_gain"] += int(self.front.size - self.kept.size)
        self.shown = self._shown(picked)
        self.near = near_any(rows.time_h, rows.cost_usd, feasible, self.shown, self.gain)
        self.nearest = self.front[:0] if self.front.size else self._nearest()

    def _worth_a_line(self, front: Integers) -> Integers:
        """Return the rows of a front that differ by more than the model can be wrong about.

        A gain of 0 keeps them all.
        """
        if self.gain <= 0 or front.size == 0:
            return front
        rows = self.rows
        sd, kind = rows.log_sd[front], rows.kind[front]
        least = apart(sd[:, None], sd[None, :], kind[:, None] == kind[None, :], self.gain)
        return front[
            distinct(rows.time_h[front], rows.cost_usd[front], least, rows.worst(front)[0])
        ]

    def _within_deadline(self, front: Integers, late: NDArray[np.bool_]) -> Integers:
        """Return the cheapest row that keeps the deadline with the confidence.

        Of the front, and of those planned by the deadline.
        """
        rows = self.rows
        equal = self.feasible[~rows.is_mixed(self.feasible)]
        is_planned = np.isfinite(rows.completions.late_fraction[rows.done[equal]])
        able = equal[(np.isin(equal, front) | is_planned) & ~late[equal]]
        return able[np.argsort(rows.cost_usd[able], kind="stable")][:1]

    def _picked(self, sure: Integers, late: NDArray[np.bool_] | None) -> Integers:
        """Return the rows that picks name, the best value first."""
        feasible = self.feasible
        if feasible.size == 0:
            return feasible
        found = self._best(WEIGHTS, feasible)
        if late is not None:
            # Clusters of several types keep it as expected: nothing else is known of them here.
            able = feasible[self.rows.is_mixed(feasible) | ~late[feasible]]
            if 0 < able.size < feasible.size:
                found |= self._best(["best_value"], able)
                feasible = able
        found |= self._beside(found["best_value"], feasible)
        return np.array(list(dict.fromkeys([*found.values(), *sure.tolist()])), dtype=np.int64)

    def _beside(self, best: int, places: Integers) -> dict[str, int]:
        """Return what would be the best value if nothing were doubted, and of dated prices.

        A gain of 0 doubts nothing: the front stands alone.
        """
        if self.gain <= 0:
            return {}
        found = {"undoubted": int(places[self.renting.best("best_value", *self._judged(places))])}
        equal = places[~self.rows.is_mixed(places)]
        dated = equal[self.offers.is_dated[self.rows.offer[equal]]]
        if dated.size and best not in dated:
            found |= self._best([DATED], dated)
        return found

    def _best(self, names: Iterable[str], places: Integers) -> dict[str, int]:
        """Return the row that each pick names among some, of which there is at least one."""
        return {
            one: int(places[self.renting.best(one, *self._judged(places, one))]) for one in names
        }

    def _judged(self, places: Integers, pick: str = "") -> tuple[Floats, Floats, Integers, Floats]:
        """Return what picks judge rows by: time [h], cost [USD], machines, wait for them [h].

        ``pick``: by which costs are doubted (``DOUBTING``).
        """
        rows, (later, dearer) = self.rows, self.rows.worst(places)
        cost = rows.cost_usd[places] * dearer
        cost = cost * self.doubt[places] if pick in DOUBTING else cost
        # What a price of a known day would be is asked whether or not an account may rent there.
        request_h = self.request_h[places] * (pick != DATED)
        return rows.time_h[places] * later, cost, rows.machines[places], request_h

    def _shown(self, first: Integers) -> Integers:
        """Return as many rows as asked for: those that picks name, then the others."""
        kept, size = self.kept, self.request.top
        if kept.size == 0:
            return kept
        places = [int(np.flatnonzero(kept == one)[0]) for one in first[:size]]
        return kept[
            spread_out(self.rows.time_h[kept], self.rows.cost_usd[kept], size, first=places)
        ]

    def _nearest(self) -> Integers:
        """Return rows that miss the constraints by the smallest factor, each of other machines."""
        request, rows = self.request, self.rows
        usable = np.isfinite(rows.time_h) & rows.is_in_quota & ~rows.is_hopeless
        found = np.flatnonzero(usable & ~(rows.is_spot & (not request.saves_checkpoints)))
        time_h, cost = rows.time_h[found], rows.cost_usd[found]
        # The factor by which a row is over all constraints together; one where it keeps them.
        over = np.maximum(time_h / (request.deadline_h or np.inf), 1.0)
        over *= np.maximum(cost / (request.budget_usd or np.inf), 1.0)
        over *= np.maximum(rows.usd_per_h(self.offers)[found] / request.most_usd_per_h, 1.0)
        order = found[np.lexsort((time_h * cost, over))]
        first = np.sort(np.unique(rows.column[order], return_index=True)[1])
        return np.asarray(order[first][:_NEAREST_SHOWN])

    def candidates(self, places: Integers) -> tuple[Candidate, ...]:
        """Return some rows as objects, ranked in their order."""
        if not places.size:
            return ()
        fastest = 1 + int(np.argmin(self.rows.time_h[places]))
        cheapest = 1 + int(np.argmin(self.rows.cost_usd[places]))
        made = (self._candidate(row, rank) for rank, row in enumerate(places.tolist(), start=1))
        return tuple(_placed(one, self.request, fastest, cheapest) for one in made)

    def _candidate(self, row: int, rank: int) -> Candidate:
        rows, request = self.rows, self.request
        if rows.is_mixed(np.array([row]))[0]:
            one = rows.mixed_row(row)
            mixed = group_candidate(
                self.job, self.predictor.catalogue, one.choice, one.columns, one.completion,
                self.offers, self.side, parts=one.parts, coverage=request.coverage, rank=rank,
            )  # fmt: skip
            return self._with_person(mixed, row)
        place = int(rows.done[row])
        found = self.predictor.candidate(
            self.job, self.columns, rows.completions, self.offers, self.side,
            offer_row=int(rows.offer[row]), column=int(rows.column[row]), completion_row=place,
            coverage=request.coverage, rank=rank, steady=rows.completions, space=request.space,
            known_network=request.known_network,
        )  # fmt: skip
        found = self._with_person(found, row)
        if request.with_direct_costs and self.predictor.learned is not None:
            cost = direct_cost(
                self.predictor.catalogue, self.job, select(self.columns, rows.column[[row]]),
                self.offers, int(rows.offer[row]), request.coverage,
            )  # fmt: skip
            found = replace(found, cost_direct_usd=cost)
        is_planned = np.isfinite(rows.completions.late_fraction[place])
        # What costs and lasts as much as a plan does not keep the deadline as surely.
        return found if is_planned else replace(found, alternatives=self._alternatives(row))

    def _with_person(self, one: Candidate, row: int) -> Candidate:
        """Return a candidate with what renting it costs a person."""
        work_h = float(self.renting.work_h(self.rows.machines[row]))
        return replace(
            one, effort_h=work_h, request_h=float(self.request_h[row]),
            doubt=float(self.doubt[row]), framework=framework_words(self.work, one.layout),
        )  # fmt: skip

    def _alternatives(self, row: int) -> tuple[Alternative, ...]:
        """Return what could be rented in place of ``row``, the best product of both first.

        Clusters of several types are passed over; a gain of 0 admits only what is as good.
        """
        rows = self.rows
        near = self.near[~rows.is_mixed(self.near)]
        near = near[(near != row) & (rows.is_spot[near] == rows.is_spot[row])]
        # More machines are more work, and what has to be asked for is not there.
        near = near[rows.machines[near] <= rows.machines[row]]
        near = near[self.request_h[near] <= self.request_h[row]]
        is_same = rows.kind[near] == rows.kind[row]
        most = np.ones(near.size)
        if self.gain > 0:
            most += apart(rows.log_sd[row], rows.log_sd[near], is_same, self.gain)
        time_h, cost = rows.time_h[near], rows.cost_usd[near]
        is_near = (time_h <= most * rows.time_h[row]) & (cost <= most * rows.cost_usd[row])
        order = np.flatnonzero(is_near)
        order = order[np.argsort((time_h * cost)[order], kind="stable")]
        near, is_same = near[order], is_same[order]
        elsewhere = near[is_same & (rows.column[near] == rows.column[row])][:_REGIONS]
        others = near[~is_same]
        others = others[np.sort(np.unique(rows.kind[others], return_index=True)[1])][:_MACHINES]
        return tuple(self._alternative(at, row) for at in [*elsewhere.tolist(), *others.tolist()])

    def _alternative(self, at: int, row: int) -> Alternative:
        rows, catalogue = self.rows, self.predictor.catalogue
        offer, own = (offer_of(catalogue, self.offers, int(rows.offer[i])) for i in (at, row))
        count, own_count = int(rows.machines[at]), int(rows.machines[row])
        devices = offer.accelerator, offer.accelerators * count
        is_same_device = offer.accelerator and devices == (
            own.accelerator, own.accelerators * own_count,
        )  # fmt: skip
        kind: Literal["region", "provider", "machine"] = "machine"
        if (offer.provider, offer.instance_type) == (own.provider, own.instance_type):
            kind = "region"
        elif is_same_device and offer.provider != own.provider:
            kind = "provider"
        return Alternative(
            configuration=Configuration(parts=((offer, count),)),
            kind=kind,
            training_time_h=float(rows.time_h[at]),
            cost_usd=float(rows.cost_usd[at]),
        )

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
        on = [
            (any(o.accelerators for o, _ in one.configuration.parts), one.layout.devices)
            for one in front or nearest
        ]
        notes = [*self.job.notes, *script_notes(self.job, on)]
        notes += stack_notes(self.work)
        learned, is_learned = self.predictor.learned, self.columns.is_learned
        if is_learned is not None and learned is not None:
            covered = len(np.unique(self.columns.type_index[is_learned]))
            notes.append(
                f"the learned model covers {covered:,} instance types ({learned.folder}); the "
                "others use the analytic estimate alone"
            )
        if hidden := self.kept.size - len(front):
            notes.append(f"{hidden} more candidates on the front are not shown (raise --top)")
        return (*notes, *self._unpriced())

    def _unpriced(self) -> tuple[str, ...]:
        """Say what the times and costs do not include, and how to add it, a sentence each."""
        job, side, shown = self.job, self.side, self.shown
        is_mixed = self.rows.is_mixed(shown)
        parts = [self.rows.mixed_row(row).parts for row in shown[is_mixed].tolist()]
        several = [offer for one in parts for offer, _ in one]
        offers = np.array([*self.rows.offer[shown[~is_mixed]].tolist(), *several], dtype=np.int64)
        lacks = []
        if job.transfers.data_bytes is None:
            lacks.append("Data download is not included. Pass --data SIZE to add it.")
        if job.program is None and not job.epochs * job.epoch_end_steps:
            lacks.append("Validation is not included. Pass --validation SHARE to add it.")
        if np.isnan(side.storage_usd_per_h[offers]).any():
            lacks.append("Storage is not included where the provider's price is unknown.")
        if np.isnan(side.egress_usd[offers]).any():
            lacks.append(
                "Downloading results is not included where the provider's price is unknown."
            )
        return tuple(lacks)


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
