"""What is submitted, and what the gate says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from advisor.catalogue import Pricing
from advisor.domain import SCHEMA_VERSION, Candidate, CompletionWay, Estimate

# What a submission can break: the memory of its machines (and the other reasons of
# ``ways.columns.STATUSES`` for which a job has no estimate there), the limits of the question.
Limit = Literal["machines", "budget", "deadline", "max_hourly", "quota"]
LIMITS: Final = ("budget_usd", "deadline_h", "max_hourly_usd", "confidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedMachines:
    """Machines of the catalogue that a submission would rent.

    Attributes
    ----------
    instance_type : str
        As ``"g5.xlarge"`` or ``"aws:g5.xlarge"``.
    count : int
    provider, region : str or None
        None leaves it open: the cheapest.
    completion : CompletionWay
        What the job runs on until it is done.
    time_limit_h : float or None
        When the submission is ended, done or not. [h]
    note : str
        How the submission was understood, where it left the machine open.
    """

    instance_type: str
    count: int = 1
    provider: str | None = None
    region: str | None = None
    completion: CompletionWay = "on-demand"
    time_limit_h: float | None = None
    note: str = ""

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
    """Devices of a cluster that is there already.

    Attributes
    ----------
    machine : str
        One machine, as ``--cluster`` takes it: ``"8xA100-80GB:nvlink@200Gbps"``.
    devices, nodes : int
        Asked for: the devices of all machines, spread over them evenly.
    price_usd_per_device_h : float
        [USD/h]
    time_limit_h : float or None
        When the submission is ended, done or not. [h]
    """

    machine: str
    devices: int
    nodes: int = 1
    price_usd_per_device_h: float = 0.0
    time_limit_h: float | None = None

    @property
    def label(self) -> str:
        """The devices in words."""
        machines = "machine" if self.nodes == 1 else "machines"
        return f"{self.devices} devices on {self.nodes} {machines} of {self.machine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """A submission that cannot be judged, and why."""

    label: str
    why: str


Asked = AskedMachines | OwnDevices | Unclear


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What was submitted.

    Attributes
    ----------
    asked : tuple of Asked
        One, or several of which the scheduler may take any.
    said : mapping of str to object
        What the submission says of its job and its own limits, by the names of a question.
    """

    asked: tuple[Asked, ...]
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing against a submission: the limit that it breaks, and how, in words."""

    limit: Limit
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What holds for one of the machines that were asked for.

    Attributes
    ----------
    asked : Asked
    reasons : tuple of Reason
        Why they are refused; empty where they pass.
    candidate : Candidate or None
        Of rented machines that can run the job, where its length is known.
    training_time_h, cost_usd : Estimate or None
        Of the whole job.
    note : str
        Why they were not judged, or how the submission was understood.
    """

    asked: Asked
    reasons: tuple[Reason, ...] = ()
    candidate: Candidate | None = None
    training_time_h: Estimate | None = None
    cost_usd: Estimate | None = None
    note: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether the machines could be judged at all."""
        return not isinstance(self.asked, Unclear)

    @property
    def passes(self) -> bool:
        """Whether nothing is against them."""
        return not self.reasons

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "asked": self.asked.label,
            "judged": self.is_judged,
            "passes": self.passes,
            "reasons": [asdict(reason) for reason in self.reasons],
            "training_time_h": self.training_time_h and self.training_time_h.to_record(),
            "cost_usd": self.cost_usd and self.cost_usd.to_record(),
            "candidate": self.candidate and self.candidate.to_record(),
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What would pass in place of a refused submission, or come nearest to it.

    Attributes
    ----------
    kind : {"same_machines", "recommended", "nearest"}
        More or fewer of the same machines; what ``recommend`` picks under the limits; what comes
        nearest to them, where nothing keeps them.
    label : str
        The machines in words.
    training_time_h, cost_usd : Estimate or None
    candidate : Candidate or None
        Where it is rented.
    """

    kind: Literal["same_machines", "recommended", "nearest"]
    label: str
    training_time_h: Estimate | None
    cost_usd: Estimate | None
    candidate: Candidate | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "kind": self.kind,
            "label": self.label,
            "training_time_h": self.training_time_h and self.training_time_h.to_record(),
            "cost_usd": self.cost_usd and self.cost_usd.to_record(),
            "candidate": self.candidate and self.candidate.to_record(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """What the gate says.

    Attributes
    ----------
    run : str
        The job; empty where the submission names none.
    judged : tuple of Judged
        In the order of the submission.
    limits : mapping of str to float or None
        That hold: ``LIMITS``.
    remedies : tuple of Remedy
        Where it is refused.
    catalogue_as_of, predictor, predictor_version : str
    note : str
        What holds for all.
    """

    run: str
    judged: tuple[Judged, ...]
    limits: Mapping[str, float | None] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    catalogue_as_of: str = ""
    predictor: str = ""
    predictor_version: str = ""
    note: str = ""

    @property
    def passes(self) -> bool:
        """Whether any of the machines that the scheduler may take passes."""
        return any(one.passes for one in self.judged)

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record of ``advisor gate --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.run,
            "passes": self.passes,
            "limits": {name: self.limits.get(name) for name in LIMITS},
            "submission": [one.to_record() for one in self.judged],
            "remedies": [one.to_record() for one in self.remedies],
            "catalogue": {"as_of": self.catalogue_as_of},
            "predictor": {"name": self.predictor, "version": self.predictor_version},
            "note": self.note,
        }
