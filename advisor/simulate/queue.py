"""A job on the user's own shared cluster, and whether renting beats waiting."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from advisor.answer import Estimate
from advisor.errors import UsageError
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.queueing import (
    POLICIES,
    POLICIES_OF_START,
    Column,
    Placement,
    Policy,
    QueueParameters,
    SharedCluster,
    Wait,
    rent_or_wait,
    simulate_queue,
    start_delays_s,
    wait_on_cluster,
)
from advisor.records import ClusterTrace, read_cluster_trace
from advisor.show import Chart, Series
from advisor.simulate.questions import Simulated, SimulateQueue
from advisor.simulate.samples import LEVELS, ended, named, percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCluster:
    """The user's shared cluster: its trace, its size, how it decides."""

    trace: ClusterTrace
    cluster: SharedCluster
    policy: Policy = "fifo"
    placement: Placement = "count"
    insertions: int = 100
    seed: int = 0


def start_now(own: OwnCluster, devices: int) -> dict[str, Any] | None:
    """Return when a job would start that is submitted now, among those that run and wait.

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
    return {
        "running": running,
        "waiting": open_jobs.devices.size - running,
        "within_hour_probability": float(np.mean(delays_s <= HOUR_S)),
        "delay_h": {
            name: float(np.quantile(delays_s, level)) / HOUR_S for name, level in LEVELS.items()
        },
    }


def side_by_side(own: OwnCluster, parameters: QueueParameters) -> list[dict[str, Any]]:
    """Return the trace's own jobs under every policy, the shortest mean completion first.

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
        {
            "policy": policy,
            "mean_completion_h": float(one.completion_s.mean()) / HOUR_S,
            "mean_delay_h": float(one.delay_s.mean()) / HOUR_S,
            "p90_delay_h": float(np.quantile(one.delay_s, 0.9)) / HOUR_S,
            "completion_factor": float(one.completion_s.mean()) / reference,
        }
        for policy, one in outcomes.items()
    ]
    return sorted(found, key=lambda one: one["mean_completion_h"])


SAMPLES = 500


def known_policy(name: str) -> Policy:
    """Return a policy by its name; raises UsageError if there is none."""
    known = next((one for one in POLICIES if one == name), None)
    if known is None:
        raise UsageError(f"no policy named {name!r}", hint=f"one of {', '.join(POLICIES)}")
    return known


def answer(asked: SimulateQueue) -> Simulated:
    """Insert a job into a recorded cluster at random times, and hold renting against waiting.

    Raises PlanningError if the deadline lies in the past, or the cluster cannot hold the job or
    the trace.
    """
    policy = known_policy(asked.policy)
    low, hours, high = asked.low or asked.hours, asked.hours, asked.high or asked.hours
    if not 0 < low <= hours <= high:
        raise UsageError(
            f"not 0 < low <= hours <= high: {low}, {hours}, {high}",
            hint="leave the bounds out where the time is certain",
        )
    own = OwnCluster(
        trace=read_cluster_trace(asked.trace),
        cluster=SharedCluster(nodes=asked.nodes, devices_per_node=asked.devices_per_node),
        policy=policy, placement="consolidated" if asked.consolidated else "count",
        insertions=asked.insertions, seed=asked.seed,
    )  # fmt: skip
    duration = Estimate(value=hours, low=low, high=high)
    waited = Waited.of(own, asked.devices, duration, asked.deadline)
    rented, rent = None, None
    if (rent_h := asked.rent_hours) is not None:
        rented = Estimate(value=rent_h, low=rent_h, high=rent_h)
        rent = waited.rent_or_wait(rented, asked.rent_cost)
    record = {
        "schema_version": 1,
        **waited.cluster_record(),
        "job": {"devices": asked.devices, "duration_h": asdict(duration)},
        **waited.record,
        "rent_or_wait": rent,
        "policies": side_by_side(own, _parameters(own)),
    }
    return Simulated(record=record, charts=_charts(own, waited.wait, asked.deadline, rented))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """What one job met on the shared cluster; times are hours from submission."""

    cluster: OwnCluster
    wait: Wait = field(repr=False)
    # of the trace's own jobs, simulated: how far the simulation can be trusted [h]
    simulated_delay_h: float
    record: dict[str, Any]

    @classmethod
    def of(
        cls, own: OwnCluster, devices: int, duration_h: Estimate, deadline_h: float | None = None
    ) -> Waited:
        """Insert a job into the recorded cluster at random times.

        ``duration_h``: computing time on the own cluster's devices [h].

        Raises PlanningError if the deadline lies in the past, or the cluster cannot hold the job
        or the trace.
        """
        if deadline_h is not None and deadline_h <= 0:
            raise PlanningError(
                f"the deadline lies {-deadline_h:g} h in the past",
                hint="give the time from now on, e.g. 12h",
                exit_code=2,
            )
        wait, simulated_delay_h = _waited(own, devices, duration_h)
        record = {
            # Completion less computing: rounding may leave it below 0.
            "delay_h": named(percentiles(np.maximum(wait.delay_s, 0.0) / HOUR_S)),
            "completion_h": named(percentiles(wait.completion_s / HOUR_S)),
            "miss_probability": None if deadline_h is None else wait.late(deadline_h * HOUR_S),
            "beyond_trace_fraction": wait.beyond_trace_fraction,
            "submitted_now": start_now(own, devices),
        }
        return cls(cluster=own, wait=wait, simulated_delay_h=simulated_delay_h, record=record)

    def cluster_record(self) -> dict[str, Any]:
        """Return what was said of the cluster and what its trace holds."""
        own, trace, load = self.cluster, self.cluster.trace, self.wait.load
        recorded = trace.waited_s[np.isfinite(trace.waited_s)]
        return {
            "trace": {"source": trace.source, "jobs": int(trace.jobs.submit_s.size),
                      "left_out": dict(trace.left_out),
                      "load_fraction": load if load < float("inf") else None,
                      "simulated_mean_delay_h": self.simulated_delay_h,
                      "recorded_mean_delay_h": float(recorded.mean()) / HOUR_S
                      if recorded.size else None},
            "cluster": {"nodes": own.cluster.nodes,
                        "devices_per_node": own.cluster.devices_per_node,
                        "policy": own.policy, "placement": own.placement},
        }  # fmt: skip

    def rent_or_wait(
        self, completion_h: Estimate, cost_usd: float, own_cost_usd: float = 0.0
    ) -> dict[str, float | None]:
        """Compare with machines that would end the job after ``completion_h`` for ``cost_usd``."""
        rented = samples_of(completion_h, SAMPLES, self.cluster.seed + 1)
        return rent_or_wait(
            self.wait, rent_completion_s=rented * HOUR_S, rent_cost_usd=cost_usd,
            own_cost_usd=own_cost_usd,
        )  # fmt: skip


def _waited(own: OwnCluster, devices: int, duration_h: Estimate) -> tuple[Wait, float]:
    """Return what the job meets, and the mean delay of the trace's own jobs [h]."""
    parameters = _parameters(own)
    wait = wait_on_cluster(
        own.trace.jobs, own.cluster, own.policy, devices=devices,
        duration_s=samples_of(duration_h, SAMPLES, own.seed) * HOUR_S, insertions=own.insertions,
        seed=own.seed, placement=own.placement, parameters=parameters,
    )  # fmt: skip
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
