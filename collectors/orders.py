"""The profiler's word to the hooks: a small file, rewritten in place."""

from __future__ import annotations

import os
import time
from pathlib import Path

from advisor.collectors.hooks import format as fmt


class Orders:
    """What every hooked process of a run is to do, and from which of its steps on.

    The file is written as a whole before the script starts, so that later writes need no space
    on a disk that has become full.
    """

    def __init__(self, run: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(run / fmt.CONTROL_FILE, flags, 0o600)
        self._order = 0, 0
        self.beat()

    def give(self, action: int, from_step: int) -> None:
        """Order an action (``format.ACTION_*``) from a step on; 0 means never."""
        self._order = action, from_step
        self.beat()

    def beat(self) -> None:
        """Say that the profiler lives."""
        try:
            os.pwrite(self._fd, fmt.CONTROL_PAYLOAD.pack(*self._order, time.monotonic_ns()), 0)
        except OSError:  # the hooks keep the last order, and let go after a minute of silence
            return
