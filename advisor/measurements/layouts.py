"""Measured training runs of transformers by layout: one schema for every published table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import PublishedTable

if TYPE_CHECKING:
    import pandas as pd

# Our column -> the collected one. Only what a reader uses, and where a row is from.
_COLUMNS: Final = {
    "row_id": "row_id", "table": "table", "model": "model", "arch": "arch",
    "parameters_1e9": "params_b", "layers": "layers", "hidden": "hidden", "heads": "heads",
    "kv_heads": "kv_heads", "ffn": "ffn", "vocabulary": "vocab", "sequence": "seq",
    "global_batch": "gbs", "micro_batch": "mbs", "accumulation_steps": "grad_accum", "tp": "tp",
    "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "seq_parallel": "seq_parallel", "vpp": "vpp",
    "zero_stage": "zero_stage", "recompute": "recompute", "precision": "precision",
    "accelerator": "gpu_type", "accelerators": "n_gpus", "accelerators_per_node": "gpus_per_node",
    "accelerator_mix": "gpu_mix", "is_mixed": "hetero", "intra_link": "intra_link",
    "network_gbit_per_s_per_accelerator": "inter_gbps_per_gpu", "framework": "framework",
    "stage_layers": "stage_layers", "step_s": "iter_time_s", "step_kind": "iter_time_kind",
    "memory_gib": "mem_gb", "memory_kind": "mem_kind", "status": "status", "quality": "quality",
    "source": "source", "commit": "commit", "licence": "license", "notes": "notes",
}  # fmt: skip
_FACTS_OF_A_ROW: Final = frozenset(
    {"row_id", "params_b", "grad_accum", "gpu_mix", "iter_time_kind", "mem_kind", "source",
     "commit", "license", "stage_layers", "mem_gb"}
)  # fmt: skip


def _ships(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose licence lets them be passed on."""
    return rows[~rows["licence"].fillna("").str.contains("no LICENSE")]


LAYOUTS: Final = Dataset(
    name="layouts",
    title="measured training runs by layout",
    upstream=(
        Upstream(repository="VIA-Research/vTrain", commit="f8dda84"),
        Upstream(repository="DachengLi1/AMP", commit="72eeea4"),
        Upstream(repository="bigscience-workshop/bigscience", commit="9e64ede"),
        Upstream(repository="mosaicml/llm-foundry", commit="8c8dd48f7"),
        Upstream(repository="pytorch/torchtitan", commit="b5bcd76c6"),
        Upstream(repository="InternLM/InternEvo", commit="c628a8c"),
        Upstream(repository="NVIDIA-NeMo/Megatron-Bridge", commit="067f987df"),
        Upstream(repository="NVIDIA-NeMo/NeMo", commit="8cfedd7203"),
        Upstream(repository="NVIDIA/dgxc-benchmarking", commit="0efdb23"),
        Upstream(repository="NVIDIA/Megatron-LM", commit="d98e8a64dd"),
        Upstream(repository="calculon-ai/calculon", commit="caa4b11"),
        Upstream(repository="VectorInstitute/vectorlm", commit="9045f08"),
        Upstream(repository="kakaobrain/torchgpipe", commit="a1b4ee2"),
        Upstream(repository="Oneflow-Inc/DLPerf", commit="c89430b"),
        Upstream(repository="mlcommons/training_results_v4.0", commit="6fe9543"),
    ),
    licence="by row: Apache-2.0, MIT, BSD-3-Clause, or a paper's figures",
    ships=True,
    tables={
        "runs": PublishedTable(
            file="layouts/runs.csv.gz",
            published="planners/measured_layouts.csv",
            columns=_COLUMNS,
            optional=_FACTS_OF_A_ROW,
            selection=_ships,
            tell=frozenset({"table", "iter_time_s", "tp", "pp", "dp"}),
        )
    },
)
