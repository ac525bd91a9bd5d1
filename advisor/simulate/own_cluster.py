"""The cloud beside the user's own shared cluster: one job, both ways, rent now or wait.

The job's time on the cluster comes from the same estimate as the times of the list (the device
model for the cluster's accelerator, anchored on the measured step); what it waits comes from
inserting it into the cluster's recorded past (``advisor.simulate.queue``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.answer import Estimate, Recommendation
from advisor.ask import Question
from advisor.errors import UsageError
from advisor.estimate import Predictor, on_demand, refusal
from advisor.jobs import Job
from advisor.machines import ClusterGroup, own_fleet, read_cluster
from advisor.planners.core import PlanningError
from advisor.planners.queueing import SharedCluster
from advisor.quantities import parse_hours
from advisor.records import read_cluster_trace
from advisor.simulate.queue import OwnCluster, Waited, known_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterComparison:
    """A recommendation and the same job on the user's own cluster."""

    recommendation: Recommendation
    own_cluster: Mapping[str, Any]  # the cluster, and the job on each number of its devices
    # one of the ways stays within the budget and ends before the deadline in more than half of the
    # insertions
    meets_constraints: bool

    def to_record(self) -> dict[str, Any]:
        """Return the recommendation's record with one more part, ``own_cluster``."""
        return self.recommendation.to_record() | {"own_cluster": self.own_cluster}


def comparison(
    question: Question, job: Job, answer: Recommendation, predictor: Predictor
) -> ClusterComparison | None:
    """Return the comparison that a question asks for, None where it names no cluster.

    Raises UsageError if one of trace and machines is missing; otherwise as
    ``compare_with_cluster``.
    """
    asked, constraints = question.cluster, question.constraints
    if asked.trace is None and asked.machines is None:
        return None
    if asked.trace is None or asked.machines is None:
        raise UsageError(
            "--cluster-trace and --cluster are needed together",
            hint="--cluster-trace sacct.txt --cluster 10x4xV100-SXM2-16GB@100Gbps",
        )
    return compare_with_cluster(
        job, answer, trace=asked.trace, cluster=asked.machines, policy=asked.policy,
        devices=asked.devices or None, consolidated=asked.is_consolidated,
        price_usd_per_device_h=asked.price_usd_per_device_h, deadline=constraints.deadline_h,
        budget=constraints.budget_usd, coverage=constraints.coverage, predictor=predictor,
    )  # fmt: skip


def compare_with_cluster(
    job: Job, recommendation: Recommendation, *, trace: str | Path, cluster: str,
    policy: str = "fifo", devices: int | Sequence[int] | None = None, consolidated: bool = False,
    deadline: str | float | None = None, budget: float | None = None,
    price_usd_per_device_h: float = 0.0, insertions: int = 100, seed: int = 0,
    coverage: float = 0.9, predictor: Predictor | None = None,
) -> ClusterComparison:  # fmt: skip
    """Put the user's own shared cluster beside what could be rented.

    Raises UsageError, CatalogueError if the cluster, the policy or a number makes no sense. Raises
    TraceError if the trace cannot be read. Raises PlanningError if the cluster cannot hold the job
    (exit code 3) or its own past.

    Parameters
    ----------
    job : Job
        What the recommendation was made for.
    trace : str or Path
        What the cluster ran: an export of ``sacct`` or ``kubectl``, or a CSV of jobs.
    cluster : str
        Its machines, as for ``advisor plan``: ``"10x4xV100-SXM2-16GB@100Gbps"``.
    devices : int or sequence of int, optional
        To ask for; one whole machine by default.
    consolidated : bool, default False
        A job gets one machine, or whole machines; otherwise devices wherever they are free.
    deadline : str or float, optional
        From submission: ``"12h"``, or hours. [h]
    budget : float, optional
        Most to spend on the job. [USD]
    price_usd_per_device_h : float, default 0
        What the own cluster charges. [USD/h]
    insertions, seed : int
        Random times of submission.
    predictor : Predictor, optional
        That of the recommendation, to keep its catalogue.
    """
    predictor = predictor or Predictor()
    known = known_policy(policy)
    if not price_usd_per_device_h >= 0:
        raise UsageError(
            f"the price is out of range: {price_usd_per_device_h}",
            hint="give USD per device and hour, or 0",
        )
    group = _group(cluster, predictor)
    own = OwnCluster(
        trace=read_cluster_trace(Path(trace)),
        cluster=SharedCluster(nodes=group.count, devices_per_node=group.node.devices),
        policy=known, placement="consolidated" if consolidated else "count",
        insertions=insertions, seed=seed,
    )  # fmt: skip
    wanted = _wanted(devices, min(group.node.devices, job.global_batch), own.cluster)
    deadline_h = None if deadline is None else parse_hours(deadline, option="--deadline")
    rented = recommendation.front or recommendation.nearest
    ways = []
    for count in wanted:
        step, duration_h = on_own_devices(job, group, count, predictor, coverage)
        waited = Waited.of(own, count, duration_h, deadline_h)
        bill = price_usd_per_device_h * count * duration_h.value
        ways.append({
            "devices": count,
            "nodes": -(-count // own.cluster.devices_per_node),
            "step_time_s": step.to_record(),
            "duration_h": duration_h.to_record(),
            **waited.record,
            "cost_usd": bill,
            "rent_or_wait": [
                {"rank": one.rank,
                 **waited.rent_or_wait(one.training_time_h, one.cost_usd.value, bill)}
                for one in rented
            ],
        })  # fmt: skip
    shared = waited.cluster_record()
    shared["cluster"]["accelerator"] = group.part.name
    most_usd = np.inf if budget is None else budget
    return ClusterComparison(
        recommendation=recommendation,
        own_cluster={**shared, "ways": ways},
        meets_constraints=any(
            way["cost_usd"] <= most_usd and (way["miss_probability"] or 0.0) < 0.5 for way in ways
        ),
    )


def _group(text: str, predictor: Predictor) -> ClusterGroup:
    named = read_cluster(text, predictor.catalogue)
    if len(named) > 1:
        raise UsageError(
            f"{text!r} has more than one kind of machine",
            hint="give the part that the job would run on, and its jobs' trace",
        )
    return named[0]


def _wanted(
    devices: int | Sequence[int] | None, usual: int, cluster: SharedCluster
) -> tuple[int, ...]:
    """Return the numbers of devices to try, each an even share of every machine it needs."""
    if devices is None:
        return (usual,)
    wanted = (devices,) if isinstance(devices, int) else tuple(devices)
    for count in wanted:
        if count < 1:
            raise UsageError(
                f"the number of devices is out of range: {count}", hint="give 1 or more"
            )
        cluster.check_fits(count)
        nodes = -(-count // cluster.devices_per_node)
        if count % nodes:
            raise UsageError(
                f"{count} devices cannot be spread evenly over {nodes} machines",
                hint=f"ask for {count - count % nodes} or {count - count % nodes + nodes}",
            )
    if not wanted:
        raise UsageError(
            "the number of devices is missing", hint="name one, or leave the option out"
        )
    return wanted


def on_own_devices(
    job: Job, group: ClusterGroup, devices: int, predictor: Predictor, coverage: float,
    nodes: int | None = None,
) -> tuple[Estimate, Estimate]:  # fmt: skip
    """Return the step [s] and the computing time of the job [h] on machines that are there.

    The data is taken to lie on the cluster.

    ``group``: what one of the machines is; ``devices``: of all machines together; ``nodes``:
    machines that the devices are spread over evenly; as few as hold them by default.

    Raises PlanningError if the job cannot run there (exit code 3).
    """
    job = replace(
        job, transfers=replace(job.transfers, data_bytes=None, weights_bytes=0.0, boot_s=None)
    )
    nodes = nodes or -(-devices // group.node.devices)
    machines, row = own_fleet(group, predictor.fleet, per_node=devices // nodes)
    columns = predictor.step_columns(job, np.array([row]), np.array([nodes]), fleet=machines)
    if columns.status[0]:
        case = None if job.work is None else predictor.case(job, fleet=machines)
        why = refusal(case, columns, 0)
        raise PlanningError(
            f"{job.name} does not run on {devices} x {group.part.name} of your cluster: {why}",
            hint=f"{why.hint}; or ask for other devices (--cluster-devices), or rent",
            exit_code=3,
        )
    step = Estimate.lognormal(float(columns.step_s[0]), float(columns.log_sd[0]), coverage)
    duration_h = on_demand(job, columns, coverage).time_h(0, coverage)
    return step, duration_h
