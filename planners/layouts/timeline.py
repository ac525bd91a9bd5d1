"""A pipeline's step drawn out: which pass runs on which device from when to when.

Stages are even and a backward pass takes twice as long as a forward one, as products do: that is
how schedules are drawn in the papers of ``pipeline``. The order of passes and what waits for what
are exactly those that step times are computed from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.planners.core.nouns import Schedule
from advisor.planners.layouts.pipeline import device_order, pass_ends

BACKWARD = 2.0  # of a forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPass:
    """One pass of a micro-batch through a device's chunk of the model.

    Attributes
    ----------
    stage, micro_batch, chunk : int
        Counted from 0.
    begin, end : float
        Times in forward passes of a whole stage.
    """

    stage: int
    micro_batch: int
    chunk: int
    is_backward: bool
    begin: float
    end: float


def timeline(
    stages: int, micro_batches: int, *, schedule: Schedule = "1f1b", virtual_stages: int = 1
) -> tuple[TimedPass, ...]:
    """Return every pass of one step, a device after the other.

    Raises
    ------
    PlanningError
        If the schedule cannot be run with that many micro-batches.

    Examples
    --------
    >>> [(one.stage, one.begin, one.end) for one in timeline(2, 1)]
    [(0, 0.0, 1.0), (0, 4.0, 6.0), (1, 1.0, 2.0), (1, 2.0, 4.0)]
    """
    forward = np.ones(stages)
    ends = pass_ends(
        forward, BACKWARD * forward, micro_batches, schedule=schedule,
        virtual_stages=virtual_stages,
    )[0]  # fmt: skip
    passes = (
        (stage, one)
        for stage in range(stages)
        for one in device_order(schedule, stage, stages, micro_batches, virtual_stages)
    )
    found = []
    for (stage, (is_backward, micro_batch, chunk)), end in zip(passes, ends.tolist(), strict=True):
        took = (BACKWARD if is_backward else 1.0) / virtual_stages
        found.append(
            TimedPass(
                stage=stage,
                micro_batch=micro_batch,
                chunk=chunk,
                is_backward=is_backward,
                begin=end - took,
                end=end,
            )
        )
    return tuple(found)
