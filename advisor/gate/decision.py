"""The decision on a submission: whether it passes, and what would.

Rented machines are asked of the estimate behind ``predict`` and judged by the rule by which
``recommend`` rejects a row; devices of an own cluster are asked of the estimate by which
``recommend --cluster`` compares them. What would do is the recommendation under the same limits.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np

from advisor import api
from advisor.answer import (
    SCHEMA_VERSION,
    Candidate,
    CompletionWay,
    Estimate,
    Named,
    Prices,
    Recorded,
)
from advisor.ask import Constraints, Question, layout_space
from advisor.catalogue import Catalogue, OfferFilter, Offers, Pricing, TableRow
from advisor.collectors.errors import RecordingError, counted
from advisor.collectors.format import Recording
from advisor.errors import AdvisorError, CatalogueError, UsageError
from advisor.estimate import Predictor, refusal
from advisor.gate.said import joined
from advisor.jobs import NO_LENGTH, Job
from advisor.machines import ClusterGroup, one_group
from advisor.planners.core import PlanningError, select
from advisor.planners.layouts import node_counts
from advisor.quantities import hours_interval, hours_text, percent_text, usd_interval, usd_text
from advisor.rank import broken
from advisor.simulate import on_own_devices
from advisor.words import offer_words

# What a submission can break: the memory of its machines (and the other reasons of
# ``time_columns.STATUSES`` for which a job has no estimate there), the limits of the question.
Limit = Literal["machines", "budget", "deadline", "max_hourly", "quota"]
LIMITS: Final = ("budget_usd", "deadline_h", "max_hourly_usd", "confidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedMachines:
    """Machines of the catalogue that a submission would rent."""

    instance_type: str  # as ``"g5.xlarge"`` or ``"aws:g5.xlarge"``
    count: int = 1
    # provider, region: none leaves it open: the cheapest
    provider: str | None = None
    region: str | None = None
    completion: CompletionWay = "on-demand"  # what the job runs on until it is done
    note: str = ""  # how the submission was understood, where it left the machine open

    @classmethod
    def named(cls, name: str, count: int, completion: CompletionWay | None) -> Submission:
        """Return the submission of machines that are named: ``"g5.xlarge"``, ``"aws:..."``."""
        provider, _, own = name.rpartition(":")
        asked = cls(
            instance_type=own, count=count, provider=provider or None,
            completion=completion or "on-demand",
        )  # fmt: skip
        return Submission(asked=(asked,))

    @property
    def pricing(self) -> Pricing:
        """How the machines are paid at first."""
        return "on-demand" if self.completion == "on-demand" else "spot"

    @property
    def label(self) -> str:
        """The machines in words."""
        name = self.instance_type.rpartition(":")[2]
        provider = self.provider or self.instance_type.rpartition(":")[0]
        words = f"{self.count} x {provider + ' ' if provider else ''}{name}"
        place = ", ".join(x for x in (self.region, self.completion) if x and x != "on-demand")
        return f"{words} ({place})" if place else words


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDevices:
    """Devices of a cluster that is there already."""

    machine: str  # one machine, as ``--cluster`` takes it: ``"8xA100-80GB:nvlink@200Gbps"``
    # devices, nodes: asked for: the devices of all machines, spread over them evenly
    devices: int
    nodes: int = 1
    price_usd_per_device_h: float = 0.0  # [USD/h]
    time_limit_h: float | None = None  # when the submission is ended, done or not [h]

    @property
    def label(self) -> str:
        """The devices in words."""
        machines = counted(self.nodes, "machine")
        return f"{counted(self.devices, 'device')} on {machines} of {self.machine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """A submission that cannot be judged, and why."""

    label: str
    why: str


Asked = AskedMachines | OwnDevices | Unclear


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What was submitted."""

    asked: tuple[Asked, ...]  # one, or several of which the scheduler may take any
    # what the submission says of its job and its own limits, by the names of a question
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing against a submission: the limit that it breaks, and how, in words."""

    limit: Limit
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Recorded):
    """What holds for one of the machines that were asked for.

    ``reasons`` say why they are refused; time and cost are of the whole job, ``candidate`` is of
    rented machines that can run a job of known length; ``note`` says why they were not judged, or
    how the submission was understood.
    """

    renamed: ClassVar[Mapping[str, str]] = {"asked": "", "label": "asked", "is_judged": "judged"}
    written: ClassVar[tuple[str, ...]] = ("label", "is_judged", "passes")

    asked: Asked
    reasons: tuple[Reason, ...] = ()
    candidate: Candidate | None = None
    training_time_h: Estimate | None = None
    cost_usd: Estimate | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The machines in words."""
        return self.asked.label

    @property
    def is_judged(self) -> bool:
        """Whether the machines could be judged at all."""
        return not isinstance(self.asked, Unclear)

    @property
    def passes(self) -> bool:
        """Whether nothing is against them."""
        return not self.reasons


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
        case = None if job.work is None else predictor.case(
            job, space=space, known_network=limits.known_network
        )  # fmt: skip
        why = refusal(case, columns, 0)
        reason = Reason(limit="machines", text=f"{why}; {why.hint}")
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
    reasons += against(limits, None, time_h, cost)
    return Judged(
        asked=asked, reasons=reasons, candidate=candidate, training_time_h=time_h,
        cost_usd=cost, note=asked.note,
    )  # fmt: skip


def _offers(
    asked: AskedMachines, row: TableRow, limits: Constraints, predictor: Predictor
) -> tuple[Offers, tuple[Reason, ...]]:
    """Return the offers of a type, cheapest first, and what the limits have against them all."""
    region = asked.region or limits.region
    wanted = OfferFilter(
        providers=(row.provider,), types=(row.name,), pricing=(asked.pricing,),
        regions=(region,) if region else (), is_dated=limits.is_dated,
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


def _rates(asked: AskedMachines, offers: Offers, limits: Constraints) -> tuple[Reason, ...]:
    """Return what quota and hourly limit have against so many machines of the cheapest offer."""
    reasons = []
    most = float(offers.max_instances[0])
    if asked.count > most:
        text = f"{counted(asked.count, 'machine')}, your quota is {most:g}"
        reasons.append(Reason(limit="quota", text=text))
    return (*reasons, *_over_hourly(float(offers.price_usd_per_h[0]) * asked.count, limits))


def _over_hourly(hourly_usd: float, limits: Constraints) -> tuple[Reason, ...]:
    if hourly_usd <= limits.most_usd_per_h:
        return ()
    text = f"{usd_text(hourly_usd)}/h, the limit is {usd_text(limits.most_usd_per_h)}/h"
    return (Reason(limit="max_hourly", text=text),)


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
            value, bounds = hours_interval(time_h.to_record())
            text = f"takes {value} ({bounds}), the {name} is {hours_text(deadline_h or 0.0)}"
        else:
            assert cost_usd is not None
            value, bounds = usd_interval(cost_usd.to_record())
            text = f"costs {value} ({bounds}), the budget is {usd_text(limits.budget_usd or 0.0)}"
        reasons.append(Reason(limit=limit, text=text + _certainty(limits)))
    return tuple(reasons)


def _certainty(limits: Constraints) -> str:
    if limits.confidence is None:
        return ""
    return f", to be kept with {percent_text(limits.confidence)} certainty"


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
    hourly = _hourly_usd(asked, group)
    reasons = _of_prices(hourly, limits)
    if job.total_source == NO_LENGTH:
        return Judged(asked=asked, reasons=reasons, note=f"{job.name}: {NO_LENGTH}")
    cost = None if hourly is None else time_h.scaled(hourly)
    reasons += against(limits, asked.time_limit_h, time_h, cost)
    return Judged(asked=asked, reasons=reasons, training_time_h=time_h, cost_usd=cost)


def _hourly_usd(asked: OwnDevices, group: ClusterGroup) -> float | None:
    """Return what devices cost: by the cluster's price, or as whole rented machines [USD/h]."""
    if asked.price_usd_per_device_h:
        return asked.price_usd_per_device_h * asked.devices
    return None if group.price_usd_per_h is None else group.price_usd_per_h * asked.nodes


def _of_prices(hourly: float | None, limits: Constraints) -> tuple[Reason, ...]:
    """Return what the hourly limit has against a price, and every limit against none."""
    if hourly is not None:
        return _over_hourly(hourly, limits)
    held: tuple[tuple[Limit, float | None, str], ...] = (
        ("budget", limits.budget_usd, "budget"),
        ("max_hourly", limits.max_hourly_usd, "hourly limit"),
    )
    return tuple(
        Reason(limit=limit, text=f"has no price to judge the {name} of {usd_text(most)} by: "
               "say it with --cluster-price (USD per device and hour)")
        for limit, most, name in held
        if most is not None
    )  # fmt: skip


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
