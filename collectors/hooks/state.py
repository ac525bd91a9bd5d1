"""The counters and facts of one process that all hooks share."""

from __future__ import annotations

import os

from . import format as fmt
from .communication import Communication
from .loaders import Loaders
from .optimizers import Optimizers
from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Guard:
    """The block of ``ProcessState.guarded``."""

    __slots__ = ("_state", "_where")

    def __init__(self, state: ProcessState, where: str) -> None:
        self._state, self._where = state, where

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: Any, __: Any) -> bool:
        if isinstance(error, Exception):
            self._state.failed(self._where, error)
        return isinstance(error, Exception)


class ProcessState:
    """Counters of this process and the file that they are written to.

    Attributes
    ----------
    arguments : dict of float
        The numbers among the parsed arguments that may say how long the job is.
    clock, rank, steps : int
        The leading clock, its rank, and the training steps it completed.
    threads_called : int or None
        What the script's main thread last passed to ``torch.set_num_threads``.
    last_step : int
        After which the profiler wants the script to stop, or to be let go.
    """

    def __init__(self, folder: str) -> None:
        self.writer = Writer(folder)
        self.loaders = Loaders(self.writer)
        self.optimizers = Optimizers()
        self.arguments: dict[str, float] = {}
        self.switches: dict[str, Any] = {}
        self.data_parallel: Any = None
        self.communication = Communication(self.writer)
        self.is_together = False
        self.deep: Any = None
        self.rehearsal: Any = None
        self.wants: Any = None
        self.on_exit: list[Callable[[], None]] = []
        self.clock = self.rank = -1
        self.steps = 0
        self.backwards = 0
        self.optimizer_made_ns = 0  # when the last one was
        self.threads_called: int | None = None
        self.is_rank = fmt.WRAP_VARIABLE in os.environ
        self.last_step = fmt.NEVER
        self.is_released = False
        self._failures: set[str] = set()

    def fact(self, name: str, **values: Any) -> None:
        """Record a named fact."""
        if not self.is_released:
            self.writer.fact(name, **values)

    def guarded(self, where: str) -> _Guard:
        """Return a block out of which no exception of ours gets: it is noted."""
        return _Guard(self, where)

    def failed(self, where: str, error: BaseException) -> None:
        """Note, once a place, that the hooks went wrong there."""
        if where not in self._failures:
            self._failures.add(where)
            self.writer.fact("failure", where=where, error=repr(error)[:500])
