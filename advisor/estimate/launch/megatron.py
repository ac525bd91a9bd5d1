"""A layout as Megatron-LM's arguments and environment.

The rules that the arguments must keep are ``planners.layouts.frameworks``; what follows from a
layout alone (variables of the environment, switches that come together) is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from advisor.estimate.launch.launcher import torchrun
from advisor.planners.core import (
    DEFAULT_SETUP,
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
_OPTIMIZERS: Final[dict[str, str]] = {
    "adamw-bf16": "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
    "sgd": "--optimizer sgd --sgd-momentum 0.0",
    "sgd-momentum": "--optimizer sgd",
}
_SHARDING: Final[dict[int, str]] = {2: "optim_grads", 3: "optim_grads_params"}


def command_line(
    layout: Layout,
    transformer: Transformer,
    *,
    nodes: int,
    per_node: int,
    layers: Sequence[int] | None = None,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
    launcher_arguments: str = "",
) -> str:
    """Return the whole command: environment, launcher, script, arguments.

    Data, tokenizer and schedule are the user's, in ``TRAINING_ARGS``; without them the command
    trains a few steps on made-up tokens, so that the layout can be tried.
    """
    launcher = torchrun(nodes, per_node, environment=environment(layout, precision))
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
    layout: Layout,
    transformer: Transformer,
    *,
    layers: Sequence[int] | None = None,
    setup: TrainingSetup = DEFAULT_SETUP,
    precision: Precision = "bf16",
) -> list[str]:
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
        *_parallel_arguments(layout, transformer, pp, layers),
        *_sharding_arguments(layout, setup),
        *_memory_arguments(layout, transformer),
    ]
    if setup.optimizer in _OPTIMIZERS:
        found.append(_OPTIMIZERS[setup.optimizer])
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
    if transformer.kv_heads and transformer.kv_heads != transformer.heads:
        found.append(f"--group-query-attention --num-query-groups {transformer.kv_heads}")
    if transformer.is_gated:
        found.append("--swiglu")
    if style.has_root_mean_square:
        found.append("--normalization RMSNorm")
    if style.is_rotated:
        found.append("--position-embedding-type rope")
    if style.biased and "down" not in style.biased and "query" in style.biased:
        found.append("--add-qkv-bias")
    # Experts that are split over tensor-parallel ranks have no biases, gated layers seldom.
    if "down" not in style.biased or transformer.experts > 1:
        found.append("--disable-bias-linear")
    if not transformer.has_tied_embeddings:
        found.append("--untie-embeddings-and-output-weights")
    if transformer.experts > 1:
        found += _expert_arguments(transformer, precision)
    return found


def _expert_arguments(transformer: Transformer, precision: Precision) -> list[str]:
    found = [
        f"--num-experts {transformer.experts} --moe-router-topk {transformer.experts_per_token}",
        "--moe-token-dispatcher-type alltoall",
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


def _parallel_arguments(
    layout: Layout, transformer: Transformer, pp: int, layers: Sequence[int] | None
) -> list[str]:
    found = []
    if layout.cp > 1:
        found.append(f"--context-parallel-size {layout.cp}")
    if layout.ep > 1:
        found.append(f"--expert-model-parallel-size {layout.ep}")
    if layout.is_sequence_parallel:
        found.append("--sequence-parallel")
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
    found = []
    if layout.zero_stage >= 2:
        found.append(
            "--use-megatron-fsdp "
            f"--data-parallel-sharding-strategy {_SHARDING[layout.zero_stage]} "
            "--ckpt-format fsdp_dtensor --init-model-with-meta-device "
            "--no-gradient-accumulation-fusion"
        )
    if layout.zero_stage or "optimizer" in layout.offload:
        found.append("--use-distributed-optimizer")
    ranks = layout.dp * layout.cp
    if setup.overlaps and ranks > 1:
        found.append("--overlap-grad-reduce")
        if layout.zero_stage:
            found.append("--overlap-param-gather")
    if setup.overlaps_tensor and layout.is_sequence_parallel:
        found.append("--tp-comm-overlap")
    if layout.shard_group and layout.zero_stage and layout.shard_group < ranks:
        found.append(f"--num-distributed-optimizer-instances {ranks // layout.shard_group}")
    return found


def _memory_arguments(layout: Layout, transformer: Transformer) -> list[str]:
    found = []
    if layout.recompute == "selective":
        found.append("--recompute-granularity selective")
    elif layout.recompute == "full":
        some = layout.partial_layers
        method = (
            f"block --recompute-num-layers {some}" if some else "uniform --recompute-num-layers 1"
        )
        found.append(f"--recompute-granularity full --recompute-method {method}")
    if "optimizer" in layout.offload:
        found.append("--optimizer-cpu-offload --use-precision-aware-optimizer")
    if "activations" in layout.offload:
        # All layers but the last: Megatron-Core keeps at least one on the device.
        moved = min(layout.partial_layers or transformer.layers, transformer.layers - 1)
        found.append(f"--cpu-offloading-num-layers {moved}")
    return found


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
