"""Squared norms of gradients of one pass and of a whole step: what the noise scale is made of.

A pass of one process sees the fewest samples, the gradient that is applied the most. Both stand
side by side where a step accumulates several passes, or several ranks average: then the two norms
tell how noisy a gradient is (``planners/systems/gradient_noise.py``). In sampled steps they are
taken:

- the first pass: of what it left in ``.grad``; under DistributedDataParallel, which exchanges
  before the pass is over, by hooks on the parameters that are there for this step alone;
- the last pass: of ``.grad``, before anybody clips it.

Gradients are read and never changed. Values stay on their device until some are there.
"""

from __future__ import annotations

import sys
import time

from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .state import ProcessState


# Taking norms may take this share of the time, in time of the main thread's own: neighbours that
# make it wait for a core are no cost of ours.
_SHARE = 2.5e-3
_PERIOD_NS = 50_000_000
_AT_ONCE = 32
# Gradients of the very first steps are like no others; until then other things are due, too.
_FIRST = 13
# A step of one pass in one process has one norm only: so often it is looked whether it stays so.
_LOOKS = 3


class GradientSampler:
    """The norms of the sampled steps of one process."""

    def __init__(self, state: ProcessState) -> None:
        self.is_open = self.is_wrapped = False
        self._state = state
        self._is_off = False
        self._due_ns = self._took_ns = 0
        self._looks = _LOOKS
        self._parameters: list[Any] = []
        self._handles: list[Any] = []
        self._locals: list[Any] = []
        self._first: Any = None
        self._last: Any = None
        self._passes = self._measured_at = 0
        self._expected = 1
        self._taken: list[tuple[int, Any, Any]] = []

    def run(self, now_ns: int) -> None:
        """Sample the next step, if it is time to."""
        state = self._state
        is_early = state.steps < _FIRST or now_ns < self._due_ns
        if self._is_off or self.is_open or is_early:
            return
        self._took_ns = 0
        try:
            if not self._may_begin():
                return
            self._passes = self._measured_at = 0
            self._first = self._last = None
            self._locals = []
            if state.data_parallel is not None and not self.is_wrapped:
                self._handles = [
                    one.register_hook(self._local) for one in self._parameters if one.requires_grad
                ]
            self.is_open = True
        except Exception as error:
            self._give_up(error)

    def pass_ended(self) -> None:
        """Take the norm of what a backward pass left, if it is the first or the last."""
        self._passes += 1
        begin_ns = time.thread_time_ns()
        try:
            self._remove()
            is_first, is_last = self._passes == 1, self._passes >= self._expected
            if is_first or (is_last and not self.is_wrapped):
                norm2 = self._norm2([one.grad for one in self._parameters])
                if is_first:
                    self._first = self._sum(self._locals) if self._locals else norm2
                if not self.is_wrapped:
                    self._last, self._measured_at = norm2, self._passes
        except Exception as error:
            self._give_up(error)
        self._took_ns += time.thread_time_ns() - begin_ns

    def exchanged(self) -> None:
        """Take the norm of what the profiler averaged over its ranks after a pass."""
        begin_ns = time.thread_time_ns()
        try:
            if self._passes >= self._expected:
                self._last = self._norm2([one.grad for one in self._parameters])
                self._measured_at = self._passes
        except Exception as error:
            self._give_up(error)
        self._took_ns += time.thread_time_ns() - begin_ns

    def step_ended(self) -> None:
        """Keep what the step has shown."""
        self.is_open = False
        self._remove()
        passes, now_ns = self._passes, time.monotonic_ns()
        self._due_ns = now_ns + max(_PERIOD_NS, int(self._took_ns / _SHARE))
        has_two = passes > 1 or self._state.data_parallel is not None or self.is_wrapped
        if not has_two:
            self._looks -= 1
            self._is_off |= self._looks <= 0
        elif passes and self._measured_at == passes and self._first is not None:
            self._looks = _LOOKS
            self._taken.append((passes, self._first, self._last))
            if len(self._taken) >= _AT_ONCE:
                self.write()
        else:  # more or fewer passes than before: the next step is sampled with these
            self._due_ns = 0
        self._expected = max(passes, 1)
        self._first = self._last = None

    def write(self) -> None:
        """Record the norms taken so far: passes of the step, first norm, last norm, squared."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        try:
            torch = sys.modules["torch"]
            with torch.no_grad():
                values = torch.stack([one for _, *both in taken for one in both]).tolist()
            rows = zip([passes for passes, _, _ in taken], values[::2], values[1::2])
            self._state.fact("gradient_norms", rows=[list(row) for row in rows])
        except Exception as error:
            self._give_up(error)

    def close(self) -> None:
        """Leave the step that is under way alone, and record what is there."""
        self.is_open = False
        self._remove()
        self.write()

    def forget(self) -> None:
        """Leave what was taken to the parent, after a fork."""
        self.is_open = False
        self._taken, self._is_off = [], True

    def _may_begin(self) -> bool:
        """Whether two norms can be had of the next step."""
        state, torch = self._state, sys.modules.get("torch")
        if torch is None or state.deep is not None or state.clock != fmt.CLOCK_OPTIMIZER:
            return False
        optimizers = state.optimizers.alive()
        if len(optimizers) != 1 or type(optimizers[0]).__name__ == "LBFGS":
            self._is_off = True  # several losses of several models: no parts of one gradient
            return False
        is_shared = state.is_together and not self.is_wrapped
        if is_shared and (state.data_parallel is None or is_compiled()):
            self._is_off = True  # sharded, or exchanged by others; hooks would compile anew
            return False
        self._parameters = state.optimizers.parameters()
        self._is_off = len({one.device for one in self._parameters}) != 1
        return not self._is_off

    def _local(self, gradient: Any) -> None:
        """Note a gradient before it is exchanged; this is torch's hook itself."""
        begin_ns = time.thread_time_ns()
        try:
            self._locals.append(self._norm2([gradient]))
        except Exception as error:
            self._give_up(error)
        self._took_ns += time.thread_time_ns() - begin_ns

    def _norm2(self, gradients: list[Any]) -> Any:
        torch = sys.modules["torch"]
        with torch.no_grad():
            there = [one.detach() for one in gradients if one is not None]
            if any(one.layout is not torch.strided for one in there):
                raise TypeError("sparse gradients")
            if hasattr(torch, "_foreach_norm") and len({one.dtype for one in there}) == 1:
                norms = torch._foreach_norm(there, 2)
            else:
                norms = [torch.linalg.vector_norm(one) for one in there]
            return torch.stack([one.float() for one in norms]).square().sum()

    def _sum(self, values: list[Any]) -> Any:
        torch = sys.modules["torch"]
        with torch.no_grad():
            return torch.stack(values).sum()

    def _remove(self) -> None:
        handles, self._handles = self._handles, []
        for one in handles:
            one.remove()

    def _give_up(self, error: Exception) -> None:
        """Take no norms any more: what a script's tensors cannot do is no failure of its own."""
        self._is_off, self.is_open = True, False
        self._taken = []
        self._remove()
        self._state.fact("gradient_norms", why=repr(error)[:200])


def is_compiled() -> bool:
    """Whether torch.compile has made graphs in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"]["unique_graphs"] > 0
