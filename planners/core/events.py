"""The event simulator: time moves from one event to the next, and the state changes there.

Under it are the queues of shared clusters and customers in a closed loop (``planners.queueing``:
Tiresias, aggregation) and the periods of runs under limits (``planners.rightsizing``: Escra).
Other systems have no such loop: spot and availability are scans over all starts at once
(``planners.spot``, ``planners.systems.sas``), colocation, harvesting and failures are formulas.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Self

NEVER: Final = math.inf


class EventLoop:
    """Time and arrivals; a simulation adds its state, ``next_event`` and ``step``."""

    def __init__(self, arrivals_s: Sequence[float] = ()) -> None:
        self.submit = list(arrivals_s)  # not decreasing [s]
        self.cursor = 0  # next to arrive
        self.now = -NEVER

    def next_event(self) -> float:
        """Return the time of the next event that is no arrival; NEVER where none is left."""
        raise NotImplementedError

    def step(self, now: float, arrived: Sequence[int]) -> None:
        """Handle everything that happens at ``now``."""
        raise NotImplementedError

    def run(self, *, until_s: float = NEVER, is_over: Callable[[], bool] | None = None) -> None:
        """Run to the end, or up to a time (exclusive), or until it is over."""
        total = len(self.submit)
        while is_over is None or not is_over():
            arrival = self.submit[self.cursor] if self.cursor < total else NEVER
            now = min(arrival, self.next_event())
            if now >= until_s or now == NEVER:
                return
            first = self.cursor
            while self.cursor < total and self.submit[self.cursor] == now:
                self.cursor += 1
            self.now = now
            self.step(now, range(first, self.cursor))

    def fork(self) -> Self:
        """Return a copy that can run on by itself."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(twin, name, {key: copy.copy(inner) for key, inner in value.items()})
            elif isinstance(value, list) and value and isinstance(value[0], list | deque | dict):
                setattr(twin, name, [copy.deepcopy(inner) for inner in value])
            elif hasattr(value, "copy"):
                setattr(twin, name, value.copy())
        return twin
