"""Recorded jobs on shared nodes, under every way of setting their limits.

Each job runs again as it was recorded; jobs whose limits are their own wait until what they
reserve fits (``planners.queueing``), jobs under Escra share all there is from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from advisor.advice import pasted, untold, usage_of
from advisor.catalogue import resource_prices
from advisor.collectors import derive
from advisor.collectors.format import Recording
from advisor.errors import UsageError
from advisor.estimate import Predictor
from advisor.planners.queueing import JobTable, SharedCluster, simulate_queue
from advisor.planners.rightsizing import (
    SHARED,
    LimitedRun,
    RecordedUsage,
    ResourceLimits,
    compared,
    pool_of,
    right_size,
)
from advisor.quantities import parse_cores_and_memory
from advisor.simulate.questions import Simulated, SimulateLimits

_UNITS: Final = 1000  # parts of a pool that are handed out
# A policy is recommended whose jobs take at most so much longer, on average, and are not killed.
MOST_SLOWER: Final = 0.01
# What a core and a GiB cost for an hour, and who says so.
Prices = dict[str, Any]


def answer(asked: SimulateLimits) -> Simulated:
    """Return what comes of recorded jobs under every policy.

    Raises UsageError if a recording does not tell what its job uses.
    """
    core, memory, pool = asked.core_price, asked.memory_price, None
    if (core is None) != (memory is None):
        raise UsageError(
            "--core-price and --memory-price go together", hint="give both, or neither"
        )
    if asked.pool is not None:
        cores, memory_bytes = parse_cores_and_memory(asked.pool, option="--pool")
        pool = ResourceLimits(cores=cores, memory_bytes=memory_bytes)
    recordings = [derive.read_recording(derive.find_run(run)) for run in asked.runs]
    given = {"usd_per_core_h": core, "usd_per_gib_h": memory, "source": "given"}
    return limited(
        recordings, pool, resource_prices(Predictor().catalogue) if core is None else given
    )


def limited(
    recordings: Sequence[Recording], pool: ResourceLimits | None, prices: Prices
) -> Simulated:
    """Return what comes of these recordings in a pool, of the sum of their peaks by default."""
    names = [one.run_id for one in recordings]
    usages = tuple(_usage(one) for one in recordings)
    there = pool or pool_of(usages)
    policies = [
        _under(name, runs, usages, there, prices, names)
        for name, runs in compared(usages, there).items()
    ]
    kept = [one for one in policies if not one["kills"] and one["done_s"] is not None
            and one["slowdown"] <= 1.0 + MOST_SLOWER]  # fmt: skip
    chosen = min(kept, key=lambda one: float(one["usd_per_h"]), default=None)
    return Simulated(record={
        "schema_version": 1,
        "pool": {"cores": there.cores, "memory_bytes": there.memory_bytes,
                 "is_given": pool is not None},
        "prices": prices,
        "chosen": None if chosen is None else chosen["name"],
        "saved_fraction": None if chosen is None
        else 1.0 - chosen["usd_per_h"] / policies[0]["usd_per_h"],
        "most_slower_fraction": MOST_SLOWER,
        "policies": policies,
        "jobs": [
            {"name": name, "length_s": usage.length_s, "peak_cores": float(usage.cores.max()),
             "peak_bytes": usage.peak_bytes, "cpu_request": limits.cpu_request,
             "cpu_limit": limits.cpu_limit, "memory_limit_bytes": limits.memory_bytes,
             "paste": pasted(limits)}
            for name, usage, limits in zip(names, usages, map(right_size, usages), strict=True)
        ],
    })  # fmt: skip


def _usage(recording: Recording) -> RecordedUsage:
    found = usage_of(recording)
    if found is None:
        raise UsageError(
            f"{recording.run_id} does not tell what it uses: {untold(recording)}",
            hint="profile it on a machine that nobody else uses, for 10 s or more",
        )
    return found


def _under(
    policy: str, runs: Sequence[LimitedRun], usages: Sequence[RecordedUsage],
    pool: ResourceLimits, prices: Prices, names: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return all jobs under one policy; means over each job's run are summed over the jobs."""
    lengths = np.array([one.length_s for one in usages])
    took = np.array([run.slowdown for run in runs]) * lengths
    again = 1.0 + np.array([run.lost_s for run in runs]) / took
    cores_h = np.array([run.reserved_core_h for run in runs])
    gib_h = np.array([run.reserved_gib_h for run in runs])
    # What one pool lends goes on to others when a job ends: its mean is over all of the time.
    held = np.full(len(runs), took.max()) if policy == SHARED else took
    usd = (cores_h * prices["usd_per_core_h"] + gib_h * prices["usd_per_gib_h"]) * again
    slower = took * again / lengths
    return {
        "name": policy,
        "reserved_cores": float((cores_h * 3600 / held).sum()),
        "reserved_gib": float((gib_h * 3600 / held).sum()),
        "usd_per_h": float((usd * 3600 / lengths).sum()),
        "slowdown": float(slower.mean()),
        "worst_slowdown": float(slower.max()),
        "kills": sum(run.oom for run in runs),
        "done_s": _done_s(policy, runs, took * again, pool),
        "throttled_fraction": float(np.mean([run.throttled_fraction for run in runs])),
        "slack_core_h": sum(run.slack_core_h for run in runs),
        "slack_gib_h": sum(run.slack_gib_h for run in runs),
        "jobs": [
            {"name": name, "slowdown": run.slowdown, "kills": run.oom,
             "throttled_fraction": run.throttled_fraction, "slack_core_h": run.slack_core_h,
             "slack_gib_h": run.slack_gib_h, "most_cores": run.most_cores,
             "most_bytes": run.most_bytes}
            for name, run in zip(names, runs, strict=True)
        ],
    }  # fmt: skip


def _done_s(
    policy: str, runs: Sequence[LimitedRun], took: np.ndarray[Any, Any], pool: ResourceLimits
) -> float | None:
    """Return when all have ended that begin together in the pool; None where one never fits."""
    cores, sizes = ([getattr(run, of) for run in runs] for of in ("most_cores", "most_bytes"))
    fits = sum(cores) <= pool.cores * (1 + 1e-9) and sum(sizes) <= pool.memory_bytes
    if policy == SHARED or fits:
        return float(took.max())
    # One number a job: the share of what it takes most of.
    shares = [
        max(core / pool.cores, size / pool.memory_bytes)
        for core, size in zip(cores, sizes, strict=True)
    ]
    units = [math.ceil(_UNITS * one - 1e-6) for one in shares]
    if max(units) > _UNITS:
        return None
    outcome = simulate_queue(
        JobTable(
            submit_s=np.zeros(len(runs)), devices=np.maximum(np.array(units), 1), duration_s=took
        ),
        SharedCluster(nodes=1, devices_per_node=_UNITS),
        "fit-first",
    )
    return float(outcome.finish_s.max())
