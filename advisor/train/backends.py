"""Backends of parallel work: this machine, or an existing Dask or Ray cluster."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any, Final, Literal, get_args

import joblib

from advisor.errors import ModelError, UsageError, pip_hint

Backend = Literal["loky", "dask", "ray"]
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)
_TIMEOUT_S: Final = 15.0


@contextlib.contextmanager
def workers(backend: str = "loky", address: str | None = None) -> Iterator[None]:
    """Run what joblib parallelises inside the block on a backend.

    Raises UsageError if there is no such backend, or it is not installed; ModelError if the
    cluster cannot be reached or went away: nothing was saved yet, run it again. A worker that is
    killed costs Dask its tasks, which are begun again; Ray's pool gives up with it.

    ``address``: of the Dask scheduler (``tcp://host:8786``) or the Ray head (``host:6379``);
    without one a local cluster is started and stopped again.
    """
    if backend not in BACKENDS:
        raise UsageError(f"no backend named {backend!r}", hint=f"one of: {', '.join(BACKENDS)}")
    if backend == "loky":
        yield
        return
    opened = _dask(address) if backend == "dask" else _ray(address)
    with opened:
        yield


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[None]:
    try:
        import distributed
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise UsageError("Dask is not installed", hint=pip_hint("dask[distributed]")) from error
    connect: Any = distributed.Client
    try:
        with connect(address, timeout=_TIMEOUT_S), joblib.parallel_config(backend="dask"):
            yield
    except (OSError, TimeoutError, CommClosedError, KilledWorker, CancelledError) as error:
        raise _gone("Dask", address, error) from error


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[None]:
    try:
        import ray
        from ray.util import joblib as ray_joblib
    except ImportError as error:
        raise UsageError("Ray is not installed", hint=pip_hint("ray")) from error
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
        register: Any = ray_joblib.register_ray
        register()
        with _ending_quietly(), joblib.parallel_config(backend="ray"):
            yield
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise _gone("Ray", address, error) from error
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _ending_quietly() -> Iterator[None]:
    """Let SIGTERM end the command; Ray's own handler prints the stacks of native threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)  # as shells say it

    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _gone(name: str, address: str | None, error: BaseException) -> ModelError:
    return ModelError(
        f"the {name} cluster at {address or 'this machine'}, or a worker of it, is gone: "
        + (str(error).strip() or type(error).__name__).splitlines()[0],
        hint="nothing was lost: start it again and repeat the command, or use --backend loky",
    )
