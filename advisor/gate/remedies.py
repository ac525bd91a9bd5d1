"""What would pass in place of a refused submission."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from advisor import api
from advisor.collectors.recording import Recording
from advisor.domain import Candidate
from advisor.gate.records import Asked, AskedMachines, Judged, OwnDevices, Remedy
from advisor.jobs.described import NO_LENGTH
from advisor.jobs.job import Job
from advisor.planners.layouts.search import node_counts
from advisor.predict import Predictor
from advisor.question import Question
from advisor.words import offer_words

# Own machines tried in place of those that were asked for: up to so many times as many.
_MOST_TIMES = 8


def remedies(
    job: Job, judged: Sequence[Judged], question: Question, predictor: Predictor,
    recording: Recording | None, judge: Callable[[Sequence[Asked]], tuple[Judged, ...]],
) -> tuple[Remedy, ...]:  # fmt: skip
    """Return what would pass, the nearest to what was asked for first."""
    first = judged[0].asked
    found = [] if (same := _same_machines(first, question, judge)) is None else [same]
    if isinstance(first, AskedMachines) and job.total_source != NO_LENGTH:
        found.append(_recommended(job, first, question, predictor, recording))
    return tuple(found)


def _same_machines(
    asked: Asked, question: Question, judge: Callable[[Sequence[Asked]], tuple[Judged, ...]]
) -> Remedy | None:
    """Return the number of the same machines that passes, the cheapest; of equals the fewest."""
    others: list[Asked] = []
    if isinstance(asked, AskedMachines):
        counts = question.constraints.counts
        others = [replace(asked, count=count) for count in counts if count != asked.count]
    elif isinstance(asked, OwnDevices):
        each = asked.devices // asked.nodes
        others = [
            replace(asked, nodes=nodes, devices=nodes * each)
            for nodes in node_counts(_MOST_TIMES * asked.nodes)
            if nodes != asked.nodes
        ]
    passing = [one for one in judge(others) if one.passes and one.is_judged]
    if not passing:
        return None
    best = min(passing, key=_burden)
    return Remedy(
        kind="same_machines", label=best.asked.label, training_time_h=best.training_time_h,
        cost_usd=best.cost_usd, candidate=best.candidate,
    )  # fmt: skip


def _burden(one: Judged) -> tuple[float, int]:
    devices = one.asked.count if isinstance(one.asked, AskedMachines) else 0
    devices = one.asked.devices if isinstance(one.asked, OwnDevices) else devices
    return (0.0 if one.cost_usd is None else one.cost_usd.value), devices


def _recommended(
    job: Job, asked: AskedMachines, question: Question, predictor: Predictor,
    recording: Recording | None,
) -> Remedy:  # fmt: skip
    """Return what ``recommend`` picks under the same limits, or what comes nearest to them."""
    limits = question.constraints
    deadline_h = min((x for x in (limits.deadline_h, asked.time_limit_h) if x), default=None)
    pricings = tuple(dict.fromkeys((*limits.pricings, asked.pricing)))
    within = replace(
        question, constraints=replace(limits, pricings=pricings, deadline_h=deadline_h)
    )
    answer = api.ranked(job, within, predictor=predictor, recording=recording, with_changes=False)
    pick = answer.picks.get("best_value")
    if pick == "here" and answer.here is not None:
        return _remedy("recommended", answer.here, "this machine")
    chosen = next((one for one in answer.front if one.rank == pick), None)
    if chosen is not None:
        return _remedy("recommended", chosen, offer_words(chosen.to_record()["configuration"]))
    if not answer.nearest:
        return Remedy(kind="nearest", label="", training_time_h=None, cost_usd=None)
    near = answer.nearest[0]
    return _remedy("nearest", near, offer_words(near.to_record()["configuration"]))


def _remedy(kind: str, one: Candidate, label: str) -> Remedy:
    return Remedy(
        kind="nearest" if kind == "nearest" else "recommended", label=label,
        training_time_h=one.training_time_h, cost_usd=one.cost_usd, candidate=one,
    )  # fmt: skip
