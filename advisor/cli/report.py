"""``advisor report``: the answer, the run and the advice as one interactive HTML page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.cli.asking import CLUSTER, CONSTRAINTS, JOB, LAYOUT, SETUP, Recorded, asks, with_run
from advisor.cli.waiting import waiting
from advisor.errors import UsageError
from advisor.question import Question

if TYPE_CHECKING:
    from advisor.domain import Recommendation
    from advisor.jobs.job import Job
    from advisor.predict import Predictor
    from advisor.simulation.own_cluster import ClusterComparison

_STDOUT = "-"


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), CLUSTER, LAYOUT, SETUP)
def command(
    question: Question,
    recorded: Recorded = None,
    *,
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FILE", help="File to write; `-` is standard output."),
    ] = "report.html",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not an earlier report.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the page holds as JSON, and write no page.")
    ] = False,
) -> None:
    """Write what `advisor recommend` answers as one HTML page that loads nothing.

    The page holds the list, the recorded run and the advice, and can be sent to anybody. Exit
    code 3 means that nothing satisfies the constraints; the page then shows the nearest misses.
    """
    from advisor import api
    from advisor.cli import own_cluster

    asked = with_run(question, recorded)
    target = Path(out)
    if out != _STDOUT and not as_json and not force:
        _check_overwrites(target)
    own: ClusterComparison | None = None

    def beside(job: Job, answer: Recommendation, predictor: Predictor) -> Any:
        nonlocal own
        own = own_cluster.comparison(asked, job, answer, predictor)
        return None if own is None else own.to_record()["own_cluster"]

    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with waiting("pricing the job on every offer, and with each change", is_quiet=as_json):
        data = api.report_data(asked, made=made, beside=beside)
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        _write(data, out, target)
    if not data["answer"]["picks"] and not (own is not None and own.meets_constraints):
        raise typer.Exit(3)


def _write(data: dict[str, object], out: str, target: Path) -> None:
    from advisor.collectors import atomic
    from advisor.report.page import page

    text = page(data)
    if out == _STDOUT:
        typer.echo(text, nl=False)
        return
    atomic.write_text(target, text)
    typer.echo(f"wrote {target} ({len(text.encode()) / 1e6:.1f} MB)", err=True)


def _check_overwrites(target: Path) -> None:
    """Refuse to replace a file that is no report: it may be the user's own work."""
    from advisor.report.page import GENERATOR

    mark = f'<meta name="generator" content="{GENERATOR}">'
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint=f"-o {target / 'report.html'}")
    if not target.is_file() or target.stat().st_size == 0:
        return
    with target.open("rb") as file:
        if mark.encode() not in file.read(4096):
            raise UsageError(
                f"{target} exists and is not an earlier report", hint="--force overwrites it"
            )
