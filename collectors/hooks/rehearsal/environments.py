"""The time that environments of reinforcement learning take: no part of a rehearsed step.

Classes of ``gymnasium`` and ``gym`` have their ``step`` timed as they are made, wrappers and
vectors of environments as one: only the outermost counts.
"""

from __future__ import annotations

import functools
import time
from typing import Any

_spent = [0.0]
_depth = [0]


def spent_s() -> float:
    """Return what steps of environments have taken so far [s]."""
    return _spent[0]


def time_steps(module: Any) -> None:
    """Have environments of a library be timed from their class on."""
    for name in ("Env", "VectorEnv"):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            _time_subclasses(kind)


def _time_subclasses(kind: Any) -> None:
    def made(cls: Any, **named: Any) -> None:
        super(kind, cls).__init_subclass__(**named)
        own = cls.__dict__.get("step")
        if own is not None:
            cls.step = _timed(own)

    subclass: Any = made
    kind.__init_subclass__ = classmethod(subclass)


def _timed(step: Any) -> Any:
    @functools.wraps(step)
    def timed(*args: Any, **named: Any) -> Any:
        _depth[0] += 1
        begin_s = time.perf_counter()
        try:
            return step(*args, **named)
        finally:
            _depth[0] -= 1
            if not _depth[0]:
                _spent[0] += time.perf_counter() - begin_s

    return timed
