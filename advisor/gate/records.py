"""What is submitted, and what the gate says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from advisor.catalogue import Pricing
from advisor.domain import (
    SCHEMA_VERSION,
    Candidate,
    CompletionWay,
    Estimate,
    Named,
    Prices,
    Recorded,
)

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
    """What would pass in place of a refused submission, or come nearest to it.

    Attributes
    ----------
    kind : {"same_machines", "recommended", "nearest"}
        More or fewer of the same machines; what ``recommend`` picks under the limits; what comes
        nearest to them, where nothing keeps them.
    """

    kind: Literal["same_machines", "recommended", "nearest"]
    label: str
    training_time_h: Estimate | None
    cost_usd: Estimate | None
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict(Recorded):
    """What the gate says.

    Attributes
    ----------
    run : str
        The job; empty where the submission names none.
    limits : mapping of str to float or None
        By the names of ``LIMITS``.
    """

    renamed: ClassVar[Mapping[str, str]] = {"judged": "submission"}
    written: ClassVar[tuple[str, ...]] = ("passes",)

    schema_version: int = SCHEMA_VERSION
    run: str
    judged: tuple[Judged, ...]
    limits: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(LIMITS))
    remedies: tuple[Remedy, ...] = ()
    catalogue: Prices = field(default_factory=lambda: Prices(as_of=""))
    predictor: Named = field(default_factory=lambda: Named(name="", version=""))
    note: str = ""

    @property
    def passes(self) -> bool:
        """Whether any of the machines that the scheduler may take passes."""
        return any(one.passes for one in self.judged)
