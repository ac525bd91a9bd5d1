"""The parts of a question: the job, constraints on the answer, the layout, the software."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from advisor.errors import UsageError
from advisor.quantities import QUANTILES

if TYPE_CHECKING:
    from advisor.catalogue import GpuFilter, OfferFilter, Pricing
    from advisor.planners.layouts import SearchSpace

Recompute = Literal["none", "selective", "full"]
Objective = Literal["time", "cost"]
_MOST_NODES: Final = 4096
# To rent a machine, install what the script needs, bring the script there, look that it runs and
# fetch the results; a guess that ``--effort`` replaces. [h]
EFFORT_H: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Which job is meant, how long it is, and what surrounds it; None leaves a thing as found."""

    # run, job_file, model, cnn: at most one: a recorded run (name or folder), a job file, a
    # Hugging Face ``config.json`` (or its folder), a network as
    # ``planners.step.describe.parse_network`` reads it. The latest run where neither
    # these nor ``layers``, ``hidden``, ``heads``, ``runs`` are given.
    run: str | None = None
    job_file: str | None = None
    model: str | None = None
    cnn: str | None = None
    # a table of the job's runs elsewhere (``jobs.runs.read_runs``); alone, all that is known of
    # it
    runs: str | None = None
    runs_of: str | None = None  # the job of that table that is meant
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    is_gated: bool | None = None  # three feed-forward matrices (SwiGLU) in place of two
    vocabulary: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    # sequence, image: tokens of a sample; side of an image [px]
    sequence: int | None = None
    image: int | None = None
    batch: int | None = None  # samples of a step over all devices
    precision: str | None = None
    # epochs, total_steps, total_samples, tokens: length of the whole job, at most one
    epochs: float | None = None
    total_steps: float | None = None
    total_samples: float | None = None
    tokens: float | None = None
    # data_bytes, result_bytes: brought to every machine first; taken out of the cloud at the end
    # [bytes]
    data_bytes: float | None = None
    # most that one machine gets from where the data lies [bytes/s]
    data_bytes_per_s: float | None = None
    # at which one machine writes a checkpoint [bytes/s]
    checkpoint_bytes_per_s: float | None = None
    result_bytes: float | None = None
    # what the ends of epochs take, as a share of the training steps
    validation_fraction: float | None = None
    # weights that training starts from, downloaded to every machine [bytes]
    download_bytes: float | None = None
    # from the request of a rented machine to the start of the program [h]
    boot_h: float | None = None

    def __post_init__(self) -> None:
        named = [flag for name, flag in _SOURCES.items() if getattr(self, name) is not None]
        if self.is_numbers:
            named.append("--layers")
        if len(named) > 1:
            raise UsageError(
                f"more than one job is given: {', '.join(named)}", hint="name one of them"
            )
        if len(self._lengths) > 1:
            raise UsageError(
                f"the job's length is given twice: {', '.join(self._lengths)}",
                hint="use one of them",
            )
        if self.runs_of is not None and self.runs is None:
            raise UsageError("--runs-of goes with --runs", hint="name the table: --runs runs.csv")
        if not self.is_numbers:
            self._refuse(_NUMBERS, "goes with --layers, --hidden and --heads")
        if self.model is None:
            self._refuse(("image",), "goes with --model")
        if not (self.is_numbers or self.model or self.tokens):
            self._refuse(("sequence",), "goes with --model, --layers or --tokens")

    @property
    def is_numbers(self) -> bool:
        """Whether a transformer is described in numbers.

        The heads of a recorded one are told beside its run, where the recording has none.
        """
        if self.layers is not None or self.hidden is not None:
            return True
        return self.heads is not None and self.run is None and self.job_file is None

    @property
    def has_length(self) -> bool:
        """Whether the length of the whole job is said."""
        return bool(self._lengths)

    @property
    def _lengths(self) -> list[str]:
        return [flag for name, flag in _LENGTHS.items() if getattr(self, name) is not None]

    @property
    def is_described(self) -> bool:
        """Whether the job was never run: a model, or its numbers."""
        return bool(self.is_numbers or self.model or self.cnn)

    @property
    def names_a_job(self) -> bool:
        """Whether any job is named; the latest run is meant otherwise."""
        return self.is_described or self.run is not None or self.job_file is not None

    @property
    def is_known_by_runs(self) -> bool:
        """Whether nothing is said of the job but what its runs took."""
        return self.runs is not None and not self.names_a_job

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                flag = name.removeprefix("is_").replace("_", "-")
                raise UsageError(
                    f"--{flag} {why}", hint="a recorded run or job file has its own: leave it out"
                )


# What names a job, by the flag that messages use.
_SOURCES: Final = {"run": "--run", "job_file": "--job", "model": "--model", "cnn": "--cnn"}
_LENGTHS: Final = {
    "epochs": "--epochs", "total_steps": "--total-steps",
    "total_samples": "--total-samples", "tokens": "--tokens",
}  # fmt: skip
_NUMBERS: Final = ("kv_heads", "ffn", "is_gated", "vocabulary", "experts", "experts_per_token")
# What belongs together: an answer to one of them replaces all answers of a weaker source.
SOURCE_FIELDS: Final = (
    *_SOURCES, "layers", "hidden", "heads", *_NUMBERS, "sequence", "image",
)  # fmt: skip
LENGTH_FIELDS: Final = tuple(_LENGTHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints on a recommendation."""

    # budget_usd, deadline_h: most to spend on the job, and the longest it may take. [USD], [h]
    budget_usd: float | None = None
    deadline_h: float | None = None
    providers: tuple[str, ...] = ()
    region: str | None = None  # glob, e.g. ``"us-*"``.
    gpus: GpuFilter | None = None
    max_nodes: int = 8
    nodes: int | None = None  # exactly so many machines, where more is asked for than one holds
    pricings: tuple[Pricing, ...] = ("on-demand",)
    max_price_usd_per_h: float | None = None
    max_hourly_usd: float | None = None
    # whether the job can go on from a checkpoint; spot machines make no sense otherwise
    saves_checkpoints: bool = True
    # admit several types of machines rented together in one region; None where equal machines do
    # not keep the constraints, or there are not enough of a type
    mixed: bool | None = None
    known_network: bool = False  # leave out machines whose network bandwidth is assumed, not known
    is_dated: bool = False  # leave out offers whose price has no day
    coverage: float = 0.9  # probability that an interval shown holds the true value
    # probability with which budget and deadline are to be kept; None asks it of the expected cost
    # and time
    confidence: float | None = None
    # by which two candidates shown differ at least, one faster and the other cheaper; 0 shows the
    # whole front
    least_gain_fraction: float = 0.1
    # a person's work to rent one machine and set it up; 0 counts none, of quotas neither [h]
    effort_h: float = EFFORT_H
    here_usd_per_h: float = 0.0  # what this machine costs while the job runs on it
    top: int = 10
    with_probes: bool = False  # also say which short real runs would help most to choose
    # also ask the model of the cost itself about every row; a table has no room for it
    with_direct_costs: bool = True
    space: SearchSpace | None = None  # what a layout may be; everything by default

    def offer_filter(self) -> OfferFilter:
        """Return what of the catalogue is asked for."""
        from advisor.catalogue import OfferFilter

        return OfferFilter(
            providers=self.providers,
            regions=(self.region,) if self.region else (),
            gpus=self.gpus,
            max_price_usd_per_h=self.max_price_usd_per_h or math.inf,
            pricing=self.pricings,
            is_dated=self.is_dated,
        )

    def __post_init__(self) -> None:
        for name, value in (
            ("budget", self.budget_usd),
            ("deadline", self.deadline_h),
            ("max-price", self.max_price_usd_per_h),
            ("max-hourly", self.max_hourly_usd),
        ):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UsageError(f"not a {name}: {value}", hint="give a positive number")
        if not 1 <= self.max_nodes <= _MOST_NODES:
            raise UsageError(
                f"the number of nodes is out of range: {self.max_nodes}",
                hint=f"give 1 to {_MOST_NODES}",
            )
        if self.coverage not in QUANTILES:
            known = ", ".join(f"{coverage:g}" for coverage in QUANTILES)
            raise UsageError(
                f"the coverage is not available: {self.coverage}", hint=f"one of: {known}"
            )
        if self.confidence is not None and not 0.5 <= self.confidence < 1:
            raise UsageError(
                f"the confidence is out of range: {self.confidence}",
                hint="give 50% or more, below 100%",
            )
        if self.top < 1:
            raise UsageError(
                f"the number of candidates is out of range: {self.top}", hint="give 1 or more"
            )

    @property
    def most_usd_per_h(self) -> float:
        """Most that all machines together may cost in an hour, inf for no limit. [USD/h]."""
        return math.inf if self.max_hourly_usd is None else self.max_hourly_usd

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of machines looked at: 1, 2, 3, 4, 6, 8, 12, 16, ... and ``max_nodes``."""
        if self.nodes is not None:
            return (self.nodes,)
        steps = {1, self.max_nodes}
        power = 2
        while power <= self.max_nodes:
            steps |= {power, power * 3 // 2} if power > 1 else {power}
            power *= 2
        return tuple(sorted(n for n in steps if n <= self.max_nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """What the user fixes of the layout; None leaves the choice open."""

    # tp, pp, cp, ep: degrees of tensor, pipeline, context and expert parallelism
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero: int | None = None  # ZeRO stage, 0 to 3
    recompute: Recompute | None = None
    # micro_batch, accumulate: samples of a micro-batch on one device, and micro-batches of a step
    micro_batch: int | None = None
    accumulate: int | None = None
    offload: bool | None = None  # whether states and activations may move to host memory
    swap: bool | None = None  # whether layers may be swapped in from host memory (ATOM)
    average_every: int | None = None  # steps between two averagings of GPUs that swap layers

    @property
    def fixed(self) -> dict[str, Any]:
        """What is fixed, by name."""
        return _given(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRequest:
    """What the user says about the training software; None leaves it as found, or the default.

    The names and values are those of ``planners.core.setup.TrainingSetup``.
    """

    stack: str | None = None
    kernels: str | None = None
    attention: str | None = None
    optimizer: str | None = None
    weights: str | None = None
    gradients: str | None = None
    adapter_rank: int | None = None
    base_bits: int | None = None
    frozen_fraction: float | None = None
    overlaps: bool | None = None
    overlaps_tensor: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is given, by name: changes to a ``TrainingSetup``."""
        return _given(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """Machines that are given: those of ``plan``, or the user's own shared cluster."""

    machines: str | None = None  # as ``machines.cluster`` reads them
    # how long they train: asks what can be trained in that time [h]
    within_h: float | None = None
    # what the shared cluster ran: an export of ``sacct`` or ``kubectl``, or a CSV of jobs
    trace: str | None = None
    policy: str = "fifo"
    devices: tuple[int, ...] = ()  # numbers of devices to ask it for; empty for one whole machine
    is_consolidated: bool = False  # it gives a job one machine, or whole machines
    price_usd_per_device_h: float = 0.0  # what it charges [USD/h]


def _given(record: Any) -> dict[str, Any]:
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {name: value for name, value in values.items() if value is not None}
