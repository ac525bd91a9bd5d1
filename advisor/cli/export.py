"""``advisor export``: a recommendation as a file that another tool runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.cli.asking import CONSTRAINTS, JOB, LAYOUT, SETUP, asks
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.question import Question

if TYPE_CHECKING:
    from advisor.collectors.recording import Recording
    from advisor.export.target import Exported
    from advisor.jobs.job import Job
    from advisor.predict import Predictor


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), LAYOUT, SETUP)
def command(
    question: Question,
    *,
    row: Annotated[
        int | None,
        typer.Argument(metavar="N", show_default=False, help="Row (default: the best value)."),
    ] = None,
    to: Annotated[str, typer.Option(metavar="TARGET", help="Tool to write for.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PATH", show_default=False,
                     help="File or folder to write (default, and for -: print the file)."),
    ] = None,
    answer: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", show_default=False,
                     help="Answer of `recommend --json` to take the row from, instead of asking."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", show_default=False,
                     help="A value that only you know, such as image=...; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:  # fmt: skip
    """Write row N of the recommendation as a file that a tool runs.

    Exit code 3 means that nothing satisfies the constraints, or no framework runs the layout.
    """
    from advisor.export.targets import target_of, write

    output = None if output == Path("-") else output  # as ``report -o -``
    target = target_of(to)
    given = _values(values or [])
    target.filled(given)  # a wrong name is said before anything is ranked
    with waiting("pricing the job on every offer", is_quiet=as_json):
        made = _exported(question, to, row, answer, given)
    if as_json:
        typer.echo(json.dumps(made.to_record(), indent=2))
    elif output is None:
        typer.echo(next(iter(made.files.values())), nl=False)
    if output is not None:
        for path in write(made, output):
            typer.echo(f"wrote {path}", err=True)
    if not as_json:
        for note in made.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"run: {made.run}", err=True)


def _exported(
    question: Question, to: str, row: int | None, answer: Path | None, given: dict[str, str]
) -> Exported:
    """Return the export of a stored answer, or of the one that the question has now."""
    from advisor import api
    from advisor.catalogue import Catalogue
    from advisor.export.targets import export_to
    from advisor.predict import Predictor
    from advisor.question.layout import layout_space
    from advisor.ways.case import SPACE

    record = None if answer is None else _stored(answer, row)
    predictor = Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))
    space = layout_space(question.layout) or SPACE
    if record is not None:
        job, recording = _job_of_stored(question, record, predictor)
        return export_to(
            record, to, rank=row, job=job, recording=recording, values=given,
            predictor=predictor, space=space,
        )  # fmt: skip
    recording = api.recording_of(question.job)
    job = api.job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
    ranked = api.ranked(job, question, predictor=predictor, recording=recording)
    return export_to(
        ranked, to, rank=row, job=job, recording=recording, values=given, predictor=predictor,
        space=space,
    )  # fmt: skip


def _stored(path: Path, row: int | None) -> dict[str, Any]:
    """Return the answer in a file, once it has the row that is asked for."""
    from advisor.collectors.bounded import read_json
    from advisor.export.pick import read_pick

    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the answer {path}: {error}",
            hint="write one: advisor recommend --json > answer.json",
        ) from error
    if not isinstance(record, dict):
        raise UsageError(f"{path} holds no answer", hint="advisor recommend --json > answer.json")
    read_pick(record, row)
    return record


def _job_of_stored(
    question: Question, record: dict[str, Any], predictor: Predictor
) -> tuple[Job | None, Recording | None]:
    """Return the job of a stored answer: what the flags name, else its run where that is here."""
    from advisor import api
    from advisor.collectors.errors import RecordingError

    spec = question.job
    if not (spec.names_a_job or spec.is_known_by_runs):
        spec = replace(spec, run=str(record.get("run", "")))
        try:
            recording = api.recording_of(spec)
        except RecordingError:
            return None, None
    else:
        recording = api.recording_of(spec)
    job = api.job_of(spec, question.setup, catalogue=lambda: predictor.catalogue)
    return job, recording


def _values(said: list[str]) -> dict[str, str]:
    found = {}
    for one in said:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"cannot read --set {one!r}", hint="write --set NAME=VALUE")
        found[name] = value
    return found
