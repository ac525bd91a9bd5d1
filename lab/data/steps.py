"""Data sets of measured steps: suites of devices, layers, layouts, links and placements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from advisor.lab.data.dataset import Dataset, PublishedTable, github

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS: Final = (
    "v0.5@c71f2e7c", "v0.6@f312518c", "v0.7@0a8a85a2", "v1.0@50619b5d", "v1.1@ebe92f81",
    "v2.0@8437fbb7", "v2.1@158189d4", "v3.0@63e326c4", "v3.1@d06288b2", "v4.0@6fe95437",
    "v4.1@b87b9e39", "v5.0@0fdc28f0", "v5.1@441d65f4",
)  # fmt: skip


MLPERF: Final = Dataset(
    name="mlperf", title="MLPerf Training's results", licence="Apache-2.0", ships=True,
    upstream=github(*(f"mlcommons/training_results_{one}" for one in _ROUNDS)),
    tables={"entries": PublishedTable.of(
        "mlperf/entries.csv.gz", "measurements/mlperf/mlperf_entries.csv",
        "round organisation=org system? benchmark model? division? accelerator "
        "accelerators=n_accelerators global_batch=global_batch_size samples_per_s "
        "samples_per_s_per_accelerator=samples_per_s_per_acc? duplicate_of=dup_of?",
        form=("round", "organisation", "system", "benchmark", "model", "division", "accelerator",
              "accelerators", "global_batch", "samples_per_s", "samples_per_s_per_accelerator"),
        tidy=lambda rows: rows[rows["duplicate_of"].isna()],
        tell="accelerator model samples_per_s_per_acc division",
    )},
)  # fmt: skip


LAYOUTS: Final = Dataset(
    name="layouts", title="measured training runs by layout", ships=True,
    licence="by row: Apache-2.0, MIT, BSD-3-Clause, or a paper's figures",
    upstream=github(
        "VIA-Research/vTrain@f8dda84", "DachengLi1/AMP@72eeea4",
        "bigscience-workshop/bigscience@9e64ede", "mosaicml/llm-foundry@8c8dd48f7",
        "pytorch/torchtitan@b5bcd76c6", "InternLM/InternEvo@c628a8c",
        "NVIDIA-NeMo/Megatron-Bridge@067f987df", "NVIDIA-NeMo/NeMo@8cfedd7203",
        "NVIDIA/dgxc-benchmarking@0efdb23", "NVIDIA/Megatron-LM@d98e8a64dd",
        "calculon-ai/calculon@caa4b11", "VectorInstitute/vectorlm@9045f08",
        "kakaobrain/torchgpipe@a1b4ee2", "Oneflow-Inc/DLPerf@c89430b",
        "mlcommons/training_results_v4.0@6fe9543",
    ),
    # Of the collected columns those that a reader uses, and where a row is from.
    tables={"runs": PublishedTable.of(
        "layouts/runs.csv.gz", "planners/measured_layouts.csv",
        "row_id? table model arch parameters_1e9=params_b? layers hidden heads kv_heads ffn "
        "vocabulary=vocab sequence=seq global_batch=gbs micro_batch=mbs "
        "accumulation_steps=grad_accum? tp pp dp cp ep seq_parallel vpp zero_stage recompute "
        "precision accelerator=gpu_type accelerators=n_gpus accelerators_per_node=gpus_per_node "
        "accelerator_mix=gpu_mix? is_mixed=hetero intra_link "
        "network_gbit_per_s_per_accelerator=inter_gbps_per_gpu framework stage_layers? "
        "step_s=iter_time_s step_kind=iter_time_kind? memory_gib=mem_gb? memory_kind=mem_kind? "
        "status quality source? commit? licence=license? notes",
        # Only rows whose licence lets them be passed on.
        selection=lambda rows: rows[~rows["licence"].fillna("").str.contains("no LICENSE")],
        tell="table iter_time_s tp pp dp",
    )},
)  # fmt: skip


LAYERS: Final = Dataset(
    name="layers", title="the layer profiles of Cephalo and Zorse", licence="MIT", ships=True,
    upstream=github("benson-guo/cephalo@a8c75d3", "benson-guo/zorse@2fd6330"),
    tables={"profiles": PublishedTable.of(
        "layers/profiles.csv.gz", "planners/layer_latency_profiles.csv",
        "source? model accelerator=gpu sequence=seq precision=dtype hidden "
        "parameters_per_layer=params_per_layer micro_batch forward_s=fwd_ms/1e3 "
        "backward_s=bwd_ms/1e3",
        # Without layers whose sizes are not stated.
        tidy=lambda rows: rows.dropna(subset=["hidden", "parameters_per_layer"]),
        tell="gpu fwd_ms bwd_ms params_per_layer hidden dtype",
    )},
)  # fmt: skip
# What the fit of the links reads: whole nodes, and the table of all-reduce through the interfaces.
_NODE_DEVICES: Final = 8
_BY_INTERFACE: Final = "nic"


def _tidy_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep all-reduce between nodes; the number of nodes stands in the published label."""
    rows = rows[rows["collective"] == _BY_INTERFACE]
    return rows.assign(nodes=rows["scope"].str.extract(r"^(\d+)Node-")[0].astype(float))


COLLECTIVES: Final = Dataset(
    name="collectives", title="collectives of vTrain and SimAI", ships=True,
    licence="MIT-style (vTrain's LICENSE); MIT (SimAI's astra-sim-alibabacloud/LICENSE)",
    upstream=github("VIA-Research/vTrain@f8dda8473a48b373b1d25f51f52d685bff5150c5",
                    "aliyun/SimAI@26b4574b4aa28cd6d8b77068093c89fdf9909f25"),
    tables={
        "all_reduce": PublishedTable.of(
            "collectives/all_reduce.csv.gz", "planners/nccl_allreduce_intranode.csv",
            "accelerator=gpu accelerators=n_gpus message_bytes=bytes "
            "all_reduce_s=out_of_place_us/1e6",
            tidy=lambda rows: rows[rows["accelerators"] == _NODE_DEVICES],
        ),
        "between_nodes": PublishedTable.of(
            "collectives/between_nodes.csv", "planners/collective_busbw_ratio.csv",
            "collective=table scope message_bytes share_of_nominal=achieved_over_nominal",
            form=("nodes", "message_bytes", "share_of_nominal"), tidy=_tidy_ratios,
        ),
    },
)  # fmt: skip
LAMBDA: Final = Dataset(
    name="lambda", title="Lambda's GPU benchmark", licence="none stated", ships=False,
    is_joined=True,
    upstream=github("lambdal/deeplearning-benchmark@aa5addb6"),
    tables={"throughputs": PublishedTable.of(
        "lambda/throughputs.csv", "measurements/lambda/lambda_history_union.csv",
        "system? accelerator=gpu accelerators=n_gpus model precision units_per_s=throughput "
        "batch_per_accelerator=batch_per_gpu",
        tell="gpu model precision throughput n_gpus",
    )},
)  # fmt: skip
GAVEL: Final = Dataset(
    name="gavel", title="Gavel's throughputs", licence="MIT", ships=True,
    upstream=github("stanford-futuredata/gavel@c4fa4009"),
    tables={
        "throughputs": PublishedTable.of(
            "gavel/throughputs.csv.gz", "measurements/gavel/gavel_isolated.csv",
            "source? accelerator=gpu accelerators=n_gpus job "
            "batch_per_accelerator=batch_size_per_gpu samples_per_s",
            tell="gpu job samples_per_s consolidated",
        ),
        "pairs": PublishedTable.of(
            "gavel/pairs.csv.gz", "measurements/gavel/gavel_pairs.csv",
            "source accelerator=gpu first=job1 second=job2 first_rate=rel1 second_rate=rel2 "
            "fits=feasible",
        ),
    },
)  # fmt: skip
NVIDIA_EXAMPLES: Final = Dataset(
    name="nvidia_examples", title="the tables of NVIDIA's DeepLearningExamples", ships=True,
    licence="Apache-2.0 or BSD-3-Clause, by model",
    upstream=github("NVIDIA/DeepLearningExamples@729963dd"),
    tables={"throughputs": PublishedTable.of(
        "nvidia_examples/throughputs.csv.gz",
        "measurements/nvidia_dle/nvidia_dle_training_tables.csv",
        "page=file accelerator=gpu accelerator_memory_gb=gpu_mem_gb accelerators=n_gpus batch "
        "sequence=seq_len precision metric value",
        tell="file gpu metric value precision",
    )},
)  # fmt: skip
NEUSIGHT: Final = Dataset(
    name="neusight", title="NeuSight's end-to-end latencies", licence="MIT", ships=True,
    upstream=github("sitar-lab/NeuSight@6945927d"),
    tables={"latencies": PublishedTable.of(
        "neusight/latencies.csv", "measurements/neusight/neusight_e2e_latency_ms.csv",
        "model=model_name sequence=seqlen batch accelerator=device mode layout=option "
        "measured_s=label_all_e2e_latency/1e3 forward_s=label_all_fw_latency/1e3? "
        "backward_s=label_all_bwall_latency/1e3? neusight_s=neusight_all_e2e_latency/1e3? "
        "roofline_s=roofline_all_e2e_latency/1e3? habitat_s=habitat_all_e2e_latency/1e3?",
        tell="model_name device mode label_all_e2e_latency",
    )},
)  # fmt: skip


PARCAE: Final = Dataset(
    name="parcae", title="Parcae's pipelines and restarts", licence="MIT", ships=True,
    upstream=github("JF-D/Parcae@efedee7"),
    tables={
        "steps": PublishedTable.of(
            "parcae/steps.csv", "measurements/parcae/parcae_dp_pp_throughput.csv",
            "model micro_batch=micro_batch_size global_batch dp pp accelerators=n_gpus "
            "step_s=step_ms/1e3",
            tell="dp pp n_gpus step_ms model",
        ),
        "restarts": PublishedTable.of(
            "parcae/restarts.csv", "measurements/parcae/parcae_restart_cost.csv",
            "kind nodes restart_s=seconds",
            tidy=lambda rows: rows.assign(kind=rows["kind"].str.removeprefix("restart_cost_")),
        ),
    },
)  # fmt: skip
FINETUNE: Final = Dataset(
    name="finetune", title="IBM's fine-tuning runs", ships=True,
    licence="MIT (the package), Apache-2.0 (ibm-research/LLMFineTuningBench)",
    upstream=github(
        "atlarge-research/coastline-recommender@c6609fd376090dbddcb067652d8fc5fe88c0542a"
    ),
    tables={"runs": PublishedTable.of(
        "finetune/runs.csv", "measurements/finetune/runs.csv",
        "model=model_name method accelerator=gpu_model nodes=number_nodes "
        "accelerators=number_gpus sequence=tokens_per_sample global_batch=batch_size "
        "tokens_per_s=dataset_tokens_per_second run_s=train_runtime is_valid",
        tell="model_name method gpu_model tokens_per_sample",
    )},
)  # fmt: skip
BLACKWELL: Final = Dataset(
    name="blackwell", title="SimuMax's measured steps on eight B200s", ships=True,
    licence="Apache-2.0", upstream=github("MooreThreads/SimuMax@1b8ca90"),
    tables={"steps": PublishedTable.of(
        "blackwell/steps.csv", "measurements/blackwell/b200_steps.csv",
        "case model layers hidden heads kv_heads ffn vocabulary experts experts_per_token "
        "expert_ffn shared_ffn dense_layers attention sequence tp pp dp ep cp micro_batch "
        "micro_batches global_batch zero_stage recompute precision accelerator accelerators "
        "framework step_s=step_ms/1e3 allocated_gib simumax_step_s=simumax_step_ms/1e3 "
        "simumax_allocated_gib",
        tell="case model step_ms allocated_gib",
    )},
)  # fmt: skip


MIXTURES: Final = Dataset(
    name="mixtures", title="published training steps of mixtures of experts", ships=True,
    licence="by row: Apache-2.0 or MIT",
    upstream=github("NVIDIA-NeMo/Megatron-Bridge@067f987df", "NVIDIA/dgxc-benchmarking@v25.05"),
    tables={"steps": PublishedTable.of(
        "mixtures/steps.csv", "measurements/mixtures/mixtures.csv",
        "row_id=id source path commit licence release model config accelerator=gpu "
        "accelerators_per_node=per_node accelerators=devices precision global_batch sequence "
        "micro_batch tp pp vpp? cp ep etp? step_s step_kind balance? stack? note?",
        # Those that state model, layout and step.
        tidy=lambda rows: rows.dropna(subset=["config", "accelerators", "step_s", "micro_batch"]),
        tell="gpu ep etp vpp balance config",
    )},
)  # fmt: skip


STACKS: Final = Dataset(
    name="stacks", title="steps of PyTorch-native stacks by release", ships=True,
    licence="by row: MIT or BSD-3-Clause",
    upstream=github(
        "pytorch/ao@36027d82d", "pytorch/torchtitan@b5bcd76c6", "karpathy/nanochat@92d63d4e8",
        "KellerJordan/modded-nanogpt@f411b3d3", "karpathy/llm.c@f1e2ace",
        "AMD-AGI/Primus@fd1eeabb",
    ),
    tables={
        "steps": PublishedTable.of(
            "stacks/steps.csv", "measurements/stacks/stacks.csv",
            "row=id source path commit licence day model layers hidden heads kv_heads ffn "
            "is_gated=gated vocabulary optimizer precision global_batch micro_batch sequence "
            "tokens_per_step accelerator=gpu accelerators=devices nodes layout "
            "recompute is_compiled=compile step_s run_s steps memory_gib stack kind note",
        ),
        "amd": PublishedTable.of(
            "stacks/amd.csv", "measurements/amd_tpu/amd_tpu.csv",
            "row=id source path commit licence accelerator=chip accelerators=devices nodes model "
            "layers hidden heads kv_heads ffn is_gated=gated vocabulary technique precision "
            "micro_batch=per_device_batch sequence layout step_s "
            "tokens_per_s_per_accelerator=tokens_per_s_per_device memory_gib stack kind note",
            # Of the chips that a fit or a protocol reads: AMD's.
            tidy=lambda rows: rows[rows["accelerator"].str.startswith("MI3")],
        ),
    },
)  # fmt: skip
RECORDED: Final = Dataset(
    name="recorded", title="public steps of image networks on GPUs", ships=True,
    licence="MIT (torchvision's networks), Apache-2.0 (timm's)",
    upstream=github("JHLew/pytorch-gpu-benchmark@af7fb54",
                    "huggingface/pytorch-image-models@aa4b585"),
    tables={
        "torchvision": PublishedTable.of(
            "recorded/torchvision.csv.gz", "measurements/recorded/torchvision_steps.csv",
            "accelerator=gpu accelerators=gpus precision network=model batch step_s=step_ms/1e3 "
            "p90_s=p90_ms/1e3 steps file",
        ),
        "timm": PublishedTable.of(
            "recorded/timm.csv.gz", "measurements/recorded/timm_steps.csv",
            "accelerator=gpu precision memory_format network=model batch image "
            "step_s=step_ms/1e3 samples_per_s parameters_m file",
        ),
    },
)  # fmt: skip


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


_SHARED: Final = (
    "application=app cluster local_batch=local_bsz step_s=step_time is_measured=measured? "
)
_FORM: Final = (
    "application", "cluster", "nodes", "workers", "per_node", "local_batch", "step_s",
)  # fmt: skip
_PLACEMENTS: Final = PublishedTable.of(
    "pollux/placements.csv.gz", "measurements/pollux_sia/sia_placements.csv",
    f"{_SHARED} placement", form=_FORM, tidy=_tidy_placements, selection=_on_aws,
)  # fmt: skip
_SCALABILITY: Final = PublishedTable.of(
    "pollux/scalability.csv.gz", "measurements/pollux_sia/sia_scalability.csv",
    f"{_SHARED} nodes=num_nodes workers=num_replicas", form=_FORM, tidy=_tidy_scalability,
    selection=_on_aws,
)  # fmt: skip
POLLUX: Final = Dataset(
    name="pollux", title="Pollux's step times by placement", licence="Apache-2.0", ships=True,
    upstream=github("petuum/adaptdl@c793c708"),
    tables={"placements": _PLACEMENTS, "scalability": _SCALABILITY},
)  # fmt: skip
SIA: Final = Dataset(
    name="sia", title="Sia's step times by placement", licence="none stated", ships=False,
    upstream=github("siasosp23/artifacts@aaf7a0de"),
    tables={
        "placements": replace(
            _PLACEMENTS, file="sia/placements.csv.gz", selection=lambda rows: rows,
            tell=frozenset({"app", "cluster", "placement", "step_time", "sync_time"}),
        ),
        "scalability": replace(
            _SCALABILITY, file="sia/scalability.csv.gz", selection=lambda rows: rows
        ),
    },
)  # fmt: skip
