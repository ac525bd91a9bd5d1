"""MLflow runs from a file store (``mlruns``) or a SQLite database, read with MLflow's own client.

Times come from the run (milliseconds), settings from its parameters, readings from the metrics
that ``log_system_metrics`` writes: network counters are megabytes since the start of the logging,
CPU is percent of all cores, whose number MLflow does not keep: it is that of the machine that the
user names. A run that has not ended was killed, or still runs: its time so far is a lower bound
(``censored``).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.errors import RunError
from advisor.records import Instances, RunRecord
from advisor.records.importers.rows import located
from advisor.records.importers.series import Floats
from advisor.records.importers.tracked import (
    UNKNOWN,
    known_machines,
    library,
    readings_series,
    real,
    run_record,
)
from advisor.records.nouns import Status

DATABASE: Final = "mlflow.db"
_MB: Final = 1e6
_GAUGES: Final = {
    "memory_bytes": ("system/system_memory_usage_megabytes", _MB),
    "gpu_fraction": ("system/gpu_0_utilization_percentage", 0.01),
    "gpu_memory_bytes": ("system/gpu_0_memory_usage_megabytes", _MB),
    "gpu_power_w": ("system/gpu_0_power_usage_watts", 1.0),
}
_COUNTERS: Final = {
    "network_received_bytes_per_s": ("system/network_receive_megabytes", _MB),
    "network_sent_bytes_per_s": ("system/network_transmit_megabytes", _MB),
}
_STATES: Final[dict[str, Status]] = {
    "FINISHED": "ok", "FAILED": "failed", "KILLED": "censored", "RUNNING": "censored",
}  # fmt: skip


def read(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every run of a store: ``mlruns``, a folder in it, a database; ``machines`` made them.

    Raises RunError if it is no store, MLflow is not installed, or a run makes no sense.
    """
    client = _client(path)
    records = [
        _record(client, run, path, machines) for run in _runs(client, path) if _has_begun(run)
    ]
    if not records:
        raise RunError(f"no run in {path}", hint="name the mlruns folder, or mlflow.db")
    return records


def _client(path: Path) -> Any:
    """Return a client of the store; one that is not there is never made."""
    database = path if path.is_file() else path / DATABASE
    if database.is_file():
        _check_database(database)
        uri = f"sqlite:///{database.resolve()}"
    elif path.is_dir() and any(path.rglob("meta.yaml")):
        uri = _root(path).resolve().as_uri()
        # Newer versions read a file store only where that is asked for.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    else:
        raise RunError(
            f"no run with meta.yaml and no {DATABASE} in {path}", hint="name the mlruns folder"
        )
    return library("mlflow.tracking").MlflowClient(tracking_uri=uri)


def _check_database(path: Path) -> None:
    """Refuse a file that is no MLflow database: MLflow would make one of it."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute("select name from sqlite_master where type = 'table'")
            names = {name for (name,) in tables}
    except sqlite3.Error as error:
        raise RunError(f"cannot read {path}: {error}", hint="name MLflow's database") from error
    if not {"runs", "metrics", "params", "experiments"} <= names:
        raise RunError(f"{path} is not an MLflow database", hint="name mlflow.db, or mlruns")


def _root(path: Path) -> Path:
    """Return the store that a folder is, or is in: a run, an experiment, or ``mlruns``."""
    if (path / "mlruns").is_dir():
        return path / "mlruns"
    if (path / "meta.yaml").is_file():
        return path.parents[1] if (path / "metrics").is_dir() else path.parent
    return path


def _runs(client: Any, path: Path) -> Iterator[Any]:
    """Yield the runs of a store; of an experiment's or a run's folder only its own."""
    error = library("mlflow.exceptions").MlflowException
    named = path.name if (path / "meta.yaml").is_file() else None
    try:
        experiments = [one.experiment_id for one in client.search_experiments()]
        token = None
        while experiments:
            page = client.search_runs(experiments, page_token=token)
            for run in page:
                if named in (None, run.info.run_id, run.info.experiment_id):
                    yield run
            token = page.token
            if not token:
                return
    except error as problem:
        raise RunError(
            f"MLflow cannot read {path}: {str(problem).splitlines()[0][:200]}",
            hint="an older database needs: mlflow db upgrade sqlite:///mlflow.db",
        ) from problem


def _has_begun(run: Any) -> bool:
    return run.info.status in _STATES and bool(run.info.start_time)


def _record(client: Any, run: Any, path: Path, said: Instances | None) -> RunRecord:
    began_s = run.info.start_time / 1e3
    tags, params = run.data.tags, run.data.params
    seen = Instances(
        provider="",
        instance_type=tags.get("instance_type") or UNKNOWN,
        vcpus=real(params.get("cpu_count")),
    )
    machines = known_machines(seen, said)
    readings = {
        name: _history(client, run.info.run_id, name, began_s) for name in run.data.metrics
    }
    ended_s = (run.info.end_time or 0) / 1e3
    last_s = max((float(t[-1]) for t, _ in readings.values() if t.size), default=0.0)
    time_s = ended_s - began_s if ended_s else last_s
    with located(path, 1):
        return run_record(
            source="mlflow",
            run_id=run.info.run_id,
            family=Path(tags.get("mlflow.source.name", "") or run.info.run_name or "run").stem,
            settings=params,
            machines=machines,
            time_s=time_s,
            status=_STATES[run.info.status],
            series=readings_series(readings, _gauges(machines.vcpus), _COUNTERS),
        )


def _gauges(vcpus: float | None) -> dict[str, tuple[str, float]]:
    """Return the gauges; what the processor did is known where its number of cores is."""
    cores = {"cpu_cores": ("system/cpu_utilization_percentage", vcpus / 100.0)} if vcpus else {}
    return _GAUGES | cores


def _history(client: Any, run_id: str, name: str, began_s: float) -> tuple[Floats, Floats]:
    """Return the times since the start [s] and the values of a metric, in order of time."""
    points = sorted((m.timestamp, m.value) for m in client.get_metric_history(run_id, name))
    table = np.array(points, dtype=float).reshape(-1, 2)
    return table[:, 0] / 1e3 - began_s, table[:, 1]
