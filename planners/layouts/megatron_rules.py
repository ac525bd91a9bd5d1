"""Rules of Megatron-LM's ``pretrain_gpt.py`` about layouts (megatron-core 0.16.1).

Read: the package's configuration classes, which check themselves when they are made, and
``validate_args`` of the repository's ``megatron/training/arguments.py``.
"""

from __future__ import annotations

from typing import Final

from advisor.planners.layouts.framework_rules import HALF, NONE, SINGLE, FrameworkRule

_CORE: Final = "megatron/core/"
_ARGUMENTS: Final = "megatron/training/arguments.py: validate_args"
_TRANSFORMER: Final = _CORE + "transformer/transformer_config.py: __post_init__"
_STATE: Final = _CORE + "parallel_state.py: initialize_model_parallel"
_SCHEDULES: Final = _CORE + "pipeline_parallel/schedules.py"
_FSDP_MESH: Final = _CORE + "distributed/fsdp/mcore_fsdp_adapter.py: _init_dist_index"

MEGATRON: Final[tuple[FrameworkRule, ...]] = (
    FrameworkRule(
        "sequence parallelism needs tensor parallelism",
        _CORE + "model_parallel_config.py: __post_init__",
        lambda c: (c.is_sequence_parallel == 0) | (c.tp > 1),
    ),
    FrameworkRule(
        "there is no schedule that runs all forward passes first (GPipe)",
        _SCHEDULES + ": get_forward_backward_func",
        lambda c: (c.holds_all == 0) | (c.pp == 1),
    ),
    FrameworkRule(
        "interleaved stages need a pipeline",
        _STATE,
        lambda c: (c.virtual_stages == 1) | (c.pp > 1),
    ),
    FrameworkRule(
        "interleaved stages need micro-batches that are a multiple of the pipeline's stages",
        _SCHEDULES + ": forward_backward_pipelining_with_interleaving",
        lambda c: (c.virtual_stages == 1) | (c.accumulation_steps % c.pp == 0),
    ),
    FrameworkRule(
        "gradients and parameters are sharded by Megatron-FSDP, which has no pipeline stages",
        _FSDP_MESH,
        lambda c: (c.zero_stage < 2) | (c.pp == 1),
    ),
    FrameworkRule(
        "copies of the sharded state must divide the data-parallel ranks",
        _STATE,
        lambda c: c.groups_divide,
    ),
    FrameworkRule(
        "copies of the sharded state must divide the experts' data-parallel ranks too",
        _STATE,
        lambda c: ~c.is_hierarchical | (c.shard_group % c.ep == 0),
    ),
    FrameworkRule(
        "Megatron-FSDP with hybrid sharding has no groups for experts",
        _FSDP_MESH,
        lambda c: ~c.is_hierarchical | (c.zero_stage < 2) | (c.ep == 1),
    ),
    FrameworkRule(
        "parameters cannot be offloaded",
        _ARGUMENTS + " (no such argument)",
        lambda c: c.offloads_parameters == 0,
    ),
    FrameworkRule(
        "the optimizer is offloaded from the distributed optimizer only (ZeRO-1)",
        _CORE + "optimizer/optimizer_config.py: __post_init__; " + _ARGUMENTS,
        lambda c: (
            (c.offloads_optimizer == 0)
            | (c.zero_stage == 1)
            | ((c.zero_stage == 0) & (c.ranks == 1))
        ),
    ),
    FrameworkRule(
        "activations are not offloaded from pipeline stages",
        _TRANSFORMER,
        lambda c: (c.offloads_activations == 0) | (c.pp == 1),
    ),
    FrameworkRule(
        "activations are either offloaded or recomputed",
        _TRANSFORMER,
        lambda c: (c.offloads_activations == 0) | (c.recompute == NONE),
    ),
    FrameworkRule(
        "expert parallelism does not run in fp16",
        _ARGUMENTS,
        lambda c: (c.ep == 1) | (c.precision != "fp16"),
    ),
    FrameworkRule(
        "context-parallel attention needs 16-bit or fp8 products",
        "transformer_engine/pytorch/attention: get_attention_backend",
        lambda c: (c.cp == 1) | (c.precision not in SINGLE),
    ),
    FrameworkRule(
        "precision is one of bf16, fp16, fp8, tf32 and fp32",
        _ARGUMENTS,
        lambda c: c.precision in (*HALF, *SINGLE, "fp8"),
    ),
    FrameworkRule(
        "pretrain_gpt.py trains all weights: no adapters, no frozen layers",
        _ARGUMENTS + " (no such argument)",
        lambda c: not (c.setup.has_adapters or c.setup.frozen_fraction > 0),
    ),
    FrameworkRule(
        "16-bit weights have fp32 master copies",
        _CORE + "optimizer/__init__.py: _get_megatron_optimizer_based_on_param_groups",
        lambda c: c.setup.weights == "fp32",
    ),
    FrameworkRule(
        "the optimizer is Adam or SGD, and Adam where it is sharded",
        _ARGUMENTS + "; " + _CORE + "optimizer/distrib_optimizer.py: __init__",
        lambda c: (
            (c.setup.optimizer in ("adamw", "adamw-bf16"))
            | ((c.setup.optimizer in ("sgd", "sgd-momentum")) & (c.zero_stage == 0))
        ),
    ),
    FrameworkRule(
        "16-bit moments need the distributed optimizer (ZeRO-1)",
        _CORE + "optimizer/optimizer_config.py: __post_init__",
        lambda c: (c.setup.optimizer != "adamw-bf16") | (c.zero_stage == 1),
    ),
    FrameworkRule(
        "attention heads must divide over the tensor-parallel ranks",
        _TRANSFORMER,
        lambda c: c.heads % c.tp == 0,
        of_shapes=True,
    ),
    FrameworkRule(
        "key/value heads must be a multiple or a divisor of the tensor-parallel ranks",
        _TRANSFORMER,
        lambda c: (c.kv_heads % c.tp == 0) | (c.tp % c.kv_heads == 0),
        of_shapes=True,
    ),
    FrameworkRule(
        "the feed-forward width must divide over the tensor-parallel ranks",
        _CORE + "tensor_parallel/layers.py: ColumnParallelLinear",
        lambda c: c.ffn % c.tp == 0,
        of_shapes=True,
    ),
    FrameworkRule(
        "the sequence must be a multiple of twice the context-parallel ranks",
        _ARGUMENTS,
        lambda c: (c.cp == 1) | (c.sequence % (2 * c.cp) == 0),
        of_shapes=True,
    ),
    FrameworkRule(
        "the sequence must divide over the tensor-parallel ranks that share it",
        _CORE + "tensor_parallel/mappings.py: _reduce_scatter_along_first_dim",
        lambda c: (c.is_sequence_parallel == 0) | (c.sequence % (c.tp * c.cp) == 0),
        of_shapes=True,
    ),
    FrameworkRule(
        "layers must divide over interleaved stages",
        _ARGUMENTS,
        lambda c: (c.virtual_stages == 1) | (c.layers % (c.pp * c.virtual_stages) == 0),
        of_shapes=True,
    ),
    FrameworkRule(
        "no pipeline stage may be empty",
        _CORE + "transformer/pipeline_parallel_layer_layout.py",
        lambda c: (c.pp - 1) * -(-c.layers // c.pp) < c.layers,
        of_shapes=True,
    ),
    FrameworkRule(
        "experts must divide over the expert-parallel ranks",
        _ARGUMENTS,
        lambda c: c.experts % c.ep == 0,
        of_shapes=True,
    ),
    FrameworkRule(
        "a mixture of experts with tensor parallelism needs sequence parallelism",
        _CORE + "transformer/moe/moe_layer.py: forward",
        lambda c: (c.experts == 1) | (c.tp == 1) | (c.is_sequence_parallel == 1),
        of_shapes=True,
    ),
    FrameworkRule(
        "activations of all layers but one may be offloaded: a model needs two",
        _TRANSFORMER,
        lambda c: (c.offloads_activations == 0) | (c.layers > 1),
        of_shapes=True,
    ),
)
