"""A layout as Megatron-LM's arguments and environment.

The rules that the arguments must keep are ``planners.layouts.frameworks``; what follows from a
layout alone (variables of the environment, switches that come together) is written here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from advisor.estimate.launch.launcher import torchrun
from advisor.planners.core import (
    DEFAULT_SETUP,
    OPTIMIZERS,
    STACKS,
    Layout,
    Precision,
    TrainingSetup,
    Transformer,
    head_width,
)

_PRECISIONS: Final[dict[str, str]] = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp4": "--bf16 --fp4-format e2m1",
}
# Weights and gradients are bf16 beside products of fewer bits.
_KEPT_IN_BF16: Final = ("bf16", "fp8", "fp4")
_SHARDING: Final[dict[int, str]] = {2: "optim_grads", 3: "optim_grads_params"}


def command_line(
    layout: Layout, transformer: Transformer, *, nodes: int, per_node: int,
    layers: Sequence[int] | None = None, setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16", launcher_arguments: str = "",
) -> str:  # fmt: skip
    """Return the whole command: environment, launcher, script, arguments.

    Data, tokenizer and schedule are the user's, in ``TRAINING_ARGS``; without them the command
    trains a few steps on made-up tokens, so that the layout can be tried.
    """
    launcher = torchrun(nodes, per_node, environment=environment(layout, precision))
    if setup.has_adapters:
        words = [launcher, *launcher_arguments.split(), _RECIPE_LINE]
        return " ".join([*words, *_recipe_overrides(layout, transformer, setup, precision)])
    script = "pretrain_gpt.py" if transformer.is_causal else "pretrain_bert.py"
    arguments = megatron_arguments(
        layout, transformer, layers=layers, setup=setup, precision=precision
    )
    trial = (
        "--mock-data --tokenizer-type NullTokenizer "
        f"--vocab-size {transformer.vocabulary} --train-iters 20 --lr 1e-4"
    )
    words = [launcher, *launcher_arguments.split(), script, *arguments]
    return " ".join(words) + f" ${{TRAINING_ARGS:-{trial}}}"


# Adapters are trained by the recipes of Megatron-Bridge (``scripts/training/run_recipe.py``); the
# model's recipe, its checkpoint and the data are the user's.
_RECIPE_LINE: Final = (
    "run_recipe.py --recipe ${RECIPE:?such_as_llama3_70b_peft_config} "
    "--dataset llm-finetune --peft_scheme lora"
)
_MIXED: Final = {"bf16": "bf16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed"}


def _recipe_overrides(
    layout: Layout, transformer: Transformer, setup: TrainingSetup, precision: Precision
) -> list[str]:
    """Return the fields of a recipe: nearly all are called as Megatron-LM's arguments are."""
    model = " ".join((
        f"--tensor-model-parallel-size {layout.tp} --pipeline-model-parallel-size {layout.pp}",
        f"--seq-length {transformer.sequence}",
        *_parallel_arguments(layout, transformer, layout.pp, None),
        *_memory_arguments(layout, transformer),
    ))  # fmt: skip
    stages = f"virtual-pipeline-model-parallel-size {layout.virtual_stages}"
    model = re.sub(r"num-layers-per-virtual-pipeline-stage \d+", stages, model)
    model = model.replace("--cpu-offloading-num", "--cpu-offloading --cpu-offloading-num")
    fields = re.findall(r"--(\S+)(?: (?!--)(\S+))?", model)
    return [
        f"peft.dim={setup.adapter_rank} mixed_precision={_MIXED[precision]}",
        f"train.global_batch_size={layout.global_batch}",
        f"train.micro_batch_size={layout.micro_batch}",
        f"ddp.use_distributed_optimizer={str(layout.zero_stage > 0).lower()}",
        *(f"model.{name.replace('-', '_')}={value or 'true'}" for name, value in fields),
    ]


def environment(layout: Layout, precision: Precision) -> dict[str, str]:
    """Return the variables that Megatron-LM insists on.

    Tensor and context parallelism want their kernels and messages in one queue, up to Hopper;
    Megatron-FSDP refuses that (``validate_args``).
    """
    found = {}
    if layout.tp * layout.cp > 1 and layout.zero_stage < 2:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if precision == "tf32":
        found["NVIDIA_TF32_OVERRIDE"] = "1"
    return found


def megatron_arguments(
    layout: Layout, transformer: Transformer, *, layers: Sequence[int] | None = None,
    setup: TrainingSetup = DEFAULT_SETUP, precision: Precision = "bf16",
) -> list[str]:  # fmt: skip
    """Return Megatron-LM's arguments of a layout.

    ``layers``: of every stage, where they differ.
    """
    pp = len(layers) if layers else layout.pp
    found = [
        f"--tensor-model-parallel-size {layout.tp}",
        f"--pipeline-model-parallel-size {pp}",
        f"--micro-batch-size {layout.micro_batch}",
        f"--global-batch-size {layout.global_batch}",
        *_model_arguments(transformer, precision),
        *([_PRECISIONS[precision]] if precision in _PRECISIONS else []),
        *_dispatch_arguments(layout, transformer, setup),
        *_parallel_arguments(layout, transformer, pp, layers),
        *_sharding_arguments(layout, setup),
        *_memory_arguments(layout, transformer),
    ]
    if (optimizer := OPTIMIZERS[setup.optimizer].get("megatron")) is not None:
        found.append(optimizer)
    if setup.loss == "fused":
        found.append("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te")
    if setup.gradients == "bf16" and precision in _KEPT_IN_BF16:
        found.append("--grad-reduce-in-bf16")
    return found


def _model_arguments(transformer: Transformer, precision: Precision) -> list[str]:
    ffn = transformer.dense_ffn or transformer.ffn or 4 * transformer.hidden
    style, latent = transformer.surroundings, transformer.latent
    found = [
        f"--num-layers {transformer.layers} --hidden-size {transformer.hidden}",
        f"--ffn-hidden-size {ffn}",
        f"--num-attention-heads {transformer.heads} --seq-length {transformer.sequence}",
        f"--max-position-embeddings {transformer.sequence}",
    ]
    if latent:
        found.append(
            "--multi-latent-attention"
            + (f" --q-lora-rank {latent.query_rank}" if latent.query_rank else "")
            + f" --kv-lora-rank {latent.rank} --qk-pos-emb-head-dim {latent.rotated}"
            f" --qk-head-dim {head_width(transformer) - latent.rotated}"
            f" --v-head-dim {latent.value_width}"
        )
    elif transformer.head_width:
        found.append(f"--kv-channels {transformer.head_width}")
    groups, biased = transformer.kv_heads, style.biased
    found += _where(
        (groups and groups != transformer.heads,
         f"--group-query-attention --num-query-groups {groups}"),
        (transformer.is_gated, "--swiglu"),
        (style.has_root_mean_square, "--normalization RMSNorm"),
        (style.is_rotated, "--position-embedding-type rope"),
        ("down" not in biased and "query" in biased, "--add-qkv-bias"),
        # Experts that are split over tensor-parallel ranks have no biases, gated layers seldom.
        ("down" not in biased or transformer.experts > 1, "--disable-bias-linear"),
        (not transformer.has_tied_embeddings, "--untie-embeddings-and-output-weights"),
    )  # fmt: skip
    return found + (_expert_arguments(transformer, precision) if transformer.experts > 1 else [])


def _where(*rows: tuple[object, str]) -> list[str]:
    """Return the texts whose conditions hold."""
    return [text for holds, text in rows if holds]


def _expert_arguments(transformer: Transformer, precision: Precision) -> list[str]:
    found = [
        f"--num-experts {transformer.experts} --moe-router-topk {transformer.experts_per_token}"
    ]
    if transformer.dense_layers:
        dense, routed = transformer.dense_layers, transformer.layers - transformer.dense_layers
        found.append(f"--moe-layer-freq '([0]*{dense}+[1]*{routed})'")
        found.append(f"--moe-ffn-hidden-size {transformer.ffn}")
    if transformer.shared_ffn:
        found.append(f"--moe-shared-expert-intermediate-size {transformer.shared_ffn}")
    # One expert's softmax after the choice is always 1: no gradient, and refused.
    if transformer.experts_per_token == 1:
        found.append("--moe-router-pre-softmax")
    if precision in _KEPT_IN_BF16:
        found.append("--moe-grouped-gemm")
    return found


def _dispatch_arguments(
    layout: Layout, transformer: Transformer, setup: TrainingSetup
) -> list[str]:
    """Return how tokens reach their experts: as the step was estimated for the stack."""
    if transformer.experts == 1:
        return []
    facts = STACKS[setup.stack].software if setup.stack else {}
    if layout.ep == 1 or not facts.get("sends_once"):
        return ["--moe-token-dispatcher-type alltoall"]
    hides = layout.virtual_stages > 1 and layout.recompute != "full"
    return [
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep "
        "--moe-router-dtype fp32",
        *(["--overlap-moe-expert-parallel-comm"] if hides and facts.get("overlaps_ep") else []),
    ]


def _parallel_arguments(
    layout: Layout, transformer: Transformer, pp: int, layers: Sequence[int] | None
) -> list[str]:
    found = _where(
        (layout.cp > 1, f"--context-parallel-size {layout.cp}"),
        (layout.ep > 1, f"--expert-model-parallel-size {layout.ep}"),
        (layout.etp, f"--expert-tensor-parallel-size {layout.etp}"),
        (layout.is_sequence_parallel, "--sequence-parallel"),
    )
    if layout.virtual_stages > 1:
        found += _chunk_arguments(transformer.layers, pp * layout.virtual_stages)
    elif stages := layers or _uneven(transformer.layers, pp):
        found.append(f"--pipeline-model-parallel-layout '{pipeline_layout(stages)}'")
    return found


def _chunk_arguments(layers: int, chunks: int) -> list[str]:
    """Return the arguments of interleaved stages.

    Layers that do not divide over the chunks do so with the embedding and the loss each in a
    layer's place (``planners.layouts.frameworks.fills_chunks``).
    """
    if layers % chunks == 0:
        return [f"--num-layers-per-virtual-pipeline-stage {layers // chunks}"]
    return [
        f"--num-layers-per-virtual-pipeline-stage {(layers + 2) // chunks} "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    ]


def _sharding_arguments(layout: Layout, setup: TrainingSetup) -> list[str]:
    ranks, is_sharded = layout.dp * layout.cp, layout.zero_stage > 0
    overlaps, group = setup.overlaps and ranks > 1, layout.shard_group or ranks
    return _where(
        (layout.zero_stage >= 2, "--use-megatron-fsdp --data-parallel-sharding-strategy "
         f"{_SHARDING.get(layout.zero_stage)} --ckpt-format fsdp_dtensor "
         "--init-model-with-meta-device --no-gradient-accumulation-fusion"),
        (is_sharded or "optimizer" in layout.offload, "--use-distributed-optimizer"),
        (overlaps, "--overlap-grad-reduce"),
        (overlaps and is_sharded, "--overlap-param-gather"),
        (setup.overlaps_tensor and layout.is_sequence_parallel, "--tp-comm-overlap"),
        (is_sharded and group < ranks,
         f"--num-distributed-optimizer-instances {ranks // group}"),
    )  # fmt: skip


def _memory_arguments(layout: Layout, transformer: Transformer) -> list[str]:
    some, layers = layout.partial_layers, transformer.layers
    method = f"block --recompute-num-layers {some}" if some else "uniform --recompute-num-layers 1"
    # All layers but the last: Megatron-Core keeps at least one on the device.
    moved = min(some or layers, layers - 1)
    return _where(
        (layout.recompute == "selective", "--recompute-granularity selective"),
        (layout.recompute == "full",
         f"--recompute-granularity full --recompute-method {method}"),
        ("optimizer" in layout.offload,
         "--optimizer-cpu-offload --use-precision-aware-optimizer"),
        ("activations" in layout.offload, f"--cpu-offloading-num-layers {moved}"),
    )  # fmt: skip


def _uneven(layers: int, pp: int) -> list[int] | None:
    if layers % pp == 0:
        return None
    largest = -(-layers // pp)
    stages = [largest] * pp
    stages[-1] = layers - largest * (pp - 1)
    return stages


def pipeline_layout(layers: Sequence[int]) -> str:
    """Return Megatron-LM's text for uneven stages: embedding, layers, loss.

    >>> pipeline_layout([2, 3, 1])
    'Et*2|t*3|t*1L'
    """
    return "E" + "|".join(f"t*{n}" for n in layers) + "L"
