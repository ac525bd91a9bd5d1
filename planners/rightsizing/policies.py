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

from advisor.planners.rightsizing.autoscalers import (
    AUTOPILOT,
    VPA,
    Autoscaler,
    krr_limits,
    peak_limits,
)
from advisor.planners.rightsizing.escra import MEMORY_HEADROOM_BYTES, controllers
from advisor.planners.rightsizing.limits import right_size
from advisor.planners.rightsizing.replay import (
    Controller,
    LimitedRun,
    RecordedUsage,
    ResourceLimits,
    replay,
    replay_together,
)

SHARED: Final = "Escra"  # the policy whose jobs lend to one another
POLICIES: Final[Mapping[str, Callable[[RecordedUsage], Controller]]] = MappingProxyType({
    "peak": lambda usage: Controller(peak_limits(usage)),
    "1.5 x peak": lambda usage: Controller(peak_limits(usage, 1.5)),
    "ours": lambda usage: Controller(right_size(usage).limits),
    "KRR": lambda usage: Controller(krr_limits(usage)),
    "VPA": lambda usage: Autoscaler(rule=VPA, asked=peak_limits(usage), history=usage),
    "Autopilot": lambda usage: Autoscaler(
        rule=AUTOPILOT, asked=peak_limits(usage), history=usage
    ),
})  # fmt: skip


def pool_of(runs: Sequence[RecordedUsage]) -> ResourceLimits:
    """Return the sum of the recorded peaks, with the headroom that Escra leaves each container."""
    peaks = [peak_limits(one) for one in runs]
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
    found[SHARED] = replay_together(runs, controllers(pool or pool_of(runs), len(runs)))
    return found
