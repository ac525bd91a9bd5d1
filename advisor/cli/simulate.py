"""``advisor simulate spot|elastic|queue|...``: replay a job, for the curious."""

from __future__ import annotations

import typer

from advisor.cli import (
    simulate_aggregation,
    simulate_availability,
    simulate_elastic,
    simulate_failures,
    simulate_peers,
    simulate_queue,
    simulate_spot,
)
from advisor.cli.plot_option import PlotCommand

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a job on spot nodes, on a shared cluster, with elastic workers, with failures, "
    "over peers at several sites, or with aggregation that jobs share.",
)
app.command("spot", cls=PlotCommand)(simulate_spot.command)
app.command("queue", cls=PlotCommand)(simulate_queue.command)
app.command("availability")(simulate_availability.command)
app.command("elastic", cls=PlotCommand)(simulate_elastic.command)
app.command("failures", cls=PlotCommand)(simulate_failures.command)
app.command("peers")(simulate_peers.command)
app.command("aggregation")(simulate_aggregation.command)
