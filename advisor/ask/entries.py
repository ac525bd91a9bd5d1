"""Every name that can be asked: its record and field, how it is read and shown, and its help.

The names are those of the command line with underscores; Python's keywords, project files and
JSON use the same. A value is read from text or from a plain Python value alike, by
``advisor.quantities`` where it is a quantity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from advisor import quantities
from advisor.answer import COMPLETIONS
from advisor.errors import UsageError
from advisor.quantities import QUANTILES

if TYPE_CHECKING:
    from advisor.catalogue import GpuFilter


# Kinds of values that a question has: how each is read from text or Python, and shown again.


_MOST: Final = 10**12
_POWER: Final = re.compile(r"(?P<watts>\d+(\.\d+)?)\s*W\s*@\s*(?P<price>\S+)")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """A kind of value."""

    metavar: str  # what help shows in place of the value; empty for a flag
    # from text or a Python value; takes the name or flag for its message, raises ``UsageError``
    read: Callable[[Any, str], Any]
    show: Callable[[Any], Any] = _same  # to what JSON can hold and ``read`` reads again


def _refused(value: object, what: str, name: str, hint: str) -> UsageError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return UsageError(f"{name}: cannot read {shown} as {what}", hint=hint)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        raise _refused(value, "a name", name, "give a word or a path")
    return str(value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _refused(value, "yes or no", name, "give true or false")
    return value


def _whole(value: Any, name: str, *, least: int, most: int) -> int:
    limits = f"give {least} to {most}" if most < _MOST else f"give {least} or more"
    try:
        number = quantities.parse_count(value, option=name)
    except UsageError as error:
        is_negative = str(error).endswith("negative")
        raise _out_of_range(value, name, limits) if is_negative else error from None
    if not number.is_integer():
        raise _refused(value, "a whole number", name, limits)
    if not least <= number <= most:
        raise _out_of_range(value, name, limits)
    return int(number)


def _out_of_range(value: object, name: str, hint: str) -> UsageError:
    return UsageError(f"{name} {str(value)[:40]} is out of range", hint=hint)


def whole(least: int = 1, most: int = _MOST) -> ValueKind:
    """Return the kind of whole numbers between two bounds, both included."""
    return ValueKind(metavar="N", read=partial(_whole, least=least, most=most))


def choice(*words: str) -> ValueKind:
    """Return the kind of one of several words."""

    def read(value: Any, name: str) -> str:
        if value not in words:
            raise UsageError(
                f"{name} {str(value)[:40]!r} is unknown", hint=f"one of: {', '.join(words)}"
            )
        return str(value)

    return ValueKind(metavar="|".join(words), read=read)


def _bits(value: Any, name: str) -> int:
    if str(value) not in ("16", "8", "4"):
        raise _refused(value, "a number of bits", name, "one of: 16, 8, 4")
    return int(value)


def _positive(parse: Callable[..., float], value: Any, name: str) -> float:
    number = parse(value, option=name)
    if number <= 0:
        raise UsageError(f"{name}: {value} is not positive", hint="give more than 0")
    return number


def _names(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise _refused(value, "a list of names", name, "write e.g. aws,gcp")
    return tuple(word for one in value if (word := one.strip().lower()))


def _counts(value: Any, name: str) -> tuple[int, ...]:
    if isinstance(value, str):
        value = value.split(",")
    elif isinstance(value, int | float):
        value = [value]
    try:
        return tuple(_whole(one, name, least=0, most=_MOST) for one in value)
    except (TypeError, UsageError):
        raise UsageError(
            f"{name}: cannot read {value!r} as a list of whole numbers", hint="write e.g. 2,4,8"
        ) from None


def _spot(value: Any, name: str) -> tuple[str, ...]:
    return ("on-demand", "spot") if _flag(value, name) else ("on-demand",)


def _gpus(value: Any, name: str) -> GpuFilter:
    # The catalogue is heavy, and help needs none of it.
    from advisor.catalogue import GpuFilter, parse_gpus

    return value if isinstance(value, GpuFilter) else parse_gpus(_text(value, name))


def _gpus_shown(value: GpuFilter | None) -> str | None:
    from advisor.catalogue import gpus_text

    return None if value is None else gpus_text(value)


def _coverage(value: Any, name: str) -> float:
    known = {coverage for coverage in QUANTILES if str(coverage) == str(value).strip()}
    if not known:
        raise UsageError(
            f"{name} {str(value)[:40]} is not available",
            hint=f"one of: {', '.join(map(str, QUANTILES))}",
        )
    return known.pop()


def _power_price(value: Any, name: str) -> float:
    """Read what an hour of a machine costs: USD, or its power and the price of a kWh.

    >>> _power_price("0.05", "here_price"), _power_price("200W@0.30", "here_price")
    (0.05, 0.06)
    """
    found = _POWER.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return quantities.parse_usd(value, option=name)
    return float(found["watts"]) / 1000.0 * quantities.parse_usd(found["price"], option=name)


def _quantity(parse: Callable[..., float], metavar: str, *, is_positive: bool = True) -> ValueKind:
    if is_positive:
        return ValueKind(metavar=metavar, read=partial(_positive, parse))
    return ValueKind(metavar=metavar, read=lambda value, name: parse(value, option=name))


POWER_PRICE: Final = ValueKind(metavar="USD", read=_power_price)
TEXT: Final = ValueKind(metavar="TEXT", read=_text)
FLAG: Final = ValueKind(metavar="", read=_flag)
BITS: Final = ValueKind(metavar="16|8|4", read=_bits)
COVERAGE: Final = ValueKind(metavar="SHARE", read=_coverage)
NAMES: Final = ValueKind(metavar="NAMES", read=_names, show=",".join)
COUNTS: Final = ValueKind(metavar="N,N,...", read=_counts, show=list)
SPOT: Final = ValueKind(metavar="", read=_spot, show=lambda pricings: "spot" in pricings)
GPUS: Final = ValueKind(metavar="GPUS", read=_gpus, show=_gpus_shown)
HOURS: Final = _quantity(quantities.parse_hours, "DURATION")
WAIT: Final = _quantity(quantities.parse_hours, "DURATION", is_positive=False)
COUNT: Final = _quantity(quantities.parse_count, "COUNT")
RATE: Final = _quantity(quantities.parse_rate, "RATE")
BYTES: Final = _quantity(quantities.parse_bytes, "SIZE", is_positive=False)
USD: Final = _quantity(quantities.parse_usd, "USD", is_positive=False)
SHARE: Final = _quantity(quantities.parse_share, "SHARE", is_positive=False)
VALIDATION: Final = _quantity(
    partial(quantities.parse_share, most=100.0), "SHARE", is_positive=False
)


Part = Literal["job", "constraints", "layout", "setup", "cluster", "question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that can be asked."""

    # part, field: the record it is kept in, and the field there
    part: Part
    field: str
    kind: ValueKind
    help: str
    flags: tuple[str, ...] = ()  # on the command line; made of the name where empty


def _entries(
    part: Part,
    rows: Mapping[str, tuple[str, ValueKind, str] | tuple[str, ValueKind, str, tuple[str, ...]]],
) -> dict[str, Entry]:
    return {
        name: Entry(part=part, field=row[0], kind=row[1], help=row[2], flags=(*row[3:], ())[0])
        for name, row in rows.items()
    }


_JOB: Final = _entries("job", {
    "run": ("run", TEXT, "Recorded run: its name, part of it, or its folder "
            "(default: the latest)."),
    "job_file": ("job_file", TEXT, "Job file, as advisor predict --save-job writes it.",
                 ("--job",)),
    "model": ("model", TEXT, "A model that was never run: its name (llama-3.1-8b, or the "
              "id on the Hugging Face hub), or its config.json or folder."),
    "cnn": ("cnn", TEXT, "A convolutional network in numbers: side of the images, width of the "
            "stem, blocks x width of each stage, and kind of block (plain, basic or bottleneck). "
            "ResNet-50 is 224:64:3x256,4x512,6x1024,3x2048:bottleneck."),
    "runs": ("runs", TEXT, "Steps of the job measured elsewhere: a CSV with the columns "
             "machine, step and batch. Without a job, these runs alone describe it."),
    "runs_of": ("runs_of", TEXT, "Job to take from --runs, if its column job names several. The "
                "other jobs still say how fast their machines are."),
    "layers": ("layers", whole(), "Layers of a transformer, with --hidden and --heads."),
    "hidden": ("hidden", whole(), "Width of the transformer's hidden states."),
    "heads": ("heads", whole(), "Attention heads of a transformer layer; with --run, the "
              "heads that tensor parallelism can divide."),
    "kv_heads": ("kv_heads", whole(), "Key and value heads (default: as many as --heads)."),
    "ffn": ("ffn", whole(), "Inner width of the feed-forward block (default: 4 x --hidden)."),
    "gated": ("is_gated", FLAG, "The feed-forward block is gated, with three matrices "
              "(SwiGLU)."),
    "vocabulary": ("vocabulary", whole(0), "Tokens in the vocabulary (default: 50304)."),
    "experts": ("experts", whole(), "Experts of a mixture-of-experts layer (default: 1, dense)."),
    "experts_per_token": ("experts_per_token", whole(), "Experts that each token is sent to."),
    "sequence": ("sequence", whole(), "Tokens per sample (default: the model's longest, at most "
                 "8192; 2048 without a configuration)."),
    "image": ("image", whole(), "Side of an image in pixels, with --model."),
    "batch": ("batch", whole(), "Samples per step over all devices (default: as recorded, or as "
              "models of its kind are trained).", ("--batch", "--global-batch")),
    "precision": ("precision", choice("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"),
                  "Precision of products and activations: fp64, fp32, tf32, bf16, fp16, fp8, fp4 "
                  "(default: as recorded, or bf16)."),
    "epochs": ("epochs", COUNT, "Epochs the full training run will take (default: as found "
               "in the script)."),
    "total_steps": ("total_steps", COUNT, "Optimizer steps the full training run will take "
                    "(default: as found in the script)."),
    "total_samples": ("total_samples", COUNT, "Samples the full training run will see: 2M "
                      "(default: as found in the script)."),
    "tokens": ("tokens", COUNT, "Tokens the full training run will see: 15B or 2T."),
    "data": ("data_bytes", BYTES, "Data to copy to every machine before training: 120GB "
             "(default: as much as the loader read)."),
    "data_rate": ("data_bytes_per_s", RATE, "Maximum rate at which one machine can read "
                  "the data from its source: 100MB/s."),
    "download": ("download_bytes", BYTES, "Weights to download to every machine before training: "
                 "16GB (default: 2 bytes a parameter where only adapters or some layers are "
                 "trained, 0 otherwise)."),
    "checkpoint_rate": ("checkpoint_bytes_per_s", RATE, "Rate at which one machine writes a "
                        "checkpoint: 5GB/s to local disks (default: a volume with throughput for "
                        "a save a minute, 125 to 1,000 MiB/s)."),
    "results": ("result_bytes", BYTES, "Results to download at the end: 20GB (default: one "
                "checkpoint)."),
    "boot": ("boot_h", WAIT, "Time a rented machine takes to boot and to pull its image: "
             "90s or 5m (default: 2m)."),
    "validation": ("validation_fraction", VALIDATION, "Validation time after each epoch, "
                   "as a share of training time: 5% (default: as recorded)."),
})  # fmt: skip

_CONSTRAINTS: Final = _entries("constraints", {
    "budget": ("budget_usd", USD, "Maximum to spend on the job, in USD."),
    "deadline": ("deadline_h", HOURS, "Maximum time that the job may take: 6h, 90m, "
                 "1h30m or 2d."),
    "cloud": ("providers", NAMES, "Providers to consider, comma-separated: aws,gcp."),
    "region": ("region", TEXT, "Regions to consider, as a glob: 'us-*'."),
    "gpus": ("gpus", GPUS, "Accelerators of a machine, and how many: A100:8, L4, "
             "A100:4,H100:8 (either), A100:40GB..80GB:1..8. H100:16, more than a machine holds, "
             "is two of 8."),
    "max_nodes": ("max_nodes", whole(), "Maximum number of machines rented together "
                  "(default: 8)."),
    "max_price": ("max_price_usd_per_h", USD, "Maximum price of one machine, in USD per "
                  "hour."),
    "max_hourly": ("max_hourly_usd", USD, "Maximum price of all machines together, in USD "
                   "per hour."),
    "spot": ("pricings", SPOT, "Consider spot prices as well as on-demand ones.",
             ("--spot/--on-demand",)),
    "mixed": ("mixed", FLAG, "Consider several types of machines together, in one "
              "region (default: if equal machines do not suffice)."),
    "checkpoints": ("saves_checkpoints", FLAG, "Whether the job can resume from a "
                    "checkpoint, which spot machines need (default: it can)."),
    "known_network": ("known_network", FLAG, "Leave out machines whose network bandwidth is "
                      "assumed rather than known."),
    "dated": ("is_dated", FLAG, "Leave out offers whose price has no date."),
    "coverage": ("coverage", COVERAGE, "Probability that an interval holds the true value: "
                 "0.5, 0.8, 0.9 or 0.95 (default: 0.9)."),
    "confidence": ("confidence", SHARE, "Probability with which budget and deadline must "
                   "be kept: 90% (default: the expected cost and time keep them)."),
    "gain": ("least_gain_fraction", SHARE, "Show a row only if it is faster or cheaper "
             "than the others by this much; 0% shows every row that nothing beats (default: "
             "10%)."),
    "effort": ("effort_h", WAIT, "Work it takes you to rent one machine and set it up "
               "(default: 30m). Each further machine counts six times as much; 0 counts no work "
               "and no quotas of new accounts."),
    "here_price": ("here_usd_per_h", POWER_PRICE, "What an hour of this machine costs you, "
                   "in USD: 0.05, or its power and the price of a kWh: 200W@0.30 (default: 0)."),
    "top": ("top", whole(), "Maximum number of candidates to show (default: 10).",
            ("--top", "-n")),
    "probes": ("with_probes", FLAG, "Suggest the short real run that would help most "
               "to choose.",
               ("--probe/--no-probe",)),
})  # fmt: skip

_LAYOUT: Final = _entries("layout", {
    "tp": ("tp", whole(), "Use exactly this degree of tensor parallelism."),
    "pp": ("pp", whole(), "Use exactly this many pipeline stages."),
    "cp": ("cp", whole(), "Use exactly this degree of context parallelism."),
    "ep": ("ep", whole(), "Use exactly this degree of expert parallelism."),
    "zero": ("zero", whole(0, 3), "Use exactly this ZeRO stage: 0, 1, 2 or 3."),
    "recompute": ("recompute", choice("none", "selective", "full"),
                  "Use exactly this recomputation of activations: none, selective or full."),
    "micro_batch": ("micro_batch", whole(), "Samples per micro-batch on one device."),
    "accumulate": ("accumulate", whole(), "Micro-batches accumulated in each step."),
    "offload": ("offload", FLAG, "Allow states and activations to be moved to host memory "
                "(default: allowed)."),
    "swap": ("swap", FLAG, "Consider swapping layers in from host memory (ATOM; default: "
             "on GeForce cards)."),
    "average_every": ("average_every", whole(), "Steps between two averagings of GPUs that swap "
                      "layers (default: 8); 1 is synchronous SGD."),
})  # fmt: skip

# Those of ``planners.core.setup.STACKS``, which is not loaded to read a command line.
STACK_NAMES: Final = (
    "nemo", "megatron-core", "megatron-lm", "megatron-deepspeed", "deepspeed", "torchtitan",
    "llm-foundry", "trainer", "fsdp", "ddp", "ddp-compiled",
)  # fmt: skip
_SETUP: Final = _entries("setup", {
    "stack": ("stack", replace(choice(*STACK_NAMES), metavar="NAME"),
              "Training software, which sets kernels, overlap, loss, gradients, sharding and "
              f"recomputation: {', '.join(STACK_NAMES)} (default: the usual software for such "
              "a job)."),
    "kernels": ("kernels", choice("eager", "fused", "compiled"), "How pointwise operators run: "
                "eager, fused or compiled (default: as recorded, or eager)."),
    "attention": ("attention", choice("flash", "unfused"), "Attention kernel: flash or unfused "
                  "(default: flash)."),
    "optimizer": ("optimizer", choice("adamw", "adamw-8bit", "adamw-bf16", "sgd", "sgd-momentum",
                                      "adafactor"),
                  "Optimizer: adamw, adamw-8bit, adamw-bf16, sgd, sgd-momentum or adafactor "
                  "(default: as recorded, or adamw)."),
    "weights": ("weights", choice("fp32", "bf16"), "How weights are stored: fp32, or bf16 without "
                "an fp32 copy (default: fp32)."),
    "gradients": ("gradients", choice("fp32", "bf16"), "Precision of reduced gradients: fp32, "
                  "or bf16, which halves the traffic (default: as the stack does, or fp32)."),
    "lora": ("adapter_rank", whole(), "Train LoRA adapters of this rank in place of the weights."),
    "base_bits": ("base_bits", BITS, "Bits of each frozen weight under adapters: 16, 8 or "
                  "4 (default: 16)."),
    "frozen": ("frozen_fraction", SHARE, "Share of the parameters to freeze, starting at the "
               "input: 50%."),
    "overlap": ("overlaps", FLAG, "Reduce gradients while the backward pass runs (default: "
                "overlapped)."),
    "tp_overlap": ("overlaps_tensor", FLAG, "Run tensor-parallel exchanges behind products, "
                   "as asynchronous tensor parallelism does (default: as the stack does)."),
})  # fmt: skip

_CLUSTER: Final = _entries("cluster", {
    "cluster": ("machines", TEXT, "Machines you have: '2x a2-highgpu-8g + 4x "
                "g2-standard-48', '8xA100-80GB:nvlink@200Gbps,4xL4@25Gbps', or a .json or .toml "
                "file."),
    "within": ("within_h", HOURS, "Time for which the machines of --cluster train: how many "
               "tokens, samples and steps are finished in it; without a job, of models of "
               "several sizes.", ("--for",)),
    "cluster_trace": ("trace", TEXT, "Compare with your shared cluster: its sacct, kubectl "
                      "or CSV export."),
    "cluster_policy": ("policy", TEXT, "Order in which your cluster starts jobs: fifo, "
                       "fit-first, shortest, shortest-gpu, las, las-2d or gittins (default: "
                       "fifo)."),
    "cluster_devices": ("devices", COUNTS, "Devices to request from your cluster, e.g. 8 or "
                        "2,4,8 (default: one machine)."),
    "cluster_consolidated": ("is_consolidated", FLAG, "Assume that your cluster gives a "
                             "job one machine, or whole machines only."),
    "cluster_price": ("price_usd_per_device_h", USD, "What your cluster charges, in USD per "
                      "device and hour (default: 0)."),
})  # fmt: skip

_QUESTION: Final = _entries("question", {
    "catalogue": ("catalogue", TEXT, "Folder of a price snapshot other than the one in "
                  "use."),
    "overrides": ("overrides", TEXT, "Your own prices, machines and quotas (default: "
                  "overrides.csv in the configuration folder, if it is there)."),
    "objective": ("objective", choice("time", "cost"), "What to minimise: time or cost "
                  "(default: time)."),
    "completion": ("completion", choice(*COMPLETIONS[:4]), "What the job runs on until "
                   "it is done: on-demand, spot, spot-with-fallback or elastic-spot (default: "
                   "on-demand)."),
})  # fmt: skip

ENTRIES: Final[Mapping[str, Entry]] = {
    **_JOB, **_CONSTRAINTS, **_LAYOUT, **_SETUP, **_CLUSTER, **_QUESTION,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another name, and what its value means under the name it stands for."""

    name: str
    meaning: Callable[[Any], Any]
    help: str = ""


ALIASES: Final[Mapping[str, Alias]] = {
    "global_batch": Alias(name="batch", meaning=lambda value: value),
    "compile": Alias(
        name="kernels",
        meaning=lambda value: "compiled" if value else "eager",
        help="Run through torch.compile: short for --kernels compiled.",
    ),
    "finetune": Alias(
        name="stack",
        meaning=lambda value: "trainer" if value else None,
        help="Fine-tune as Hugging Face's Trainer does by default: short for --stack trainer.",
    ),
    "is_compiled": Alias(name="kernels", meaning=lambda value: "compiled" if value else None),
    "quantised_base": Alias(
        name="base_bits",
        meaning=lambda value: 4 if value else 16,
        help="Keep the frozen weights under the adapters in 4 bits (QLoRA).",
    ),
}
