"""A job on the user's own shared cluster, and whether renting beats waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from advisor.answer import Estimate
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.queueing import (
    POLICIES,
    POLICIES_OF_START,
    Column,
    Placement,
    Policy,
    QueueParameters,
    RentOrWait,
    SharedCluster,
    Wait,
    rent_or_wait,
    simulate_queue,
    start_delays_s,
    wait_on_cluster,
)
from advisor.records import ClusterTrace
from advisor.show import Chart, Series
from advisor.simulate.samples import LEVELS, ended, named, percentiles

# The user's shared cluster, and when a job would start there that is submitted now.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCluster:
    """The user's shared cluster: its trace, its size, how it decides."""

    trace: ClusterTrace
    cluster: SharedCluster
    policy: Policy = "fifo"
    placement: Placement = "count"
    insertions: int = 100
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNow:
    """A job that is submitted now, among those that run and wait."""

    running: int
    waiting: int
    within_hour_probability: float  # that it starts within the hour
    delay_h: dict[str, float]  # 10th, 50th and 90th percentile of the wait [h]


def start_now(own: OwnCluster, devices: int) -> StartNow | None:
    """Return when the job would start if it were submitted now.

    None where the trace does not say who runs and waits, or the policy stops running jobs.

    Raises PlanningError if the cluster has fewer devices than the job, or than one that waits.
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


# All policies side by side on one cluster's jobs: what another one would give its users.


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """The trace's own jobs under a policy."""

    policy: Policy
    # mean_completion_h, mean_delay_h, p90_delay_h: submission to end; of it what is not computing
    # [h]
    mean_completion_h: float
    mean_delay_h: float
    p90_delay_h: float
    completion_factor: float  # mean completion, by that of the cluster's own policy


def side_by_side(own: OwnCluster, parameters: QueueParameters) -> tuple[PolicyOutcome, ...]:
    """Return every policy on the same jobs, the shortest mean completion first.

    ``own``: its own policy is what the others are held against.
    """
    outcomes = {
        policy: simulate_queue(
            own.trace.jobs, own.cluster, policy, placement=own.placement, parameters=parameters
        )
        for policy in POLICIES
    }
    reference = float(outcomes[own.policy].completion_s.mean())
    found = [
        PolicyOutcome(
            policy=policy,
            mean_completion_h=float(one.completion_s.mean()) / HOUR_S,
            mean_delay_h=float(one.delay_s.mean()) / HOUR_S,
            p90_delay_h=float(np.quantile(one.delay_s, 0.9)) / HOUR_S,
            completion_factor=float(one.completion_s.mean()) / reference,
        )
        for policy, one in outcomes.items()
    ]
    return tuple(sorted(found, key=lambda one: one.mean_completion_h))


SAMPLES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAnswer:
    """One job on the shared cluster; times are hours from submission."""

    cluster: OwnCluster
    devices: int
    duration_h: Estimate
    # delay_h, completion_h: 10th, 50th and 90th percentile [h]
    delay_h: tuple[float, ...]
    completion_h: tuple[float, ...]
    miss_probability: float | None  # none without a deadline
    load: float  # inf where all jobs came at once
    beyond_trace_fraction: float
    # simulated_delay_h, recorded_delay_h: mean delay of the trace's own jobs, simulated and as
    # recorded (None where the file does not say): how far the simulation can be trusted [h]
    simulated_delay_h: float
    recorded_delay_h: float | None
    # submitted at the time of the export; None where it does not say who runs and waits, or the
    # policy stops running jobs
    now: StartNow | None
    rent: RentOrWait | None  # none where no rented alternative was given
    wait: Wait = field(repr=False)
    # the trace's own jobs under every policy, where they were asked for
    policies: tuple[PolicyOutcome, ...] = ()
    charts: Sequence[Chart] = field(repr=False, default=())

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "schema_version": 1,
            **self.cluster_record(),
            "job": {"devices": self.devices, "duration_h": asdict(self.duration_h)},
            **self.wait_record(),
            "rent_or_wait": None if self.rent is None else asdict(self.rent),
            "policies": [asdict(one) for one in self.policies],
        }

    def cluster_record(self) -> dict[str, Any]:
        """Return what was said of the cluster and what its trace holds."""
        own, trace = self.cluster, self.cluster.trace
        return {
            "trace": {"source": trace.source, "jobs": int(trace.jobs.submit_s.size),
                      "left_out": dict(trace.left_out),
                      "load_fraction": self.load if self.load < float("inf") else None,
                      "simulated_mean_delay_h": self.simulated_delay_h,
                      "recorded_mean_delay_h": self.recorded_delay_h},
            "cluster": {"nodes": own.cluster.nodes,
                        "devices_per_node": own.cluster.devices_per_node,
                        "policy": own.policy, "placement": own.placement},
        }  # fmt: skip

    def wait_record(self) -> dict[str, Any]:
        """Return what the job met."""
        return {
            "delay_h": named(self.delay_h),
            "completion_h": named(self.completion_h),
            "miss_probability": self.miss_probability,
            "beyond_trace_fraction": self.beyond_trace_fraction,
            "submitted_now": None if self.now is None else asdict(self.now),
        }

    def rent_or_wait(
        self, completion_h: Estimate, cost_usd: float, own_cost_usd: float = 0.0
    ) -> RentOrWait:
        """Compare with machines that would end the job after ``completion_h`` for ``cost_usd``."""
        return _rent_or_wait(self.cluster, self.wait, completion_h, cost_usd, own_cost_usd)


def queue_answer(
    own: OwnCluster,
    *,
    devices: int,
    duration_h: Estimate,
    deadline_h: float | None = None,
    rent_completion_h: Estimate | None = None,
    rent_cost_usd: float = 0.0,
    with_policies: bool = False,
) -> QueueAnswer:
    """Insert a job into the recorded cluster at random times.

    ``duration_h``: computing time on the own cluster's devices [h]; ``rent_completion_h``:
    completion on rented machines, start-up included [h]; ``with_policies``: also simulate the
    trace's own jobs under every policy; False by default.

    Raises PlanningError if the deadline lies in the past, or the cluster cannot hold the job or
    the trace.
    """
    if deadline_h is not None and deadline_h <= 0:
        raise PlanningError(
            f"the deadline lies {-deadline_h:g} h in the past",
            hint="give the time from now on, e.g. 12h",
            exit_code=2,
        )
    wait, simulated_delay_h = _waited(own, devices, duration_h)
    recorded = own.trace.waited_s[np.isfinite(own.trace.waited_s)]
    rent = None
    if rent_completion_h is not None:
        rent = _rent_or_wait(own, wait, rent_completion_h, rent_cost_usd, 0.0)
    return QueueAnswer(
        cluster=own,
        devices=devices,
        duration_h=duration_h,
        # Completion less computing: rounding may leave it below 0.
        delay_h=percentiles(np.maximum(wait.delay_s, 0.0) / HOUR_S),
        completion_h=percentiles(wait.completion_s / HOUR_S),
        miss_probability=None if deadline_h is None else wait.late(deadline_h * HOUR_S),
        load=wait.load,
        beyond_trace_fraction=wait.beyond_trace_fraction,
        simulated_delay_h=simulated_delay_h,
        recorded_delay_h=float(recorded.mean()) / HOUR_S if recorded.size else None,
        now=start_now(own, devices),
        rent=rent,
        wait=wait,
        policies=side_by_side(own, _parameters(own)) if with_policies else (),
        charts=_charts(own, wait, deadline_h, rent_completion_h),
    )


def _waited(own: OwnCluster, devices: int, duration_h: Estimate) -> tuple[Wait, float]:
    """Return what the job meets, and the mean delay of the trace's own jobs [h]."""
    parameters = _parameters(own)
    wait = wait_on_cluster(
        own.trace.jobs,
        own.cluster,
        own.policy,
        devices=devices,
        duration_s=samples_of(duration_h, SAMPLES, own.seed) * HOUR_S,
        insertions=own.insertions,
        seed=own.seed,
        placement=own.placement,
        parameters=parameters,
    )
    everyone = simulate_queue(
        own.trace.jobs, own.cluster, own.policy, placement=own.placement, parameters=parameters
    )
    return wait, float(everyone.delay_s.mean()) / HOUR_S


def samples_of(estimate: Estimate, count: int, seed: int = 0) -> Column:
    """Draw from the two half log-normals that an estimate and its interval stand for.

    Each side has its own spread, so that the share ``coverage`` lies between the bounds.
    """
    draws = np.random.default_rng(seed).normal(size=count)
    reach = NormalDist().inv_cdf(0.5 + estimate.coverage / 2)
    below = np.log(estimate.value / estimate.low) / reach
    above = np.log(estimate.high / estimate.value) / reach
    return np.asarray(estimate.value * np.exp(draws * np.where(draws < 0, below, above)))


def _rent_or_wait(
    own: OwnCluster, wait: Wait, completion_h: Estimate, cost_usd: float, own_cost_usd: float
) -> RentOrWait:
    return rent_or_wait(
        wait,
        rent_completion_s=samples_of(completion_h, SAMPLES, own.seed + 1) * HOUR_S,
        rent_cost_usd=cost_usd,
        own_cost_usd=own_cost_usd,
    )


def _parameters(own: OwnCluster) -> QueueParameters:
    jobs = own.trace.jobs
    service = jobs.devices * jobs.duration_s
    # The Gittins index needs the distribution of service: the trace's own, thinned.
    thin = max(1, service.size // 2000)
    return QueueParameters(service_samples=tuple(service[::thin].tolist()))


def _charts(
    own: OwnCluster, wait: Wait, deadline_h: float | None, rent: Estimate | None
) -> list[Chart]:
    curves = [
        ended("own cluster", wait.completion_s / HOUR_S),
        ended("computing alone", wait.duration_s / HOUR_S),
    ]
    if rent is not None:
        curves.append(ended("rented", samples_of(rent, SAMPLES)))
    if deadline_h is not None:
        curves.append(Series(name="deadline", x=[deadline_h], shape="vertical"))
    times, busy = _busy(own)
    return [
        Chart(
            title=f"Share of insertions that have ended ({own.policy})",
            x_label="hours since submission",
            y_label="share",
            series=curves,
            x_range=(0.0, 1.05 * max(v for s in curves for v in s.x)),
            y_range=(0.0, 1.0),
        ),
        Chart(
            title="Devices that the trace's jobs would keep busy if none waited",
            x_label="days",
            y_label="devices",
            series=[
                Series(name="wanted", x=times, y=busy, shape="area"),
                Series(name="cluster", x=[times[0], times[-1]], y=[own.cluster.devices] * 2),
            ],
        ),
    ]


def _busy(own: OwnCluster) -> tuple[list[float], list[float]]:
    """Return the mean demand over a few hundred equal bins: days and devices."""
    jobs = own.trace.jobs
    edges = np.linspace(0.0, float(jobs.submit_s[-1]) or 1.0, 301)
    work = np.zeros(edges.size)
    for at, sign in ((jobs.submit_s, 1.0), (jobs.submit_s + jobs.duration_s, -1.0)):
        # Integral of a step at each time, at the edges: sum of (edge - time) where positive.
        order = np.argsort(at)
        count = np.searchsorted(at[order], edges)
        weight = np.concatenate([[0.0], np.cumsum(jobs.devices[order])])
        moment = np.concatenate([[0.0], np.cumsum((jobs.devices * at)[order])])
        work += sign * (edges * weight[count] - moment[count])
    mean = np.diff(work) / np.diff(edges)
    return (edges / HOUR_S / 24).tolist(), [*mean.tolist(), float(mean[-1])]
