"""Steps of frameworks without torch's optimizers: boosting rounds, Keras batches, whole fits.

A framework's own training loop says when it begins, how many rounds it is going to make where it
knows, and when each of them is over. Loops may be nested (a search fits estimators that boost):
the outermost one counts, all others inside it are part of its rounds.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time

from .. import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..session import Session

# Facts on more fits than this would tell nothing new; what stands around a call is read so often.
_MOST_FITS = 200
_MOST_LOOKS = 3


class RunningFit:
    """A framework's training loop that is running: its kind, and the rounds it made so far."""

    __slots__ = ("is_told", "kind", "number", "rounds")

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.number = number
        self.rounds = 0
        self.is_told = False


class RoundCounter:
    """The training loops of this process.

    Notes
    -----
    Rounds may end in several threads at once, hence the lock. A worker process of joblib's or of a
    pool computes part of its parent's rounds: in it nothing is counted.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.RLock()
        self._outermost: RunningFit | None = None
        self._fits = 0
        self._looks: dict[str, int] = {}
        self._repeated: dict[str, bool] = {}
        self._last_ns = 0
        self.finished = self.fits_running = 0
        self._named = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is counted here: the hooks are out, or this is somebody's worker."""
        return self.session.is_released or _is_worker()

    @property
    def is_inside(self) -> bool:
        """Whether a training loop is running."""
        return self._outermost is not None

    def begin(self, kind: str, *, is_pass: bool = True) -> RunningFit | None:
        """Note that a training loop begins; None if it is a part of another, or nobody counts.

        ``is_pass``: whether the first round of a second loop has more in it than a round; True by
        default.
        """
        if self._outermost is not None or self.is_idle:
            return None
        with self._lock:
            if self._outermost is not None:
                return None
            loop = self._outermost = RunningFit(kind, self._fits)
            self._fits += 1
        if loop.number and is_pass:
            self.new_pass()
        self._last_ns = time.monotonic_ns()
        return loop

    def tell(self, unit: str, describe: Callable[[], dict[str, Any]]) -> None:
        """Record what is known of the loop that has just begun.

        Parameters
        ----------
        describe : callable
            Returns facts: ``rounds`` (None: unknown), ``may_end_early``, ``cores`` (that it may
            use; None: all), ``batch`` and ``samples``. [cores], [samples]
        """
        loop = self._outermost
        if loop is None or loop.number >= _MOST_FITS or self.is_idle:
            return
        loop.is_told = True
        with self.session.guarded("fit of " + loop.kind):
            from ..trace import frames

            frame = sys._getframe(1)
            where = frames.of_user(frame)
            looks = self._looks[where] = self._looks.get(where, 0) + 1
            loops = frames.user_loops(frame) if looks <= _MOST_LOOKS else None
            self.session.fact(
                "fit", number=loop.number, kind=loop.kind, unit=unit, where=where, loops=loops,
                **describe(),
            )  # fmt: skip

    def end(self, loop: RunningFit | None) -> None:
        """Note the end of a loop that ``begin`` returned."""
        if loop is None:
            return
        with self._lock:
            if self._outermost is loop:
                self._outermost = None
        if loop.is_told:
            self.session.fact("fit_end", number=loop.number, rounds=loop.rounds)

    def name(self, kind: str, unit: str) -> None:
        """Record, once, what rounds outside of any training loop are."""
        if not self._named:
            self._named = True
            self.session.fact("rounds", kind=kind, unit=unit)

    def done(self, kind: str, count: int = 1, samples: int = 0, unit: str = "round") -> None:
        """Count rounds that ended now; of a loop of ``kind``, or outside of all loops."""
        if self.is_idle or count < 1:
            return
        with self._lock:
            loop = self._outermost
            if loop is not None and loop.kind != kind:
                return
            if loop is not None:
                loop.rounds += count
            else:
                self.name(kind, unit)
            now_ns = time.monotonic_ns()
            begin_ns = self._last_ns or now_ns
            self._last_ns = now_ns
            # Several that are reported together ended one after the other.
            for turn in range(1, count + 1):
                at_ns = begin_ns + (now_ns - begin_ns) * turn // count
                self.session.round_ended(fmt.CLOCK_ROUND, at_ns, samples)
            self.finished += count

    def new_pass(self) -> None:
        """Note that the next round is no ordinary one: an epoch begins in it."""
        self.session.loaders.has_begun = True

    def fitted(self) -> None:
        """Count a whole fit without rounds that could be seen, if it is made in a loop.

        A script that fits a scaler and then a model makes no steps.
        """
        if self.is_idle or self._outermost is not None:
            return
        try:
            from ..trace import frames

            frame = sys._getframe(1)
            where = frames.of_user(frame)
            if where not in self._repeated:
                self._repeated[where] = bool(frames.user_loops(frame))
            if not self._repeated[where]:
                return
        except Exception as error:
            self.session.failed("fit", error)
            return
        self.session.round_ended(fmt.CLOCK_FIT, time.monotonic_ns(), 0)


def _is_worker() -> bool:
    process = sys.modules.get("multiprocessing.process")
    name = "" if process is None else str(process.current_process().name)
    return "Loky" in name or "PoolWorker" in name


def replace(session: Any, owner: Any, name: str, replacement: Any) -> None:
    """Put ``replacement`` in place of ``owner.name`` until the session, if any, lets go."""
    original = getattr(owner, name)
    functools.update_wrapper(replacement, original)
    setattr(owner, name, replacement)

    def restore() -> None:
        if getattr(owner, name, None) is replacement:
            setattr(owner, name, original)

    if session is not None:
        session.on_release(restore)


def then(session: Any, owner: Any, name: str, do: Callable[..., object]) -> None:
    """Have every return of ``owner.name`` be followed by ``do`` of result and arguments."""
    original = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        do(result, *args)
        return result

    replace(session, owner, name, both)


def around(
    rounds: RoundCounter, owner: Any, name: str, kind: str, unit: str = "",
    describe: Any = None, has_last: Any = None,
) -> None:  # fmt: skip
    """Have ``owner.name`` be a training loop.

    ``describe`` is called with its arguments, and returns facts; ``has_last`` says of its owner
    whether its end is the end of a round, too.
    """
    original = getattr(owner, name)

    def train(*args: Any, **kwargs: Any) -> Any:
        loop = rounds.begin(kind)
        if loop is not None and describe is not None:
            rounds.tell(unit, lambda: describe(*args, **kwargs))
        try:
            result = original(*args, **kwargs)
            if loop is not None and has_last is not None and has_last(args[0]):
                rounds.done(kind)
            return result
        finally:
            rounds.end(loop)

    replace(rounds.session, owner, name, train)


def after(rounds: RoundCounter, owner: Any, name: str, kind: str) -> None:
    """Have every return of ``owner.name`` be the end of a round."""
    then(rounds.session, owner, name, lambda *_: rounds.done(kind))


def limited_threads() -> int | None:
    """Return what the environment limits thread pools to; None where it does not."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(text) if text.isdigit() and int(text) > 0 else None


def cores_of(threads: Any) -> int | None:
    """Return a parameter such as ``n_jobs`` as a number of cores; None for all there are."""
    known = isinstance(threads, int) and not isinstance(threads, bool) and threads > 0
    return threads if known else limited_threads()


def hooks(session: Session) -> dict[str, Callable[[Any], None]]:
    """Return module name -> what to do once it has been imported.

    The hooks of a framework are loaded with it: a script without it does not pay for them.
    """
    shared: list[RoundCounter] = []

    def hook(where: str, patch: str, module: Any) -> None:
        if not shared:
            shared.append(RoundCounter(session))
        hooks_module = __import__(__package__ + "." + where, fromlist=[where])
        getattr(hooks_module, patch)(shared[0], module)

    return {
        name: functools.partial(hook, where, patch) for name, (where, patch) in _HOOKED.items()
    }


_HOOKED = {
    "lightgbm.basic": ("estimators", "lightgbm_booster"),
    "lightgbm.engine": ("estimators", "lightgbm_train"),
    "xgboost.core": ("estimators", "xgboost_booster"),
    "xgboost.training": ("estimators", "xgboost_train"),
    "catboost.core": ("estimators", "catboost"),
    "keras.src.callbacks.callback_list": ("keras_jax", "callbacks"),
    "keras.src.backend.tensorflow.trainer": ("keras_jax", "trainer"),
    "keras.src.backend.jax.trainer": ("keras_jax", "trainer"),
    "keras.src.backend.torch.trainer": ("keras_jax", "trainer"),
    "jax": ("keras_jax", "jax"),
    "optax": ("keras_jax", "optax"),
    "joblib.parallel": ("estimators", "parallel"),
    "sklearn.model_selection._search": ("estimators", "search"),
    "sklearn.model_selection._validation": ("estimators", "validation"),
    "sklearn.base": ("estimators", "base"),
    "sklearn.ensemble._forest": ("estimators", "forest"),
    "sklearn.ensemble._gb": ("estimators", "gradient_boosting"),
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": (
        "estimators", "histogram_boosting",
    ),
    "sklearn.ensemble._weight_boosting": ("estimators", "ada_boost"),
    "sklearn.neural_network._multilayer_perceptron": ("estimators", "perceptron"),
}  # fmt: skip
