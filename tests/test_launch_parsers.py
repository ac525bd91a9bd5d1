"""Launch commands and configurations, read by the frameworks' own parsers where installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from launch_cases import (
    DENSE,
    MODELS,
    data_parallel,
    megatron_cases,
    odd_layouts,
    options_of,
    random_layouts,
)

from advisor.estimate.launch.megatron import megatron_arguments
from advisor.planners.core.arrays import shapes_of
from advisor.planners.core.nouns import Layout
from advisor.planners.layouts.frameworks import broken_rule


def test_megatron_commands_pass_its_argument_checks() -> None:
    """``validate_args`` read on its own: from the printed words, not from the layout."""
    for transformer, layout, text in megatron_cases(11):
        options = options_of(text)
        tp = int(options["--tensor-model-parallel-size"])
        pp = int(options["--pipeline-model-parallel-size"])
        cp = int(options.get("--context-parallel-size", 1))
        ep = int(options.get("--expert-model-parallel-size", 1))
        world = 32
        assert world % (tp * pp * cp) == 0
        dp = world // (tp * pp * cp)
        micro, batch = int(options["--micro-batch-size"]), int(options["--global-batch-size"])
        assert batch % (micro * dp) == 0
        is_sharded = "--use-megatron-fsdp" in options
        _check_pipeline(options, pp, batch // (micro * dp))
        _check_sharding(options, pp)
        if "--sequence-parallel" in options:
            assert tp > 1
        if (tp > 1 or cp > 1) and not is_sharded:
            assert options["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
        if is_sharded:
            assert "CUDA_DEVICE_MAX_CONNECTIONS" not in options
        if cp > 1:
            assert int(options["--seq-length"]) % (2 * cp) == 0
        if ep > 1:
            assert int(options["--num-experts"]) % ep == 0
            assert "--fp16" not in options
        if "--moe-grouped-gemm" in options:
            assert "--bf16" in options
        if transformer.experts > 1 and tp > 1:
            assert "--sequence-parallel" in options
        of_expert = ep * int(options.get("--expert-tensor-parallel-size", tp))
        assert (dp * cp * tp) % of_expert == 0
        copies = int(options.get("--num-distributed-optimizer-instances", 1))
        assert (dp * cp) % copies == 0
        assert (dp * cp * tp // of_expert) % copies == 0
        assert layout.devices == world


def _check_pipeline(options: dict[str, str], pp: int, micro_batches: int) -> None:
    layers = int(options["--num-layers"])
    ways = [
        o
        for o in ("--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout")
        if o in options
    ]
    assert len(ways) <= 1
    if not ways:
        assert layers % pp == 0
    if "--num-layers-per-virtual-pipeline-stage" in options:
        each = int(options["--num-layers-per-virtual-pipeline-stage"])
        assert pp > 1
        layers += "--account-for-embedding-in-pipeline-split" in options
        layers += "--account-for-loss-in-pipeline-split" in options
        assert layers % pp == 0
        assert layers // pp % each == 0
        assert micro_batches % pp == 0
    if "--cpu-offloading-num-layers" in options:
        assert 0 < int(options["--cpu-offloading-num-layers"]) < layers
        assert pp == 1
        assert "--recompute-granularity" not in options


def _check_sharding(options: dict[str, str], pp: int) -> None:
    if "--overlap-param-gather" in options:
        assert "--use-distributed-optimizer" in options
        assert "--overlap-grad-reduce" in options
    if "--use-megatron-fsdp" in options:
        assert options["--ckpt-format"] == "fsdp_dtensor"
        assert pp == 1
    if "--optimizer-cpu-offload" in options:
        assert "--use-precision-aware-optimizer" in options
    if "--use-precision-aware-optimizer" in options:
        assert "--use-distributed-optimizer" in options
        assert "--optimizer" not in options  # Adam, its default
    if options.get("--recompute-granularity") == "full":
        assert options["--recompute-method"] == "uniform"
        assert int(options["--recompute-num-layers"]) >= 1


KINDS: dict[str, tuple[str, type]] = {
    "--tensor-model-parallel-size": ("tensor_model_parallel_size", int),
    "--pipeline-model-parallel-size": ("pipeline_model_parallel_size", int),
    "--context-parallel-size": ("context_parallel_size", int),
    "--expert-model-parallel-size": ("expert_model_parallel_size", int),
    "--expert-tensor-parallel-size": ("expert_tensor_parallel_size", int),
    "--num-layers": ("num_layers", int),
    "--hidden-size": ("hidden_size", int),
    "--ffn-hidden-size": ("ffn_hidden_size", int),
    "--num-attention-heads": ("num_attention_heads", int),
    "--num-query-groups": ("num_query_groups", int),
    "--num-experts": ("num_moe_experts", int),
    "--moe-router-topk": ("moe_router_topk", int),
    "--moe-token-dispatcher-type": ("moe_token_dispatcher_type", str),
    "--pipeline-model-parallel-layout": ("pipeline_model_parallel_layout", str),
    "--recompute-granularity": ("recompute_granularity", str),
    "--recompute-method": ("recompute_method", str),
    "--recompute-num-layers": ("recompute_num_layers", int),
    "--cpu-offloading-num-layers": ("cpu_offloading_num_layers", int),
    "--fp8-format": ("fp8", str),
    "--kv-channels": ("kv_channels", int),
}
SWITCHES: dict[str, dict[str, Any]] = {
    "--sequence-parallel": {"sequence_parallel": True},
    "--bf16": {"bf16": True},
    "--fp16": {"fp16": True},
    "--disable-bias-linear": {"add_bias_linear": False, "bias_activation_fusion": False},
    "--moe-router-pre-softmax": {"moe_router_pre_softmax": True},
    "--moe-grouped-gemm": {"moe_grouped_gemm": True},
    "--cpu-offloading-num-layers": {"cpu_offloading": True},
}


def _megatron_settings(options: dict[str, str]) -> dict[str, Any]:
    """Return what Megatron-LM hands to ``TransformerConfig`` for these arguments."""
    torch = pytest.importorskip("torch")
    settings: dict[str, Any] = {"pipeline_dtype": torch.bfloat16}
    if "--swiglu" in options:
        settings |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    for option, value in options.items():
        if option in KINDS:
            name, kind = KINDS[option]
            settings[name] = kind(value)
        settings |= SWITCHES.get(option, {})
    return settings


def test_megatron_commands_make_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own checks, which run when its configuration is made."""
    configuration = pytest.importorskip("megatron.core.transformer.transformer_config")
    optimizer = pytest.importorskip("megatron.core.optimizer.optimizer_config")
    # Transformer Engine needs a GPU; its version is the machine's matter.
    for module in (configuration, optimizer):
        monkeypatch.setattr(module, "is_te_min_version", lambda *_, **__: True)
    made = 0
    for _, layout, text in megatron_cases(13, 60):
        options = options_of(text)
        settings = _megatron_settings(options)
        if layout.virtual_stages > 1:
            settings["virtual_pipeline_model_parallel_size"] = layout.virtual_stages
        configuration.TransformerConfig(**settings)
        if "--optimizer-cpu-offload" in options:
            optimizer.OptimizerConfig(
                optimizer_cpu_offload=True,
                use_precision_aware_optimizer="--use-precision-aware-optimizer" in options,
                use_distributed_optimizer="--use-distributed-optimizer" in options,
            )
        made += 1
    assert made > 100


def test_megatron_refuses_what_its_rules_refuse() -> None:
    """No rule that is said to be the configuration's is stricter than the configuration."""
    configuration = pytest.importorskip("megatron.core.transformer.transformer_config")
    refused = set()
    for transformer in MODELS.values():
        shapes = shapes_of(transformer)
        for layout in [*random_layouts(DENSE, 29, 400), *odd_layouts()]:
            rule = broken_rule(layout, "megatron", shapes)
            if rule is None or "_config.py: __post_init__" not in rule.source:
                continue
            if "optimizer" in rule.source:
                continue
            options = options_of("train.py " + " ".join(megatron_arguments(layout, transformer)))
            with pytest.raises(ValueError, match=r"must be|[Cc]annot|support|only|not work"):
                configuration.TransformerConfig(**_megatron_settings(options))
            refused.add(rule.reason)
    assert len(refused) >= 4


def _trainer_arguments(text: str, folder: Path, files: dict[str, str]) -> list[str]:
    """Return the arguments after ``train.py``, files written and named by their place."""
    words = shlex.split(text, comments=True)
    arguments = words[words.index("train.py") + 1 :]
    for name, content in files.items():
        (folder / name).write_text(content)
        arguments = [str(folder / name) if w == name else w for w in arguments]
    return [*arguments, "--output_dir", str(folder / "out"), "--use_cpu"]


@pytest.mark.frameworks
def test_trainer_arguments_are_read_by_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every DDP and FSDP command is parsed by transformers, its FSDP settings by accelerate."""
    transformers = pytest.importorskip("transformers")
    accelerate = pytest.importorskip("accelerate")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    seen = {0: 0, 3: 0}
    for layout, made in data_parallel("trainer", 17):
        arguments = _trainer_arguments(made.text, tmp_path, dict(made.files))
        # Compilation and TF32 are asked of the machine, not of the command.
        arguments = [w for w in arguments if w not in ("--torch_compile", "--tf32", "true")]
        with monkeypatch.context() as variables:
            for name, value in options_of(made.text).items():
                if name[0].isupper():
                    variables.setenv(name, value)
            (parsed,) = parser.parse_args_into_dataclasses(arguments)
            assert parsed.per_device_train_batch_size == layout.micro_batch
            assert parsed.gradient_accumulation_steps == layout.accumulation_steps
            if layout.zero_stage == 3:
                _check_fsdp(parsed, layout, accelerate)
        seen[layout.zero_stage] += 1
    assert min(seen.values()) > 10


def _check_fsdp(parsed: Any, layout: Layout, accelerate: Any) -> None:
    assert parsed.fsdp is True
    plugin = accelerate.FullyShardedDataParallelPlugin(**parsed.fsdp_plugin_args)
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.activation_checkpointing == (layout.recompute == "full")
    assert plugin.activation_checkpointing_offload == ("activations" in layout.offload)
    mesh = accelerate.parallelism_config.ParallelismConfig()
    groups = layout.dp // layout.shard_group if layout.shard_group else 1
    assert mesh.dp_replicate_size == groups
    assert mesh.dp_shard_size == (layout.shard_group or 1)


def test_deepspeed_gets_the_arguments_that_its_configuration_repeats() -> None:
    """The Trainer refuses a configuration whose batch or precision is not its own."""
    seen = 0
    for layout, made in data_parallel("deepspeed", 19):
        config = json.loads(made.files["ds_config.json"])
        options = options_of(made.text)
        assert int(options["--per_device_train_batch_size"]) == layout.micro_batch
        assert config["train_micro_batch_size_per_gpu"] == layout.micro_batch
        assert int(options["--gradient_accumulation_steps"]) == layout.accumulation_steps
        assert config["gradient_accumulation_steps"] == layout.accumulation_steps
        for precision in ("bf16", "fp16"):
            assert (f"--{precision}" in options) == (precision in config)
        zero = config["zero_optimization"]
        assert zero["stage"] == layout.zero_stage
        if "offload_optimizer" in zero:  # its own Adam, which only the configuration brings
            assert config["optimizer"]["type"] == "AdamW"
        seen += 1
    assert seen > 20


def test_deepspeed_configurations_are_read_by_deepspeed() -> None:
    config_module = pytest.importorskip("deepspeed.runtime.config")
    known = config_module.get_zero_config
    for _, made in data_parallel("deepspeed", 23):
        config = json.loads(made.files["ds_config.json"])
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
        config["gradient_clipping"] = 1.0
        config["train_batch_size"] = 32 * (
            config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        )
        assert known(config).stage == config["zero_optimization"]["stage"]
        config_module.get_bfloat16_config(config)
        config_module.get_float16_config(config)
