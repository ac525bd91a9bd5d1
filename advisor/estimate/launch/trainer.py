"""A data-parallel layout as arguments of the Hugging Face Trainer: DDP, FSDP2 or DeepSpeed."""

from __future__ import annotations

import json
from typing import Any, Final

from advisor.answer import Command
from advisor.estimate.launch.launcher import torchrun
from advisor.planners.core import DEFAULT_SETUP, OPTIMIZERS, Layout, Precision, TrainingSetup

_PRECISIONS: Final[dict[str, str]] = {"bf16": "--bf16", "fp16": "--fp16", "tf32": "--tf32 true"}
# What changes the Trainer's loss, and TRL's.
_LIGER: Final = "--use_liger_kernel"
_LOSSES: Final[dict[str, str]] = {"fused": _LIGER, "chunked": _LIGER}
_LOSSES_OF_TRL: Final[dict[str, str]] = {
    "eager": "--loss_type nll", "fused": f"--loss_type nll {_LIGER}",
}  # fmt: skip


def trainer_command(
    layout: Layout, *, group: str, nodes: int, per_node: int, setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> Command:  # fmt: skip
    """Return how to run a layout with PyTorch's DDP (ZeRO-0) or FSDP2 (ZeRO-3)."""
    launcher = torchrun(nodes, per_node, environment=environment(layout))
    words = [launcher, "train.py", *_arguments(layout, setup, precision)]
    if layout.zero_stage != 3:
        words += ["--gradient_checkpointing"] if layout.recompute == "full" else []
        return Command(group=group, text=" ".join(words) + _remark(layout, setup))
    words += ["--fsdp", "--fsdp_config fsdp.json"]
    return Command(
        group=group,
        text=" ".join(words) + _remark(layout, setup),
        files={"fsdp.json": json.dumps(fsdp_config(layout), indent=2)},
    )


def deepspeed_command(
    layout: Layout, *, group: str, nodes: int, per_node: int, setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> Command:  # fmt: skip
    """Return how to run a layout with DeepSpeed's ZeRO."""
    words = [torchrun(nodes, per_node), "train.py", "--deepspeed ds_config.json"]
    # The Trainer refuses a configuration that differs from its own arguments.
    words += _arguments(layout, setup, precision, stores_bf16=False)
    words += ["--gradient_checkpointing"] if layout.recompute == "full" else []
    return Command(
        group=group,
        text=" ".join(words),
        files={
            "ds_config.json": json.dumps(
                deepspeed_config(layout, setup=setup, precision=precision), indent=2
            )
        },
    )


def _arguments(
    layout: Layout, setup: TrainingSetup, precision: Precision, *, stores_bf16: bool = True
) -> list[str]:
    """Return what every backend takes; PyTorch needs no autocast where weights are bf16."""
    found = [
        f"--per_device_train_batch_size {layout.micro_batch}",
        f"--gradient_accumulation_steps {layout.accumulation_steps}",
    ]
    is_pure = stores_bf16 and setup.weights == "bf16" and precision == "bf16"
    if precision in _PRECISIONS and not is_pure:
        found.append(_PRECISIONS[precision])
    optimizer = OPTIMIZERS[setup.optimizer]
    form = "trainer_in_backward" if layout.updates_in_backward else "trainer"
    losses = _LOSSES_OF_TRL if setup.stack == "trl" else _LOSSES
    if form in optimizer:
        found.append(optimizer[form])
    if setup.loss in losses:
        found.append(losses[setup.loss])
    if setup.stack == "trl" and "activations" in layout.offload and layout.zero_stage != 3:
        found.append("--activation_offloading")
    if setup.kernels == "compiled":
        found.append("--torch_compile")
    return found


def _remark(layout: Layout, setup: TrainingSetup) -> str:
    """Return what the script says itself, which has no argument."""
    said = ['load the model with dtype="bfloat16"'] if setup.weights == "bf16" else []
    if setup.stack == "unsloth":
        said.append("FastLanguageModel.from_pretrained")
        if "activations" in layout.offload:
            said.append('use_gradient_checkpointing="unsloth"')
    if layout.updates_in_backward and "trainer_in_backward" not in OPTIMIZERS[setup.optimizer]:
        said.append("step in register_post_accumulate_grad_hook")
    if setup.loss == "fused":
        said.append("liger_kernel_config: cross_entropy, no fused_linear_cross_entropy")
    if setup.optimizer == "muon":
        said.append("optimizers=(torch.optim.Muon of the matrices and AdamW of the rest, None)")
    return f"  # {'; '.join(said)}" if said else ""


def environment(layout: Layout) -> dict[str, str]:
    """Return the variables by which accelerate learns what the Trainer has no argument for."""
    ranks = layout.dp * layout.cp
    if layout.zero_stage != 3:
        return {}
    found = {}
    if layout.shard_group and layout.shard_group < ranks:
        found = {
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(ranks // layout.shard_group),
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(layout.shard_group),
        }
    if "activations" in layout.offload:
        found["FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"] = "true"
    return found


def fsdp_config(layout: Layout) -> dict[str, Any]:
    """Return a fully sharded layout's FSDP2 settings, as the Trainer names them."""
    return {
        "version": 2,
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": layout.recompute == "full",
        "cpu_offload": "parameters" in layout.offload,
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def deepspeed_config(
    layout: Layout, *, setup: TrainingSetup = DEFAULT_SETUP, precision: Precision = "bf16",
    is_script: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return a DeepSpeed configuration of a data-parallel layout.

    ``is_script``: for ``deepspeed.initialize`` with the script's own optimizer; else the Trainer
    fills in what is "auto"; False by default.
    """
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.accumulation_steps,
        **_deepspeed_precision(setup, precision),
        "zero_optimization": _zero(layout, setup),
    }
    if not is_script:
        config["gradient_clipping"] = "auto"
    if is_script or setup.optimizer not in ("adamw", "adamw-bf16"):
        config["zero_allow_untested_optimizer"] = True
        if "optimizer" in layout.offload:
            config["zero_force_ds_cpu_optimizer"] = False
    else:
        names = ("lr", "betas", "eps", "weight_decay")
        config["optimizer"] = {"type": "AdamW", "params": dict.fromkeys(names, "auto")}
    return config


def _deepspeed_precision(setup: TrainingSetup, precision: Precision) -> dict[str, Any]:
    if precision not in ("bf16", "fp16"):
        return {}
    section: dict[str, Any] = {"enabled": True}
    if setup.weights == "bf16" and precision == "bf16":
        section |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    return {precision: section}


def _zero(layout: Layout, setup: TrainingSetup) -> dict[str, Any]:
    # On one rank nothing is sharded: stage 2 is what offloads the optimizer.
    stage = layout.zero_stage or (2 if "optimizer" in layout.offload else 0)
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": setup.overlaps,
        "contiguous_gradients": True,
    }
    for name, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if name in layout.offload:
            zero[key] = {"device": "cpu", "pin_memory": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return zero
