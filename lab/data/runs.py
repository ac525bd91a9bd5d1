"""Data sets of whole runs and of clusters: labelled runs, campaigns, failures, queues, traces."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.errors import ModelError
from advisor.lab.data import public_runs
from advisor.lab.data.dataset import (
    Collection,
    Dataset,
    PublishedTable,
    StoredTable,
    github,
    read_frame,
)
from advisor.records import AnchorRun, RunRecord

if TYPE_CHECKING:
    import pandas as pd


def mean_over_repeats(records: list[RunRecord]) -> list[RunRecord]:
    """Average the repeats of each job on each target: times, and the anchor's facts.

    Nine repeats differ by 1 % (median); what the protocols score are their means.
    """
    repeats: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        repeats.setdefault((record.job.job_id, record.instance_key), []).append(record)
    return [_mean(of_cell) for of_cell in repeats.values()]


def _mean(repeats: list[RunRecord]) -> RunRecord:
    first = repeats[0]
    anchors = [r.anchor for r in repeats if r.anchor is not None]
    times = [r.time_s for r in repeats if r.time_s is not None]
    names = [name for name, fact in anchors[0].facts.items() if isinstance(fact, float)]
    anchor = AnchorRun(
        machines=anchors[0].machines,
        time_s=float(np.mean([a.time_s for a in anchors])),
        facts={n: float(np.mean([float(a.facts[n]) for a in anchors])) for n in names},
    )
    return replace(
        first,
        record_id=first.record_id.rpartition("/")[0],
        replicate=0,
        time_s=float(np.mean(times)),
        anchor=anchor,
    )


def _median_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: the median of its repeats."""
    pixels = rows["image_pixels"].str.removesuffix("dataset").astype(int)
    keys = ["instance_type", "model", "image_pixels", "batch"]
    cells = rows.assign(image_pixels=pixels).groupby(keys)["step_s"].median()
    return cells.reset_index()


PROFET: Final = Dataset(
    name="profet", title="PROFET's step times and operator profiles", licence="MIT", ships=True,
    upstream=github("ddps-lab/profet@e69477fe6ea4e9ff61a78fdbecebb8e9da50229a"),
    tables={"steps": PublishedTable.of(
        "profet/steps.csv.gz", "cloud_runs/profet/target_latency.csv",
        "instance_type=instance_name model image_pixels=dataset batch=batchsize "
        "step_s=batch_latency",
        tidy=_median_steps,
    )},
    runs={"jobs": Collection(
        file="profet/jobs.jsonl.gz", published="cloud_runs/profet/anchor_g4.parquet",
        collect=lambda path: mean_over_repeats(public_runs.read_profet(path)),
    )},
)  # fmt: skip

TRAINPRED: Final = Dataset(
    name="trainpred", title="cloud-hw-trainpred's epochs", licence="Apache-2.0 and MIT",
    ships=True,
    upstream=github("ddps-lab/cloud-hw-trainpred@a43ddd943d7dd07f6042706fdd6aba0b71dde8c8"),
    runs={"epochs": Collection(file="trainpred/epochs.jsonl.gz",
                               published="cloud_runs/cloud-hw-trainpred",
                               collect=public_runs.read_trainpred)},
)  # fmt: skip

SCOUT: Final = Dataset(
    name="scout", title="scout's Spark and Hadoop jobs", ships=True,
    licence="MIT (oxhead/scout; reached through Lynceus-ICDCS)",
    upstream=github(
        "oxhead/scout", "marialcasimiro/Lynceus-ICDCS@c5f83fc8d0a4fe57cc4724c1ebce725d605f0a0a"
    ),
    runs={"jobs": Collection(file="scout/jobs.jsonl.gz", published="cloud_runs/scout-multinode",
                             collect=public_runs.read_scout)},
)  # fmt: skip

IBM: Final = Dataset(
    name="ibm", title="IBM's multi-cloud jobs", licence="Apache-2.0", ships=True,
    upstream=github(
        "IBM/multi-cloud-configuration-dataset@9380be4a572de8b101ed1eea59279d2f2e567af0"
    ),
    runs={"jobs": Collection(file="ibm/jobs.jsonl.gz", published="cloud_runs/ibm-multi-cloud",
                             collect=public_runs.read_ibm)},
)  # fmt: skip

CAMPAIGNS: Final = Dataset(
    name="campaigns", title="published training runs", upstream=(), ships=True,
    licence="facts, with their source in every row",
    tables={"runs": PublishedTable.of(
        "campaigns/campaigns.csv", "measurements/campaigns/campaigns.csv", "",
        tell="campaign model accelerator accelerators year",
    )},
)  # fmt: skip

FAILURES: Final = Dataset(
    name="failures", title="the interruptions of Llama 3's training run", upstream=(), ships=True,
    licence="facts: one table of a paper, with its source in every row",
    tables={"interruptions": PublishedTable.of(
        "failures/interruptions.csv", "measurements/failures/llama3_interruptions.csv",
        "component category interruptions=count interruptions_of_all=total_unexpected "
        "accelerators=gpus days source",
    )},
)  # fmt: skip

_DIGITS: Final = 6


def _by_job(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a job: its iterations' spreads, and how one goes with the next."""
    ordered = frame.sort_values(["job", "iteration"])
    spread = ordered.groupby("job")["spread_fraction"]
    form = spread.agg(
        iterations="size",
        spread_median="median",
        spread_p90=lambda one: one.quantile(0.9),
        spread_lag1=lambda one: one.autocorr(1),
    )
    return form.round(_DIGITS).reset_index()


def _of_workers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["job", "iteration", "worker"]).astype(
        {"job": int, "iteration": int, "worker": int}
    )


STRAGGLERS: Final = Dataset(
    name="stragglers", title="Alibaba's mini-batch times of ten workers a job", upstream=(),
    licence="CC-BY-4.0 (alibaba/clusterdata, cluster-trace-gpu-v2020)", ships=True,
    tables={
        "spread_by_job": PublishedTable.of(
            "stragglers/spread_by_job.csv",
            "measurements/failures/alibaba_minibatch_cov.csv.gz",
            "job iteration spread_fraction=cov", tidy=_by_job,
            form=("job", "iterations", "spread_median", "spread_p90", "spread_lag1"),
        ),
        # Times are published as whole thousandths.
        "workers": PublishedTable.of(
            "stragglers/workers.csv.gz",
            "measurements/failures/alibaba_minibatch_workers.csv.gz",
            "job iteration=time worker gpu_percent=gpu batch_time_fraction=batch_time_norm/1e3",
            tidy=_of_workers,
        ),
    },
)  # fmt: skip

ESCRA: Final = Dataset(
    name="escra", title="Escra's load tests of four applications", upstream=(), ships=True,
    licence="facts: no licence file at gregcusack/Escra; figures counted from its raw load tests",
    tables={"load_tests": PublishedTable.of(
        "escra/load_tests.csv", "systems/escra_public_runs.csv",
        "application=app load=workload policy requests_per_s failed=non2xx requests "
        "p50_s=p50_ms/1e3 p99_s=p99_ms/1e3 p999_s=p999_ms/1e3",
    )},
)  # fmt: skip

_PUBLISHED: Final = "systems/tiresias"
# <trace>_on_n<nodes>g<devices of a node>__<policy>.csv
_NAME: Final = re.compile(r"(?P<trace>.+)_on_n(?P<nodes>\d+)g(?P<devices>\d+)__(?P<policy>.+)")
_COLUMNS: Final = {
    "job": "job_id", "devices": "num_gpu", "submit_s": "submit_time", "duration_s": "duration",
    "completion_s": "JCT",
}  # fmt: skip


def _collect(root: Path) -> pd.DataFrame:
    """Read the outputs, a file each, the jobs of each in the trace's order."""
    import pandas as pd

    folder, outputs = root / _PUBLISHED, []
    for path in sorted(folder.glob("*_on_*__*.csv")):
        match = _NAME.fullmatch(path.stem)
        if match is None:
            continue
        own = _in_order(_jobs(path), _trace(folder, match["trace"]))
        own.insert(0, "run", path.stem)
        own.insert(1, "nodes", int(match["nodes"]))
        own.insert(2, "devices_per_node", int(match["devices"]))
        own.insert(3, "policy", match["policy"])
        outputs.append(own)
    if not outputs:
        raise ModelError(f"no simulator outputs under {folder}", hint="name the data with --data")
    return pd.concat(outputs, ignore_index=True)


def _jobs(path: Path) -> pd.DataFrame:
    """Read one output; its order is that of the job numbers."""
    frame = read_frame(path)
    missing = sorted(set(_COLUMNS.values()) - set(frame.columns))
    if missing:
        raise ModelError(
            f"cannot read {path}: it lacks {', '.join(missing)}", hint=f"see {_PUBLISHED}"
        )
    ours = frame[list(_COLUMNS.values())].set_axis(list(_COLUMNS), axis=1)
    return ours.sort_values("job", kind="stable", ignore_index=True)


def _trace(folder: Path, name: str) -> list[int] | None:
    """Return the job numbers as the trace has them; None without the trace."""
    for candidate in (f"{name}.csv", f"{name}_job.csv"):
        if (folder / candidate).is_file():
            return [int(job) for job in read_frame(folder / candidate)["job_id"]]
    return None


def _in_order(jobs: pd.DataFrame, trace: list[int] | None) -> pd.DataFrame:
    """Sort by submission; jobs of one moment stay as the trace has them."""
    if trace is not None:
        jobs = jobs.set_index("job").reindex([j for j in trace if j in set(jobs["job"])])
        jobs = jobs.reset_index()
    return jobs.sort_values("submit_s", kind="stable", ignore_index=True)


TIRESIAS: Final = Dataset(
    name="tiresias", title="the outputs of Tiresias' simulator", licence="Apache-2.0", ships=True,
    upstream=github("SymbioticLab/Tiresias@959f9b08"),
    tables={
        "completions": PublishedTable(
            file="tiresias/completions.csv.gz", published=_PUBLISHED, columns=_COLUMNS,
            form=("run", "nodes", "devices_per_node", "policy", *_COLUMNS), collect=_collect,
        ),
        "service_samples": PublishedTable.of(
            "tiresias/service_samples.csv", f"{_PUBLISHED}/yarn-gput1000.csv",
            "duration_s=duration",
        ),
    },
)  # fmt: skip

_RESULTS: Final = "measurements/cluster/pollux_simulated_jct.csv.gz"
_WORKLOADS: Final = "measurements/cluster/pollux_workloads.csv"
_OF_POLLUX: Final = {
    "load": "load", "workload": "workload", "job": "job", "application": "application",
    "devices": "num_replicas", "batch": "batch_size", "submit_s": "time", "completion_s": "jct_s",
}  # fmt: skip

_TIRESIAS_AT: Final = "tiresias-"  # policy of the results, followed by the load


def _collect_pollux(root: Path) -> pd.DataFrame:
    """Join what Tiresias' jobs took with what they were."""
    results, workloads = read_frame(root / _RESULTS), read_frame(root / _WORKLOADS)
    results = results[results["policy"].str.startswith(_TIRESIAS_AT)]
    load = results["policy"].str.removeprefix(_TIRESIAS_AT).astype(float)
    sets = load.map(lambda at: "workloads" if at == 1.0 else f"workloads-{at}")
    own = results.assign(load=load, set=sets, name=results["job"])
    joined = own.merge(workloads, on=["set", "workload", "name"])
    return joined[list(_OF_POLLUX.values())].set_axis(list(_OF_POLLUX), axis=1)


POLLUX_QUEUE: Final = Dataset(
    name="pollux_queue", title="completion times simulated by Pollux's authors", ships=True,
    licence="Apache-2.0", upstream=github("petuum/adaptdl@c793c708"),
    tables={"completions": PublishedTable(
        file="pollux_queue/completions.csv.gz", published=_RESULTS, columns=_OF_POLLUX,
        collect=_collect_pollux,
    )},
)  # fmt: skip


def _free(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the virtual clusters whose use is recorded; what is free of each as a share."""
    kept = frame.dropna(subset=["free_fraction"]).copy()
    kept["free_fraction"] = (kept["free_fraction"] / kept["accelerators"]).round(4).clip(0.0, 1.0)
    return kept


HELIOS: Final = Dataset(
    name="helios", title="Helios' virtual clusters", licence="MIT", ships=True,
    upstream=github("S-Lab-System-Group/HeliosArtifact@bdaae109"),
    tables={"shares": PublishedTable.of(
        "helios/shares.csv.gz", "measurements/cluster/helios_earth_vc_30min.csv.gz",
        "time node=vc accelerators=total_gpu_num free_fraction=idle_gpu_num", tidy=_free,
    )},
)  # fmt: skip

SPOT: Final = Dataset(
    name="spot", title="SkyPilot's spot traces", licence="none stated", ships=False,
    upstream=github("skypilot-org/spot-traces@221da1ab"),
    files={"intervals": StoredTable(
        file="spot/intervals.csv", published="measurements/spot/skypilot_spot_intervals.csv"
    )},
)  # fmt: skip

_HIVEMIND: Final = "cloud_runs/hivemind-multi-cloud"
HIVEMIND: Final = Dataset(
    name="hivemind", title="hivemind's multi-cloud recordings", licence="MIT", ships=True,
    upstream=github("cirquit/hivemind-multi-cloud@654cc023d1ee5e049d8ed72ed66194e137fcc114"),
    files={
        name: StoredTable(file=f"hivemind/{name}", published=f"{_HIVEMIND}/{name}")
        for name in (
            "experiments.csv", "nodes.csv", "system_series.parquet", "train_steps.parquet",
        )
    },
)  # fmt: skip
