"""``advisor recommend``: rank cloud configurations for a job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.asking import CLUSTER, CONSTRAINTS, JOB, LAYOUT, SETUP, asks
from advisor.cli.plot_option import Plot, PlotCommand, check_drawable, is_terminal, show_plot
from advisor.cli.runs_compare import warn_of_drift
from advisor.cli.waiting import waiting
from advisor.question import Question

if TYPE_CHECKING:
    from advisor.shown.chart import Chart

settings: Final[dict[str, Any]] = {"cls": PlotCommand}


@asks(
    JOB,
    CONSTRAINTS,
    (
        "catalogue",
        "overrides",
    ),
    CLUSTER,
    LAYOUT,
    SETUP,
)
def command(
    question: Question,
    *,
    explain: Annotated[
        int | None,
        typer.Option(metavar="N", help="Explain row N in full, with everything it assumes."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show every row, not only what fits on one screen.")
    ] = False,
    plot: Plot = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Recommend what to rent for a job, by training time and cost.

    Exit code 3 means that nothing satisfies the constraints; the nearest misses are shown.
    """
    from advisor import api
    from advisor.catalogue import Catalogue
    from advisor.cli import own_cluster
    from advisor.predict import Predictor

    with waiting("pricing the job on every offer", is_quiet=as_json):
        predictor = Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))
        job = api.job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
        answer = api.ranked(
            job, question, predictor=predictor, recording=api.recording_of(question.job)
        )
        own = own_cluster.comparison(question, job, answer, predictor)
    record = answer.to_record() if own is None else own.to_record()
    charts = _charts(record, plot)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    elif explain is not None:
        from advisor.report import explained

        width = shutil.get_terminal_size().columns
        typer.echo(explained.text(record, explain, width=width))
    else:
        _show(question, record, full=full)
    show_plot(charts, plot)
    if not answer.picks and not (own is not None and own.meets_constraints):
        raise typer.Exit(3)


def _charts(record: Mapping[str, Any], plot: str | None) -> list[Chart]:
    """Return the chart of an answer where it is to be drawn; a file has room for names."""
    if plot is None:
        return []
    from advisor.shown.front import front_chart

    charts = front_chart(record, names=not is_terminal(plot))
    check_drawable(charts, plot, hint="relax the constraints")
    return charts


def _show(question: Question, record: Mapping[str, Any], *, full: bool) -> None:
    from rich.console import Console

    from advisor.report import own_cluster as own_report
    from advisor.report import terminal

    most = None if full else terminal.SCREEN_LINES
    terminal.show(record, Console(highlight=False, soft_wrap=True), most=most)
    if (own := record.get("own_cluster")) is not None:
        own_report.show(own, Console())
    if question.constraints.with_probes:
        terminal.show_probes(record, Console())
    warn_of_drift()
