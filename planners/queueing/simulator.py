"""A shared cluster: when jobs start and end under a scheduling policy.

Further parts: engines by the name of their scheduling policy.

Policies (``planners.queueing.simulator``): ``fifo`` waits behind the first job that does not fit;
``fit-first`` lets later jobs pass it; ``shortest`` and ``shortest-gpu`` run the least remaining
time or service first, preempting; ``las`` and ``las-2d`` (Tiresias) demote jobs through queues as
their time or service grows; ``gittins`` (Tiresias) orders those queues by the Gittins index of a
known distribution of service. Symbols are in ``planners.queueing.engine``.

Source: Gu et al., "Tiresias", NSDI'19, and the outputs of its published simulator, which the
policies reproduce (``tests/golden/tiresias``). Times need not be whole; whole ones stay exact.

The start of a job that is submitted now, knowing who runs and who waits.

=====================  ==========================================================================
here                   meaning, unit
=====================  ==========================================================================
elapsed                how long a running job has been computing. [s]
``S(d)``               share of jobs that compute longer than d: Kaplan and Meier's estimate from
                       jobs that ended and, cut short, from those that run.
=====================  ==========================================================================

Nobody knows how long the others will go on. Each draw gives every running job a duration from
``S(d) / S(elapsed)`` and every waiting one from ``S(d)``, and lets the cluster run on until the
own job starts. Jobs that come later never pass it under ``fifo``; under ``fit-first`` they
might, and are left out. Beyond the longest duration seen the tail is exponential with the mean
of what was seen. Kaplan and Meier (1958); the forecast is our own.

One more job on a shared cluster: how long it waits, and whether renting beats waiting.

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
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import HOUR_S, impossible, refused
from advisor.planners.queueing.engine import (
    POLICIES,
    Column,
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
    jobs: JobTable,
    cluster: SharedCluster,
    policy: Policy,
    placement: Placement,
    parameters: QueueParameters,
) -> Engine:
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
    jobs: JobTable,
    cluster: SharedCluster,
    policy: Policy = "fifo",
    *,
    placement: Placement = "count",
    parameters: QueueParameters | None = None,
) -> QueueOutcome:
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


# Policies under which a job that runs is never stopped for another one.
POLICIES_OF_START: Final[tuple[Policy, ...]] = ("fifo", "fit-first")
_LEAST_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJobs:
    """Jobs that have not ended, in the order of their submission."""

    devices: NDArray[np.int64]  # (n,)
    elapsed_s: Column  # (n,); of running jobs; nan of those that wait [s]

    @property
    def is_running(self) -> NDArray[np.bool_]:
        """Say which of them run."""
        running: NDArray[np.bool_] = np.isfinite(self.elapsed_s)
        return running


def start_delays_s(
    ended_s: Column,
    now: OpenJobs,
    cluster: SharedCluster,
    policy: Policy = "fifo",
    *,
    devices: int,
    draws: int = 200,
    seed: int = 0,
    placement: Placement = "count",
) -> Column:
    """Return draws of how long a job waits that is submitted now, shape (draws,) [s].

    ``ended_s``: (k,); durations of jobs that ended [s]; ``cluster``, ``policy``, ``placement``: as
    in ``simulate_queue``; only policies that stop no running job; ``devices``: of the own job.

    Raises PlanningError if a job is larger than the cluster (exit code 3), or the policy stops
    running jobs.
    """
    if policy not in POLICIES_OF_START:
        raise refused(
            f"when a job starts cannot be said under {policy}, which stops running jobs",
            f"of: {', '.join(POLICIES_OF_START)}",
        )
    cluster.check_fits(devices)
    if now.devices.size and int(now.devices.max()) > cluster.devices:
        raise impossible(
            f"a job of the trace asks for {int(now.devices.max())} devices, the cluster has "
            f"{cluster.devices}",
            "give the cluster's real size",
        )
    order = np.argsort(~now.is_running, kind="stable")
    sizes, elapsed = now.devices[order], now.elapsed_s[order]
    if not np.any(~now.is_running) and sizes.sum() + devices <= cluster.devices:
        return np.zeros(draws)
    since = np.nan_to_num(elapsed)
    durations = drawn_s(ended_s, elapsed[np.isfinite(elapsed)], since, draws, seed) - since
    delays = np.empty(draws)
    for number, drawn in enumerate(durations):
        table = JobTable(
            submit_s=np.zeros(sizes.size + 1),
            devices=np.append(sizes, devices).astype(np.int64),
            duration_s=np.append(drawn, _LEAST_S),
        )
        run = engine(table, cluster, policy, placement, QueueParameters())
        run.run_to(sizes.size)
        delays[number] = run.start_s[sizes.size]
    return delays


def drawn_s(ended_s: Column, running_s: Column, since_s: Column, draws: int, seed: int) -> Column:
    """Return durations beyond each of ``since_s``, shape (draws, n) [s].

    ``ended_s``, ``running_s``: durations of jobs that ended, and of those that run, so far [s];
    ``since_s``: (n,); [s].
    """
    length = np.concatenate([ended_s, running_s])
    order = np.argsort(length, kind="stable")
    length, ended = length[order], (np.arange(length.size) < ended_s.size)[order]
    at_risk = length.size - np.arange(length.size)
    share = np.cumprod(np.where(ended, 1.0 - 1.0 / np.maximum(at_risk, 1), 1.0))
    before = np.searchsorted(length, since_s, side="right")
    left = np.where(before > 0, np.append(1.0, share)[before], 1.0)
    rng = np.random.default_rng(seed)
    level = rng.random((draws, since_s.size)) * left
    at = np.searchsorted(-share, -level, side="left")
    mean = float(length.mean()) if length.size else _LEAST_S
    longest = float(length[-1]) if length.size else 0.0
    tail = np.maximum(longest, since_s) + rng.exponential(mean, level.shape)
    found = np.where(at < length.size, np.append(length, np.inf)[at], tail)
    return np.maximum(found, since_s + _LEAST_S)


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
    jobs: JobTable,
    cluster: SharedCluster,
    policy: Policy = "fifo",
    *,
    devices: int,
    duration_s: ArrayLike,
    insertions: int = 100,
    seed: int = 0,
    placement: Placement = "count",
    parameters: QueueParameters | None = None,
) -> Wait:
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
