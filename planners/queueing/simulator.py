"""A shared cluster: when jobs start and end under a scheduling policy.

Policies (``planners.queueing.policies``): ``fifo`` waits behind the first job that does not fit;
``fit-first`` lets later jobs pass it; ``shortest`` and ``shortest-gpu`` run the least remaining
time or service first, preempting; ``las`` and ``las-2d`` (Tiresias) demote jobs through queues as
their time or service grows; ``gittins`` (Tiresias) orders those queues by the Gittins index of a
known distribution of service. Symbols are in ``planners.queueing.nouns``.

Source: Gu et al., "Tiresias", NSDI'19, and the outputs of its published simulator, which the
policies reproduce (``tests/golden/tiresias``). Times need not be whole; whole ones stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.planners.queueing.nouns import (
    JobTable,
    Placement,
    Policy,
    QueueOutcome,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.policies import engine


def simulate_queue(
    jobs: JobTable,
    cluster: SharedCluster,
    policy: Policy = "fifo",
    *,
    placement: Placement = "count",
    parameters: QueueParameters | None = None,
) -> QueueOutcome:
    """Run a table of jobs through a shared cluster.

    Parameters
    ----------
    placement : {"count", "consolidated"}
        Count free devices only, as published; or give a job whole nodes, or one node where it
        fits into one (policies that preempt move running jobs at will).

    Raises
    ------
    PlanningError
        If a job does not fit the cluster, or a policy lacks what it needs.

    Examples
    --------
    >>> jobs = JobTable(submit_s=np.array([0.0, 1.0, 2.0]), devices=np.array([1, 2, 1]),
    ...                 duration_s=np.array([10.0, 5.0, 5.0]))
    >>> two = SharedCluster(nodes=1, devices_per_node=2)
    >>> simulate_queue(jobs, two, "fifo").finish_s.tolist()
    [10.0, 15.0, 20.0]
    >>> simulate_queue(jobs, two, "fit-first").finish_s.tolist()
    [10.0, 15.0, 7.0]
    """
    jobs.check_fits(cluster)
    run = engine(jobs, cluster, policy, placement, parameters or QueueParameters())
    run.run()
    return outcome(jobs, run.start_s, run.finish_s, run.preemptions)


def outcome(
    jobs: JobTable,
    start_s: Sequence[float],
    finish_s: Sequence[float],
    preemptions: Sequence[int],
) -> QueueOutcome:
    """Return columns of what a simulation recorded."""
    finish = np.asarray(finish_s, float)
    completion = finish - jobs.submit_s
    return QueueOutcome(
        start_s=np.asarray(start_s, float),
        finish_s=finish,
        completion_s=completion,
        delay_s=completion - jobs.duration_s,
        preemptions=np.asarray(preemptions, np.int64),
    )
