"""A configuration with the layout on it, and what a job would take there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from advisor.domain.estimate import Estimate
from advisor.domain.facts import Fact
from advisor.domain.offers import Alternative, Bill, CompletionWay, Configuration, Part
from advisor.planners.core.nouns import Layout
from advisor.shown import frames, words

Bottleneck = Literal[
    "compute", "memory", "network", "input", "launch", "pipeline", "offload"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """How much of a device's arithmetic is useful.

    Attributes
    ----------
    fraction : float
        Model flop (no recomputation) per second over the peak: MFU.
    peak_flop_per_s : float
        Dense datasheet peak of one device in ``precision``. [flop/s]
    precision : str
        What the products run in on the device.
    """

    fraction: float
    peak_flop_per_s: float
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUnits:
    """A step and its whole job in the units of people who train transformers.

    Attributes
    ----------
    tokens_per_step : float or None
        None, as the other tokens, where samples are not text.
    tokens_per_s : float or None
        Of all devices together. [tokens/s]
    utilisation : Utilisation or None
        None where the device's peak is unknown, or the devices are of several kinds.
    accelerator_hours : float or None
        Accelerators times hours of the whole job; None where its length is unknown. [h]
    total_tokens : float or None
        Of the whole job.
    """

    tokens_per_step: float | None
    tokens_per_s: float | None
    utilisation: Utilisation | None
    accelerator_hours: float | None
    total_tokens: float | None

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration, a layout on it, and what the job would take.

    Attributes
    ----------
    rank : int
        Place in the list, from 1.
    step_time_s, throughput_samples_per_s, training_time_h, cost_usd : Estimate
    memory_gib : float
        Needed on the fullest device. [GiB]
    bottleneck : Bottleneck
    shares : mapping of Bottleneck to float
        Shares of the step by what it waits for; they sum to 1.
    reasons : tuple of str
        Why it stands here, in words.
    is_extrapolating : bool
        The estimate leaves what its models were fitted on.
    way : str
        How the job is trained: a name of ``ways.columns.WAYS``, or of a way over unlike machines.
    breakdown : mapping of str to Part
        Where the expected time and cost go; the parts sum to both.
    is_learned : bool
        A model that was learned from runs covers the candidate and has corrected its step.
    is_network_assumed : bool
        Nobody states the network between the machines; a low value is assumed.
    late_probability : float or None
        That the deadline is missed; None where none was given.
    on_demand_time_h, on_demand_cost_usd : Estimate or None
        Of the same machines on demand, where the candidate is on spot ones and they are sold so.
    completion : CompletionWay
        What the job runs on until it is done.
    bills : tuple of Bill
        The machines' expected bill by price; what is paid besides is in ``breakdown``.
    units : TrainingUnits or None
        Tokens, utilisation and accelerator-hours; None where the job is no transformer.
    alternatives : tuple of Alternative
        Machines that the model cannot tell apart from these, nearest first.
    facts : tuple of Fact
        The numbers that the estimate rests on, and where each is from; empty unless asked for.
    """

    rank: int
    configuration: Configuration
    layout: Layout
    step_time_s: Estimate
    throughput_samples_per_s: Estimate
    training_time_h: Estimate
    cost_usd: Estimate
    memory_gib: float
    bottleneck: Bottleneck
    shares: Mapping[Bottleneck, float]
    reasons: tuple[str, ...]
    is_extrapolating: bool
    way: str
    breakdown: Mapping[str, Part] = field(default_factory=dict)
    is_learned: bool = False
    is_network_assumed: bool = False
    late_probability: float | None = None
    on_demand_time_h: Estimate | None = None
    on_demand_cost_usd: Estimate | None = None
    completion: CompletionWay = "on-demand"
    bills: tuple[Bill, ...] = ()
    units: TrainingUnits | None = None
    alternatives: tuple[Alternative, ...] = ()
    facts: tuple[Fact, ...] = ()

    def __repr__(self) -> str:
        """Say in one line what would be rented, for how long and how much."""
        return f"<Candidate {words.candidate_line(self.to_record())}>"

    def _repr_html_(self) -> str:
        return frames.html(frames.candidates_frame([self.to_record()]))

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form (field names are kept within a schema version)."""
        return {
            "rank": self.rank,
            "configuration": [offer.to_record(count) for offer, count in self.configuration.parts],
            "completion": self.completion,
            "bills": [bill.to_record() for bill in self.bills],
            "way": self.way,
            "layout": self.layout.to_record(),
            "step_time_s": self.step_time_s.to_record(),
            "throughput_samples_per_s": self.throughput_samples_per_s.to_record(),
            "units": self.units and self.units.to_record(),
            "training_time_h": self.training_time_h.to_record(),
            "cost_usd": self.cost_usd.to_record(),
            "breakdown": {name: asdict(part) for name, part in self.breakdown.items()},
            "late_probability": self.late_probability,
            "on_demand_time_h": self.on_demand_time_h and self.on_demand_time_h.to_record(),
            "on_demand_cost_usd": self.on_demand_cost_usd and self.on_demand_cost_usd.to_record(),
            "memory_gib": self.memory_gib,
            "bottleneck": self.bottleneck,
            "shares": dict(self.shares),
            "reasons": list(self.reasons),
            "extrapolating": self.is_extrapolating,
            "learned": self.is_learned,
            "network_assumed": self.is_network_assumed,
            "alternatives": [one.to_record() for one in self.alternatives],
            "facts": [one.to_record() for one in self.facts],
        }
