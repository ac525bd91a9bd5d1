"""``advisor advise``: what would make a job faster or cheaper before anything is rented."""

from __future__ import annotations

import json
import shutil
from typing import Annotated

import typer

from advisor.cli.asking import CONSTRAINTS, JOB, LAYOUT, SETUP, Recorded, asks, with_run
from advisor.cli.quantity_types import BYTES_WITH_UNIT, RATE, SECONDS_WITH_UNIT, quantity
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.question import JobSpec, Question


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), LAYOUT, SETUP)
def command(
    question: Question,
    recorded: Recorded = None,
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="Machine type to judge the job on: g5.xlarge or aws:g5.xlarge; `here` is this "
            "machine (default: what advisor recommend would pick).",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of these machines.")] = 1,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Another run, to share the device with: what each keeps of its rate, and pays.",
            show_default=False,
        ),
    ] = None,
    serving: Annotated[
        bool,
        typer.Option(
            "--serving",
            help="In place of training: how many experts of a mixture stay on the device that "
            "serves it.",
        ),
    ] = False,
    latency: Annotated[
        float | None,
        quantity(
            SECONDS_WITH_UNIT,
            "--latency",
            help="With --serving: longest time of a token, e.g. 0.05s (default: twice that with "
            "every expert on the device).",
        ),
    ] = None,
    memory: Annotated[
        float | None,
        quantity(
            BYTES_WITH_UNIT,
            "--memory",
            help="With --serving: memory for weights on the device (default: all it has).",
        ),
    ] = None,
    link: Annotated[
        float | None,
        quantity(
            RATE,
            "--link",
            help="With --serving: what experts come over, e.g. 25GB/s (default: the card's PCIe; "
            "on a processor its disk).",
        ),
    ] = None,
    explain: Annotated[
        int | None,
        typer.Option(metavar="N", help="Show advice N in full, with what to paste."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show all advice, not only what fits on one screen.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Say what to change in a job, and what each change saves of the whole job.

    Only what the recording shows to apply is listed, strongest first. Exit code 3 means that
    nothing satisfies the constraints as the job is now.
    """
    from advisor import api
    from advisor.advice.experts import Serving
    from advisor.catalogue import Catalogue
    from advisor.predict import Predictor
    from advisor.report import advice as report
    from advisor.report.experts import cache_table

    asked = with_run(question, recorded)
    wanted = Serving(token_s=latency, memory_bytes=memory, link_bytes_per_s=link)
    if serving and beside is not None:
        raise UsageError("--serving cannot be combined with --beside", hint="ask for one of them")
    if not serving and wanted != Serving():
        raise UsageError("--latency, --memory and --link are of serving", hint="add --serving")
    with waiting("pricing the job with each change", is_quiet=as_json):
        predictor = Predictor(Catalogue.load(asked.catalogue, overrides=asked.overrides))
        job = api.job_of(asked.job, asked.setup, catalogue=lambda: predictor.catalogue)
        found = api.advised(
            job, asked, api.recording_of(asked.job), on=on, count=count, predictor=predictor,
            beside=None if beside is None else api.job_of(JobSpec(run=beside)),
            serving=wanted if serving else None,
        )  # fmt: skip
    record = found.to_record()
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        width = shutil.get_terminal_size().columns
        most = None if full else report.SCREEN_LINES
        lines = (
            report.text(record, width=width, most=most)
            if explain is None
            else report.explained(record, explain, width=width)
        )
        lines += [line for one in found if serving for line in cache_table(one.details)]
        typer.echo("\n".join(lines))
    if not found.meets_constraints:
        raise typer.Exit(3)
