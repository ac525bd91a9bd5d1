"""torchtitan's TOML, which its releases up to 0.2 read.

Defaults and meanings: torchtitan 0.2 (``config/job_config.py``; 0.3 has the same fields in
``config/configs.py``; ``models/*/__init__.py``: the flavors); read 2026-11-29.
"""

from __future__ import annotations

from typing import Any, Final

from advisor.recipes.facts import Config

MARKS: Final = (("model.flavor", "training.seq_len"), ("model.flavor", "training.steps"))
# Flavors by the model's name, and the model that has such dimensions.
_FLAVORS: Final = {
    "llama3": {"8B": "Meta-Llama-3-8B", "70B": "Meta-Llama-3-70B", "405B": "Llama-3.1-405B"},
    "llama2": {"7B": "Llama-2-7b-hf", "13B": "Llama-2-13b-hf", "70B": "Llama-2-70b-hf"},
    "llama4": {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"},
    "deepseek_v3": {"16B": "DeepSeek-V2-Lite", "671B": "DeepSeek-V3"},
    "qwen3": {
        "0.6B": "Qwen3-0.6B", "1.7B": "Qwen3-1.7B", "4B": "Qwen3-4B", "8B": "Qwen3-8B",
        "14B": "Qwen3-14B", "32B": "Qwen3-32B", "30B-A3B": "Qwen3-30B-A3B",
        "235B-A22B": "Qwen3-235B-A22B",
    },
    "gpt_oss": {"20b": "openai/gpt-oss-20b", "120b": "openai/gpt-oss-120b"},
}  # fmt: skip
_SCHEDULES: Final = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved",
    "interleavedzerobubble": "zb", "zbvzerobubble": "zb", "dualpipev": "dualpipe",
}  # fmt: skip


def read(config: Config) -> dict[str, Any]:
    """Return what a torchtitan recipe says."""
    name, flavor = config.text("model.name") or "llama3", config.text("model.flavor") or ""
    known = {key.lower(): value for key, value in _FLAVORS.get(name, {}).items()}
    degrees = {
        short: config.whole(f"parallelism.{long}_parallel_degree")
        or config.whole(f"experimental.{long}_parallel_degree")
        or config.whole(f"training.{long}_parallel_degree")
        for short, long in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"),
                            ("ep", "expert"))
    }  # fmt: skip
    replicas = config.whole("parallelism.data_parallel_replicate_degree",
                            "training.data_parallel_replicate_degree") or 1  # fmt: skip
    shards = config.whole("parallelism.data_parallel_shard_degree",
                          "training.data_parallel_shard_degree")  # fmt: skip
    config.read |= {"parallelism.fsdp_reshard_after_forward", "model.hf_assets_path",
                    "activation_checkpoint.selective_ac_option", "compile.components",
                    "parallelism.disable_loss_parallel", "optimizer.implementation"}  # fmt: skip
    each = config.whole("training.local_batch_size", "training.batch_size") or 8
    ranks = config.ranks or (
        None if shards is None else replicas * shards * (degrees["tp"] or 1)
        * (degrees["pp"] or 1) * (degrees["cp"] or 1)
    )  # fmt: skip
    rows = None if ranks is None else ranks // (
        (degrees["tp"] or 1) * (degrees["pp"] or 1) * (degrees["cp"] or 1)
    )  # fmt: skip
    converters = config.words("model.converters", "quantize.linear.float8")
    is_fp8 = any("float8" in one for one in converters) or config.flag(
        "float8.enable_float8_linear", "float8.enable_fp8_linear"
    )
    config.read |= {key for key in config.keys if key.startswith(("float8.", "quantize."))}
    mode = config.text("activation_checkpoint.mode") or "selective"
    schedule = config.text("parallelism.pipeline_parallel_schedule",
                           "experimental.pipeline_parallel_schedule") or "1F1B"  # fmt: skip
    config.whole("parallelism.pipeline_parallel_microbatch_size")
    is_compiled = config.flag("compile.enable", "training.compile")
    return {
        "stack": "torchtitan",
        "model": known.get(flavor.lower(), f"{name}-{flavor}"),
        "sequence": config.whole("training.seq_len") or 2048,
        "micro_batch": each if degrees["pp"] in (None, 1) else None,
        "batch": config.whole("training.global_batch_size")
        or (None if rows is None and degrees["pp"] in (None, 1) else each * (rows or 1)),
        "ranks": rows,
        "total_steps": config.whole("training.steps") or 10_000,
        "precision": "fp8" if is_fp8 else "bf16",
        "optimizer": config.choice({"adamw": "adamw", "adam": "adamw"}, "optimizer.name",
                                   default="AdamW"),
        "optimizer_in_backward": config.flag("optimizer.early_step_in_backward") or None,
        "recompute": mode if mode in ("none", "selective", "full") else None,
        "kernels": "compiled" if is_compiled else "eager",
        "loss": "fused" if is_compiled else "eager",
        "tp_overlap": config.flag("parallelism.enable_async_tensor_parallel",
                                  "experimental.enable_async_tensor_parallel") or None,
        "offload": ("optimizer", "parameters") if config.flag("training.enable_cpu_offload")
        else False,
        "schedule": _SCHEDULES.get(schedule.lower()) if (degrees["pp"] or 1) > 1 else None,
        **{short: degree for short, degree in degrees.items() if degree and degree > 1},
    }  # fmt: skip
