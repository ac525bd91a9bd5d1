"""Engines by the name of their scheduling policy."""

from __future__ import annotations

from advisor.planners.core.errors import PlanningError
from advisor.planners.queueing import gittins, las, preemptive
from advisor.planners.queueing.engine import Engine
from advisor.planners.queueing.nouns import (
    JobTable,
    Placement,
    Policy,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.waiting import Waiting


def engine(
    jobs: JobTable,
    cluster: SharedCluster,
    policy: Policy,
    placement: Placement,
    parameters: QueueParameters,
) -> Engine:
    """Return the engine of a policy, ready at time 0.

    Raises
    ------
    PlanningError
        If there is no such policy, or it lacks what it needs.
    """
    if policy in ("fifo", "fit-first"):
        return Waiting(jobs, cluster, placement, is_strict=policy == "fifo")
    if policy in ("shortest", "shortest-gpu"):
        return preemptive.Shortest(
            jobs, cluster, placement, parameters, by_service=policy == "shortest-gpu"
        )
    if policy == "gittins":
        if not parameters.service_samples:
            raise PlanningError(
                "the gittins policy needs the service of past jobs",
                hint="give service samples, or take las-2d, which needs none",
                exit_code=2,
            )
        if placement == "count" and not parameters.as_published:
            return gittins.GittinsLines(jobs, cluster, parameters)
        return preemptive.Gittins(jobs, cluster, placement, parameters)
    if policy in ("las", "las-2d"):
        by_service = policy == "las-2d"
        if placement == "count" and not parameters.as_published:
            return las.Lines(jobs, cluster, parameters, by_service=by_service)
        return preemptive.Attained(jobs, cluster, placement, parameters, by_service=by_service)
    raise PlanningError(
        f"no policy named {policy!r}",
        hint="one of fifo, fit-first, shortest, shortest-gpu, las, las-2d, gittins",
        exit_code=2,
    )
