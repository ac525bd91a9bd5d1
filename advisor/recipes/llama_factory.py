"""LLaMA-Factory's YAML or JSON.

Defaults and meanings: llamafactory 0.9.5 (``hparams/data_args.py``, ``finetuning_args.py``,
``model_args.py``; ``model/adapter.py``: ``cast_trainable_params_to_fp32``), on the
``TrainingArguments`` of transformers, as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from advisor.errors import UsageError
from advisor.recipes.facts import Config
from advisor.recipes.hugging_face import (
    ATTENTIONS,
    OPTIMIZERS,
    precision,
    refuse_stage,
    sharding,
    targets,
)

MARKS: Final = (
    ("model_name_or_path", "finetuning_type"), ("model_name_or_path", "stage", "template"),
    ("model_name_or_path", "cutoff_len"),
)  # fmt: skip
_SAME: Final = ("do_train", "do_eval", "pure_bf16", "streaming", "buffer_size", "mix_strategy",
                "use_fast_tokenizer", "template", "media_dir", "freeze_trainable_modules",
                "double_quantization", "quantization_type", "quantization_method",
                "do_predict", "neat_packing", "gradient_checkpointing", "attn", "rope_scaling")  # fmt: skip


def read(config: Config) -> dict[str, Any]:
    """Return what a LLaMA-Factory recipe says."""
    config.read |= set(_SAME)
    stage = config.text("stage") or "sft"
    refuse_stage(config, stage, ("sft", "pt"))
    kind = config.text("finetuning_type") or "lora"
    if kind not in ("lora", "full"):
        raise UsageError(
            f"{config.path}: finetuning_type {kind[:20]!r} is not described",
            hint="say what it comes to: --lora RANK, or --frozen SHARE",
        )
    is_full, is_packed = kind == "full", config.flag("packing", default=stage == "pt")
    products = precision(config)
    names = config.words("dataset")
    most = config.whole("max_samples")
    facts: dict[str, Any] = {
        "stack": "unsloth" if config.flag("use_unsloth") else "trainer",
        "model": config.text("model_name_or_path"),
        "sequence": config.whole("cutoff_len") or 2048,
        "micro_batch": config.whole("per_device_train_batch_size") or 8,
        "accumulation": config.whole("gradient_accumulation_steps") or 1,
        "total_steps": config.whole("max_steps"),
        "epochs_said": config.number("num_train_epochs") or 3.0,
        "precision": "fp8" if config.flag("fp8") else products,
        # What is trained is upcast to fp32 unless asked otherwise.
        "weights": "bf16" if config.flag("pure_bf16") else "fp32",
        "optimizer": _optimizer(config),
        "recompute": "none" if config.flag("disable_gradient_checkpointing") else "full",
        "attention": config.choice(ATTENTIONS, "flash_attn", default="auto"),
        "kernels": "compiled" if config.flag("torch_compile") else None,
        "packed": is_packed or config.flag("neat_packing"),
        "data": names,
        "samples": _samples(config, names, most),
    }  # fmt: skip
    if config.flag("enable_liger_kernel"):
        facts |= {"loss": "chunked", "kernels": facts["kernels"] or "fused"}
    if not is_full:
        bits = config.whole("quantization_bit") or 16
        facts |= {
            "lora": config.whole("lora_rank") or 8,
            "lora_targets": targets(config.words("lora_target") or ["all"]),
            "base_bits": bits if bits in (4, 8) else 16 if bits > 8 else 4,
        }
    shards = sharding(config)
    if not is_full:
        shards.pop("weights", None)
    return facts | {name: value for name, value in shards.items() if value is not None}


def _optimizer(config: Config) -> Any:
    named = config.choice(OPTIMIZERS, "optim", default="adamw_torch")
    is_muon, is_galore = config.flag("use_muon"), config.flag("use_galore")
    return "muon" if is_muon else "galore" if is_galore else named


def _samples(config: Config, names: list[str], most: int | None) -> int | None:
    """Return the samples of data sets here, whose files ``dataset_info.json`` names."""
    from advisor.recipes.facts import local_samples

    folder = config.path.parent / (config.text("dataset_dir") or "data")
    try:
        known = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        files = [str(Path(folder.name) / known[name]["file_name"]) for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    counts = [local_samples(folder.parent, [file]) for file in files]
    if not counts or None in counts:
        return None
    return sum(min(count or 0, most or count or 0) for count in counts)
