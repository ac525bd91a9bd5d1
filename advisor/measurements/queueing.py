"""Completion times of shared clusters, from the simulators of Tiresias and Pollux."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.errors import ModelError
from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import PublishedTable, read_frame

if TYPE_CHECKING:
    import pandas as pd

_PUBLISHED: Final = "systems/tiresias"
_COMPLETIONS: Final = "tiresias/completions.csv.gz"
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
    name="tiresias",
    title="the outputs of Tiresias' simulator",
    upstream=(Upstream(repository="SymbioticLab/Tiresias", commit="959f9b08"),),
    licence="Apache-2.0",
    ships=True,
    tables={
        "completions": PublishedTable(
            file=_COMPLETIONS,
            published=_PUBLISHED,
            columns=_COLUMNS,
            form=("run", "nodes", "devices_per_node", "policy", *_COLUMNS),
            collect=_collect,
        ),
        "service_samples": PublishedTable(
            file="tiresias/service_samples.csv",
            published=f"{_PUBLISHED}/yarn-gput1000.csv",
            columns={"duration_s": "duration"},
        ),
    },
)

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
    name="pollux_queue",
    title="completion times simulated by Pollux's authors",
    upstream=(Upstream(repository="petuum/adaptdl", commit="c793c708"),),
    licence="Apache-2.0",
    ships=True,
    tables={
        "completions": PublishedTable(
            file="pollux_queue/completions.csv.gz",
            published=_RESULTS,
            columns=_OF_POLLUX,
            collect=_collect_pollux,
        )
    },
)


def _free(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the virtual clusters whose use is recorded; what is free of each as a share."""
    kept = frame.dropna(subset=["free_fraction"]).copy()
    kept["free_fraction"] = (kept["free_fraction"] / kept["accelerators"]).round(4).clip(0.0, 1.0)
    return kept


HELIOS: Final = Dataset(
    name="helios",
    title="Helios' virtual clusters",
    upstream=(Upstream(repository="S-Lab-System-Group/HeliosArtifact", commit="bdaae109"),),
    licence="MIT",
    ships=True,
    tables={
        "shares": PublishedTable(
            file="helios/shares.csv.gz",
            published="measurements/cluster/helios_earth_vc_30min.csv.gz",
            columns={
                "time": "time",
                "node": "vc",
                "accelerators": "total_gpu_num",
                "free_fraction": "idle_gpu_num",
            },
            tidy=_free,
        )
    },
)
