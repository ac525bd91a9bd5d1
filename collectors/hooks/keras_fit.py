"""Keras ``fit`` and ``train_on_batch`` on any backend: batches are the steps."""

from __future__ import annotations

import sys

from .replacing import replace
from .rounds import after, limited_threads
from .total_work import _forget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rounds import RoundCounter

_KIND = "Keras"


class _Progress:
    """The fit that is running: its batch size, and where its epoch is."""

    __slots__ = ("batch", "behind", "seen")

    def __init__(self) -> None:
        self.batch = 0
        self.seen = 0
        self.behind: Any = None


def trainer(rounds: RoundCounter, module: Any) -> None:
    """See ``fit`` begin and end, and count the calls of ``train_on_batch``."""
    owner = next(
        one
        for name, one in vars(module).items()
        if name.endswith("Trainer") and one.__module__ == module.__name__
    )
    original = owner.fit

    def fit(*args: Any, **kwargs: Any) -> Any:
        loop = rounds.begin(_KIND)
        try:
            return original(*args, **kwargs)
        finally:
            rounds.end(loop)

    replace(rounds.session, owner, "fit", fit)
    after(rounds, owner, "train_on_batch", _KIND)


def callbacks(rounds: RoundCounter, module: Any) -> None:
    """Count batches where ``fit`` reports them to its callbacks."""
    owner = module.CallbackList
    begin, epoch_begin, batch_end = (
        owner.on_train_begin, owner.on_epoch_begin, owner.on_train_batch_end,
    )  # fmt: skip
    fit = _Progress()

    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        try:
            iterator = frame.f_locals.get("epoch_iterator")
            fit.batch = _batch(iterator)
            told = dict(self.params or {}), dict(frame.f_locals)
            rounds.tell("batch", lambda: _facts(self, fit.batch, *told))
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
        _wait(fit.behind)
        fit.behind = logs
        done, fit.seen = int(batch) + 1 - fit.seen, int(batch) + 1
        rounds.done(_KIND, done, fit.batch)
        return batch_end(self, batch, logs)

    replace(rounds.session, owner, "on_train_begin", on_train_begin)
    replace(rounds.session, owner, "on_epoch_begin", on_epoch_begin)
    replace(rounds.session, owner, "on_train_batch_end", on_train_batch_end)


def _wait(logs: Any) -> None:
    """Wait for the batch before the one just handed over: JAX returns before it has computed.

    So the ticks have the pace of the computation, while one batch stays queued behind another.
    """
    for value in logs.values() if isinstance(logs, dict) else ():
        wait = getattr(value, "block_until_ready", None)
        if wait is not None:
            try:
                wait()
            except Exception:  # donated since
                continue
            return


def _batch(iterator: Any) -> int:
    batch = getattr(getattr(iterator, "data_adapter", None), "batch_size", None)
    return batch if isinstance(batch, int) else 0


def _facts(
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
