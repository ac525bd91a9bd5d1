"""The event files as they grow: what is known so far, and what is waited for."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from advisor.collectors.derive import steps_per_epoch, trainer_of, waited_for, world_size_of
from advisor.collectors.format import EVENT_FILES, Events, Mean, Tail, mean
from advisor.collectors.hooks.format import CLOCK_BACKWARD, CLOCK_OPTIMIZER, REHEARSED

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
