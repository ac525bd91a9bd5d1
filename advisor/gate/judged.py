"""What a submission asks for, and each of its machines judged by the limits of a question.

Rented machines are asked of the estimate behind ``predict`` and judged by the rule by which
``recommend`` rejects a row; devices of an own cluster are asked of the estimate by which
``recommend --cluster`` compares them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from advisor.answer import Candidate, CompletionWay, Estimate, Recorded
from advisor.ask import Constraints, Question, layout_space
from advisor.catalogue import OfferFilter, Offers, Pricing, TableRow
from advisor.collectors.errors import counted
from advisor.errors import AdvisorError, CatalogueError, UsageError
from advisor.estimate import Predictor, refusal
from advisor.jobs import NO_LENGTH, Job
from advisor.machines import ClusterGroup, one_group
from advisor.planners.core import PlanningError, select
from advisor.quantities import hours_interval, hours_text, percent_text, usd_interval, usd_text
from advisor.rank import broken
from advisor.simulate import on_own_devices

# What a submission can break: the memory of its machines (and the other reasons of
# ``time_columns.STATUSES`` for which a job has no estimate there), the limits of the question.
Limit = Literal["machines", "budget", "deadline", "max_hourly", "quota"]


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
    committed = limits.committed if asked.pricing == "on-demand" else ()
    wanted = OfferFilter(
        providers=(row.provider,), types=(row.name,), pricing=(asked.pricing, *committed),
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
