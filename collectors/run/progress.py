"""The progress line of a recording, every few seconds."""

from __future__ import annotations

import json
import os
import time
from typing import Final

from advisor.collectors.errors import bytes_text, duration_text, number_text
from advisor.collectors.format import Mean
from advisor.collectors.run.monitor import Monitor
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.watch import Processes, Proportional

PERIOD_S: Final = 5.0
_SETTLED_IN_S: Final = 1.0  # nothing is worth a line before
PREFIX: Final = "[advisor] "


class Live:
    """The line on stderr, and the same for a program that listens."""

    def __init__(
        self, plan: RecordingPlan, tree: Processes, monitor: Monitor, memory: Proportional
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._tree = tree
        self._monitor = monitor
        self._before = time.monotonic_ns(), 0

    def say(self, elapsed_s: float, until: str) -> None:
        """Say what is known."""
        plan = self._plan
        if not plan.progress_s and plan.progress_fd < 0:
            return
        parts = self._parts(elapsed_s, until)
        if plan.progress_fd >= 0:
            record = {"elapsed_s": elapsed_s, "text": " · ".join(parts)}
            write(plan.progress_fd, json.dumps(record) + "\n")
        if plan.progress_s and elapsed_s > _SETTLED_IN_S:
            write(2, PREFIX + fitted(parts, columns() - len(PREFIX)) + "\n")

    def _parts(self, elapsed_s: float, until: str) -> list[str]:
        monitor = self._monitor
        usage = self._tree.read(is_full=False)
        now_ns = time.monotonic_ns()
        before_ns, cpu_before_ns = self._before
        self._before = now_ns, usage.cpu_ns
        cores = max(0.0, (usage.cpu_ns - cpu_before_ns) / max(1, now_ns - before_ns))
        known = [
            *step_parts(monitor.steps(), monitor.mean),
            until,
            *([f"{number_text(rate)} samples/s"] if (rate := monitor.samples_per_s()) else []),
        ]
        if monitor.is_rehearsed:  # its steps take a time that says nothing
            known = [f"rehearsing step {monitor.steps() + 1}"]
        used = bytes_text(self._memory.used_bytes(self._tree.processes, now_ns))
        return [f"{elapsed_s:.0f} s", *known, f"{cores:.1f} cores", used]


def step_parts(steps: int, mean: Mean | None) -> list[str]:
    """Return the step's number, and its time with its interval, as far as they are known."""
    if mean is None:
        return []
    share = 100 * mean.half_width_s / mean.corrected_s if mean.corrected_s else 0.0
    return [f"step {steps}", f"{duration_text(mean.corrected_s)} ±{share:.0f} %"]


def fitted(parts: list[str], width: int) -> str:
    """Return the parts as one line, as many of them as a terminal has room for; one at least.

    >>> fitted(["12 s", "step 40", "1.0 cores"], 16)
    '12 s · step 40'
    """
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        parts = parts[:-1]
    return " · ".join(parts)


def columns() -> int:
    """Return the width of the terminal on stderr; without one a line may have any length."""
    try:
        return os.get_terminal_size(2).columns or 10_000
    except OSError:
        return 10_000


def write(fd: int, text: str) -> None:
    """Write to a terminal or pipe that may be closed: that must not end the recording."""
    try:
        os.write(fd, text.encode(errors="backslashreplace"))
    except OSError:
        return
