"""Chores between two steps, each as seldom as it can be: a step pays for little."""

from __future__ import annotations

import sys
import threading
import time

from . import format as fmt
from . import limits, lineage
from .control import Control
from .device_clock import DeviceClock
from .routing import RouterHooks
from .updates import UpdateTimer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import ProcessState

# The steps after which a step is traced. The first two create optimizer state and compile; a
# repetition lets the least time of an operator count, since a busy machine only adds. A step of
# many small operators (LBFGS evaluates its loss twenty times) takes seconds to trace, and as many
# ordinary steps are not seen: none is traced again once so much has been spent.
_DEEP_AFTER = (2, 5, 8)
_DEEP_BUDGET_NS = 1_000_000_000
_WORK_AT = (2, 5, 12)  # again: a loop's counter shows how many turns make a step
_COMMUNICATION_AT = 10  # the framework times the first ten steps
_LAST_PLANNED = 13
# The waiting for a core is read no more often than this: sums are what counts, and reading it is
# the dearest part of a fast step. It is read before the step is recorded: a step in which much
# else happened, the first of an epoch say, has its own waiting, and the next one does not.
_PERIOD_NS = 20_000_000
_ORDERS_NS = 100_000_000
_RANK_BACKWARD = fmt.CLOCK_RANK[fmt.CLOCK_BACKWARD]


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
        self._deep_wanted = list(_DEEP_AFTER)
        self._deep_delay_ns = self._deep_spent_ns = 0

    def read_delay(self) -> None:
        """Bring ``delay_ns`` up to date."""
        self.delay_ns = self._delay.main_ns()

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
            self._time_updates(state.steps)

    def record_communication(self, now_ns: int, *, is_last: bool = False) -> None:
        """Record what training together has cost, where this process does."""
        state = self._state
        if state.is_together:
            try:
                delay_ns, model = self._delay.main_ns(), state.data_parallel
                state.communication.record(now_ns, delay_ns, state.steps, model, is_last)
            except Exception as error:
                state.failed("communication", error)

    def _by_count(self, step: int, was_traced: bool) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.due_step = sys.maxsize
            if not was_traced:
                self._device_clock.tick(torch, step)
        if step == _WORK_AT[0]:
            self._describe(torch)
        if step in _WORK_AT:
            self._find_work(step)
            self._state.loaders.flush()
        if step == _COMMUNICATION_AT:
            self._describe_communication()
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
        from . import told

        try:
            state.fact("told", **told.facts(state.switches))
        except Exception as error:
            state.failed("told", error)
        state.fact("limits", **limits.facts(torch, state.threads_called, state.is_rank))

    def look_again(self) -> None:
        """Look at the loops once more at the last step: do they turn as they should."""
        if self._state.steps > _WORK_AT[-1]:
            self._find_work(self._state.steps)

    def _find_work(self, step: int) -> None:
        from . import total_work

        state = self._state
        try:
            found = total_work.find(sys._getframe())
        except Exception as error:
            state.failed("total work", error)
            return
        state.fact("work", step=step, candidates=found, arguments=state.arguments)

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
        from .deep import DeepTrace

        self._deep_wanted.pop(0)

        state = self._state
        self._deep_delay_ns = self._delay.main_ns()
        state.deep = DeepTrace.begin(state.optimizers, state.loaders, state.failed)

    def begin_anew(self) -> None:
        """Do again what is done in the first steps: those before were parts of steps."""
        self.end_deep()
        self.updates.close()
        self.due_step = max(self.due_step, _LAST_PLANNED)
        self._deep_wanted = list(_DEEP_AFTER)

    def end_deep(self) -> None:
        """Close a traced step, if one is open, and record it."""
        state = self._state
        deep, state.deep = state.deep, None
        if deep is None:
            return
        begin_ns = time.monotonic_ns()
        delay_ns = self._delay.main_ns() - self._deep_delay_ns
        facts = deep.end()
        if facts is not None:
            state.fact("deep_step", number=state.steps, delay_ns=delay_ns, **facts)
            self._deep_spent_ns += facts["duration_ns"] + time.monotonic_ns() - begin_ns
            if self._deep_spent_ns > _DEEP_BUDGET_NS:
                self._deep_wanted.clear()
            if not facts["is_compiled"]:  # a hook would have its graphs compiled again
                self.routing.find(deep.roots)

    def forget(self) -> None:
        """Open anew what shows the parent after a fork."""
        self._delay.forget()
