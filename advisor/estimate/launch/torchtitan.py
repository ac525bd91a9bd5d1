"""A layout as options of torchtitan 0.3, as ``torchtitan/config/configs.py`` names them."""

from __future__ import annotations

from typing import Final

from advisor.estimate.launch.launcher import torchrun
from advisor.planners.core import Layout, Precision, TrainingSetup, Transformer

_SCHEDULES: Final[dict[str, str]] = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}  # fmt: skip


def torchtitan_line(
    layout: Layout, transformer: Transformer, *, nodes: int, per_node: int, setup: TrainingSetup,
    precision: Precision,
) -> str:  # fmt: skip
    """Return the whole command; the model is a configuration of the user's, by two variables."""
    words = [
        torchrun(nodes, per_node),
        "-m torchtitan.train --module ${TITAN_MODULE:?} --config ${TITAN_CONFIG:?}",
        *_degrees(layout), *_batch(layout, transformer.layers),
        f"--training.seq_len {transformer.sequence}",
    ]  # fmt: skip
    if precision in ("fp32", "tf32"):
        words.append("--training.mixed_precision_param float32")
    if setup.kernels == "compiled":
        words.append("--compile.enable")
        words += ["--compile.components model"] if setup.loss == "eager" else []
        if setup.overlaps_tensor and layout.tp > 1:
            words.append("--compile.enable_async_tensor_parallel")
    if "parameters" in layout.offload:
        words.append("--training.enable_cpu_offload")
    if layout.updates_in_backward:
        words.append("--optimizer.early_step_in_backward")
    # A subcommand of the parser: it stands last.
    words.append(f"activation-checkpoint:{layout.recompute}")
    return " ".join(words) + ("  # with its float8 converter" if precision == "fp8" else "")


def _degrees(layout: Layout) -> list[str]:
    ranks = layout.dp * layout.cp
    shared = 1 if layout.zero_stage == 0 else layout.shard_group or ranks
    found = {
        "data_parallel_replicate": ranks // shared if layout.zero_stage else layout.dp,
        "data_parallel_shard": max(shared // layout.cp, 1),
        "tensor_parallel": layout.tp,
        "context_parallel": layout.cp,
        "pipeline_parallel": layout.pp,
        "expert_parallel": layout.ep,
        "expert_tensor_parallel": (layout.etp or layout.tp) if layout.ep > 1 else 1,
    }
    # What is left over is sharded unless its degree is said.
    return [
        f"--parallelism.{name}_degree {n}"
        for name, n in found.items()
        if n > 1 or name == "data_parallel_shard"
    ]


def _batch(layout: Layout, layers: int) -> list[str]:
    """Return the batch: a pipeline divides a rank's into micro-batches, others accumulate."""
    passes = layout.accumulation_steps if layout.pp > 1 else 1
    found = [
        f"--training.local_batch_size {layout.micro_batch * passes}",
        f"--training.global_batch_size {layout.global_batch}",
    ]
    if layout.pp > 1:
        found.append(f"--parallelism.pipeline_parallel_microbatch_size {layout.micro_batch}")
        found.append(f"--parallelism.pipeline_parallel_schedule {_SCHEDULES[layout.schedule]}")
    if layout.virtual_stages > 1:
        each = -(-layers // (layout.pp * layout.virtual_stages))
        found.append(f"--parallelism.pipeline_parallel_layers_per_stage {each}")
    return found
