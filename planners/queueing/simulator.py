"""A shared cluster: when jobs start and end under a scheduling policy.

Policies, each the name of its engine: ``fifo`` waits behind the first job that does not fit;
``fit-first`` lets later jobs pass it; ``shortest`` and ``shortest-gpu`` run the least remaining
time or service first, preempting; ``las`` and ``las-2d`` (Tiresias) demote jobs through queues as
their time or service grows; ``gittins`` (Tiresias) orders those queues by the Gittins index of a
known distribution of service. Symbols are in ``planners.queueing.engine``.

Source: Gu et al., "Tiresias", NSDI'19, and the outputs of its published simulator, which the
policies reproduce (``tests/golden/tiresias``). Times need not be whole; whole ones stay exact.
"""

from __future__ import annotations

import numpy as np

from advisor.planners.core import refused
from advisor.planners.queueing.engine import (
    POLICIES,
    Engine,
    JobTable,
    Placement,
    Policy,
    QueueOutcome,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.preemptive import Attained, Gittins, Ordered, Shortest, Waiting


def engine(
    jobs: JobTable, cluster: SharedCluster, policy: Policy, placement: Placement,
    parameters: QueueParameters,
) -> Engine:  # fmt: skip
    """Return the engine of a policy, ready at time 0.

    Raises PlanningError if there is no such policy, or it lacks what it needs.
    """
    if policy in ("fifo", "fit-first"):
        return Waiting(jobs, cluster, placement, is_strict=policy == "fifo")
    if policy not in POLICIES:
        raise refused(f"no policy named {policy!r}", f"one of {', '.join(POLICIES)}")
    if policy == "gittins" and not parameters.service_samples:
        raise refused(
            "the gittins policy needs the service of past jobs",
            "give service samples, or take las-2d, which needs none",
        )
    kind: type[Ordered] = Attained
    if policy in ("shortest", "shortest-gpu"):
        kind = Shortest
    elif policy == "gittins":
        kind = Gittins
    return kind(jobs, cluster, placement, parameters, by_service=policy not in ("shortest", "las"))


def simulate_queue(
    jobs: JobTable, cluster: SharedCluster, policy: Policy = "fifo", *,
    placement: Placement = "count", parameters: QueueParameters | None = None,
) -> QueueOutcome:  # fmt: skip
    """Run a table of jobs through a shared cluster.

    Raises PlanningError if a job does not fit the cluster, or a policy lacks what it needs.

    Parameters
    ----------
    placement : {"count", "consolidated"}
        Count free devices only, as published; or give a job whole nodes, or one node where it
        fits into one (policies that preempt move running jobs at will).

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
    finish = np.asarray(run.finish_s, float)
    completion = finish - jobs.submit_s
    return QueueOutcome(
        start_s=np.asarray(run.start_s, float),
        finish_s=finish,
        completion_s=completion,
        delay_s=completion - jobs.duration_s,
        preemptions=np.asarray(run.preemptions, np.int64),
    )
