"""The one noun of an answer: a job on groups of machines, and what it takes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from advisor import words
from advisor.answer.estimate import Estimate
from advisor.answer.offers import Alternative, Bill, CompletionWay, Configuration, Fact, Part
from advisor.answer.records import Recorded
from advisor.planners.core.nouns import Layout
from advisor.show import notebook

Bottleneck = Literal[
    "compute", "memory", "network", "input", "launch", "pipeline", "offload"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Share of the devices' arithmetic that is useful.

    ``fraction`` is model flop (no recomputation) per second over the peak: MFU;
    ``peak_flop_per_s`` the dense datasheet peak of one device in ``precision``, that of the
    products there.
    """

    fraction: float
    peak_flop_per_s: float
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUnits:
    """A step and its whole job in the units of people who train transformers.

    Tokens are None where samples are not text and otherwise of all devices together;
    ``utilisation`` is None where the peak is unknown or the devices are of several kinds,
    ``accelerator_hours`` [h] where the length is.
    """

    tokens_per_step: float | None
    tokens_per_s: float | None
    utilisation: Utilisation | None
    accelerator_hours: float | None
    total_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Recorded):
    """What to run on one group's machines, and the files it needs beside it."""

    renamed: ClassVar[Mapping[str, str]] = {"text": "command"}

    group: str
    text: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Recorded):
    """A way to run a job on one group of machines or several, and what it takes.

    ``predict``, ``plan`` and ``recommend`` answer with it.

    Attributes
    ----------
    job, name : str
        The job's name, and what the way is called among others on the same machines.
    way : str
        How the job is trained: a name of ``ways.columns.WAYS``, or of a way over unlike machines.
    rank : int
        Place in the list, from 1.
    devices : int
        That compute, in all groups.
    layout : Layout
        Of the ranks, or of the first group's.
    layouts, memory_gib_by_group : mapping
        By the groups' names where machines were given, each group's layout (none where ranks are
        not equal) and the fullest device. [GiB]
    step_time_s, throughput_samples_per_s : Estimate
        Of one optimizer step over all devices.
    training_time_h, cost_usd : Estimate or None
        Of the whole job; None where its length, or a price, is not known.
    memory_gib, device_memory_gib : float, float or None
        Needed on the fullest device, and there on one where that is known. [GiB]
    runs_as : str or None
        Precision of the large products there, where it was asked for.
    shares : mapping of str to float
        Shares of the step by what it waits for (``Bottleneck``, or parts of a way's own).
    reasons, notes : tuple of str
        Why it stands here, and what a user should know of the job beside the numbers.
    is_extrapolating : bool
        The estimate leaves what its models were fitted on.
    is_learned : bool
        A model that was learned from runs has corrected its step.
    is_network_assumed : bool
        Nobody states the network between the machines; a low value is assumed.
    breakdown : mapping of str to Part
        Where the expected time and cost go; the parts sum to both.
    late_probability : float or None
        That the deadline is missed; None where none was given.
    on_demand_time_h, on_demand_cost_usd : Estimate or None
        Of the same machines on demand, where the job is on spot ones and they are sold so.
    cost_direct_usd : Estimate or None
        The cost of the steps alone as a model predicts it from runs, with no time in between;
        None where it has not seen such jobs and machines.
    goodput_fraction : float or None
        Share of the time that is steps: the rest is checkpoints, failures and restarts.
    completion : CompletionWay
        What the job runs on until it is done.
    bills : tuple of Bill
        The machines' expected bill by price; empty where nothing is rented.
    units : TrainingUnits or None
        None where the job is no transformer.
    alternatives : tuple of Alternative
        Machines that the model cannot tell apart from these, nearest first.
    sources : tuple of Fact
        The numbers that the estimate rests on, and where each is from, where asked for.
    commands : tuple of Command
        How to run it, where asked for; empty where no released framework does.
    details : mapping
        What else a way has to say: layers by stage, batches by device, ...
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "is_extrapolating": "extrapolating",
        "is_learned": "learned",
        "is_network_assumed": "network_assumed",
    }

    job: str = ""
    name: str = ""
    way: str = ""
    rank: int = 1
    configuration: Configuration
    completion: CompletionWay = "on-demand"
    bills: tuple[Bill, ...] = ()
    devices: int = 1
    layout: Layout
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    step_time_s: Estimate
    throughput_samples_per_s: Estimate
    units: TrainingUnits | None = None
    training_time_h: Estimate | None = None
    cost_usd: Estimate | None = None
    cost_direct_usd: Estimate | None = None
    breakdown: Mapping[str, Part] = field(default_factory=dict)
    goodput_fraction: float | None = None
    late_probability: float | None = None
    on_demand_time_h: Estimate | None = None
    on_demand_cost_usd: Estimate | None = None
    memory_gib: float
    memory_gib_by_group: Mapping[str, float] = field(default_factory=dict)
    device_memory_gib: float | None = None
    runs_as: str | None = None
    bottleneck: Bottleneck | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_extrapolating: bool = False
    is_learned: bool = False
    is_network_assumed: bool = False
    alternatives: tuple[Alternative, ...] = ()
    sources: tuple[Fact, ...] = ()
    commands: tuple[Command, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machines(self) -> dict[str, int]:
        """How many machines it uses, by what they are called."""
        return {offer.instance_type: count for offer, count in self.configuration.parts}

    def __repr__(self) -> str:
        """Say in one line what is run on, for how long and how much."""
        return f"<{type(self).__name__} {words.answer_line(self.to_record())}>"

    def _repr_html_(self) -> str:
        return notebook.html(notebook.answers_frame([self.to_record()]))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Candidate(Answer):
    """An answer that can be ranked: the whole job's time and cost are known."""

    training_time_h: Estimate
    cost_usd: Estimate
    bottleneck: Bottleneck
