"""Quick steps are only noted when they happen, and counted and recorded some ms later together.

Between two steps of half a millisecond the script's own work drives the hooks out of the caches:
every object that is touched costs, and counting and writing in place took 25 us a step. A note is
an entry in a list. While steps are noted nothing else may be due: no traced step, no loader that
begins, no order to stop.
"""

from __future__ import annotations

import time

from . import format as fmt
from .chores import Chores
from .gradients import GradientSampler
from .state import ProcessState
from .writer import HOLD_NS, MOST_HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Noting(ProcessState):
    """Counters of this process, some of whose steps are still to be counted.

    Attributes
    ----------
    quick_id : int
        The identity of the one optimizer whose steps are only noted; 0 while none is.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.quick_id = 0
        self._chores = Chores(self, folder)
        self.gradients = GradientSampler(self)
        self._ticks = [0] * len(fmt.CLOCKS)
        self._flags = 0
        self._noted: list[tuple[int, int, int, int, int, int, Any]] = []
        self._quick_until_ns = 0

    def be_quick(self, optimizer: Any) -> None:
        """Have the next steps only noted, if nothing can be due in them."""
        is_plain = self.deep is None and self.clock == fmt.CLOCK_OPTIMIZER and not self._flags
        is_plain = is_plain and not self.gradients.is_open
        if is_plain and self._chores.due_step <= self.steps < self.last_step - MOST_HELD:
            self.quick_id = id(optimizer)
            self._quick_until_ns = time.monotonic_ns() + HOLD_NS

    def settle(self) -> None:
        """Count and record the steps that were only noted, and note no more for now."""
        self.quick_id = 0
        batches = self.loaders.settle()
        noted = self._noted[:]
        del self._noted[: len(noted)]  # threads append to it meanwhile
        at = 0
        for step in noted:
            begin = at
            while at < len(batches) and batches[at][0] <= step[0]:
                at += 1
            self._settle_step(step, batches[begin:at])
        self.loaders.carry(batches[at:])
        self.steps += len(noted)
        if noted:
            self.optimizers.count_only(len(noted))

    def _settle_step(self, step: Any, noted: list[Any]) -> None:
        """Record a step that was only noted, with the batches that were noted before it."""
        now_ns, backwards, batches, wait_ns, samples, wait_delay_ns, loader = step
        for _, took_ns, size, known in noted:
            loader = known  # the last one is the step's
            batches += 1
            wait_ns += took_ns
            samples += size
        self._ticks[fmt.CLOCK_OPTIMIZER] += 1
        self.writer.step(
            now_ns, self._chores.delay_ns, self._ticks[fmt.CLOCK_OPTIMIZER], fmt.CLOCK_OPTIMIZER,
            fmt.FLAG_COMPLETES, 0, backwards, batches, wait_ns // 1000, samples,
            wait_delay_ns // 1000,
        )  # fmt: skip
        if loader is not None:
            loader.steps += 1
            loader.is_recorded = False

    def forget_noted(self) -> None:
        """Leave what was noted to the parent, after a fork."""
        self.quick_id = 0
        self._noted.clear()
        self.loaders.noted.clear()
