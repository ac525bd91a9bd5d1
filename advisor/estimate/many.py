"""Many named configurations at once: one estimate over all of them, one pass over the prices.

What cannot be answered (no such type, no price, too little memory, ...) is a row with its reason
among the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Candidate, CompletionWay, Refused
from advisor.catalogue import Catalogue, OfferFilter, Offers, Pricing, named
from advisor.errors import AdvisorError, CatalogueError, DoesNotRunError, UsageError
from advisor.estimate.best import refusal
from advisor.estimate.case import StepCase
from advisor.estimate.completion import Completion, SideCosts, on_demand, on_spot
from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import Job
from advisor.planners.core import select

Integers = NDArray[np.int64]
_NOWHERE: Final = -1
# Of longer lists nobody reads what each unknown name may mean, which takes 10 ms a name, nor by
# how much each refused machine misses.
_SUGGESTED: Final = 50


class OneEstimate(Protocol):
    """What is asked for many: ``advisor.estimate.predictor.Predictor``."""

    catalogue: Catalogue

    def case(self, job: Job) -> StepCase:
        """Return what the ways of training need to know."""

    def step_columns(self, *args: Any, **keywords: Any) -> TimeColumns:
        """Estimate one step on every row."""

    def side_costs(self, job: Job, offers: Offers) -> SideCosts:
        """Return what storage and outgoing traffic add."""

    def candidate(self, *args: Any, **keywords: Any) -> Candidate:
        """Make the object of one row."""

    def rented(self, *args: Any, **keywords: Any) -> Candidate:
        """Return the whole job on one row's machines, completed in any way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How machines of named types are rented: the keywords of ``Predictor.predict``."""

    provider: str | None = None
    region: str | None = None
    pricing: Pricing = "on-demand"
    completion: CompletionWay | None = None
    coverage: float = 0.9

    @property
    def way(self) -> CompletionWay:
        """What the job runs on until it is done."""
        return self.completion or ("spot" if self.pricing == "spot" else "on-demand")


def estimates(
    predictor: OneEstimate, job: Job, asked: Sequence[str | tuple[str, int]], rental: Terms
) -> list[Candidate | Refused]:
    """Return a candidate, or why there is none, for every configuration, in their order."""
    pairs = [named(one) for one in asked]
    offers = predictor.catalogue.select(
        OfferFilter(regions=(rental.region,) if rental.region else (), pricing=(rental.pricing,))
    )
    # The row of each type's cheapest offer; offers come cheapest first.
    cheapest = np.full(len(predictor.catalogue.types), _NOWHERE, dtype=np.int64)
    types, first = np.unique(offers.type_index, return_index=True)
    cheapest[types] = first
    found: dict[int, Candidate | AdvisorError] = {}
    rows: dict[int, int] = {}  # type by place
    for place, (name, count) in enumerate(pairs):
        try:
            rows[place] = _type(predictor, name, count, rental, cheapest, len(pairs) <= _SUGGESTED)
        except AdvisorError as error:
            found[place] = error
    if rows:
        places, kinds = list(rows), np.array(list(rows.values()), dtype=np.int64)
        counts = np.array([pairs[place][1] for place in places], dtype=np.int64)
        columns = predictor.step_columns(job, kinds, counts)
        for row in np.flatnonzero(columns.status).tolist():
            found[places[row]] = _no_step(predictor, job, pairs[places[row]], columns, row)
        fitting = np.flatnonzero(columns.status == 0)
        for row, answer in _rented(
            predictor, job, columns, offers, cheapest[kinds], fitting, rental
        ):
            found[places[row]] = answer
    return [
        Refused(rank=place + 1, configuration=f"{count} x {name}", error=answer)
        if isinstance(answer := found[place], AdvisorError)
        else replace(answer, rank=place + 1)
        for place, (name, count) in enumerate(pairs)
    ]


def _type(
    predictor: OneEstimate, name: str, count: int, rental: Terms, cheapest: Integers,
    suggest: bool,
) -> int:  # fmt: skip
    """Return the row of a type that is offered as asked."""
    if count < 1:
        raise UsageError(f"{count} x {name}: not a number of machines", hint="give 1 or more")
    row = predictor.catalogue.instance_type(name, provider=rental.provider, suggest=suggest)
    if cheapest[row.index] == _NOWHERE:
        raise CatalogueError(
            f"{name} has no {rental.pricing} price in {rental.region or 'any region'}",
            hint=f"see `advisor catalogue show {name}`",
        )
    return int(row.index)


def _no_step(
    predictor: OneEstimate, job: Job, pair: tuple[str, int], columns: TimeColumns, row: int
) -> DoesNotRunError:
    is_short = job.work is not None and len(columns.count) <= _SUGGESTED
    why = refusal(predictor.case(job) if is_short else None, columns, row)
    return DoesNotRunError(
        f"{job.name} does not run on {pair[1]} x {pair[0]}: {why}", hint=why.hint
    )


def _rented(
    predictor: OneEstimate, job: Job, columns: TimeColumns, offers: Offers,
    offered: Integers, fitting: Integers, rental: Terms,
) -> list[tuple[int, Candidate | AdvisorError]]:  # fmt: skip
    """Return each fitting row with its candidate, or why it cannot be completed so."""
    if fitting.size == 0:
        return []
    is_spot = rental.pricing == "spot"
    if rental.way == "on-demand" and not is_spot:
        return _candidates(predictor, job, columns, None, offers, offered, fitting, rental)
    if rental.way == "spot" and is_spot:
        bands = offers.spot_interruption_band[offered[fitting]]
        spot = on_spot(job, columns, fitting, bands, rental.coverage)
        return _candidates(predictor, job, columns, spot, offers, offered, fitting, rental)
    answers: list[tuple[int, Candidate | AdvisorError]] = []
    for row in fitting.tolist():
        try:
            one = predictor.rented(
                job, select(columns, np.array([row])), offers, int(offered[row]),
                pricing=rental.pricing, completion=rental.completion, coverage=rental.coverage,
            )  # fmt: skip
        except AdvisorError as error:
            answers.append((row, error))
        else:
            answers.append((row, one))
    return answers


def _candidates(
    predictor: OneEstimate, job: Job, columns: TimeColumns, spot: Completion | None,
    offers: Offers, offered: Integers, rows: Integers, rental: Terms,
) -> list[tuple[int, Candidate | AdvisorError]]:  # fmt: skip
    """Return a candidate a row, on demand where ``spot`` has no completion for each."""
    side = predictor.side_costs(job, offers)
    steady = on_demand(job, columns, rental.coverage)
    done, done_rows = (steady, rows) if spot is None else (spot, np.arange(rows.size))
    return [
        (row, predictor.candidate(
            job, columns, done, offers, side, offer_row=int(offered[row]), column=row,
            completion_row=done_row, coverage=rental.coverage, steady=steady,
        ))
        for row, done_row in zip(rows.tolist(), done_rows.tolist(), strict=True)
    ]  # fmt: skip
