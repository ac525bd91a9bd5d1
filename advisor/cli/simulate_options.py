"""Options of the verbs of ``advisor simulate``, and the one way to show their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.plot_option import check_drawable, show_plot
from advisor.cli.quantity_types import HOURS, quantity

if TYPE_CHECKING:
    from advisor.shown.chart import Chart

HOUR_S: Final = 3600.0

AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON.")]
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
        from rich.console import Console, Group

        from advisor.report import simulation as report

        Console().print(Group(*getattr(report, verb)(record)))
    show_plot(charts, plot)
