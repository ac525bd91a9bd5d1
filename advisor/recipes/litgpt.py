"""LitGPT's YAML.

Defaults and meanings: litgpt 0.5.13 (``args.py``: ``TrainArgs``; ``finetune/lora.py``,
``finetune/full.py``, ``pretrain.py``) as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from advisor.recipes.facts import Config, Facts
from advisor.recipes.hugging_face import adapted

# The weights that adapters may stand beside, and whether they do by default.
_SIDES: Final = {"lora_query": True, "lora_value": True, "lora_key": False,
                 "lora_projection": False, "lora_mlp": False}  # fmt: skip


def read(config: Config, facts: Facts) -> Facts:
    """Return what a LitGPT recipe says.

    One device runs alone; several shard, and finetuning recomputes every block then.
    """
    is_pretraining = config.get("checkpoint_dir") is None
    each = None if config.get("devices") in ("auto", -1) else config.whole("devices")
    ranks = None if each is None else each * (config.whole("num_nodes") or 1)
    alone = "ddp-compiled" if is_pretraining else "ddp"
    facts |= {
        "micro_batch": config.whole("train.micro_batch_size") or (4 if is_pretraining else 1),
        "batch": config.whole("train.global_batch_size") or (512 if is_pretraining else 16),
        "tokens": None if facts["total_steps"] else config.whole("train.max_tokens"),
        "epochs_said": config.number("train.epochs") or (None if is_pretraining else 5.0),
        "stack": alone if ranks == 1 else "fsdp",
        "recompute": "none" if is_pretraining or ranks == 1 else "full",
        "kernels": "compiled" if is_pretraining else "eager",
        "packed": is_pretraining,
        "data": [config.keys.get("data.class_path") or "its data"],
    }
    if "lora_r" in config.keys:
        sides = [name for name, usual in _SIDES.items() if config.flag(name, default=usual)]
        bits = config.text("quantize") or ""
        width = 4 if bits.startswith(("bnb.nf4", "bnb.fp4")) else 8 if "int8" in bits else 16
        facts |= adapted(config.whole("lora_r") or 8, sides, width)
    if facts["layers"]:
        named = config.text("model.mlp_class_name", "model_config.mlp_class_name")
        return facts | {"gated": named in ("LLaMAMLP", "GemmaMLP"), "tied": False}
    path = PurePosixPath(config.text("checkpoint_dir") or "")
    del facts["vocabulary"]
    return facts | {"model": config.text("model_name") or path.name or None}
