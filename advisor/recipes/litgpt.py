"""LitGPT's YAML.

Defaults and meanings: litgpt 0.5.13 (``args.py``: ``TrainArgs``; ``finetune/lora.py``,
``finetune/full.py``, ``pretrain.py``) as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

from advisor.recipes.facts import Config

MARKS: Final = (("checkpoint_dir", "train.micro_batch_size"), ("train.global_batch_size",))
_OPTIMIZERS: Final = {
    "adamw": "adamw", "torch.optim.adamw": "adamw", "torch.optim.adam": "adamw", "adam": "adamw",
    "bitsandbytes.optim.adamw8bit": "adamw-8bit", "bitsandbytes.optim.pagedadamw": "paged-adamw",
    "torch.optim.sgd": "sgd",
}  # fmt: skip
_DIMENSIONS: Final = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "kv_heads": "n_query_groups",
    "ffn": "intermediate_size", "vocabulary": "padded_vocab_size",
}  # fmt: skip
_SIDES: Final = ("lora_query", "lora_value", "lora_key", "lora_projection", "lora_mlp")


def read(config: Config) -> dict[str, Any]:
    """Return what a LitGPT recipe says."""
    config.read |= {"data", "optimizer", "train", "model", "model_config", "lora_head"}
    is_pretraining = config.get("checkpoint_dir") is None
    adapted = "lora_r" in config.keys
    precision = config.text("precision") or "bf16-true"
    each, nodes = config.whole_or("devices", "auto"), config.whole("num_nodes") or 1
    ranks = None if each is None else each * nodes
    block = next((p for p in ("model", "model_config") if f"{p}.n_layer" in config.keys), None)
    facts: dict[str, Any] = {
        "sequence": config.whole("train.max_seq_length")
        or (config.whole(f"{block}.block_size") if block else None),
        "micro_batch": config.whole("train.micro_batch_size") or (4 if is_pretraining else 1),
        "batch": config.whole("train.global_batch_size") or (512 if is_pretraining else 16),
        "ranks": ranks,
        "total_steps": config.whole("train.max_steps"),
        "tokens": None if config.whole("train.max_steps") else config.whole("train.max_tokens"),
        "epochs_said": config.number("train.epochs") or (None if is_pretraining else 5.0),
        "precision": "bf16" if precision.startswith("bf16") else
        "fp16" if precision.startswith("16") else "fp32",
        "weights": "bf16" if precision == "bf16-true" else "fp32",
        "optimizer": config.choice(_OPTIMIZERS, "optimizer.class_path", "optimizer",
                                   default="AdamW"),
        # One device runs alone; several shard, and finetuning recomputes every block then.
        "stack": "ddp" if ranks == 1 else "fsdp",
        "recompute": "none" if is_pretraining or ranks == 1 else "full",
        "kernels": "compiled" if is_pretraining else "eager",
        "packed": is_pretraining,
        "data": [config.text("data.class_path", "data") or "its data"],
    }  # fmt: skip
    if is_pretraining:
        facts["stack"] = "ddp-compiled" if ranks == 1 else "fsdp"
    if adapted:
        sides = [name for name in _SIDES if config.flag(name, default=name in _SIDES[:2])]
        bits = config.text("quantize") or ""
        facts |= {
            "lora": config.whole("lora_r") or 8,
            "lora_targets": "all-linear" if "lora_mlp" in sides else
            "query-value" if set(sides) <= set(_SIDES[:2]) else "attention",
            "base_bits": 4 if bits.startswith(("bnb.nf4", "bnb.fp4")) else 8 if "int8" in bits
            else 16,
        }  # fmt: skip
    return facts | _model(config, block)


def _model(config: Config, block: str | None) -> dict[str, Any]:
    """Return the dimensions where they stand here, else the model's name."""
    if block is not None:
        facts: dict[str, Any] = {
            name: config.whole(f"{block}.{key}") for name, key in _DIMENSIONS.items()
        }
        config.read |= {key for key in config.keys if key.startswith(f"{block}.")}
        mlp = str(config.get(f"{block}.mlp_class_name") or "")
        return facts | {"gated": mlp in ("LLaMAMLP", "GemmaMLP"), "tied": False}
    path = config.text("checkpoint_dir")
    name = config.text("model_name") or (None if path is None else PurePosixPath(path).name)
    return {"model": name}
