"""Measured runs that a user could describe, as columns of the layout model.

A table that states the model, the software's setup, the layout and the machines of every run needs
no rules of its own (``layout_rows`` has those of the older tables): each run is what the product
makes of the same question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.estimate.knowledge.layout_model import (
    PRECISION_CODES,
    passed_share,
    software_of,
    trained_share,
)
from advisor.lab.data import BLACKWELL, FINETUNE
from advisor.lab.fit.layout_rows import LayoutRows, known_part
from advisor.planners.core.arrays import (
    Floats,
    Layouts,
    Machines,
    Shapes,
    Software,
    layer_parameters,
    shapes_of,
)
from advisor.planners.core.errors import GIB, bytes_per_s
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Precision, TrainingSetup, Transformer
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.step.describe import transformer_work


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """One measured run as a question, with its answer."""

    row_id: str
    table: str
    model: str
    gpu: str  # an accelerator of the catalogue
    transformer: Transformer
    setup: TrainingSetup
    precision: Precision
    layout: Layout
    per_node: int  # accelerators of a machine
    network_bytes_per_s: float  # of a machine, per direction [bytes/s]
    measured_s: float  # step time [s]
    stack: str  # what its user would name, a release of it where it is known
    domain_machines: int = 1  # that one link joins
    # columns of ``Software`` that its release had otherwise than the stack has today
    software: Mapping[str, float] = field(default_factory=dict)


def columns_of(runs: Sequence[AskedRun]) -> LayoutRows:
    """Return runs as columns, those whose accelerator the catalogue has a rate of.

    Raises ValueError if none is left.
    """
    known = [run for run in runs if known_part(run.gpu) is not None]
    if not known:
        raise ValueError("no run on a known accelerator")
    works = [
        transformer_work(r.transformer, micro_batch=1, precision=r.precision, setup=r.setup)
        for r in known
    ]
    shapes = [
        shapes_of(r.transformer, trained_share=trained_share(w), passed_share=passed_share(w))
        for r, w in zip(known, works, strict=True)
    ]
    same = ("row_id", "table", "gpu", "model", "measured_s", "precision")
    own: dict[str, Any] = {name: np.array([getattr(r, name) for r in known]) for name in same}
    return LayoutRows(
        **own,
        devices=np.array([r.layout.devices for r in known]),
        global_batch=np.array([r.layout.global_batch for r in known]),
        **{
            f"is_{name}_stated": np.ones(len(known), dtype=bool)
            for name in ("recompute", "micro_batch", "zero", "chunks")
        },
        stack=np.array([r.stack for r in known]),
        is_tuned=np.array([r.stack == "trainer" for r in known]),
        shapes=_stacked(Shapes, shapes),
        layouts=_stacked(Layouts, [layout_columns(r.layout) for r in known]),
        machines=_stacked(Machines, [_machines(r) for r in known]),
        software=_stacked(
            Software,
            [replace(software_of(w), **r.software) for r, w in zip(known, works, strict=True)],
        ),
        left_out=len(runs) - len(known),
    )


def joined(first: LayoutRows, second: LayoutRows) -> LayoutRows:
    """Return the rows of both."""

    def columns(kind: Any, *parts: Any) -> Any:
        both = tuple(zip(parts, (first, second), strict=True))
        return kind(**{
            c.name: np.concatenate(
                [np.broadcast_to(getattr(part, c.name), len(rows)) for part, rows in both]
            )
            for c in fields(kind)
        })  # fmt: skip

    whole: dict[str, Any] = {}
    for f in fields(LayoutRows):
        one, other = getattr(first, f.name), getattr(second, f.name)
        if isinstance(one, int):
            whole[f.name] = one + other
        elif isinstance(one, np.ndarray):
            whole[f.name] = np.concatenate([one, other])
        else:
            whole[f.name] = columns(type(one), one, other)
    return LayoutRows(**whole)


def _machines(run: AskedRun) -> Machines:
    found = known_part(run.gpu)
    assert found is not None
    accelerator = found
    return Machines(
        flop_per_s=accelerator.flop_per_s,
        memory_bytes_per_s=accelerator.memory_bytes_per_s,
        memory_bytes=accelerator.memory_bytes,
        intra_bytes_per_s=accelerator.peer_bytes_per_s,
        network_bytes_per_s=run.network_bytes_per_s,
        devices_per_node=run.per_node,
        domain_machines=run.domain_machines,
        generation=accelerator.kernels,
        precision=PRECISION_CODES[run.precision],
        elementwise_flop_per_s=accelerator.elementwise_flop_per_s,
        is_ultra=int(accelerator.is_ultra),
        relative_power=accelerator.relative_power,
    )


def _stacked(kind: Any, records: Sequence[Any]) -> Any:
    """Return scalar records of one kind as a record of columns."""
    return kind(
        **{
            f.name: np.array([np.asarray(getattr(r, f.name)) for r in records])
            for f in fields(kind)
        }
    )


# Megatron steps on one node of eight B200 (``lab.data.BLACKWELL``).
#
# Megatron Core with Transformer Engine: kernels fused by hand, fp32 gradients, the distributed
# optimizer, and no overlap of the gradients' reduction. ``allocated_gib`` is PyTorch's largest
# allocation on the fullest rank: no context, no fragments. Rows with latent attention (DeepSeek)
# are left out: no question describes its products.


TABLE: Final = "blackwell"
SETUP: Final = TrainingSetup(kernels="fused", overlaps=False)
# Not stated and not used: one node.
_NETWORK_BYTES_PER_S: Final = bytes_per_s(3200)


def read(data: Path) -> tuple[list[AskedRun], Floats, int]:
    """Read the steps under ``data``.

    Raises ModelError if the table is missing or damaged.

    Returns
    -------
    allocated_bytes : array
        Measured on the fullest rank. [bytes]
    """
    try:
        rows = BLACKWELL.read("steps", data).to_dict("records")
        kept = [row for row in rows if row["attention"] == "gqa" and int(row["experts"]) == 1]
        runs = [_run(row) for row in kept]
        allocated = np.array([float(row["allocated_gib"]) * GIB for row in kept])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read {BLACKWELL.title}: {error}",
            hint="name a folder laid out like shared/data",
        ) from error
    return runs, allocated, len(rows) - len(kept)


def _run(row: dict[Any, Any]) -> AskedRun:
    def whole(*names: str) -> dict[str, Any]:
        return {name: int(row[name]) for name in names}

    tp, sizes = int(row["tp"]), ("layers", "hidden", "heads", "kv_heads", "ffn", "sequence")
    return AskedRun(
        row_id=row["case"],
        table=TABLE,
        model=row["model"],
        gpu=row["accelerator"],
        transformer=Transformer(
            **whole(*sizes, "vocabulary"), is_gated=True, has_tied_embeddings=False
        ),
        setup=SETUP,
        precision="bf16",
        layout=Layout(
            **whole("dp", "tp", "pp", "micro_batch"),
            accumulation_steps=int(row["micro_batches"]),
            zero_stage=int(row["zero_stage"]) if int(row["dp"]) > 1 else 0,
            recompute="none",
            is_sequence_parallel=tp > 1,
        ),
        per_node=int(row["accelerators"]),
        network_bytes_per_s=_NETWORK_BYTES_PER_S,
        measured_s=float(row["step_s"]),
        stack="megatron-core",
    )


# Fine-tuning runs of Hugging Face's trainer (``lab.data.FINETUNE``) as questions.
#
# IBM's runs (fms-hf-tuning: SFTTrainer, FSDP over the GPUs, bf16). What the table does not state
# is filled here, each a fact of that stack or marked as a guess:
#
# - Weights, gradients and both moments are bf16: an 8B model trains on one GPU of 80 GB.
# - Activations are recomputed (``gradient_checkpointing``): throughput grows smoothly from batches
#   that fit without to those that do not.
# - Kernels are PyTorch's own, with FlashAttention 2; nothing is accumulated: ``batch_size`` is the
#   samples of a step over all GPUs.
# - LoRA adapts queries and values with rank 8 (peft's defaults).
# - The network is that of the accelerator's usual machine, DGX A100's 8 x 200 Gb/s (a guess, for
#   the seven runs on several machines).
#
# Dimensions are those of the models' ``config.json``. Left out are models with state-space layers
# and runs that state more products than the accelerator's datasheet allows.


FINETUNE_ROWS_TABLE: Final = "finetune"
_GPUS: Final = {
    "NVIDIA-A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA-A100-80GB-PCIe": "A100-PCIe-80GB",
    "NVIDIA-H100-PCIe": "H100-PCIe-80GB",
    "L40S": "L40S",
}
_FINETUNE_ROWS_NETWORK_BYTES_PER_S: Final = bytes_per_s(1600)
_RANK: Final = 8


def _llama(layers: int, hidden: int, heads: int, kv: int, ffn: int, **more: Any) -> dict[str, Any]:
    """Return Llama's form: gated blocks, rotated positions."""
    sizes = {"vocabulary": 49155, "is_gated": True, "has_tied_embeddings": True, **more}
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "ffn": ffn, **sizes
    }  # fmt: skip


def _bigcode(layers: int, hidden: int, heads: int, vocabulary: int) -> dict[str, Any]:
    """Return GPT-BigCode's form: one key and value head, plain blocks four times as wide."""
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": 1, "ffn": 4 * hidden,
        "vocabulary": vocabulary,
    }  # fmt: skip


# From the models' config.json on the hub.
MODELS: Final[dict[str, dict[str, Any]]] = {
    "granite-3.1-2b": _llama(40, 2048, 32, 8, 8192),
    "granite-3.1-8b-instruct": _llama(40, 4096, 32, 8, 12800),
    "granite-3-8b": _llama(40, 4096, 32, 8, 12800),
    "granite-3.3-8b": _llama(40, 4096, 32, 8, 12800),
    "granite-3.1-3b-a800m-instruct": _llama(32, 1536, 24, 8, 512, experts=40, experts_per_token=8),
    "granite-4.0-350m": _llama(28, 1024, 16, 4, 2048, vocabulary=100352),
    "granite-4.0-1b": _llama(40, 2048, 16, 4, 4096, vocabulary=100352),
    "granite-3b-code-base-128k": _llama(32, 2560, 32, 32, 10240, vocabulary=49152),
    "allam-1-13b": _llama(40, 5120, 40, 40, 13824, vocabulary=64000, has_tied_embeddings=False),
    "granite-13b-v2": _bigcode(40, 5632, 44, 50304),
    "granite-20b-v2": _bigcode(52, 6144, 48, 49152),
    "granite-34b-code-base": _bigcode(88, 6144, 48, 49152),
}
SETUPS: Final = {
    "full": TrainingSetup(kernels="eager", weights="bf16", gradients="bf16"),
    "lora": TrainingSetup(
        kernels="eager", weights="bf16", adapter_rank=_RANK, adapter_targets="query-value"
    ),
    "gptq-lora": TrainingSetup(
        kernels="eager", weights="bf16", adapter_rank=_RANK, adapter_targets="all-linear",
        base_bits=4,
    ),
}  # fmt: skip


def finetune_rows_read(data: Path) -> tuple[list[AskedRun], int]:
    """Read the runs under ``data``, and how many are left out.

    Raises ModelError if the table is missing or has no run that can be asked.
    """
    try:
        table = FINETUNE.read("runs", data).to_dict("records")
        asked = [
            run for i, row in enumerate(table) if (run := _finetune_rows_run(i, row)) is not None
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read {FINETUNE.title}: {error}",
            hint="name a folder laid out like shared/data",
        ) from error
    runs = [run for run in asked if is_possible(run)]
    if not runs:
        raise ModelError(f"{FINETUNE.title} under {data} hold none of a known model")
    return runs, len(table) - len(runs)


def fold(kind: str, name: str) -> str:
    """Return the name of the constants fitted without the runs of a model or an accelerator."""
    return f"{FINETUNE_ROWS_TABLE} without {kind} {name}"


def is_possible(run: AskedRun) -> bool:
    """Whether the datasheet's rate allows a run's products, nothing recomputed.

    A token meets every active parameter twice forward, twice for its input's gradient, and twice
    for the weights' own where they are trained.
    """
    found = known_part(run.gpu)
    peak = found.peak_flop_per_s("bf16") if found else None
    if peak is None:
        return True
    times = 4 if run.setup.has_adapters else 6
    active = layer_flop_parameters(run.transformer) * run.transformer.layers
    tokens = run.layout.global_batch * run.transformer.sequence / run.layout.devices
    return times * active * tokens / run.measured_s <= peak


def layer_flop_parameters(model: Transformer) -> float:
    """Return the parameters of one layer that a token meets."""
    attention, ffn = layer_parameters(shapes_of(model))
    return float(attention + ffn * model.experts_per_token)


def _finetune_rows_run(number: int, row: dict[Any, Any]) -> AskedRun | None:
    name, gpu = row["model"], _GPUS.get(row["accelerator"])
    if name not in MODELS or gpu is None or float(row["is_valid"]) != 1:
        return None
    devices, nodes = int(row["accelerators"]), int(row["nodes"])
    batch, sequence = int(row["global_batch"]), int(row["sequence"])
    return AskedRun(
        row_id=f"{FINETUNE_ROWS_TABLE}-{number:04d}",
        table=FINETUNE_ROWS_TABLE,
        model=name,
        gpu=gpu,
        transformer=Transformer(sequence=sequence, **MODELS[name]),
        setup=SETUPS[row["method"]],
        precision="bf16",
        layout=Layout(
            dp=devices,
            micro_batch=max(batch // devices, 1),
            zero_stage=3 if devices > 1 else 0,
            recompute="full",
        ),
        per_node=devices // nodes,
        network_bytes_per_s=_FINETUNE_ROWS_NETWORK_BYTES_PER_S,
        measured_s=batch * sequence / float(row["tokens_per_s"]),
        stack="trainer",
    )
