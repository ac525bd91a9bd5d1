"""The profiler's orders to this process: go on, stop, or let go."""

from __future__ import annotations

import os
import time

from . import format as fmt

NEVER = 2**63


class Control:
    """The control file.

    Notes
    -----
    A profiler that was killed cannot ask for anything any more: when its heartbeat is older than
    a minute the hooks let go, so that a long training run neither pays nor fills the disk. The
    descriptor stays open over forks; it is only ever read at a position.
    """

    _DEAD_NS = 60_000_000_000

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, fmt.CONTROL_FILE)
        self._fd = -1
        self.action = 0
        self.from_step = NEVER

    def poll(self) -> None:
        """Read what is wanted."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            payload = os.pread(self._fd, fmt.CONTROL_PAYLOAD.size, 0)
            action, from_step, beat_ns = fmt.CONTROL_PAYLOAD.unpack(payload)
        except Exception:  # gone or torn: nobody is asking
            action, from_step, beat_ns = fmt.ACTION_DETACH, 1, time.monotonic_ns()
        if time.monotonic_ns() - beat_ns > self._DEAD_NS:
            action, from_step = fmt.ACTION_DETACH, 1
        self.action, self.from_step = action, from_step or NEVER
