"""Steps that were measured after the layout tables: fine-tuning on Hugging Face, and B200s."""

from __future__ import annotations

from typing import Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import MS_PER_S, PublishedTable

FINETUNE: Final = Dataset(
    name="finetune",
    title="IBM's fine-tuning runs",
    upstream=(
        Upstream(
            repository="atlarge-research/coastline-recommender",
            commit="c6609fd376090dbddcb067652d8fc5fe88c0542a",
        ),
    ),
    licence="MIT (the package), Apache-2.0 (ibm-research/LLMFineTuningBench)",
    ships=True,
    tables={
        "runs": PublishedTable(
            file="finetune/runs.csv",
            published="measurements/finetune/runs.csv",
            columns={
                "model": "model_name",
                "method": "method",
                "accelerator": "gpu_model",
                "nodes": "number_nodes",
                "accelerators": "number_gpus",
                "sequence": "tokens_per_sample",
                "global_batch": "batch_size",
                "tokens_per_s": "dataset_tokens_per_second",
                "run_s": "train_runtime",
                "is_valid": "is_valid",
            },
            tell=frozenset({"model_name", "method", "gpu_model", "tokens_per_sample"}),
        )
    },
)
BLACKWELL: Final = Dataset(
    name="blackwell",
    title="SimuMax's measured steps on eight B200s",
    upstream=(Upstream(repository="MooreThreads/SimuMax", commit="1b8ca90"),),
    licence="Apache-2.0",
    ships=True,
    tables={
        "steps": PublishedTable(
            file="blackwell/steps.csv",
            published="measurements/blackwell/b200_steps.csv",
            columns={
                name: name
                for name in (
                    "case", "model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary",
                    "experts", "experts_per_token", "expert_ffn", "shared_ffn", "dense_layers",
                    "attention", "sequence", "tp", "pp", "dp", "ep", "cp", "micro_batch",
                    "micro_batches", "global_batch", "zero_stage", "recompute", "precision",
                    "accelerator", "accelerators", "framework",
                )
            }
            | {
                "step_s": "step_ms",
                "allocated_gib": "allocated_gib",
                "simumax_step_s": "simumax_step_ms",
                "simumax_allocated_gib": "simumax_allocated_gib",
            },
            divisors={"step_s": MS_PER_S, "simumax_step_s": MS_PER_S},
            tell=frozenset({"case", "model", "step_ms", "allocated_gib"}),
        )
    },
)  # fmt: skip
