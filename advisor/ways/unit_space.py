"""Layouts that make no sense for a model cut at its recorded units."""

from __future__ import annotations

from typing import Final

from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.layouts.grid import SearchSpace

_OF_SHAPES: Final = ("cp", "ep")


def check_space(job: Job, space: SearchSpace) -> None:
    """Refuse what only a transformer of known dimensions can be asked.

    Raises
    ------
    UsageError
        If context or expert parallelism, or selective recomputation, is demanded of another job.
    """
    work = job.work
    if work is None or (work.transformer is not None and not work.layers):
        return
    what = "a model that is not a transformer" if job.measured is None else "a recorded run"
    for name in _OF_SHAPES:
        if (getattr(space, name) or 1) > 1:
            raise UsageError(
                f"--{name} is not for {what}: the dimensions of its layers are not known",
                hint="describe the transformer (--model config.json), or leave it out",
            )
    if space.recomputes == ("selective",):
        raise UsageError(
            f"{what} is recomputed by whole units of layers", hint="--recompute none or full"
        )
