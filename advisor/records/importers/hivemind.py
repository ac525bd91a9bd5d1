"""hivemind-multi-cloud: data-parallel training over clouds and continents (MIT).

``experiments.csv`` (one row a run), ``nodes.csv`` (one a node) and the series of each node,
``system_series.parquet`` (psutil, about 1 s) and ``train_steps.parquet``. The label is the time
for a million samples: of the whole cluster, synchronisation included, or of the single node.
A record keeps the first minute of the run after its first step, as means over the nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.records import Fact, Instances, JobFacts, ResourceSeries, RunRecord
from advisor.records.importers.hivemind_sites import sites_of, slowest_link_gbit_per_s
from advisor.records.importers.rows import Row, located, read_parquet, read_rows
from advisor.records.importers.series import Floats, gauge, grid, resource_series

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


def read(path: Path) -> list[RunRecord]:
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
            records.append(_record(row, rate, parameters, nodes.get(row.text("exp"), [])))
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


def _record(row: Row, rate: float, parameters: float, nodes: list[NodeRecording]) -> RunRecord:
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
