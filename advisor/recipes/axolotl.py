"""Axolotl's YAML.

Defaults and meanings: axolotl 0.21 (``utils/schemas/config.py``, ``training.py``, ``peft.py``,
``enums.py``; ``utils/config/__init__.py``: ``torch_dtype``; ``integrations/liger/args.py``) as its
package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

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

MARKS: Final = (("base_model", "micro_batch_size"), ("base_model", "sequence_len"))
_ADAPTERS: Final = ("lora", "qlora", "dora")
# Older switches for what ``attn_implementation`` names now.
_ATTENTION_FLAGS: Final = ("flash_attention", "sdp_attention", "flex_attention",
                           "xformers_attention", "eager_attention")  # fmt: skip
# What changes neither sizes nor kernels.
_SAME: Final = (
    "strict", "is_llama_derived_model", "model_type", "type_of_model", "pad_to_sequence_len",
    "eval_sample_packing", "gradient_checkpointing_kwargs", "flex_attn_compile_kwargs", "lora_fan_"
    "in_fan_out", "torch_compile_mode", "torch_compile_backend", "low_cpu_mem_usage",
    "remove_unused_columns", "base_model_config", "resize_token_embeddings_to_32x",
    "torchdistx_path",
    "sample_packing_group_size", "sample_packing_bin_size", "sample_packing_sequentially",
    "s2_attention", "gptq_groupsize", "gptq_model_v1", "fp8_enable_fsdp_float8_all_gather",
)  # fmt: skip


def read(config: Config) -> dict[str, Any]:
    """Return what an Axolotl recipe says."""
    refuse_stage(config, config.text("rl"), ())
    config.read |= set(_SAME)
    products = precision(config, bf16=True)
    offloads = config.get("gradient_checkpointing") in ("offload", "offload_disk")
    if offloads:
        config.keys["gradient_checkpointing"] = True
    packed = config.flag("sample_packing")
    data = [
        one.get("path") or one.get("data_files") for one in _list(config, "datasets") if one
    ]  # fmt: skip
    pretraining = _list(config, "pretraining_dataset")
    facts: dict[str, Any] = {
        "stack": "trainer",
        "model": config.text("base_model"),
        "sequence": config.whole("sequence_len") or 512,
        "micro_batch": config.whole("micro_batch_size") or 1,
        "accumulation": config.whole("gradient_accumulation_steps") or 1,
        "total_steps": config.whole("max_steps"),
        "epochs_said": config.number("num_epochs") or 1.0,
        "precision": "fp8" if config.flag("fp8") else products,
        # Loaded in the precision of the products, and trained so (``torch_dtype``).
        "weights": "bf16" if products in ("bf16", "fp16") else "fp32",
        "optimizer": config.choice(OPTIMIZERS, "optimizer", default="adamw_torch_fused"),
        "recompute": "full" if config.flag("gradient_checkpointing") else "none",
        "attention": _attention(config),
        "packed": packed or bool(pretraining),
        "data": data or [one.get("path") for one in pretraining],
        "tp": config.whole("tensor_parallel_size"),
        "cp": config.whole("context_parallel_size", "sequence_parallel_degree"),
        "ep": config.whole("expert_parallel_size"),
        "offload": ("activations",)
        if offloads or config.get("activation_offloading") not in (None, False)
        else None,
    }
    facts |= _adapter(config) | _kernels(config)
    shards = sharding(config)
    if "lora" in facts:
        shards.pop("weights", None)
    config.read |= {"fsdp_version", "dp_shard_size", "dp_replicate_size"}
    shards |= {"zero": 3} if config.whole("dp_shard_size") and not shards.get("zero") else {}
    if shards.get("offload") is False and facts["offload"]:
        del shards["offload"]
    return facts | {name: value for name, value in shards.items() if value is not None}


def _list(config: Config, name: str) -> list[dict[str, Any]]:
    value = config.get(name)
    values = value if isinstance(value, list) else [value] if value else []
    return [one if isinstance(one, dict) else {"path": str(one)} for one in values]


def _attention(config: Config) -> Any:
    old = [name for name in _ATTENTION_FLAGS if config.flag(name)]
    if "eager_attention" in old:
        return "unfused"
    # transformers takes SDPA where nothing is said.
    return config.choice(ATTENTIONS, "attn_implementation", default="sdpa")


def _adapter(config: Config) -> dict[str, Any]:
    kind = config.text("adapter")
    is_4bit, is_8bit = config.flag("load_in_4bit"), config.flag("load_in_8bit")
    if kind is None:
        return {}
    if kind not in _ADAPTERS:
        raise UsageError(
            f"{config.path}: adapter {kind[:20]!r} is not described",
            hint="say what it comes to: --lora RANK",
        )
    is_linear = config.flag("lora_target_linear")
    named = config.get("lora_target_modules")
    words = named if isinstance(named, list) else [str(named)] if named else []
    return {
        "lora": config.whole("lora_r") or 8,
        "lora_targets": "all-linear" if is_linear or not words else targets(map(str, words)),
        "base_bits": 4 if is_4bit or kind == "qlora" else 8 if is_8bit else 16,
    }


def _kernels(config: Config) -> dict[str, Any]:
    """Return what plugins of kernels change: Liger's, cut cross entropy, Axolotl's own."""
    plugins = " ".join(config.words("plugins")).lower()
    facts: dict[str, Any] = {}
    fused = [
        config.flag(name)
        for name in ("liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_glu_activation",
                     "liger_swiglu", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel",
                     "flash_attn_rms_norm", "flash_attn_fuse_mlp", "flash_attn_fuse_qkv",
                     "liger_rms_norm_gated")
    ]  # fmt: skip
    if config.flag("torch_compile"):
        facts["kernels"] = "compiled"
    elif any(fused):
        facts["kernels"] = "fused"
    chunked = config.flag("cut_cross_entropy", default="cutcrossentropy" in plugins)
    if config.flag("liger_fused_linear_cross_entropy") or config.flag("chunked_cross_entropy"):
        chunked = True
    if chunked:
        facts["loss"] = "chunked"
    elif config.flag("liger_cross_entropy") or config.flag("flash_attn_cross_entropy"):
        facts["loss"] = "fused"
    return facts
