"""The targets of ``advisor export``: one file and one line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.answer import Recommendation
from advisor.collectors import atomic
from advisor.collectors.format import Recording
from advisor.errors import UsageError
from advisor.estimate import SPACE, Predictor
from advisor.export.launch import launch_of
from advisor.export.pick import read_pick
from advisor.export.target import Exported, Target
from advisor.export.tools import (
    accelerate,
    deepspeed,
    dstack,
    kubernetes,
    megatron,
    skypilot,
    slurm,
    torchrun,
    training_jobs,
)
from advisor.jobs import Job
from advisor.planners.layouts import SearchSpace

TARGETS: Final[Mapping[str, Target]] = {
    one.name: one
    for one in (
        skypilot.TARGET,
        dstack.TARGET,
        kubernetes.TARGET,
        training_jobs.KUBEFLOW_TARGET,
        training_jobs.SAGEMAKER_TARGET,
        training_jobs.VERTEX_TARGET,
        training_jobs.TARGET,
        slurm.TARGET,
        torchrun.TARGET,
        accelerate.TARGET,
        deepspeed.TARGET,
        megatron.TARGET,
    )
}  # fmt: skip


def target_of(name: str) -> Target:
    """Return a target by its name.

    Raises UsageError if there is none.
    """
    if name not in TARGETS:
        raise UsageError(f"cannot export to {name!r}", hint=f"one of: {', '.join(TARGETS)}")
    return TARGETS[name]


def export_to(
    answer: Recommendation | Mapping[str, Any],
    to: str,
    *,
    rank: int | None = None,
    job: Job | None = None,
    recording: Recording | None = None,
    values: Mapping[str, str] | None = None,
    predictor: Predictor | None = None,
    space: SearchSpace = SPACE,
) -> Exported:
    """Return one row of an answer in the words of a tool that runs it.

    Raises UsageError if there is no such target, row or value. Raises NothingToExportError,
    NotRunnableError, NotExportableError if nothing satisfies the constraints, no framework runs
    the layout, or the target does not rent these machines.

    Parameters
    ----------
    answer : Recommendation or mapping
        What ``recommend`` returned, or its record.
    to : str
        A target: ``"skypilot"``, ``"dstack"``, ...
    rank : int, optional
        The row; the best value by default.
    job : Job, optional
        What was asked about: the layout's launch arguments need it.
    recording : Recording, optional
        Of the job: its script, arguments and folder. By default the run that the answer names,
        where it is on this machine.
    values : mapping of str to str, optional
        What only the user knows, as ``--set``.
    """
    target = target_of(to)
    record = answer.to_record() if isinstance(answer, Recommendation) else answer
    pick = read_pick(record, rank)
    target.check(pick)
    given = values or {}
    filled = target.filled(given)
    launch = launch_of(pick, job, recording, predictor=predictor, space=space)
    made = target.write(pick, launch, filled)
    return Exported(
        target=made.target,
        files={**made.files, **{n: t for n, t in launch.by_hand.items() if n not in made.files}},
        run=made.run,
        notes=(*launch.notes, *target.unfilled(given), *made.notes),
    )


def write(made: Exported, path: Path) -> tuple[Path, ...]:
    """Write an export's first file to ``path`` and the others beside it; return all paths.

    A folder takes all files under their own names.
    """
    names = list(made.files)
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    paths = [path / names[0] if is_folder else path, *(folder / name for name in names[1:])]
    for place, name in zip(paths, names, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(place, made.files[name])
    return tuple(paths)
