"""Suites of one program on many accelerators: Lambda, Gavel, NVIDIA's examples, NeuSight."""

from __future__ import annotations

from typing import Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import MS_PER_S, PublishedTable

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
