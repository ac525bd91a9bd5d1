"""Pipeline schedules: how long a step takes with even stages (formula) and any stages (replay).

| here           | papers  | meaning                                                            |
|----------------|---------|--------------------------------------------------------------------|
| ``stages``     | p       | devices of the pipeline                                            |
| ``micro_batches`` | m    | micro-batches in a step                                            |
| ``virtual_stages`` | v   | model chunks of a device; v = 1 unless interleaved                 |
| ``forward_s``  | t_f     | forward of one micro-batch on a stage, all its chunks together [s] |
| ``backward_s`` | t_b     | backward, recomputation included [s]                               |
| ``send_s``     | C       | handing activations (or their gradient) to the neighbour [s]       |

Even stages: step = (m + (p-1)/v)(t_f + t_b), so the bubble is (p-1)/(v m) of the ideal: Huang et
al. (GPipe, 2019), Narayanan et al. (SC'21, section 2.2). GPipe and 1F1B take equally long and
differ in memory: m against p micro-batches in flight.

Uneven stages: every device runs its passes in its schedule's order, each as soon as the device is
free and its input has arrived. ``replay_s`` computes those start times exactly. How many
micro-batches a stage holds is ``planners.memory.transformers``'s (``in_flight``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import Floats, PlanningError, Schedule, refused

Ints = NDArray[np.int64]
# One pass: (is it a backward, micro-batch, chunk of the device).
Pass = tuple[bool, int, int]


def bubble_fraction(
    stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike = 1
) -> Floats:
    """Return idle time over ideal time of even stages: (p-1)/(v m).

    >>> float(bubble_fraction(4, 12))
    0.25
    """
    p, m, v = (np.asarray(x, float) for x in (stages, micro_batches, virtual_stages))
    return np.asarray((p - 1) / (v * m))


def replay_s(
    forward_s: Sequence[float], backward_s: Sequence[float], micro_batches: int, *,
    schedule: Schedule = "1f1b", send_s: Sequence[float] | None = None, virtual_stages: int = 1,
) -> float:  # fmt: skip
    """Replay a schedule over stages of any length and return the step time [s].

    ``forward_s``, ``backward_s``: by stage, of one micro-batch, all chunks of the device together;
    a chunk takes 1/v of it [s]; ``micro_batches``: interleaving needs a multiple of p; ``send_s``:
    from each stage to the next (the last to the first, where interleaved), the same backwards; it
    delays the receiver and keeps no device busy [s]; ``virtual_stages``: more than 1 only where
    interleaved.

    Raises PlanningError if the schedule cannot be run with that many micro-batches.
    """
    times = (forward_s, backward_s, send_s or [0.0] * len(forward_s))
    ended = _pass_ends(*times, micro_batches, schedule, virtual_stages)
    return max(max(one.values()) for one in ended)


def _pass_ends(
    forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float],
    micro_batches: int, schedule: Schedule, virtual_stages: int,
) -> list[dict[Pass, float]]:  # fmt: skip
    """Return when every pass ends, by device in its order (``device_order``) [s]."""
    stages = len(forward_s)
    _check(schedule, stages, micro_batches, virtual_stages)
    orders = [
        device_order(schedule, r, stages, micro_batches, virtual_stages) for r in range(stages)
    ]
    ended: list[dict[Pass, float]] = [{} for _ in orders]
    while any(len(done) < len(order) for done, order in zip(ended, orders, strict=True)):
        for rank, order in enumerate(orders):
            free_s = next(reversed(ended[rank].values()), 0.0)
            for step in order[len(ended[rank]) :]:
                arrived_s = 0.0
                if source := _source(rank, step, stages, virtual_stages):
                    sender, made = source
                    if made not in ended[sender]:
                        break
                    # A gradient crosses the link that its activation came by.
                    link_s = send_s[rank if step[0] else sender] if sender != rank else 0.0
                    arrived_s = ended[sender][made] + link_s
                took_s = (backward_s if step[0] else forward_s)[rank] / virtual_stages
                free_s = ended[rank][step] = max(free_s, arrived_s) + took_s
    return ended


def device_order(
    schedule: Schedule, rank: int, stages: int, micro_batches: int, virtual_stages: int = 1
) -> list[Pass]:
    """Return the passes of one device in the order in which it runs them.

    >>> device_order("1f1b", 1, 2, 2)
    [(False, 0, 0), (True, 0, 0), (False, 1, 0), (True, 1, 0)]
    """
    m, v, p = micro_batches, virtual_stages, stages
    if schedule == "gpipe":
        ahead = m
    elif schedule == "1f1b":
        ahead = min(p - rank - 1, m)
    else:
        # Forwards before the first backward of an interleaved device (Megatron-LM).
        ahead = min(2 * (p - rank - 1) + (v - 1) * p, m * v)
    total = m * v
    forwards: list[Pass] = []
    backwards: list[Pass] = []
    for k in range(total):
        micro = k // (p * v) * p + k % p if v > 1 else k
        chunk = k % (p * v) // p if v > 1 else 0
        forwards.append((False, micro, chunk))
        backwards.append((True, micro, v - 1 - chunk))
    order = forwards[:ahead]
    for k in range(total - ahead):
        order += [forwards[ahead + k], backwards[k]]
    return order + backwards[total - ahead :]


def _check(schedule: Schedule, stages: int, micro_batches: int, virtual_stages: int) -> None:
    if min(stages, micro_batches, virtual_stages) < 1:
        raise refused(
            f"{stages} stages, {micro_batches} micro-batches and {virtual_stages} virtual stages: "
            "each must be at least 1"
        )
    if virtual_stages > 1 and schedule != "interleaved":
        raise refused(
            f"{virtual_stages} virtual stages need the interleaved schedule, not {schedule}"
        )
    if virtual_stages > 1 and micro_batches % stages:
        raise PlanningError(
            f"interleaving {stages} stages needs a multiple of {stages} micro-batches, "
            f"got {micro_batches}",
            hint="change the accumulation steps or use 1f1b",
        )


def _source(rank: int, step: Pass, stages: int, virtual_stages: int) -> tuple[int, Pass] | None:
    """Return (device, pass) whose result a pass needs; None for the first forward."""
    is_backward, micro, chunk = step
    if not is_backward:
        if rank:
            return rank - 1, (False, micro, chunk)
        return (stages - 1, (False, micro, chunk - 1)) if chunk else None
    if rank < stages - 1:
        return rank + 1, (True, micro, chunk)
    if chunk < virtual_stages - 1:
        return 0, (True, micro, chunk + 1)
    return rank, (False, micro, chunk)


BACKWARD = 2.0  # of a forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPass:
    """One pass of a micro-batch through a device's chunk of the model."""

    # stage, micro_batch, chunk: counted from 0
    stage: int
    micro_batch: int
    chunk: int
    is_backward: bool
    # begin, end: times in the unit of what was handed in
    begin: float
    end: float


def pass_times(
    forward_s: Sequence[float], backward_s: Sequence[float], micro_batches: int, *,
    schedule: Schedule = "1f1b", virtual_stages: int = 1,
) -> tuple[TimedPass, ...]:  # fmt: skip
    """Return every pass of one step, a device after the other; times as of ``replay_s``.

    Raises PlanningError if the schedule cannot be run with that many micro-batches.
    """
    none = [0.0] * len(forward_s)
    ended = _pass_ends(forward_s, backward_s, none, micro_batches, schedule, virtual_stages)
    return tuple(
        TimedPass(
            stage=stage,
            micro_batch=micro_batch,
            chunk=chunk,
            is_backward=is_backward,
            begin=end - (backward_s if is_backward else forward_s)[stage] / virtual_stages,
            end=end,
        )
        for stage, passes in enumerate(ended)
        for (is_backward, micro_batch, chunk), end in passes.items()
    )


def timeline(
    stages: int, micro_batches: int, *, schedule: Schedule = "1f1b", virtual_stages: int = 1
) -> tuple[TimedPass, ...]:
    """Return a pipeline's step drawn out: which pass runs on which device from when to when.

    Every pass of one step, a device after the other. Stages are even and a backward pass takes
    twice as long as a forward one, as products do: that is how schedules are drawn in the papers
    above. The order of passes and what waits for what are exactly those that step times are
    computed from.

    Raises PlanningError if the schedule cannot be run with that many micro-batches.

    Examples
    --------
    >>> [(one.stage, one.begin, one.end) for one in timeline(2, 1)]
    [(0, 0.0, 1.0), (0, 4.0, 6.0), (1, 1.0, 2.0), (1, 2.0, 4.0)]
    """
    alike = [1.0] * stages, [BACKWARD] * stages
    return pass_times(*alike, micro_batches, schedule=schedule, virtual_stages=virtual_stages)
