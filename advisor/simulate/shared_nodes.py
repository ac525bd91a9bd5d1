"""Recorded jobs on shared nodes, under every way of setting their limits.

The one function behind ``advisor simulate limits``. Each job runs again as it was recorded; jobs
whose limits are their own wait until what they reserve fits (``planners.queueing``), jobs under
Escra share all there is from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from advisor.advice import pasted, usage_of
from advisor.collectors.format import Recording
from advisor.errors import UsageError
from advisor.estimate import Predictor
from advisor.planners.core import GIB
from advisor.planners.queueing import JobTable, SharedCluster, simulate_queue
from advisor.planners.rightsizing import (
    SHARED,
    LimitedRun,
    RecordedUsage,
    ResourceLimits,
    RightSize,
    compared,
    pool_of,
    right_size,
)

# Two types of one family that differ in memory alone: what a core and a GiB cost an hour.
_PRICED: Final = (("aws:m6i.xlarge", "aws:r6i.xlarge"), "us-east-1")
_UNITS: Final = 1000  # parts of a pool that are handed out
# A policy is recommended whose jobs take at most so much longer, on average, and are not killed.
MOST_SLOWER: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePrices:
    """What reserved resources cost."""

    usd_per_core_h: float
    usd_per_gib_h: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderPolicy:
    """All jobs under one policy."""

    policy: str
    runs: tuple[LimitedRun, ...]
    # reserved_cores, reserved_gib: means over each job's run, summed over the jobs
    reserved_cores: float
    reserved_gib: float
    usd_per_h: float  # of all jobs, for each hour that they take without limits
    slowdown: float  # mean over the jobs of time with limits and kills by time without
    worst_slowdown: float
    kills: int
    done_s: float | None  # until all have ended in the pool; None where one never fits it

    @property
    def is_kept(self) -> bool:
        """Whether nobody is killed, all fit, and jobs take little longer."""
        return not self.kills and self.done_s is not None and self.slowdown <= 1.0 + MOST_SLOWER


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNodes:
    """Recorded jobs under every policy."""

    names: tuple[str, ...]
    usages: tuple[RecordedUsage, ...]
    limits: tuple[RightSize, ...]  # to paste, of each job
    pool: ResourceLimits
    is_pool_given: bool
    prices: ResourcePrices
    policies: tuple[UnderPolicy, ...]

    @property
    def chosen(self) -> UnderPolicy | None:
        """The cheapest policy that keeps the jobs' time; None where none does."""
        kept = [one for one in self.policies if one.is_kept]
        return min(kept, key=lambda one: one.usd_per_h, default=None)

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        static = self.policies[0]
        chosen = self.chosen
        return {
            "schema_version": 1,
            "pool": {"cores": self.pool.cores, "memory_bytes": self.pool.memory_bytes,
                     "is_given": self.is_pool_given},
            "prices": asdict(self.prices),
            "chosen": None if chosen is None else chosen.policy,
            "saved_fraction": None if chosen is None
            else 1.0 - chosen.usd_per_h / static.usd_per_h,
            "most_slower_fraction": MOST_SLOWER,
            "policies": [self._policy(one) for one in self.policies],
            "jobs": [
                {"name": name, "length_s": usage.length_s, "peak_cores": float(usage.cores.max()),
                 "peak_bytes": usage.peak_bytes, "cpu_request": limits.cpu_request,
                 "cpu_limit": limits.cpu_limit, "memory_limit_bytes": limits.memory_bytes,
                 "paste": pasted(limits)}
                for name, usage, limits in zip(self.names, self.usages, self.limits, strict=True)
            ],
        }  # fmt: skip

    def _policy(self, one: UnderPolicy) -> dict[str, Any]:
        return {
            "name": one.policy,
            "reserved_cores": one.reserved_cores,
            "reserved_gib": one.reserved_gib,
            "usd_per_h": one.usd_per_h,
            "slowdown": one.slowdown,
            "worst_slowdown": one.worst_slowdown,
            "kills": one.kills,
            "done_s": one.done_s,
            "throttled_fraction": float(np.mean([run.throttled_fraction for run in one.runs])),
            "slack_core_h": sum(run.slack_core_h for run in one.runs),
            "slack_gib_h": sum(run.slack_gib_h for run in one.runs),
            "jobs": [
                {"name": name, "slowdown": run.slowdown, "kills": run.oom,
                 "throttled_fraction": run.throttled_fraction, "slack_core_h": run.slack_core_h,
                 "slack_gib_h": run.slack_gib_h, "most_cores": run.most_cores,
                 "most_bytes": run.most_bytes}
                for name, run in zip(self.names, one.runs, strict=True)
            ],
        }  # fmt: skip


def resource_prices(predictor: Predictor) -> ResourcePrices:
    """Return what a core and a GiB cost an hour, by two types that differ in memory alone.

    Raises UsageError if the catalogue lacks them.
    """
    names, region = _PRICED
    rows = [predictor.catalogue.instance_type(name) for name in names]
    found = []
    for row in rows:
        offers, place = predictor.cheapest(row, region=region)
        if place is None or row.memory_bytes is None or row.vcpus is None:
            raise UsageError(
                f"the catalogue has no price of {row.name} in {region}",
                hint="give them: --core-price 0.04 --memory-price 0.004",
            )
        found.append((row.vcpus, row.memory_bytes / GIB, float(offers.price_usd_per_h[place])))
    each = np.linalg.solve(np.array(found)[:, :2], np.array(found)[:, 2])
    return ResourcePrices(
        usd_per_core_h=float(each[0]), usd_per_gib_h=float(each[1]),
        source=f"{names[0]} and {names[1]}, {region}, on demand",
    )  # fmt: skip


def limits_answer(
    recordings: Sequence[Recording], *, pool: ResourceLimits | None, prices: ResourcePrices
) -> SharedNodes:
    """Return what comes of recorded jobs under every policy.

    Raises UsageError if a recording does not tell what its job uses.
    """
    usages = tuple(_usage(one) for one in recordings)
    there = pool or pool_of(usages)
    return SharedNodes(
        names=tuple(one.run_id for one in recordings), usages=usages,
        limits=tuple(right_size(one) for one in usages), pool=there,
        is_pool_given=pool is not None, prices=prices,
        policies=tuple(
            _under(name, runs, usages, there, prices)
            for name, runs in compared(usages, there).items()
        ),
    )  # fmt: skip


def _usage(recording: Recording) -> RecordedUsage:
    found = usage_of(recording)
    if found is None:
        raise UsageError(
            f"{recording.run_id} does not tell what it uses: fewer than 20 readings, or held back "
            "by a quota or by neighbours while it was recorded",
            hint="profile it on a machine that nobody else uses, for 10 s or more",
        )
    return found


def _under(
    policy: str, runs: Sequence[LimitedRun], usages: Sequence[RecordedUsage],
    pool: ResourceLimits, prices: ResourcePrices,
) -> UnderPolicy:  # fmt: skip
    lengths = np.array([one.length_s for one in usages])
    took = np.array([run.slowdown for run in runs]) * lengths
    again = 1.0 + np.array([run.lost_s for run in runs]) / took
    cores_h = np.array([run.reserved_core_h for run in runs])
    gib_h = np.array([run.reserved_gib_h for run in runs])
    usd = (cores_h * prices.usd_per_core_h + gib_h * prices.usd_per_gib_h) * again
    slower = took * again / lengths
    return UnderPolicy(
        policy=policy, runs=tuple(runs), reserved_cores=float((cores_h * 3600 / took).sum()),
        reserved_gib=float((gib_h * 3600 / took).sum()),
        usd_per_h=float((usd * 3600 / lengths).sum()), slowdown=float(slower.mean()),
        worst_slowdown=float(slower.max()), kills=sum(run.oom for run in runs),
        done_s=_done_s(policy, runs, took * again, pool),
    )  # fmt: skip


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
