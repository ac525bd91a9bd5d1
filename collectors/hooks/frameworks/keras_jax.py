"""Steps of JAX and Keras: jitted updates, batches of ``fit`` and ``train_on_batch``.

A JAX update hands its result to its own next call (``state = update(state, batch)``), or applies
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
from typing import Any

from .. import format as fmt
from ..optimizers import Optimizers
from ..trace.frames import _forget
from .rounds import RoundCounter, after, around, limited_threads, replace

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
            with self._rounds.session.guarded("jitted call"):
                self._called(seen, result)
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


def _wait(*arrays: Any) -> None:
    """Wait for the first of the arrays that has not been donated in between."""
    for wait in (getattr(one, "block_until_ready", None) for one in arrays):
        if wait is not None:
            try:
                wait()
            except Exception:  # donated
                continue
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
            with rounds.session.guarded("optax"):
                _made[-1].applied(result, sys._getframe(1))
        return result

    replace(rounds.session, module, "apply_updates", apply_updates)


_KERAS = "Keras"


def trainer(rounds: RoundCounter, module: Any) -> None:
    """See ``fit`` begin and end, and count the calls of ``train_on_batch``."""
    owner = next(
        one
        for name, one in vars(module).items()
        if name.endswith("Trainer") and one.__module__ == module.__name__
    )
    around(rounds, owner, "fit", _KERAS)
    after(rounds, owner, "train_on_batch", _KERAS)


def callbacks(rounds: RoundCounter, module: Any) -> None:
    """Count batches where ``fit`` reports them to its callbacks."""
    owner = module.CallbackList
    begin, epoch_begin, batch_end = (
        owner.on_train_begin, owner.on_epoch_begin, owner.on_train_batch_end,
    )  # fmt: skip
    fit = types.SimpleNamespace(batch=0, seen=0, behind=None)

    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        try:
            iterator = frame.f_locals.get("epoch_iterator")
            fit.batch = _batch(iterator)
            told = dict(self.params or {}), dict(frame.f_locals)
            rounds.tell("batch", lambda: _fit_facts(self, fit.batch, *told))
        except Exception as error:
            rounds.session.failed("Keras fit", error)
        finally:
            _forget(frame)
        return begin(self, *args, **kwargs)

    def on_epoch_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        fit.seen, fit.behind = 0, None
        rounds.new_pass()
        return epoch_begin(self, *args, **kwargs)

    def on_train_batch_end(self: Any, batch: Any, logs: Any = None) -> Any:
        # The batch before the one just handed over: JAX returns before it has computed. So ticks
        # have the pace of the computation, while one batch stays queued behind another.
        _wait(*(fit.behind.values() if isinstance(fit.behind, dict) else ()))
        fit.behind = logs
        done, fit.seen = int(batch) + 1 - fit.seen, int(batch) + 1
        rounds.done(_KERAS, done, fit.batch)
        return batch_end(self, batch, logs)

    replace(rounds.session, owner, "on_train_begin", on_train_begin)
    replace(rounds.session, owner, "on_epoch_begin", on_epoch_begin)
    replace(rounds.session, owner, "on_train_batch_end", on_train_batch_end)


def _batch(iterator: Any) -> int:
    batch = getattr(getattr(iterator, "data_adapter", None), "batch_size", None)
    return batch if isinstance(batch, int) else 0


def _fit_facts(
    seen: Any, batch: int, params: dict[str, Any], variables: dict[str, Any]
) -> dict[str, Any]:
    epochs, first = params.get("epochs"), variables.get("initial_epoch") or 0
    per_epoch = variables.get("steps_per_epoch") or params.get("steps")
    left = epochs - first if isinstance(epochs, int) else None
    per_epoch = per_epoch if isinstance(per_epoch, int) else None
    stops = any("EarlyStopping" in type(one).__name__ for one in seen.callbacks)
    adapter = getattr(variables.get("epoch_iterator"), "data_adapter", None)
    return {
        "rounds": None if left is None or per_epoch is None else left * per_epoch,
        "epochs": left,
        "per_epoch": per_epoch,
        "may_end_early": stops,
        "cores": limited_threads(),
        "batch": batch or None,
        "samples": getattr(adapter, "_num_samples", None),
        "device": "cpu",
    }
