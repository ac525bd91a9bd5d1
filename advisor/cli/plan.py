"""``advisor plan``: the layout of a transformer, or of a recorded run, on a given cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.asking import JOB, LAYOUT, SETUP, asks
from advisor.cli.plot_option import Plot, PlotCommand, show_plot
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.question import Question

if TYPE_CHECKING:
    from advisor.catalogue import Catalogue
    from advisor.jobs.job import Job

settings: Final[dict[str, Any]] = {"cls": PlotCommand}


@asks(("cluster",), JOB, ("objective", "coverage", "catalogue", "overrides"), LAYOUT, SETUP)
def command(
    question: Question,
    *,
    plot: Plot = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Choose how to spread a training job over a cluster, and print what to run.

    Exit code 3 means that no layout fits; the message says what would.
    """
    from advisor.catalogue import Catalogue
    from advisor.machines.cluster_text import read_cluster
    from advisor.predict import Predictor
    from advisor.question.layout import layout_space
    from advisor.ranking.given import PlanQuestion, plan
    from advisor.ways.case import SPACE
    from advisor.ways.terminal import show

    if question.cluster.machines is None:
        raise UsageError("no cluster is given", hint="--cluster 8xA100-80GB:nvlink@200Gbps")
    with waiting("searching layouts", is_quiet=as_json):
        known = Catalogue.load(question.catalogue, overrides=question.overrides)
        job, script = _job(question, known)
        answer = plan(
            PlanQuestion(
                job=job,
                cluster=read_cluster(question.cluster.machines, known),
                objective=question.objective,
                space=layout_space(question.layout, SPACE) or SPACE,
                coverage=question.constraints.coverage,
                swap=question.layout.swap,
                command=script,
                predictor=Predictor(known),
                average_every=question.layout.average_every,
            )
        )
    record = answer.to_record()
    typer.echo(json.dumps(record, indent=2) if as_json else show(record))
    if plot is not None:
        from advisor.shown.plans import plan_charts

        show_plot(plan_charts(record), plot)


def _job(question: Question, known: Catalogue) -> tuple[Job, tuple[str, ...]]:
    """Return the job, and the command line that a recorded one was started with."""
    from advisor.api import job_of
    from advisor.collectors import store
    from advisor.jobs.described import NO_LENGTH

    spec = question.job
    if spec.run is None and (spec.names_a_job or spec.is_known_by_runs):
        return job_of(spec, question.setup, catalogue=lambda: known), ()
    is_latest = spec.run in (None, "latest")
    path = store.latest_run() if is_latest else store.find_run(str(spec.run))
    recording = store.read_recording(path)
    spec = replace(spec, run=str(path))
    if recording.total_work is not None or spec.has_length:
        return job_of(spec, question.setup, catalogue=lambda: known), recording.command
    # A layout is planned for one step: how many there are does not matter.
    job = job_of(replace(spec, total_steps=1.0), question.setup, catalogue=lambda: known)
    return replace(job, total_source=NO_LENGTH), recording.command
