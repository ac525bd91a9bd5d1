"""From a job and constraints to the Pareto list, and why everything else is not on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from advisor.answer import Candidate, Named, Prices, ProposedChange, Recommendation
from advisor.ask import Constraints as Request
from advisor.catalogue import Catalogue
from advisor.collectors.format import Recording
from advisor.errors import UsageError
from advisor.estimate import Predictor, facts_of
from advisor.jobs import Job
from advisor.machines import whole_machines
from advisor.rank.changes import (
    by_worth,
    changes,
    changes_here,
    known_error,
    mixed,
    relaxed,
    swapped,
    unmeasured_words,
    unreleased,
)
from advisor.rank.front import CONFIDENCE, LEAST_SPEED_UP, keeps, picks, shared_reasons
from advisor.rank.listed import Listed
from advisor.rank.renting import Renting
from advisor.words import claims_of

__all__ = ["Request", "recommend"]


def recommend(
    job: Job, request: Request | None = None, *, predictor: Predictor | None = None,
    here: Candidate | None = None, prunes: bool = True, for_best_value: bool = False,
    with_changes: bool = False, recording: Recording | None = None, in_full: bool = False,
) -> Recommendation:  # fmt: skip
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
    predictor = predictor or Predictor()
    request = in_whole_machines(request or Request(), predictor.catalogue)
    ranked = Listed(job, request, predictor, prunes=prunes, for_best_value=for_best_value)
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
        serving=_serving(job, recording, request, predictor),
        catalogue=Prices.of((*front, *nearest), len(ranked.offers.type_index)),
        predictor=Named(name=predictor.name, version=predictor.version),
        considered=ranked.considered,
        rejected={reason: number for reason, number in ranked.rejected.items() if number},
        front=front,
        nearest=nearest,
        here=here,
        picks=chosen,
        judged_by=Renting.of(request).to_record(),
        unoffered={} if len(ranked.offers) else _unoffered(request, predictor),
        shared_reasons=shared_reasons(front),
        changes=(
            _changes(ranked, rented, here, front, recording)
            if with_changes and (rented is not None or chosen.get("best_value") == "here")
            else ()
        ),
        known_error=error,
        probes=ranked.probes(),
        notes=ranked.notes(front, nearest),
    )
    return told(found, request, unmeasured=unknown, refused=ranked.refused())


def in_whole_machines(request: Request, catalogue: Catalogue) -> Request:
    """Return the request for more accelerators than a machine holds as one for several machines.

    ``H100:16`` is exactly two machines of eight, as ``predict --gpu H100 --count 16`` takes it.

    Raises UsageError if they fill no equal machines, or more than ``--max-nodes``.
    """
    gpus = request.gpus
    if gpus is None or gpus.others or gpus.min_count != gpus.max_count or gpus.max_count % 1:
        return request
    below = replace(request.offer_filter(), gpus=replace(gpus, min_count=1.0))
    sizes = np.unique(catalogue.types.accelerator_count[catalogue.admitted_types(below)])
    count, name = int(gpus.max_count), ",".join(gpus.names) or "accelerators"
    if not sizes.size or sizes.max() >= count:
        return request
    machines, each = whole_machines(count, name, sizes.tolist())
    if machines > request.max_nodes:
        raise UsageError(
            f"{count} x {name} are {machines} machines of {each}, more than --max-nodes "
            f"{request.max_nodes}",
            hint=f"--max-nodes {machines}",
        )
    held = replace(gpus, min_count=float(each), max_count=float(each))
    return replace(request, gpus=held, nodes=machines, mixed=False)


def _unoffered(request: Request, predictor: Predictor) -> dict[str, tuple[str, ...]]:
    from advisor.rank.unoffered import unoffered  # seldom asked

    return unoffered(request, predictor.catalogue)


def _serving(job: Job, recording: Recording | None, request: Request, predictor: Predictor) -> str:
    """Say what serves a mixture of experts once it is trained; nothing of others."""
    model = None if job.work is None else job.work.transformer
    is_routed = recording is not None and recording.routing is not None
    if not is_routed and (model is None or model.experts < 2):
        return ""
    from advisor.advice import serving_words  # of mixtures alone

    return serving_words(job, recording, predictor.catalogue, request)


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
    ranked: Listed, rented: Candidate | None, here: Candidate | None, front: tuple[Candidate, ...],
    recording: Recording | None,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what would change the answer: the script, how it is paid, the limits that bind.

    Each is the same search with another question; what is known of the job's layouts stays.
    """
    job, request, predictor = ranked.job, ranked.request, ranked.predictor

    def limited(place: int, **others: Any) -> Candidate | None:
        """Return the fastest (0) or the cheapest (-1) that is listed under other limits."""
        found = Listed(job, replace(request, **others), predictor)
        return found.candidates(found.shown[[place]])[0] if found.shown.size else None

    def best_value(other: Job) -> Candidate | None:
        found = Listed(other, request, predictor, for_best_value=True)
        rows = found.candidates(found.shown)
        rank = picked(rows, None, request).get("best_value")
        return next((one for one in rows if one.rank == rank), None)

    if rented is None:  # this machine is the best value
        return changes_here(job, request, predictor, recording=recording)
    from advisor.rank.schedules import elastic  # of rented machines alone

    # First while the job's search is at hand: other jobs take its place.
    several = mixed(request, rented, front, limited)
    atom = swapped(request, predictor.catalogue, rented, front, limited)
    allowed = relaxed(request, rented, front, ranked.rejected, limited)
    cured = changes(
        job, request, predictor, rented, here, front, recording=recording, ask=best_value
    )
    best, *others = by_worth((*several, *cured, *allowed)) or (None,)
    unowned = unreleased(job, request, predictor, rented, front)
    joining = elastic(job, request, predictor, rented, front)
    return tuple(one for one in (best, *unowned, *atom, *joining, *others) if one is not None)
