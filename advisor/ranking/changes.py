"""What would change the answer: each change is asked of the same estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from advisor.advice import Advice, Facts, advise
from advisor.advice.asking import facts_on
from advisor.collectors.recording import Recording
from advisor.domain import Candidate, Estimate, ProposedChange, Recommendation
from advisor.jobs.job import Job
from advisor.predict import Predictor
from advisor.ranking.request import Request

# The same question of another job.
AskAgain = Callable[[Job], Recommendation]
# Effects below this on time and cost are not worth a line.
LEAST_EFFECT: Final = 0.05


def changes(
    job: Job, request: Request, predictor: Predictor, chosen: Candidate, here: Candidate | None,
    front: Sequence[Candidate] = (), *, recording: Recording | None = None,
    ask: AskAgain | None = None,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what would make the chosen machines faster or cheaper, the largest gain first.

    Parameters
    ----------
    recording : Recording, optional
        What was seen of the job: more cures can be shown to apply.
    ask : callable, optional
        The same question of another job: the strongest change then says which machines are the
        best value after it.
    """
    if len(chosen.configuration.parts) != 1:
        return ()
    facts = facts_on(predictor, job, chosen, recording, constraints=request)
    advice = advise(facts)
    found = [change for one in advice if (change := _proposed(one, facts)) is not None]
    if ask is not None and found:
        found[0] = _repicked(found[0], advice, facts, ask)
    return (*_device(job, chosen, here), *_spread(job, chosen, front), *found)


def relaxed(
    request: Request, chosen: Candidate, front: Sequence[Candidate], rejected: Mapping[str, int],
    ask: Callable[[Request], Recommendation],
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what twice the budget and twice the time would buy, where the limits bind.

    Parameters
    ----------
    rejected : mapping of str to int
        Candidates by what ruled them out.
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


def _proposed(one: Advice, facts: Facts) -> ProposedChange | None:
    """Return a cure that makes the job clearly faster or cheaper as a change of the answer."""
    if min(one.time_factor, one.cost_factor) >= 1.0 - LEAST_EFFECT:
        return None
    words = one.change.removesuffix(".")
    do = words[:1].lower() + words[1:]
    if one.then is not None:
        return _change(one.name, do, one.then, facts.now)
    return ProposedChange(
        name=one.name,
        do=do,
        training_time_h=facts.now.training_time_h.scaled(one.time_factor),
        cost_usd=facts.now.cost_usd.scaled(one.cost_factor),
        time_factor=one.time_factor,
        cost_factor=one.cost_factor,
    )


def _repicked(
    change: ProposedChange, found: Sequence[Advice], facts: Facts, ask: AskAgain
) -> ProposedChange:
    """Return the change with the best value after it, where that is on other machines."""
    job = next(one.job for one in found if one.name == change.name)
    if job is None or job is facts.job:
        return change
    answer = ask(job)
    rank = answer.picks.get("best_value")
    pick = next((one for one in answer.front if one.rank == rank), None)
    if pick is None or _machines(pick) == _machines(facts.now):
        return change
    return replace(change, pick=pick)


def _machines(one: Candidate) -> tuple[tuple[str, str, str, int], ...]:
    parts = one.configuration.parts
    return tuple((o.provider, o.instance_type, o.pricing, count) for o, count in parts)


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
