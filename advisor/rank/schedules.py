"""Machines that join while a job trains, beside the best fixed number of them (Hydrozoa).

Offered unasked where the schedule's bill is a tenth below the best fixed one of the same machines
and below the choice's, in no more time; each of its phases is priced by the estimate of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from advisor.answer import Candidate, ProposedChange
from advisor.ask import Constraints
from advisor.catalogue import OfferFilter
from advisor.errors import AdvisorError
from advisor.estimate import (
    JobFigures,
    PhaseRun,
    Predictor,
    figures_of,
    noise_over,
    phase_runs,
    phases_of,
)
from advisor.jobs import NO_LENGTH, Job
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.systems import ASSUMED_NOISE, Billing, Phase, Schedule, elastic_plan
from advisor.quantities import percent_text

_LEAST_SAVING: Final = 0.1
# Types of machines that are tried, and how often the batch is halved for the first phases.
_TYPES: Final = 4
_HALVINGS: Final = 5


def elastic(
    job: Job, request: Constraints, predictor: Predictor, chosen: Candidate,
    front: Sequence[Candidate],
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return the cheapest schedule on a type of the front, where it saves enough."""
    rented = [one for one in (chosen, *front) if _is_plain(one)]
    if job.work is None or job.total_source == NO_LENGTH or chosen not in rented:
        return ()
    types = dict.fromkeys(_type(one) for one in rented)
    found = [_scheduled(job, request, predictor, chosen, name) for name in [*types][:_TYPES]]
    saving = [one for one in found if one is not None]
    return tuple(sorted(saving, key=lambda one: one.cost_factor)[:1])


def _is_plain(one: Candidate) -> bool:
    parts = one.configuration.parts
    return len(parts) == 1 and parts[0][0].pricing == "on-demand"


def _type(one: Candidate) -> str:
    offer, _ = one.configuration.parts[0]
    return f"{offer.provider}:{offer.instance_type}"


def _scheduled(
    job: Job, request: Constraints, predictor: Predictor, chosen: Candidate, name: str
) -> ProposedChange | None:
    provider, _, own = name.partition(":")
    sold = predictor.catalogue.select(OfferFilter(providers=(provider,), types=(own,)))
    counts = [n for n in request.counts if n <= sold.max_instances.max(initial=0)]
    limit_h = request.deadline_h or chosen.training_time_h.value
    try:
        known = figures_of(predictor, job, name, counts)
        points = noise_over(known)
        if not points or len(counts) < 2:
            return None
        phases = phases_of(known, points)
        plan = elastic_plan(
            phases, known.scaling, _billing(known), batch=known.batch,
            batches=[known.batch / 2**k for k in range(_HALVINGS + 1) if not known.batch % 2**k],
            deadline_s=limit_h * HOUR_S, budget_usd=request.budget_usd,
        )  # fmt: skip
    except (AdvisorError, PlanningError):
        return None
    if plan.fixed is None or not plan.elastic.resizes or (plan.saving_fraction or 0.0) <= 0:
        return None
    priced = [_priced(predictor, job, known, phases, one) for one in (plan.elastic, plan.fixed)]
    (runs, time_h, usd), (_, _, fixed_usd) = priced
    offer, count = chosen.configuration.parts[0]
    now_h = chosen.training_time_h.value
    factor = usd / (offer.price_usd_per_h * count * now_h) if offer.price_usd_per_h else 1.0
    most = 1.0 - _LEAST_SAVING
    if not runs or usd > most * fixed_usd or factor > most or time_h > limit_h:
        return None
    return ProposedChange(
        name="elastic", do=_words(job, known, name, runs, 1.0 - usd / fixed_usd, limit_h),
        training_time_h=chosen.training_time_h.scaled(time_h / now_h),
        cost_usd=chosen.cost_usd.scaled(factor), time_factor=time_h / now_h, cost_factor=factor,
    )  # fmt: skip


def _billing(known: JobFigures) -> Billing:
    return Billing(price_usd_per_h=known.price_usd_per_h, startup_s=known.startup_s)


def _priced(
    predictor: Predictor, job: Job, known: JobFigures, phases: Sequence[Phase], plan: Schedule
) -> tuple[tuple[PhaseRun, ...], float, float]:
    """Return the runs of a plan, their time [h] and bill [USD], by the estimate of each batch."""
    runs = phase_runs(predictor, job, known, phases, plan)
    taken_s = [HOUR_S * one.time_h for one in runs]
    workers, batches = [one.workers for one in runs], [one.batch for one in runs]
    found = Schedule.of(workers, batches, taken_s, _billing(known)) if runs else plan
    return runs, found.time_s / HOUR_S, found.cost_usd


def _words(
    job: Job, known: JobFigures, name: str, runs: Sequence[PhaseRun], saved: float, limit_h: float
) -> str:
    """Say how many work in which phase, what that rests on, and what prints how each is started."""
    counts, batches = ([*dict.fromkeys(each)] for each in zip(
        *((str(one.workers), f"{one.batch:g}") for one in runs), strict=True
    ))  # fmt: skip
    noise = "the recorded gradients' noise" if known.noise else ASSUMED_NOISE
    asked = f"--run {job.name}" if job.measured is not None else "..."
    return (
        f"{counts[0]} x {known.machine}, later {', then '.join(counts[1:])}, the batch from "
        f"{batches[0]} to {batches[-1]}: {percent_text(saved)} below the best fixed number "
        f"({noise}). advisor simulate elastic {asked} --on {name} --batches {','.join(batches)} "
        f"--deadline {limit_h:.4g}h prints how to start each phase"
    )
