"""Fine-tuning runs of Hugging Face's trainer (``measurements.FINETUNE``) as questions.

IBM's runs (fms-hf-tuning: SFTTrainer, FSDP over the GPUs, bf16). What the table does not state is
filled here, each a fact of that stack or marked as a guess:

- Weights, gradients and both moments are bf16: an 8B model trains on one GPU of 80 GB.
- Activations are recomputed (``gradient_checkpointing``): throughput grows smoothly from batches
  that fit without to those that do not.
- Kernels are PyTorch's own, with FlashAttention 2; nothing is accumulated: ``batch_size`` is the
  samples of a step over all GPUs.
- LoRA adapts queries and values with rank 8 (peft's defaults).
- The network is that of the accelerator's usual machine, DGX A100's 8 x 200 Gb/s (a guess, for
  the seven runs on several machines).

Dimensions are those of the models' ``config.json``. Left out are models with state-space layers
and runs that state more products than the accelerator's datasheet allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from advisor.errors import ModelError
from advisor.lab.data import FINETUNE
from advisor.planners.core.columns import layer_parameters, shapes_of
from advisor.planners.core.nouns import Layout, TrainingSetup, Transformer
from advisor.planners.core.units import bytes_per_s
from advisor.train.asked_rows import AskedRun
from advisor.train.layout_rows import known_part

TABLE: Final = "finetune"
_GPUS: Final = {
    "NVIDIA-A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA-A100-80GB-PCIe": "A100-PCIe-80GB",
    "NVIDIA-H100-PCIe": "H100-PCIe-80GB",
    "L40S": "L40S",
}
_NETWORK_BYTES_PER_S: Final = bytes_per_s(1600)
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


def read(data: Path) -> tuple[list[AskedRun], int]:
    """Read the runs under ``data``, and how many are left out.

    Raises ModelError if the table is missing or has no run that can be asked.
    """
    try:
        table = FINETUNE.read("runs", data).to_dict("records")
        asked = [run for i, row in enumerate(table) if (run := _run(i, row)) is not None]
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
    return f"{TABLE} without {kind} {name}"


def is_possible(run: AskedRun) -> bool:
    """Whether the datasheet's rate allows a run's products, nothing recomputed.

    A token meets every active parameter twice forward, twice for its input's gradient, and twice
    for the weights' own where they are trained.
    """
    found = known_part(run.gpu)
    peak = found[0].device.bf16_flop_per_s if found else None
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


def _run(number: int, row: dict[Any, Any]) -> AskedRun | None:
    name, gpu = row["model"], _GPUS.get(row["accelerator"])
    if name not in MODELS or gpu is None or float(row["is_valid"]) != 1:
        return None
    devices, nodes = int(row["accelerators"]), int(row["nodes"])
    batch, sequence = int(row["global_batch"]), int(row["sequence"])
    return AskedRun(
        row_id=f"{TABLE}-{number:04d}",
        table=TABLE,
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
        network_bytes_per_s=_NETWORK_BYTES_PER_S,
        measured_s=batch * sequence / float(row["tokens_per_s"]),
    )
