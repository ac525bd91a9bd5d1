"""Clocks beside the main one: steps on an accelerator, and updates with the Python in them.

A kernel's launch returns before the kernel runs, so the time between two steps in Python says
little about a single one. An event goes into the device's queue at every step and is looked at
when it has passed: nothing waits for the device.

A traced step tells what its operators took, and an update of many small tensors is mostly what
happens between them: PyTorch's loop over parameters. So a few steps after the traced ones are
timed from the begin of each ``Optimizer.step`` to its end.
"""

from __future__ import annotations

import time
from collections import deque

from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .writer import Writer


_MOST_PENDING = 64  # a device that far behind is asked at every further step only once


class DeviceClock:
    """Events at the ends of steps, on the device that the script has begun to use."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._pending: deque[tuple[int, Any]] = deque()

    def tick(self, torch: Any, step: int) -> None:
        """Mark the end of a step; write the times of those that the device has finished."""
        if len(self._pending) < _MOST_PENDING:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._pending.append((step, event))
        while len(self._pending) > 1 and self._pending[1][1].query():
            first, event = self._pending.popleft()
            second, following = self._pending[0]
            if second == first + 1:
                took_ns = int(event.elapsed_time(following) * 1e6)
                self._writer.write(fmt.DEVICE_STEP, fmt.DEVICE_STEP_PAYLOAD.pack(second, took_ns))


# Training steps that are timed, after the last traced one and before steps are only noted.
FIRST, LAST = 10, 13


class UpdateTimer:
    """The updates of a few training steps of one process."""

    def __init__(self) -> None:
        self.is_open = False
        self._handle: Any = None
        self._begin_ns = self._spent_ns = 0
        self._steps: list[int] = []

    def run(self, step: int) -> list[int] | None:
        """Take in the end of a training step; return all times [ns] after the last one."""
        if not self.is_open:
            self.close()
            if step == FIRST - 1:
                self._open()
            return None
        self._steps.append(self._spent_ns)
        self._spent_ns = 0
        if step < LAST:
            return None
        self.close()
        return self._steps

    def ended(self) -> None:
        """Note the end of an update."""
        if self._begin_ns:
            self._spent_ns += time.perf_counter_ns() - self._begin_ns
        self._begin_ns = 0

    def close(self) -> None:
        """Time no updates any more."""
        self.is_open = False
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()  # a pre-hook, removed where no pre-hooks run: after the step

    def _open(self) -> None:
        from torch.optim import optimizer

        self._steps, self._spent_ns, self._begin_ns = [], 0, 0
        self._handle = optimizer.register_optimizer_step_pre_hook(self._begins)
        self.is_open = True

    def _begins(self, _: Any, args: Any, kwargs: Any) -> None:
        """Note the begin of an update; one that evaluates the loss itself is more than that."""
        if any(callable(one) for one in (*args[1:], *kwargs.values())):
            self.is_open = False
        # One that calls another's, as a subclass does, has begun before.
        self._begin_ns = self._begin_ns or time.perf_counter_ns()
