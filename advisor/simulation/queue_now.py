"""The user's shared cluster, and when a job would start there that is submitted now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.planners.core.units import HOUR_S
from advisor.planners.queueing.nouns import Placement, Policy, SharedCluster
from advisor.planners.queueing.start import POLICIES_OF_START, start_delays_s
from advisor.records.job_tables import ClusterTrace
from advisor.simulation.samples import LEVELS


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCluster:
    """The user's shared cluster: its trace, its size, how it decides."""

    trace: ClusterTrace
    cluster: SharedCluster
    policy: Policy = "fifo"
    placement: Placement = "count"
    preemption_s: float = 0.0
    insertions: int = 100
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNow:
    """A job that is submitted now, among those that run and wait.

    Attributes
    ----------
    within_hour_probability : float
        That it starts within the hour.
    delay_h : dict of str to float
        10th, 50th and 90th percentile of the wait. [h]
    """

    running: int
    waiting: int
    within_hour_probability: float
    delay_h: dict[str, float]


def start_now(own: OwnCluster, devices: int) -> StartNow | None:
    """Return when the job would start if it were submitted now.

    None where the trace does not say who runs and waits, or the policy stops running jobs.

    Raises
    ------
    PlanningError
        If the cluster has fewer devices than the job, or than one that waits.
    """
    open_jobs = own.trace.open_jobs
    if not open_jobs.devices.size or own.policy not in POLICIES_OF_START:
        return None
    delays_s = start_delays_s(
        own.trace.jobs.duration_s, open_jobs, own.cluster, own.policy, devices=devices,
        seed=own.seed, placement=own.placement,
    )  # fmt: skip
    running = int(open_jobs.is_running.sum())
    return StartNow(
        running=running,
        waiting=open_jobs.devices.size - running,
        within_hour_probability=float(np.mean(delays_s <= HOUR_S)),
        delay_h={
            name: float(np.quantile(delays_s, level)) / HOUR_S for name, level in LEVELS.items()
        },
    )
