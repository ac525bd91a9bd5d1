"""The start of a job that is submitted now, knowing who runs and who waits.

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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import impossible, refused
from advisor.planners.queueing.engine import (
    Column,
    JobTable,
    Placement,
    Policy,
    QueueParameters,
    SharedCluster,
)
from advisor.planners.queueing.simulator import engine

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
    ended_s: Column, now: OpenJobs, cluster: SharedCluster, policy: Policy = "fifo", *,
    devices: int, draws: int = 200, seed: int = 0, placement: Placement = "count",
) -> Column:  # fmt: skip
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
