"""``advisor simulate aggregation``: put the gradients of several jobs on shared cores."""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.cli.quantity_types import RATE, SHARE, quantity
from advisor.cli.simulate_options import AsJson, show


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            show_default=False,
            help="Recorded runs, by name, part of it, or folder; name a run twice for two jobs.",
        ),
    ],
    link: Annotated[
        float,
        quantity(RATE, "--link", help="Network of each machine, each way, e.g. 10Gbit/s."),
    ],
    workers: Annotated[int, typer.Option(min=1, help="Machines that each job trains on.")] = 4,
    servers: Annotated[
        int, typer.Option(min=1, help="Machines whose network the aggregators use.")
    ] = 1,
    loss: Annotated[
        float,
        quantity(
            SHARE, "--loss", default="5%", help="Longest delay of a job, as a share of its step."
        ),
    ] = 0.05,
    cap: Annotated[
        float,
        quantity(SHARE, "--cap", default="80%", help="Highest load of an aggregating core."),
    ] = 0.8,
    core_rate: Annotated[
        float | None,
        quantity(
            RATE,
            "--core-rate",
            help="Memory traffic of one aggregating core (default: as measured where the job "
            "ran).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share aggregating cores among jobs (Parameter Service).

    Shows how many cores the jobs need together instead of one or more each, how long each waits
    for the others, and what all-reduce would take, which needs no such core.
    """
    from advisor import api
    from advisor.question import JobSpec
    from advisor.simulation.aggregation import shared_aggregation

    jobs = [api.job_of(JobSpec(run=run)) for run in runs]
    found = shared_aggregation(
        jobs, workers=workers, link_bytes_per_s=link, cap=cap,
        most_loss=loss, core_bytes_per_s=core_rate, servers=servers,
    )  # fmt: skip
    show(found.to_record(), (), None, as_json, "aggregation")
