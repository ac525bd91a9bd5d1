"""MLflow runs from a file store (``mlruns``) or a SQLite database, read with MLflow's own client.

Times come from the run (milliseconds), settings from its parameters, readings from the metrics
that ``log_system_metrics`` writes: network counters are megabytes since the start of the logging,
CPU is percent of all cores, whose number MLflow does not keep: it is that of the machine that the
user names. A run that has not ended was killed, or still runs: its time so far is a lower bound
(``censored``).

Runs of a Hugging Face ``Trainer``: ``trainer_state.json``, with its metrics if they lie beside.

A folder with ``trainer_state.json`` (also in a ``checkpoint-*`` folder), or folders of such
folders. The time is ``train_runtime`` of the closing entry of ``log_history``; a state without
one did not end: where its metrics do not tell either, the run is refused. ``all_results.json``
adds the memory that ``skip_memory_metrics=False`` records.

A table of one's own: a CSV file with a run a row.

``time_s`` is needed. Understood besides: ``run`` (a name), ``program`` (runs of one program are
siblings), ``machine`` (``"2 x aws:g5.xlarge"``, a type of the catalogue), ``price_usd_per_h``
(of one machine), ``cost_usd`` and ``status`` (ok, failed, oom, censored). Every other column is
a setting of the job.

TensorBoard's event files, read with TensorBoard's own reader: a folder of them is a run.

A run began with its first event and took until its last: nothing says whether it was done then.
Settings are those that ``add_hparams`` wrote. Steps per second come from the steps of the
scalars; the processor's load from a scalar called ``.../cpu_percent`` (percent of all cores,
whose number is that of the machine that the user names), as Lightning's ``DeviceStatsMonitor``
writes it.

Weights & Biases runs: offline runs as they are on disk, or the files that its API exports.

An offline run is a folder with ``run-<id>.wandb`` (``wandb_log`` reads it). An exported one is a
folder with ``wandb-summary.json``; ``wandb-metadata.json`` tells the machine, ``config.json``
the settings, and ``wandb-events.jsonl`` or ``system_metrics.csv``
(``run.history(stream="events").to_csv()``) the readings. Network counters are cumulative since
the start, CPU is percent of all cores. A run without an end was killed, or still runs: its time
so far is a lower bound (``censored``).
"""

from __future__ import annotations

import os
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, cast, get_args

import numpy as np

from advisor.answer import object_in
from advisor.catalogue import Catalogue
from advisor.collectors import bounded
from advisor.errors import CatalogueError, RunError
from advisor.planners.core import GIB
from advisor.records.importers.wandb_log import LoggedRun, read_log
from advisor.records.nouns import Fact, Instances, ResourceSeries, RunRecord, Status
from advisor.records.profiled import named_machines
from advisor.records.rows import Repeats, Row, located, located_records, read_rows
from advisor.records.tracked import (
    SETTINGS,
    UNKNOWN,
    Floats,
    gauge,
    grid,
    known_machines,
    library,
    positive,
    rate,
    readings_series,
    real,
    resource_series,
    run_record,
)

DATABASE: Final = "mlflow.db"
_TABLE: Final = tomllib.loads(Path(__file__).with_name("trackers.toml").read_text("utf-8"))
_MLFLOW: Final = _TABLE["mlflow"]
_WANDB: Final = _TABLE["wandb"]
_object: Final = partial(object_in, what="", error=RunError, hint="export the run again")


def read_mlflow(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every run of a store: ``mlruns``, a folder in it, a database; ``machines`` made them.

    Raises RunError if it is no store, MLflow is not installed, or a run makes no sense.
    """
    client = _client(path)
    records = [
        _mlflow_record(client, run, path, machines)
        for run in _runs(client, path)
        if _has_begun(run)
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
    return run.info.status in _MLFLOW["states"] and bool(run.info.start_time)


def _mlflow_record(client: Any, run: Any, path: Path, said: Instances | None) -> RunRecord:
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
            status=_MLFLOW["states"][run.info.status],
            series=readings_series(readings, _gauges(machines.vcpus), _MLFLOW["counters"]),
        )


def _gauges(vcpus: float | None) -> dict[str, tuple[str, float]]:
    """Return the gauges; what the processor did is known where its number of cores is."""
    cores = {"cpu_cores": ("system/cpu_utilization_percentage", vcpus / 100.0)} if vcpus else {}
    return {**_MLFLOW["gauges"], **cores}


def _history(client: Any, run_id: str, name: str, began_s: float) -> tuple[Floats, Floats]:
    """Return the times since the start [s] and the values of a metric, in order of time."""
    points = sorted((m.timestamp, m.value) for m in client.get_metric_history(run_id, name))
    table = np.array(points, dtype=float).reshape(-1, 2)
    return table[:, 0] / 1e3 - began_s, table[:, 1]


STATE: Final = "trainer_state.json"


def read_huggingface(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every run under a folder, or one ``trainer_state.json``; ``machines`` made them.

    Raises RunError naming the file, and the column that is missing or makes no sense.
    """
    files = [path] if path.is_file() else sorted(path.rglob(STATE))
    if not files:
        raise RunError(f"no {STATE} in {path}", hint="name the Trainer's output folder")
    newest: dict[Path, Path] = {}  # a run's checkpoints hold earlier states of the same run
    for file in files:
        folder = file.parent
        run = folder.parent if folder.name.startswith("checkpoint-") else folder
        if run not in newest or _step(file) >= _step(newest[run]):
            newest[run] = file
    return [_record(run, file, machines) for run, file in newest.items()]


def _step(file: Path) -> float:
    return real(_object(file).get("global_step")) or 0.0


def _record(run: Path, file: Path, machines: Instances | None) -> RunRecord:
    state = _object(file)
    closing = _closing(state)
    for name in ("all_results.json", "train_results.json"):
        if (run / name).is_file():
            closing = {**closing, **_object(run / name)}
    if "train_runtime" not in closing:
        raise RunError(
            f"{file}: train_runtime: missing", hint="the run has not ended; import it when it has"
        )
    facts: dict[str, Fact] = {
        ours: value
        for theirs, ours in _TABLE["huggingface"]["facts"].items()
        if (value := real(closing.get(theirs))) is not None and value >= 0
    }
    return run_record(
        source="huggingface",
        run_id=run.resolve().name,
        family=run.resolve().name,
        settings=state,
        machines=known_machines(Instances(provider="", instance_type=UNKNOWN), machines),
        time_s=positive(closing["train_runtime"], file, "train_runtime"),
        status="ok",
        facts=facts,
    )


def _closing(state: dict[str, Any]) -> dict[str, Any]:
    entries = state.get("log_history")
    entries = entries if isinstance(entries, list) else []
    ends = (e for e in reversed(entries) if isinstance(e, dict) and "train_runtime" in e)
    return next(ends, {})


_OWN: Final = frozenset(
    {"time_s", "run", "program", "machine", "price_usd_per_h", "cost_usd", "status"}
)


# Columns of W&B's table of runs -> ours; those that are no settings of the job.
_RUNTIME: Final = "Runtime"
_OF_TABLE: Final = {"Name": "run", "State": "status", _RUNTIME: "time_s", "Group": "program"}
_NO_SETTINGS: Final = frozenset({"Notes", "User", "Tags", "Created", "Sweep", "Updated",
                                 "End Time", "ID", "Hostname", "Description"})  # fmt: skip


def read_table(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read a table; ``machines`` made the runs whose row names none.

    Raises RunError naming file, row and column of a bad value.
    """
    repeats = Repeats()
    rows = map(_as_own, read_rows(path, ["time_s"], [_RUNTIME]))
    return located_records(rows, lambda row: _table_record(row, machines, repeats))


def _as_own(row: Row) -> Row:
    """Return a row of the table that W&B's page exports under our names; others as they are.

    Its columns are the fields shown: ``Name``, ``State``, ``Runtime`` [s], the settings, and what
    the run logged last.
    """
    if _RUNTIME not in row.cells or "time_s" in row.cells:
        return row
    cells = {_OF_TABLE.get(name, name): cell for name, cell in row.cells.items()
             if name not in _NO_SETTINGS}  # fmt: skip
    cells["status"] = _WANDB["states"].get(cells.get("status", "").lower(), "failed")
    return replace(row, cells=cells)


def _table_record(row: Row, said: Instances | None, repeats: Repeats) -> RunRecord:
    status = row.label("status", default="ok") or "ok"
    if status not in get_args(Status):
        raise row.error("status", f"{status!r} is none of {', '.join(get_args(Status))}")
    is_over = status in ("ok", "censored")
    settings = {
        name: number if (number := real(text)) is not None else text
        for name, text in row.cells.items()
        if name not in _OWN and (text or "").strip()
    }
    run = row.label("run") or f"{row.path.stem}-row-{row.number}"  # of other files others
    record = run_record(
        source="csv",
        run_id=run,
        family=row.label("program") or row.path.stem,
        settings=settings,
        machines=_machines(row, said),
        time_s=row.positive("time_s") if is_over else row.known("time_s"),
        status=cast(Status, status),
        cost_usd=row.known("cost_usd"),
    )
    facts = {name: value for name, value in settings.items() if name not in SETTINGS}
    said_besides = (f"{name}{value}" for name, value in sorted(facts.items()))
    job = replace(
        record.job,
        job_id="-".join([record.job.job_id, *said_besides]),
        facts={**facts, **record.job.facts},
    )
    cell = f"{job.job_id}/{record.instances} x {record.instance_key}"
    return replace(record, job=job, replicate=repeats.next(cell))


def _machines(row: Row, said: Instances | None) -> Instances:
    price = row.known("price_usd_per_h")
    name = row.label("machine")
    if not name:
        seen = Instances(provider="", instance_type=UNKNOWN, price_usd_per_h=price)
        found = known_machines(seen, said)
        return found if price is None else replace(found, price_usd_per_h=price)
    if price is None and said is not None:
        price = said.price_usd_per_h
    try:
        return replace(_named(name), price_usd_per_h=price)
    except CatalogueError as error:
        raise row.error("machine", f"{error}; {error.hint}") from error


@cache
def _named(name: str) -> Instances:
    return named_machines(name, _catalogue())


@cache
def _catalogue() -> Catalogue:
    return Catalogue.load()


_PATTERN: Final = "*tfevents*"
_CPU: Final = "cpu_percent"
_READINGS: Final = 240  # of the series: more says nothing more of it
_HPARAMS: Final = "hparams"
_SESSION: Final = "_hparams_/session_start_info"


def read_tensorboard(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every folder of event files under a folder; ``machines`` made the runs.

    Raises RunError if there is none, TensorBoard is not installed, or a run makes no sense.
    """
    files = [path] if path.is_file() else sorted(path.rglob(_PATTERN))
    folders = sorted({file.parent for file in files if file.is_file()})
    if not folders:
        raise RunError(f"no event files in {path}", hint="name the folder that TensorBoard shows")
    return [_tensorboard_record(folder, path, machines) for folder in folders]


def _tensorboard_record(folder: Path, path: Path, said: Instances | None) -> RunRecord:
    events = _events(folder)
    began_s = events.FirstEventTimestamp()
    scalars = _scalars(events)
    last_s = max((t[-1] for t, _, _ in scalars.values()), default=began_s)
    machines = known_machines(Instances(provider="", instance_type=UNKNOWN), said)
    inside = folder.relative_to(path) if path.is_dir() else Path(folder.name)
    name = str(inside) if inside.parts else folder.resolve().name
    with located(folder, 1):
        return run_record(
            source="tensorboard",
            run_id=name,
            family=Path(name).parts[0],
            settings=_settings(events),
            machines=machines,
            time_s=float(last_s - began_s),
            status="ok",
            series=_series(scalars, float(began_s), machines.vcpus),
        )


def _events(folder: Path) -> Any:
    module = library("tensorboard.backend.event_processing.event_accumulator")
    # Every scalar (0 is all), and nothing of what is large.
    sizes = {"scalars": 0, "tensors": 0, "images": 1, "audio": 1, "histograms": 1}
    events = module.EventAccumulator(str(folder), size_guidance=sizes)
    try:
        events.Reload()
        events.FirstEventTimestamp()
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {folder}: {error}", hint="copy the run again") from error
    return events


def _scalars(events: Any) -> dict[str, tuple[Floats, Floats, Floats]]:
    """Return wall time [s], step and value of every scalar; newer writers call them tensors."""
    found = {}
    make_array = library("tensorboard.util.tensor_util").make_ndarray
    for tag in events.Tags()["scalars"]:
        points = [(one.wall_time, one.step, one.value) for one in events.Scalars(tag)]
        found[tag] = points
    for tag in events.Tags()["tensors"]:
        points = [
            (one.wall_time, one.step, float(values.item()))
            for one in events.Tensors(tag)
            if (values := make_array(one.tensor_proto)).size == 1 and values.dtype.kind in "fiu"
        ]
        found |= {tag: points} if points else {}
    return {tag: tuple(np.array(points, dtype=float).T) for tag, points in found.items()}


def _settings(events: Any) -> dict[str, object]:
    """Return what ``add_hparams`` wrote of the run."""
    try:
        content = events.PluginTagToContent(_HPARAMS)[_SESSION]
    except KeyError:
        return {}
    data = library("tensorboard.plugins.hparams.plugin_data_pb2").HParamsPluginData()
    data.ParseFromString(content)
    values = data.session_start_info.hparams
    return {name: getattr(one, one.WhichOneof("kind")) for name, one in values.items()}


def _series(
    scalars: dict[str, tuple[Floats, Floats, Floats]], began_s: float, vcpus: float | None
) -> ResourceSeries | None:
    longest = max(scalars.values(), key=lambda one: one[0].size, default=None)
    if longest is None or longest[0].size < 2:
        return None
    duration_s = float(longest[0][-1] - began_s)
    interval_s = max(float(np.median(np.diff(longest[0]))), duration_s / _READINGS, 0.1)
    ticks = grid(duration_s, interval_s)
    channels = {"steps_per_s": rate(longest[0] - began_s, longest[1], ticks)}
    cpu = [one for tag, one in scalars.items() if tag.rpartition("/")[2] == _CPU]
    if cpu and vcpus:
        t_s, _, percent = cpu[0]
        channels["cpu_cores"] = vcpus / 100.0 * gauge(t_s - began_s, percent, ticks)
    return resource_series(channels, interval_s)


LOG: Final = ".wandb"
SUMMARY: Final = "wandb-summary.json"
EVENTS: Final = ("wandb-events.jsonl", "system_metrics.csv")


def read_wandb(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every run under a folder, or one file of a run; ``machines`` made them.

    Raises RunError naming the file, row and column of a bad value.
    """
    logs, summaries = _found(path, f"*{LOG}"), _found(path, SUMMARY)
    logged = {log.parent for log in logs}
    summaries = [one for one in summaries if one.parent.parent not in logged]
    if not logs and not summaries:
        raise RunError(
            f"no *{LOG} and no {SUMMARY} in {path}",
            hint="name the folder wandb/ of the script, or download the run's files",
        )
    records = [_wandb_record(log.stem.removeprefix("run-"), log, read_log(log), machines)
               for log in logs]  # fmt: skip
    return records + [
        _wandb_record(_run_id(file.parent), file, _exported(file.parent), machines)
        for file in summaries
    ]


def _found(path: Path, pattern: str) -> list[Path]:
    """Return the files of a kind; the link to the latest run leads to one that is there."""
    if path.is_file():
        return [path] if path.match(pattern) else []
    return sorted({file.resolve() for file in path.rglob(pattern)})


def _run_id(folder: Path) -> str:
    return folder.parent.name if folder.name == "files" else folder.name


def _exported(folder: Path) -> LoggedRun:
    metadata = _optional(folder / "wandb-metadata.json")
    summary = _object(folder / SUMMARY)
    metadata.setdefault("state", summary.get("state", "finished"))
    config = {k: v["value"] if isinstance(v, dict) and "value" in v else v
              for k, v in _optional(folder / "config.json").items()}  # fmt: skip
    file = next((folder / name for name in EVENTS if (folder / name).is_file()), None)
    return LoggedRun(
        summary=summary,
        metadata=metadata,
        config=config,
        events=[] if file is None else _rows(file),
    )


def _wandb_record(run_id: str, file: Path, run: LoggedRun, said: Instances | None) -> RunRecord:
    state = str(run.metadata.get("state", "killed")).lower()
    machines = known_machines(_wandb_machines(run.metadata), said)
    return run_record(
        source="wandb",
        run_id=run_id,
        family=Path(str(run.metadata.get("program", "") or run_id)).stem,
        settings=run.config,
        machines=machines,
        time_s=positive(run.summary.get("_runtime"), file, "_runtime"),
        status=_WANDB["states"].get(state, "failed"),
        series=_wandb_series(file, run.events, real(_cores(run.metadata)) or machines.vcpus),
    )


def _optional(path: Path) -> dict[str, Any]:
    return _object(path) if path.is_file() else {}


def _cores(metadata: dict[str, Any]) -> Any:
    return metadata.get("cpu_count_logical") or metadata.get("cpu_count")


def _wandb_machines(metadata: dict[str, Any]) -> Instances:
    memory = metadata.get("memory")
    total = real(memory.get("total")) if isinstance(memory, dict) else None
    # Older clients wrote GiB, newer ones bytes.
    gib = total / GIB if total is not None and total > GIB / 1024 else total
    gpus = int(real(metadata.get("gpu_count")) or 0)
    gpu = str(metadata.get("gpu") or "") if gpus else ""
    return Instances(
        provider="",
        instance_type=str(metadata.get("host") or UNKNOWN),
        vcpus=real(_cores(metadata)),
        memory_gib=gib,
        accelerator=gpu,
        accelerators=gpus if gpu else 0,
    )


def _wandb_series(
    file: Path, rows: list[dict[str, Any]], vcpus: float | None
) -> ResourceSeries | None:
    t_s = np.array([_cell(row, "_runtime", file, n) for n, row in enumerate(rows, start=1)])
    columns = {name for row in rows for name in row}
    readings = {name: (t_s, np.array([_value(row, name) for row in rows])) for name in columns}
    cores = {"cpu_cores": ("system.cpu", vcpus / 100.0)} if vcpus else {}
    return readings_series(readings, {**_WANDB["gauges"], **cores}, _WANDB["counters"])


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            if file.suffix == ".csv":
                return list(bounded.csv_tables(lines))
            return [bounded.parse_json(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file}: {error}", hint="export the events again") from error


def _cell(row: dict[str, Any], name: str, file: Path, number: int) -> float:
    value = real(row.get(name))
    if value is None:
        raise RunError(
            f"{file}: row {number}: {name}: {row.get(name)!r} is not a number",
            hint="export the events again",
        )
    return value


def _value(row: dict[str, Any], name: str) -> float:
    value = real(row.get(name))
    return float("nan") if value is None else value
