"""The targets of ``advisor export``: rows of ``assets/targets.yaml``, each with what writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from advisor.answer import Recommendation
from advisor.collectors import atomic
from advisor.collectors.format import Recording
from advisor.errors import AdvisorError, UsageError
from advisor.estimate import SPACE, Predictor
from advisor.export.launch import LINES_FILE, NotRunnableError, launch_of
from advisor.export.pick import ranks_to_try, read_pick
from advisor.export.target import Blank, Exported, NotExportableError, Target, Write
from advisor.export.templates import template
from advisor.export.texts import MARKS, marked
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
from advisor.words import target_of as row_target

_WRITERS: Final[Mapping[str, Write]] = {
    "skypilot": skypilot.write, "dstack": dstack.write, "kubernetes": kubernetes.write,
    "kubeflow": kubernetes.kubeflow_write, "sagemaker": training_jobs.sagemaker_write,
    "vertex": training_jobs.vertex_write, "azureml": training_jobs.azureml_write,
    "slurm": slurm.write, "torchrun": torchrun.write, "accelerate": accelerate.write,
    "deepspeed": deepspeed.write, "megatron": megatron.write,
}  # fmt: skip
TARGETS: Final[Mapping[str, Target]] = {
    name: Target(
        name=name, write=_WRITERS[name],
        **row | {"blanks": {key: Blank(**one) for key, one in row.get("blanks", {}).items()}},
    )
    for name, row in template("targets")[0].items()
}  # fmt: skip
_MARKED_BYTES: Final = 8192  # an export's mark stands within
_LINES: Final = (
    f"put the lines of {LINES_FILE} into your script, after its model and optimizer are made"
)


class NotOverwrittenError(AdvisorError):
    """Files would be replaced that no export wrote: they may be somebody's work."""


def target_of(name: str) -> Target:
    """Return a target by its name.

    Raises UsageError if there is none.
    """
    if name not in TARGETS:
        raise UsageError(f"cannot export to {name!r}", hint=f"one of: {', '.join(TARGETS)}")
    return TARGETS[name]


def default_target(record: Mapping[str, Any], rank: int | None = None) -> str:
    """Return the target that a row of an answer is exported to: the first that rents it.

    What nobody rents, Kubernetes takes; this machine, torchrun. Raises NotExportableError if no
    target takes the row.
    """
    pick = read_pick(record, rank)
    if found := row_target(pick.to_record()):
        return found
    raise NotExportableError(
        f"row {pick.rank} mixes machine types, which no target starts",
        hint="export another row, or recommend without --mixed",
    )


def export_to(
    answer: Recommendation | Mapping[str, Any], to: str | None = None, *, rank: int | None = None,
    job: Job | None = None, recording: Recording | None = None,
    values: Mapping[str, str] | None = None, predictor: Predictor | None = None,
    space: SearchSpace = SPACE,
) -> Exported:  # fmt: skip
    """Return one row of an answer in the words of a tool that runs it.

    Raises UsageError if there is no such target, row or value. Raises NothingToExportError,
    NotRunnableError, NotExportableError if nothing satisfies the constraints, no framework runs
    the layout, or the target does not rent these machines.

    Parameters
    ----------
    answer : Recommendation or mapping
        What ``recommend`` returned, or its record.
    to : str, optional
        A target: ``"skypilot"``, ``"dstack"``, ...; by default the first that rents the row.
    rank : int, optional
        The row; by default the best value, or the best row that the target runs.
    job : Job, optional
        What was asked about: the layout's launch arguments need it.
    recording : Recording, optional
        Of the job: its script, arguments and folder. By default the run that the answer names,
        where it is on this machine.
    values : mapping of str to str, optional
        What only the user knows, as ``--set``; ``script`` and ``framework`` hold of the job.
    """
    record = answer.to_record() if isinstance(answer, Recommendation) else answer
    target = target_of(default_target(record, rank) if to is None else to)
    given = values or {}
    filled = target.filled(given)

    def made_of(row: int | None) -> Exported:
        pick = read_pick(record, row)
        target.check(pick)
        launch = launch_of(
            pick, job, recording, predictor=predictor, space=space, script=filled["script"],
            framework=filled["framework"],
        )  # fmt: skip
        made = target.write(pick, launch, filled)
        is_added = not (target.spreads and launch.is_placeholder)
        added = {k: v for k, v in launch.by_hand.items() if is_added and k not in made.files}
        files = {
            name: marked(text, pick) if name.endswith(".py") else text
            for name, text in {**made.files, **added}.items()
        }
        notes = launch.notes if any(launch.words[0] in text for text in files.values()) else ()
        lines = (_LINES,) if LINES_FILE in files else ()
        return replace(
            made, files=files, notes=(*notes, *lines, *target.unfilled(given), *made.notes)
        )

    return made_of(rank) if rank is not None else _first_that_runs(record, made_of)


def _first_that_runs(
    record: Mapping[str, Any], made_of: Callable[[int | None], Exported]
) -> Exported:
    """Return the export of the best row that the target runs, and say so where it is another.

    Raises what the default pick is refused with, if no row will do.
    """
    pick = read_pick(record)  # refuses what is no answer
    refused: AdvisorError | None = None
    for row in ranks_to_try(record):
        try:
            made = made_of(row)
        except (NotExportableError, NotRunnableError) as error:
            refused = refused or error
            continue
        if refused is None:
            return made
        note = f"row {pick.rank}, the best value, is not exported: {refused}; this is row {row}"
        return replace(made, notes=(note, *made.notes))
    raise refused or AssertionError("an answer has a default pick")


def write(
    made: Exported, path: Path, *, is_folder: bool = False, force: bool = False
) -> dict[str, Path]:
    """Write an export's first file to ``path`` and the others beside it; return paths by name.

    A folder takes all files under their own names. Nothing is written where a file would be
    replaced that is no earlier export.

    Raises NotOverwrittenError for such files, unless ``force`` is true.

    Parameters
    ----------
    is_folder : bool
        ``path`` is a folder to make; one that is there is one anyhow.
    """
    names = list(made.files)
    is_folder = is_folder or path.is_dir()
    folder = path if is_folder else path.parent
    places = [path / names[0] if is_folder else path, *(folder / name for name in names[1:])]
    if places[0] in places[1:]:
        raise UsageError(
            f"{places[0].name} is the name of a file that is written beside it",
            hint="give -o another name, or a folder",
        )
    paths = dict(zip(names, places, strict=True))
    others = [place for name, place in paths.items() if _is_anothers(place, made.files[name])]
    if others and not force:
        listed = ", ".join(map(str, others))
        is_one = len(others) == 1
        raise NotOverwrittenError(
            f"{listed} {'exists and is' if is_one else 'exist and are'} no earlier export",
            hint=f"-o {folder / 'export'}/ writes into a folder of its own; --force overwrites",
        )
    for name, place in paths.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(place, made.files[name])
    return paths


def _is_anothers(place: Path, text: str) -> bool:
    """Whether a file is there that no export wrote: not this text, and without the mark."""
    if not place.exists():
        return place.is_symlink()
    if not place.is_file():
        return place.is_dir()  # a device or a pipe takes what is written
    size = len(text.encode())
    try:
        with place.open("rb") as file:
            found = file.read(max(size, _MARKED_BYTES) + 1)
    except OSError:
        return True
    is_marked = any(mark.encode() in found[:_MARKED_BYTES] for mark in MARKS)
    return bool(found) and found != text.encode() and not is_marked
