"""``advisor predict``: one job on one configuration, with its parts and its sources."""

from __future__ import annotations

import json
import shutil
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.asking import JOB, LAYOUT, SETUP, asks
from advisor.cli.waiting import waiting
from advisor.question import Question


@asks(JOB, ("completion", "known_network", "coverage", "catalogue", "overrides"), LAYOUT, SETUP)
def command(
    question: Question,
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", help="Machine type: g5.xlarge or aws:g5.xlarge; `here` is this machine."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Accelerator of any provider: L4, H100, MI300X.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(help="Number of machines (--on), or of accelerators in one machine (--gpu)."),
    ] = 1,
    save_job: Annotated[Path | None, typer.Option(help="Also write the job to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Estimate a job on one configuration: a recorded run, a job file, or a described model.

    Every number is marked: measured, looked up, computed, learned or given.
    """
    from advisor import api
    from advisor.catalogue import Catalogue
    from advisor.domain import SCHEMA_VERSION
    from advisor.predict import Predictor

    catalogue = cache(partial(Catalogue.load, question.catalogue, overrides=question.overrides))
    with waiting("reading the job", is_quiet=as_json):
        wanted = api.job_of(question.job, question.setup, catalogue=catalogue)
    if save_job is not None:
        from advisor.jobs.files import write_job

        write_job(wanted, save_job)
        typer.echo(f"wrote {save_job}", err=True)
        if on is None and gpu is None:
            return
    with waiting("estimating", is_quiet=as_json):
        estimate = api.estimate(
            wanted, on=on, gpu=gpu, count=count, coverage=question.constraints.coverage,
            layout=question.layout, completion=question.completion,
            known_network=question.constraints.known_network,
            predictor=Predictor(catalogue()),
        )  # fmt: skip
    record = {"schema_version": SCHEMA_VERSION, **estimate.to_record()}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    from advisor.report.estimate import text

    typer.echo(text(record, width=shutil.get_terminal_size().columns))
