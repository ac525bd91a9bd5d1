"""The nouns of the advisor: what is sold, what is proposed, what is believed about it. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from advisor.errors import AdvisorError
from advisor.planners.core.nouns import Layout
from advisor.shown import frames, notebook, words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Bottleneck = Literal[
    "compute", "memory", "network", "input", "launch", "pipeline", "offload"
]  # fmt: skip
# What a job runs on until it is done: on-demand machines, spot ones, spot ones with on-demand ones
# in their place while there are none, as many spot machines as there are, or what a plan by the
# deadline says.
CompletionWay = Literal[
    "on-demand", "spot", "spot-with-fallback", "elastic-spot", "spot-by-deadline"
]  # fmt: skip
COMPLETIONS: Final[tuple[CompletionWay, ...]] = get_args(CompletionWay)

SCHEMA_VERSION: Final = 1
# Two-sided normal quantiles of the coverages on offer.
QUANTILES: Final[Mapping[float, float]] = {0.5: 0.674490, 0.8: 1.281552, 0.9: 1.644854, 0.95: 1.96}
REACH_90: Final = QUANTILES[0.9]  # half of a 90 % interval, in standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
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

        Examples
        --------
        >>> round(Estimate(value=10.0, low=8.0, high=15.0, coverage=0.9).above(15.0), 3)
        0.05
        """
        if limit <= 0:
            return 1.0
        from statistics import NormalDist

        bound = self.high if limit >= self.value else self.low
        if bound == self.value:
            return float(limit < self.value)
        reach = NormalDist().inv_cdf(0.5 + self.coverage / 2)
        sds = reach * math.log(limit / self.value) / abs(math.log(bound / self.value))
        return 1.0 - NormalDist().cdf(sds)

    def to_record(self) -> dict[str, float]:
        """Return the JSON form."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "coverage": self.coverage,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An instance type in a region at a price.

    ``accelerators`` is the number in one instance (a fraction where a card is shared), 0 with
    ``accelerator`` None for a machine without. ``terms`` says what is particular of the price: a
    reservation or a capacity block of the user's, how often spot machines are taken away.
    """

    provider: str
    instance_type: str
    region: str
    pricing: str
    price_usd_per_h: float
    accelerator: str | None
    accelerators: float
    vcpus: int
    memory_gib: float
    terms: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is rented together: ``(offer, count)`` parts; several parts are a mixed cluster."""

    parts: tuple[tuple[Offer, int], ...]

    @property
    def price_usd_per_h(self) -> float:
        """Price of all instances together, in USD/h."""
        return sum(offer.price_usd_per_h * count for offer, count in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What could be rented in place of a candidate: the model cannot tell the two apart.

    Attributes
    ----------
    configuration : Configuration
    kind : {"region", "provider", "machine"}
        What differs: the same type elsewhere, the same accelerators elsewhere, or the machines.
    training_time_h, cost_usd : float
        Expected. [h], [USD]
    """

    configuration: Configuration
    kind: Literal["region", "provider", "machine"]
    training_time_h: float
    cost_usd: float

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "configuration": [_part(offer, count) for offer, count in self.configuration.parts],
            "kind": self.kind,
            "training_time_h": self.training_time_h,
            "cost_usd": self.cost_usd,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of a job takes of its expected time and cost; None: not priced [h], [USD]."""

    time_h: float
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What is expected to be rented at one price.

    Attributes
    ----------
    pricing : str
    time_h : float
        Rented time, as if of all instances. [h]
    price_usd_per_h : float
        Of all instances. [USD/h]
    """

    pricing: str
    time_h: float
    price_usd_per_h: float

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        cost = self.time_h * self.price_usd_per_h
        return asdict(self) | {"cost_usd": cost}


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

    def __repr__(self) -> str:
        """Say in one line what would be rented, for how long and how much."""
        return f"<Candidate {words.candidate_line(self.to_record())}>"

    def _repr_html_(self) -> str:
        return frames.html(frames.candidates_frame([self.to_record()]))

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form (field names are kept within a schema version)."""
        return {
            "rank": self.rank,
            "configuration": [_part(offer, count) for offer, count in self.configuration.parts],
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
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A named configuration that has no answer, and why.

    Attributes
    ----------
    rank : int
        Place among those that were named, from 1.
    configuration : str
        As ``"2 x g5.xlarge"``.
    error : AdvisorError
        What would have been raised, had this one been asked alone.
    """

    rank: int
    configuration: str
    error: AdvisorError

    @property
    def reason(self) -> str:
        """Why there is no answer."""
        return str(self.error)

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.error.hint

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rank": self.rank,
            "configuration": self.configuration,
            "reason": self.reason,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class Predictions:
    """An answer for every configuration that was named, in their order; ``rank`` is the place."""

    rows: tuple[Candidate | Refused, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The configurations that the job can run on."""
        return tuple(one for one in self.rows if isinstance(one, Candidate))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The configurations without an answer, each with its reason."""
        return tuple(one for one in self.rows if isinstance(one, Refused))

    def __len__(self) -> int:
        """Return how many configurations were asked about."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Candidate | Refused]:
        """Go through the answers in the order of the question."""
        return iter(self.rows)

    def __getitem__(self, place: int) -> Candidate:
        """Return the candidate of one configuration; raise why there is none."""
        one = self.rows[place]
        if isinstance(one, Refused):
            raise one.error
        return one

    def __repr__(self) -> str:
        """Say how many were asked about and how many have an answer."""
        return f"<Predictions: {len(self.candidates):,} of {len(self):,} configurations>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row a configuration; bounds are columns of their own.

        ``reason`` says why a configuration has no numbers.
        """
        return frames.candidates_frame([one.to_record() for one in self.rows])

    def _repr_html_(self) -> str:
        return frames.html(self.to_frame())


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job takes what it takes on some configurations.

    Attributes
    ----------
    rows : tuple of mapping
        A mapping a configuration: ``configuration``, ``learned``, ``share_NAME`` of the step by
        what it waits for, and ``effect_GROUP``: by which factor what is known of the GROUP (job,
        anchor, series, configuration, layout, physics) moves the learned answer from that of a
        median run; nan where physics alone answers.
    """

    rows: tuple[Mapping[str, Any], ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row a configuration."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def _repr_html_(self) -> str:
        return frames.html(self.to_frame())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAdvice:
    """A short real run that is worth its price before the job is started.

    Attributes
    ----------
    offer : Offer
        One machine to run on for ``minutes``.
    minutes : float
    price_usd : float
    gain_usd : float
        Expected saving of the choice that is made after it, its price not subtracted. [USD]
    log_sd_before, log_sd_after : float
        Error of ln(time) of the candidate that would be chosen now, without the probe and with.
    """

    offer: Offer
    minutes: float
    price_usd: float
    gain_usd: float
    log_sd_before: float
    log_sd_after: float

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "configuration": _part(self.offer, 1),
            "minutes": self.minutes,
            "price_usd": self.price_usd,
            "gain_usd": self.gain_usd,
            "log_sd_before": self.log_sd_before,
            "log_sd_after": self.log_sd_after,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """How far estimates were off on hardware of a family, each accelerator left out of its fit.

    Attributes
    ----------
    family : str
        E.g. ``"NVIDIA Volta"``.
    median_ape_fraction : float
        Median over its accelerators of their median absolute percentage error.
    accelerators, rows : int
        Measured: how many of the family, and how many steps on them.
    protocol, day : str
        Of ``advisor validate``, and when its figures were stored.
    """

    family: str
    median_ape_fraction: float
    accelerators: int
    rows: int
    protocol: str
    day: str

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChange:
    """What the best value would become if one thing changed.

    Attributes
    ----------
    name : str
        ``"spot"``, ``"batch"``, ``"precision"``, ``"kernels"``, ``"workers"``, ``"budget"`` or
        ``"deadline"``; ``"device"`` and ``"ddp"``, which the answer assumes: what holds without.
    do : str
        What to do for it.
    training_time_h, cost_usd : Estimate
        Then.
    time_factor, cost_factor : float
        Of the best value's.
    """

    name: str
    do: str
    training_time_h: Estimate
    cost_usd: Estimate
    time_factor: float
    cost_factor: float

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "do": self.do,
            "training_time_h": self.training_time_h.to_record(),
            "cost_usd": self.cost_usd.to_record(),
            "time_factor": self.time_factor,
            "cost_factor": self.cost_factor,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What is shown: the Pareto front, and why everything else is not on it.

    Attributes
    ----------
    run : str
        The recorded run, or the name of the job.
    job : mapping
        The facts of the job that the numbers rest on, with where each comes from.
    catalogue_as_of : str
        Day of the newest price. ISO 8601.
    catalogue_offers : int
        Priced offers that the request admits.
    predictor, predictor_version : str
    considered : int
        Candidates looked at: offers times counts.
    rejected : mapping of str to int
        Candidates by the first reason that ruled them out.
    front : tuple of Candidate
        Fastest first. Of any two, one is faster and the other cheaper, each by at least the gain
        that was asked for and by more than the model's error in comparing them.
    here : Candidate or None
        The same job on this machine, at its own price; None where it cannot run here, or nobody
        looked.
    picks : mapping of str to int or "here"
        What to choose, by the name of what is wanted (``ranking.picks``): a rank of the front.
    summary : tuple of str
        The choice in words, most important first.
    shared_reasons : tuple of str
        What holds for every candidate of the front.
    changes : tuple of ProposedChange
        What would change the best value that is rented.
    known_error : KnownError or None
        Of its hardware.
    nearest : tuple of Candidate
        Where ``front`` is empty: what would come closest to the constraints.
    probes : tuple of ProbeAdvice
        Where they were asked for: short runs that are worth their price, best first.
    """

    run: str
    job: Mapping[str, Any]
    catalogue_as_of: str
    catalogue_offers: int
    predictor: str
    predictor_version: str
    considered: int
    rejected: Mapping[str, int]
    front: tuple[Candidate, ...]
    nearest: tuple[Candidate, ...] = ()
    here: Candidate | None = None
    picks: Mapping[str, int | Literal["here"]] = field(default_factory=dict)
    summary: tuple[str, ...] = ()
    shared_reasons: tuple[str, ...] = ()
    changes: tuple[ProposedChange, ...] = ()
    known_error: KnownError | None = None
    notes: tuple[str, ...] = field(default=())
    probes: tuple[ProbeAdvice, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record of ``advisor recommend --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run": self.run,
            "job": dict(self.job),
            "catalogue": {"as_of": self.catalogue_as_of, "offers": self.catalogue_offers},
            "predictor": {"name": self.predictor, "version": self.predictor_version},
            "considered": self.considered,
            "rejected": dict(self.rejected),
            "picks": dict(self.picks),
            "summary": list(self.summary),
            "shared_reasons": list(self.shared_reasons),
            "changes": [change.to_record() for change in self.changes],
            "known_error": self.known_error and self.known_error.to_record(),
            "front": [candidate.to_record() for candidate in self.front],
            "here": self.here and self.here.to_record(),
            "nearest": [candidate.to_record() for candidate in self.nearest],
            "notes": list(self.notes),
            "probes": [probe.to_record() for probe in self.probes],
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the front as a table, one row a candidate; bounds are columns of their own."""
        return frames.candidates_frame([candidate.to_record() for candidate in self.front])

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw time against cost of the list, or of the nearest misses, with matplotlib.

        Raises
        ------
        UsageError
            If matplotlib is not installed, or there is nothing to draw.
        """
        shown = self.front or self.nearest
        return notebook.plot([candidate.to_record() for candidate in shown], axes)

    def __repr__(self) -> str:
        """Say what was asked about, what to choose, then the list, a line a candidate."""
        lines = [words.candidate_line(one.to_record()) for one in self.front or self.nearest]
        head = f"<Recommendation: {notebook.headline(self.to_record())}>"
        return "\n".join([head, *self.summary, *lines])

    def _repr_html_(self) -> str:
        """Show itself in a notebook: a table and a chart."""
        return notebook.recommendation_html(self.to_record())


def _part(offer: Offer, count: int) -> dict[str, Any]:
    return {
        "provider": offer.provider,
        "instance_type": offer.instance_type,
        "region": offer.region,
        "pricing": offer.pricing,
        "count": count,
        "price_usd_per_h": offer.price_usd_per_h,
        "accelerator": offer.accelerator,
        "accelerators_per_instance": offer.accelerators,
        "terms": offer.terms,
    }
