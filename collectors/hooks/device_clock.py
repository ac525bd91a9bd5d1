"""Step times on an accelerator that runs behind Python.

A kernel's launch returns before the kernel runs, so the time between two steps in Python says
little about a single one. An event goes into the device's queue at every step and is looked at
when it has passed: nothing waits for the device.
"""

from __future__ import annotations

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
