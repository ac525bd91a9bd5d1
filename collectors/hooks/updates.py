"""Times of optimizers' updates in ordinary steps, with the Python between operators.

A traced step tells what its operators took, and an update of many small tensors is mostly what
happens between them: PyTorch's loop over parameters. So a few steps after the traced ones are
timed from the begin of each ``Optimizer.step`` to its end.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Training steps that are timed, after the last traced one and before steps are only noted.
FIRST, LAST = 10, 13


class UpdateTimer:
    """The updates of a few training steps of one process."""

    def __init__(self) -> None:
        self.is_open = False
        self._handle: Any = None
        self._begin_ns = self._spent_ns = 0
        self._steps: list[int] = []

    def run(self, step: int) -> list[int] | None:
        """Take in the end of a training step; return all times [ns] after the last one."""
        if not self.is_open:
            self.close()
            if step == FIRST - 1:
                self._open()
            return None
        self._steps.append(self._spent_ns)
        self._spent_ns = 0
        if step < LAST:
            return None
        self.close()
        return self._steps

    def ended(self) -> None:
        """Note the end of an update."""
        if self._begin_ns:
            self._spent_ns += time.perf_counter_ns() - self._begin_ns
        self._begin_ns = 0

    def close(self) -> None:
        """Time no updates any more."""
        self.is_open = False
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()  # a pre-hook, removed where no pre-hooks run: after the step

    def _open(self) -> None:
        from torch.optim import optimizer

        self._steps, self._spent_ns, self._begin_ns = [], 0, 0
        self._handle = optimizer.register_optimizer_step_pre_hook(self._begins)
        self.is_open = True

    def _begins(self, _: Any, args: Any, kwargs: Any) -> None:
        """Note the begin of an update; one that evaluates the loss itself is more than that."""
        if any(callable(one) for one in (*args[1:], *kwargs.values())):
            self.is_open = False
        # One that calls another's, as a subclass does, has begun before.
        self._begin_ns = self._begin_ns or time.perf_counter_ns()
