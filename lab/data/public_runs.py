"""hivemind-multi-cloud: data-parallel training over clouds and continents (MIT).

``experiments.csv`` (one row a run), ``nodes.csv`` (one a node) and the series of each node,
``system_series.parquet`` (psutil, about 1 s) and ``train_steps.parquet``. The label is the time
for a million samples: of the whole cluster, synchronisation included, or of the single node.
A record keeps the first minute of the run after its first step, as means over the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from advisor.errors import RunError, pip_hint
from advisor.lab.data.hivemind_sites import sites_of, slowest_link_gbit_per_s
from advisor.records import AnchorRun, Fact, Instances, JobFacts, ResourceSeries, RunRecord
from advisor.records.rows import Repeats, Row, inside, located, located_records, read_rows
from advisor.records.tracked import Floats, gauge, grid, resource_series

WINDOW_S: Final = 60.0
_INTERVAL_S: Final = 2.0
_EXPERIMENT: Final = (
    "exp", "n_nodes", "node_types", "sum_local_sps", "cluster_sps", "tbs_nearest", "model_final",
    "model_source", "label_region_gpu",
)  # fmt: skip
_NODE: Final = ("node_id", "exp", "node_type", "per_step_samples", "cores", "mem_total_MB")
_SYSTEM: Final = (
    "node_id", "_runtime", "net_sent_sys_bandwidth_Mbits", "net_recv_sys_bandwidth_Mbits",
    "avg_sys_load_one_min_percent", "used_memory_sys_MB",
)  # fmt: skip
_STEPS: Final = ("node_id", "_runtime", "step", "step_time_s", "global_epoch")
HIVEMIND_COLUMNS: Final = {
    "experiments.csv": _EXPERIMENT, "nodes.csv": _NODE, "system_series.parquet": _SYSTEM,
    "train_steps.parquet": _STEPS,
}  # fmt: skip
# Prices that the authors' paper quotes for their runs, on demand [USD/h] (SOURCE.md)
_PRICE_USD_PER_H: Final = {"gc-t4": 0.572, "lambda-a10": 0.60, "8xV100": 14.60}
_GPUS: Final = {
    "gc-t4": ("gc", "T4", 1), "aws-t4": ("aws", "T4", 1), "azure-t4": ("azure", "T4", 1),
    "lambda-a10": ("lambda", "A10", 1), "8xV100": ("gc", "V100", 8),
    "vastai-A100": ("vastai", "A100", 1), "vm-gpu": ("own", "RTX8000", 1),
}  # fmt: skip
# Trainable parameters of the models, in millions: their published sizes.
PARAMETERS_MILLION: Final = {
    "resnet18": 11.69, "resnet50": 25.56, "resnet152": 60.19, "wide_resnet101_2": 126.89,
    "convnext_large": 197.77, "roberta_mlm_base": 124.65, "roberta_mlm_large": 355.36,
    "roberta_mlm_xlm": 278.04, "whisper_tiny": 37.76, "whisper_base": 72.59,
    "whisper_small": 241.73,
}  # fmt: skip
# Other names of the same, as recordings, torchvision and Hugging Face have them.
_ALIASES: Final = {
    "wrn101": "wide_resnet101_2", "wideresnet101": "wide_resnet101_2",
    "wide_resnet101": "wide_resnet101_2", "roberta_base": "roberta_mlm_base",
    "roberta_large": "roberta_mlm_large", "xlm_roberta_base": "roberta_mlm_xlm",
    "rxlm": "roberta_mlm_xlm", "resnet_18": "resnet18", "resnet_50": "resnet50",
    "resnet_152": "resnet152", "convnext_l": "convnext_large",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecording:
    """One node's recording, cut to the first ``WINDOW_S`` after its first step."""

    node_type: str
    step_samples: float
    cores: float
    memory_bytes: float
    # step_t_s, step_s: (steps,); when each step ended since the first, and how long it took [s]
    step_t_s: Floats
    step_s: Floats
    epoch: Floats  # (steps,); hivemind's global epoch: synchronisations so far
    # system_t_s, sent_bytes_per_s: (readings,)
    system_t_s: Floats
    sent_bytes_per_s: Floats
    # received_bytes_per_s, cpu_cores, used_bytes: (readings,)
    received_bytes_per_s: Floats
    cpu_cores: Floats
    used_bytes: Floats


def model_parameters(name: str) -> float | None:
    """Return the parameters of a model by any of its names; None for one that is not known.

    Examples
    --------
    >>> model_parameters("torchvision.models.wide_resnet101_2") == model_parameters("wrn101")
    True
    >>> model_parameters("my-own-net") is None
    True
    """
    bare = name.rpartition("/")[2].removeprefix("torchvision.models.")
    plain = bare.strip().lower().replace("-", "_")
    millions = PARAMETERS_MILLION.get(_ALIASES.get(plain, plain))
    return None if millions is None else millions * 1e6


def read_hivemind(path: Path) -> list[RunRecord]:
    """Read the folder's experiments that have a model and a rate.

    Raises RunError naming file, row and column of a bad value.
    """
    nodes = read_nodes(path)
    records = []
    for row in read_rows(path / "experiments.csv", _EXPERIMENT):
        rate = _rate(row)
        if rate is None or not row.label("model_final"):
            continue  # two recordings of the original have no model, some no full epoch
        parameters = model_parameters(row.text("model_final"))
        if parameters is None:  # a size that is left out would be taken for none at all
            known = ", ".join(sorted(PARAMETERS_MILLION))
            what = f"the size of {row.text('model_final')!r} is not known; it is of: {known}"
            raise row.error("model_final", what)
        with located(row.path, row.number):
            records.append(_hivemind_record(row, rate, parameters, nodes.get(row.text("exp"), [])))
    return records


def read_nodes(path: Path) -> dict[str, list[NodeRecording]]:
    """Return the nodes' first minutes by experiment.

    Raises RunError naming file, row and column of a bad value.
    """
    system = _by_node(read_parquet(path / "system_series.parquet", _SYSTEM), _SYSTEM)
    steps = _by_node(read_parquet(path / "train_steps.parquet", _STEPS), _STEPS)
    found: dict[str, list[NodeRecording]] = {}
    for row in read_rows(path / "nodes.csv", _NODE):
        key = int(row.real("node_id"))
        if key in steps:
            node = _node(row, steps[key], system.get(key))
            found.setdefault(row.text("exp"), []).append(node)
    return found


def _by_node(frame: Any, columns: tuple[str, ...]) -> dict[int, dict[str, Floats]]:
    return {
        int(key): {c: part[c].to_numpy(float) for c in columns}
        for key, part in frame.groupby("node_id")
    }


def _node(row: Row, steps: dict[str, Floats], system: dict[str, Floats] | None) -> NodeRecording:
    order = np.argsort(steps["step"], kind="stable")
    began = float(np.min(steps["_runtime"]))
    t_s = steps["_runtime"][order] - began
    early = t_s <= WINDOW_S
    empty = np.empty(0)
    readings = dict.fromkeys(_SYSTEM, empty) if system is None else system
    seen_s = readings["_runtime"] - began
    inside = (seen_s >= 0) & (seen_s <= WINDOW_S)
    cores = row.known("cores") or 1.0
    megabit = 1e6 / 8.0

    def reading(column: str, factor: float) -> Floats:
        return np.asarray(readings[column][inside] * factor, float)

    return NodeRecording(
        node_type=row.text("node_type"),
        step_samples=row.positive("per_step_samples"),
        cores=cores,
        memory_bytes=(row.known("mem_total_MB") or 0.0) * 1e6,
        step_t_s=t_s[early],
        step_s=steps["step_time_s"][order][early],
        epoch=np.nan_to_num(steps["global_epoch"][order][early]),
        system_t_s=seen_s[inside],
        sent_bytes_per_s=reading("net_sent_sys_bandwidth_Mbits", megabit),
        received_bytes_per_s=reading("net_recv_sys_bandwidth_Mbits", megabit),
        cpu_cores=reading("avg_sys_load_one_min_percent", cores / 100.0),
        used_bytes=reading("used_memory_sys_MB", 1e6),
    )


def _rate(row: Row) -> float | None:
    """Samples/s of the run: the cluster's, or the single node's."""
    column = "cluster_sps" if row.count("n_nodes") > 1 else "sum_local_sps"
    rate = row.known(column)
    return rate if rate is not None and rate > 0 else None


def _hivemind_record(
    row: Row, rate: float, parameters: float, nodes: list[NodeRecording]
) -> RunRecord:
    model = row.text("model_final")
    facts: dict[str, Fact] = {"model_source": row.label("model_source")}
    job: dict[str, Fact] = {}
    job["parameters"] = parameters
    if (target := row.known("tbs_nearest")) is not None and target > 0:
        job["target_batch"] = target
    machines = node_counts(row.text("node_types"), row)
    types = [name for name, _ in machines]
    sites = sites_of(row.text("exp"), types, row.label("label_region_gpu"))
    layout: dict[str, Fact] = {"dp": float(row.count("n_nodes")), "regions": float(len(sites))}
    if (link := slowest_link_gbit_per_s(sites)) is not None:
        layout["slowest_link_gbit_per_s"] = link
    return RunRecord(
        record_id=f"hivemind/{row.text('exp')}",
        source="hivemind-multi-cloud",
        job=JobFacts(job_id=f"{model}-{job.get('target_batch', 0)}", family=model, facts=job),
        configuration=tuple(_machines(t, c) for t, c in machines),
        layout=layout,
        time_s=1e6 / rate,
        time_kind="per_million_samples",
        series=_series(nodes),
        facts=facts,
    )


def node_counts(text: str, row: Row) -> list[tuple[str, int]]:
    """Return node types and counts of e.g. ``"8xV100x1+gc-t4x4"``."""
    parts = [re.fullmatch(r"(.+)x(\d+)", part) for part in text.split("+")]
    if not all(parts):
        raise row.error("node_types", f"{text!r} is not 'type x count + ...'")
    # Files named VxP100 are almost surely the 8xV100 machine (SOURCE.md).
    return [(m[1].replace("VxP100", "8xV100"), int(m[2])) for m in parts if m]


def _machines(node_type: str, count: int) -> Instances:
    provider, gpu, gpus = _GPUS.get(node_type, ("", "", 0))
    return Instances(
        provider=provider,
        instance_type=node_type,
        count=count,
        accelerator=gpu,
        accelerators=gpus,
        price_usd_per_h=_PRICE_USD_PER_H.get(node_type),
    )


def _series(nodes: list[NodeRecording]) -> tuple[ResourceSeries, ...]:
    if not nodes:
        return ()
    ticks = grid(WINDOW_S, _INTERVAL_S)
    channels = {
        "cpu_cores": [gauge(n.system_t_s, n.cpu_cores, ticks) for n in nodes],
        "memory_bytes": [gauge(n.system_t_s, n.used_bytes, ticks) for n in nodes],
        "network_sent_bytes_per_s": [
            gauge(n.system_t_s, n.sent_bytes_per_s, ticks) for n in nodes
        ],
        "network_received_bytes_per_s": [
            gauge(n.system_t_s, n.received_bytes_per_s, ticks) for n in nodes
        ],
        "samples_per_s": [_samples_per_s(n, ticks) for n in nodes],
    }
    means = {name: np.mean(values, axis=0) for name, values in channels.items()}
    return (resource_series(means, _INTERVAL_S, "worker_mean"),)


def _samples_per_s(node: NodeRecording, ticks: Floats) -> Floats:
    edges = np.concatenate(([-1e-9], ticks))
    counts, _ = np.histogram(node.step_t_s, bins=edges)
    return np.asarray(counts * node.step_samples / _INTERVAL_S, float)


# What every reader makes of a row.


def _run(
    source: str, cell: str, job: JobFacts, machines: Instances, repeats: Repeats | None = None,
    **more: Any,
) -> RunRecord:  # fmt: skip
    """Return a record named by its cell, whose repeats count up where they are counted."""
    number = None if repeats is None else repeats.next(cell)
    return RunRecord(
        record_id=cell if number is None else f"{cell}/{number}",
        source=source,
        job=job,
        configuration=(machines,),
        replicate=number or 0,
        **more,
    )


# AWS instance types of the public collections: size, accelerator, and price on demand.


# Accelerator of an instance type, named as in datasets/devices, and how many (AWS's own pages).
_ACCELERATORS: Final = {
    "g3s.xlarge": ("M60", 1),
    "g4dn.xlarge": ("T4", 1),
    "g4dn.2xlarge": ("T4", 1),
    "g5.xlarge": ("A10G", 1),
    "p2.xlarge": ("K80", 1),
    "p3.2xlarge": ("V100-SXM2-16GB", 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price and size of one instance type; None where unknown."""

    price_usd_per_h: float
    vcpus: float | None = None
    memory_gib: float | None = None


def read_prices(collection: Path) -> dict[str, Price]:
    """Return instance type -> price from the folder ``prices`` beside a collection, if any.

    On demand, us-east-1, Linux, April 2025: not the prices when the runs were made.
    """
    folder = collection if collection.is_dir() else collection.parent
    path = folder.parent / "prices" / "aws_us_east_1_ondemand.csv"
    if not path.is_file():
        return {}
    return {
        row.text("instance_type"): Price(
            price_usd_per_h=row.positive("usd_per_hour"),
            vcpus=row.known("vcpu"),
            memory_gib=_gib(row.label("memory")),
        )
        for row in read_rows(path, ("instance_type", "usd_per_hour", "vcpu", "memory"))
    }


def aws_machines(instance: str, prices: Mapping[str, Price], *, count: int = 1) -> Instances:
    """Return ``count`` machines of an AWS type; what is unknown stays None."""
    price = prices.get(instance)
    accelerator, accelerators = _ACCELERATORS.get(instance, ("", 0))
    return Instances(
        provider="aws",
        instance_type=instance,
        count=count,
        vcpus=price.vcpus if price else None,
        memory_gib=price.memory_gib if price else None,
        accelerator=accelerator,
        accelerators=accelerators,
        price_usd_per_h=price.price_usd_per_h if price else None,
    )


def _gib(text: str) -> float | None:
    number = text.replace("GiB", "").strip()
    return float(number) if number.replace(".", "", 1).isdigit() else None


# Coastline's run database: LLM fine-tuning on A100, H100 and L40S (atlarge-research, MIT).


FILE: Final = "run_database.csv"
_COLUMNS: Final = (
    "model_name", "method", "gpu_model", "number_nodes", "number_gpus", "tokens_per_sample",
    "batch_size", "dataset_tokens_per_second", "train_runtime", "is_valid",
)  # fmt: skip


def read_coastline(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file; a run that is not valid is ``failed``.

    Raises RunError naming file, row and column of a bad value.
    """
    repeats = Repeats()
    rows = read_rows(inside(path, FILE), _COLUMNS)
    return located_records(rows, lambda row: _record(row, repeats))


def _record(row: Row, repeats: Repeats) -> RunRecord:
    job_columns = ("model_name", "method", "tokens_per_sample", "batch_size")
    job_id, gpu = "-".join(row.text(c) for c in job_columns), row.text("gpu_model")
    nodes, gpus = row.count("number_nodes"), row.count("number_gpus")
    if gpus % nodes:
        raise row.error("number_gpus", f"{gpus} do not divide by {nodes} nodes")
    facts: dict[str, Fact] = {
        "method": row.text("method"),
        "batch": row.positive("batch_size"),
        "sequence_tokens": row.positive("tokens_per_sample"),
    }
    return _run(
        "coastline",
        f"coastline/{job_id}/{gpu}/{row.text('number_gpus')}",
        JobFacts(job_id=job_id, family=row.text("model_name"), facts=facts),
        Instances(
            provider="", instance_type=gpu, count=nodes, accelerator=gpu,
            accelerators=gpus // nodes,
        ),
        repeats,
        layout={"dp": float(gpus)},
        time_s=row.positive("train_runtime"),
        time_kind="job",
        status="ok" if row.real("is_valid") == 1 else "failed",
        facts={"tokens_per_s": row.positive("dataset_tokens_per_second")},
    )  # fmt: skip


# gpu_power_benchmark: training steps of small LLMs on six GPUs (dos-group, MIT).
#
# ``mfu_aggregated_per_config_<GPU>.csv``: means over the samples of a setting. Sequences of 11
# tokens: not a realistic throughput. A setting without tokens per second did not run: ``failed``.


_PREFIX: Final = "mfu_aggregated_per_config_"
_GPU_POWER_COLUMNS: Final = (
    "model_name", "batch_size", "dtype", "sequence_length", "tokens_per_second_mean",
    "gpu_utilization_mean", "memory_used_mb_mean", "power_draw_watts_mean",
)  # fmt: skip


def read_gpu_power(path: Path) -> list[RunRecord]:
    """Read the tables of a folder, or one of them.

    Raises RunError naming file, row and column of a bad value.
    """
    files = [path] if path.is_file() else sorted(path.glob(f"{_PREFIX}*.csv"))
    if not files:
        raise RunError(f"no {_PREFIX}*.csv in {path}", hint="name the benchmark's folder")
    repeats = Repeats()
    rows = [row for file in files for row in read_rows(file, _GPU_POWER_COLUMNS)]
    return located_records(rows, lambda row: _gpu_power_record(row, repeats))


def _gpu_power_record(row: Row, repeats: Repeats) -> RunRecord:
    gpu, dtype = row.path.stem.removeprefix(_PREFIX), row.text("dtype")
    job_id = f"{row.text('model_name')}-b{row.text('batch_size')}-{dtype}"
    batch, tokens_per_s = row.real("batch_size"), row.real("tokens_per_second_mean")
    tokens = batch * row.real("sequence_length")
    has_run = tokens_per_s > 0 and tokens > 0
    told: dict[str, Fact] = {"batch": batch, "precision": dtype, "step_tokens": tokens}
    return _run(
        "gpu-power-benchmark",
        f"gpu-power/{job_id}/{gpu}",
        JobFacts(job_id=job_id, family=row.text("model_name"), facts=told),
        Instances(provider="", instance_type=gpu, accelerator=gpu, accelerators=1),
        repeats,
        time_s=tokens / tokens_per_s if has_run else None,
        time_kind="step",
        status="ok" if has_run else "failed",
        facts={
            "gpu_fraction_mean": row.real("gpu_utilization_mean") / 100.0,
            "gpu_memory_bytes_mean": row.real("memory_used_mb_mean") * 2.0**20,
            "gpu_power_w_mean": row.real("power_draw_watts_mean"),
        },
    )


# IBM multi-cloud: Dask jobs on three anonymised clouds (Apache-2.0), failures and timeouts kept.
#
# ``multi-cloud-configuration.csv``. Provider, family and size are codes; the price of a machine is
# recovered exactly from cost, time and count of a completed run. A run that timed out is censored,
# its time a lower bound; any other failure is ``failed``.


IBM_FILE: Final = "multi-cloud-configuration.csv"
_CODES: Final = ("A_family", "A_vcpu", "B_family", "B_vcpu", "C_family", "C_type", "C_vcpu")
_IBM_COLUMNS: Final = (
    "provider", *_CODES, "nodes", "workload", "target_cost", "target_runtime", "status",
)  # fmt: skip
_TIMEOUT: Final = "Timed out."


def read_ibm(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file; repeats of a cell count up.

    Raises RunError naming file, row and column of a bad value.
    """
    rows = read_rows(inside(path, IBM_FILE), _IBM_COLUMNS)
    prices = _prices(rows)
    repeats = Repeats()
    return located_records(rows, lambda row: _ibm_record(row, repeats, prices))


def _instance(row: Row) -> str:
    """Name a machine by its codes, e.g. ``"A-2.0-0.0"``."""
    provider = row.text("provider")
    own = [row.label(c) for c in _CODES if c.startswith(provider)]
    return "-".join([provider, *own])


def _prices(rows: list[Row]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.text("status") == "ok":
            hours = row.count("nodes") * row.positive("target_runtime") / 3600.0
            found.setdefault(_instance(row), []).append(row.positive("target_cost") / hours)
    return {name: median(values) for name, values in found.items()}


def _ibm_record(row: Row, repeats: Repeats, prices: Mapping[str, float]) -> RunRecord:
    job_id, instance, count = row.text("workload"), _instance(row), row.count("nodes")
    dataset, _, task = job_id.partition("-")
    outcome, time_s = row.text("status"), row.known("target_runtime")
    is_timeout = outcome == _TIMEOUT and time_s is not None
    return _run(
        "ibm-multi-cloud",
        f"ibm/{job_id}/{instance}/{count}",
        JobFacts(job_id=job_id, family=task or job_id, facts={"dataset": dataset}),
        Instances(
            provider=row.text("provider"), instance_type=instance, count=count,
            price_usd_per_h=prices.get(instance),
        ),
        repeats,
        time_s=time_s if time_s and time_s > 0 else None,
        time_kind="job",
        cost_usd=row.known("target_cost"),
        status="ok" if outcome == "ok" else "censored" if is_timeout else "failed",
    )  # fmt: skip


# PROFET: step times of CNNs on AWS GPU instances, with an operator profile on an anchor.
#
# A folder with ``anchor_<id>.parquet`` files (ddps-lab/profet, MIT, re-encoded). A row is one
# repeat of one job that ran on the anchor, profiled, and on other instances: one record a target.
# Operator times are microseconds over two profiled steps, target columns microseconds, the
# anchor's own ``batch_latency`` seconds.


_S_PER_PROFILED_US: Final = 1e-6 / 2  # two steps were profiled: the sum is near 2 x batch_latency

# Class of our records -> TensorFlow's operators. The three convolutions are kept apart: another
# device runs each at another share of its speed.
OPERATOR_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "convolution_forward": frozenset({"Conv2D", "_FusedConv2D", "DepthwiseConv2dNative"}),
    "convolution_weights": frozenset(
        {"Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"}
    ),
    "convolution_inputs": frozenset({"Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"}),
    "matmul": frozenset({"MatMul"}),
    "normalisation": frozenset({"FusedBatchNormV3", "FusedBatchNormGradV3"}),
    "pooling": frozenset({"MaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGrad"}),
    "copy": frozenset({"_Recv", "_Send", "_HostRecv"}),
    "optimizer": frozenset({"ResourceApplyGradientDescent"}),
    "activation": frozenset({"Relu", "Relu6", "ReluGrad", "Relu6Grad", "BiasAdd"}),
    "reduction": frozenset({"BiasAddGrad", "Sum", "Mean"}),
}
_DEPTHWISE: Final = "Device_Depthwise"
_JOB_COLUMNS: Final = ("exp_name", "instance_name", "dataset", "model", "batchsize")
_TARGET: Final = "target_us__"


def read_profet(path: Path) -> list[RunRecord]:
    """Read every ``anchor_*.parquet`` of a folder, or one of them.

    Raises RunError naming the file, and the row and column of a bad value.
    """
    files = [path] if path.is_file() else sorted(path.glob("anchor_*.parquet"))
    if not files:
        raise RunError(f"no anchor_*.parquet in {path}", hint="name PROFET's folder")
    prices = read_prices(path)
    return [record for file in files for record in _read_anchor(file, prices)]


def _read_anchor(path: Path, prices: Mapping[str, Price]) -> list[RunRecord]:
    frame = read_parquet(path, (*_JOB_COLUMNS, "batch_latency", "Device_IDLE"))
    targets = [c for c in frame.columns if c.startswith(_TARGET)]
    if not targets:
        raise RunError(f"{path}: no column {_TARGET}*", hint="is this an anchor file?")
    rows: list[dict[str, Any]] = frame.to_dict("records")
    records = []
    for number, row in enumerate(rows, start=1):
        with located(path, number):
            anchor, job = _anchor(row, prices), _job(row)
            records += [
                _profet_record(row, t, anchor, job, prices) for t in targets if row[t] == row[t]
            ]
    return records


def _job(row: Mapping[str, Any]) -> JobFacts:
    pixels = float(str(row["dataset"]).removesuffix("dataset"))
    batch = int(row["batchsize"])
    return JobFacts(
        job_id=f"{row['model']}-{pixels:g}px-b{batch}",
        family=str(row["model"]),
        facts={"batch": float(batch), "image_pixels": pixels},
    )


def _anchor(row: Mapping[str, Any], prices: Mapping[str, Price]) -> AnchorRun:
    return AnchorRun(
        machines=aws_machines(str(row["instance_name"]), prices),
        time_s=float(row["batch_latency"]),
        facts=_operator_times(row),
    )


def _operator_times(row: Mapping[str, Any]) -> dict[str, float | str]:
    """Seconds of one step by operator class, and idle, of the device."""
    times = dict.fromkeys((*OPERATOR_CLASSES, "other"), 0.0)
    for column, value in row.items():
        if column.startswith("Device_") and column != "Device_IDLE":
            name = column.removeprefix("Device_")
            kind = next((k for k, names in OPERATOR_CLASSES.items() if name in names), "other")
            times[kind] += float(value) * _S_PER_PROFILED_US
    facts: dict[str, float | str] = {f"operator_{kind}_s": t for kind, t in times.items()}
    # Its share of the convolutions: bound by memory where they are bound by arithmetic.
    facts["depthwise_s"] = _S_PER_PROFILED_US * sum(
        float(value) for name, value in row.items() if name.startswith(_DEPTHWISE)
    )
    facts["idle_s"] = float(row["Device_IDLE"]) * _S_PER_PROFILED_US
    return facts


def _profet_record(
    row: Mapping[str, Any], target: str, anchor: AnchorRun, job: JobFacts,
    prices: Mapping[str, Price],
) -> RunRecord:  # fmt: skip
    instance, repeat = target.removeprefix(_TARGET), str(row["exp_name"])
    found = _run(
        "profet",
        f"profet/{anchor.machines.instance_type}/{job.job_id}/{instance}/{repeat}",
        job,
        aws_machines(instance, prices),
        time_s=float(row[target]) * 1e-6,
        time_kind="step",
        anchor=anchor,
    )
    return replace(found, replicate=int(repeat.removeprefix("exp")) - 1)


# scout: Spark and Hadoop jobs on 69 AWS clusters (oxhead/scout, MIT), failures kept.
#
# ``runs.csv``: one run a cell. A run that did not complete is ``failed``: its time is when it
# died.


SCOUT_FILE: Final = "runs.csv"
_SCOUT_COLUMNS: Final = (
    "workload_dir", "n_nodes", "instance_type", "completed", "datasize", "elapsed_time",
    "framework", "input_size", "workload",
)  # fmt: skip


def read_scout(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file.

    Raises RunError naming file, row and column of a bad value.
    """
    prices = read_prices(path)
    return located_records(
        read_rows(inside(path, SCOUT_FILE), _SCOUT_COLUMNS), lambda row: _scout_record(row, prices)
    )


def _scout_record(row: Row, prices: Mapping[str, Price]) -> RunRecord:
    job_id, instance = row.text("workload_dir"), row.text("instance_type")
    count, completed = row.count("n_nodes"), row.text("completed").lower()
    if completed not in ("true", "false"):
        raise row.error("completed", f"{completed!r} is neither True nor False")
    price, time_s = prices.get(instance), row.positive("elapsed_time")
    facts: dict[str, Fact] = {"framework": row.text("framework"), "size": row.text("datasize")}
    if (size := row.known("input_size")) is not None and size > 0:  # -1 stands for unknown
        facts["input_bytes"] = size
    return _run(
        "scout",
        f"scout/{job_id}/{instance}/{count}",
        JobFacts(job_id=job_id, family=row.text("workload"), facts=facts),
        aws_machines(instance, prices, count=count),
        time_s=time_s,
        time_kind="job",
        cost_usd=count * price.price_usd_per_h * time_s / 3600.0 if price else None,
        status="ok" if completed == "true" else "failed",
    )


# cloud-hw-trainpred: epoch times of CNNs on GPU instances, with nvidia-smi statistics.
#
# ``nvidiasmi_devicequery_all.csv`` (ddps-lab, Apache-2.0/MIT): one row a run. The g5 run of a job
# is the anchor of its runs on the other instances; runs without one have no anchor. The instance
# size within a family is not stated: the smallest with one GPU is assumed for the price.


TRAINPRED_FILE: Final = "nvidiasmi_devicequery_all.csv"
ANCHOR: Final = "g5"
INSTANCE_TYPES: Final = {"g5": "g5.xlarge", "g4dn": "g4dn.xlarge", "p3": "p3.2xlarge"}
# The machine that is not AWS's: P100, with PCIe or SXM unknown.
_OTHERS: Final[dict[str, Any]] = {"p100": {"accelerator": "P100-PCIe-16GB", "accelerators": 1}}
_STATISTICS: Final = ("mean", "std", "min", "25", "50", "75", "max")
# nvidia-smi's name -> (ours, factor to our unit)
_READINGS: Final = {
    "utilization_gpu": ("gpu_fraction", 0.01),
    "utilization_memory": ("gpu_memory_busy_fraction", 0.01),
    "power_drawW": ("gpu_power_w", 1.0),
    "memory_usedMiB": ("gpu_memory_bytes", 2.0**20),
    "clocks_current_smMHz": ("gpu_clock_hz", 1e6),
    "temperature_gpu": ("gpu_temperature_c", 1.0),
}
_TRAINPRED_COLUMNS: Final = (
    "Instances", "model", "batchsize", "datasize", "totaldata", "one_epoch_average_second",
    *(f"{reading}_{s}" for reading in _READINGS for s in _STATISTICS),
)  # fmt: skip


def read_trainpred(path: Path) -> list[RunRecord]:
    """Read the table from its folder or file.

    Raises RunError naming file, row and column of a bad value.
    """
    rows = read_rows(inside(path, TRAINPRED_FILE), _TRAINPRED_COLUMNS)
    prices = read_prices(path)
    anchors = {
        _job_id(row): AnchorRun(
            machines=_trainpred_machines(ANCHOR, prices),
            time_s=row.positive("one_epoch_average_second"),
            facts=_statistics(row),
        )
        for row in rows
        if row.text("Instances") == ANCHOR
    }
    return located_records(rows, lambda row: _trainpred_record(row, anchors, prices))


def _job_id(row: Row) -> str:
    return "-".join(row.text(c) for c in ("model", "batchsize", "datasize", "totaldata"))


def _trainpred_record(
    row: Row, anchors: Mapping[str, AnchorRun], prices: Mapping[str, Price]
) -> RunRecord:
    instance, job_id = row.text("Instances"), _job_id(row)
    facts: dict[str, Fact] = {
        "batch": row.positive("batchsize"),
        "image_pixels": row.positive("datasize"),
        "epoch_samples": row.positive("totaldata"),
    }
    return _run(
        "cloud-hw-trainpred",
        f"trainpred/{job_id}/{instance}",
        JobFacts(job_id=job_id, family=row.text("model"), facts=facts),
        _trainpred_machines(instance, prices),
        time_s=row.positive("one_epoch_average_second"),
        time_kind="epoch",
        anchor=anchors.get(job_id),
        facts=_statistics(row),
    )


def _statistics(row: Row) -> dict[str, Fact]:
    """nvidia-smi readings over the run as ``<reading>_<statistic>``; empty cells are left out."""
    facts: dict[str, Fact] = {}
    for reading, (name, factor) in _READINGS.items():
        for statistic in _STATISTICS:
            value = row.known(f"{reading}_{statistic}")
            if value is not None:
                facts[f"{name}_{'p' if statistic.isdigit() else ''}{statistic}"] = value * factor
    return facts


def _trainpred_machines(instance: str, prices: Mapping[str, Price]) -> Instances:
    if instance in INSTANCE_TYPES:
        return aws_machines(INSTANCE_TYPES[instance], prices)
    return Instances(provider="other", instance_type=instance, **_OTHERS.get(instance, {}))


# TrimTuner: TensorFlow parameter servers on AWS t2 clusters, trained on part of the data first.
#
# ``cnn.csv`` and ``rnn.csv`` (pedrogbmendes/TrimTuner, MIT). Runs were cut at about 600 s: those
# that reached it are censored. The run on the smallest training set on the same cluster is the
# anchor: a partial run.


CAP_S: Final = 600.0  # runs were stopped at the first check after it (SOURCE.md)
_TRIMTUNER_COLUMNS: Final = (
    "n_workers", "learning_rate", "batch_size", "synchronism", "training_time", "n_ps",
    "vm_flavor", "training_set_size", "total_iterations",
)  # fmt: skip


def read_trimtuner(path: Path) -> list[RunRecord]:
    """Read the tables of a folder, or one of them.

    Raises RunError naming file, row and column of a bad value.
    """
    files = [path] if path.is_file() else sorted(path.glob("?nn.csv"))
    if not files:
        raise RunError(f"no cnn.csv or rnn.csv in {path}", hint="name TrimTuner's folder")
    prices = read_prices(path)
    return [record for file in files for record in _read_network(file, prices)]


def _read_network(path: Path, prices: Mapping[str, Price]) -> list[RunRecord]:
    rows = read_rows(path, _TRIMTUNER_COLUMNS)
    smallest = min((row.positive("training_set_size") for row in rows), default=0.0)
    partial = {_cell(row): row for row in rows if row.positive("training_set_size") == smallest}
    repeats = Repeats()
    return located_records(
        rows, lambda row: _trimtuner_record(row, partial.get(_cell(row)), repeats, prices)
    )


def _cell(row: Row) -> tuple[str, ...]:
    columns = ("vm_flavor", "n_workers", "learning_rate", "batch_size", "synchronism")
    return tuple(row.text(c) for c in columns)


def _trimtuner_record(
    row: Row, partial: Row | None, repeats: Repeats, prices: Mapping[str, Price]
) -> RunRecord:
    network, time_s = row.path.stem, row.positive("training_time")
    samples, machines = row.positive("training_set_size"), _trimtuner_machines(row, prices)
    anchor = None
    if partial is not None and partial is not row:
        # The full job by proportion: the partial run saw a share of the samples.
        share = partial.positive("training_set_size") / samples
        anchor = AnchorRun(machines=machines, time_s=partial.positive("training_time") / share)
    facts: dict[str, Fact] = {
        "batch": row.positive("batch_size"),
        "learning_rate": row.positive("learning_rate"),
        "samples": samples,
        "steps": row.positive("total_iterations"),
    }
    name = f"{network}-b{row.text('batch_size')}-lr{row.text('learning_rate')}-{samples:g}"
    return _run(
        "trimtuner",
        f"trimtuner/{network}/{'/'.join(_cell(row))}/{samples:g}",
        JobFacts(job_id=name, family=network, facts=facts),
        machines,
        repeats,
        layout={
            "workers": row.positive("n_workers"),
            "servers": row.positive("n_ps"),
            "synchronism": row.text("synchronism"),
        },
        time_s=time_s,
        time_kind="job",
        status="censored" if time_s >= CAP_S else "ok",
        anchor=anchor,
    )


def _trimtuner_machines(row: Row, prices: Mapping[str, Price]) -> Instances:
    name = row.text("vm_flavor")
    # One worker a virtual CPU (SOURCE.md): t2.small has 1, t2.2xlarge 8.
    vcpus = {"t2.small": 1, "t2.medium": 2, "t2.xlarge": 4, "t2.2xlarge": 8}.get(name, 1)
    return aws_machines(name, prices, count=max(1, -(-row.count("n_workers") // vcpus)))


def read_parquet(path: Path, columns: Collection[str]) -> Any:
    """Read a parquet file that must have ``columns`` as a pandas DataFrame.

    Raises RunError if it cannot be read, or a column is missing.
    """
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise RunError(
            f"{path} is read with pyarrow, which is not installed", hint=pip_hint("pyarrow")
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}", hint="name the folder or file") from error
    missing = sorted(set(columns) - set(frame.columns))
    if missing:
        raise RunError(f"{path}: no column {missing[0]!r}", hint="is this the right format?")
    return frame
