"""Mean completion times of Tiresias at full load, from what the same jobs took at half load.

Pollux's authors simulated Tiresias on 16 nodes of 4 GPUs at several loads. What a job of an
application takes on so many GPUs at a batch size is taken as the median at load 0.5, where few
wait (so it still holds a little waiting); then loads 1.0 to 2.0 are simulated. Their rounds of a
minute and restarts of 30 s stand in ``preemption_s``, their two queues part at 16 GPU-hours.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from advisor.lab.data import POLLUX_QUEUE
from advisor.planners.queueing.nouns import JobTable, QueueParameters, SharedCluster
from advisor.planners.queueing.simulator import simulate_queue

if TYPE_CHECKING:
    import pandas as pd

CLUSTER: Final = SharedCluster(nodes=16, devices_per_node=4)
PARAMETERS: Final = QueueParameters(limits=(16 * 3600.0,), preemption_s=60.0)
LEARNT_LOAD: Final = 0.5
LOADS: Final = (1.0, 1.5, 2.0)

Key = TypeVar("Key", bound=Hashable)
Job = tuple[tuple[str, int, int], float, int, float]  # kind, submit [s], devices, completion [s]


def mean_errors(data: Path) -> dict[str, float]:
    """Return the error of the mean completion by load; empty where the tables are not there."""
    if not POLLUX_QUEUE.is_in(data):
        return {}
    completions = POLLUX_QUEUE.read("completions", data)
    learnt = [j for jobs in _jobs(completions, LEARNT_LOAD).values() for j in jobs]
    if not learnt:
        return {}
    seconds = _medians((kind, took) for kind, _, _, took in learnt)
    service = _medians((kind[0], devices * took) for kind, _, devices, took in learnt)
    errors = {}
    for load in LOADS:
        simulated, theirs = [], []
        for jobs in _jobs(completions, load).values():
            jobs.sort(key=lambda job: job[1])
            kinds, submit, devices, took = zip(*jobs, strict=True)
            # A kind that half load never had takes its application's usual service.
            lengths = [
                seconds.get(kind, service.get(kind[0], 0.0) / count)
                for kind, count in zip(kinds, devices, strict=True)
            ]
            workload = JobTable(
                submit_s=np.array(submit),
                devices=np.array(devices, np.int64),
                duration_s=np.array(lengths),
            )
            run = simulate_queue(workload, CLUSTER, "las-2d", parameters=PARAMETERS)
            simulated.append(run.completion_s.mean())
            theirs.append(np.mean(took))
        if theirs:
            error = float(np.mean(simulated) / np.mean(theirs) - 1)
            errors[f"pollux_tiresias_mean_error_load_{load}"] = error
    return errors


def _jobs(completions: pd.DataFrame, load: float) -> dict[str, list[Job]]:
    """Return the jobs of a load by workload."""
    found: dict[str, list[Job]] = defaultdict(list)
    for row in completions[completions["load"] == load].to_dict("records"):
        kind = (str(row["application"]), int(row["devices"]), int(row["batch"]))
        took = float(row["completion_s"])
        found[str(row["workload"])].append((kind, float(row["submit_s"]), kind[1], took))
    return found


def _medians(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    groups: dict[Key, list[float]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return {key: statistics.median(values) for key, values in groups.items()}
