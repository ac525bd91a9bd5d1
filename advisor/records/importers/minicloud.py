"""Runs that ``advisor collect`` made: full runs under limits, joined with their partial runs.

``runs.jsonl.gz`` as packed, or the collector's journal ``runs.jsonl`` (schema ``minicloud/1``, see
``datasets/runs/README.md``). Of a run's attempts the least disturbed counts. The partial run of a
job on the anchor (the nearest in time of several) is the anchor of each of its full runs: its mean
step times all steps of one worker. If the job was also tried as 1 master + 2 workers, those series
and that step go with it. A
machine under limits stands for an instance type. Its price is that of the machine that is sold and
most like it, by ``prices.json`` beside the runs; without that file what the rows say, which is
synthetic in the plan of seconds. Runs of different plans are different jobs: other lengths. So are
those of different machines: a job's length is declared by its partial run on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors import bounded
from advisor.collectors.errors import RecordingError
from advisor.collectors.format import Host, HostBenchmark
from advisor.errors import RunError
from advisor.records.collected import (
    SCHEMA,
    Journal,
    is_anchor,
    least_disturbed,
    machine_of,
    named_on,
    nearest,
    read_prices,
    shape_name,
    unpack,
)
from advisor.records.nouns import (
    AnchorRun,
    Fact,
    Instances,
    JobFacts,
    ResourceSeries,
    Role,
    RunRecord,
)
from advisor.records.tracked import gauge, grid, resource_series

Row = dict[str, Any]

FILES: Final = ("runs.jsonl.gz", "runs.jsonl")
PRICES: Final = "prices.json"
_INTERVAL_S: Final = 0.1
_LONGEST_S: Final = 6.0  # of a kept series: partial runs last about two seconds
_WARM_UP_STEPS: Final = 3
_CHANNELS: Final = {
    "cpu_cores": ("cpu_cores", 1.0),
    "memory_mib": ("memory_bytes", 2.0**20),
    "received_bytes_per_s": ("network_received_bytes_per_s", 1.0),
    "sent_bytes_per_s": ("network_sent_bytes_per_s", 1.0),
}
# Facts ``WHAT_PHASE_CLASS`` of a job: the operators of a class in a phase, calls and sums.
COUNTED: Final = ("calls", "flop", "bytes")
_HINT: Final = "pack the journal again: advisor collect --pack"


def read_minicloud(path: Path) -> list[RunRecord]:
    """Read a file of runs, or the one in a folder.

    Raises RunError naming the file, the run and what is wrong with it; a full run whose job has no
    partial run on the anchor is refused.
    """
    file = path
    if path.is_dir():
        file = next((path / n for n in FILES if (path / n).is_file()), path / FILES[0])
    rows = _rows(file)
    for number, row in enumerate(rows, start=1):
        if row.get("schema") != SCHEMA:
            raise RunError(
                f"{file}: row {number}: schema: {row.get('schema')!r} is not {SCHEMA!r}",
                hint=_HINT,
            )
    with _told(f"{file}"):
        anchors = _anchors(rows)
        spread = {
            named_on(row["job"]["key"], machine_of(row)): row
            for row in least_disturbed(rows, "partial")
            if row["layout"]["kind"] != "single" and row["status"] == "ok"
        }
        _reprice(rows, file.parent / PRICES)
    records = []
    for row in least_disturbed(rows, "full"):
        with _told(f"{file}: {row['key']}"):
            job = named_on(row["job"]["key"], machine_of(row))
            if job not in anchors:
                raise RunError(f"job {job!r} has no partial run on the anchor", hint=_HINT)
            records.append(_record(row, nearest(anchors[job], row), spread.get(job)))
    return records


def _reprice(rows: list[Row], path: Path) -> None:
    """Give every row the price of a machine like its own, and the cost by it."""
    if not path.is_file():
        return
    prices = read_prices(path)
    for row in rows:
        instance, layout = row["instance"], row["layout"]
        shape = shape_name(instance["granted_cores"], layout["rate_bit_per_s"] or 0.0)
        if shape in prices:
            price, _ = prices[shape]
            instance["nominal_price_usd_per_h"] = price
            if row.get("cost_usd") is not None:
                row["cost_usd"] = layout["nodes"] * price * row["time_s"] / 3600.0


def _anchors(rows: list[Row]) -> dict[str, list[Row]]:
    """Return each job's partial runs on the anchor."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if is_anchor(row):
            found.setdefault(named_on(row["job"]["key"], machine_of(row)), []).append(row)
    return found


def _rows(file: Path) -> list[Row]:
    try:
        if file.suffix == ".gz":
            return list(unpack(file))
        if not file.is_file():
            raise RunError(f"there is no {file}", hint="make runs: advisor collect --out FOLDER")
        return list(Journal(file).rows())
    except RecordingError as error:
        raise RunError(str(error), hint=error.hint) from error


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say where a row lacks something or makes no sense."""
    try:
        yield
    except (RunError, RecordingError) as error:
        raise RunError(f"{where}: {error}", hint=error.hint) from error
    except (KeyError, TypeError, IndexError) as error:
        raise RunError(f"{where}: {error}: missing or of an unknown form", hint=_HINT) from error


def _record(row: Row, anchor: Row, spread: Row | None) -> RunRecord:
    job, layout = row["job"], row["layout"]
    steps = float(row["steps"]) * layout["workers"]
    time_s = row.get("time_s")
    plan = row.get("plan")  # rows of the first plan do not say
    key = f"minicloud/{plan}/{row['key']}" if plan else f"minicloud/{row['key']}"
    machine = machine_of(row)
    return RunRecord(
        record_id=named_on(key, machine),
        source="minicloud",
        job=_job(job, anchor, steps, plan, machine),
        configuration=(_machines(row),),
        layout={
            "workers": float(layout["workers"]),
            "servers": float(layout["nodes"] - layout["workers"]),
            "threads": float(row["instance"]["threads"]),
            "kind": layout["kind"],
        },
        time_s=None if time_s is None else float(time_s),
        time_kind="job",
        cost_usd=row.get("cost_usd"),
        status=row["status"],
        replicate=int(row["replicate"]),
        anchor=AnchorRun(
            machines=_machines(anchor),
            time_s=float(anchor["anchor_mean_step_s"]) * steps,
            facts=_anchor_facts(anchor, spread),
            series=_anchor_series(anchor, spread),
        ),
        facts={
            "wall_s": float(row.get("wall_s") or 0.0),
            "correction_fraction": float(row.get("correction_fraction") or 0.0),
            "is_noisy": float(bool(row.get("is_noisy"))),
            **({"machine": machine} if machine else {}),
            **_drift(row, anchor),
        },
    )


def _job(job: Row, anchor: Row, steps: float, plan: str | None, machine: str) -> JobFacts:
    counts: Row = anchor["counts"]
    facts: dict[str, Fact] = {
        "batch": float(job["batch"]),
        "width": float(job["width"]),
        "steps": steps,
        "parameters": float(counts["parameters"]),
        "parameter_bytes": float(counts["parameter_bytes"]),
        "buffer_bytes": float(counts.get("buffer_bytes", 0)),
        "optimizer_state_bytes": float(counts["optimizer_state_bytes"]),
        "saved_bytes": float(counts["saved_bytes"]),
        "flop_per_step": float(counts["flop"]),
        "bytes_per_step": float(counts["bytes"]),
        "operators_per_step": float(counts["operators"]),
    }
    flop: dict[str, float] = {}
    for phase, classes in counts["classes"].items():
        for kind, (calls, kind_flop, moved) in classes.items():
            flop[kind] = flop.get(kind, 0.0) + float(kind_flop)
            for what, value in zip(COUNTED, (calls, kind_flop, moved), strict=True):
                facts[f"{what}_{phase}_{kind}"] = float(value)
    total = sum(flop.values())
    for kind, value in sorted(flop.items()):
        if total > 0 and value > 0:
            facts[f"flop_share_{kind}"] = value / total
    name = f"{job['key']} of {plan}" if plan else str(job["key"])
    return JobFacts(job_id=named_on(name, machine), family=str(job["workload"]), facts=facts)


def _machines(row: Row) -> Instances:
    instance, layout = row["instance"], row["layout"]
    rate = layout["rate_bit_per_s"]
    facts: dict[str, Fact] = {"cores": float(instance["cores"])}
    if instance["memory_headroom_bytes"] is not None:
        facts["memory_headroom_bytes"] = float(instance["memory_headroom_bytes"])
    return Instances(
        provider="minicloud",
        instance_type=str(instance["name"]),
        count=int(layout["nodes"]),
        vcpus=float(instance["granted_cores"]),
        network_gbit_per_s=None if rate is None else float(rate) / 1e9,
        price_usd_per_h=float(instance["nominal_price_usd_per_h"]),
        facts=facts,
    )


def _drift(row: Row, anchor: Row) -> dict[str, Fact]:
    """Return how much more CPU time a step took than in the partial run, for one process.

    The same program on the same silicon: what is not 1 is the machine, not the configuration.
    """
    is_alone = row["layout"]["kind"] == "single" and row["instance"]["threads"] == 1
    if not is_alone or row["status"] != "ok":
        return {}
    steps, seen = float(row.get("steps_done") or 0.0), float(anchor["steps_done"] or 0.0)
    here, there = float(row["nodes"][0]["cpu_s"]), float(anchor["nodes"][0]["cpu_s"])
    if not (steps and seen and here and there):
        return {}
    return {"cpu_ratio": here / steps * seen / there}


def _anchor_facts(anchor: Row, spread: Row | None) -> dict[str, Fact]:
    node = anchor["nodes"][0]
    steps = max(float(anchor["steps_done"]), 1.0)
    waits = np.asarray(anchor["first_steps_delay_ms"], float)
    step_s = np.maximum(np.asarray(anchor["first_steps_ms"], float) - waits, 0.0) / 1e3
    settled = step_s[_WARM_UP_STEPS:]
    facts: dict[str, Fact] = {
        "step_time_s": float(anchor["anchor_step_s"]),
        "step_time_mean_s": float(anchor["anchor_mean_step_s"]),
        "step_time_cv": float(np.std(settled) / np.mean(settled)) if settled.size > 1 else 0.0,
        "cpu_s_per_step": float(node["cpu_s"]) / steps,
        "loading_fraction": float(node["loading_s"]) / max(float(node["wall_s"]), 1e-9),
        "memory_peak_bytes": float(node["peak_memory_mib"]) * 2.0**20,
        "correction_fraction": float(anchor.get("correction_fraction") or 0.0),
    }
    if spread is not None:
        facts["three_node_step_s"] = float(spread["time_s"]) / float(spread["steps_done"])
        facts["three_node_vcpus"] = float(spread["instance"]["granted_cores"])
    return facts


def _anchor_series(anchor: Row, spread: Row | None) -> tuple[ResourceSeries, ...]:
    series = [_series(anchor["nodes"][0]["series"], "all")]
    if spread is not None:
        series.append(_series(spread["nodes"][0]["series"], "master"))
        series.append(_series(spread["nodes"][-1]["series"], "worker_mean"))
    return tuple(series)


def _series(series: Mapping[str, list[float]], role: Role) -> ResourceSeries:
    t_s = np.asarray(series.get("t_s", []), float)
    ticks = grid(min(float(t_s[-1]), _LONGEST_S) if t_s.size else 0.0, _INTERVAL_S)
    channels = {}
    for theirs, (ours, factor) in _CHANNELS.items():
        values = np.asarray(series.get(theirs, []), float)[: t_s.size]
        channels[ours] = factor * gauge(t_s[: values.size], values, ticks)
    return resource_series(channels, _INTERVAL_S, role)


HOSTS_FILES: Final = "host*.json"


def hosts_of(path: Path) -> dict[str, Host]:
    """Return the machines that a folder (or file) of collected runs describes, by their name.

    A machine without a name is that of the rows that name none. Raises RunError if a file of a
    machine cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    found = {}
    for file in sorted(folder.glob(HOSTS_FILES)):
        try:
            told: dict[str, Any] = bounded.read_json(file)
            name = str(told.pop("machine", ""))
            benchmark = HostBenchmark(**told.pop("benchmark"))
            found[name] = Host(**told, gpus=(), benchmark=benchmark)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(
                f"{file}: does not describe a machine ({error})",
                hint="see datasets/runs/README.md",
            ) from error
    return found
