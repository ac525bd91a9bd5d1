"""What the layout of a model cut at its recorded units may be, and what makes no sense for it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.core.errors import PlanningError
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.layouts.recorded_layout import WAYS, RecordedSpace

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


def unit_space(space: SearchSpace) -> RecordedSpace:
    """Return what a search over units may choose.

    Raises
    ------
    PlanningError
        If a degree is fixed that units are not divided by.
    """
    for name in _OF_SHAPES:
        if max(getattr(space, name) or 1, getattr(space, f"min_{name}")) > 1:
            raise PlanningError(f"units of layers are not divided by {name}", exit_code=3)
    return _space(space)


@lru_cache(maxsize=32)
def _space(space: SearchSpace) -> RecordedSpace:
    kept = {"none": ("kept", "offloaded"), "full": ("recomputed",)}
    admitted = {way for mode in space.recomputes for way in kept.get(mode, ())}
    may_offload = bool(space.offloads)
    return replace(
        RecordedSpace(),
        tp=space.tp,
        pp=space.pp,
        micro_batch=space.micro_batch,
        accumulation_steps=space.accumulation_steps,
        min_tp=space.min_tp,
        min_pp=space.min_pp,
        zero_stages=space.zero_stages,
        ways=tuple(w for w in WAYS if w.kept in admitted and (may_offload or not w.offload)),
    )
