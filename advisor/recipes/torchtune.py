"""torchtune's YAML.

Defaults and meanings: torchtune 0.6.1 (``recipes/configs``, ``recipes/full_finetune_distributed``
and ``lora_finetune_distributed``, ``models/*/_model_builders.py``) as its package on PyPI has it;
read 2026-11-29.
"""

from __future__ import annotations

import re
from typing import Any, Final

from advisor.recipes.facts import Config
from advisor.recipes.hugging_face import refuse_stage

MARKS: Final = (("model._component_", "optimizer._component_"),)
_OPTIMIZERS: Final = {
    "torch.optim.adamw": "adamw", "torch.optim.adam": "adamw", "torch.optim.sgd": "sgd",
    "bitsandbytes.optim.pagedadamw": "paged-adamw", "bitsandbytes.optim.adamw8bit": "adamw-8bit",
    "bitsandbytes.optim.pagedadamw8bit": "paged-adamw-8bit",
    "torchao.optim.adamw8bit": "adamw-8bit", "torchao.optim.adamw4bit": "adamw-4bit",
    "torchao.prototype.low_bit_optim.adamw8bit": "adamw-8bit",
    "torchao.prototype.low_bit_optim.adamw4bit": "adamw-4bit",
}  # fmt: skip
# Builders whose names are not their model's with other punctuation.
_MODELS: Final = {
    "mistral_7b": "mistralai/Mistral-7B-v0.1", "phi3_mini": "phi-3-mini", "phi4_14b": "phi-4",
    "code_llama2_7b": "codellama-7b", "code_llama2_13b": "codellama-13b",
    "code_llama2_70b": "codellama-70b",
}  # fmt: skip
_FAMILY: Final = re.compile(r"(llama|gemma|qwen)(\d)(?:_(\d)(?=_\d+(?:_\d+)?b|_v))?_(.+)")
_OTHERS: Final = ("teacher_model", "policy_model", "reward_and_value_model", "ref_checkpointer")


def model_of(builder: str) -> str:
    """Return the name of the model that a builder makes.

    >>> [model_of(one) for one in ("llama3_1_8b", "qwen2_5_1_5b_instruct", "gemma_2b", "phi4_14b")]
    ['llama-3.1-8b', 'Qwen2.5-1.5b-instruct', 'gemma-2b', 'phi-4']
    """
    if builder in _MODELS:
        return _MODELS[builder]
    match = _FAMILY.fullmatch(builder)
    if match is None:
        return builder.replace("_", "-")
    family, major, minor, rest = match.groups()
    number = f"{major}.{minor}" if minor else major
    rest = re.sub(r"(?<=\d)_(?=\d+b)", ".", rest).replace("_", "-")
    return f"Qwen{number}-{rest}" if family == "qwen" else f"{family}-{number}-{rest}"


def read(config: Config) -> dict[str, Any]:
    """Return what a torchtune recipe says."""
    losses = config.text("loss._component_") or "torchtune.modules.loss.LinearCrossEntropyLoss"
    if any(f"{one}._component_" in config.keys for one in _OTHERS):
        refuse_stage(config, "several models", ())
    refuse_stage(config, next((s for s in ("DPO", "PPO", "GRPO") if s in losses), None), ())
    builder = (config.text("model._component_") or "").rpartition(".")[2]
    plain = re.sub(r"^q?lora_", "", builder)
    is_adapted, is_packed = plain != builder, config.flag("dataset.packed")
    config.read |= {"model", "optimizer", "loss", "dataset", "device", "shuffle", "low_cpu_ram",
                    "custom_sharded_layers", "fsdp_reshard_after_forward"}  # fmt: skip
    steps, epochs = config.whole("max_steps_per_epoch"), config.number("epochs") or 1.0
    is_16bit = (config.text("dtype") or "bf16") in ("bf16", "fp16")
    offloads = config.flag("fsdp_cpu_offload")
    return {
        "stack": "torchtune",
        "model": model_of(plain) if plain else None,
        "sequence": config.whole("tokenizer.max_seq_len", "dataset.max_seq_len"),
        "micro_batch": config.whole("batch_size") or 1,
        "accumulation": config.whole("gradient_accumulation_steps") or 1,
        "total_steps": epochs * steps if steps else None,
        "epochs_said": epochs,
        "precision": config.text("dtype") or "bf16",
        "weights": "bf16" if is_16bit else "fp32",
        "optimizer": config.choice(_OPTIMIZERS, "optimizer._component_",
                                   default="torch.optim.AdamW"),
        "optimizer_in_backward": config.flag("optimizer_in_bwd") or None,
        "recompute": "full" if config.flag("enable_activation_checkpointing") else "none",
        "offload": ("activations",) if config.flag("enable_activation_offloading")
        else ("optimizer", "parameters") if offloads else False,
        "loss": "eager" if losses.endswith("nn.CrossEntropyLoss") else "chunked",
        "kernels": "compiled" if config.flag("compile") else "eager",
        "packed": is_packed,
        "data": [config.text("dataset.source", "dataset.data_files", "dataset._component_")],
        "tp": config.whole("tensor_parallel_dim"),
    } | (_adapters(config, builder) if is_adapted else {})  # fmt: skip


def _adapters(config: Config, builder: str) -> dict[str, Any]:
    sides = set(config.words("model.lora_attn_modules"))
    is_wide = config.flag("model.apply_lora_to_mlp")
    is_narrow = sides <= {"q_proj", "v_proj"}
    is_4bit = builder.startswith("qlora_") or config.flag("model.quantize_base")
    config.read |= {"model.apply_lora_to_output", "model.use_dora"}
    return {
        "lora": config.whole("model.lora_rank") or 8,
        "lora_targets": "all-linear" if is_wide else "query-value" if is_narrow
        else "attention",
        "base_bits": 4 if is_4bit else 16,
    }  # fmt: skip
