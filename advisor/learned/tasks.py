"""Many fits at once: through joblib, with progress told and finished ones kept.

Fits of folds do not depend on each other; joblib's backend of the moment runs them (this machine,
a Dask or a Ray cluster). They are handed over in batches, so that progress can be told after each
and what is finished is on disk: a training that is killed, or whose cluster goes away, goes on
from there with the same command.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray

from advisor.collectors import atomic

Floats = NDArray[np.float64]
Task = tuple[Any, ...]
Tell = Callable[[str, int, int], None]

_ROUNDS: Final = 2  # tasks of each worker in a batch: enough to keep it busy


# What is told of progress, and where finished parts are kept.
_SUPERVISION: ContextVar[tuple[Tell, Path | None] | None] = ContextVar("supervision", default=None)
# The same, but also inside of a fit: only that process sees it in which the fit runs.
_WATCHED: ContextVar[Tell | None] = ContextVar("watched", default=None)


@contextlib.contextmanager
def supervised(tell: Tell, folder: Path | None = None) -> Iterator[None]:
    """Tell of the progress of every ``run`` in the block, and keep what is finished.

    ``folder``: answers of finished parts (``.npy``) are written there, and found there again.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    token, watched = _SUPERVISION.set((tell, folder)), _WATCHED.set(tell)
    try:
        yield
    finally:
        _SUPERVISION.reset(token)
        _WATCHED.reset(watched)


def tell_inside(what: str, done: int, total: int) -> None:
    """Tell how far a single fit is, if somebody watches this process."""
    watched = _WATCHED.get()
    if watched is not None and done < total:
        watched(what, done, total)


def run(
    what: str, function: Callable[..., Floats], tasks: Sequence[Task], n_jobs: int | None
) -> list[Floats]:
    """Return ``function(*task)`` of every task, in order."""
    supervision = _SUPERVISION.get()
    if supervision is None:
        return list(Parallel(n_jobs=n_jobs)(delayed(function)(*task) for task in tasks))
    tell, folder = supervision
    files = [_file(folder, function, task) for task in tasks]
    found = [_kept(file) for file in files]
    missing = [place for place, answer in enumerate(found) if answer is None]
    size = max(_ROUNDS * int(effective_n_jobs(n_jobs)), 1)
    done = len(tasks) - len(missing)
    tell(what, done, len(tasks))
    for start in range(0, len(missing), size):
        batch = missing[start : start + size]
        token = _SUPERVISION.set(None)  # fits within a fit are nobody's stage
        try:
            answers = Parallel(n_jobs=n_jobs)(delayed(function)(*tasks[place]) for place in batch)
        finally:
            _SUPERVISION.reset(token)
        for place, answer in zip(batch, answers, strict=True):
            found[place] = answer
            _keep(files[place], answer)
        done += len(batch)
        tell(what, done, len(tasks))
    return [answer for answer in found if answer is not None]


def _file(folder: Path | None, function: Callable[..., Floats], task: Task) -> Path | None:
    """Return where a task's answer is kept: named by all that it depends on."""
    if folder is None:
        return None
    import joblib

    digest = hashlib.sha256(f"{function.__module__}.{function.__qualname__}".encode())
    digest.update(joblib.hash(task).encode())
    return folder / f"{digest.hexdigest()[:32]}.npy"


def _kept(file: Path | None) -> Floats | None:
    if file is None or not file.is_file():
        return None
    try:
        return np.asarray(np.load(file, allow_pickle=False), float)
    except (OSError, ValueError, EOFError):
        return None  # cut short by a kill: made again


def _keep(file: Path | None, answer: Floats) -> None:
    if file is None:
        return
    with atomic.writing(file) as stream:
        np.save(stream, answer, allow_pickle=False)
