"""From a job and constraints to the Pareto list, and why everything else is not on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from advisor.answer import Candidate, Named, Prices, ProposedChange, Recommendation
from advisor.ask import Constraints as Request
from advisor.catalogue import Accelerator, Catalogue, OfferFilter
from advisor.collectors.format import Recording
from advisor.estimate import Predictor, facts_of
from advisor.jobs import Job
from advisor.rank.changes import changes, known_error, mixed, relaxed, unmeasured_words
from advisor.rank.front import CONFIDENCE, LEAST_SPEED_UP, keeps, picks, shared_reasons
from advisor.rank.ranking_rows import pareto_front
from advisor.rank.renting import Renting
from advisor.rank.rows import ranked_rows
from advisor.words import claims_of

__all__ = ["Request", "pareto_front", "recommend"]


def recommend(
    job: Job,
    request: Request | None = None,
    *,
    predictor: Predictor | None = None,
    here: Candidate | None = None,
    prunes: bool = True,
    for_best_value: bool = False,
    with_changes: bool = False,
    recording: Recording | None = None,
    in_full: bool = False,
) -> Recommendation:
    """Rank what could be rented for ``job`` by training time and cost.

    Parameters
    ----------
    request : Request, optional
        No constraints and on-demand prices by default.
    predictor : Predictor, optional
        Over the bundled catalogue by default.
    here : Candidate, optional
        The job on this machine, which takes part where it keeps the constraints.
    prunes : bool, default True
        False searches the best layout of every row, those that cannot be on the front too.
    for_best_value : bool, default False
        Only the row that is the best value need be right: others may be missing.
    with_changes : bool, default False
        Also say what would change the answer, which asks a few more questions.
    recording : Recording, optional
        What was seen of the job: more can be said of what would change the answer.
    in_full : bool, default False
        Also say of every candidate where its numbers are from.

    Returns
    -------
    Recommendation
        An empty ``front`` means that nothing satisfies the constraints; ``nearest`` then holds
        what comes closest to them.
    """
    request = request or Request()
    predictor = predictor or Predictor()
    ranked, rejected, considered = ranked_rows(
        job, request, predictor, prunes=prunes, for_best_value=for_best_value
    )
    front, nearest = ranked.candidates(ranked.shown), ranked.candidates(ranked.nearest)
    if in_full:
        front, nearest = (
            tuple(replace(one, sources=facts_of(predictor, job, one, space=request.space))
                  for one in rows)
            for rows in (front, nearest)
        )  # fmt: skip
    chosen = picked(front, here, request)
    rented = next((one for one in front if one.rank == chosen.get("best_value")), None)
    error = None if rented is None else known_error(job, rented, predictor.catalogue)
    unknown = unmeasured_words(job, rented) if rented is not None and error is None else ""
    found = Recommendation(
        run=job.name,
        job=job.facts(),
        catalogue=Prices(
            as_of=_newest((*front, *nearest)) or predictor.catalogue.as_of,
            offers=len(ranked.offers.type_index),
        ),
        predictor=Named(name=predictor.name, version=predictor.version),
        considered=considered,
        rejected={reason: number for reason, number in rejected.items() if number},
        front=front,
        nearest=nearest,
        here=here,
        picks=chosen,
        judged_by=Renting.of(request).to_record(),
        unoffered=unoffered(request, predictor.catalogue) if not len(ranked.offers) else {},
        shared_reasons=shared_reasons(front),
        changes=(
            _changes(job, request, predictor, rented, here, front, rejected, recording)
            if with_changes and rented is not None
            else ()
        ),
        known_error=error,
        probes=ranked.probes(),
        notes=ranked.notes(front, nearest),
    )
    return told(found, request, unmeasured=unknown, refused=ranked.refused())


def picked(
    front: Sequence[Candidate], here: Candidate | None, request: Request
) -> dict[str, int | Literal["here"]]:
    """Return what to choose of a front and this machine, where that keeps the constraints."""
    at_hand = here if here is not None and keeps(here, request) else None
    return picks(
        front, at_hand, renting=Renting.of(request), deadline_h=request.deadline_h,
        confidence=request.confidence,
    )  # fmt: skip


def told(
    found: Recommendation, request: Request, *, unmeasured: str, refused: str = ""
) -> Recommendation:
    """Return the answer with its claims and sentences, made from its rows and picks alone.

    ``unmeasured``, ``refused``: as sentences, what no test has measured where no error is known,
    and why no machine runs the job where none does.
    """
    here = found.here
    claims = claims_of(
        found.to_record(),
        certainty=request.confidence or CONFIDENCE,
        worth=LEAST_SPEED_UP,
        trouble_h=request.effort_h,
        here=None if here is None or not keeps(here, request) else here.to_record(),
        unmeasured=unmeasured,
        refused=refused,
    )
    return replace(found, claims=claims, summary=tuple(one.text for one in claims))


def _changes(
    job: Job, request: Request, predictor: Predictor, rented: Candidate, here: Candidate | None,
    front: tuple[Candidate, ...], rejected: Counter[str], recording: Recording | None,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what would change the answer: the script, how it is paid, the limits that bind."""

    def limited(other: Request) -> Recommendation:
        return recommend(job, other, predictor=predictor)

    def changed(other: Job) -> Recommendation:
        return recommend(other, request, predictor=predictor, for_best_value=True)

    return (
        *mixed(request, rented, front, limited),
        *changes(
            job, request, predictor, rented, here, front, recording=recording, ask=changed
        ),
        *relaxed(request, rented, front, rejected, limited),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------
# Accelerators that were asked for and nobody rents, and the nearest that somebody does.


_NEAREST: Final = 3
# What makes two accelerators alike for training: how fast they multiply, what fits, how fast it
# is read.
_ALIKE: Final = ("bf16_flop_per_s", "fp16_flop_per_s", "memory_bytes", "memory_bytes_per_s")


def unoffered(request: Request, catalogue: Catalogue) -> dict[str, tuple[str, ...]]:
    """Return the accelerators asked for that no provider has, each with the nearest that are.

    The nearest differ least in rate, memory and bandwidth, as sums of squared logarithms.
    """
    names = () if request.gpus is None else request.gpus.names
    every = catalogue.select(OfferFilter(pricing=("on-demand", "spot")))
    there = set(np.unique(catalogue.types.accelerator[every.type_index]).tolist()) - {""}
    known = {name: one for name in there if (one := catalogue.accelerators.get(name)) is not None}
    found = {}
    for name in names:
        meant = catalogue.matching_gpus(name)
        asked = [catalogue.accelerators[one] for one in meant if one in catalogue.accelerators]
        if there & set(meant) or not asked:
            continue
        nearest = sorted(known, key=lambda other: (_unlike(asked[0], known[other]), other))
        found[name] = tuple(nearest[:_NEAREST])
    return found


def _unlike(one: Accelerator, other: Accelerator) -> float:
    pairs = [(getattr(one, name), getattr(other, name)) for name in _ALIKE]
    logs = [math.log(a / b) ** 2 for a, b in pairs if a and b]
    return sum(logs) / len(logs) if logs else math.inf


# ------------------------------------------------------------------------------------------
# Constraints under the name that the ranking uses.


def _newest(shown: Sequence[Candidate]) -> str:
    """Return the day of the newest price that is shown; nothing where none has one."""
    offers = (offer for one in shown for offer, _ in one.configuration.parts)
    return max((offer.price_as_of for offer in offers), default="")
