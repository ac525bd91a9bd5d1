"""Every way of setting limits, on the same recorded jobs.

======================  =========================================================================
policy                  limits of a job that runs again as it was recorded
======================  =========================================================================
``peak``                the recorded peaks, fixed; ``1.5 x peak`` half as much again
``ours``                ``limits.right_size``: the least quota of 1 % slowdown, peak and headroom
``KRR``                 CPU set aside without a quota, memory peak + 15 %, fixed
``VPA``, ``Autopilot``  what a histogram of the recorded run says, learning on while it runs
``Escra``               one pool for all jobs, a quota every period, memory from who has it left
======================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from advisor.planners.rightsizing.autoscalers import AUTOPILOT, VPA, Autoscaler, Fixed
from advisor.planners.rightsizing.escra import MEMORY_HEADROOM_BYTES, Escra
from advisor.planners.rightsizing.limits import right_size
from advisor.planners.rightsizing.replay import (
    LimitedRun,
    Policy,
    RecordedUsage,
    ResourceLimits,
    replay,
    replay_together,
)

SHARED: Final = "Escra"  # the policy whose jobs lend to one another


def _learned(usage: RecordedUsage, rule: object) -> Policy:
    assert rule is VPA or rule is AUTOPILOT
    peak = Fixed.peak_of(usage).limits
    return Autoscaler(rule=rule, asked=peak, history=usage)


POLICIES: Final[Mapping[str, Callable[[RecordedUsage], Policy]]] = MappingProxyType({
    "peak": Fixed.peak_of,
    "1.5 x peak": lambda usage: Fixed.peak_of(usage, 1.5),
    "ours": lambda usage: Fixed(limits=right_size(usage).limits),
    "KRR": Fixed.krr_of,
    "VPA": lambda usage: _learned(usage, VPA),
    "Autopilot": lambda usage: _learned(usage, AUTOPILOT),
})  # fmt: skip


def pool_of(runs: Sequence[RecordedUsage]) -> ResourceLimits:
    """Return the sum of the recorded peaks, with the headroom that Escra leaves each container."""
    peaks = [Fixed.peak_of(one).limits for one in runs]
    return ResourceLimits(
        cores=sum(one.cores for one in peaks),
        memory_bytes=sum(one.memory_bytes + MEMORY_HEADROOM_BYTES for one in peaks),
    )


def compared(
    runs: Sequence[RecordedUsage], pool: ResourceLimits | None = None
) -> dict[str, tuple[LimitedRun, ...]]:
    """Return what comes of recorded jobs that run again under each policy, in their order.

    ``pool``: what Escra's jobs have together; ``pool_of`` them by default.

    Raises PlanningError if a pool is so small that its jobs never end.
    """
    found = {
        name: tuple(replay(run, policy(run)) for run in runs) for name, policy in POLICIES.items()
    }
    found[SHARED] = replay_together(runs, Escra(budget=pool or pool_of(runs)))
    return found
