"""What the verbs of ``advisor simulate`` have in common: options, and how answers are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.options import HOURS, check_drawable, quantity, show_plot

if TYPE_CHECKING:
    from advisor.show import Chart


HOUR_S: Final = 3600.0

AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Recorded runs, by name, part of it, or folder; name a run twice for two jobs.",
    ),
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
    record: Mapping[str, Any], charts: Sequence[Chart], plot: str | None, as_json: bool, verb: str
) -> None:
    """Print the record or its text, and draw the charts where asked."""
    check_drawable(charts, plot, hint="name a trace with --trace")
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        from rich.console import Console

        from advisor.report import show_simulated

        show_simulated(verb, record, Console())
    show_plot(charts, plot)
