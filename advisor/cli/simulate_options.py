"""What the verbs of ``advisor simulate`` share: options, and how an answer is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.quantity_types import HOURS, quantity
from advisor.collectors import atomic
from advisor.errors import AdvisorError, UsageError

if TYPE_CHECKING:
    from advisor.shown.charts import Chart

HOUR_S: Final = 3600.0

AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the answer into this file: .svg, or .html for a page.")
]
Deadline = Annotated[
    float | None,
    quantity(
        HOURS,
        "--deadline",
        help="Latest end of the job, counted from its submission: 12h, 90m or 2d.",
    ),
]


def show(
    title: str,
    record: Mapping[str, Any],
    charts: Sequence[Chart],
    plot: Path | None,
    as_json: bool,
    verb: str,
) -> None:
    """Draw the charts where asked, then print the record or its text."""
    if plot is not None:
        from advisor.shown import charts as drawing

        if plot.suffix not in (".svg", ".html"):
            raise UsageError(f"cannot draw into {plot.name}", hint="name a .svg or .html file")
        if not charts:
            raise UsageError("nothing to draw without a trace", hint="name one with --trace")
        drawn = drawing.svg(charts) if plot.suffix == ".svg" else drawing.page(title, charts)
        try:
            atomic.write_text(plot, drawn)
        except OSError as error:
            raise AdvisorError(
                f"cannot write {plot}: {error}", hint="name a file in a folder that exists"
            ) from None
        typer.echo(f"drawn: {plot}", err=True)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    from rich.console import Console, Group

    from advisor.report import simulation as report

    Console().print(Group(*getattr(report, verb)(record)))
