"""One more job on a shared cluster: how long it waits, and whether renting beats waiting.

The job is inserted into the recorded trace at random times, each time with a duration drawn from
its predicted interval: the simulation runs up to the insertion, is copied, and the copy runs on
until the job has ended. So what the job itself changes for the others is part of the answer.

==================== ===========================================================================
here                 meaning, unit
==================== ===========================================================================
completion           from submission to the end, on the shared cluster. [s]
break-even value     what an hour of earlier results must be worth to rent: the rent's extra cost
                     by the hours that it saves. [USD/h]
==================== ===========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core import HOUR_S, refused
from advisor.planners.queueing.engine import (
    Column,
    JobTable,
    Placement,
    Policy,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.simulator import engine

# Arrivals before the window fill the cluster, those after it keep it busy while the job runs.
WINDOW = (0.1, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Waits that one job met at random times."""

    submit_s: Column  # (n,); when it was submitted, on the trace's clock [s]
    duration_s: Column  # (n,); computing time of each insertion [s]
    completion_s: Column  # (n,); [s]
    load: float  # of the trace by itself
    # insertions that ended after the last recorded submission: the cluster was emptier for them
    # than it would have been
    beyond_trace_fraction: float

    @property
    def delay_s(self) -> Column:
        """Return completion less computing [s]."""
        return self.completion_s - self.duration_s

    def late(self, deadline_s: float) -> float:
        """Return the probability of ending after a deadline counted from submission."""
        return float(np.mean(self.completion_s > deadline_s))


def wait_on_cluster(
    jobs: JobTable, cluster: SharedCluster, policy: Policy = "fifo", *, devices: int,
    duration_s: ArrayLike, insertions: int = 100, seed: int = 0, placement: Placement = "count",
    parameters: QueueParameters | None = None,
) -> Wait:  # fmt: skip
    """Insert a job at random times of a trace and record what it met.

    ``jobs``: what the cluster did; ``devices``: of the own job; ``duration_s``: (k,); samples of
    its computing time, drawn from with equal chance; one value is certain [s].

    Raises PlanningError if the cluster has fewer devices than the job (exit code 3), or a value
    makes no sense.
    """
    samples = np.atleast_1d(np.asarray(duration_s, float))
    if not np.all(samples > 0) or devices < 1 or insertions < 1:
        raise refused(
            f"a job of {samples.min():g} s on {devices} devices, inserted {insertions} times, "
            "is out of range",
            "all three must be positive",
        )
    cluster.check_fits(devices)
    jobs.check_fits(cluster)
    rng = np.random.default_rng(seed)
    begin, end = float(jobs.submit_s[0]), float(jobs.submit_s[-1])
    submit = begin + np.sort(rng.uniform(*WINDOW, insertions)) * (end - begin)
    duration = rng.choice(samples, insertions)
    run = engine(jobs, cluster, policy, placement, parameters or QueueParameters())
    finish = np.empty(insertions)
    for k in range(insertions):
        run.run(until_s=float(submit[k]))
        twin = run.fork()
        number = twin.submit_now(float(submit[k]), devices, float(duration[k]))
        twin.run_to(number)
        finish[k] = twin.finish_s[number]
    return Wait(
        submit_s=submit,
        duration_s=duration,
        completion_s=finish - submit,
        load=jobs.load(cluster.devices),
        beyond_trace_fraction=float(np.mean(finish > end)),
    )


def rent_or_wait(
    wait: Wait, *, rent_completion_s: ArrayLike, rent_cost_usd: float, own_cost_usd: float = 0.0
) -> dict[str, float | None]:
    """Compare renting now with waiting for the shared cluster.

    By name: the median hours by which renting ends earlier (negative where the own cluster is
    faster), how likely it does, the rent less the own cluster's running cost [USD], and what an
    hour has to be worth to rent [USD/h]; None where waiting is not slower: then wait.

    ``rent_completion_s``: (k,); samples of the completion on rented machines, start-up included
    [s]; ``rent_cost_usd``, ``own_cost_usd``: bills of the two; the own cluster's is 0 where it
    costs nothing more to use it [USD].
    """
    rent = np.sort(np.atleast_1d(np.asarray(rent_completion_s, float)))
    saved_h = float(np.median(wait.completion_s) - np.median(rent)) / HOUR_S
    faster = np.searchsorted(rent, wait.completion_s, side="left") / rent.size
    extra = rent_cost_usd - own_cost_usd
    return {
        "saved_h": saved_h,
        "earlier_probability": float(faster.mean()),
        "extra_cost_usd": extra,
        "break_even_usd_per_h": max(extra, 0.0) / saved_h if saved_h > 0 else None,
    }
