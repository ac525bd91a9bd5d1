"""The decision on a submission: whether it passes, and what would.

``judged`` tells of single machines. What would do is the same machines in another number, and the
recommendation under the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

from advisor import api
from advisor.answer import SCHEMA_VERSION, Candidate, Estimate, Named, Prices, Recorded
from advisor.ask import Constraints, Question
from advisor.catalogue import Catalogue
from advisor.collectors.errors import RecordingError
from advisor.collectors.format import Recording
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import Predictor
from advisor.gate.judged import (
    Asked,
    AskedMachines,
    Judged,
    Limit,
    OwnDevices,
    Reason,
    Submission,
    Unclear,
    judged,
)
from advisor.gate.said import joined
from advisor.jobs import NO_LENGTH, Job
from advisor.planners.core import PlanningError
from advisor.planners.layouts import node_counts
from advisor.words import offer_words

LIMITS: Final = ("budget_usd", "deadline_h", "max_hourly_usd", "confidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy(Recorded):
    """What would pass in place of a refused submission, or come nearest to it."""

    # more or fewer of the same machines; what ``recommend`` picks under the limits; what comes
    # nearest to them, where nothing keeps them
    kind: Literal["same_machines", "recommended", "nearest"]
    label: str
    training_time_h: Estimate | None
    cost_usd: Estimate | None
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict(Recorded):
    """What the gate says."""

    renamed: ClassVar[Mapping[str, str]] = {"judged": "submission"}
    written: ClassVar[tuple[str, ...]] = ("passes",)

    schema_version: int = SCHEMA_VERSION
    run: str  # the job; empty where the submission names none
    judged: tuple[Judged, ...]
    # by the names of ``LIMITS``
    limits: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(LIMITS))
    remedies: tuple[Remedy, ...] = ()
    catalogue: Prices = field(default_factory=lambda: Prices(as_of=""))
    predictor: Named = field(default_factory=lambda: Named(name="", version=""))
    note: str = ""

    @property
    def passes(self) -> bool:
        """Whether any of the machines that the scheduler may take passes."""
        return any(one.passes for one in self.judged)


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
    pricings = tuple(dict.fromkeys((*limits.pricings, asked.pricing)))
    within = replace(question, constraints=replace(limits, pricings=pricings))
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


def decide(
    job: Job, submission: Submission, question: Question, *, predictor: Predictor,
    recording: Recording | None = None, is_strict: bool = True,
) -> GateVerdict:  # fmt: skip
    """Judge a submission by the limits of a question.

    ``question``: its constraints are the limits; its layout is kept to; ``recording``: what was
    seen of the job, for the recommendation; ``is_strict``: raise what keeps a submission from
    being judged (an unknown machine, no price); False notes it and lets the submission pass; True
    by default.

    Raises UsageError if a budget or a deadline is set and the length of the job is not known.
    Raises AdvisorError if ``is_strict`` and a machine is unknown, or has no price.
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
        catalogue=Prices.of(one.candidate for one in verdicts),
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


Read = Callable[[Catalogue], Submission]


def judge(
    read: Read, question: Question, *, predictor: Predictor | None = None, is_strict: bool = True
) -> GateVerdict:
    """Judge what is read, about the job that it or the question names; the latest run otherwise.

    ``read``: from the catalogue to the submission.

    Raises AdvisorError if the job or the submission cannot be read; as ``decide`` otherwise.
    """
    known = predictor or Predictor(
        Catalogue.load(question.catalogue, overrides=question.overrides)
    )
    submission = read(known.catalogue)
    asked = joined(question, submission.said)
    job = api.job_of(asked.job, asked.setup, catalogue=lambda: known.catalogue)
    recording = api.recording_of(asked.job)
    return decide(
        job, submission, asked, predictor=known, recording=recording, is_strict=is_strict
    )


def judge_submission(
    read: Read, question: Question, *, predictor: Predictor | None = None, is_strict: bool = False
) -> GateVerdict:
    """Judge what somebody submits elsewhere: what cannot be judged passes, with a note.

    A job has to be named by the submission or the question: the latest run is not meant. Under a
    budget nothing passes that could not be judged, unless it names no job and sets no budget.

    ``is_strict``: refuse all that cannot be judged; False by default.
    """
    has_budget = question.constraints.budget_usd is not None

    def named(catalogue: Catalogue) -> Submission:
        nonlocal has_budget
        found = read(catalogue)
        asked = joined(question, found.said)
        is_named = asked.job.names_a_job or asked.job.is_known_by_runs
        has_budget = asked.constraints.budget_usd is not None and (
            is_named or "budget" in found.said
        )
        if not is_named:
            raise _Unnamed
        return found

    try:
        found = judge(named, question, predictor=predictor, is_strict=False)
    except _Unnamed:
        found = _unclear("the submission does not say which job it is (ADVISOR_RUN, #ADVISOR)")
    except (AdvisorError, PlanningError, RecordingError) as error:
        hint = f"; {error.hint}" if error.hint else ""
        found = _unclear(f"{error}{hint}")
    if is_strict:
        return _refused_where_unclear(found, "machines", "cannot be judged")
    if has_budget:
        return _refused_where_unclear(found, "budget", "cannot be judged, and has a budget")
    return found


class _Unnamed(Exception):  # noqa: N818 # never leaves this module
    """The submission names no job."""


def _unclear(why: str) -> GateVerdict:
    return GateVerdict(
        run="", judged=(Judged(asked=Unclear(label="the submission", why=why), note=why),)
    )


def _refused_where_unclear(found: GateVerdict, limit: Limit, text: str) -> GateVerdict:
    judged = tuple(
        one if one.is_judged else replace(one, reasons=(Reason(limit=limit, text=text),))
        for one in found.judged
    )
    return replace(found, judged=judged)
