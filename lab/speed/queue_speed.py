"""Time every policy on a large drawn trace: ``python -m advisor.lab.speed.queue_speed``.

100,000 jobs on 1,000 devices by default; sizes and durations as in the Philly trace (93 % of jobs
on one device, heavy-tailed durations), arrivals Poisson at the asked load.
"""

from __future__ import annotations

import time

import numpy as np

from advisor.lab import frame
from advisor.planners.queueing.engine import POLICIES, JobTable, QueueParameters, SharedCluster
from advisor.planners.queueing.simulator import simulate_queue

SIZES = (1, 2, 4, 8, 16, 32)
SHARES = (0.86, 0.05, 0.04, 0.035, 0.01, 0.005)


def drawn(count: int, devices: int, load: float, seed: int) -> JobTable:
    rng = np.random.default_rng(seed)
    size = rng.choice(SIZES, count, p=SHARES)
    duration = np.ceil(np.exp(rng.normal(6.5, 1.8, count)))
    span = float((size * duration).sum()) / (load * devices)
    submit = np.sort(np.floor(rng.uniform(0, span, count)))
    return JobTable(submit_s=submit, devices=size, duration_s=duration)


def main() -> None:
    asked = frame.options(__doc__, {"--jobs": 100_000, "--nodes": 125, "--load": [0.9, 1.1],
                                    "--policy": list(POLICIES)})  # fmt: skip
    cluster = SharedCluster(nodes=asked.nodes, devices_per_node=8)
    for load in asked.load:
        jobs = drawn(asked.jobs, cluster.devices, load, seed=1)
        samples = tuple((jobs.devices * jobs.duration_s)[:1000].tolist())
        for policy in asked.policy:
            begin = time.process_time()
            result = simulate_queue(
                jobs, cluster, policy, parameters=QueueParameters(service_samples=samples)
            )
            spent = time.process_time() - begin
            print(
                f"load {load:.2f}  {policy:13} {spent:7.1f} CPU s   mean delay "
                f"{result.delay_s.mean():10.1f} s   p90 {np.quantile(result.delay_s, 0.9):10.1f} s"
                f"   preemptions {result.preemptions.sum()}"
            )


if __name__ == "__main__":
    main()
