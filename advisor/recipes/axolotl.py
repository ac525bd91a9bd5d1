"""Axolotl's YAML.

Defaults and meanings: axolotl 0.21 (``utils/schemas/config.py``, ``training.py``, ``peft.py``,
``enums.py``; ``utils/config/__init__.py``: ``torch_dtype``; ``integrations/liger/args.py``) as its
package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

from typing import Any, Final

from advisor.recipes.facts import Config, Facts
from advisor.recipes.hugging_face import adapted, precision, refuse_stage, sharded

# Older switches for what ``attn_implementation`` names now.
_FLASH: Final = ("flash_attention", "sdp_attention", "flex_attention", "xformers_attention")


def read(config: Config, facts: Facts) -> Facts:
    """Return what an Axolotl recipe says."""
    is_rewarded = config.flag("reward_model") or config.flag("process_reward_model")
    refuse_stage(config, "rewards" if is_rewarded else config.text("rl"), ())
    products = precision(config, bf16=True)
    checkpoints = config.get("gradient_checkpointing")
    moves = checkpoints in ("offload", "offload_disk")
    moves |= config.get("activation_offloading") not in (None, False)
    config.read |= set(_FLASH)
    facts |= {
        "precision": "fp8" if config.flag("fp8") else products,
        # Loaded in the precision of the products, and trained so (``torch_dtype``).
        "weights": "bf16" if products in ("bf16", "fp16") else "fp32",
        "recompute": "none" if checkpoints in (None, False) else "full",
        "packed": config.flag("sample_packing") or "pretraining_dataset" in config.keys,
        "data": config.words("datasets", "pretraining_dataset"),
    }
    if config.flag("eager_attention"):
        facts["attention"] = "unfused"
    if config.flag("torch_compile"):
        facts["kernels"] = "compiled"
    plugins = "".join(config.words("plugins")).lower()
    if config.flag("cut_cross_entropy", default="cutcrossentropy" in plugins):
        facts["loss"] = "chunked"
    if config.flag("liger_cross_entropy") or config.flag("flash_attn_cross_entropy"):
        facts["loss"] = facts["loss"] or "fused"
    facts |= _adapter(config)
    facts = sharded(config, facts)
    if config.whole("dp_shard_size"):
        facts["zero"] = 3
    return facts | ({"offload": ("activations",)} if moves and not facts.get("offload") else {})


def _adapter(config: Config) -> Facts:
    kind = config.text("adapter")
    is_4bit, is_8bit = config.flag("load_in_4bit"), config.flag("load_in_8bit")
    if kind is None:
        return {}
    refuse_stage(config, kind, ("lora", "qlora", "dora"))
    named: Any = config.get("lora_target_modules") or []
    words = named if isinstance(named, list) else [named]
    is_linear = config.flag("lora_target_linear") or not words
    bits = 4 if is_4bit or kind == "qlora" else 8 if is_8bit else 16
    return adapted(config.whole("lora_r") or 8, ["all"] if is_linear else words, bits)
