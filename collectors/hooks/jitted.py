"""Updates by JAX: which jitted function is a training step, and when each of its calls is over.

An update hands its result to its own next call (``state = update(state, batch)``), or applies
optax's updates. Of several such functions one completes a training step, as with optimizers.

JAX returns before it has computed. The tick of a call comes when the call before it is ready: its
pace is the computation's, while one call stays queued behind another, as the script has it.
"""

from __future__ import annotations

import sys
import threading
import time
import types
import weakref

from . import format as fmt
from .optimizers import Optimizers
from .replacing import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rounds import RoundCounter

# Calls after which a function that never got its own result back is no update.
_MOST_LOOKS = 8


class Jitted:
    """A jitted function that says when it is called; in all else the function itself."""

    def __init__(self, function: Any, updates: Updates) -> None:
        self.__dict__.update(getattr(function, "__dict__", {}))
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            try:
                setattr(self, name, getattr(function, name))
            except AttributeError:
                continue
        self.__wrapped__ = getattr(function, "__wrapped__", function)
        self._advisor_function = function
        self._advisor_updates = updates
        self._advisor_seen = Updater()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; the outermost call of an update is a round."""
        updates = self._advisor_updates
        if updates.is_off or updates.here.function is not None:
            return self._advisor_function(*args, **kwargs)
        return updates.call(self, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_advisor_"):
            raise AttributeError(name)
        return getattr(self._advisor_function, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._advisor_function.__reduce_ex__(protocol)

    def __copy__(self) -> Jitted:
        return self

    def __deepcopy__(self, memo: Any) -> Jitted:
        return self


class Updater:
    """What was seen of one function: whether it updates, and the result that it gave last."""

    def __init__(self) -> None:
        self.is_update: bool | None = None  # None: not known yet
        self.looks = 0
        self.first_ns = 0
        self.behind: Any = None  # of the last result, what is waited for
        self.given: dict[int, Any] = {}  # weak references to the last result, by id


class _Here(threading.local):
    """The outermost jitted function that this thread is in."""

    function: Any = None


class Updates:
    """The jitted updates of this process."""

    def __init__(self, rounds: RoundCounter, jax: Any) -> None:
        self._rounds = rounds
        self._leaves = jax.tree_util.tree_leaves
        self._tracer = jax.core.Tracer
        self._updaters = Optimizers()
        self._eager: dict[Any, Updater] = {}
        self.here = _Here()

    @property
    def is_off(self) -> bool:
        """Whether nothing is counted: within Keras it counts, or the hooks are out."""
        return self._rounds.is_inside or self._rounds.session.is_released

    def call(self, jitted: Jitted, args: Any, kwargs: Any) -> Any:
        """Call the outermost jitted function, and count the call if it is an update."""
        seen = jitted._advisor_seen
        if seen.is_update is None and seen.looks:
            self._compare(seen, args, kwargs)
        self.here.function = jitted
        try:
            result = jitted._advisor_function(*args, **kwargs)
        finally:
            self.here.function = None
        if seen.is_update is not False:
            try:
                self._called(seen, result)
            except Exception as error:
                self._rounds.session.failed("jitted call", error)
        return result

    def _compare(self, seen: Updater, args: Any, kwargs: Any) -> None:
        """See whether the function is given back what it returned."""
        given = seen.given
        for leaf in self._leaves((args, kwargs)):
            reference = given.get(id(leaf))
            if reference is not None and reference() is leaf:
                seen.is_update = True
                seen.given = {}
                self._count(seen, seen.first_ns)
                return
        if seen.looks >= _MOST_LOOKS:
            seen.is_update, seen.given, seen.behind = False, {}, None

    def _called(self, seen: Updater, result: Any) -> None:
        leaves = [leaf for leaf in self._leaves(result) if hasattr(leaf, "block_until_ready")]
        if not leaves or any(isinstance(leaf, self._tracer) for leaf in leaves):
            return
        if seen.is_update is None:
            seen.looks += 1
            seen.first_ns = seen.first_ns or time.monotonic_ns()
            seen.given = {id(leaf): weakref.ref(leaf) for leaf in leaves}
            return
        before, seen.behind = seen.behind, leaves[-1]
        _wait(leaves[-1] if before is not None and before.is_deleted() else before)
        self._count(seen, time.monotonic_ns())

    def _count(self, seen: Updater, at_ns: int) -> None:
        self._rounds.name("JAX", "update")
        number, flags = self._updaters.stepped(seen)
        self._rounds.session.round_ended(fmt.CLOCK_ROUND, at_ns, 0, number, flags)

    def applied(self, result: Any, frame: Any) -> None:
        """Take in that optax applied updates: now, or in the function that is being traced."""
        function = self.here.function
        if function is not None:
            seen = function._advisor_seen
            seen.is_update, seen.given = True, {}
        elif not self.is_off:
            place = (frame.f_code, frame.f_lineno)
            seen = self._eager.get(place)
            if seen is None:
                seen = self._eager[place] = Updater()
                seen.is_update = True
            self._called(seen, result)


def _wait(array: Any) -> None:
    if array is not None:
        try:
            array.block_until_ready()
        except Exception:  # donated in between
            return


_made: list[Updates] = []


def jax(rounds: RoundCounter, module: Any) -> None:
    """Have ``jit`` and ``pmap`` return functions that say when they are called."""
    updates = Updates(rounds, module)
    _made.append(updates)
    for name in ("jit", "pmap"):  # a mapped function is compiled too, one for all devices
        _see_made_by(rounds, module, name, updates)


def _see_made_by(rounds: RoundCounter, module: Any, name: str, updates: Updates) -> None:
    original = getattr(module, name)

    def made(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if hasattr(result, "lower"):
            return Jitted(result, updates)
        if not args and callable(result):  # jit(static_argnums=...): a decorator
            return lambda function: Jitted(result(function), updates)
        return result

    replace(rounds.session, module, name, made)


def optax(rounds: RoundCounter, module: Any) -> None:
    """See optax apply updates."""
    original = module.apply_updates

    def apply_updates(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _made:
            try:
                _made[-1].applied(result, sys._getframe(1))
            except Exception as error:
                rounds.session.failed("optax", error)
        return result

    replace(rounds.session, module, "apply_updates", apply_updates)
