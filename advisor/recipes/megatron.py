"""Megatron-LM's launch scripts (``pretrain_gpt.py`` and its arguments), and NeMo's YAML.

Defaults and meanings: ``megatron/training/arguments.py`` of megatron-core 0.16.1; NeMo's
``megatron_gpt_config.yaml`` (2.x); read 2026-11-29.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from advisor.errors import UsageError
from advisor.recipes.facts import Config

NEMO_MARKS: Final = (
    ("model.micro_batch_size", "model.num_layers"),
    ("model.micro_batch_size", "model.hidden_size"),
    ("model.encoder_seq_length",),
)  # fmt: skip
MARKS: Final = (("num_layers", "hidden_size", "micro_batch_size"),)
_OPTIMIZERS: Final = {
    "adam": "adamw", "adamw": "adamw", "sgd": "sgd-momentum", "muon": "muon",
    "fused_adam": "adamw", "distributed_fused_adam": "adamw", "mcore_distributed_optim": "adamw",
}  # fmt: skip
# What a tokenizer's words are padded to (``--make-vocab-size-divisible-by``), times the TP degree.
_PADDED: Final = 128
_GPT2_WORDS: Final = 50_257
_WORDS: Final = {"GPT2BPETokenizer": _GPT2_WORDS, "Llama2Tokenizer": 32_000}
_SAME: Final = (
    "accumulate_allreduce_grads_in_fp32", "add_qkv_bias", "apply_layernorm_1p",
    "attention_backend", "attention_dropout", "attention_softmax_in_fp32",
    "calculate_per_token_loss", "decoupled_lr", "decoupled_min_lr", "distributed_backend",
    "empty_unused_memory_level", "eod_mask_loss", "exit_duration_in_mins", "exit_interval",
    "finetune", "fp8_amax_compute_algo", "fp8_amax_history_len", "fp8_param_gather",
    "group_query_attention", "hidden_dropout", "init_method_std", "iteration", "kv_channels",
    "log_throughput", "lr_decay_iters", "manual_gc", "max_position_embeddings", "mock_data",
    "moe_aux_loss_coeff", "moe_grouped_gemm", "moe_permute_fusion",
    "moe_router_load_balancing_type", "moe_router_topk", "moe_token_dispatcher_type",
    "no_create_attention_mask_in_dataloader", "no_gradient_accumulation_fusion", "no_load_optim",
    "no_load_rng", "no_masked_softmax_fusion", "no_mmap_bin_files", "no_position_embedding",
    "normalization", "overlap_grad_reduce", "overlap_param_gather", "position_embedding_type",
    "qk_layernorm", "rampup_batch_size", "recompute_method", "recompute_modules",
    "recompute_num_layers", "rotary_base", "rotary_percent", "sequence_parallel",
    "tiktoken_pattern", "transformer_impl", "untie_embeddings_and_output_weights",
    "use_flash_attn", "use_mcore_models", "use_rotary_position_embeddings",
)  # fmt: skip


# NeMo's own switches that change neither sizes nor what is described of kernels.
_NEMO_SAME: Final = re.compile(
    r"(model\.(nsys_profile|fp8_|native_amp|mcore_gpt|megatron_amp|apply_query|attention_type|grad|"
    r"make_vocab|normaliz|pre_process|post_process|persist|transformer_|use_|batch_p2p|reduce_amax|"
    r"apex|rotary|layernorm|get_attention|optim|\w+_fusion)|trainer|exp_manager|hydra|restore)"
)


def read(config: Config) -> dict[str, Any]:
    """Return what the arguments of Megatron-LM say."""
    config.read |= set(_SAME)
    tp = config.whole("tensor_model_parallel_size") or 1
    pp = config.whole("pipeline_model_parallel_size") or 1
    cp = config.whole("context_parallel_size") or 1
    each = config.whole("micro_batch_size")
    ranks = config.ranks
    granularity = config.text("recompute_granularity")
    fully = config.flag("recompute_activations")
    chunks = config.whole("num_layers_per_virtual_pipeline_stage")
    layers = config.whole("num_layers")
    is_fused = config.flag("cross_entropy_loss_fusion")
    has_fp8 = config.get("fp8_format", "fp8") is not None
    is_bf16, is_fp16 = config.flag("bf16"), config.flag("fp16")
    return {
        "stack": "megatron-core",
        **dimensions(config),
        "sequence": config.whole("seq_length", "encoder_seq_length"),
        "micro_batch": each,
        "batch": config.whole("global_batch_size")
        or (None if each is None or ranks is None else each * max(ranks // (tp * pp * cp), 1)),
        "total_steps": config.whole("train_iters"),
        "total_samples": config.whole("train_samples"),
        "precision": "fp8" if has_fp8 else
        "bf16" if is_bf16 else "fp16" if is_fp16 else "fp32",
        "gradients": "bf16" if config.flag("grad_reduce_in_bf16") else None,
        "optimizer": config.choice(_OPTIMIZERS, "optimizer", default="adam"),
        "zero": 1 if config.flag("use_distributed_optimizer") else 0,
        "recompute": "full" if granularity == "full" else
        "selective" if fully or granularity == "selective" else "none",
        "loss": "fused" if is_fused or config.flag("enable_cross_entropy_loss_fusion") else None,
        "tp_overlap": config.flag("tp_comm_overlap") or None,
        "offload": ("optimizer",) if config.flag("optimizer_cpu_offload") else False,
        "tp": tp, "pp": pp, "cp": cp,
        "ep": config.whole("expert_model_parallel_size"),
        "etp": config.whole("expert_tensor_parallel_size"),
        "chunks": layers // (pp * chunks) if chunks and layers and pp > 1 else None,
    }  # fmt: skip


# Of architectures that layers, widths and heads do not describe.
_ELSE: Final = ("multi_latent_attention", "moe_shared_expert_intermediate_size", "moe_layer_freq",
                "window_size", "hybrid_override_pattern", "mtp_num_layers")  # fmt: skip


def dimensions(config: Config, above: str = "") -> dict[str, Any]:
    """Return the transformer that Megatron's names describe.

    Raises UsageError if it has parts that the numbers of a question do not describe.
    """
    if odd := [name for name in _ELSE if config.get(f"{above}{name}") not in (None, False)]:
        raise UsageError(
            f"{config.path} has {', '.join(odd)}, which numbers alone do not describe",
            hint="leave the recipe out, and name the model that is like it: --model NAME",
        )

    def whole(name: str) -> int | None:
        return config.whole(f"{above}{name}")

    tp = whole("tensor_model_parallel_size") or 1
    heads, width = whole("num_attention_heads"), whole("kv_channels")
    if heads and width and heads * width != whole("hidden_size"):
        config.read.discard(f"{above}kv_channels")  # heads as wide as the model are described
    ffn = whole("ffn_hidden_size")
    gated = config.flag(f"{above}swiglu") or "swiglu" in str(config.get(f"{above}activation"))
    is_tied = not config.flag(f"{above}untie_embeddings_and_output_weights")
    if (shared := config.get(f"{above}share_embeddings_and_output_weights")) is not None:
        is_tied = bool(shared)
    experts = whole("num_experts") or whole("num_moe_experts")
    facts: dict[str, Any] = {
        "layers": whole("num_layers"),
        "hidden": whole("hidden_size"),
        "heads": heads,
        "kv_heads": whole("num_query_groups") or heads,
        "ffn": ffn,
        "gated": gated or None,
        "tied": is_tied,
        "vocabulary": _vocabulary(config, above, tp),
    }
    if experts and experts > 1:
        each = whole("moe_ffn_hidden_size")
        facts |= {"experts": experts, "experts_per_token": whole("moe_router_topk") or 2}
        facts |= {"ffn": each} if each else {}
    return facts


def _vocabulary(config: Config, above: str, tp: int) -> int | None:
    """Return the padded vocabulary, where a size or GPT-2's own words are named."""
    size = config.whole(f"{above}padded_vocab_size")
    if size is not None:
        return size
    words = config.whole(f"{above}vocab_size")
    files = (config.text(f"{above}vocab_file") or "", config.text(f"{above}tokenizer_type") or "")
    if words is None and ("gpt2" in files[0].lower() or (files[0] and not files[1])):
        words = _GPT2_WORDS
    words = words or _WORDS.get(files[1])
    if words is None:
        return None
    step = (config.whole(f"{above}make_vocab_size_divisible_by") or _PADDED) * tp
    return -(-words // step) * step


def read_nemo(config: Config) -> dict[str, Any]:
    """Return what NeMo's YAML says, whose keys are Megatron's below ``model``."""
    config.read |= {key for key in config.keys if key.startswith(("exp_manager.", "hydra."))}
    whole = config.whole
    tp = whole("model.tensor_model_parallel_size") or 1
    pp = whole("model.pipeline_model_parallel_size") or 1
    ranks = config.ranks or (whole("trainer.devices") or 1) * (whole("trainer.num_nodes") or 1)
    words: Mapping[str, str] = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16",
                                "16-mixed": "fp16", "32": "fp32", "32-true": "fp32"}  # fmt: skip
    chunks = whole("model.virtual_pipeline_model_parallel_size")
    each = whole("model.micro_batch_size")
    kind = config.text("model.optim.name") or ""
    granularity = config.text("model.activations_checkpoint_granularity")
    method = config.text("model.activations_checkpoint_method")
    facts = {
        "stack": "nemo",
        **dimensions(config, "model."),
        "sequence": whole("model.encoder_seq_length", "model.data.seq_length"),
        "micro_batch": each,
        "batch": whole("model.global_batch_size")
        or (None if each is None else each * max(ranks // (tp * pp), 1)),
        "total_steps": whole("trainer.max_steps"),
        "precision": "fp8" if config.flag("model.fp8") else
        words.get(str(config.get("trainer.precision")), "bf16"),
        "optimizer": config.choice(_OPTIMIZERS, "model.optim.name", default="fused_adam"),
        "zero": 1 if "distributed" in kind else None,
        "recompute": granularity if granularity in ("full", "selective") else
        "full" if method else "none",
        "tp": tp, "pp": pp, "cp": whole("model.context_parallel_size"),
        "ep": whole("model.expert_model_parallel_size"), "chunks": chunks if pp > 1 else None,
    }  # fmt: skip
    config.read |= {f"model.{name}" for name in _SAME} | {
        "model.mcore_gpt",
        "model.megatron_amp_O2",
    }
    return facts
