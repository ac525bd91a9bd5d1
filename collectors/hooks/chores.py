"""Chores between two steps, each as seldom as it can be: a step pays for little."""

from __future__ import annotations

import os
import sys
import threading
import time

from . import format as fmt
from . import lineage
from .kept import OwnFile
from .routing import RouterHooks
from .step_clocks import DeviceClock, UpdateTimer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import ProcessState


# Variables that the frameworks' thread pools read when they start.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def facts(torch: Any, called: int | None, is_rank: bool = False) -> dict[str, Any]:
    """Return the limits on the use of the machine, as the script's own process sees them."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on Linux
        affinity = os.cpu_count() or 1
    said = {name: os.environ.get(name, "").split(",")[0].strip() for name in _VARIABLES}
    if is_rank:  # the cores of this machine are shared out: no limit of the script
        affinity, said = os.cpu_count() or 1, {}
    return {
        "threads": None if torch is None else torch.get_num_threads(),
        "called": called,
        "environment": {name: int(value) for name, value in said.items() if value.isdigit()},
        "affinity": affinity,
    }


# The steps after which a step is traced. The first two create optimizer state and compile; a
# repetition lets the least time of an operator count, since a busy machine only adds. A step of
# many small operators (LBFGS evaluates its loss twenty times) takes seconds to trace, and as many
# ordinary steps are not seen: none is traced again once so much has been spent.
_DEEP_AFTER = (2, 5, 8)
# A rehearsal computes nothing: one step makes the optimizer's state, the next is traced.
_DEEP_REHEARSED = (1,)
_DEEP_BUDGET_NS = 1_000_000_000
# Where so much has passed from the optimizer to the end of the first step, the second is traced
# already: of a model that is too large for this machine nobody waits for a third.
_SLOW_NS = 10_000_000_000
_WORK_AT = (2, 5, 12)  # again: a loop's counter shows how many turns make a step
_WORK_REHEARSED = (1, 2, 5)
_COMMUNICATION_AT = 10  # the framework times the first ten steps
_LAST_PLANNED = 13
# The waiting for a core is read no more often than this: sums are what counts, and reading it is
# the dearest part of a fast step. It is read before the step is recorded: a step in which much
# else happened, the first of an epoch say, has its own waiting, and the next one does not.
_PERIOD_NS = 20_000_000
_ORDERS_NS = 100_000_000
_RANK_BACKWARD = fmt.CLOCK_RANK[fmt.CLOCK_BACKWARD]


class Control:
    """The profiler's orders to this process: go on, stop, or let go.

    Notes
    -----
    A profiler that was killed cannot ask for anything any more: when its heartbeat is older than
    a minute the hooks let go, so that a long training run neither pays nor fills the disk. The
    descriptor stays open over forks; it is only ever read at a position.
    """

    _DEAD_NS = 60_000_000_000

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, fmt.CONTROL_FILE)
        self._file: OwnFile | None = None
        self.action = 0
        self.from_step = fmt.NEVER

    def poll(self) -> None:
        """Read what is wanted."""
        try:
            if self._file is None:
                self._file = OwnFile(self._path)
            payload = os.pread(self._file.number(), fmt.CONTROL_PAYLOAD.size, 0)
            action, from_step, beat_ns = fmt.CONTROL_PAYLOAD.unpack(payload)
        except Exception:  # gone or torn: nobody is asking
            action, from_step, beat_ns = fmt.ACTION_DETACH, 1, time.monotonic_ns()
        if time.monotonic_ns() - beat_ns > self._DEAD_NS:
            action, from_step = fmt.ACTION_DETACH, 1
        self.action, self.from_step = action, from_step or fmt.NEVER


class Chores:
    """Everything between steps that is not counting them.

    Attributes
    ----------
    due_step : int
        Below this step something may be due by count; every step where a device is timed.
    """

    def __init__(self, state: ProcessState, folder: str) -> None:
        self.control = Control(folder)
        self.due_ns = 0
        self.due_step = _LAST_PLANNED
        self.delay_ns = 0
        self.routing = RouterHooks(state)
        self.updates = UpdateTimer()
        self._state = state
        self._delay = state.loaders.delay
        self._device_clock = DeviceClock(state.writer)
        self._next_orders_ns = 0
        self._deep_wanted = self._deep_plan()
        self._deep_delay_ns = self._deep_spent_ns = self._deep_begin = 0

    def run(self, now_ns: int) -> None:
        """Do what is due after a step."""
        state = self._state
        was_traced = state.deep is not None
        self.end_deep()
        self.due_ns = now_ns + _PERIOD_NS
        if now_ns >= self._next_orders_ns:
            self._next_orders_ns = now_ns + _ORDERS_NS
            self.control.poll()
            state.last_step = self.control.from_step
        if self._delay.pool_is_due(now_ns):
            delay = self._delay
            times = time.monotonic_ns(), delay.read_pool(), delay.main_ns(), delay.others_ns
            state.writer.write(fmt.POOL, fmt.POOL_PAYLOAD.pack(*times, delay.main_cpu_ns()))
        if self.routing.is_found:
            self.routing.tick(now_ns)
        self.record_communication(now_ns)
        # Passes of an accumulated step come before the optimizer's first: they are no steps.
        is_early = state.clock == fmt.CLOCK_BACKWARD and state.optimizers.is_waited_for
        if state.clock != fmt.CLOCK_LOADER and not is_early:
            self._by_count(state.steps, was_traced)
            if state.rehearsal is None:
                self._time_updates(state.steps)
            else:
                self.end_rehearsal(state.steps)

    def end_rehearsal(self, step: int) -> None:
        """Stop the script where enough of it has been rehearsed."""
        state = self._state
        has_traced = state.deep is None and not self._deep_wanted
        if state.rehearsal.is_over(step, has_traced=has_traced):
            self.control.action, state.last_step = fmt.ACTION_STOP, step

    def record_communication(self, now_ns: int, *, is_last: bool = False) -> None:
        """Record what training together has cost, where this process does."""
        state = self._state
        if state.is_together:
            with state.guarded("communication"):
                delay_ns, model = self._delay.main_ns(), state.data_parallel
                state.communication.record(now_ns, delay_ns, state.steps, model, is_last)

    def _by_count(self, step: int, was_traced: bool) -> None:
        torch = sys.modules.get("torch")
        is_timed = self._state.rehearsal is None
        if is_timed and torch is not None and torch.cuda.is_initialized():
            self.due_step = sys.maxsize
            if not was_traced:
                self._device_clock.tick(torch, step)
        work_at = _WORK_AT if self._state.rehearsal is None else _WORK_REHEARSED
        if step == work_at[0]:
            self._describe(torch)
        if step in work_at:
            self._find_work(step)
            self._state.loaders.flush()
        if step == _COMMUNICATION_AT:
            self._describe_communication()
        since_ns = time.monotonic_ns() - (self._state.optimizer_made_ns or time.monotonic_ns())
        if step == 1 and is_timed and since_ns > _SLOW_NS:
            self._deep_wanted = [1, *self._deep_wanted]
        is_torch = self._state.rank >= _RANK_BACKWARD  # a round of another framework shows nothing
        if is_torch and self._deep_wanted and step >= self._deep_wanted[0]:
            self._begin_deep(torch)

    def _describe(self, torch: Any) -> None:
        state = self._state
        lineage.begin_training()
        if torch is not None:
            # Asking whether there could be a device would break the script's forks.
            devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
            state.fact(
                "torch",
                version=str(torch.__version__),
                threads=torch.get_num_threads(),
                cuda=[torch.cuda.get_device_name(index) for index in range(devices)],
            )
        state.fact("optimizers", optimizers=state.optimizers.facts())
        from .trace import device_choice

        with state.guarded("told"):
            state.fact("told", **device_choice.facts(state.switches, sys._getframe()))
        state.fact("limits", **facts(torch, state.threads_called, state.is_rank))

    def look_again(self) -> None:
        """Look at the loops once more at the last step: do they turn as they should."""
        if self._state.steps > _WORK_AT[-1]:
            self._find_work(self._state.steps)

    def _find_work(self, step: int) -> None:
        from .trace import frames

        state = self._state
        try:
            found = frames.find(sys._getframe())
            told = {**frames.named_lengths(sys._getframe()), **state.arguments}
        except Exception as error:
            state.failed("total work", error)
            return
        state.fact("work", step=step, candidates=found, arguments=told)

    def _time_updates(self, step: int) -> None:
        state = self._state
        if state.clock == fmt.CLOCK_OPTIMIZER:
            times = self.updates.run(step)
            if times:
                state.fact("updates", ns=times)

    def _describe_communication(self) -> None:
        reference = self._state.data_parallel
        module = None if reference is None else reference()
        if module is not None:
            data = module._get_ddp_logging_data()
            self._state.fact("ddp", **{key: value for key, value in data.items() if value != ""})

    def _begin_deep(self, torch: Any) -> None:
        if torch is None or threading.current_thread() is not threading.main_thread():
            return
        if torch.autograd._profiler_enabled():  # later: the script's own trace stays its own
            return
        from .trace.deep import DeepTrace

        self._deep_wanted.pop(0)

        state = self._state
        self._deep_delay_ns = self._delay.main_ns()
        mode = None
        if state.rehearsal is not None:
            mode = state.rehearsal.mode
            state.rehearsal.step_begins()
        self._deep_begin = state.steps
        state.deep = DeepTrace.begin(state.optimizers, state.loaders, state.failed, mode)

    def begin_anew(self) -> None:
        """Do again what is done in the first steps: those before were parts of steps."""
        self.end_deep()
        self.updates.close()
        self.due_step = max(self.due_step, _LAST_PLANNED)
        self._deep_wanted = self._deep_plan()

    def _deep_plan(self) -> list[int]:
        is_rehearsed = self._state.rehearsal is not None
        return list(_DEEP_REHEARSED if is_rehearsed else _DEEP_AFTER)

    def end_deep(self) -> None:
        """Close a traced step, if one is open, and record it."""
        state = self._state
        deep, state.deep = state.deep, None
        if deep is None:
            return
        begin_ns = time.monotonic_ns()
        delay_ns = self._delay.main_ns() - self._deep_delay_ns
        facts = deep.end()
        if state.rehearsal is not None and facts is not None:
            facts["is_compiled"] |= state.rehearsal.compiles
            if state.rehearsal.mode.is_least:
                is_whole = state.steps > self._deep_begin
                state.rehearsal.least_ended(facts["operators"] if is_whole else None)
                return
            state.rehearsal.step_ended(deep.parameters, state.optimizers.states())
            if state.rehearsal.mode.is_least:
                self._deep_wanted.append(state.steps)
        if facts is not None:
            state.fact("deep_step", number=state.steps, delay_ns=delay_ns, **facts)
            self._deep_spent_ns += facts["duration_ns"] + time.monotonic_ns() - begin_ns
            if self._deep_spent_ns > _DEEP_BUDGET_NS:
                self._deep_wanted.clear()
            if not facts["is_compiled"]:  # a hook would have its graphs compiled again
                self.routing.find(deep.roots)
