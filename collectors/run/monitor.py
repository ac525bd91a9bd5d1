"""The event files as they grow: what is known and said so far, whether it is enough, the end."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from advisor.collectors.derive import (
    SETTLED,
    steps_per_epoch,
    trainer_of,
    waited_for,
    world_size_of,
)
from advisor.collectors.errors import bytes_text, duration_text, number_text
from advisor.collectors.format import EVENT_FILES, Events, Mean, Tail, mean
from advisor.collectors.hooks.format import CLOCK_BACKWARD, CLOCK_OPTIMIZER, REHEARSED
from advisor.collectors.run.recording_plan import RecordingPlan
from advisor.collectors.run.signals import send_signal
from advisor.collectors.watch import Processes, Proportional

# The order is written within some ms of the count that it is made from, and read within 0.1 s; on
# a machine where both wait for a core it may take ten times as long.
_TIME_TO_HEAR_S = 2.0
# Clocks whose steps are traced, operator by operator.
_TRACED: Final = (CLOCK_OPTIMIZER, CLOCK_BACKWARD)


class Monitor:
    """Reads what the hooks append, and judges it by the stop rule."""

    def __init__(self, run: Path, half_width_fraction: float | None = None) -> None:
        self._run = run
        self._half_width_fraction = half_width_fraction
        self._tails: dict[str, tuple[Tail, Events]] = {}
        self.mean: Mean | None = None
        self.waiting_for = "the first step"

    def update(self) -> None:
        """Take in what was appended since the last time."""
        for name in self._names():
            if name not in self._tails:
                self._tails[name] = Tail(self._run / name), Events()
        for tail, events in self._tails.values():
            for kind, payload in tail.read():
                events.take(kind, payload)
        trainer = self.trainer
        if trainer is not None:
            self.mean = mean(trainer.steps)
            self.waiting_for = waited_for(
                trainer.steps,
                self.mean,
                epoch_steps=steps_per_epoch(trainer),
                epochs_begun=trainer.epochs_begun,
                half_width_fraction=self._half_width_fraction,
            )

    @property
    def paths(self) -> Iterator[Path]:
        """The event files so far."""
        for tail, _ in self._tails.values():
            yield tail.path

    @property
    def is_rehearsed(self) -> bool:
        """Whether a process of the run is a rehearsal."""
        return any(path.stem.endswith(REHEARSED) for path in self.paths)

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self._run)
        except OSError:  # somebody has deleted the run
            return []
        return [name for name in names if fnmatchcase(name, EVENT_FILES)]

    @property
    def processes(self) -> list[Events]:
        """What each process recorded so far."""
        return [events for _, events in self._tails.values()]

    @property
    def trainer(self) -> Events | None:
        """The process that trains, once one does."""
        return trainer_of(self.processes)

    @property
    def hooked_pids(self) -> set[int]:
        """The processes in which hooks came up."""
        return {one.header["pid"] for one in self.processes if "pid" in one.header}

    @property
    def expects_steps(self) -> bool:
        """Whether a process is rehearsed, imports a framework with steps, or has begun a fit."""
        return self.is_rehearsed or any(
            {"framework", "fit"} & one.facts.keys() for one in self.processes
        )

    def first_step_ns(self) -> int:
        """Return when the first step ended, 0 before [ns]."""
        trainer = self.trainer
        return 0 if trainer is None else trainer.steps.first_ns

    def steps(self) -> int:
        """Return the steps so far."""
        trainer = self.trainer
        return 0 if trainer is None else trainer.completed

    @property
    def expects_trace(self) -> bool:
        """Whether a step of torch's is to be traced and none has been yet."""
        trainer = self.trainer
        if trainer is None or trainer.clock not in _TRACED:
            return False
        return not any("deep_step" in one.facts for one in self.processes)

    def samples_per_s(self) -> float | None:
        """Return the throughput of all processes by the corrected step, where batches are seen."""
        trainer, mean = self.trainer, self.mean
        if trainer is None or mean is None or not trainer.samples or not mean.corrected_s:
            return None
        per_step = trainer.samples / trainer.intervals
        return per_step * world_size_of(self.processes) / mean.corrected_s

    @property
    def has_obeyed(self) -> bool:
        """Whether a process has stopped or let go because it was told to."""
        return any("obeyed" in one.facts for one in self.processes)

    def common_last_step(self) -> int:
        """Return a step that all processes can still stop at together; 1 for one process.

        Processes that train together wait for each other in every step: they must leave the loop
        after the same one, hence all read of it before one of them is there. They are at most a
        step apart.
        """
        ranks = [one for one in self.processes if one.completed > 0]
        if len(ranks) < 2 or self.trainer is None or world_size_of(self.processes) < 2:
            return 1
        ahead = 2 + math.ceil(_TIME_TO_HEAR_S * self.trainer.steps.fastest_per_s())
        return max(one.completed for one in ranks) + ahead


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
