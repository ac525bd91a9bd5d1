"""The end of a recording: when it is time, by asking first, then by SIGTERM, then for good."""

from __future__ import annotations

import signal
import time
from typing import Final

from advisor.collectors.derive import SETTLED
from advisor.collectors.errors import duration_text
from advisor.collectors.run.monitor import Monitor
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.run.signals import send_signal
from advisor.collectors.watch import Processes

_FIRST_STEP_S: Final = 600.0  # imports, downloads, compilation: the limit counts from a step
# The most that a traced step is waited for beyond the limit: it answers for any GPU, however noisy
# the clock is here. A prior: half of what a first step may take.
_TRACE_S: Final = 300.0
# Patience with a script that obeyed, as a multiple: checkpoints, closing of process groups.
_LEAVING: Final = 6.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGKILL)


class RecordingLimits:
    """When enough has been seen, or too much time has passed."""

    def __init__(self, plan: RecordingPlan, monitor: Monitor) -> None:
        self._plan = plan
        self._monitor = monitor

    def left_s(self, elapsed_s: float) -> float:
        """Return how long the recording may go on, from the first step if one can come. [s]."""
        monitor, limit_s = self._monitor, self._plan.limit_s
        first_ns = monitor.first_step_ns()
        if first_ns:
            limit_s += _TRACE_S if self._waits_for_trace else 0.0
            return limit_s - (time.monotonic_ns() - first_ns) / 1e9
        return (max(limit_s, _FIRST_STEP_S) if monitor.expects_steps else limit_s) - elapsed_s

    @property
    def _waits_for_trace(self) -> bool:
        return self._plan.limit_steps is None and self._monitor.expects_trace

    def reason(self, elapsed_s: float) -> str:
        """Return why it is time to stop; empty while it is not."""
        plan, monitor = self._plan, self._monitor
        if plan.limit_steps is not None and monitor.steps() >= plan.limit_steps:
            return f"{plan.limit_steps} steps"
        if self.left_s(elapsed_s) <= 0:
            has_waited = monitor.expects_steps and not monitor.first_step_ns()
            limit_s = max(plan.limit_s, _FIRST_STEP_S) if has_waited else plan.limit_s
            return f"{duration_text(limit_s)} are over"
        return SETTLED if plan.limit_steps is None and not monitor.waiting_for else ""

    def until(self, elapsed_s: float) -> str:
        """Return what is waited for, and for how long at most."""
        plan, waiting_for = self._plan, self._monitor.waiting_for
        if plan.limit_steps is not None:
            waiting_for = f"step {plan.limit_steps}"
        left_s = self.left_s(elapsed_s)
        if self._waits_for_trace and left_s < _TRACE_S:
            waiting_for = "a step is traced"
        most = f"{max(0.0, left_s):.0f} s at most"
        return f"until {waiting_for}, {most}" if waiting_for else most


class Escalation:
    """SIGTERM and then SIGKILL to whoever outlives the profiler's patience."""

    def __init__(self, tree: Processes, monitor: Monitor, patience_s: float) -> None:
        self._tree = tree
        self._monitor = monitor
        self._patience_s = patience_s
        self._since = 0.0
        self._sent = 0
        self._from_step = 0
        self._steps = 0

    def begin(self, from_step: int) -> None:
        """Start to wait: the script has been asked to end after step ``from_step``."""
        self._since = time.monotonic()
        self._from_step = from_step

    @property
    def has_begun(self) -> bool:
        """Whether the script has been asked."""
        return self._since > 0

    def go_on(self) -> None:
        """Send the next signal, if it is time."""
        before, self._steps = self._steps, self._monitor.steps()
        if before < self._steps < self._from_step:  # on the way to where all can leave together
            self._since = time.monotonic()
        if self._sent == len(_SIGNALS) or self._waited() <= self._sent * self._patience_s:
            return
        number = _SIGNALS[self._sent]
        self._sent += 1
        self._tree.refresh()
        for pid in [pid for pid in list(self._tree.processes) if self._tree.is_alive(pid)]:
            send_signal(pid, number)

    def _waited(self) -> float:
        """Return how long patience has been at its end; negative before. [s]."""
        waited = time.monotonic() - self._since
        if self._monitor.has_obeyed:
            return waited - _LEAVING * self._patience_s
        if self._monitor.trainer is None:
            return waited  # nobody is there who could hear the question
        mean = self._monitor.mean
        return waited - self._patience_s - 3 * (0.0 if mean is None else mean.raw_s)
