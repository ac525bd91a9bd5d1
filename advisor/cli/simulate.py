"""``advisor simulate spot|elastic|queue|...``: replay a job, for the curious."""

from __future__ import annotations

import typer

from advisor.cli import (
    simulate_availability,
    simulate_elastic,
    simulate_failures,
    simulate_peers,
    simulate_queue,
    simulate_spot,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a job on spot nodes, on a shared cluster, with elastic workers, with failures, "
    "or over peers at several sites.",
)
app.command("spot")(simulate_spot.command)
app.command("queue")(simulate_queue.command)
app.command("availability")(simulate_availability.command)
app.command("elastic")(simulate_elastic.command)
app.command("failures")(simulate_failures.command)
app.command("peers")(simulate_peers.command)
