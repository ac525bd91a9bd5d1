"""What the verbs of ``advisor simulate`` have in common: options, and how answers are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from advisor.ask import HOURS, argument, option
from advisor.cli.plot import check_drawable, show_plot

if TYPE_CHECKING:
    from advisor.show import Chart


HOUR_S: Final = 3600.0

runs_argument: Final = partial(
    argument,
    "Recorded runs, by name, part of it, or folder; name a run twice for two jobs.",
    ...,
    metavar="RUN...",
)
deadline_option: Final = partial(
    option, "Latest end of the job, counted from its submission: 12h, 90m or 2d.", HOURS
)


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
