"""Whether a submission passes, and what would: the one function that decides.

Rented machines are asked of the estimate behind ``predict`` and judged by the rule by which
``recommend`` rejects a row; devices of an own cluster are asked of the estimate by which
``recommend --cluster`` compares them. What would do is the recommendation under the same limits.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor.catalogue import InstanceType, OfferColumns, OfferFilter
from advisor.collectors.recording import Recording
from advisor.domain import Estimate, Named, Prices
from advisor.errors import AdvisorError, CatalogueError, UsageError
from advisor.gate.records import (
    LIMITS,
    Asked,
    AskedMachines,
    GateVerdict,
    Judged,
    OwnDevices,
    Reason,
    Submission,
    Unclear,
)
from advisor.gate.remedies import remedies
from advisor.jobs.described import NO_LENGTH
from advisor.jobs.job import Job
from advisor.machines.cluster_text import one_group
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.tables import select
from advisor.predict import STATUSES, Predictor
from advisor.quantities import hours_interval, hours_text, usd_interval, usd_text
from advisor.question import Constraints, Question
from advisor.question.layout import layout_space
from advisor.ranking.summary import broken
from advisor.simulation.own_cluster import on_own_devices


def decide(
    job: Job, submission: Submission, question: Question, *, predictor: Predictor,
    recording: Recording | None = None, is_strict: bool = True,
) -> GateVerdict:  # fmt: skip
    """Judge a submission by the limits of a question.

    Parameters
    ----------
    question : Question
        Its constraints are the limits; its layout is kept to.
    recording : Recording, optional
        What was seen of the job, for the recommendation.
    is_strict : bool, default True
        Raise what keeps a submission from being judged (an unknown machine, no price); False
        notes it and lets the submission pass.

    Raises
    ------
    UsageError
        If a budget or a deadline is set and the length of the job is not known.
    AdvisorError
        If ``is_strict`` and a machine is unknown, or has no price.
    """
    limits = question.constraints
    _check_length(job, limits)
    verdicts = tuple(
        judged(job, one, question, predictor, is_strict=is_strict) for one in submission.asked
    )
    found = GateVerdict(
        run=job.name,
        judged=verdicts,
        limits={name: getattr(limits, name) for name in LIMITS},
        catalogue=Prices(as_of=predictor.catalogue.as_of),
        predictor=Named(name=predictor.name, version=predictor.version),
    )
    if found.passes:
        return found

    def judge(others: Sequence[Asked]) -> tuple[Judged, ...]:
        return tuple(judged(job, one, question, predictor, is_strict=False) for one in others)

    return replace(found, remedies=remedies(job, verdicts, question, predictor, recording, judge))


def _check_length(job: Job, limits: Constraints) -> None:
    if job.total_source == NO_LENGTH and (limits.budget_usd or limits.deadline_h):
        raise UsageError(
            f"the length of {job.name} is not known, so no budget or deadline can be judged",
            hint="say how long it is: --epochs, --total-steps, --total-samples or --tokens",
        )


def judged(
    job: Job, asked: Asked, question: Question, predictor: Predictor, *, is_strict: bool
) -> Judged:
    """Return what holds for one of the machines; parameters are those of ``decide``."""
    if isinstance(asked, Unclear):
        return Judged(asked=asked, note=asked.why)
    try:
        if isinstance(asked, AskedMachines):
            return _rented(job, asked, question, predictor)
        return _own(job, asked, question.constraints, predictor)
    except (AdvisorError, PlanningError) as error:
        if is_strict:
            raise
        return Judged(asked=Unclear(label=asked.label, why=str(error)), note=str(error))


def _rented(job: Job, asked: AskedMachines, question: Question, predictor: Predictor) -> Judged:
    """Judge machines of the catalogue: those that no limit admits are not estimated."""
    limits, space = question.constraints, layout_space(question.layout)
    row = predictor.catalogue.instance_type(asked.instance_type, provider=asked.provider)
    offers, reasons = _offers(asked, row, limits, predictor)
    if reasons:
        return Judged(asked=asked, reasons=reasons, note=asked.note)
    columns = predictor.step_columns(
        job, np.array([row.index]), np.array([asked.count]), space=space,
        known_network=limits.known_network,
    )  # fmt: skip
    if columns.status[0]:
        why = STATUSES[int(columns.status[0])].replace("_", " ")
        reason = Reason(limit="machines", text=f"{job.name}: {why} on {asked.label}")
        return Judged(asked=asked, reasons=(reason,), note=asked.note)
    reasons = _rates(asked, offers, limits)
    if job.total_source == NO_LENGTH:
        return Judged(asked=asked, reasons=reasons, note=f"{job.name}: {NO_LENGTH}")
    candidate = predictor.rented(
        job, select(columns, np.array([0])), offers, 0, pricing=asked.pricing,
        completion=asked.completion, coverage=limits.coverage, space=space,
        known_network=limits.known_network,
    )  # fmt: skip
    time_h, cost = candidate.training_time_h, candidate.cost_usd
    reasons += against(limits, asked.time_limit_h, time_h, cost)
    return Judged(
        asked=asked, reasons=reasons, candidate=candidate, training_time_h=time_h,
        cost_usd=cost, note=asked.note,
    )  # fmt: skip


def _offers(
    asked: AskedMachines, row: InstanceType, limits: Constraints, predictor: Predictor
) -> tuple[OfferColumns, tuple[Reason, ...]]:
    """Return the offers of a type, cheapest first, and what the limits have against them all."""
    region = asked.region or limits.region
    wanted = OfferFilter(
        providers=(row.provider,), types=(row.name,), pricing=(asked.pricing,),
        regions=(region,) if region else (),
    )  # fmt: skip
    sold = predictor.catalogue.select(wanted)
    if not len(sold.type_index):
        raise CatalogueError(
            f"{row.name} has no {asked.pricing} price in {region or 'any region'}",
            hint=f"see `advisor catalogue show {row.name}`",
        )
    within = replace(
        wanted, gpus=limits.gpus, max_price_usd_per_h=limits.max_price_usd_per_h or np.inf
    )
    found = predictor.catalogue.select(within)
    said = []
    if limits.providers and row.provider not in limits.providers:
        said.append(f"{row.provider} is not among the providers: {', '.join(limits.providers)}")
    if region and limits.region and not fnmatch.fnmatchcase(region, limits.region):
        said.append(f"{region} is not among the regions: {limits.region}")
    if not said and not len(found.type_index):
        said.append(f"{row.name} is not among the machines that --gpus and --max-price admit")
    return found, tuple(Reason(limit="machines", text=text) for text in said)


def _rates(asked: AskedMachines, offers: OfferColumns, limits: Constraints) -> tuple[Reason, ...]:
    """Return what quota and hourly limit have against so many machines of the cheapest offer."""
    reasons = []
    most = float(offers.max_instances[0])
    if asked.count > most:
        text = f"{asked.count} machines, your quota is {most:g}"
        reasons.append(Reason(limit="quota", text=text))
    hourly = float(offers.price_usd_per_h[0]) * asked.count
    if hourly > limits.most_usd_per_h:
        text = f"{usd_text(hourly)}/h, the limit is {usd_text(limits.most_usd_per_h)}/h"
        reasons.append(Reason(limit="max_hourly", text=text))
    return tuple(reasons)


def against(
    limits: Constraints, time_limit_h: float | None, time_h: Estimate, cost_usd: Estimate | None
) -> tuple[Reason, ...]:
    """Return which limits the whole job breaks, with the numbers.

    A submission's own time limit is a deadline.
    """
    deadline_h = min((x for x in (limits.deadline_h, time_limit_h) if x), default=None)
    held = replace(limits, deadline_h=deadline_h)
    reasons = []
    for limit in broken(held, time_h, cost_usd):
        if limit == "deadline":
            is_own = deadline_h != limits.deadline_h
            name = "time limit of the submission" if is_own else "deadline"
            value, bounds = hours_interval(time_h)
            text = f"takes {value} ({bounds}), the {name} is {hours_text(deadline_h or 0.0)}"
        else:
            assert cost_usd is not None
            value, bounds = usd_interval(cost_usd)
            text = f"costs {value} ({bounds}), the budget is {usd_text(limits.budget_usd or 0.0)}"
        reasons.append(Reason(limit=limit, text=text + _certainty(limits)))
    return tuple(reasons)


def _certainty(limits: Constraints) -> str:
    if limits.confidence is None:
        return ""
    return f", to be kept with {limits.confidence:.0%} certainty"


def _own(job: Job, asked: OwnDevices, limits: Constraints, predictor: Predictor) -> Judged:
    """Judge devices of a cluster that is there."""
    group = one_group(asked.machine, predictor.catalogue)
    per_node, rest = divmod(asked.devices, asked.nodes)
    if rest or not 1 <= per_node <= group.node.devices:
        raise UsageError(
            f"{asked.devices} devices cannot be spread evenly over {asked.nodes} x {group.label}",
            hint=f"ask for 1 to {group.node.devices} devices of each machine",
        )
    try:
        _, time_h = on_own_devices(
            job, group, asked.devices, predictor, limits.coverage, asked.nodes
        )
    except PlanningError as error:
        if error.exit_code != 3:
            raise
        return Judged(asked=asked, reasons=(Reason(limit="machines", text=str(error)),))
    if job.total_source == NO_LENGTH:
        return Judged(asked=asked, note=f"{job.name}: {NO_LENGTH}")
    cost = time_h.scaled(asked.price_usd_per_device_h * asked.devices)
    priced = cost if asked.price_usd_per_device_h else None
    reasons = against(limits, asked.time_limit_h, time_h, priced)
    return Judged(asked=asked, reasons=reasons, training_time_h=time_h, cost_usd=priced)
