"""TRL's and Hugging Face's argument files, with accelerate's and DeepSpeed's beside them.

What the names of transformers, accelerate, DeepSpeed and peft mean, for all tools that stand on
them. Defaults: transformers 5.24 (``training_args.py``), trl 1.16 (``sft_config.py``,
``model_config.py``, ``base_config.py``), accelerate 1.15 (``utils/fsdp_utils.py``), peft 0.18,
deepspeed 0.19 (``runtime/zero/config.py``), each as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from advisor.errors import UsageError
from advisor.recipes.facts import Config, Facts
from advisor.recipes.tables import meanings, tables
from advisor.recipes.text import flat, plain, table_in

_OF_TRL: Final = {"max_length", "packing", "use_peft", "dataset_mixer", "dataset_mixture",
                  "dataset_text_field"}  # fmt: skip
_OF_REWARDS: Final = {"beta", "ref_model_name_or_path", "num_generations"}


def refuse_stage(config: Config, stage: str | None, known: Iterable[str]) -> None:
    """Refuse a training that computes more than one pass of one model's tokens."""
    if stage and stage.lower() not in known:
        raise UsageError(
            f"{config.path} trains by {stage[:20]}, whose step a recipe does not describe",
            hint="record a step of it instead: advisor profile",
        )


def adapted(rank: int, modules: Iterable[Any], bits: int) -> Facts:
    """Return what adapters come to; of no modules, peft adapts queries and values.

    >>> [adapted(8, one, 4)["lora_targets"] for one in (["v_proj"], ["all-linear"], ["fc1"])]
    ['v_proj', 'all-linear', 'up_proj']
    """
    said = [str(one).strip("'\"") for one in modules]
    is_all = any("all" in one or "up|" in one or "up_proj|" in one for one in said)
    targets = "all-linear" if is_all else adapted_modules(said) or "query-value"
    return {"lora": rank, "lora_targets": targets, "base_bits": bits}


def adapted_modules(names: Iterable[str]) -> str:
    """Return what ``--lora-targets`` calls modules of these names; empty where it knows none.

    >>> adapted_modules(["v_proj", "q_proj"]), adapted_modules(["classifier"])
    ('query-value', '')
    """
    known, groups = meanings("modules"), meanings("module_groups")
    words = (known.get(one) or known.get(one.rpartition(".")[2], "") for one in names)
    named = dict.fromkeys(" ".join(words).split())
    return groups.get(" ".join(sorted(named)), ",".join(named))


def _deepspeed(config: Config, said: Any) -> Facts:
    """Return what a DeepSpeed configuration says: a table, or a file beside the recipe."""
    # DeepSpeed keeps fp32 masters of 16-bit weights whatever they were loaded in.
    facts: Facts = {"stack": "deepspeed", "weights": "fp32"}
    if not isinstance(said, dict):
        said = config.text("deepspeed", "deepspeed_config", "deepspeed_config_file")
        path = config.path.parent / said
        places = (path, config.path.parent / path.name)
        found = next((one for one in places if os.path.isfile(one)), None)
        if found is None:
            if path.stem not in meanings("deepspeed"):
                config.asked[f"deepspeed {said}, which is not here"] = "--zero, --offload"
                return facts
            stage, *moves = meanings("deepspeed")[path.stem].split()
            return facts | {"zero": int(stage), "offload": tuple(moves) or False}
        said = table_in(found)
    own = Config(path=config.path, table=said)
    rows = own.facts(tables()["deepspeed"])
    on = {part: rows.pop(f"{part}_on") for part in ("optimizer", "parameters")}
    parts = tuple(part for part, device in on.items() if device in ("cpu", "nvme"))
    names = [one for one in ("bf16", "fp16") if own.keys.get(f"{one}.enabled") is True]
    rows |= {"zero": rows["zero"] or 0, "offload": parts or False}
    rows |= {"precision": names[0]} if names else {}
    # What the arguments say is given to DeepSpeed (transformers' propagate_args_to_deepspeed).
    if "gradient_accumulation_steps" in config.keys:
        rows.pop("accumulation")
    return facts | {name: value for name, value in rows.items() if value is not None}


def sharded(config: Config, facts: Facts) -> Facts:
    """Return facts with how the state is sharded: by DeepSpeed, by FSDP, or not at all."""
    shards = _sharding(config)
    if "lora" in facts:  # the adapters' own weights are small either way
        shards.pop("weights", None)
    return facts | shards


def _sharding(config: Config) -> Facts:
    if (said := config.get("deepspeed", "deepspeed_config", "deepspeed_config_file")) is not None:
        config.read |= {name for name in config.keys if name.startswith("deepspeed")}
        return _deepspeed(config, said)
    words, told = config.words("fsdp"), config.get("fsdp_config")
    told = told if isinstance(told, dict) else {}
    is_named = (config.text("distributed_type") or "").upper() == "FSDP"
    if not (words or told or is_named or config.get("fsdp_version")):
        return {"zero": 0}
    config.read |= {f"fsdp_config.{name}" for name in told}

    def get(name: str) -> str:
        return str(told.get(f"fsdp_{name}", told.get(name, ""))).lower()

    strategy = get("sharding_strategy") or next(iter(words), "")
    moves = get("offload_params") == "true" or "offload" in words
    facts: Facts = {
        "zero": int(meanings("sharding").get(strategy, "3")),
        # accelerate upcasts what is trained to fp32 under mixed precision
        # (``fsdp2_prepare_model``, ``Accelerator.prepare_model``).
        "weights": "fp32",
        "offload": moves and ("optimizer", "parameters"),
    }
    return facts | ({"recompute": "full"} if get("activation_checkpointing") == "true" else {})


def precision(config: Config, *, bf16: bool = False) -> str:
    """Return the precision of products; ``bf16``: whether that is the tool's own default."""
    is_fp16, is_tf32 = config.flag("fp16", "float16"), config.flag("tf32")
    is_bf16, mixed = config.flag("bf16", "bfloat16", default=bf16), config.text("mixed_precision")
    if is_fp16:
        return "fp16"
    if is_bf16 and mixed != "no":
        return "bf16"
    return mixed if mixed in ("bf16", "fp16", "fp8") else "tf32" if is_tf32 else "fp32"


def with_accelerate(config: Config, path: str) -> None:
    """Take the keys of accelerate's own configuration beside those of a recipe."""
    folder, named = config.path.parent, Path(path)
    file = next((f for f in (folder / path, folder / named.name) if os.path.isfile(f)), None)
    known = meanings("accelerate").get(named.stem)
    if file is not None:
        config.keys = flat(table_in(file)) | config.keys
    elif known is not None:
        pairs = (one.partition("=") for one in known.split())
        config.keys = {name: plain(value) for name, _, value in pairs} | config.keys
    else:
        config.asked[f"accelerate's {path}, which is not here"] = "--zero, --batch"


def read(config: Config, facts: Facts) -> Facts:
    """Return what an argument file of TRL's or Hugging Face's scripts says."""
    script = config.text("script") or ""
    is_trl = bool(_OF_TRL & config.keys.keys()) or script.rpartition("/")[2] in (
        "sft.py",
        "run_sft.py",
    )
    # transformers' own script cuts the joined texts (its group_texts).
    is_cut = "run_clm" in script
    refuse_stage(config, config.text("rl", "trainer_type"), ("sft",))
    refuse_stage(config, "rewards" if _OF_REWARDS & config.keys.keys() else None, ())
    checkpoints = config.flag("gradient_checkpointing", "activation_checkpointing", default=is_trl)
    facts |= {
        "stack": "trl" if is_trl else "trainer",
        "sequence": facts["sequence"] or (1024 if is_trl or is_cut else None),
        "precision": precision(config, bf16=is_trl),
        "recompute": "full" if checkpoints else "none",
        "packed": config.flag("packing") if is_trl else is_cut or None,
        # "nll" of trl 1.16 is computed in chunks (``loss_type``).
        "loss": "chunked" if is_trl else None,
    }
    if config.flag("use_liger_kernel", "use_liger"):
        facts |= {"loss": "chunked", "kernels": facts["kernels"] or "fused"}
    is_4bit, is_8bit = config.flag("load_in_4bit"), config.flag("load_in_8bit")
    rank, modules = config.whole("lora_r", "lora_rank"), ("lora_target_modules", "target_modules")
    is_said = config.flag("use_peft", "use_lora", "peft_enabled", default=rank is not None)
    if is_said and rank is None and not is_trl:
        config.asked["the rank of adapters"] = "--lora"
    elif is_said:
        bits = 4 if is_4bit else 8 if is_8bit else 16
        facts |= adapted(rank or 16, config.words(*modules), bits)
    facts |= {"offload": ("activations",)} if config.flag("activation_offloading") else {}
    return sharded(config, facts)
