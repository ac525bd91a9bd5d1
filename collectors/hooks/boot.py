"""The start of the hooks in a Python process: they wait for the modules worth hooking.

Nothing is imported early: a finder in front of the others lets the script's own import happen and
patches the module right after it. A script that never imports torch is left as it is.
"""

from __future__ import annotations

import os
import sys

from . import ending, patches
from . import format as fmt
from .wants import Wants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


_sessions: list[Any] = []

# Who imports these is going to make steps: the profiler waits for the first of them.
_STEPS_TO_COME = ("torch", "jax", "keras", "advisor.collectors.marker")


def start(folder: str) -> Any:
    """Open this process's part of the recording in ``folder`` and return it; once per process."""
    if _sessions:
        return _sessions[0]
    from .session import Session

    Wants.begin_at_once()
    session = Session(folder)
    _sessions.append(session)
    ending.watch(session)
    session.writer.hello()  # the profiler is to know of a rehearsal before its shim is compiled
    session.rehearse(_rehearsal(session))
    if session.rehearsal is None:
        session.wants = Wants.watch(session)
    waiting = dict(patches.of(session))
    if session.rehearsal is not None:
        from .rehearsal import stubs

        waiting.update(stubs.CHANGED)
    for name in [name for name in waiting if name in sys.modules]:
        _guarded(waiting.pop(name), session)(sys.modules[name])
    guarded = {name: _guarded(patch, session) for name, patch in waiting.items()}
    sys.meta_path.insert(0, _Finder(session, guarded))
    return session


def _rehearsal(session: Any) -> Any:
    """Return the rehearsal of this process; None where its script is recorded."""
    if not fmt.is_rehearsed():
        return None
    from .rehearsal import start

    return start.begin(session, os.environ[fmt.REHEARSAL])


def _guarded(patch: Callable[[ModuleType], None], session: Any) -> Callable[[ModuleType], None]:
    """Return ``patch`` such that a change in a library's inside costs a fact, not the script."""

    def apply(module: ModuleType) -> None:
        try:
            patch(module)
        except Exception as error:
            session.failed("patch " + module.__name__, error)

    return apply


class _Finder:
    """Finds nothing itself; has the true loader call a patch once it has run the module."""

    def __init__(self, session: Any, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._session = session
        self._waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders give, its loader wrapped."""
        if name not in self._waiting and name not in _STEPS_TO_COME:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                try:
                    self._shadow(spec.loader, name)
                except Exception as error:  # a loader of somebody's own that cannot be changed
                    self._session.failed("import " + name, error)
                return spec  # type: ignore[no-any-return]
        return None

    def _shadow(self, loader: Any, name: str) -> None:
        # The method of this one loader is shadowed, not the loader replaced: ``inspect`` and
        # ``importlib.resources`` look at the loader's type. A spec may be asked for without an
        # import to follow, so what is waiting goes on waiting until the module runs.
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if name in _STEPS_TO_COME:
                self._session.fact("framework", framework=name)
            rehearsal = self._session.rehearsal if name == "torch" else None
            if rehearsal is not None:
                rehearsal.before_torch()
            original(module)
            if rehearsal is not None:
                rehearsal.after_torch(module)
            patch = self._waiting.pop(name, None)
            if patch is not None:
                patch(module)

        loader.exec_module = exec_module
