"""The queue simulator against the published one, job by job.

``measurements.TIRESIAS`` are outputs of the authors' simulator, with the jobs that it ran. With
the published slips repeated (``as_published``) every completion time should be equal; without them
2D-LAS within 1 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.errors import ModelError
from advisor.lab.data import TIRESIAS
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

if TYPE_CHECKING:
    import pandas as pd

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
SEEN: Final = (
    "the slips of the published simulator that are repeated: found by comparing with these "
    "outputs",
    "nothing is fitted",
)


def run(data: Path) -> Validation:
    """Compare every completion time.

    Raises
    ------
    ModelError
        If there is no output to compare with.
    """
    samples = _service_samples(data)
    groups, predicted, plain, measured, exact = [], [], [], [], 0
    of_run = ["run", "nodes", "devices_per_node", "policy"]
    for key, rows in TIRESIAS.read("completions", data).groupby(of_run, sort=False):
        name, nodes, devices, published = (str(part) for part in key)
        if published not in POLICY_OF:
            continue
        policy = POLICY_OF[published]
        if policy == "gittins" and not samples:
            continue
        jobs, theirs = _jobs(rows)
        cluster = SharedCluster(nodes=int(nodes), devices_per_node=int(devices))
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
        groups.append(Group(group=str(name), scores=score(ours, theirs)))
        predicted.append(ours)
        plain.append(corrected)
        measured.append(theirs)
    if not groups:
        raise ModelError(
            f"no policy of ours in {TIRESIAS.title}", hint="name the data with --data"
        )
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


def _jobs(rows: pd.DataFrame) -> tuple[JobTable, Column]:
    """Return the jobs of one output, and their completion times [s]."""
    jobs = JobTable(
        submit_s=rows["submit_s"].to_numpy(float),
        devices=rows["devices"].to_numpy(np.int64),
        duration_s=rows["duration_s"].to_numpy(float),
    )
    return jobs, rows["completion_s"].to_numpy(float)


def _service_samples(data: Path) -> tuple[float, ...]:
    if not TIRESIAS.has("service_samples", data):
        return ()
    samples = TIRESIAS.read("service_samples", data)["duration_s"]
    return tuple(samples.astype(float).tolist())
