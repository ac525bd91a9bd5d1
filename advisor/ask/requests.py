"""The parts of a question: the job, constraints on the answer, the layout, the software.

Each is a record whose fields are options (``advisor.ask.entries``), in the order of the help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from advisor.ask.entries import (
    BITS,
    BYTES,
    CALL,
    COUNTS,
    COVERAGE,
    FLAG,
    GPUS,
    LIMITS,
    NAMES,
    OFFLOADED,
    OUTPUT,
    POWER_PRICE,
    RENTED,
    SHARE,
    SOME,
    SOME_HOURS,
    SOME_RATE,
    SPOT,
    TEXT,
    USD,
    VALIDATION,
    WAIT,
    ValueKind,
    choice,
    option,
    whole,
)  # fmt: skip
from advisor.errors import UsageError
from advisor.quantities import QUANTILES

if TYPE_CHECKING:
    from advisor.catalogue import GpuFilter, OfferFilter, Pricing
    from advisor.planners.layouts import SearchSpace

Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb", "dualpipe"]
Objective = Literal["time", "cost"]
_MOST_NODES: Final = 4096
OPTIMIZERS: Final = (
    "adamw", "adamw-8bit", "adamw-4bit", "adamw-bf16", "paged-adamw", "paged-adamw-8bit", "sgd",
    "sgd-momentum", "adafactor", "lion", "lion-8bit", "muon", "galore",
)  # fmt: skip
# To rent a machine, install what the script needs, bring the script there, look that it runs and
# fetch the results; a guess that ``--effort`` replaces. [h]
EFFORT_H: Final = 0.5
# Those of ``planners.core.setup.STACKS``, which is not loaded to read a command line.
STACK_NAMES: Final = (
    "nemo", "megatron-core", "megatron-lm", "megatron-deepspeed", "deepspeed", "torchtitan",
    "llm-foundry", "trainer", "fsdp", "ddp", "ddp-compiled", "trl", "unsloth", "torchtune",
)  # fmt: skip


def _stack(value: Any, name: str) -> str:
    choice(*STACK_NAMES).read(str(value).partition("@")[0], name)
    return str(value)


STACK: Final = ValueKind(metavar="NAME", read=_stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Which job is meant, how long it is, and what surrounds it; None leaves a thing as found."""

    # fmt: off
    run: str | None = option("Recorded run: its name, part of it, or its folder (default: the "
        "latest).", TEXT)
    job_file: str | None = option("Job file, as advisor predict --save-job writes it.",
        TEXT, flags="--job")
    recipe: str | None = option("Recipe of a training tool, or a file that starts one; "
        "other flags overrule it.", TEXT)
    recipe_kind: str | None = option("Tool that wrote the recipe, where its keys leave that open.",
        TEXT, flags="--as")
    ranks: int | None = option("Devices that the recipe is started on, where it does not "
        "say (default: 1, or those of --gpu).", whole())
    model: str | None = option("A model that was never run: its name (llama-3.1-8b, or the id on "
        "the Hugging Face hub), or its config.json or folder.", TEXT)
    cnn: str | None = option("A convolutional network in numbers: side of the images, width of "
        "the stem, blocks x width of each stage, and kind of block (plain, basic or bottleneck). "
        "ResNet-50 is 224:64:3x256,4x512,6x1024,3x2048:bottleneck.", TEXT)
    runs: str | None = option("Steps of the job measured elsewhere: a CSV with the columns "
        "machine, step and batch. Without a job, these runs alone describe it.", TEXT)
    runs_of: str | None = option("Job to take from --runs, if its column job names several. The "
        "other jobs still say how fast their machines are.", TEXT)
    layers: int | None = option("Layers of a transformer, with --hidden and --heads.", whole())
    hidden: int | None = option("Width of the transformer's hidden states.", whole())
    heads: int | None = option("Attention heads of a transformer layer; with --run, the heads "
        "that tensor parallelism can divide.", whole())
    kv_heads: int | None = option("Key and value heads (default: as many as --heads).", whole())
    ffn: int | None = option("Inner width of the feed-forward block (default: 4 x --hidden).",
        whole())
    is_gated: bool | None = option("The feed-forward block is gated, with three matrices "
        "(SwiGLU).", FLAG, name="gated")
    vocabulary: int | None = option("Tokens in the vocabulary (default: 50304).", whole(0))
    is_tied: bool | None = option("Embedding and output head share their weights (default: they "
        "do).", FLAG, name="tied")
    experts: int | None = option("Experts of a mixture-of-experts layer (default: 1, dense).",
        whole())
    experts_per_token: int | None = option("Experts that each token is sent to.", whole())
    sequence: int | None = option("Tokens per sample (default: the model's longest, at most 8192; "
        "2048 without a configuration).", whole())
    image: int | None = option("Side of an image in pixels, with --model.", whole())
    batch: int | None = option("Samples per step over all devices (default: as recorded, or as "
        "models of its kind are trained).", whole(), flags="--batch --global-batch")
    precision: str | None = option("Precision of products and activations: fp64, fp32, tf32, "
        "bf16, fp16, fp8, fp4 (default: as recorded, or bf16).",
        choice("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"))
    call_s: float | None = option("Time that starting a call of PyTorch from Python takes on the "
        "machine, for a recorded job: 50us (default: by the processor's speed).",
        CALL, name="call")
    epochs: float | None = option("Epochs the full training run will take (default: as found in "
        "the script).", SOME)
    total_steps: float | None = option("Optimizer steps the full training run will take (default: "
        "as found in the script).", SOME)
    total_samples: float | None = option("Samples the full training run will see: 2M (default: as "
        "found in the script).", SOME)
    tokens: float | None = option("Tokens the full training run will see: 15B or 2T.", SOME)
    data_bytes: float | None = option("Data to copy to every machine before training: 120GB "
        "(default: as much as the loader read).", BYTES, name="data")
    data_bytes_per_s: float | None = option("Maximum rate at which one machine can read the data "
        "from its source: 100MB/s.", SOME_RATE, name="data_rate")
    download_bytes: float | None = option("Weights to download to every machine before training: "
        "16GB (default: 2 bytes a parameter where only adapters or some layers are trained, 0 "
        "otherwise).", BYTES, name="download")
    checkpoint_bytes_per_s: float | None = option("Rate at which one machine writes a checkpoint: "
        "5GB/s to local disks (default: a volume with throughput for a save a minute, 125 to "
        "1,000 MiB/s).", SOME_RATE, name="checkpoint_rate")
    result_bytes: float | None = option("Results to download at the end: 20GB (default: one "
        "checkpoint).", BYTES, name="results")
    boot_h: float | None = option("Time a rented machine takes to boot and to pull its image: 90s "
        "or 5m (default: 2m).", WAIT, name="boot")
    validation_fraction: float | None = option("Validation time after each epoch, as a share of "
        "training time: 5% (default: as recorded).", VALIDATION, name="validation")
    # fmt: on

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
        self._refuse(("ranks",), "goes with a recipe")
        if self.is_described:
            self._refuse(("call_s",), "goes with a job that was recorded")
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
                flag = name.removeprefix("is_").removesuffix("_s").replace("_", "-")
                raise UsageError(
                    f"--{flag} {why}", hint="a recorded run or job file has its own: leave it out"
                )


# What names a job, by the flag that messages use.
_SOURCES: Final = {"run": "--run", "job_file": "--job", "model": "--model", "cnn": "--cnn"}
_LENGTHS: Final = {
    "epochs": "--epochs", "total_steps": "--total-steps",
    "total_samples": "--total-samples", "tokens": "--tokens",
}  # fmt: skip
_NUMBERS: Final = (
    "kv_heads", "ffn", "is_gated", "is_tied", "vocabulary", "experts", "experts_per_token",
)  # fmt: skip
# What belongs together: an answer to one of them replaces all answers of a weaker source.
SOURCE_FIELDS: Final = (
    *_SOURCES, "recipe", "recipe_kind", "ranks", "layers", "hidden", "heads", *_NUMBERS,
    "sequence", "image",
)  # fmt: skip
LENGTH_FIELDS: Final = tuple(_LENGTHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints on a recommendation."""

    # fmt: off
    budget_usd: float | None = option("Maximum to spend on the job, in USD.",
        USD, name="budget", panel=LIMITS)
    deadline_h: float | None = option("Maximum time that the job may take: 6h, 90m, 1h30m or 2d.",
        SOME_HOURS, name="deadline", panel=LIMITS)
    providers: tuple[str, ...] = option("Providers to consider, comma-separated: aws,gcp.",
        NAMES, name="cloud", default=(), panel=RENTED)
    region: str | None = option("Regions to consider, as a glob: 'us-*'.", TEXT, panel=RENTED)
    gpus: GpuFilter | None = option("Accelerators of a machine, and how many: A100:8, L4, "
        "A100:4,H100:8 (either), A100:40GB..80GB:1..8. H100:16, more than a machine holds, is two "
        "of 8.", GPUS, panel=RENTED)
    max_nodes: int = option("Maximum number of machines rented together (default: 8).",
        whole(), default=8, panel=RENTED)
    max_price_usd_per_h: float | None = option("Maximum price of one machine, in USD per hour.",
        USD, name="max_price", panel=LIMITS)
    max_hourly_usd: float | None = option("Maximum price of all machines together, in USD per "
        "hour.", USD, name="max_hourly", panel=LIMITS)
    pricings: tuple[Pricing, ...] = option("Consider spot prices as well as on-demand ones.",
        SPOT, name="spot", default=("on-demand",), flags="--spot/--on-demand", panel=RENTED)
    commitment: Literal["1y", "3y"] | None = option("Also take the prices of a commitment that "
        "you hold: 1y or 3y. The cost is of the job's hours alone.", choice("1y", "3y"),
        name="reserved", panel=RENTED)
    mixed: bool | None = option("Consider several types of machines together, in one region "
        "(default: if equal machines do not suffice).", FLAG, panel=RENTED)
    saves_checkpoints: bool = option("Whether the job can resume from a checkpoint, which spot "
        "machines need (default: it can).", FLAG, name="checkpoints", default=True, panel=RENTED)
    known_network: bool = option("Leave out machines whose network bandwidth is assumed rather "
        "than known.", FLAG, default=False, panel=RENTED)
    is_dated: bool = option("Leave out offers whose price has no date.",
        FLAG, name="dated", default=False, panel=RENTED)
    coverage: float = option("Probability that an interval holds the true value: 0.5, 0.8, 0.9 or "
        "0.95 (default: 0.9).", COVERAGE, default=0.9, panel=OUTPUT)
    confidence: float | None = option("Probability with which budget and deadline must be kept: "
        "90% (default: the expected cost and time keep them).", SHARE, panel=LIMITS)
    least_gain_fraction: float = option("Show a row only if it is faster or cheaper than the "
        "others by this much; 0% shows every row that nothing beats (default: 10%).",
        SHARE, name="gain", default=0.1, panel=OUTPUT)
    effort_h: float = option("Work it takes you to rent one machine and set it up (default: 30m). "
        "Each further machine counts six times as much; 0 counts no work and no quotas of new "
        "accounts.", WAIT, name="effort", default=EFFORT_H, panel=LIMITS)
    here_usd_per_h: float = option("What an hour of this machine costs you, in USD: 0.05, or its "
        "power and the price of a kWh: 200W@0.30 (default: 0).",
        POWER_PRICE, name="here_price", default=0.0, panel=LIMITS)
    top: int = option("Maximum number of candidates to show (default: 10).",
        whole(), default=10, flags="--top -n", panel=OUTPUT)
    with_probes: bool = option("Suggest the short real run that would help most to choose.",
        FLAG, name="probes", default=False, flags="--probe/--no-probe", panel=OUTPUT)
    # fmt: on
    nodes: int | None = None  # exactly so many machines, where more is asked for than one holds
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
            pricing=(*self.pricings, *self.committed),
            is_dated=self.is_dated,
        )

    def __post_init__(self) -> None:
        known = ", ".join(f"{coverage:g}" for coverage in QUANTILES)
        amounts = {
            "budget": self.budget_usd,
            "deadline": self.deadline_h,
            "max-price": self.max_price_usd_per_h,
            "max-hourly": self.max_hourly_usd,
        }
        checks = [
            (value is None or (value > 0 and math.isfinite(value)),
             f"not a {name}: {value}", "give a positive number")
            for name, value in amounts.items()
        ] + [
            (1 <= self.max_nodes <= _MOST_NODES,
             f"the number of nodes is out of range: {self.max_nodes}", f"give 1 to {_MOST_NODES}"),
            (self.coverage in QUANTILES,
             f"the coverage is not available: {self.coverage}", f"one of: {known}"),
            (self.confidence is None or 0.5 <= self.confidence < 1,
             f"the confidence is out of range: {self.confidence}",
             "give 50% or more, below 100%"),
            (self.top >= 1,
             f"the number of candidates is out of range: {self.top}", "give 1 or more"),
        ]  # fmt: skip
        for holds, what, hint in checks:
            if not holds:
                raise UsageError(what, hint=hint)

    @property
    def committed(self) -> tuple[Pricing, ...]:
        """Ways to pay by a commitment that the user holds."""
        if self.commitment is None:
            return ()
        return ("reserved-1y",) if self.commitment == "1y" else ("reserved-3y",)

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

    # fmt: off
    tp: int | None = option("Use exactly this degree of tensor parallelism.", whole())
    pp: int | None = option("Use exactly this many pipeline stages.", whole())
    cp: int | None = option("Use exactly this degree of context parallelism.", whole())
    ep: int | None = option("Use exactly this degree of expert parallelism.", whole())
    etp: int | None = option("Use exactly this many ranks for one expert's products: as --tp, or "
        "1, so that tensor-parallel ranks have experts of their own.", whole())
    schedule: Schedule | None = option("Use exactly this pipeline schedule: gpipe, 1f1b, "
        "interleaved, zb or dualpipe (default: as the stack does).",
        choice("gpipe", "1f1b", "interleaved", "zb", "dualpipe"))
    chunks: int | None = option("Cut each pipeline stage into exactly this many chunks of layers "
        "(virtual stages); 1 keeps stages from interleaving.", whole())
    zero: int | None = option("Use exactly this ZeRO stage: 0, 1, 2 or 3.", whole(0, 3))
    recompute: Recompute | None = option("Use exactly this recomputation of activations: none, "
        "selective or full.", choice("none", "selective", "full"))
    micro_batch: int | None = option("Samples per micro-batch on one device.", whole())
    accumulate: int | None = option("Micro-batches accumulated in each step.", whole())
    offload: bool | tuple[str, ...] | None = option("Allow states and activations to be moved to "
        "host memory, or move exactly these: optimizer,gradients,parameters,activations; "
        "--no-offload moves nothing (default: allowed).", OFFLOADED)
    updates_in_backward: bool | None = option("Update every layer in the backward pass, so that "
        "gradients of one layer exist at a time, and accumulate none.",
        FLAG, name="optimizer_in_backward")
    swap: bool | None = option("Consider swapping layers in from host memory (ATOM; default: on "
        "GeForce cards).", FLAG)
    average_every: int | None = option("Steps between two averagings of GPUs that swap layers "
        "(default: 8); 1 is synchronous SGD.", whole())
    # fmt: on

    def __post_init__(self) -> None:
        if self.updates_in_backward and (self.accumulate or 1) > 1:
            raise UsageError(
                "--optimizer-in-backward keeps no gradients, so that none can be accumulated",
                hint="leave --accumulate out, or give 1",
            )
        parts = self.offload if isinstance(self.offload, tuple) else ()
        if "gradients" in parts and "optimizer" not in parts:
            raise UsageError(
                "gradients lie in host memory only beside the optimizer that updates with them",
                hint="--offload optimizer,gradients",
            )
        if "optimizer" in parts and self.updates_in_backward:
            raise UsageError(
                "--optimizer-in-backward updates on the device, not in host memory",
                hint="leave it out, or the optimizer out of --offload",
            )

    @property
    def fixed(self) -> dict[str, Any]:
        """What is fixed, by name."""
        return _given(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRequest:
    """What the user says about the training software; None leaves it as found, or the default.

    The names and values are those of ``planners.core.setup.TrainingSetup``.
    """

    # fmt: off
    stack: str | None = option("Training software, which sets kernels, overlap, loss, gradients, "
        f"sharding and recomputation: {', '.join(STACK_NAMES)}; torchtitan@0.2.0 or "
        "torchtitan@2025-11 as of that release (default: the usual software for such a job).",
        STACK)
    kernels: str | None = option("How pointwise operators run: eager, fused or compiled (default: "
        "as recorded, or eager).", choice("eager", "fused", "compiled"))
    attention: str | None = option("Attention kernel: flash or unfused (default: flash).",
        choice("flash", "unfused"))
    optimizer: str | None = option(f"Optimizer: {', '.join(OPTIMIZERS)} (default: as recorded, as "
        "the stack does, or adamw).", replace(choice(*OPTIMIZERS), metavar="NAME"))
    loss: str | None = option("How the loss is computed: eager; fused, in place of the logits; or "
        "chunked, of some tokens at a time (default: as the stack does).",
        choice("eager", "fused", "chunked"))
    weights: str | None = option("How weights are stored: fp32, or bf16 without an fp32 copy "
        "(default: fp32).", choice("fp32", "bf16"))
    gradients: str | None = option("Precision of reduced gradients: fp32, or bf16, which halves "
        "the traffic (default: as the stack does, or fp32).", choice("fp32", "bf16"))
    adapter_rank: int | None = option("Train LoRA adapters of this rank in place of the weights.",
        whole(), name="lora")
    adapter_targets: str | None = option("What adapters stand beside: all-linear, attention, "
        "query-value, or modules by name: q_proj,v_proj (default: as the stack does).",
        replace(TEXT, metavar="NAMES"), name="lora_targets")
    base_bits: int | None = option("Bits of each frozen weight under adapters: 16, 8 or 4 "
        "(default: 16).", BITS)
    frozen_fraction: float | None = option("Share of the parameters to freeze, starting at the "
        "input: 50%.", SHARE, name="frozen")
    overlaps: bool | None = option("Reduce gradients while the backward pass runs (default: "
        "overlapped).", FLAG, name="overlap")
    overlaps_tensor: bool | None = option("Run tensor-parallel exchanges behind products, as "
        "asynchronous tensor parallelism does (default: as the stack does).",
        FLAG, name="tp_overlap")
    # fmt: on

    @property
    def given(self) -> dict[str, Any]:
        """What is given, by name: changes to a ``TrainingSetup``."""
        return _given(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """Machines that are given: those of ``plan``, or the user's own shared cluster."""

    # fmt: off
    machines: str | None = option("Machines you have: '2x a2-highgpu-8g + 4x g2-standard-48', "
        "'8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps', or a .json or .toml file.",
        TEXT, name="cluster")
    within_h: float | None = option("Time for which the machines of --cluster train: how many "
        "tokens, samples and steps are finished in it; without a job, of models of several sizes.",
        SOME_HOURS, name="within", flags="--for")
    trace: str | None = option("Compare with your shared cluster: its sacct, kubectl or CSV "
        "export.", TEXT, name="cluster_trace")
    policy: str = option("Order in which your cluster starts jobs: fifo, fit-first, shortest, "
        "shortest-gpu, las, las-2d or gittins (default: fifo).",
        TEXT, name="cluster_policy", default="fifo")
    devices: tuple[int, ...] = option("Devices to request from your cluster, e.g. 8 or 2,4,8 "
        "(default: one machine).", COUNTS, name="cluster_devices", default=())
    is_consolidated: bool = option("Assume that your cluster gives a job one machine, or whole "
        "machines only.", FLAG, name="cluster_consolidated", default=False)
    price_usd_per_device_h: float = option("What your cluster charges, in USD per device and hour "
        "(default: 0).", USD, name="cluster_price", default=0.0)
    # fmt: on


def _given(record: Any) -> dict[str, Any]:
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {name: value for name, value in values.items() if value is not None}


# Names of a request that are others in the search space.
_IN_SPACE: Final = {
    "accumulate": "accumulation_steps", "zero": "zero_stages", "recompute": "recomputes",
}  # fmt: skip


def layout_space(request: LayoutRequest, default: SearchSpace | None = None) -> SearchSpace | None:
    """Return the layouts that a request leaves; None where it leaves all and none is the default.

    ``default``: where nothing is fixed.
    """
    from advisor.planners.layouts import RENTED, SearchSpace

    changes = {_IN_SPACE.get(name, name): value for name, value in request.fixed.items()}
    swaps = changes.pop("swap", None)
    for name in ("zero_stages", "recomputes"):
        if name in changes:
            changes[name] = (changes[name],)
    if (moves := changes.pop("offload", None)) is not None:
        changes |= {"offloads_alone": True} if moves else {"offloads": ()}
        if isinstance(moves, tuple):
            changes["moves"] = moves
    # Whoever says how often swapping GPUs average asks for them, unless they are refused.
    if swaps or (swaps is None and request.average_every is not None):
        changes["swaps"] = True
    if not changes:
        return default
    return replace(default or SearchSpace(schedules=("1f1b",), sureness=RENTED), **changes)
