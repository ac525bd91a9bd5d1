"""The one noun of an answer: a job on groups of machines, and what it takes, in intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from advisor import show
from advisor.answer.json_records import Recorded
from advisor.answer.offers import Alternative, Bill, CompletionWay, Configuration, Fact, Part
from advisor.planners.core import Layout
from advisor.quantities import QUANTILES, percent_text
from advisor.words import answer_line

Bottleneck = Literal[
    "compute", "memory", "network", "input", "copy", "launch", "pipeline", "offload"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Recorded):
    """A predicted quantity with its prediction interval, all in the same unit.

    ``coverage`` is the nominal probability that the truth lies in [low, high].
    """

    value: float
    low: float
    high: float
    coverage: float = 0.9

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"not low <= value <= high: {self}")
        if not 0 < self.coverage < 1:
            raise ValueError(f"coverage must be in (0, 1), got {self.coverage}")

    def __repr__(self) -> str:
        """Say the value and its interval.

        Examples
        --------
        >>> Estimate(value=10.0, low=8.0, high=15.0)
        <Estimate 10 (8-15, 90 %)>
        """
        share = percent_text(self.coverage)
        return f"<Estimate {self.value:.4g} ({self.low:.4g}-{self.high:.4g}, {share})>"

    @classmethod
    def lognormal(cls, value: float, log_sd: float, coverage: float = 0.9) -> Estimate:
        """Return the interval of a positive quantity whose logarithm errs by ``log_sd``.

        Examples
        --------
        >>> round(Estimate.lognormal(10.0, 0.1).high, 2)
        11.79
        """
        spread = math.exp(QUANTILES[coverage] * log_sd)
        return cls(value=value, low=value / spread, high=value * spread, coverage=coverage)

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of ``factor`` (positive) times the quantity."""
        return Estimate(
            value=self.value * factor,
            low=self.low * factor,
            high=self.high * factor,
            coverage=self.coverage,
        )

    def above(self, limit: float) -> float:
        """Return the probability of more than ``limit``: half a log-normal on each side.

        What costs nothing is above no limit but a negative one.

        Examples
        --------
        >>> round(Estimate(value=10.0, low=8.0, high=15.0, coverage=0.9).above(15.0), 3)
        0.05
        """
        if limit <= 0 or self.high <= 0:
            return float(self.high > limit)
        from statistics import NormalDist  # seldom asked

        bound = self.high if limit >= self.value else self.low
        if bound == self.value:
            return float(limit < self.value)
        reach = NormalDist().inv_cdf(0.5 + self.coverage / 2)
        sds = reach * math.log(limit / self.value) / abs(math.log(bound / self.value))
        return 1.0 - NormalDist().cdf(sds)


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
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "is_extrapolating": "extrapolating",
        "is_learned": "learned",
        "is_network_assumed": "network_assumed",
    }
    written: ClassVar[tuple[str, ...]] = ("usd_per_million",)

    # job, name: the job's name, and what the way is called among others on the same machines
    job: str = ""
    name: str = ""
    # how the job is trained: a way of ``estimate.ways``, or one over unlike machines
    way: str = ""
    rank: int = 1  # place in the list, from 1
    configuration: Configuration
    completion: CompletionWay = "on-demand"  # what the job runs on until it is done
    # the machines' expected bill by price; empty where nothing is rented
    bills: tuple[Bill, ...] = ()
    devices: int = 1  # that compute, in all groups
    layout: Layout  # of the ranks, or of the first group's
    framework: str = ""  # that runs the layout: ``"DDP"``; empty where nothing special is needed
    # layouts, memory_gib_by_group: by the groups' names where machines were given, each group's
    # layout (none where ranks are not equal) and the fullest device [GiB]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    # step_time_s, throughput_samples_per_s: of one optimizer step over all devices
    step_time_s: Estimate
    throughput_samples_per_s: Estimate
    units: TrainingUnits | None = None  # none where the job is no transformer
    # training_time_h, cost_usd: of the whole job; None where its length, or a price, is not known
    training_time_h: Estimate | None = None
    cost_usd: Estimate | None = None
    # optimizer steps that are finished in the time that was asked for; None where none was
    steps_within: Estimate | None = None
    # the cost of the steps alone as a model predicts it from runs, with no time in between; None
    # where it has not seen such jobs and machines
    cost_direct_usd: Estimate | None = None
    # where the expected time and cost go; the parts sum to both
    breakdown: Mapping[str, Part] = field(default_factory=dict)
    # of all machines: processor time beyond their baselines [USD/h]
    surplus_usd_per_h: float = 0.0
    # share of the time that is steps: the rest is checkpoints, failures and restarts
    goodput_fraction: float | None = None
    late_probability: float | None = None  # that the deadline is missed; None where none was given
    # on_demand_time_h, on_demand_cost_usd: of the same machines on demand, where the job is on
    # spot ones and they are sold so
    on_demand_time_h: Estimate | None = None
    on_demand_cost_usd: Estimate | None = None
    # memory_gib, device_memory_gib, kept_free_gib: needed on the fullest device, what one has, and
    # what of that no layout may fill; None where devices are unlike, or not known [GiB]
    memory_gib: float
    memory_gib_by_group: Mapping[str, float] = field(default_factory=dict)
    device_memory_gib: float | None = None
    kept_free_gib: float | None = None
    # of the fullest device: bytes by term, with their equations; what is read of them by each
    # definition, with an interval; and how likely it fits. Empty where no ledger is kept [GiB]
    memory: Mapping[str, Any] = field(default_factory=dict)
    runs_as: str | None = None  # precision of the large products there, where it was asked for
    bottleneck: Bottleneck | None = None
    # shares of the step by what it waits for (``Bottleneck``, or parts of a way's own)
    shares: Mapping[str, float] = field(default_factory=dict)
    # reasons, notes: why it stands here, and what a user should know of the job beside the numbers
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_extrapolating: bool = False  # the estimate leaves what its models were fitted on
    is_learned: bool = False  # a model that was learned from runs has corrected its step
    # nobody states the network between the machines; a low value is assumed
    is_network_assumed: bool = False
    # effort_h, request_h: a person's work to rent and set up the machines, and the wait for what a
    # new account has to ask its provider for; both 0 where nothing is rented or ranked [h]
    effort_h: float = 0.0
    request_h: float = 0.0
    # by which the best value judges its cost for want of a dated price or a launcher (``lacks``);
    # 1 where nothing is wanting
    doubt: float = 1.0
    # machines that the model cannot tell apart from these, nearest first
    alternatives: tuple[Alternative, ...] = ()
    # the numbers that the estimate rests on, and where each is from, where asked for
    sources: tuple[Fact, ...] = ()
    # how to run it, where asked for; empty where no released framework does
    commands: tuple[Command, ...] = ()
    # what else a way has to say: layers by stage, batches by device,
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machines(self) -> dict[str, int]:
        """How many machines it uses, by what they are called."""
        return {offer.instance_type: count for offer, count in self.configuration.parts}

    @property
    def usd_per_million(self) -> Mapping[str, float] | None:
        """What a million samples cost, and a million tokens of text; None without a price.

        Of steps alone: booting, saving and what else a whole job takes is not in it.
        """
        price = self.configuration.price_usd_per_h
        if not price > 0:
            return None
        price += self.surplus_usd_per_h
        per_s = {"samples": self.throughput_samples_per_s.value}
        if self.units is not None and self.units.tokens_per_s is not None:
            per_s["tokens"] = self.units.tokens_per_s
        return {name: 1e6 / rate / 3600.0 * price for name, rate in per_s.items()}

    def __repr__(self) -> str:
        """Say in one line what is run on, for how long and how much."""
        return f"<{type(self).__name__} {answer_line(self.to_record())}>"

    def _repr_html_(self) -> str:
        return show.table_html(show.answers_frame([self.to_record()]))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Candidate(Answer):
    """An answer that can be ranked: the whole job's time and cost are known."""

    training_time_h: Estimate
    cost_usd: Estimate
    bottleneck: Bottleneck
