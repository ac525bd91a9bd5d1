"""torch's compiler as far as a rehearsal needs it: nothing is compiled, and most is not imported.

Fake tensors read an option of ``torch._dynamo`` and name where they are from, and optimizers ask
it to leave them alone; importing all of it for that takes as long as importing torch. Two of its
modules stand in ``sys.modules`` with these answers alone; whoever asks for anything else has the
whole package imported then.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

_PACKAGE = "torch._dynamo"
_OPTIONS = _PACKAGE + ".config"
_SOURCES = _PACKAGE + ".source"
_NEITHER = ("__file__", "__warningregistry__")  # what importing itself asks of a module


def defer() -> None:
    """Have ``torch._dynamo`` be imported only when more is asked of it than fake tensors do."""
    spec: Any = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        return
    package = _Deferred(_PACKAGE, spec)
    package.disable, package.graph_break, package.reset = _as_it_is, _nothing, _nothing
    sources = _Deferred(_SOURCES, None)
    sources.ConstantSource, sources.RandomValueSource = _sources()
    sys.modules[_PACKAGE], sys.modules[_SOURCES] = package, sources
    try:
        _load_options(package, spec.submodule_search_locations)
    except Exception:  # a torch whose options need the rest
        for name in (_PACKAGE, _SOURCES, _OPTIONS):
            sys.modules.pop(name, None)
        return
    torch: Any = sys.modules["torch"]
    torch._dynamo = package


def _load_options(package: Any, folders: Any) -> None:
    spec: Any = PathFinder.find_spec(_OPTIONS, folders)
    package.config = sys.modules[_OPTIONS] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package.config)


class _Deferred(types.ModuleType):
    """A module of which nothing but what was put here has been imported."""

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, name: str, spec: Any) -> None:
        super().__init__(name)
        self.__spec__ = spec

    def __getattr__(self, name: str) -> Any:
        """Import the whole package: it was asked for something else."""
        is_package = self.__name__ == _PACKAGE
        if (
            self.__dict__.get("is_whole")
            or name in _NEITHER
            or (name == "__path__" and not is_package)
        ):
            raise AttributeError(name)
        if not is_package:
            if sys.modules.get(_SOURCES) is self:
                del sys.modules[_SOURCES]
            return getattr(importlib.import_module(_SOURCES), name)
        self.is_whole = True
        self._become_whole()
        return getattr(self, name)

    def _become_whole(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        if isinstance(sys.modules.get(_SOURCES), _Deferred):
            del sys.modules[_SOURCES]
        self.__loader__, self.__file__ = spec.loader, spec.origin
        self.__path__ = spec.submodule_search_locations or []
        self.__package__ = self.__name__
        spec.loader.exec_module(self)
        self.reset = _nothing  # the real one empties pools of graphs on the device


def _sources() -> tuple[type, type]:
    from torch._guards import Source

    class ConstantSource(Source):
        """Where a tensor is from that no guard will ever ask for."""

        def __init__(self, source_name: str) -> None:
            self.source_name = source_name

        @property
        def _name_template(self) -> str:
            return self.source_name

    class RandomValueSource(Source):
        """What no tensor here is from."""

    return ConstantSource, RandomValueSource


def _as_it_is(fn: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """Return what is given: nothing is compiled."""
    return (lambda one: one) if fn is None else fn


def _nothing(*_: Any, **__: Any) -> None:
    return None
