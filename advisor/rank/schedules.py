"""Machines that join while a job trains, beside the best fixed number of them (Hydrozoa).

Offered unasked where the schedule's bill is a tenth below the best fixed number's of the types
that are tried and below the choice's, in time. Every batch on every number is estimated.
"""

from __future__ import annotations

import math
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
    assumed_noise,
    figures_of,
    noise_over,
    phase_runs,
    phases_of,
)
from advisor.jobs import NO_LENGTH, Job
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.systems import ASSUMED_NOISE, Billing, ElasticPlan, Phase, elastic_plan
from advisor.quantities import percent_text

_LEAST_SAVING: Final = 0.1
# Types of machines that are tried (the choice's and the cheapest), and how often a batch is halved
# for the first phases.
_TYPES: Final = 2
_HALVINGS: Final = 5


def elastic(
    job: Job, request: Constraints, predictor: Predictor, chosen: Candidate,
    front: Sequence[Candidate],
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return the cheapest schedule on a type of the front, where it saves enough."""
    cheapest = sorted(front, key=lambda one: one.cost_usd.value)
    rented = [one for one in (chosen, *cheapest) if _is_plain(one)]
    is_known = job.noise is not None or assumed_noise(job)
    usd_per_h = chosen.configuration.parts[0][0].price_usd_per_h
    if not (is_known and usd_per_h) or job.total_source == NO_LENGTH or chosen not in rented:
        return ()
    limit_h = request.deadline_h or chosen.training_time_h.value
    names = [*dict.fromkeys(_type(one) for one in rented)][:_TYPES]
    found = [_scheduled(job, request, predictor, name, limit_h) for name in names]
    plans = [one for one in found if one is not None]
    if not plans:
        return ()
    known, phases, plan = min(plans, key=lambda one: one[2].elastic.cost_usd)
    fixed_usd = min((one.fixed.cost_usd for *_, one in plans if one.fixed), default=math.inf)
    _, count = chosen.configuration.parts[0]
    now_h, usd = chosen.training_time_h.value, plan.elastic.cost_usd
    factor = usd / (usd_per_h * count * now_h)
    runs = phase_runs(predictor, job, known, phases, plan.elastic)
    is_worth = max(factor, usd / fixed_usd) <= 1.0 - _LEAST_SAVING
    if not (runs and is_worth and plan.elastic.resizes):
        return ()
    time_h = plan.elastic.time_s / HOUR_S
    return (ProposedChange(
        name="elastic", do=_words(job, known, runs, 1.0 - usd / fixed_usd, limit_h),
        training_time_h=chosen.training_time_h.scaled(time_h / now_h),
        cost_usd=chosen.cost_usd.scaled(factor), time_factor=time_h / now_h, cost_factor=factor,
    ),)  # fmt: skip


def _is_plain(one: Candidate) -> bool:
    parts = one.configuration.parts
    return len(parts) == 1 and parts[0][0].pricing == "on-demand"


def _type(one: Candidate) -> str:
    offer, _ = one.configuration.parts[0]
    return f"{offer.provider}:{offer.instance_type}"


def _scheduled(
    job: Job, request: Constraints, predictor: Predictor, name: str, limit_h: float
) -> tuple[JobFigures, list[Phase], ElasticPlan] | None:
    """Return the best schedule and the best fixed number on a type; None where none is in time."""
    provider, _, own = name.partition(":")
    sold = predictor.catalogue.select(OfferFilter(providers=(provider,), types=(own,)))
    counts = [n for n in request.counts if n <= sold.max_instances.max(initial=0)]
    size = float(job.global_batch)
    batches = [size / 2**k for k in range(_HALVINGS + 1) if not size % 2**k]
    try:
        known = figures_of(predictor, job, name, counts, batches)
        phases = phases_of(known, noise_over(known))
        billing = Billing(price_usd_per_h=known.price_usd_per_h, startup_s=known.startup_s)
        return known, phases, elastic_plan(
            phases, known.scaling, billing, batch=size, batches=batches,
            deadline_s=limit_h * HOUR_S, budget_usd=request.budget_usd,
        )  # fmt: skip
    except (AdvisorError, PlanningError):
        return None


def _words(
    job: Job, known: JobFigures, runs: Sequence[PhaseRun], saved: float, limit_h: float
) -> str:
    """Say how many work in which phase, what that rests on, and what prints how to start each."""
    counts = dict.fromkeys(str(one.workers) for one in runs)
    batches = dict.fromkeys(f"{one.batch:g}" for one in runs)
    sizes = f"batch {' > '.join(batches)}" if len(batches) > 1 else "its batch"
    noise = "the recorded gradient noise" if known.noise else ASSUMED_NOISE
    asked = f"--run {job.name}" if job.measured is not None else "..."
    return (
        f"machines that join: {' > '.join(counts)} x {known.machine.partition(':')[2]}, {sizes}: "
        f"{percent_text(saved)} below the best fixed number, by {noise}; how to start each: "
        f"advisor simulate elastic {asked} --on {known.machine} --batches {','.join(batches)} "
        f"--deadline {limit_h:.4g}h"
    )
