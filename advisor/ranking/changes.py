"""What would change the answer: each change is asked of the same estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from advisor.catalogue import Pricing
from advisor.domain import Candidate, Estimate, ProposedChange, Recommendation
from advisor.errors import AdvisorError
from advisor.jobs.job import Job
from advisor.jobs.loading import job_of
from advisor.planners.core.errors import PlanningError
from advisor.predict import Predictor
from advisor.question import JobSpec, SetupRequest
from advisor.ranking.request import Request

# Effects below this on time and cost are not worth a line.
LEAST_EFFECT: Final = 0.05
# Shares of a step from which waiting for data is worth more loader workers.
_INPUT_BOUND: Final = 0.05
_WORKERS: Final = 4


def changes(
    job: Job, request: Request, predictor: Predictor, chosen: Candidate, here: Candidate | None,
    front: Sequence[Candidate] = (),
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what would make the chosen machines faster or cheaper, the largest gain first.

    Parameters
    ----------
    job : Job
    request : Request
    predictor : Predictor
    chosen : Candidate
        Of equal machines.
    here : Candidate or None
        This machine.
    front : sequence of Candidate
        Those it was chosen from.
    """
    if len(chosen.configuration.parts) != 1:
        return ()
    found = [
        change
        for name, do, other, pricing in _candidates(job, request, chosen)
        if (one := _asked(predictor, other, request, chosen, pricing)) is not None
        and _is_worth_a_line(change := _change(name, do, one, chosen))
    ]
    found.sort(key=lambda one: one.time_factor * one.cost_factor)
    return (*_device(job, chosen, here), *_spread(job, chosen, front), *found)


def relaxed(
    request: Request, chosen: Candidate, front: Sequence[Candidate], rejected: Mapping[str, int],
    ask: Callable[[Request], Recommendation],
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what twice the budget and twice the time would buy, where the limits bind.

    Parameters
    ----------
    request : Request
    chosen : Candidate
        The best value.
    front : sequence of Candidate
        Fastest first, under the limits.
    rejected : mapping of str to int
        Candidates by what ruled them out.
    ask : callable
        The same question with other limits.
    """
    found = []
    if request.budget_usd is not None and rejected.get("over_budget"):
        budget = 2.0 * request.budget_usd
        more = ask(replace(request, budget_usd=budget)).front[:1]
        if more and _gains(more[0].training_time_h, front[0].training_time_h):
            found.append(_change("budget", f"--budget {budget:g}", more[0], chosen))
    if request.deadline_h is not None and rejected.get("over_deadline"):
        deadline = 2.0 * request.deadline_h
        more = ask(replace(request, deadline_h=deadline)).front[-1:]
        if more and _gains(more[0].cost_usd, front[-1].cost_usd):
            found.append(_change("deadline", f"--deadline {deadline:g}h", more[0], chosen))
    return tuple(found)


def _gains(then: Estimate, now: Estimate) -> bool:
    return then.value < (1.0 - LEAST_EFFECT) * now.value


def _candidates(
    job: Job, request: Request, chosen: Candidate
) -> Iterator[tuple[str, str, Job, Pricing]]:
    """Yield what could be changed: its name, what to do, the job then, and how it is paid."""
    offer, _ = chosen.configuration.parts[0]
    pricing: Pricing = "spot" if offer.pricing == "spot" else "on-demand"
    if pricing == "on-demand" and request.saves_checkpoints:
        yield "spot", "--spot", job, "spot"
    if job.work is None:
        return
    has_tensor_cores = offer.accelerator is not None
    if job.work.precision == "fp32" and has_tensor_cores:
        do = "train in bf16: torch.autocast(..., dtype=torch.bfloat16)"
        yield "precision", do, job_of(JobSpec(precision="bf16"), job=job), pricing
    if job.work.setup.kernels == "eager" and job.work.transformer is not None:
        compiled = job_of(JobSpec(), SetupRequest(kernels="compiled"), job=job)
        yield "kernels", "compile the model: torch.compile(model)", compiled, pricing
    twice = 2 * job.global_batch
    do = f"--batch {twice}, with the learning rate tuned again"
    yield "batch", do, job_of(JobSpec(batch=twice), job=job), pricing
    if chosen.shares.get("input", 0.0) >= _INPUT_BOUND:
        workers = max(_WORKERS, 2 * job.feed.workers)
        fed = replace(job, feed=replace(job.feed, workers=workers))
        yield "workers", f"load with DataLoader(num_workers={workers})", fed, pricing


def _asked(
    predictor: Predictor, job: Job, request: Request, chosen: Candidate, pricing: Pricing
) -> Candidate | None:
    """Return the job on the chosen machines, in the same region; None where it has no answer."""
    offer, count = chosen.configuration.parts[0]
    try:
        row = predictor.catalogue.instance_type(offer.instance_type, provider=offer.provider)
        offers, place = predictor.cheapest(row, region=offer.region, pricing=pricing)
        if place is None:
            return None
        columns = predictor.step_columns(
            job, np.array([row.index]), np.array([count]), space=request.space,
            known_network=request.known_network,
        )  # fmt: skip
        if columns.status[0]:
            return None
        return predictor.rented(
            job, columns, offers, place, pricing=pricing, coverage=request.coverage,
            space=request.space, known_network=request.known_network,
        )  # fmt: skip
    except (AdvisorError, PlanningError):
        return None


def _change(name: str, do: str, one: Candidate, chosen: Candidate) -> ProposedChange:
    before_h, before_usd = chosen.training_time_h.value, chosen.cost_usd.value
    cost = one.cost_usd.value
    return ProposedChange(
        name=name,
        do=do,
        training_time_h=one.training_time_h,
        cost_usd=one.cost_usd,
        time_factor=one.training_time_h.value / before_h,
        cost_factor=cost / before_usd if before_usd > 0 else 1.0,
    )


def _is_worth_a_line(change: ProposedChange) -> bool:
    """Whether a change makes the job clearly faster or cheaper."""
    return min(change.time_factor, change.cost_factor) < 1.0 - LEAST_EFFECT


def _spread(job: Job, chosen: Candidate, front: Sequence[Candidate]) -> tuple[ProposedChange, ...]:
    """Return what the script needs to train on several devices: the answer assumes it."""
    alone = [one for one in front if one.layout.devices == 1]
    if job.told is None or job.told.spreads or chosen.layout.devices == 1 or not alone:
        return ()
    best = min(alone, key=lambda one: one.training_time_h.value * one.cost_usd.value)
    do = f"needed: DDP or FSDP in the script (advisor plan prints it); without it #{best.rank}"
    return (_change("ddp", do, best, chosen),)


def _device(job: Job, chosen: Candidate, here: Candidate | None) -> tuple[ProposedChange, ...]:
    """Return what the script needs to use an accelerator at all: the answer assumes it."""
    offer, _ = chosen.configuration.parts[0]
    if job.told is None or not job.told.change or offer.accelerator is None or here is None:
        return ()
    return (
        ProposedChange(
            name="device",
            do=f"needed: {job.told.change} ({job.told.reason}); without it, as on this machine",
            training_time_h=here.training_time_h,
            cost_usd=here.cost_usd,
            time_factor=here.training_time_h.value / chosen.training_time_h.value,
            cost_factor=1.0,
        ),
    )
