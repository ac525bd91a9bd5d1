"""``advisor ui``: the recommendation in the browser, with controls for the question."""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.cli.asking import CLUSTER, CONSTRAINTS, JOB, LAYOUT, SETUP, Recorded, asks, with_run
from advisor.cli.waiting import waiting
from advisor.question import Question


@asks(JOB, CONSTRAINTS, ("catalogue", "overrides"), CLUSTER, LAYOUT, SETUP)
def command(
    question: Question,
    recorded: Recorded = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.", show_default=True
        ),
    ] = 0,
    is_opened: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Show the recommendation as a page in the browser, with controls for every constraint.

    The page is served on this machine's loopback address only, to whoever has the address that is
    printed. Ctrl-C ends it.
    """
    from advisor.cli import own_cluster
    from advisor.ui import serve

    asked = with_run(question, recorded)
    with serve.listening(port) as listener:
        with waiting("reading the job and the catalogue"):
            server = serve.Server(asked, listener, beside=own_cluster.comparison)
        typer.echo(server.address)
        server.run(is_opened=is_opened)
