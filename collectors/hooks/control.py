"""The profiler's orders to this process: go on, stop, or let go."""

from __future__ import annotations

import os
import time

from .format import ACTION_DETACH, CONTROL_FILE, CONTROL_PAYLOAD
from .kept import OwnFile

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
        self._path = os.path.join(folder, CONTROL_FILE)
        self._file: OwnFile | None = None
        self.action = 0
        self.from_step = NEVER

    def poll(self) -> None:
        """Read what is wanted."""
        try:
            if self._file is None:
                self._file = OwnFile(self._path)
            payload = os.pread(self._file.number(), CONTROL_PAYLOAD.size, 0)
            action, from_step, beat_ns = CONTROL_PAYLOAD.unpack(payload)
        except Exception:  # gone or torn: nobody is asking
            action, from_step, beat_ns = ACTION_DETACH, 1, time.monotonic_ns()
        if time.monotonic_ns() - beat_ns > self._DEAD_NS:
            action, from_step = ACTION_DETACH, 1
        self.action, self.from_step = action, from_step or NEVER
