"""nanotron's YAML.

Defaults and meanings: nanotron 0.4 (``config/config.py``, ``parallelism_config.py``,
``models_config.py``: ``LlamaConfig``) as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

from typing import Any, Final

from advisor.recipes.facts import Config

MARKS: Final = (("tokens.micro_batch_size", "parallelism.tp"),)
_MODEL: Final = "model.model_config."
_DIMENSIONS: Final = {  # with the defaults of ``LlamaConfig``
    "layers": ("num_hidden_layers", 32), "hidden": ("hidden_size", 4096),
    "heads": ("num_attention_heads", 32), "kv_heads": ("num_key_value_heads", None),
    "ffn": ("intermediate_size", 11008), "vocabulary": ("vocab_size", 32000),
    "experts": ("moe_config.num_experts", None), "experts_per_token": ("moe_config.top_k", None),
}  # fmt: skip


def read(config: Config) -> dict[str, Any]:
    """Return what a nanotron recipe says; its Llama has no other block."""
    whole = config.whole
    dp, tp, pp = (whole(f"parallelism.{name}") or 1 for name in ("dp", "tp", "pp"))
    each, accumulated = (
        whole(f"tokens.{name}") or 1
        for name in ("micro_batch_size", "batch_accumulation_per_replica")
    )
    facts: dict[str, Any] = {
        name: whole(f"{_MODEL}{key}") or default for name, (key, default) in _DIMENSIONS.items()
    }
    words = facts["vocabulary"]
    step = (whole("model.make_vocab_size_divisible_by") or 1) * tp
    dtype = config.text("model.dtype") or "bfloat16"
    engine = (config.text("parallelism.pp_engine") or "afab").lower()
    config.read |= {key for key in config.keys if key.startswith((_MODEL, "model.ddp_"))}
    config.read |= {"parallelism.tp_mode", "optimizer.optimizer_factory.torch_adam_is_fused",
                    "optimizer.torch_adam_is_fused", "s3_upload", "lighteval"}  # fmt: skip
    is_recomputed = config.flag("parallelism.recompute_layer")
    return facts | {
        "vocabulary": -(-words // step) * step,
        "gated": True,
        "tied": config.flag(f"{_MODEL}tie_word_embeddings"),
        "sequence": whole("tokens.sequence_length"),
        "micro_batch": each,
        "batch": each * accumulated * dp,
        "total_steps": whole("tokens.train_steps"),
        "precision": "bf16" if "bfloat16" in dtype else "fp16" if "16" in dtype else "fp32",
        "weights": "fp32",  # ``accumulate_grad_in_fp32`` keeps fp32 masters beside bf16
        "gradients": "fp32"
        if config.flag("optimizer.accumulate_grad_in_fp32", default=True)
        else "bf16",
        "optimizer": config.choice(
            {"adamw": "adamw", "sgd": "sgd"}, "optimizer.optimizer_factory.name", default="adamw"
        ),
        "zero": min(int(config.number("optimizer.zero_stage") or 0), 3),
        "recompute": "full" if is_recomputed else "none",
        "schedule": None if pp == 1 else "1f1b" if engine == "1f1b" else "gpipe",
        "tp_overlap": config.flag("parallelism.tp_linear_async_communication") or None,
        "tp": tp,
        "pp": pp,
        "ep": whole("parallelism.expert_parallel_size"),
    }
