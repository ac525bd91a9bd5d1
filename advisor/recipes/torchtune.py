"""torchtune's YAML.

Defaults and meanings: torchtune 0.6.1 (``recipes/configs``, ``recipes/full_finetune_distributed``
and ``lora_finetune_distributed``, ``models/*/_model_builders.py``) as its package on PyPI has it;
read 2026-11-29.
"""

from __future__ import annotations

import re
from typing import Final

from advisor.recipes.facts import Config, Facts
from advisor.recipes.hugging_face import adapted, refuse_stage
from advisor.recipes.tables import meanings

_FAMILY: Final = re.compile(r"(llama|gemma|qwen)(\d)(?:_(\d)(?=_\d+(?:_\d+)?b|_v))?_(.+)")
_OTHERS: Final = ("teacher_model", "policy_model", "reward_and_value_model", "ref_checkpointer")


def model_of(builder: str) -> str:
    """Return the name of the model that a builder makes.

    >>> [model_of(one) for one in ("llama3_1_8b", "qwen2_5_1_5b_instruct", "gemma_2b", "phi4_14b")]
    ['llama-3.1-8b', 'Qwen2.5-1.5b-instruct', 'gemma-2b', 'phi-4']
    """
    if builder in meanings("torchtune"):
        return meanings("torchtune")[builder]
    match = _FAMILY.fullmatch(builder)
    if match is None:
        return builder.replace("_", "-")
    family, major, minor, rest = match.groups()
    number = f"{major}.{minor}" if minor else major
    rest = re.sub(r"(?<=\d)_(?=\d+b)", ".", rest).replace("_", "-")
    return f"Qwen{number}-{rest}" if family == "qwen" else f"{family}-{number}-{rest}"


def read(config: Config, facts: Facts) -> Facts:
    """Return what a torchtune recipe says."""
    loss = config.text("loss._component_") or ""
    if any(f"{one}._component_" in config.keys for one in _OTHERS):
        refuse_stage(config, "several models", ())
    refuse_stage(config, next((s for s in ("DPO", "PPO", "GRPO") if s in loss), None), ())
    builder = (config.text("model._component_") or "").rpartition(".")[2]
    plain = re.sub(r"^q?lora_", "", builder)
    steps, offloads = config.whole("max_steps_per_epoch"), config.flag("fsdp_cpu_offload")
    is_moved = config.flag("enable_activation_offloading")
    facts |= {
        "model": model_of(plain) if plain else None,
        "total_steps": facts["epochs_said"] * steps if steps else None,
        "offload": ("activations",) if is_moved else offloads and ("optimizer", "parameters"),
        "loss": "eager" if loss.endswith("nn.CrossEntropyLoss") else "chunked",
        "data": [config.text("dataset.source", "dataset.data_files", "dataset._component_")],
    }
    if plain == builder:
        return facts
    sides, is_wide = (
        config.words("model.lora_attn_modules"),
        config.flag("model.apply_lora_to_mlp"),
    )
    is_4bit = builder.startswith("qlora_") or config.flag("model.quantize_base")
    rank, more = config.whole("model.lora_rank") or 8, ["mlp"] if is_wide else []
    return facts | adapted(rank, [*sides, *more], 4 if is_4bit else 16)
