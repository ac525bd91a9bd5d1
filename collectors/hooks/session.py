"""One process's part of a recording: the clocks tick here, everything else hangs on them.

Quick steps are only noted when they happen, and counted and recorded some ms later together:
between two steps of half a millisecond the script's own work drives the hooks out of the caches,
every object that is touched costs, and counting and writing in place took 25 us a step. A note is
an entry in a list. While steps are noted nothing else may be due: no traced step, no loader that
begins, no order to stop.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import time

from . import format as fmt
from .chores import Chores
from .environments import Environments
from .gradient_norms import GradientSampler
from .state import ProcessState
from .writer import HOLD_NS, MOST_HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_WORDS = ("cuda", "gpu", "cpu", "accel", "device", "platform")
# No other value of theirs is kept: --device-key may say anything.
_DEVICES = re.compile(
    r"(auto|cpu|cuda|gpu|hpu|mps|npu|tpu|xla|xpu|rocm|hip)s?(:\d+)?", re.IGNORECASE
)


def device_switches(namespace: Any) -> dict[str, Any]:
    """Return the arguments about devices that are switches or names of devices."""
    found = {}
    for name, value in vars(namespace).items():
        is_device = isinstance(value, str) and _DEVICES.fullmatch(value) is not None
        if (isinstance(value, bool) or is_device) and any(word in name.lower() for word in _WORDS):
            found[name] = value
    return found


# Facts on more saves than this would tell nothing new.
_MOST_SAVES = 100


class Session(ProcessState):
    """What the patches call in this process: an exception of ours gets out of none of it.

    A stop is a SystemExit. The clock with the highest rank that ticked is the leading one; which
    of several optimizers completes a step is decided in ``optimizers``.

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
        self.environments = Environments(self.updates, self._round_begins)
        self._ticks = [0] * len(fmt.CLOCKS)
        self._flags = 0
        self._noted: list[tuple[int, int, int, int, int, int, Any]] = []
        self._quick_until_ns = 0
        self._release: list[Callable[[], None]] = []
        self._saves = 0
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def rehearse(self, rehearsal: Any) -> None:
        """Record a rehearsal from now on; None for a script that runs for real."""
        self.rehearsal = rehearsal
        self._chores.begin_anew()

    def optimizer_made(self, optimizer: Any) -> None:
        """Take in a new optimizer."""
        with self.guarded("optimizer"):
            self.settle()
            self.optimizer_made_ns = time.monotonic_ns()
            self.optimizers.made(optimizer)

    def optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        """Count an optimizer's update; this is the framework's post-hook itself."""
        if id(optimizer) == self.quick_id:
            now_ns = time.monotonic_ns()
            noted, loaders = self._noted, self.loaders
            if now_ns < self._quick_until_ns and len(noted) < MOST_HELD:
                noted.append((
                    now_ns, self.backwards, loaders.batches, loaders.wait_ns, loaders.samples,
                    loaders.wait_delay_ns, loaders.last,
                ))  # fmt: skip
                self.backwards = loaders.batches = loaders.samples = 0
                loaders.wait_ns = loaders.wait_delay_ns = 0
                return
        if self.is_released:
            return
        try:
            if self.deep is not None:
                self.deep.optimizer_runs(False)
            if self._chores.updates.is_open:
                self._chores.updates.ended()
            if self.gradients.is_open:
                self.gradients.step_ended()
            if self.optimizers.is_only(optimizer):
                self._tick(fmt.CLOCK_OPTIMIZER)
                self.be_quick(optimizer)
            else:
                self._tick(fmt.CLOCK_OPTIMIZER, *self.optimizers.stepped(optimizer))
        except Exception as error:
            self.failed("optimizer step", error)
        if self.steps >= self.last_step:
            self._obey(fmt.CLOCK_OPTIMIZER)

    def saved(self, file: Any, begin_ns: int, delay_ns: int) -> None:
        """Note how long a checkpoint took, and how large it is where that can be seen.

        ``delay_ns`` is the main thread's waiting for a core before it.
        """
        if self.is_released or self._saves >= _MOST_SAVES:
            return
        with self.guarded("save"):
            self.settle()
            delay_s = (self.loaders.delay.main_ns() - delay_ns) / 1e9
            took_s = (time.monotonic_ns() - begin_ns) / 1e9
            size: Any = None
            if isinstance(file, (str, os.PathLike)):
                size = os.path.getsize(file)
            elif hasattr(file, "tell"):
                size = file.tell()
            self._saves += 1
            self.fact("saved", step=self.steps, seconds=took_s, delay_s=delay_s, bytes=size)

    def backward_begins(self) -> None:
        """Have the traced step take stock before a backward pass."""
        with self.guarded("backward"):
            self.deep.backward_begins()

    def backward_ended(self) -> None:
        """Count a backward pass where no optimizer does: passes are counted by the patch."""
        if self.is_released:
            return
        with self.guarded("backward"):
            self._tick(fmt.CLOCK_BACKWARD)
        if self.steps >= self.last_step:
            self._obey(fmt.CLOCK_BACKWARD)

    def batch_missing(self) -> None:
        """Note that a loader has come to its end."""
        with self.guarded("loader's end"):
            self.settle()
            if self.deep is not None:
                self.deep.loader_runs(False)
            if not self.is_released:
                self.loaders.flush()

    def batch_fetched(self, iterator: Any, batch: Any, begin_ns: int, cpu_ns: int) -> None:
        """Count a loader's batch."""
        if self.is_released:
            return
        with self.guarded("loader"):
            if self.deep is not None:
                self.deep.loader_runs(False)
            self.loaders.fetched(iterator, batch, begin_ns, cpu_ns)
            if self.clock <= fmt.CLOCK_LOADER:
                self._tick(fmt.CLOCK_LOADER)
        if self.clock == fmt.CLOCK_LOADER and self.steps >= self.last_step:
            self._obey(fmt.CLOCK_LOADER)

    def loader_begun(self, loader: Any, iterator: Any) -> None:
        """Note a new pass over a loader."""
        if self.is_released:
            return
        with self.guarded("loader"):
            self.settle()
            self.loaders.begun(loader, iterator)

    def marked(self, samples: int | None = None, total_steps: int | None = None) -> None:
        """Count a step by the script's own word."""
        if self.is_released:
            return
        with self.guarded("marker"):
            if total_steps is not None and not self._ticks[fmt.CLOCK_MARKER]:
                self.fact("total_work", steps=int(total_steps))
            if samples is not None:
                self.loaders.samples = int(samples)
                if not self._ticks[fmt.CLOCK_MARKER]:
                    self.fact("marker", samples=int(samples))
            self._tick(fmt.CLOCK_MARKER)
        if self.steps >= self.last_step:
            self._obey(fmt.CLOCK_MARKER)

    def round_ended(
        self, clock: int, at_ns: int, samples: int, number: int = 0,
        flags: int = fmt.FLAG_COMPLETES,
    ) -> None:  # fmt: skip
        """Count a round of a framework without torch's optimizers; see ``rounds``."""
        if self.is_released:
            return
        with self.guarded("round"):
            if samples:
                self.loaders.samples = samples
            self._tick(clock, number, flags, at_ns)
        if self.steps >= self.last_step:
            self._obey(clock)

    def replicas_made(self, module: Any) -> None:
        """Keep hold of a model that was wrapped for data parallelism."""
        import weakref

        self.data_parallel = weakref.ref(module)

    def group_joined(self, rank: int, world_size: int, backend: str) -> None:
        """Note that this process trains together with others from now on."""
        self.fact("process_group", rank=rank, world_size=world_size, backend=backend)
        self.is_together = True

    def group_leaves(self) -> None:
        """Look a last time at what is about to be closed."""
        if not self.is_released:
            self._chores.record_communication(time.monotonic_ns(), is_last=True)

    def arguments_parsed(self, namespace: Any) -> None:
        """Keep the numbers among the arguments that may say how long the job is, and devices."""
        with self.guarded("arguments"):
            self.switches.update(device_switches(namespace))
            words = ("epoch", "step", "iter", "batch", "sample", "accum")
            for name, value in vars(namespace).items():
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                is_length = name in fmt.LENGTH_NAMES
                if is_number and (is_length or any(word in name.lower() for word in words)):
                    self.arguments[name] = value

    def on_release(self, undo: Callable[[], None]) -> None:
        """Have ``undo`` called when the session lets go of the script."""
        self._release.append(undo)

    def release(self) -> None:
        """Take every hook out; the script goes on as if never recorded."""
        if self.is_released:
            return
        self.settle()
        self._chores.end_deep()
        self._chores.updates.close()
        self.gradients.close()
        self._chores.record_communication(time.monotonic_ns(), is_last=True)
        self._chores.routing.remove()
        self.loaders.flush()
        played = self.environments.facts()
        if played:
            self.fact("environment", **played)
        if self.rehearsal is not None:
            self.fact("rehearsal", **self.rehearsal.facts())
        self.writer.fact("released", steps=self.steps, lost=self.writer.lost)
        self.is_released = True
        self.writer.close()
        for undo in self._release:
            try:
                undo()
            except Exception:
                continue

    def _tick(
        self, clock: int, number: int = 0, flags: int = fmt.FLAG_COMPLETES,
        at_ns: int | None = None,
    ) -> None:  # fmt: skip
        """Record a tick of a clock that may lead; ``at_ns`` if it was not just now."""
        rank = fmt.CLOCK_RANK[clock]
        if rank < self.rank:
            return
        if self.quick_id:
            self.settle()
        now_ns = time.monotonic_ns() if at_ns is None else at_ns
        chores = self._chores
        completes = bool(flags & fmt.FLAG_COMPLETES)
        is_first = rank > self.rank or flags >= fmt.FLAG_RENEWED
        if is_first:
            if flags & fmt.FLAG_RENEWED:
                chores.begin_anew()
            self.clock, self.rank, self.steps = clock, rank, 0
        is_due = is_first or now_ns >= chores.due_ns or self.steps < chores.due_step
        if is_due:
            chores.delay_ns = self.loaders.delay.main_ns()
        self._ticks[clock] += 1
        loaders = self.loaders
        flags |= self._flags
        if loaders.has_begun:
            flags |= fmt.FLAG_BOUNDARY
        if self.deep is not None:
            flags |= fmt.FLAG_DEEP
        self.writer.step(
            now_ns, chores.delay_ns, self._ticks[clock], clock, flags, number,
            self.backwards, loaders.batches, loaders.wait_ns // 1000, loaders.samples,
            loaders.wait_delay_ns // 1000,
        )  # fmt: skip
        loaders.tick(completes)
        self.backwards = 0
        if is_first:
            loaders.start_counting()
        if completes:
            self.steps += 1
            self._flags = fmt.FLAG_AFTER_DEEP if self.deep is not None else 0
            if is_due:
                chores.run(now_ns)
                self.gradients.run(now_ns)

    def updates(self) -> int:
        """Return the steps so far, with those that are only noted."""
        return self.steps + len(self._noted)

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

    def _round_begins(self) -> None:
        """End a rehearsal where a round of acting and learning was seen: the next is like it."""
        if self.rehearsal is not None and not self.is_released:
            with self.guarded("round"):
                self._chores.end_rehearsal(self.steps)
            if self.steps >= self.last_step:
                self._obey(self.clock, looks=False)

    def _obey(self, clock: int, *, looks: bool = True) -> None:
        """Stop or let go, as the profiler asked for from this step on.

        Only the main thread can end the script; whoever trains in another is stopped from outside.
        """
        action = self._chores.control.action
        is_main = threading.current_thread() is threading.main_thread()
        if fmt.CLOCK_RANK[clock] < self.rank or (action == fmt.ACTION_STOP and not is_main):
            return
        with self.guarded("release"):
            if looks and clock != fmt.CLOCK_LOADER:
                self._chores.look_again()
            self.fact("obeyed", steps=self.steps, stops=action == fmt.ACTION_STOP)
            self.release()
        if action == fmt.ACTION_STOP:
            raise SystemExit(0)

    def _at_exit(self) -> None:
        for ended in (*self.on_exit, self.release):
            with self.guarded("exit"):
                ended()

    def _forked(self) -> None:
        with self.guarded("fork"):
            # What was noted, and the delay's descriptors, are the parent's.
            self.quick_id = 0
            self._noted.clear()
            self.loaders.noted.clear()
            self.loaders.delay.forget()
            if self.deep is not None:  # the trace is the parent's; here it only lets through
                self.deep.abandon()
                self.deep = None
            self.gradients.forget()
