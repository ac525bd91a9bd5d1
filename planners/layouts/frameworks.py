"""Rules of released frameworks about layouts, each with the place where the framework says so.

A rule is a fact about a combination that the framework refuses, or for which it has no switch.
Rules read columns, so that a search applies the same table to a block of layouts as a command
does to one. A layout can run if one framework accepts all of it; a search that leaves the others
out proposes nothing that cannot be started.

| framework   | what starts it                                                              |
|-------------|-----------------------------------------------------------------------------|
| `trainer`   | Hugging Face Trainer on PyTorch's DDP and FSDP2 (transformers, accelerate)  |
| `deepspeed` | Hugging Face Trainer, or `deepspeed.initialize`, with a DeepSpeed config    |
| `megatron`  | Megatron-LM's `pretrain_gpt.py`                                             |
| `torchtitan` | torchtitan's `train.py`, where its user names it                           |
| `torchtune` | torchtune's recipes (`tune run`), where their user names them               |
| `torch`     | a recorded script with PyTorch's own calls (`estimate.launch`)              |

Releases read: megatron-core 0.16.1 and the `megatron/training/arguments.py` of its time
(configuration classes, which check themselves when they are made, and ``validate_args``),
deepspeed 0.19.8, transformers 5.23, accelerate 1.15, torch 2.13, torchtitan 0.3, torchtune 0.6,
trl 1.14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    BACKWARDS,
    DEFAULT_SETUP,
    OFFLOADS,
    RECOMPUTES,
    Layout,
    Layouts,
    Precision,
    Shapes,
    TrainingSetup,
    Work,
    expert_tensor_ranks,
    shapes_of,
)

Bools = NDArray[np.bool_]
Numbers = NDArray[Any]
Framework = Literal["trainer", "deepspeed", "megatron", "torchtitan", "torchtune", "torch"]
NONE, SELECTIVE, FULL = (RECOMPUTES.index(r) for r in ("none", "selective", "full"))
SINGLE: Final = ("fp32", "tf32")


class Case:
    """Layouts, shapes and software as the rules read them: arrays that broadcast.

    Fields of ``Layouts`` and ``Shapes`` are attributes of the same names.
    """

    def __init__(
        self, layouts: Layouts, shapes: Shapes | None, setup: TrainingSetup, precision: Precision
    ) -> None:
        self.layouts, self.shapes = layouts, shapes
        self.setup, self.precision = setup, precision

    def __getattr__(self, name: str) -> Numbers:
        record = self.layouts if name in Layouts.__slots__ else self.shapes
        column = np.asarray(getattr(record, name))
        setattr(self, name, column)
        return column

    @property
    def ranks(self) -> Numbers:
        """Ranks that repeat or share the same state."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> Numbers:
        """Ranks that share one expert's products."""
        return np.asarray(expert_tensor_ranks(self.layouts), np.int64)

    @property
    def is_whole(self) -> Bools:
        """Data parallelism alone: every rank computes the whole model."""
        return np.asarray(self.tp * self.pp * self.cp * self.ep == 1)

    @cached_property
    def is_hierarchical(self) -> Bools:
        """State is shared by fewer ranks than there are."""
        return (self.zero_stage > 0) & (self.shard_group < self.ranks)

    @cached_property
    def groups_divide(self) -> Bools:
        """Groups that share a copy of the state divide the ranks."""
        divides = self.ranks % np.maximum(self.shard_group, 1) == 0
        return np.asarray(~self.is_hierarchical | divides)

    @property
    def offloads_whole_shards(self) -> Bools:
        """Parameters and optimizer are offloaded together, from ZeRO-3, or neither is."""
        return np.asarray(
            (self.offloads_optimizer == self.offloads_parameters)
            & ((self.offloads_parameters == 0) | (self.zero_stage == 3))
        )

    @property
    def moves_with_parameters(self) -> Bools:
        """Gradients are offloaded where their parameters are."""
        return np.asarray(self.offloads_gradients <= self.offloads_parameters)

    @property
    def keeps_or_repeats(self) -> Bools:
        """Recomputation of all or nothing."""
        return np.asarray(self.recompute != SELECTIVE)


def fills_chunks(layers: Any, chunks: Any) -> Any:
    """Return whether layers divide over the chunks of all interleaved stages: numbers or arrays.

    As they are, or with the embedding and the loss each in a layer's place, which leaves no chunk
    without a layer (Megatron's ``account_for_embedding_in_pipeline_split`` and ``..._loss_...``).

    >>> [fills_chunks(layers, 64) for layers in (128, 126, 125, 62)]
    [True, True, False, False]
    """
    with_ends = ((layers + 2) % chunks == 0) & (layers + 2 >= 2 * chunks)
    return (layers % chunks == 0) | with_ends


@dataclass(frozen=True, slots=True)
class FrameworkRule:
    """What one framework asks of a layout."""

    reason: str  # what is asked, as a sentence
    source: str  # where the framework says so: file and function
    allows: Callable[[Case], Bools | bool]  # from a case to which of its layouts are accepted
    of_shapes: bool = False  # the rule needs the model's dimensions


def _runs_in(source: str, *precisions: str) -> FrameworkRule:
    """Return the rule that products run in one of these precisions."""
    return FrameworkRule(
        f"precision is one of {', '.join(precisions[:-1])} and {precisions[-1]}",
        source,
        lambda c: c.precision in precisions,
    )


_REPEATS_LAYERS: Final = FrameworkRule(
    "gradient checkpointing repeats whole layers",
    "transformers/modeling_utils.py: gradient_checkpointing_enable",
    lambda c: c.keeps_or_repeats,
)


def _updates_after(source: str) -> FrameworkRule:
    """Return the rule that nothing is updated before the backward pass is over."""
    return FrameworkRule(
        "the optimizer steps after the backward pass", source, lambda c: c.updates_in_backward == 0
    )


def _adapts_in_nemo(setup: TrainingSetup, precision: Precision) -> bool:
    return setup.stack == "nemo" and setup.base_bits == 16 and precision in ("bf16", "fp8")


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
        "no schedule computes gradients of weights apart (zero bubble, DualPipe)",
        _SCHEDULES + ": get_forward_backward_func",
        lambda c: c.backward == 0,
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
        lambda c: ~c.is_hierarchical | (c.shard_group * c.tp % (c.ep * c.expert_ranks) == 0),
    ),
    FrameworkRule(
        "experts and the ranks that share one must divide the ranks of a stage",
        _STATE,
        lambda c: c.dp * c.cp * c.tp % (c.ep * c.expert_ranks) == 0,
    ),
    FrameworkRule(
        "DeepSpeed spreads experts over data-parallel ranks only",
        "deepspeed/utils/groups.py: _create_expert_and_data_parallel",
        lambda c: (c.setup.stack != "megatron-deepspeed") | (c.dp % c.ep == 0),
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
        "gradients stay where they are reduced",
        _CORE + "optimizer/cpu_offloading/hybrid_optimizer.py",
        lambda c: c.offloads_gradients == 0,
    ),
    _updates_after(_SCHEDULES),
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
        "context-parallel attention needs products of 16 bits or fewer",
        "transformer_engine/pytorch/attention: get_attention_backend",
        lambda c: (c.cp == 1) | (c.precision not in SINGLE),
    ),
    _runs_in(_ARGUMENTS, "bf16", "fp16", "fp8", "fp4", "tf32", "fp32"),
    FrameworkRule(
        "pretrain_gpt.py trains all weights: no adapters but NeMo's to 16-bit bases in bf16 or "
        "fp8 and without Megatron-FSDP; no frozen layers",
        _ARGUMENTS + " (no such argument); megatron/bridge/recipes/llama: llama3_70b_peft_config",
        lambda c: (
            _adapts_in_nemo(c.setup, c.precision) & (c.zero_stage < 2)
            if c.setup.has_adapters
            else c.setup.frozen_fraction == 0
        ),
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
        "layers must divide over interleaved stages, or do so with the embedding and the loss "
        "each in a layer's place",
        _ARGUMENTS + "; " + _TRANSFORMER,
        lambda c: (c.virtual_stages == 1) | fills_chunks(c.layers, c.pp * c.virtual_stages),
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


_PLUGIN: Final = "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.__post_init__"
TRAINER: Final[tuple[FrameworkRule, ...]] = (
    FrameworkRule(
        "the Trainer's DDP and FSDP compute the whole model on every rank",
        "accelerate/parallelism_config.py: ParallelismConfig",
        lambda c: c.is_whole,
    ),
    FrameworkRule(
        "DDP shards nothing and FSDP2 shards all (ZeRO-0 and ZeRO-3)",
        "transformers/training_args.py: _process_fsdp_args",
        lambda c: (c.zero_stage == 0) | ((c.zero_stage == 3) & (c.ranks > 1)),
    ),
    FrameworkRule(
        "groups that share a copy of the state must divide the ranks",
        "accelerate/parallelism_config.py: _validate_accelerator",
        lambda c: c.groups_divide,
    ),
    _REPEATS_LAYERS,
    FrameworkRule(
        "FSDP offloads parameters and optimizer together, and DDP neither",
        _PLUGIN,
        lambda c: c.offloads_whole_shards & c.moves_with_parameters,
    ),
    FrameworkRule(
        "activations that checkpointing keeps are offloaded by FSDP, TRL or Unsloth, no others",
        _PLUGIN + "; trl/models/activation_offloading.py; unsloth_zoo/gradient_checkpointing.py",
        lambda c: (
            (c.offloads_activations == 0)
            | (c.recompute == FULL) & ((c.zero_stage == 3) | (c.setup.stack in ("trl", "unsloth")))
        ),
    ),
    FrameworkRule(
        "the Trainer updates in the backward pass by LOMO, AdaLomo or GaLore's layers",
        "transformers/trainer_optimizer.py: _get_lomo_optimizer, _setup_low_rank_optimizer",
        lambda c: (
            (c.updates_in_backward == 0)
            | (c.setup.named_stack not in ("trainer", "trl", "unsloth"))
            | (c.setup.optimizer in ("sgd", "adafactor"))
            | ((c.setup.optimizer == "galore") & (c.ranks == 1))
        ),
    ),
    FrameworkRule(
        "FSDP cannot shard a frozen base of 8 bits: it takes floating-point storage only",
        "bitsandbytes documentation: FSDP-QLoRA, quantized data storage",
        lambda c: (c.setup.base_bits != 8) | (c.zero_stage == 0),
    ),
    _runs_in("transformers/training_args.py", "bf16", "fp16", "tf32", "fp32"),
    FrameworkRule(
        "16-bit moments beside fp32 weights need an optimizer that is no longer released",
        "transformers/trainer_optimizer.py: _get_adamw_anyprecision (torchdistx)",
        lambda c: (c.setup.optimizer != "adamw-bf16") | (c.setup.weights == "bf16"),
    ),
)

_ENGINE: Final = "deepspeed/runtime/engine.py"
DEEPSPEED: Final[tuple[FrameworkRule, ...]] = (
    FrameworkRule(
        "ZeRO is planned with data parallelism alone",
        "deepspeed/runtime/pipe/engine.py: PipelineEngine.__init__ (pipelines up to ZeRO-1)",
        lambda c: c.is_whole,
    ),
    FrameworkRule(
        "groups smaller than all ranks cannot share the whole state: MiCS was removed, and ZeRO++ "
        "keeps a second copy of the parameters only",
        "deepspeed/runtime/config.py: _REMOVED_ZERO_CONFIG_KEYS",
        lambda c: ~c.is_hierarchical,
    ),
    FrameworkRule(
        "parameters are offloaded from ZeRO-3 only",
        "deepspeed/runtime/zero/config.py: DeepSpeedZeroConfig.offload_param",
        lambda c: (c.offloads_parameters == 0) | (c.zero_stage == 3),
    ),
    FrameworkRule(
        "the optimizer is offloaded from ZeRO 1 to 3 (on one rank they are the same as none)",
        "deepspeed/runtime/zero/config.py: DeepSpeedZeroConfig.offload_optimizer",
        lambda c: (c.offloads_optimizer == 0) | (c.zero_stage > 0) | (c.ranks == 1),
    ),
    FrameworkRule(
        "an offloaded optimizer is DeepSpeed's own Adam",
        _ENGINE + ": _configure_optimizer",
        lambda c: (c.offloads_optimizer == 0) | (c.setup.optimizer == "adamw"),
    ),
    FrameworkRule(
        "gradients are offloaded beside the optimizer, from ZeRO 2 and 3 (or on one rank)",
        "deepspeed/runtime/zero/stage_1_and_2.py: async_accumulate_grad_in_cpu_via_gpu",
        lambda c: (
            (c.offloads_gradients == 0)
            | (c.offloads_optimizer > 0) & ((c.zero_stage >= 2) | (c.ranks == 1))
        ),
    ),
    _updates_after(_ENGINE + ": step"),
    FrameworkRule(
        "activations are offloaded by DeepSpeed's own checkpointing, which models must call",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py: checkpoint",
        lambda c: c.offloads_activations == 0,
    ),
    _REPEATS_LAYERS,
    _runs_in("deepspeed/runtime/precision_config.py", "bf16", "fp16", "tf32", "fp32"),
    FrameworkRule(
        "16-bit moments and weights come together, with ZeRO 1 to 3 or offload",
        "deepspeed/runtime/config.py: _do_error_check",
        lambda c: (
            (c.setup.weights == "fp32") & (c.setup.optimizer != "adamw-bf16")
            | (c.setup.weights == "bf16")
            & (c.setup.optimizer in ("adamw", "adamw-bf16"))
            & ((c.zero_stage > 0) | (c.offloads_optimizer > 0))
        ),
    ),
)

_TITAN: Final = "torchtitan/config/configs.py: "
TORCHTITAN: Final[tuple[FrameworkRule, ...]] = (
    FrameworkRule(
        "zero bubble and DualPipe compute gradients of weights apart, which compiled models "
        "cannot (--kernels eager)",
        "torch.distributed.pipelining.schedules: _check_torch_compile_compatibility",
        lambda c: (c.backward == 0) | (c.setup.kernels != "compiled"),
    ),
    FrameworkRule(
        "DualPipe needs two micro-batches a stage",
        "torch.distributed.pipelining.schedules: ScheduleDualPipeV.__init__",
        lambda c: (c.backward != BACKWARDS.index("dualpipe")) | (c.accumulation_steps >= 2 * c.pp),
    ),
    FrameworkRule(
        "parameters, gradients and state are sharded together (ZeRO-3), or not at all",
        _TITAN + "ParallelismConfig.data_parallel_shard_degree",
        lambda c: (c.zero_stage == 0) | (c.zero_stage == 3),
    ),
    FrameworkRule(
        "replicas that shard nothing hold the whole model",
        _TITAN + "ParallelismConfig.data_parallel_replicate_degree",
        lambda c: (c.zero_stage == 3) | c.is_whole | (c.ranks == 1),
    ),
    FrameworkRule(
        "groups that share a copy of the state must divide the ranks",
        "torchtitan/distributed/parallel_dims.py: ParallelDims",
        lambda c: c.groups_divide,
    ),
    FrameworkRule(
        "parameters and optimizer are offloaded together, from sharded ranks, and nothing else",
        _TITAN + "TrainingConfig.enable_cpu_offload",
        lambda c: (
            (c.offloads_activations == 0) & c.offloads_whole_shards & c.moves_with_parameters
        ),
    ),
    FrameworkRule(
        "the optimizer steps in the backward pass without stages of a pipeline",
        "torchtitan/components/optimizer.py: build_optimizers (early_step_in_backward)",
        lambda c: (c.updates_in_backward == 0) | (c.pp == 1),
    ),
    FrameworkRule(
        "all weights are trained, in fp32, by AdamW",
        "torchtitan/models/llama3/config_registry.py",
        lambda c: (
            not (c.setup.has_adapters or c.setup.frozen_fraction > 0)
            and c.setup.weights == "fp32"
            and c.setup.optimizer == "adamw"
        ),
    ),
    _runs_in(_TITAN + "TrainingConfig.mixed_precision_param", "bf16", "fp8", "tf32", "fp32"),
    FrameworkRule(
        "heads, key/value heads and feed-forward width must divide over the tensor-parallel ranks",
        "torch.distributed.tensor.parallel.parallelize_module",
        lambda c: (c.heads % c.tp == 0) & (c.kv_heads % c.tp == 0) & (c.ffn % c.tp == 0),
        of_shapes=True,
    ),
    FrameworkRule(
        "the sequence must divide over tensor-parallel and twice the context-parallel ranks",
        "torchtitan/distributed/parallel_dims.py: ParallelDims.seq_len_divisor",
        lambda c: c.sequence % (c.tp * np.where(c.cp > 1, 2 * c.cp, 1)) == 0,
        of_shapes=True,
    ),
    FrameworkRule(
        "expert-parallel ranks take all context-parallel ranks, then sharded ones; all "
        "tensor-parallel ranks first where these share no expert",
        "torchtitan/distributed/parallel_dims.py: ParallelDims._validate",
        lambda c: (
            (c.ep == 1)
            | (c.expert_ranks == c.tp) & (c.ep % c.cp == 0) & (c.ranks % c.ep == 0)
            | (c.expert_ranks == 1) & (c.ep % (c.cp * c.tp) == 0) & (c.ranks * c.tp % c.ep == 0)
        ),
    ),
    FrameworkRule(
        "experts must divide over the expert-parallel ranks",
        _TITAN + "ParallelismConfig.expert_parallel_degree",
        lambda c: c.experts % c.ep == 0,
        of_shapes=True,
    ),
)

_RECIPES: Final = "recipes/full_finetune_distributed.py, full_finetune_single_device.py"
TORCHTUNE: Final[tuple[FrameworkRule, ...]] = (
    FrameworkRule(
        "every rank computes the whole model, and several share all of the state (FSDP2)",
        _RECIPES,
        lambda c: c.is_whole & ((c.zero_stage == 3) | (c.ranks == 1)),
    ),
    FrameworkRule("all ranks share one copy of the state", _RECIPES, lambda c: ~c.is_hierarchical),
    _REPEATS_LAYERS,
    FrameworkRule(
        "parameters, gradients and optimizer are offloaded together from several ranks, or "
        "gradients and optimizer from one",
        _RECIPES + " (fsdp_cpu_offload); torchao/optim/cpu_offload.py: CPUOffloadOptimizer",
        lambda c: (
            (c.offloads_whole_shards & c.moves_with_parameters)
            | (c.ranks == 1) & (c.offloads_parameters == 0)
        ),
    ),
    FrameworkRule(
        "activations are offloaded where they are recomputed",
        _RECIPES + " (enable_activation_offloading)",
        lambda c: (c.offloads_activations == 0) | (c.recompute == FULL),
    ),
    FrameworkRule(
        "all of a step is in one precision",
        _RECIPES + " (dtype)",
        lambda c: c.setup.weights == ("bf16" if c.precision == "bf16" else "fp32"),
    ),
    _runs_in(_RECIPES, "bf16", "tf32", "fp32"),
    FrameworkRule(
        "adapters are updated after the backward pass",
        "recipes/lora_finetune_single_device.py",
        lambda c: (c.updates_in_backward == 0) | (not c.setup.has_adapters),
    ),
)

TORCH: Final[tuple[FrameworkRule, ...]] = (
    FrameworkRule(
        "scripts are spread by data, tensor and pipeline parallelism",
        "torch.distributed",
        lambda c: (c.cp * c.ep == 1) & (c.is_sequence_parallel == 0),
    ),
    FrameworkRule(
        "pipelines of recorded scripts are not interleaved",
        "torch.distributed.pipelining: ScheduleGPipe, Schedule1F1B",
        lambda c: c.virtual_stages == 1,  # zero bubble and DualPipe have two
    ),
    FrameworkRule(
        "recomputation wraps whole blocks", "torch.utils.checkpoint", lambda c: c.keeps_or_repeats
    ),
    FrameworkRule(
        "gradients and parameters of pipeline stages are not sharded",
        "torch.distributed.pipelining: micro-batches accumulate gradients",
        lambda c: (c.pp == 1) | (c.zero_stage < 2),
    ),
    FrameworkRule(
        "gradients are sharded without their parameters by DeepSpeed only",
        "torch.distributed.fsdp.fully_shard",
        lambda c: c.zero_stage != 2,
    ),
    FrameworkRule(
        "tensor-parallel parameters are sharded by FSDP2 or not at all",
        "torch.distributed.optim.ZeroRedundancyOptimizer",
        lambda c: (c.tp == 1) | (c.zero_stage != 1),
    ),
    FrameworkRule(
        "pipeline stages are not combined with tensor parallelism",
        "torch.distributed.pipelining.pipeline (traces the whole model)",
        lambda c: (c.tp == 1) | (c.pp == 1),
    ),
    FrameworkRule(
        "FSDP offloads parameters and optimizer together",
        "torch.distributed.fsdp.CPUOffloadPolicy",
        lambda c: c.offloads_whole_shards & c.moves_with_parameters,
    ),
    FrameworkRule(
        "activations are offloaded from whole models that are not recomputed",
        "torch.autograd.graph.save_on_cpu",
        lambda c: (c.offloads_activations == 0) | ((c.pp == 1) & (c.recompute == NONE)),
    ),
)


RULES: Final[dict[Framework, tuple[FrameworkRule, ...]]] = {
    "trainer": TRAINER,
    "deepspeed": DEEPSPEED,
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "torchtune": TORCHTUNE,
    "torch": TORCH,
}

# What runs a described transformer, by preference: the first that accepts a layout is printed.
DESCRIBED: Final[tuple[Framework, ...]] = ("trainer", "deepspeed", "megatron")


def frameworks_of(setup: TrainingSetup) -> tuple[Framework, ...]:
    """Return what runs a described transformer: the named stack's framework first."""
    if setup.named_stack is None or (facts := setup.facts) is None:
        return DESCRIBED
    named = cast("Framework", facts.framework)
    return (named, *(one for one in DESCRIBED if one != named))


# What runs a recorded script.
RECORDED: Final[tuple[Framework, ...]] = ("torch", "deepspeed")


def is_runnable(
    layouts: Layouts, shapes: Shapes | None = None, *, setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16", frameworks: Sequence[Framework] = DESCRIBED,
) -> Bools:  # fmt: skip
    """Return which layouts at least one framework accepts.

    ``shapes``: without them, rules about dimensions (heads over tp, ...) are taken as kept.

    Returns
    -------
    ndarray of bool
        Of the columns' common shape, or of one that broadcasts to it.
    """
    case = Case(layouts, shapes, setup, precision)
    found: Bools = np.asarray(False)
    for framework in frameworks:
        found = found | _accepted(case, framework)
    return found


def _accepted(case: Case, framework: Framework) -> Bools:
    """Return what a framework accepts: rules over the same axes first, so that few are dense."""
    by_axes: dict[tuple[int, ...], Bools] = {}
    for rule in RULES[framework]:
        if case.shapes is not None or not rule.of_shapes:
            allowed = np.asarray(rule.allows(case), bool)
            before = by_axes.get(allowed.shape)
            by_axes[allowed.shape] = allowed if before is None else before & allowed
    accepted: Bools = np.asarray(True)
    for allowed in sorted(by_axes.values(), key=lambda x: x.size):
        accepted = accepted & allowed
    return accepted


def broken_rule(
    layout: Layout, framework: Framework, shapes: Shapes | None = None, *,
    setup: TrainingSetup = DEFAULT_SETUP, precision: Precision = "bf16",
) -> FrameworkRule | None:  # fmt: skip
    """Return the first rule of a framework that a layout breaks; None where it runs."""
    case = Case(layout_columns(layout), shapes, setup, precision)
    for rule in RULES[framework]:
        if (case.shapes is not None or not rule.of_shapes) and not np.all(rule.allows(case)):
            return rule
    return None


_SAID: Final[dict[Framework, str]] = {
    "deepspeed": "DeepSpeed", "megatron": "Megatron-LM", "torchtitan": "torchtitan",
    "torchtune": "torchtune",
}  # fmt: skip


def framework_words(work: Work | None, layout: Layout) -> str:
    """Return what runs a layout of a job; empty of one device, and of no known model."""
    if work is None or layout.devices == 1:
        return ""
    shape = None if work.layers else work.transformer
    shapes = None if shape is None else shapes_of(shape)
    settings: dict[str, Any] = {"setup": work.setup, "precision": work.precision}
    for one in RECORDED if shape is None else frameworks_of(work.setup):
        if broken_rule(layout, one, shapes, **({} if shape is None else settings)) is None:
            in_torch = "FSDP" if layout.zero_stage == 3 else "DDP"
            return _SAID.get(one, "PyTorch's pipelines" if layout.pp > 1 else in_torch)
    return ""


def layout_columns(layout: Layout) -> Layouts:
    """Return one layout as scalar columns."""
    same = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "accumulation_steps", "virtual_stages",
            "zero_stage", "average_every")  # fmt: skip
    return Layouts(
        **{name: getattr(layout, name) for name in same},
        etp=layout.etp or 0,
        recompute=RECOMPUTES.index(layout.recompute),
        is_sequence_parallel=int(layout.is_sequence_parallel),
        shard_group=layout.shard_group or layout.dp * layout.cp,
        partial_layers=layout.partial_layers or 0,
        holds_all=int(layout.schedule == "gpipe" and layout.pp > 1),
        updates_in_backward=int(layout.updates_in_backward),
        backward=BACKWARDS.index(layout.schedule) if layout.schedule in BACKWARDS else 0,
        **{f"offloads_{what}": int(what in layout.offload) for what in OFFLOADS},
    )
