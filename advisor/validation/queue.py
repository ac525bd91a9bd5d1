"""The queue simulator against the published one, job by job.

Every table ``<trace>_on_<cluster>__<policy>.csv`` under ``systems/tiresias`` is an output of the
authors' simulator; its own columns say which jobs it ran. With the published slips repeated
(``as_published``) every completion time should be equal; without them 2D-LAS within 1 %.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from advisor.collectors import bounded
from advisor.errors import UsageError
from advisor.planners.queueing.nouns import (
    Column,
    JobTable,
    Policy,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.simulator import simulate_queue
from advisor.validation.pollux_queue import mean_errors
from advisor.validation.scores import THE_PRODUCT, Group, Validation, score

FOLDER: Final = "systems/tiresias"
# Their names -> ours.
POLICY_OF: Final[Mapping[str, Policy]] = {
    "fifo": "fifo",
    "fjf": "fit-first",
    "shortest": "shortest",
    "shortest-gpu": "shortest-gpu",
    "dlas": "las",
    "dlas-gpu": "las-2d",
    "dlas-gpu-gittins": "gittins",
}
NAME: Final = re.compile(r"(?P<trace>.+)_on_n(?P<nodes>\d+)g(?P<devices>\d+)__(?P<policy>.+)")
SEEN: Final = (
    "the slips of the published simulator that are repeated: found by comparing with these "
    "outputs",
    "nothing is fitted",
)


def run(data: Path) -> Validation:
    """Compare every completion time.

    Raises
    ------
    UsageError
        If there is no output to compare with.
    """
    folder = data / FOLDER
    samples = _service_samples(folder)
    groups, predicted, plain, measured, exact = [], [], [], [], 0
    for path in sorted(folder.glob("*_on_n*g*__*.csv")):
        match = NAME.fullmatch(path.stem)
        if match is None or match["policy"] not in POLICY_OF:
            continue
        policy = POLICY_OF[match["policy"]]
        if policy == "gittins" and not samples:
            continue
        jobs, theirs = _read(path, folder / f"{match['trace']}.csv")
        cluster = SharedCluster(nodes=int(match["nodes"]), devices_per_node=int(match["devices"]))
        ours, corrected = (
            simulate_queue(
                jobs,
                cluster,
                policy,
                parameters=QueueParameters(service_samples=samples, as_published=flag),
            ).completion_s
            for flag in (True, False)
        )
        exact += int(np.array_equal(ours, theirs))
        groups.append(Group(group=path.stem, scores=score(ours, theirs)))
        predicted.append(ours)
        plain.append(corrected)
        measured.append(theirs)
    if not groups:
        raise UsageError(f"no simulator outputs under {folder}", hint="name the data with --data")
    truth = np.concatenate(measured)
    means = [abs(p.mean() / m.mean() - 1) for p, m in zip(plain, measured, strict=True)]
    return Validation(
        protocol="queue",
        description="completion times against Tiresias' simulator",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=score(np.concatenate(predicted), truth),
        groups=groups,
        baselines={"without the published slips": score(np.concatenate(plain), truth)},
        figures={
            "runs": len(groups),
            "runs_equal_job_by_job": exact,
            "largest_error_of_a_mean_without_the_slips": float(max(means)),
            **mean_errors(data),
        },
        notes=["no interval: a simulation of known jobs has none"],
    )


def _read(path: Path, trace: Path) -> tuple[JobTable, Column]:
    """Return the jobs of one output in the trace's order, and their completion times [s]."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = {row["job_id"]: row for row in bounded.csv_tables(file)}
    order = sorted(rows, key=int)
    for candidate in (trace, trace.with_name(f"{trace.stem}_job.csv")):
        if candidate.is_file():
            with candidate.open(newline="", encoding="utf-8") as file:
                order = [
                    row["job_id"] for row in bounded.csv_tables(file) if row["job_id"] in rows
                ]
            break
    order.sort(key=lambda job: float(rows[job]["submit_time"]))

    def column(name: str) -> Column:
        return np.array([float(rows[job][name]) for job in order])

    jobs = JobTable(
        submit_s=column("submit_time"),
        devices=column("num_gpu").astype(np.int64),
        duration_s=column("duration"),
    )
    return jobs, column("JCT")


def _service_samples(folder: Path) -> tuple[float, ...]:
    path = folder / "yarn-gput1000.csv"
    if not path.is_file():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(float(row["duration"]) for row in bounded.csv_tables(file))
