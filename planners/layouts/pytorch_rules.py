"""Rules of the Hugging Face Trainer, DeepSpeed and PyTorch's own calls about layouts.

Releases read: transformers 5.23, accelerate 1.15, deepspeed 0.19.8, torch 2.13.
"""

from __future__ import annotations

from typing import Final

from advisor.planners.layouts.framework_rules import FULL, HALF, NONE, SINGLE, FrameworkRule

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
    FrameworkRule(
        "gradient checkpointing repeats whole layers",
        "transformers/modeling_utils.py: gradient_checkpointing_enable",
        lambda c: c.keeps_or_repeats,
    ),
    FrameworkRule(
        "FSDP offloads parameters and optimizer together, and DDP neither",
        _PLUGIN,
        lambda c: (
            (c.offloads_optimizer == c.offloads_parameters)
            & ((c.offloads_parameters == 0) | (c.zero_stage == 3))
        ),
    ),
    FrameworkRule(
        "FSDP offloads the activations that checkpointing keeps, and no others",
        _PLUGIN,
        lambda c: (c.offloads_activations == 0) | ((c.zero_stage == 3) & (c.recompute == FULL)),
    ),
    FrameworkRule(
        "FSDP cannot shard a frozen base of 8 bits: it takes floating-point storage only",
        "bitsandbytes documentation: FSDP-QLoRA, quantized data storage",
        lambda c: (c.setup.base_bits != 8) | (c.zero_stage == 0),
    ),
    FrameworkRule(
        "precision is one of bf16, fp16, tf32 and fp32",
        "transformers/training_args.py",
        lambda c: c.precision in (*HALF, *SINGLE),
    ),
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
        "activations are offloaded by DeepSpeed's own checkpointing, which models must call",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py: checkpoint",
        lambda c: c.offloads_activations == 0,
    ),
    FrameworkRule(
        "gradient checkpointing repeats whole layers",
        "transformers/modeling_utils.py: gradient_checkpointing_enable",
        lambda c: c.keeps_or_repeats,
    ),
    FrameworkRule(
        "precision is one of bf16, fp16, tf32 and fp32",
        "deepspeed/runtime/precision_config.py",
        lambda c: c.precision in (*HALF, *SINGLE),
    ),
    FrameworkRule(
        "16-bit moments and weights come together, with ZeRO 1 to 3",
        "deepspeed/runtime/config.py: _do_error_check",
        lambda c: (
            (c.setup.weights == "fp32") & (c.setup.optimizer != "adamw-bf16")
            | (c.setup.weights == "bf16")
            & (c.setup.optimizer in ("adamw", "adamw-bf16"))
            & (c.zero_stage > 0)
        ),
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
        lambda c: c.virtual_stages == 1,
    ),
    FrameworkRule(
        "recomputation wraps whole blocks",
        "torch.utils.checkpoint",
        lambda c: c.keeps_or_repeats,
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
        lambda c: (
            (c.offloads_optimizer == c.offloads_parameters)
            & ((c.offloads_parameters == 0) | (c.zero_stage == 3))
        ),
    ),
    FrameworkRule(
        "activations are offloaded from whole models that are not recomputed",
        "torch.autograd.graph.save_on_cpu",
        lambda c: (c.offloads_activations == 0) | ((c.pp == 1) & (c.recompute == NONE)),
    ),
)
