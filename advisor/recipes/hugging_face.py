"""TRL's and Hugging Face's argument files, with accelerate's and DeepSpeed's beside them.

What the names of transformers, accelerate, DeepSpeed and peft mean, for all tools that stand on
them. Defaults: transformers 5.24 (``training_args.py``), trl 1.16 (``sft_config.py``,
``model_config.py``, ``base_config.py``), accelerate 1.15 (``utils/fsdp_utils.py``), peft 0.18,
deepspeed 0.19 (``runtime/zero/config.py``), each as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from advisor.errors import UsageError
from advisor.recipes.facts import Config
from advisor.recipes.text import documents, flat, read_text

# ``OptimizerNames`` of transformers; Axolotl and torchtune have some of their own.
OPTIMIZERS: Final[Mapping[str, str]] = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw": "adamw",
    "adamw_apex_fused": "adamw", "adamw_anyprecision": "adamw-bf16", "adamw_bnb_8bit":
    "adamw-8bit", "adamw_8bit": "adamw-8bit", "adamw_torch_8bit": "adamw-8bit",
    "ao_adamw_8bit": "adamw-8bit", "adamw_torch_4bit": "adamw-4bit", "ao_adamw_4bit": "adamw-4bit",
    "paged_adamw_32bit": "paged-adamw", "paged_adamw": "paged-adamw",
    "paged_adamw_8bit": "paged-adamw-8bit", "sgd": "sgd", "adafactor": "adafactor",
    "lion_32bit": "lion", "lion": "lion", "lion_8bit": "lion-8bit", "paged_lion_32bit": "lion",
    "paged_lion_8bit": "lion-8bit", "muon": "muon", "galore_adamw": "galore",
}  # fmt: skip
ATTENTIONS: Final[Mapping[str, str]] = {
    "eager": "unfused", "sdpa": "flash", "flex_attention": "flash", "flash_attention_2": "flash",
    "flash_attention_3": "flash", "flash_attention_4": "flash", "xformers": "flash",
    "kernels-community/flash-attn2": "flash", "kernels-community/flash-attn3": "flash",
    "kernels-community/vllm-flash-attn3": "flash", "fa2": "flash", "auto": "flash",
    "disabled": "unfused", "fa3": "flash", "sage": "flash",
}  # fmt: skip
_SHARDED: Final[Mapping[str, int]] = {
    "full_shard": 3, "1": 3, "shard_grad_op": 3, "2": 3, "hybrid_shard": 3, "4": 3,
    "no_shard": 0, "3": 0,
}  # fmt: skip
_MLP: Final = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "w1", "w2", "w3")
# Configurations of DeepSpeed that Axolotl (``deepspeed_configs``) and LLaMA-Factory
# (``examples/deepspeed``) ship: the stage, and what lies on the host.
_SHIPPED: Final[Mapping[str, tuple[int | None, tuple[str, ...]]]] = {
    "zero1": (1, ()), "zero1_torch_compile": (1, ()), "zero2": (2, ()),
    "zero2_torch_compile": (2, ()), "zero3": (3, ()), "zero3_bf16": (3, ()),
    "zero3_bf16_cpuoffload_params": (3, ("parameters",)),
    "zero3_bf16_cpuoffload_all": (3, ("optimizer", "parameters")),
    "ds_z0_config": (0, ()), "ds_z2_config": (2, ()), "ds_z2_offload_config": (2, ("optimizer",)),
    "ds_z3_config": (3, ()), "ds_z3_offload_config": (3, ("optimizer", "parameters")),
}  # fmt: skip
_UNDESCRIBED: Final = "record a step of it instead: advisor profile"
MARKS: Final = (
    ("model_name_or_path", "per_device_train_batch_size"), ("model_name_or_path", "learning_rate"),
    ("model_name_or_path", "num_train_epochs"), ("per_device_train_batch_size", "output_dir"),
)  # fmt: skip


def refuse_stage(config: Config, stage: str | None, known: Iterable[str]) -> None:
    """Refuse a training that computes more than one pass of one model's tokens."""
    if stage and stage.lower() not in known:
        raise UsageError(
            f"{config.path} trains by {stage[:20]}, whose step a recipe does not describe",
            hint=_UNDESCRIBED,
        )


def targets(words: Iterable[str]) -> str:
    """Return which matrices have adapters; peft's default is queries and values.

    >>> targets(["q_proj", "v_proj"]), targets(["all-linear"]), targets(["q_proj", "o_proj"])
    ('query-value', 'all-linear', 'attention')
    """
    names = {one.strip("'\"").rpartition(".")[2] for one in words}
    is_all = any("all" in one for one in names) or len(names & set(_MLP)) or any(
        "mlp" in one or "up|" in one for one in words
    )  # fmt: skip
    if is_all:
        return "all-linear"
    return "query-value" if names <= {"q_proj", "v_proj", "query", "value"} else "attention"


def deepspeed(config: Config, said: Any) -> dict[str, Any]:
    """Return what a DeepSpeed configuration says: a table, or a file beside the recipe."""
    table: Mapping[str, Any] = {}
    if isinstance(said, str):
        path = config.path.parent / said
        beside = (path, config.path.parent / path.name, path.with_suffix(".json"))
        found = next((one for one in beside if one.is_file()), None)
        if found is None:
            if path.stem not in _SHIPPED:
                config.asked[f"deepspeed {said}, which is not here"] = "--zero, --offload"
            return _of_zero(*_SHIPPED.get(path.stem, (None, ())))
        table = flat(documents(found, read_text(found))[0])
    elif isinstance(said, dict):
        table = flat(said)
    parts: list[str] = []
    for part, names in (
        ("optimizer", ("zero_optimization.offload_optimizer.device", "offload_optimizer_device")),
        ("parameters", ("zero_optimization.offload_param.device", "offload_param_device")),
    ):
        if any(table.get(name) in ("cpu", "nvme") for name in names):
            parts.append(part)
    stage = table.get("zero_optimization.stage", table.get("zero_stage", 0))
    found_facts = _of_zero(stage if isinstance(stage, int) else None, tuple(parts))
    for name, fact in (
        ("train_micro_batch_size_per_gpu", "micro_batch"), ("train_batch_size", "batch"),
        ("gradient_accumulation_steps", "accumulation"),
    ):  # fmt: skip
        if isinstance(table.get(name), int):
            found_facts[fact] = table[name]
    if table.get("bf16.enabled") is True:
        found_facts["precision"] = "bf16"
    elif table.get("fp16.enabled") is True:
        found_facts["precision"] = "fp16"
    return found_facts


def _of_zero(stage: int | None, moves: tuple[str, ...]) -> dict[str, Any]:
    # DeepSpeed keeps fp32 masters of 16-bit weights whatever they were loaded in.
    return {"stack": "deepspeed", "zero": stage, "weights": "fp32",
            "offload": moves or (None if stage is None else False)}  # fmt: skip


def sharding(config: Config) -> dict[str, Any]:
    """Return how a recipe of transformers' family shards: DeepSpeed, FSDP, or not at all."""
    if (said := config.get("deepspeed", "deepspeed_config", "deepspeed_config_file")) is not None:
        config.table_of("deepspeed", "deepspeed_config")
        return deepspeed(config, said)
    kind = config.text("distributed_type") or ""
    words = config.words("fsdp")
    told = config.table_of("fsdp_config")
    version = config.get("fsdp_version")
    if not (words or told or version or kind.upper() == "FSDP"):
        return {"zero": 0}

    def get(name: str) -> Any:
        return told.get(f"fsdp_{name}", told.get(name))

    strategy = str(get("sharding_strategy") or next(iter(words), "full_shard")).lower()
    moves = str(get("offload_params")).lower() == "true" or "offload" in words
    facts: dict[str, Any] = {"zero": _SHARDED.get(strategy, 3)}
    # accelerate upcasts what is trained to fp32 under mixed precision (``fsdp2_prepare_model``,
    # ``Accelerator.prepare_model``).
    facts["weights"] = "fp32"
    facts["offload"] = ("optimizer", "parameters") if moves else False
    if str(get("activation_checkpointing")).lower() == "true":
        facts["recompute"] = "full"
    return facts


def precision(config: Config, *, bf16: bool = False) -> str:
    """Return the precision of products: ``bf16``: the tool's own default."""
    config.read |= {"fp16", "float16", "bf16", "bfloat16", "tf32", "mixed_precision"}
    if config.flag("fp16", "float16"):
        return "fp16"
    if config.flag("bf16", "bfloat16", default=bf16) and config.text("mixed_precision") != "no":
        return "bf16"
    return {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}.get(
        config.text("mixed_precision") or "", "tf32" if config.flag("tf32") else "fp32"
    )


def processes(config: Config) -> int | None:
    """Return the ranks that accelerate's configuration starts."""
    return config.whole("num_processes")


def with_accelerate(config: Config, path: str | None) -> None:
    """Take the keys of accelerate's own configuration beside those of a recipe."""
    file = config.path.parent / (path or "")
    if path is None or not file.is_file():
        if path is not None:
            config.asked[f"accelerate's {path}, which is not here"] = "--zero, --batch"
        return
    more = flat(documents(file, read_text(file))[0])
    config.keys = more | config.keys


def read(config: Config) -> dict[str, Any]:
    """Return what an argument file of TRL's or Hugging Face's scripts says."""
    is_trl = any(
        name in config.keys
        for name in ("max_length", "max_seq_length", "packing", "use_peft", "lora_r",
                     "dataset_mixer", "dataset_mixture")
    )  # fmt: skip
    refuse_stage(config, config.text("rl", "trainer_type"), ("sft",))
    if any(name in config.keys for name in ("beta", "ref_model_name_or_path", "num_generations")):
        refuse_stage(config, "preferences or rewards", ("sft",))
    config.text("mixed_precision", "compute_environment")
    sequence = config.whole("max_length", "max_seq_length", "block_size", "model_max_length",
                            "max_source_length")  # fmt: skip
    checkpoints = config.flag("gradient_checkpointing", "activation_checkpointing", default=is_trl)
    dtype = (config.text("dtype", "torch_dtype") or "float32").lower()
    facts: dict[str, Any] = {
        "stack": "trl" if is_trl else "trainer",
        "model": config.text("model_name_or_path"),
        "sequence": sequence or (1024 if is_trl else None),
        "micro_batch": config.whole("per_device_train_batch_size", "per_gpu_train_batch_size")
        or 8,
        "accumulation": config.whole("gradient_accumulation_steps") or 1,
        "ranks": processes(config),
        "total_steps": config.whole("max_steps", "max_train_steps"),
        "epochs_said": config.number("num_train_epochs") or 3.0,
        "precision": precision(config, bf16=is_trl),
        "weights": "bf16" if dtype in ("bfloat16", "auto", "bf16") else "fp32",
        "optimizer": config.choice(OPTIMIZERS, "optim", default="adamw_torch"),
        "recompute": "full" if checkpoints else "none",
        "attention": config.choice(ATTENTIONS, "attn_implementation", default="sdpa"),
        "kernels": "compiled" if config.flag("torch_compile") else None,
        "packed": config.flag("packing") if is_trl else None,
        "data": config.words("train_file", "dataset_name", "dataset"),
    }
    if is_trl:  # "nll" of trl 1.16 is chunked inside (``loss_type``, since 1.7)
        facts["loss"] = "chunked"
    if config.flag("use_liger_kernel", "use_liger"):
        facts |= {"loss": "chunked", "kernels": facts["kernels"] or "fused"}
    if config.flag("use_peft") or (is_trl and "lora_r" in config.keys):
        facts["lora"] = config.whole("lora_r") or 16
        facts["lora_targets"] = targets(config.words("lora_target_modules"))
        bits = 4 if config.flag("load_in_4bit") else 8 if config.flag("load_in_8bit") else 16
        facts["base_bits"] = bits
    config.read |= {
        "gradient_checkpointing_kwargs",
        "fsdp_version",
        "parallelism_config",
        "distributed_type",
        "num_machines",
    }
    if config.flag("activation_offloading"):
        facts["offload"] = ("activations",)
    shards = sharding(config)
    if facts.get("weights") == "bf16" and "lora" in facts:
        shards.pop("weights", None)
    return facts | {name: value for name, value in shards.items() if value is not None}
