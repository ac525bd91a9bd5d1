"""Data sets of measured steps: suites of devices, layers, layouts, links and placements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from advisor.lab.data.dataset import MS_PER_S, US_PER_S, Dataset, PublishedTable, Upstream

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS: Final = {
    "v0.5": "c71f2e7c", "v0.6": "f312518c", "v0.7": "0a8a85a2", "v1.0": "50619b5d",
    "v1.1": "ebe92f81", "v2.0": "8437fbb7", "v2.1": "158189d4", "v3.0": "63e326c4",
    "v3.1": "d06288b2", "v4.0": "6fe95437", "v4.1": "b87b9e39", "v5.0": "0fdc28f0",
    "v5.1": "441d65f4",
}  # fmt: skip

_OF_ENTRIES: Final = {
    "round": "round",
    "organisation": "org",
    "system": "system",
    "benchmark": "benchmark",
    "model": "model",
    "division": "division",
    "accelerator": "accelerator",
    "accelerators": "n_accelerators",
    "global_batch": "global_batch_size",
    "samples_per_s": "samples_per_s",
    "samples_per_s_per_accelerator": "samples_per_s_per_acc",
}


def _tidy_entries(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out the repetitions of an earlier entry."""
    return rows[rows["duplicate_of"].isna()]


MLPERF: Final = Dataset(
    name="mlperf",
    title="MLPerf Training's results",
    upstream=tuple(
        Upstream(repository=f"mlcommons/training_results_{name}", commit=commit)
        for name, commit in _ROUNDS.items()
    ),
    licence="Apache-2.0",
    ships=True,
    tables={
        "entries": PublishedTable(
            file="mlperf/entries.csv.gz",
            published="measurements/mlperf/mlperf_entries.csv",
            columns=_OF_ENTRIES | {"duplicate_of": "dup_of"},
            form=tuple(_OF_ENTRIES),
            optional=frozenset({"model", "system", "division", "dup_of", "samples_per_s_per_acc"}),
            tidy=_tidy_entries,
            tell=frozenset({"accelerator", "model", "samples_per_s_per_acc", "division"}),
        )
    },
)


# Our column -> the collected one. Only what a reader uses, and where a row is from.
_OF_LAYOUTS: Final = {
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
            columns=_OF_LAYOUTS,
            optional=_FACTS_OF_A_ROW,
            selection=_ships,
            tell=frozenset({"table", "iter_time_s", "tp", "pp", "dp"}),
        )
    },
)


def _tidy_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out layers whose sizes are not stated."""
    return rows[rows["hidden"].notna() & rows["parameters_per_layer"].notna()]


LAYERS: Final = Dataset(
    name="layers",
    title="the layer profiles of Cephalo and Zorse",
    upstream=(
        Upstream(repository="benson-guo/cephalo", commit="a8c75d3"),
        Upstream(repository="benson-guo/zorse", commit="2fd6330"),
    ),
    licence="MIT",
    ships=True,
    tables={
        "profiles": PublishedTable(
            file="layers/profiles.csv.gz",
            published="planners/layer_latency_profiles.csv",
            columns={
                "source": "source",
                "model": "model",
                "accelerator": "gpu",
                "sequence": "seq",
                "precision": "dtype",
                "hidden": "hidden",
                "parameters_per_layer": "params_per_layer",
                "micro_batch": "micro_batch",
                "forward_s": "fwd_ms",
                "backward_s": "bwd_ms",
            },
            divisors={"forward_s": MS_PER_S, "backward_s": MS_PER_S},
            optional=frozenset({"source"}),
            tidy=_tidy_layers,
            tell=frozenset({"gpu", "fwd_ms", "bwd_ms", "params_per_layer", "hidden", "dtype"}),
        )
    },
)


# What the fit of the links reads: whole nodes, and the table of all-reduce through the interfaces.
_NODE_DEVICES: Final = 8
_BY_INTERFACE: Final = "nic"


def _tidy_all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep whole nodes of eight."""
    return rows[rows["accelerators"] == _NODE_DEVICES]


def _tidy_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep all-reduce between nodes; the number of nodes stands in the published label."""
    rows = rows[rows["collective"] == _BY_INTERFACE]
    return rows.assign(nodes=rows["scope"].str.extract(r"^(\d+)Node-")[0].astype(float))


COLLECTIVES: Final = Dataset(
    name="collectives",
    title="collectives of vTrain and SimAI",
    upstream=(
        Upstream(
            repository="VIA-Research/vTrain", commit="f8dda8473a48b373b1d25f51f52d685bff5150c5"
        ),
        Upstream(repository="aliyun/SimAI", commit="26b4574b4aa28cd6d8b77068093c89fdf9909f25"),
    ),
    licence="MIT-style (vTrain's LICENSE); MIT (SimAI's astra-sim-alibabacloud/LICENSE)",
    ships=True,
    tables={
        "all_reduce": PublishedTable(
            file="collectives/all_reduce.csv.gz",
            published="planners/nccl_allreduce_intranode.csv",
            columns={
                "accelerator": "gpu",
                "accelerators": "n_gpus",
                "message_bytes": "bytes",
                "all_reduce_s": "out_of_place_us",
            },
            divisors={"all_reduce_s": US_PER_S},
            tidy=_tidy_all_reduce,
        ),
        "between_nodes": PublishedTable(
            file="collectives/between_nodes.csv",
            published="planners/collective_busbw_ratio.csv",
            columns={
                "collective": "table",
                "scope": "scope",
                "message_bytes": "message_bytes",
                "share_of_nominal": "achieved_over_nominal",
            },
            form=("nodes", "message_bytes", "share_of_nominal"),
            tidy=_tidy_ratios,
        ),
    },
)

LAMBDA: Final = Dataset(
    name="lambda",
    title="Lambda's GPU benchmark",
    upstream=(Upstream(repository="lambdal/deeplearning-benchmark", commit="aa5addb6"),),
    licence="none stated",
    ships=False,
    tables={
        "throughputs": PublishedTable(
            file="lambda/throughputs.csv",
            published="measurements/lambda/lambda_history_union.csv",
            columns={
                "system": "system",
                "accelerator": "gpu",
                "accelerators": "n_gpus",
                "model": "model",
                "precision": "precision",
                "units_per_s": "throughput",
                "batch_per_accelerator": "batch_per_gpu",
            },
            optional=frozenset({"system"}),
            tell=frozenset({"gpu", "model", "precision", "throughput", "n_gpus"}),
        )
    },
)

GAVEL: Final = Dataset(
    name="gavel",
    title="Gavel's throughputs",
    upstream=(Upstream(repository="stanford-futuredata/gavel", commit="c4fa4009"),),
    licence="MIT",
    ships=True,
    tables={
        "throughputs": PublishedTable(
            file="gavel/throughputs.csv.gz",
            published="measurements/gavel/gavel_isolated.csv",
            columns={
                "source": "source",
                "accelerator": "gpu",
                "accelerators": "n_gpus",
                "job": "job",
                "batch_per_accelerator": "batch_size_per_gpu",
                "samples_per_s": "samples_per_s",
            },
            optional=frozenset({"source"}),
            tell=frozenset({"gpu", "job", "samples_per_s", "consolidated"}),
        ),
        "pairs": PublishedTable(
            file="gavel/pairs.csv.gz",
            published="measurements/gavel/gavel_pairs.csv",
            columns={
                "source": "source",
                "accelerator": "gpu",
                "first": "job1",
                "second": "job2",
                "first_rate": "rel1",
                "second_rate": "rel2",
                "fits": "feasible",
            },
        ),
    },
)

NVIDIA_EXAMPLES: Final = Dataset(
    name="nvidia_examples",
    title="the tables of NVIDIA's DeepLearningExamples",
    upstream=(Upstream(repository="NVIDIA/DeepLearningExamples", commit="729963dd"),),
    licence="Apache-2.0 or BSD-3-Clause, by model",
    ships=True,
    tables={
        "throughputs": PublishedTable(
            file="nvidia_examples/throughputs.csv.gz",
            published="measurements/nvidia_dle/nvidia_dle_training_tables.csv",
            columns={
                "page": "file",
                "accelerator": "gpu",
                "accelerator_memory_gb": "gpu_mem_gb",
                "accelerators": "n_gpus",
                "batch": "batch",
                "sequence": "seq_len",
                "precision": "precision",
                "metric": "metric",
                "value": "value",
            },
            tell=frozenset({"file", "gpu", "metric", "value", "precision"}),
        )
    },
)

NEUSIGHT: Final = Dataset(
    name="neusight",
    title="NeuSight's end-to-end latencies",
    upstream=(Upstream(repository="sitar-lab/NeuSight", commit="6945927d"),),
    licence="MIT",
    ships=True,
    tables={
        "latencies": PublishedTable(
            file="neusight/latencies.csv",
            published="measurements/neusight/neusight_e2e_latency_ms.csv",
            columns={
                "model": "model_name",
                "sequence": "seqlen",
                "batch": "batch",
                "accelerator": "device",
                "mode": "mode",
                "layout": "option",
                "measured_s": "label_all_e2e_latency",
                "forward_s": "label_all_fw_latency",
                "backward_s": "label_all_bwall_latency",
                "neusight_s": "neusight_all_e2e_latency",
                "roofline_s": "roofline_all_e2e_latency",
                "habitat_s": "habitat_all_e2e_latency",
            },
            optional=frozenset(
                {
                    *(f"{name}_all_e2e_latency" for name in ("neusight", "roofline", "habitat")),
                    *("label_all_fw_latency", "label_all_bwall_latency"),
                }
            ),
            divisors=dict.fromkeys(
                ("measured_s", "forward_s", "backward_s", "neusight_s", "roofline_s", "habitat_s"),
                MS_PER_S,
            ),
            tell=frozenset({"model_name", "device", "mode", "label_all_e2e_latency"}),
        )
    },
)

_PREFIX: Final = "restart_cost_"


def _tidy_restarts(rows: pd.DataFrame) -> pd.DataFrame:
    """Name the kinds without their common beginning."""
    return rows.assign(kind=rows["kind"].str.removeprefix(_PREFIX))


PARCAE: Final = Dataset(
    name="parcae",
    title="Parcae's pipelines and restarts",
    upstream=(Upstream(repository="JF-D/Parcae", commit="efedee7"),),
    licence="MIT",
    ships=True,
    tables={
        "steps": PublishedTable(
            file="parcae/steps.csv",
            published="measurements/parcae/parcae_dp_pp_throughput.csv",
            columns={
                "model": "model",
                "micro_batch": "micro_batch_size",
                "global_batch": "global_batch",
                "dp": "dp",
                "pp": "pp",
                "accelerators": "n_gpus",
                "step_s": "step_ms",
            },
            divisors={"step_s": MS_PER_S},
            tell=frozenset({"dp", "pp", "n_gpus", "step_ms", "model"}),
        ),
        "restarts": PublishedTable(
            file="parcae/restarts.csv",
            published="measurements/parcae/parcae_restart_cost.csv",
            columns={"kind": "kind", "nodes": "nodes", "restart_s": "seconds"},
            tidy=_tidy_restarts,
        ),
    },
)

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

_FORM: Final = (
    "application", "cluster", "nodes", "workers", "per_node", "local_batch", "step_s",
)  # fmt: skip

_SHARED: Final = {
    "application": "app", "cluster": "cluster", "local_batch": "local_bsz", "step_s": "step_time",
    "is_measured": "measured",
}  # fmt: skip


def _measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out what the authors made up (``measured`` 0); a table without the column has none."""
    return rows[rows["is_measured"].fillna(1) != 0]


def _tidy_placements(rows: pd.DataFrame) -> pd.DataFrame:
    """Read a placement, one digit a node: the accelerators on it."""
    rows = _measured(rows)
    digits = rows["placement"].astype(str).map(lambda text: [int(digit) for digit in text])
    return rows.assign(nodes=digits.map(len), workers=digits.map(sum), per_node=digits.map(max))


def _tidy_scalability(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the fullest node to have its share of the accelerators, rounded up."""
    rows = _measured(rows)
    return rows.assign(per_node=(rows["workers"] / rows["nodes"]).map(math.ceil))


def _on_aws(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["cluster"] == "aws"]


_PLACEMENTS: Final = PublishedTable(
    file="pollux/placements.csv.gz",
    published="measurements/pollux_sia/sia_placements.csv",
    columns=_SHARED | {"placement": "placement"},
    form=_FORM,
    optional=frozenset({"measured"}),
    tidy=_tidy_placements,
    selection=_on_aws,
)

_SCALABILITY: Final = PublishedTable(
    file="pollux/scalability.csv.gz",
    published="measurements/pollux_sia/sia_scalability.csv",
    columns=_SHARED | {"nodes": "num_nodes", "workers": "num_replicas"},
    form=_FORM,
    optional=frozenset({"measured"}),
    tidy=_tidy_scalability,
    selection=_on_aws,
)

POLLUX: Final = Dataset(
    name="pollux",
    title="Pollux's step times by placement",
    upstream=(Upstream(repository="petuum/adaptdl", commit="c793c708"),),
    licence="Apache-2.0",
    ships=True,
    tables={"placements": _PLACEMENTS, "scalability": _SCALABILITY},
)

SIA: Final = Dataset(
    name="sia",
    title="Sia's step times by placement",
    upstream=(Upstream(repository="siasosp23/artifacts", commit="aaf7a0de"),),
    licence="none stated",
    ships=False,
    tables={
        "placements": replace(
            _PLACEMENTS,
            file="sia/placements.csv.gz",
            selection=lambda rows: rows,
            tell=frozenset({"app", "cluster", "placement", "step_time", "sync_time"}),
        ),
        "scalability": replace(
            _SCALABILITY, file="sia/scalability.csv.gz", selection=lambda rows: rows
        ),
    },
)
