"""Megatron-LM's launch scripts (``pretrain_gpt.py``), NeMo's YAML, Megatron-Bridge's, nanotron's.

Defaults and meanings: ``megatron/training/arguments.py`` of megatron-core 0.16.1; NeMo's
``megatron_gpt_config.yaml`` (2.x); megatron-bridge 0.3.1 (``training/config.py``,
``training/mixed_precision.py``; its recipes by name: datasets/recipes); nanotron 0.4
(``config/config.py``, ``parallelism_config.py``, ``models_config.py``) as its package on
PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

import re
from typing import Final

from advisor.errors import UsageError
from advisor.recipes.facts import Config, Facts
from advisor.recipes.hugging_face import adapted
from advisor.recipes.tables import meanings, shipped, tables

# What a tokenizer's words are padded to (``--make-vocab-size-divisible-by``), times the TP degree.
_PADDED: Final = 128
# Of architectures that layers, widths and heads do not describe.
_ELSE: Final = ("multi_latent_attention", "moe_shared_expert_intermediate_size", "moe_layer_freq",
                "window_size", "hybrid_override_pattern", "mtp_num_layers")  # fmt: skip


def read(config: Config, facts: Facts) -> Facts:
    """Return what the arguments of Megatron-LM say."""
    kind, is_partial = config.text("recompute_granularity"), config.flag("recompute_activations")
    is_bf16, is_fp16 = config.flag("bf16"), config.flag("fp16")
    has_fp8 = config.get("fp8_format", "fp8") is not None
    facts |= {
        "precision": "fp8" if has_fp8 else "bf16" if is_bf16 else "fp16" if is_fp16 else "fp32",
        "recompute": kind or ("selective" if is_partial else "none"),
    } | dimensions(config, facts["tp"])
    each = config.whole("num_layers_per_virtual_pipeline_stage")
    if each and facts["layers"] and facts["pp"] > 1:
        facts["chunks"] = facts["layers"] // (facts["pp"] * each)
    return facts


def dimensions(config: Config, tp: int, above: str = "") -> Facts:
    """Return the transformer that Megatron's names describe.

    Raises UsageError if it has parts that the numbers of a question do not describe.
    """
    whole = {
        name: config.whole(f"{above}{name}")
        for name in ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups",
                     "ffn_hidden_size", "kv_channels", "num_experts", "num_moe_experts",
                     "moe_router_topk", "moe_ffn_hidden_size")
    }  # fmt: skip
    said = {name: config.get(f"{above}{name}") for name in _ELSE}
    odd = [one for one, value in said.items() if value is True or value not in (None, False, 1)]
    heads, width = whole["num_attention_heads"], whole["kv_channels"]
    if heads and width and heads * width != whole["hidden_size"]:
        odd.append("kv_channels")  # heads as wide as the model are described
    if odd:
        raise UsageError(
            f"{config.path} has {', '.join(odd)}, which numbers alone do not describe",
            hint="leave the recipe out, and name the model that is like it: --model NAME",
        )
    is_gated = config.flag(f"{above}swiglu", f"{above}gated_linear_unit") or "glu" in str(
        config.get(f"{above}activation")
    )
    is_tied = not config.flag(f"{above}untie_embeddings_and_output_weights")
    facts: Facts = {
        "layers": whole["num_layers"], "hidden": whole["hidden_size"], "heads": heads,
        "kv_heads": whole["num_query_groups"] or heads, "ffn": whole["ffn_hidden_size"],
        "gated": is_gated or None, "vocabulary": _vocabulary(config, above, tp),
        "tied": config.flag(f"{above}share_embeddings_and_output_weights", default=is_tied),
    }  # fmt: skip
    experts = whole["num_experts"] or whole["num_moe_experts"] or 1
    if experts > 1:
        facts |= {"experts": experts, "experts_per_token": whole["moe_router_topk"] or 2}
        facts["ffn"] = whole["moe_ffn_hidden_size"] or facts["ffn"]
    return facts


def _vocabulary(config: Config, above: str, tp: int) -> int | None:
    """Return the padded vocabulary, where a size or a known tokenizer is named."""
    padded, words = (config.whole(f"{above}{one}") for one in ("padded_vocab_size", "vocab_size"))
    kind = (config.text(f"{above}tokenizer_type") or "").lower()
    if not kind and config.get(f"{above}vocab_file"):
        kind = "gpt2bpetokenizer"  # the default, whose words are in a file
    words = words or int(meanings("tokenizers").get(kind, 0))
    return padded or _rounded(config, above, words, _PADDED, tp)


def _rounded(config: Config, above: str, words: int, usual: int, tp: int) -> int | None:
    step = (config.whole(f"{above}make_vocab_size_divisible_by") or usual) * tp
    return -(-words // step) * step or None


def read_nemo(config: Config, facts: Facts) -> Facts:
    """Return what NeMo's YAML says, whose keys are Megatron's below ``model``."""
    each, nodes = config.whole("trainer.devices"), config.whole("trainer.num_nodes")
    kind = config.text("model.activations_checkpoint_granularity")
    method = config.text("model.activations_checkpoint_method")
    is_sharded = "distributed" in (config.text("model.optim.name") or "")
    facts |= dimensions(config, facts["tp"], "model.") | {
        "ranks": (each or 1) * (nodes or 1),
        "zero": 1 if is_sharded else None,
        "recompute": kind or ("full" if method else "none"),
        "chunks": facts["chunks"] if facts["pp"] > 1 else None,
    }
    return facts | ({"precision": "fp8"} if config.flag("model.fp8") else {})


def read_bridge(config: Config, facts: Facts) -> Facts:
    """Return what Megatron-Bridge's YAML or arguments say, on top of the recipe that they name."""
    script = re.search(r"(pretrain|finetune)_(\w+)\.py", config.text("script") or "")
    name = config.text("recipe") or (f"{script[2]}_{script[1]}" if script else "")
    said = config.keys
    if length := config.whole("seq_length"):
        said = {"dataset.seq_length": length} | said
    # Later releases name the scaling of fp8 in the recipe; all else is that of the plain one.
    plain = re.sub(r"_(fp8\w*|mxfp8|nvfp4)$", "", name := name.removesuffix("_config"))
    row = dict(shipped("bridge").get(plain, {}))
    if row and plain != name:
        row["mixed_precision"] = name.removeprefix(f"{plain}_")
    if name and not row:
        config.asked[f"the recipe {name}, which is not known here"] = "--model"
    config.keys = row | said
    facts = config.facts(tables()["tools"]["bridge"]["facts"])
    mixed = config.text("mixed_precision") if "mixed_precision" in config.keys else None
    low = [kind for kind in ("fp4", "fp8") if config.keys.get(f"mixed_precision.{kind}")]
    narrow = next(
        (one for one in ("fp4", "fp8", "fp16_mixed") if one in (mixed or "bf16")), "bf16"
    )
    is_wide = config.flag("mixed_precision.grad_reduce_in_fp32", default=narrow != "fp16_mixed")
    shards = "optim"
    if config.flag("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"):
        shards = config.text("ddp.data_parallel_sharding_strategy") or "no_shard"
    facts |= {
        "precision": low[0] if low else narrow.removesuffix("_mixed"),
        "gradients": None if is_wide else "bf16",
        "zero": int(meanings("sharding").get(shards, "1")),
        "chunks": facts["chunks"] if facts["pp"] > 1 else None,
    }
    if (rank := config.whole("peft.dim")) is not None:
        facts |= adapted(rank, config.words("peft.target_modules"), 16)
    if not row and "model.num_layers" in config.keys:
        facts |= dimensions(config, facts["tp"], "model.")
        config.read |= {key for key in config.keys if key.startswith("model.")}
    return facts


def read_nanotron(config: Config, facts: Facts) -> Facts:
    """Return what nanotron's YAML says: its own Llama; ``dp`` copies of the model."""
    is_wide = config.flag("optimizer.accumulate_grad_in_fp32", default=True)
    each, copies = facts["micro_batch"] * facts["accumulation"], facts["ranks"]
    return facts | {
        "vocabulary": _rounded(config, "model.", facts["vocabulary"], 1, facts["tp"]),
        "batch": each * copies,
        "ranks": copies * facts["tp"] * facts["pp"] * (facts["cp"] or 1),
        "gradients": "fp32" if is_wide else "bf16",
        "zero": int(facts["zero"]),
        "schedule": facts["schedule"] if facts["pp"] > 1 else None,
    }
